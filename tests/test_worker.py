from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import pickle
import signal
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pydantic
import pytest

import afterlog
import afterlog.worker
from afterlog.base.clock import ManualClock
from afterlog.base.errors import InvalidArgument, InvalidSubscription, StoreClosed, UnknownTopic, WrongType
from afterlog.fetch.message import Message
from afterlog.subscription.leased_message import LeasedMessage
from afterlog.subscription.policy import RetryPolicy
from afterlog.subscription.subscription import Subscription
from afterlog.worker import ReaderOptions, Worker
from tests import worker_calls
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.conformance.ways import WAYS, Setting
from tests.support import NOW_MS, PATIENCE_S, Background, Gate, eventually, open_small

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture
def store() -> Iterator[afterlog.Store]:
    with open_small(SimulatedFiles(), ManualClock(NOW_MS)) as store:
        store.create_topics(["mail", "mail.dead"])
        yield store
        store.check()


@pytest.fixture(params=["embedded", "served", "shared"])
def setting(request: pytest.FixtureRequest) -> Iterator[Setting]:
    with TemporaryDirectory() as folder, WAYS[request.param](Path(folder), ManualClock(NOW_MS), {}) as made:
        made.store.create_topic("mail", partitions=2)
        yield made


class Running(Background[bool]):
    """A worker that runs in a thread; the end of the block stops it."""

    def __init__(self, worker: Worker, timeout: float | None = PATIENCE_S) -> None:
        self._worker = worker
        super().__init__(lambda: worker.run(timeout))

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *error: object) -> None:
        self._worker.stop()
        with contextlib.suppress(BaseException):
            self.answer()


def standing(store: Any, topic: str = "mail", name: str = "worker") -> dict[str, int]:
    """Of a subscription that nobody reads at the moment."""
    with store.subscribe(topic, name) as reader:
        stats = reader.stats()
    return {what: getattr(stats, what) for what in ("acked", "nacked", "expired", "dead", "retrying", "leased")}


def counts(**changed: int) -> dict[str, int]:
    return dict.fromkeys(("acked", "nacked", "expired", "dead", "retrying", "leased"), 0) | changed


def dead(store: afterlog.Store) -> dict[bytes | None, str | None]:
    """Why each of the dead letters is there."""
    found = store.dead_letters("mail.dead")
    return {each.message.value: None if each.origin is None else each.origin.reason for each in found}


def is_acked(setting: Setting, name: str) -> bool:
    """Whether all that is due has been handled, and said to be."""
    with setting.store.subscribe("mail", name) as reader:
        stats = reader.stats()
        return stats.due == stats.leased == 0


class TestEverywhere:
    """On a store that is open here, served, and shared."""

    def test_functions_and_coroutines_handle_what_is_due(self, setting: Setting) -> None:
        store, worker = setting.store, Worker(setting.store)
        got: dict[str, list[bytes | None]] = {"thread": [], "loop": []}

        @worker.handle("mail", "thread", concurrency=2)
        def in_thread(message: LeasedMessage) -> None:
            got["thread"].append(message.value)

        @worker.handle("mail", "loop", concurrency=2)
        async def in_loop(message: LeasedMessage) -> None:
            await asyncio.sleep(0)
            got["loop"].append(message.value)

        sent = [b"%d" % number for number in range(20)]
        store.send_many("mail", sent)
        store.send("mail", b"later", delay=60)
        with Running(worker) as running:
            eventually(lambda: {20} == {len(each) for each in got.values()})
            # Acked, too: else a lease ends with the time that goes by, and its message comes again.
            eventually(lambda: all(is_acked(setting, name) for name in got))
            setting.clock.advance(60_000)
            eventually(lambda: {21} == {len(each) for each in got.values()})
            worker.stop()
            assert running.answer()
        assert {"thread": sorted([*sent, b"later"]), "loop": sorted([*sent, b"later"])} == {
            name: sorted(values) for name, values in got.items()
        }
        assert counts(acked=21) == standing(store, name="thread") == standing(store, name="loop")

    def test_stopping_gives_back_what_waits_and_lets_handlers_end(self, setting: Setting) -> None:
        store, worker, gate = setting.store, Worker(setting.store), Gate()

        @worker.handle("mail", partitions=[0])
        def slow(message: LeasedMessage) -> None:
            gate.passing()

        store.send_many("mail", [b"%d" % number for number in range(5)], partition=0)
        with Running(worker) as running:
            gate.came()
            worker.stop()
            assert running.is_alive()
            gate.open()
            assert running.answer()
        assert counts(acked=1) == standing(store)
        with store.subscribe("mail", "worker") as reader:
            assert [(b"%d" % number, 0) for number in range(1, 5)] == [
                (each.value, each.redelivery_count) for each in reader.receive()
            ]


