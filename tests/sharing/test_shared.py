"""A store that processes share: who serves it, who takes over, and what everybody notices of it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import afterlog
from afterlog import aio
from afterlog.base.config import Config
from afterlog.base.errors import InvalidArgument, NotAllowed, NotServed, ServerUnavailable, StoreForked, StoreLocked
from afterlog.base.files import OsFiles
from afterlog.base.names import LOCK, SERVER_SOCKET
from afterlog.sharing import standby
from afterlog.sharing.shared import SharedStore
from tests.campaigns.test_fork import in_child
from tests.support import PATIENCE_S

OTHER = """
import sys, afterlog
with afterlog.open(sys.argv[1], shared=True, timeout=60) as store:
    print("serves" if store.serves else "joined", flush=True)
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "send":
            print(store.send("mail", rest[0].encode()), flush=True)
        elif word == "serves":
            print(store.serves, flush=True)
        elif word == "end":
            break
"""


class Other:
    """Another process that shares the store, and does as it is told."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OTHER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.came = self.read()

    def __enter__(self) -> Other:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()

    def ask(self, line: str) -> str:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)
        return self.read()

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        if number == signal.SIGSTOP:  # until each of its threads has stopped: one may just be answering
            os.waitpid(self.process.pid, os.WUNTRACED)

    def end(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(PATIENCE_S)


def shared(folder: Path, timeout: float = PATIENCE_S) -> SharedStore:
    return afterlog.open(folder, shared=True, timeout=timeout)


def until(there: Callable[[], bool]) -> None:
    """Something that comes by itself, in another thread."""
    waiting = threading.Event()
    for _ in range(PATIENCE_S * 100):
        if there():
            return
        waiting.wait(0.01)
    raise AssertionError("it does not come")


class TestInOneProcess:
    def test_handles_are_clients_of_one_server(self, tmp_path: Path) -> None:
        with shared(tmp_path) as one, shared(tmp_path) as other:
            assert one.serves
            assert other.serves
            one.create_topic("mail")
            other.send("mail", b"a")
            with one.consumer("mail", group="g") as consumer:
                assert [b"a"] == [message.value for message in consumer.poll(timeout=PATIENCE_S)]

    def test_the_last_handle_lets_the_folder_go(self, tmp_path: Path) -> None:
        one, other = shared(tmp_path), shared(tmp_path)
        one.create_topic("mail")
        one.close()
        other.send("mail", b"a")
        with pytest.raises(StoreLocked):
            afterlog.open(tmp_path)
        other.close()
        other.close()
        assert not OsFiles().exists(tmp_path / SERVER_SOCKET)
        with afterlog.open(tmp_path) as store:
            assert 1 == store.topic("mail").partition(0).log_end_offset

    def test_asyncio(self, tmp_path: Path) -> None:
        async def test() -> None:
            async with aio.open(tmp_path, shared=True) as store:
                await store.create_topic("mail")
                await store.send("mail", b"a")
                assert store.serves
                async with store.subscribe("mail", "s") as subscription:
                    [message] = await subscription.receive(timeout=PATIENCE_S)
                    assert b"a" == message.value

        asyncio.run(test())

    def test_a_store_that_cannot_be_opened_is_said_so(self, tmp_path: Path) -> None:
        with afterlog.open(tmp_path) as store:
            store.create_topic("mail")
        topics = tmp_path / "topics"
        topics.write_bytes(topics.read_bytes()[:-1] + b"?")
        with pytest.raises(afterlog.CorruptFile):
            shared(tmp_path)
        assert {} == standby._STANDBYS.by_path

    def test_what_is_open_and_not_shared(self, tmp_path: Path) -> None:
        with afterlog.open(tmp_path), pytest.raises(StoreLocked, match=f"in process {os.getpid()}"):
            shared(tmp_path, timeout=0.2)

    def test_what_is_open_and_not_shared_is_not_waited_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """But for as long as a command may take."""
        monkeypatch.setattr(standby, "ALONE_S", 0.1)
        with afterlog.open(tmp_path), pytest.raises(StoreLocked, match="has it by itself: give shared=True there, too"):
            shared(tmp_path, timeout=10 * PATIENCE_S)
        assert [f"{os.getpid()}"] == (tmp_path / LOCK).read_text().split()

    def test_what_is_open_and_served_is_joined(self, tmp_path: Path) -> None:
        with afterlog.open(tmp_path, serve=True) as store:
            store.create_topic("mail")
            with shared(tmp_path) as other:
                assert not other.serves
                other.send("mail", b"a")
            assert 1 == store.topic("mail").partition(0).log_end_offset

    def test_other_options_are_warned_of(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with afterlog.open(tmp_path, serve=True, config=Config(durability=afterlog.OS)), shared(tmp_path):
            pass
        assert "durability" in caplog.text
        with shared(tmp_path), afterlog.open(tmp_path, shared=True, config=Config(durability=afterlog.OS)):
            pass
        assert "other options" in caplog.text

    def test_served_and_shared_is_too_much(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidArgument):
            afterlog.open(tmp_path, shared=True, serve=True)  # type: ignore[call-overload]

    def test_without_the_extra(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def missing() -> None:
            raise NotServed("a server needs httptools: pip install 'afterlog[server]'")

        monkeypatch.setattr("afterlog.sharing.shared.check_installed", missing)
        with pytest.raises(ImportError, match=r"afterlog\[server\]"):
            shared(tmp_path)

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
    def test_another_users(self, tmp_path: Path) -> None:
        with afterlog.open(tmp_path) as store:
            store.create_topic("mail")
        tmp_path.chmod(0o700)

        def as_nobody() -> None:
            os.seteuid(65_534)
            try:
                shared(tmp_path, timeout=1.0)
            finally:
                os.seteuid(0)

        for parent in tmp_path.parents[:3]:
            parent.chmod(0o755)
        with pytest.raises(NotAllowed, match="another user's"):
            as_nobody()


class TestManyProcesses:
    def test_who_is_killed_is_followed(self, tmp_path: Path) -> None:
        with Other(tmp_path) as other:
            assert "serves" == other.came
            with shared(tmp_path) as store:
                assert not store.serves
                store.create_topic("mail")
                assert "mail-0@0" == other.ask("send a")
                with store.subscribe("mail", "s") as subscription:
                    [message] = subscription.receive(timeout=PATIENCE_S)
                    other.kill()
                    assert 1 == store.send("mail", b"b").offset
                    assert store.serves
                    assert 1 == subscription.ack(message).acked, "a lease outlives who served it"
                    [message] = subscription.receive(timeout=PATIENCE_S)
                    assert (b"b", 0) == (message.value, message.redelivery_count)

    def test_who_waits_waits_on(self, tmp_path: Path) -> None:
        with Other(tmp_path) as other, shared(tmp_path) as store, shared(tmp_path) as sender:
            store.create_topic("mail")
            found: list[bytes | None] = []

            def wait() -> None:
                with store.subscribe("mail", "s") as subscription:
                    found.extend(message.value for message in subscription.receive(timeout=PATIENCE_S))

            waiting = threading.Thread(target=wait)
            waiting.start()
            until(lambda: "s" in sender.subscriptions("mail"))
            other.kill()
            sender.send("mail", b"a")
            waiting.join(PATIENCE_S)
            assert [b"a"] == found

    def test_who_closes_hands_over_and_nobody_sees_an_error(self, tmp_path: Path) -> None:
        first = shared(tmp_path)
        first.create_topic("mail")
        with Other(tmp_path) as one, Other(tmp_path) as two:
            assert ["joined", "joined"] == [one.came, two.came]
            first.close()
            sent = [each.ask(f"send {number}") for number in range(5) for each in (one, two)]
            assert {f"mail-0@{number}" for number in range(10)} == set(sent)
            assert {"True", "False"} == {one.ask("serves"), two.ask("serves")}

    def test_a_process_that_ends_lets_go(self, tmp_path: Path) -> None:
        with Other(tmp_path) as other, shared(tmp_path) as store:
            store.create_topic("mail")
            assert 0 == other.end()
            store.send("mail", b"a")
            assert store.serves

    def test_a_handle_that_is_left_open(self, tmp_path: Path) -> None:
        program = "import sys, afterlog; store = afterlog.open(sys.argv[1], shared=True); store.create_topic('mail')"
        subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=PATIENCE_S)
        assert not OsFiles().exists(tmp_path / SERVER_SOCKET), "it was stopped, not dropped"
        with afterlog.open(tmp_path) as store:
            assert ["mail"] == [topic.name for topic in store.topics()]

    def test_who_is_stopped_keeps_the_lock(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(standby, "ANSWER_S", 0.2)
        with Other(tmp_path) as other, shared(tmp_path, timeout=0.5) as store:
            store.create_topic("mail")
            other.kill(signal.SIGSTOP)
            try:
                with pytest.raises(ServerUnavailable, match=f"open in process {other.process.pid}"):
                    store.send("mail", b"a")
                with pytest.raises(StoreLocked, match=f"in process {other.process.pid}"):
                    afterlog.open(tmp_path)
                assert [f"{other.process.pid}", "serves"] == (tmp_path / LOCK).read_text().split()
            finally:
                other.kill(signal.SIGCONT)
            store.topic("mail")


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
class TestForks:
    def test_a_forked_handle_says_so(self, tmp_path: Path) -> None:
        with shared(tmp_path) as store:
            store.create_topic("mail")
            with store.subscribe("mail", "s") as subscription:
                for call in (lambda: store.send("mail", b"a"), store.topics, subscription.receive):
                    assert StoreForked.__name__ == in_child(call)
                assert "" == in_child(store.close), "a child may clean up behind itself"
            assert store.serves
            store.send("mail", b"b")

    def test_a_child_opens_its_own(self, tmp_path: Path) -> None:
        with shared(tmp_path) as store:
            store.create_topic("mail")

            def open_own() -> None:
                with shared(tmp_path) as own:
                    own.send("mail", b"child")

            assert "" == in_child(open_own)
            with store.consumer("mail", group="g") as consumer:
                assert [b"child"] == [message.value for message in consumer.poll(timeout=PATIENCE_S)]

    def test_a_child_does_not_keep_the_connections_of_a_parent_that_was_killed(self, tmp_path: Path) -> None:
        """Else who waits for an answer would not hear that there will be none, as long as the child lives."""
        ready_read, ready_write = os.pipe()
        held_read, held_write = os.pipe()
        owner = os.fork()
        if owner == 0:
            try:
                shared(tmp_path).create_topic("mail")
                os.write(ready_write, b"1")
                os.read(held_read, 1)
                if os.fork() == 0:
                    os.write(ready_write, b"2")
                    os.close(held_write)
                    os.read(held_read, 1)  # until the test is done with it
                    os._exit(0)
                os.read(held_read, 1)
            finally:
                os._exit(0)
        try:
            assert b"1" == os.read(ready_read, 1)
            with shared(tmp_path) as store:
                assert not store.serves
                os.write(held_write, b"1")
                assert b"2" == os.read(ready_read, 1)
                os.kill(owner, signal.SIGKILL)
                os.waitpid(owner, 0)
                store.send("mail", b"a")
                assert store.serves
        finally:
            for descriptor in (ready_read, ready_write, held_read, held_write):
                os.close(descriptor)


def test_it_is_quiet(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), shared(tmp_path) as store:
        store.create_topic("mail")
    assert [] == caplog.records


@pytest.mark.parametrize("arrow", [True, False], ids=["columns", "no pyarrow"])
@pytest.mark.parametrize("value", [b"x", b"\0"], ids=["text", "six bytes each as JSON"])
def test_few_that_are_large(tmp_path: Path, value: bytes, arrow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five megabytes in fifty records: more than a request of JSON takes."""
    if not arrow:
        monkeypatch.setattr("afterlog.client.sent_columns.has_arrow", lambda: False)
    with afterlog.open(tmp_path / "data", shared=True) as store:
        store.create_topic("mail")
        offsets = store.send_many("mail", [value * 100_000] * 50)
        assert [*range(50)] == [int(each) for each in offsets]
        with store.consumer("mail", group="g") as consumer:
            assert {value * 100_000} == {message.value for message in consumer.poll(50)}


def test_many_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the event loop reads at once: a thread does."""
    monkeypatch.setattr("afterlog.client.sent_columns.has_arrow", lambda: False)
    monkeypatch.setattr("afterlog.client.sent_columns.JSON_RECORDS", 5_000)
    with afterlog.open(tmp_path / "data", shared=True) as store:
        store.create_topic("mail", partitions=3)
        store.send_many("mail", [b"%d" % row for row in range(9_000)], keys=[b"%d" % (row % 7) for row in range(9_000)])
        with store.consumer("mail", group="g") as consumer:
            found = [message.value for messages in iter(lambda: consumer.poll(2_000), []) for message in messages]
    assert {b"%d" % row for row in range(9_000)} == set(found)
