"""A client and a real server: restarts, leases that are kept, clocks that differ, what is imported, who waits."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pytest

import afterlog
from afterlog import aio
from afterlog.base.clock import ManualClock
from afterlog.base.errors import GroupBusy, NotServed, ServerUnavailable, StoreForked
from afterlog.client.async_readers import AsyncServedConsumer, AsyncServedSubscription
from afterlog.client.async_store import AsyncServedStore
from afterlog.client.pool import Pool
from afterlog.client.served_consumer import ServedConsumer, ServedSubscription
from afterlog.client.served_store import ServedStore
from tests.client.serving import Served
from tests.support import NOW_MS, PATIENCE_S, eventually

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


@pytest.fixture
def served(clock: ManualClock) -> Iterator[Served]:
    with TemporaryDirectory() as folder:
        made = Served(Path(folder), clock)
        made.store.create_topic("mail")
        yield made
        made.stop()


@pytest.fixture
def store(served: Served, clock: ManualClock) -> Iterator[ServedStore]:
    with afterlog.connect(served.folder, timeout=PATIENCE_S, clock=clock) as made:
        yield made


def once_somebody_waits(served: Served, call: Any) -> threading.Thread:
    """A thread that does it when the server has a request that waits for a record."""

    def work() -> None:
        app = served._server.app
        assert app is not None
        eventually(lambda: len(app.served.waits) > 0)
        call()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


@contextmanager
def started_in_a_pause(served: Served) -> Iterator[list[float]]:
    """The server is started when a client that found nobody pauses; the pauses."""
    pauses: list[float] = []

    def start(_: Pool, seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 1:
            served.start()

    with patch.object(Pool, "_sleep", start):
        yield pauses


SINGLY = """
import sys
import afterlog
with afterlog.connect(sys.argv[1]) as store:
    store.send("mail", b"x", key=b"k", headers=[("a", b"b")], delay=0)
    with store.subscribe("mail", "s", retry=afterlog.RetryPolicy(attempts=3), dead_letter="dead") as subscription:
        [message] = subscription.receive(timeout=10)
        subscription.extend(message, lease_ms=60_000)
        subscription.nack(message, delay=0)
        for message in subscription:
            with message:
                assert message.value == b"x"
            break
    with store.consumer("mail", group="g") as consumer:
        [message] = consumer.poll(timeout=10)
        consumer.commit()
    store.cancel(store.send("mail", b"y", delay=60))
    assert [] == store.pending("mail")