class TestHandlers:
    def test_one_that_raises_is_tried_again_and_then_dead(self, store: afterlog.Store) -> None:
        worker, seen = Worker(store), list[tuple[bytes | None, int]]()

        @worker.handle("mail", retry=RetryPolicy(first_ms=1_000, jitter=0, attempts=2), dead_letter="mail.dead")
        def fails(message: LeasedMessage) -> None:
            seen.append((message.value, message.redelivery_count))
            raise LookupError("no such address")

        store.send("mail", b"a")
        with Running(worker):
            eventually(lambda: len(seen) == 1)
            with store.subscribe("mail", "worker") as reader:
                eventually(lambda: reader.stats().retrying == 1)
            assert isinstance(store.clock, ManualClock)
            store.clock.advance(1_000)
            eventually(lambda: len(dead(store)) == 1)
        assert [(b"a", 0), (b"a", 1)] == seen
        assert {b"a": "LookupError: no such address"} == dead(store)

    def test_concurrency_is_how_many_it_has_at_a_time(self, store: afterlog.Store) -> None:
        worker, together = Worker(store), threading.Barrier(3)

        @worker.handle("mail", concurrency=3)
        def meets(message: LeasedMessage) -> None:
            together.wait(PATIENCE_S)

        store.send_many("mail", [b"x"] * 3)
        with Running(worker), store.subscribe("mail", "worker") as reader:
            eventually(lambda: reader.stats().acked == 3)

    def test_all_coroutines_share_one_loop_and_may_be_made_by_any_callable(self, store: afterlog.Store) -> None:
        worker, loops = Worker(store), dict[str, asyncio.AbstractEventLoop]()

        async def handle(name: str, message: LeasedMessage) -> None:
            loops[name] = asyncio.get_running_loop()

        class Callee:
            async def __call__(self, message: LeasedMessage) -> None:
                await handle("object", message)

        worker.handle("mail", "partial")(functools.partial(handle, "partial"))
        worker.handle("mail", "object")(Callee())
        worker.handle("mail", "function")(lambda message: handle("function", message))
        store.send("mail", b"a")
        with Running(worker):
            eventually(lambda: len(loops) == 3)
        assert 1 == len(set(loops.values()))

    def test_a_coroutine_that_raises_or_cancels_itself_has_failed(self, store: afterlog.Store) -> None:
        worker = Worker(store)

        @worker.handle("mail", retry=RetryPolicy(attempts=1), dead_letter="mail.dead")
        async def fails(message: LeasedMessage) -> None:
            if message.value == b"cancel":
                raise asyncio.CancelledError
            raise ValueError("as planned")

        store.send_many("mail", [b"raise", b"cancel"])
        with Running(worker):
            eventually(lambda: len(dead(store)) == 2)
        assert {b"raise": "ValueError: as planned", b"cancel": "CancelledError: "} == dead(store)

    def test_each_runs_in_the_block_that_goes_around(self, store: afterlog.Store) -> None:
        said = list[str]()

        @contextlib.contextmanager
        def around(message: LeasedMessage) -> Iterator[None]:
            said.append("begin")
            try:
                yield
            except KeyError:
                said.append("failed")
                raise
            finally:
                said.append("end")

        worker = Worker(store, around=around)

        @worker.handle("mail", retry=RetryPolicy(first_ms=1_000))
        def fails(message: LeasedMessage) -> None:
            said.append("handle")
            raise KeyError

        store.send("mail", b"a")
        with Running(worker), store.subscribe("mail", "worker") as reader:
            eventually(lambda: reader.stats().retrying == 1)
        assert ["begin", "handle", "failed", "end"] == said


class TestStopping:
    def test_a_function_that_takes_too_long_keeps_its_message(
        self, store: afterlog.Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(afterlog.worker, "CANCELLING_S", 0.01)
        worker, gate = Worker(store), Gate()

        @worker.handle("mail")
        def slow(message: LeasedMessage) -> None:
            gate.passing()

        store.send("mail", b"a")
        with Running(worker, 0) as running:
            gate.came()
            worker.stop()
            assert not running.answer()
        with store.subscribe("mail", "worker") as reader:
            assert (1, 0) == (reader.stats().leased, len(reader.receive()))
            gate.open()
            eventually(lambda: reader.stats().acked == 1)

    def test_a_coroutine_that_takes_too_long_is_cancelled_and_its_message_goes_back(
        self, store: afterlog.Store
    ) -> None:
        worker, begun, cancelled = Worker(store), Future[None](), Future[None]()

        @worker.handle("mail")
        async def slow(message: LeasedMessage) -> None:
            begun.set_result(None)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set_result(None)
                raise

        store.send("mail", b"a")
        with Running(worker, 0) as running:
            begun.result(PATIENCE_S)
            worker.stop()
            assert not running.answer()
        cancelled.result(0)
        assert counts(retrying=1) == standing(store)
        with store.subscribe("mail", "worker") as reader:
            [message] = reader.receive()
            assert 0 == message.redelivery_count

    def test_a_coroutine_that_is_made_too_late_does_not_begin(
        self, store: afterlog.Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(afterlog.worker, "CANCELLING_S", 0.01)
        worker, gate, begun = Worker(store), Gate(), list[bytes | None]()

        async def handle(message: LeasedMessage) -> None:
            begun.append(message.value)

        @worker.handle("mail")
        def late(message: LeasedMessage) -> Coroutine[Any, Any, None]:
            gate.passing()
            return handle(message)

        store.send("mail", b"a")
        with Running(worker, 0) as running:
            gate.came()
            worker.stop()
            assert not running.answer()
        with store.subscribe("mail", "worker") as reader:
            gate.open()
            eventually(lambda: reader.stats().retrying == 1)
            assert (0, []) == (reader.receive()[0].redelivery_count, begun)

    def test_a_handler_may_stop_the_worker(self, store: afterlog.Store) -> None:
        worker = Worker(store)

        @worker.handle("mail")
        def last(message: LeasedMessage) -> None:
            worker.stop()

        store.send_many("mail", [b"a", b"b"])
        with Running(worker) as running:
            assert running.answer()
        assert counts(acked=1) == standing(store)

    def test_stopped_before_it_runs_it_handles_nothing(self, store: afterlog.Store) -> None:
        worker = Worker(store)
        worker.handle("mail")(lambda message: None)
        worker.stop()
        worker.stop_taking()
        assert worker.run()

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_signal_drains_and_the_next_one_is_the_previous_handlers(
        self, store: afterlog.Store, number: signal.Signals
    ) -> None:
        worker, got = Worker(store), list[int]()
        before = signal.signal(number, lambda number, _: got.append(number))

        @worker.handle("mail")
        def ends(message: LeasedMessage) -> None:
            os.kill(os.getpid(), number)
            assert worker._stopping.wait(PATIENCE_S)
            os.kill(os.getpid(), number)

        try:
            store.send_many("mail", [b"a", b"b"])
            assert worker.run()
            eventually(lambda: got == [number])
        finally:
            signal.signal(number, before)
        assert counts(acked=1) == standing(store)
        assert not [each for each in threading.enumerate() if each.name == "afterlog-drain"]

    def test_it_does_not_close_the_store(self, store: afterlog.Store) -> None:
        worker = Worker(store)
        worker.handle("mail")(lambda message: None)
        with Running(worker) as running:
            worker.stop()
            assert running.answer()
        store.send("mail", b"a")


class TestFailing:
    def test_a_reader_that_fails_stops_all_and_its_error_is_raised(
        self, store: afterlog.Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.create_topic("other")
        worker, fails = Worker(store), threading.Event()
        iterate = Subscription.__iter__

        def failing(self: Subscription) -> Iterator[LeasedMessage]:
            if self.topic == "mail":
                fails.wait(PATIENCE_S)
                raise OSError("the disk is gone")
            return iterate(self)

        monkeypatch.setattr(Subscription, "__iter__", failing)
        worker.handle("mail")(lambda message: None)
        worker.handle("other")(lambda message: None)
        with Running(worker) as running:
            fails.set()
            with pytest.raises(OSError, match="the disk is gone"):
                running.answer()

    @pytest.mark.parametrize("kind", [SystemExit, GeneratorExit, KeyboardInterrupt, asyncio.CancelledError])
    @pytest.mark.parametrize("awaited", [False, True])
    def test_what_exits_in_a_handler_is_a_failure_of_its_message(
        self, store: afterlog.Store, kind: type[BaseException], awaited: bool
    ) -> None:
        """Counted, tried again, among the dead letters in the end; the others go on, and so does the worker."""
        worker, handled = Worker(store), list[bytes | None]()

        def exits(message: LeasedMessage) -> None:
            handled.append(message.value)
            if message.value == b"bad":
                raise kind(3)

        async def exits_awaited(message: LeasedMessage) -> None:
            exits(message)

        options: ReaderOptions = {"retry": RetryPolicy(attempts=2, first_ms=0, max_ms=0), "dead_letter": "mail.dead"}
        worker.handle("mail", **options)(exits_awaited if awaited else exits)
        others = list[bytes | None]()
        worker.handle("mail", "other")(lambda message: others.append(message.value))
        store.send_many("mail", [b"bad", b"a"])
        with Running(worker) as running:
            eventually(lambda: store.clock.advance(20) is None and b"bad" in dead(store))  # type: ignore[attr-defined]
            store.send("mail", b"b")
            eventually(lambda: b"b" in handled and len(others) == 3)
            worker.stop()
            assert running.answer()
        assert {b"a", b"b"} == {*handled} - {b"bad"}
        [reason] = dead(store).values()
        assert reason is not None
        assert kind.__name__ in reason or kind is asyncio.CancelledError
        assert counts(acked=2, nacked=1, dead=1) | {"nacked": 0} == standing(store) | {"nacked": 0}
        assert 3 == standing(store, name="other")["acked"]

    def test_a_store_that_is_closed_ends_it(self) -> None:
        store = open_small(SimulatedFiles(), ManualClock(NOW_MS))
        store.create_topic("mail")
        worker, gate = Worker(store), Gate()

        @worker.handle("mail")
        def handled(message: LeasedMessage) -> None:
            gate.passing()

        gate.open()
        store.send("mail", b"a")
        with Running(worker) as running:
            gate.came()
            store.close()
            with pytest.raises(StoreClosed):
                running.answer()


class TestWrongUse:
    def test_a_topic_that_is_not_there(self, store: afterlog.Store) -> None:
        worker = Worker(store)
        worker.handle("nobody")(lambda message: None)
        with pytest.raises(UnknownTopic):
            worker.run()

    def test_options_are_those_of_subscribe(self, store: afterlog.Store) -> None:
        worker = Worker(store)
        with pytest.raises(InvalidSubscription):
            worker.handle("mail", lease_ms=-1)
        with pytest.raises(WrongType, match="takes no 'leese_ms'"):
            worker.handle("mail", leese_ms=1)  # type: ignore[call-arg]

    def test_no_handler(self, store: afterlog.Store) -> None:
        with pytest.raises(InvalidArgument, match="nothing to do"):
            Worker(store).run()

    def test_two_of_one_subscription(self, store: afterlog.Store) -> None:
        worker = Worker(store)
        worker.handle("mail")(lambda message: None)
        with pytest.raises(InvalidArgument, match="another name"):
            worker.handle("mail")(lambda message: None)
        worker.handle("mail", "second")(lambda message: None)

    def test_running_twice(self, store: afterlog.Store) -> None:
        worker = Worker(store)
        worker.handle("mail")(lambda message: None)
        worker.stop_taking()
        assert worker.run()
        with pytest.raises(InvalidArgument, match="has run"):
            worker.run()
        with pytest.raises(InvalidArgument, match="runs already"):
            worker.handle("mail", "late")(lambda message: None)

    @pytest.mark.parametrize("concurrency", [0, -1, 1.5, True])
    def test_concurrency(self, store: afterlog.Store, concurrency: Any) -> None:
        with pytest.raises(InvalidArgument, match="concurrency"):
            Worker(store).handle("mail", concurrency=concurrency)

    @pytest.mark.parametrize("handler", [None, "deliver", 1])
    def test_no_function(self, store: afterlog.Store, handler: Any) -> None:
        with pytest.raises(WrongType, match="a handler is"):
            Worker(store).handle("mail")(handler)

    @pytest.mark.parametrize("around", [1, "tracing"])
    def test_nothing_that_goes_around(self, store: afterlog.Store, around: Any) -> None:
        with pytest.raises(WrongType, match="around is"):
            Worker(store, around=around)

    @pytest.mark.parametrize("wrong", [None, "data", Path("data")])
    def test_no_store(self, wrong: Any) -> None:
        with pytest.raises(WrongType, match="open store"):
            Worker(wrong)


class TestTimeLimits:
    def run_until(self, store: afterlog.Store, worker: Worker, letters: int) -> dict[bytes | None, str | None]:
        with Running(worker) as running:
            eventually(lambda: len(dead(store)) == letters)
            worker.stop()
            assert running.answer()
        return dead(store)

    def test_a_coroutine_is_cancelled(self, store: afterlog.Store) -> None:
        worker, cancelled = Worker(store), list[bytes | None]()

        @worker.handle("mail", timeout=0.05, concurrency=2, retry=RetryPolicy(attempts=1), dead_letter="mail.dead")
        async def handle(message: LeasedMessage) -> None:
            try:
                if message.value == b"own":
                    raise TimeoutError("of the handler")
                await asyncio.sleep(1_000)
            except asyncio.CancelledError:
                cancelled.append(message.value)
                raise

        store.send_many("mail", [b"slow", b"own"])
        expected = {b"slow": "TimeoutError: it had 0.05 s", b"own": "TimeoutError: of the handler"}
        assert expected == self.run_until(store, worker, 2)
        assert [b"slow"] == cancelled

    def test_a_thread_is_told_and_its_message_goes_to_another(self, store: afterlog.Store) -> None:
        worker, left, going_on = Worker(store), list[float | None](), threading.Event()

        @worker.handle("mail", timeout=5)
        def handle(message: LeasedMessage) -> None:
            left.append(afterlog.worker.time_left())
            if not message.redelivery_count:
                going_on.wait(PATIENCE_S)

        @worker.handle("mail", "other")
        def without(message: LeasedMessage) -> None:
            left.append(afterlog.worker.time_left())

        store.send("mail", b"slow")
        with Running(worker):
            eventually(lambda: len(left) == 2)
            assert sorted(each is None for each in left) == [False, True]
            assert isinstance(store.clock, ManualClock)
            store.clock.advance(5_200)
            with store.subscribe("mail", "worker") as another:
                [message] = another.receive()
                assert 1 == message.redelivery_count
                another.ack(message)
            going_on.set()
        assert 0 < min(each for each in left if each is not None) <= 5
        assert afterlog.worker.time_left() is None

    def test_a_process_is_killed(self, store: afterlog.Store, tmp_path: Path) -> None:
        worker, told = Worker(store), tmp_path / "told"
        once = RetryPolicy(attempts=1)
        limited = worker.handle("mail", processes=True, timeout=2, retry=once, dead_letter="mail.dead")
        limited(worker_calls.Handlers.handle)
        told_again = [f"write {told}".encode(), b"raise", b"spin", f"write {told}".encode(), b"die"]
        store.send_many("mail", told_again, headers=[("name", b"\xff")])
        assert {
            b"raise": "LookupError: no such address",
            b"spin": "TimeoutError: it had 2 s",
            b"die": "CallFailed: its process ended, with exit code 7",
        } == self.run_until(store, worker, 3)
        first, second = told.read_text().split()
        assert first != second
        assert str(os.getpid()) not in (first, second)
        assert 2 == standing(store)["acked"]

    def test_coroutines_in_processes(self, store: afterlog.Store, tmp_path: Path) -> None:
        worker, told = Worker(store), tmp_path / "told"
        worker.handle("mail", processes=True)(worker_calls.awaited)
        store.send("mail", f"write {told}".encode(), headers=[("name", b"\xff")])
        with Running(worker):
            eventually(told.exists)

    def test_the_end_kills_what_is_left_and_its_message_goes_back(self, store: afterlog.Store, tmp_path: Path) -> None:
        worker, begun = Worker(store), tmp_path / "begun"
        worker.handle("mail", processes=True)(worker_calls.Handlers.handle)
        store.send("mail", f"sleep {begun}".encode(), headers=[("name", b"\xff")])
        with Running(worker, timeout=0) as running:
            eventually(begun.exists)
            worker.stop()
            assert not running.answer()
        assert counts(retrying=1) == standing(store)

    def test_only_what_cannot_be_ended_has_no_lease_beyond_its_time(self, store: afterlog.Store) -> None:
        """Else a coroutine's lease would end as it is cancelled, and its reason with it."""
        worker = Worker(store)
        worker.handle("mail", "thread", timeout=5)(lambda _: None)
        worker.handle("mail", "loop", timeout=5)(worker_calls.awaited)
        worker.handle("mail", "process", timeout=5, processes=True)(worker_calls.Handlers.handle)
        assert [5_000, None, None] == [each.options.get("lease_ms") for each in worker.handlers]
        assert [5_000, None, None] == [each.options.get("max_lease_ms") for each in worker.handlers]

    def test_what_cannot_be(self, store: afterlog.Store) -> None:
        worker = Worker(store)
        for wrong in (0, -1, 3_601):
            with pytest.raises(InvalidArgument, match="max_lease_ms"):
                worker.handle("mail", timeout=wrong)
        worker.handle("mail", processes=True)(lambda _: None)
        with pytest.raises(InvalidArgument, match="imports it by its name"):
            worker.run()


class Order:
    """As a class of pydantic's is asked."""

    def __init__(self, to: str) -> None:
        self.to = to

    @classmethod
    def model_validate_json(cls, value: bytes) -> Order:
        return cls(**json.loads(value))


class TestCodecs:
    def test_objects_and_what_cannot_be_decoded(self, store: afterlog.Store) -> None:
        """To the dead letters at once, where there are any; else it fails as anything does."""
        worker, got = Worker(store), list[Any]()

        @worker.handle("mail", codec=afterlog.json, dead_letter="mail.dead")
        def of_json(order: dict[str, str]) -> None:
            got.append(order["to"])

        @worker.handle("mail", "model", codec=Order, dead_letter="mail.dead")
        async def of_model(order: Order, message: LeasedMessage) -> None:
            got.append((order.to, message.key))

        @worker.handle("mail", "function", codec=bytes.decode, retry=RetryPolicy(first_ms=60_000))
        def of_function(text: str, *, more: int = 0) -> None:
            got.append(text)

        store.send("mail", afterlog.json({"to": "ada"}), key=b"k")
        store.send("mail", b"\xff")
        store.send("mail", None)
        with Running(worker):
            eventually(lambda: len(got) == 3 and len(store.dead_letters("mail.dead")) == 4)
            eventually(lambda: standing(store, name="function")["nacked"] == 2)
        assert {"ada", ("ada", b"k"), '{"to":"ada"}'} == set(got)
        reasons = [letter.origin.reason for letter in store.dead_letters("mail.dead")]
        assert 4 == len(reasons)
        assert all("cannot be decoded" in reason for reason in reasons)
        assert counts(acked=1, dead=2) == standing(store)

    def test_in_a_process(self, store: afterlog.Store, tmp_path: Path) -> None:
        worker, told = Worker(store), tmp_path / "told"
        made = worker.handle("mail", processes=True, codec=afterlog.json, dead_letter="mail.dead")
        made(worker_calls.handle_json)
        store.send("mail", b"no json")
        store.send("mail", afterlog.json({"do": f"write {told}"}))
        with Running(worker):
            eventually(lambda: told.exists() and len(dead(store)) == 1)
        [reason] = dead(store).values()
        assert reason is not None
        assert "JSONDecodeError" in reason

    @pytest.mark.parametrize("base", [pydantic.BaseModel, msgspec.Struct])
    def test_classes_of_libraries(self, store: afterlog.Store, base: Any) -> None:
        class Letter(base):  # type: ignore[misc]
            to: str

        worker, got = Worker(store), list[Any]()
        worker.handle("mail", codec=Letter, dead_letter="mail.dead")(got.append)
        store.send_many("mail", [b'{"to": "ada"}', b'{"to": 5}'])
        with Running(worker):
            eventually(lambda: len(got) == 1 and len(dead(store)) == 1)
        assert [Letter(to="ada")] == got

    def test_what_is_no_codec(self, store: afterlog.Store) -> None:
        with pytest.raises(WrongType, match="a codec is"):
            Worker(store).handle("mail", codec="json")


def test_a_message_is_pickled_without_its_lease(store: afterlog.Store) -> None:
    store.send("mail", b"x", key=b"k", headers=[("a", b"b")])
    with store.subscribe("mail", "s") as subscription:
        [message] = subscription.receive()
        again = pickle.loads(pickle.dumps(message))
        assert (Message, b"x", b"k", (("a", b"b"),), message.id) == (
            type(again), again.value, again.key, again.headers, again.id
        )  # fmt: skip
        assert again == pickle.loads(pickle.dumps(again))