print(*sorted(sys.modules))
"""


class TestImports:
    def test_one_record_at_a_time_needs_no_numpy(self) -> None:
        with TemporaryDirectory() as folder:
            served = Served(Path(folder), afterlog.SystemClock())
            served.store.create_topic("mail")
            program = [sys.executable, "-W", "error", "-c", SINGLY, folder]
            ran = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
            served.stop()
        assert "" == ran.stderr
        loaded = set(ran.stdout.split())
        assert {"afterlog.client.served_store", "afterlog.client.http_connection"} <= loaded
        assert (
            not {"http.client", "numpy", "pyarrow", "aiohttp", "asyncio", "afterlog.store.store", "afterlog.produce"}
            & loaded
        )


class TestNames:
    @pytest.mark.parametrize(
        ("facade", "blocking"),
        [
            (AsyncServedStore, ServedStore),
            (AsyncServedConsumer, ServedConsumer),
            (AsyncServedSubscription, ServedSubscription),
        ],
    )
    def test_asyncio_has_the_same(self, facade: Any, blocking: Any) -> None:
        inside = {"halt", "stop_taking", "closed", "now_ms", "background"}
        names = {name for name, _ in inspect.getmembers(blocking, callable) if not name.startswith("_")} - inside
        for name in names:
            expected, found = (
                inspect.signature(getattr(each, name)).parameters.values() for each in (blocking, facade)
            )
            assert [(each.name, each.kind, each.default) for each in expected] == [
                (each.name, each.kind, each.default) for each in found
            ]

    def test_what_is_only_for_who_has_the_folder(self, store: ServedStore) -> None:
        for call in (store.adopt, store.check):
            with pytest.raises(NotServed):
                call()


class TestRestarts:
    def test_a_send_waits_for_the_server(self, served: Served, store: ServedStore) -> None:
        assert 0 == store.send("mail", b"x").offset
        served.stop()
        with started_in_a_pause(served) as pauses:
            assert 1 == store.send("mail", b"y").offset
        assert 1 <= len(pauses)
        assert [b"x", b"y"] == [message.value for message in store.consumer("mail", group="g").poll()]

    def test_a_reader_waits_over_one(self, served: Served, store: ServedStore) -> None:
        with store.subscribe("mail", "s") as subscription:
            restarting = once_somebody_waits(served, lambda: (served.stop(), served.start(), store.send("mail", b"x")))
            [message] = subscription.receive(timeout=PATIENCE_S)
            restarting.join()
            assert (b"x", 1) == (message.value, subscription.ack(message).acked)

    def test_an_iteration_does_too(self, served: Served, store: ServedStore) -> None:
        with store.subscribe("mail", "s") as subscription:
            restarting = once_somebody_waits(served, lambda: (served.stop(), served.start(), store.send("mail", b"x")))
            for message in subscription:
                with message:
                    break
            restarting.join()
            assert 1 == subscription.stats().acked

    def test_a_consumer_claims_again(self, served: Served, store: ServedStore) -> None:
        store.send("mail", b"x")
        with store.consumer("mail", group="g") as consumer:
            assert 1 == len(consumer.poll())
            served.stop()
            served.start()
            consumer.commit()
            assert {0: 1} == consumer.committed()
            with pytest.raises(GroupBusy):
                store.consumer("mail", group="g")
        with store.consumer("mail", group="g") as consumer:
            assert {0: 1} == consumer.committed()

    def test_nobody_is_there(self, tmp_path: Path) -> None:
        with afterlog.connect(tmp_path, timeout=0.1) as store, pytest.raises(ServerUnavailable, match="was tried"):
            store.topics()


class TestLeases:
    def test_of_a_message_whose_block_is_open_they_are_kept(
        self, store: ServedStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.send("mail", b"x")
        with store.subscribe("mail", "s", lease_ms=10_000) as subscription:
            [message] = subscription.receive()
            with message:
                for _ in range(10):
                    clock.advance(4_000)
                    store._readers._keeper.look()
                assert 0 == len(subscription.receive())
            assert (1, 0) == ((stats := subscription.stats()).acked, stats.expired)

    def test_they_are_kept_by_a_clock_that_is_wrong(self, served: Served, clock: ManualClock) -> None:
        wrong = ManualClock(NOW_MS + 3_600_000)
        with afterlog.connect(served.folder, clock=wrong) as store:
            store.send("mail", b"x")
            with store.subscribe("mail", "s", lease_ms=10_000) as subscription:
                for message in subscription:
                    assert abs(store.now_ms() - NOW_MS) < 1_000
                    with message:
                        clock.advance(4_000)
                        wrong.advance(4_000)
                        store._readers._keeper.look()
                        clock.advance(7_000)
                        wrong.advance(7_000)
                        assert 0 == served.store.subscribe("mail", "s").stats().due
                    break
                assert (1, 0) == ((stats := subscription.stats()).acked, stats.expired)

    def test_what_somebody_has_leased_for_longer_stays_so(self, store: ServedStore, clock: ManualClock) -> None:
        store.send("mail", b"x")
        with store.subscribe("mail", "s", lease_ms=10_000) as subscription:
            [message] = subscription.receive()
            with message:
                subscription.extend(message, lease_ms=100_000)
                clock.advance(9_000)
                store._readers._keeper.look()
                clock.advance(80_000)
                assert 0 == len(subscription.receive())

    def test_claims_are_kept_too(self, store: ServedStore, served: Served, clock: ManualClock) -> None:
        with store.consumer("mail", group="g"):
            store._readers._keeper.look()
            assert store._readers._keeper.left_ms() == 15_000

    def test_a_close_in_the_middle_of_a_wait_loses_nothing(self, store: ServedStore) -> None:
        for _ in range(20):
            subscription = store.subscribe("mail", "s")
            racing = threading.Thread(target=lambda: store.send("mail", b"x"))
            receiving = threading.Thread(target=lambda each=subscription: each.receive(timeout=5))  # type: ignore[misc]
            receiving.start()
            racing.start()
            racing.join()
            subscription.close()
            receiving.join()
            with store.subscribe("mail", "s") as after:
                [message] = after.receive(timeout=PATIENCE_S)
                assert 0 == message.redelivery_count
                after.ack(message)


class TestForks:
    def test_a_forked_child_says_so(self, store: ServedStore) -> None:
        store.send("mail", b"x")
        child = os.fork()
        if not child:
            try:
                store.send("mail", b"y")
            except StoreForked:
                store.close()
                os._exit(7)
            os._exit(1)
        assert 7 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert 1 == store.send("mail", b"z").offset


class TestTasks:
    def test_many_wait_and_hold_up_nobody(self, served: Served, clock: ManualClock) -> None:
        async def main() -> None:
            async with aio.connect(served.folder, clock=clock) as store, store.subscribe("mail", "s") as subscription:
                waiting = [asyncio.create_task(subscription.receive(1, timeout=PATIENCE_S)) for _ in range(200)]
                await asyncio.sleep(0.1)
                ids = await asyncio.gather(*(store.send("mail", b"x") for _ in range(200)))
                assert set(range(200)) == {each.offset for each in ids}
                found = await asyncio.gather(*waiting)
                assert set(range(200)) == {message.offset for [message] in found}

        asyncio.run(asyncio.wait_for(main(), PATIENCE_S))

    def test_a_cancelled_receive_takes_nothing(self, served: Served, clock: ManualClock) -> None:
        async def main() -> None:
            async with aio.connect(served.folder, clock=clock) as store, store.subscribe("mail", "s") as subscription:
                receiving = asyncio.create_task(subscription.receive(timeout=None))
                await asyncio.sleep(0.05)
                receiving.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await receiving
                await store.send("mail", b"x")
                [message] = await subscription.receive(timeout=PATIENCE_S)
                assert (b"x", 0) == (message.value, message.redelivery_count)

        asyncio.run(asyncio.wait_for(main(), PATIENCE_S))

    @pytest.mark.parametrize("ended", ["cancelled", "closed"])
    @pytest.mark.parametrize("timeout", [0, PATIENCE_S], ids=["looks", "waits"])
    def test_a_receive_that_ends_as_it_is_answered_loses_nothing(
        self, served: Served, clock: ManualClock, ended: str, timeout: float
    ) -> None:
        async def main() -> None:
            async with aio.connect(served.folder, clock=clock) as store:
                await (await store.subscribe("mail", "s")).close()
                for turn in range(40):
                    subscription = await store.subscribe("mail", "s")
                    receiving = asyncio.create_task(subscription.receive(timeout=timeout))
                    await store.send("mail", b"x")
                    for _ in range(turn):
                        await asyncio.sleep(0)
                    if ended == "cancelled":
                        receiving.cancel()
                    await subscription.close()
                    await asyncio.wait([receiving])
                    async with store.subscribe("mail", "s") as after:
                        [message] = await after.receive(timeout=PATIENCE_S)
                        assert 0 == message.redelivery_count
                        await after.ack(message)

        asyncio.run(asyncio.wait_for(main(), PATIENCE_S))

    def test_a_task_that_is_cancelled_in_a_block_gives_back(self, served: Served, clock: ManualClock) -> None:
        async def main() -> None:
            async with aio.connect(served.folder, clock=clock) as store, store.subscribe("mail", "s") as subscription:
                await store.send("mail", b"x")
                inside = asyncio.Event()

                async def handle() -> None:
                    async for message in subscription:
                        async with message:
                            inside.set()
                            await asyncio.Event().wait()

                handling = asyncio.create_task(handle())
                await inside.wait()
                handling.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await handling
                [message] = await subscription.receive(timeout=PATIENCE_S)
                assert 0 == message.redelivery_count

        asyncio.run(asyncio.wait_for(main(), PATIENCE_S))

    def test_waits_end_with_the_subscription(self, served: Served, clock: ManualClock) -> None:
        async def main() -> None:
            async with aio.connect(served.folder, clock=clock) as store:
                subscription = await store.subscribe("mail", "s")
                waiting = [asyncio.create_task(subscription.receive(timeout=None)) for _ in range(5)]
                await asyncio.sleep(0.05)
                await subscription.close()
                assert [0] * 5 == [len(found) for found in await asyncio.gather(*waiting)]

        asyncio.run(asyncio.wait_for(main(), PATIENCE_S))

    def test_a_send_waits_for_the_server(self, served: Served, clock: ManualClock) -> None:
        async def main() -> None:
            async with aio.connect(served.folder, clock=clock) as store:
                await store.send("mail", b"x")
                await asyncio.to_thread(served.stop)
                sending = asyncio.create_task(store.send("mail", b"y"))
                await asyncio.sleep(0.1)
                await asyncio.to_thread(served.start)
                assert 1 == (await sending).offset

        asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_a_backup_of_what_is_served_leaves_the_socket_out(served: Served, store: ServedStore, tmp_path: Path) -> None:
    store.send("mail", b"x")
    for made in (served.store.backup(tmp_path / "backups"), store.backup(tmp_path / "backups")):
        assert tmp_path / "backups" == made.path.parent.parent
        assert not (made.path / "server.sock").exists()
