"""The asyncio facade: it says the same, nothing is lost to a cancellation, and who waits holds up nobody."""

from __future__ import annotations

import asyncio
import inspect
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

import afterlog
from afterlog import aio
from afterlog.base.clock import ManualClock
from afterlog.base.errors import NameTaken, StoreClosed, StoreLocked, UnknownTopic
from afterlog.base.locks import Condition
from afterlog.fetch.consumer import Consumer
from afterlog.fetch.record_id import RecordId
from afterlog.produce.producer import Producer
from afterlog.store.aio_calls import THREADS, Calls
from afterlog.store.store import Store, open_store
from afterlog.subscription.leased_message import LeasedMessage
from afterlog.subscription.subscription import Subscription
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.subscription.support import RETRY, values
from tests.support import NOW_MS, PATH, PATIENCE_S, Gate, small

Answer = TypeVar("Answer")

STEPS = {
    "ack_places", "background", "before_close", "begin", "changed", "closed", "end", "ended", "fill", "flush_acks",
    "halt", "is_idle", "look", "newly_replicated", "open_subscriptions", "parts", "pop", "replicated_subscriptions",
    "shared", "stop_taking", "take_back",
}  # fmt: skip
"""Public in the blocking classes for the facade, or for who is inside."""
ATTRIBUTES = {"clock", "config", "name", "path", "topic"}


class PatientClock(ManualClock):
    """Who waits is woken by a notification or by the clock, or the test fails."""

    jumped_ms = 0

    def boot_ms(self) -> int:
        return self._now_ms - self.jumped_ms

    def wait(self, condition: Condition, until_ms: int | None, timeout_s: float | None) -> None:
        with self._lock:
            self._waiting.add(condition)
            if until_ms is not None and self._now_ms >= until_ms:
                return
        condition.wait(PATIENCE_S)


class Setting:
    """A store with a topic `mail`, and a clock that is turned by hand."""

    def __init__(self, store: aio.Store, clock: PatientClock) -> None:
        self.store = store
        self.clock = clock

    async def send(self, *values: bytes, after_ms: int = 0) -> None:
        for value in values:
            await self.store.send("mail", value, deliver_after=self.clock.now_ms() + after_ms)

    def subscribe(self, name: str = "sender", **settings: Any) -> aio.Opening[aio.Subscription]:
        return self.store.subscribe("mail", name, **{"retry": RETRY, "lease_ms": 10_000, **settings})

    async def waiting(self, count: int = 1) -> None:
        """Return when so many tasks wait."""
        waiting = self.store._waiters._waiting
        await soon(lambda: sum(not each.done() for woken in waiting.values() for each in woken) == count)

    async def advance(self, ms: int) -> None:
        """Turn the clock; who waits is woken by that."""
        waited = [*self.store._waiters._waiting.values()]
        self.clock.advance(ms)
        await soon(lambda: all(task.done() for group in waited for task in group))


def run(test: Callable[[Setting], Awaitable[None]], **settings: Any) -> None:
    """Run a test on a store of its own, which is whole afterwards."""

    async def main() -> None:
        async with setting(**settings) as made:
            await asyncio.wait_for(test(made), PATIENCE_S)
            if not made.store._calls.closed:
                await made.store.check()

    asyncio.run(main())


@asynccontextmanager
async def setting(**settings: Any) -> AsyncIterator[Setting]:
    disk, clock = SimulatedFiles(), PatientClock(NOW_MS)
    before = set(threading.enumerate())  # a store of another test may still let go of its own
    async with aio.Opening(
        aio.opened(lambda: open_store(PATH, small(**settings), clock, disk, background=False))
    ) as store:
        await store.create_topic("mail")
        yield Setting(store, clock)
        begun = set(threading.enumerate()) - before
        assert len([thread for thread in begun if thread.name.startswith("afterlog-aio")]) <= THREADS + 1


async def soon(condition: Callable[[], bool]) -> None:
    """Return once another task or thread has made the condition true."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0)


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel it, and see it end so."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def held(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, before: bool = False) -> Gate:
    """Hold calls of a method back, after it has done its work or before."""
    gate, method = Gate(), getattr(owner, name)

    def passing(*args: Any, **options: Any) -> Any:
        if before:
            gate.passing()
        answer = method(*args, **options)
        if not before:
            gate.passing()
        return answer

    monkeypatch.setattr(owner, name, passing)
    return gate


# --- The same


@pytest.mark.parametrize(
    ("facade", "blocking"),
    [(aio.Store, Store), (aio.Consumer, Consumer), (aio.Subscription, Subscription), (aio.Producer, Producer)],
)
def test_it_has_the_same_names_and_parameters(facade: Any, blocking: Any) -> None:
    names, ours = ({name for name in vars(each) if not name.startswith("_")} for each in (blocking, facade))
    names -= STEPS
    assert (set(), set()) == (names - ours, ours - names - ATTRIBUTES)
    for name in names:
        method, original = getattr(facade, name), getattr(blocking, name)
        if not isinstance(original, property):
            assert inspect.signature(original).parameters == inspect.signature(method).parameters
            assert method.__doc__
    there, here = (dict(inspect.signature(each).parameters) for each in (afterlog.open, aio.open))
    assert str(there) == str(here)


def test_a_store_in_a_folder(tmp_path: Path) -> None:
    async def main() -> None:
        async with aio.open(tmp_path / "data") as store:
            assert (tmp_path / "data", 0, {}) == (store.path, store.clock_jumps, store.cut_bytes)
            await store.create_topic("mail")
            assert RecordId("mail", 0, 0) == await store.send("mail", b"a")
            assert [1, 2] == (await store.send_many("mail", [b"b", b"c"])).tolist()
            with pytest.raises(StoreLocked):
                await aio.open(tmp_path / "data")
        with pytest.raises(StoreClosed):
            await store.send("mail", b"d")
        await store.close()
        again = await aio.open(tmp_path / "data")
        assert 3 == (await again.topic("mail")).partitions[0].log_end_offset
        await again.close()

    asyncio.run(main())


def test_the_schedule() -> None:
    async def test(setting: Setting) -> None:
        store = setting.store
        later = await store.send("mail", b"a", delay=60)
        gone = await store.send("mail", b"b", delay=60)
        assert afterlog.CancelResult.CANCELLED == await store.cancel(gone)
        sooner = await store.reschedule(later, delay=1)
        assert [sooner] == [record.id for record in await store.pending("mail")]

    run(test)


def test_a_producer() -> None:
    async def test(setting: Setting) -> None:
        async with setting.store.producer("mail", linger_ms=60_000) as producer:
            futures = [await producer.send(b"%d" % number) for number in range(3)]
            await producer.flush()
            assert [0, 1, 2] == [(await future).offset for future in futures]
            left = await producer.send(b"left")
        assert 3 == (await left).offset

    run(test)


# --- A subscription


def test_the_example(caplog: pytest.LogCaptureFixture) -> None:
    async def test(setting: Setting) -> None:
        await setting.send(b"a", b"never", b"b")
        await setting.send(b"later", after_ms=9_000)
        done: list[bytes | None] = []

        async def work() -> None:
            async with setting.subscribe(dead_letter="mail.dead") as subscription:
                async for message in subscription:
                    async with message:
                        await asyncio.sleep(0)
                        if message.value == b"never":
                            raise ConnectionError("refused")
                        done.append(message.value)
                    if message.value == b"later":
                        return

        worker = asyncio.create_task(work())
        for _ in range(3):
            await setting.waiting()
            await setting.advance(4_000)
        await worker
        assert [b"a", b"b", b"later"] == done
        [letter] = await setting.store.dead_letters("mail.dead")
        assert letter.origin is not None
        assert (b"never", "ConnectionError: refused", 3) == (
            letter.message.value, letter.origin.reason, letter.origin.redelivery_count,
        )  # fmt: skip
        assert 1 == (await setting.store.redrive("mail.dead")).redriven

    run(test)
    assert 3 == caplog.text.count("mail-0@1 failed in sender")


def test_readers_share_and_never_hold_the_same() -> None:
    async def test(setting: Setting) -> None:
        await setting.send(*(b"%d" % number for number in range(40)))
        held: list[bytes | None] = []

        async def work() -> None:
            async with setting.subscribe() as subscription:
                async for message in subscription:
                    async with message:
                        held.append(message.value)
                        await asyncio.sleep(0)

        async with setting.subscribe() as watching:
            workers = [asyncio.create_task(work()) for _ in range(2)]
            await setting.waiting(2)
            assert sorted(b"%d" % number for number in range(40)) == sorted(filter(None, held))
            assert 40 == (await watching.stats()).acked
            for worker in workers:
                await cancelled(worker)

    run(test)


def test_what_became_of_them() -> None:
    async def test(setting: Setting) -> None:
        await setting.send(b"a", b"b", b"c", b"d")
        async with setting.subscribe() as subscription:
            received = await subscription.receive()
            a, b, c, d = received
            assert 1 == (await subscription.ack(a)).acked
            assert 1 == (await subscription.nack(b, delay=1)).done
            assert 1 == (await subscription.release([c])).done
            assert (await subscription.extend(d, lease_ms=20_000)).deadline_ms >= NOW_MS + 20_000
            assert [b"c"] == values(await subscription.receive())
            assert (1, 1) == ((answer := await subscription.ack_many([a, d])).acked, answer.already)
            await subscription.seek(afterlog.EARLIEST)
            assert 4 == len(await subscription.receive(timeout=None))
            assert ("mail", "sender") == (subscription.topic, subscription.name)
            with pytest.raises(NameTaken):
                await setting.store.consumer("mail", group="sender")

    run(test)


def test_the_block_of_a_message_is_of_the_right_kind() -> None:
    async def test(setting: Setting) -> None:
        await setting.send(b"a")
        async with setting.subscribe() as subscription:
            [message] = await subscription.receive()
            with pytest.raises(TypeError, match="async with message"), message:
                pass
            blocking = setting.store._blocking.subscribe("mail", "blocking")
            [message] = blocking.receive()
            with pytest.raises(TypeError, match="with message"):
                async with message:
                    pass

    run(test)


def test_little_help_is_asked_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that were leased, or read, ahead are handed out without one."""

    async def test(setting: Setting) -> None:
        await setting.send(*[b"x"] * 127)
        async with setting.subscribe() as subscription, setting.store.consumer("mail", group="g") as consumer:
            calls = 0

            def counting(method: Any) -> Any:
                async def counted(*args: Any) -> Any:
                    nonlocal calls
                    calls += 1
                    return await method(*args)

                return counted

            monkeypatch.setattr(setting.store._calls, "run", counting(setting.store._calls.run))
            monkeypatch.setattr(subscription, "_run", setting.store._calls.run)
            for reader, most in ((subscription, 8), (consumer, 1)):
                calls, left = 0, 127
                async with aclosing(aiter(reader)) as messages:
                    async for _ in messages:
                        left -= 1
                        if not left:
                            break
                assert calls == most

    run(test)


# --- Stopping


@asynccontextmanager
async def handling(message: LeasedMessage) -> AsyncIterator[None]:
    """The block of a message, which ends well: what a test asserts in it leaves it."""
    await message.__aenter__()
    try:
        yield
    finally:
        await message.__aexit__(None, None, None)


@pytest.mark.parametrize("how", ["iterate", "receive"])
def test_what_becomes_due_one_by_one_hardly_needs_a_thread(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(setting: Setting) -> None:
        async with setting.subscribe() as subscription:
            await setting.send(b"first")
            await subscription.ack_many(await subscription.receive())  # the frontier is leased for a second from here
            messages, threads = aiter(subscription), 0

            async def counted(*args: Any) -> Any:
                nonlocal threads
                threads += 1
                return await Calls.run(setting.store._calls, *args)

            for number in range(20):
                after_ms = number % 3
                await setting.send(b"%d" % number, after_ms=after_ms)
                with monkeypatch.context() as patch:
                    patch.setattr(setting.store._calls, "run", counted)
                    next_one: Any = anext(messages) if how == "iterate" else subscription.receive(timeout=None)
                    receiving = asyncio.ensure_future(next_one)
                    if after_ms:
                        await setting.waiting()
                        await setting.advance(after_ms)
                    found = await receiving
                assert b"%d" % number == (found if how == "iterate" else found[0]).value
            assert threads <= 4, "where a run of a few entries has begun with it"

    run(test, frontier_lease_ms=1_000)


def test_a_drain_waits_for_handlers_and_gives_back_what_waits() -> None:
    async def test(setting: Setting) -> None:
        await setting.send(*[b"%d" % number for number in range(9)])
        handled, goes_on = list[bytes | None](), asyncio.Event()

        async def work(subscription: aio.Subscription) -> None:
            async for message in subscription:
                async with message:
                    handled.append(message.value)
                    if len(handled) == 4:
                        await goes_on.wait()

        async with setting.subscribe() as subscription, setting.subscribe() as other:
            worker = asyncio.create_task(work(subscription))
            await soon(lambda: len(handled) == 4)
            assert not await subscription.drain(0)
            draining = [asyncio.create_task(subscription.drain()) for _ in range(THREADS + 2)]
            rest = await other.receive(timeout=None)
            assert {b"4", b"5", b"6", b"7", b"8"} == {*values(rest)}
            assert {0} == {*rest.redelivery_count.tolist()}
            assert not any(task.done() for task in draining)
            goes_on.set()
            assert all(await asyncio.gather(*draining))
            await worker
            assert 0 == len(await subscription.receive(timeout=None))
            stats = await subscription.stats()
            assert (4, 0, 0) == (stats.acked, stats.nacked, stats.expired)

    run(test)


def test_a_signal_drains() -> None:
    async def test(setting: Setting) -> None:
        previous = signal.getsignal(signal.SIGTERM)
        async with setting.subscribe() as subscription:
            async with subscription.draining_on(signal.SIGTERM) as draining:
                waiting = asyncio.create_task(subscription.receive(timeout=None))
                await setting.waiting()
                signal.raise_signal(signal.SIGTERM)
                assert 0 == len(await waiting)
                assert [] == [message async for message in subscription]
            assert draining.signalled
            assert draining.drained
        assert previous is signal.getsignal(signal.SIGTERM)

    run(test)


def test_a_slow_task_is_not_run_twice_and_a_close_does_not_stop_its_ack() -> None:
    async def test(setting: Setting) -> None:
        await setting.send(b"a", b"b")
        blocking = setting.store._blocking
        async with setting.subscribe(max_in_flight=1, dead_letter="dead") as subscription, setting.subscribe() as other:
            [message] = await subscription.receive()
            async with handling(message):
                for _ in range(9):
                    setting.clock.advance(10_000 // 3)
                    keeper = blocking._subscriptions.keeper
                    assert keeper is not None
                    keeper.look()
                assert [b"b"] == values(await other.receive())
                with pytest.raises(TypeError, match="reject"):
                    message.reject("why")
                with pytest.raises(TypeError, match="nack"):
                    message.retry()
                await subscription.close()
            assert (1, 0) == ((await other.stats()).acked, (await other.stats()).expired)
            async with setting.subscribe(dead_letter="dead") as again:
                setting.clock.advance(20_000)
                await again.reject(await again.receive(), "never")
                assert 1 == (await again.stats()).dead

    run(test)


def test_who_may_take_no_more_waits() -> None:
    async def test(setting: Setting) -> None:
        await setting.send(b"a", b"b", b"c")
        async with setting.subscribe(max_in_flight=1) as one, setting.subscribe("slow", rate=1) as slow:
            [message] = await one.receive()
            waiting = asyncio.create_task(one.receive(timeout=None))
            await setting.waiting()
            await one.ack(message)
            assert [b"b"] == values(await waiting)
            assert [b"a"] == values(await slow.receive())
            waiting = asyncio.create_task(slow.receive(timeout=None))
            await setting.waiting()
            await setting.advance(1_000)
            assert [b"b"] == values(await waiting)

    run(test)


# --- Waiting


@pytest.mark.parametrize("what", ["append", "clock", "nack", "release"])
def test_a_receive_is_woken(what: str) -> None:
    async def test(setting: Setting) -> None:
        async with setting.subscribe() as subscription, setting.subscribe() as other:
            if what != "append":
                await setting.send(b"a", after_ms=0 if what != "clock" else 5_000)
            taken = await other.receive()
            receiving = asyncio.create_task(subscription.receive(timeout=None))
            await setting.waiting()
            match what:
                case "append":
                    await setting.send(b"a")
                case "clock":
                    setting.clock.advance(5_000)
                case "nack":
                    await other.nack(taken, delay=0)
                case "release":
                    await other.release(taken)
            assert [b"a"] == values(await receiving)

    run(test)


def test_a_clock_that_jumped_wakes_when_it_is_confirmed() -> None:
    async def test(setting: Setting) -> None:
        await setting.send(b"a", after_ms=5_000)
        async with setting.subscribe() as subscription:
            receiving = asyncio.create_task(subscription.receive(timeout=None))
            await setting.waiting()
            setting.clock.jumped_ms = 10_000
            setting.clock.advance(10_000)
            await setting.store.pending("mail")  # somebody looks at the clock
            assert 1 == setting.store.clock_jumps
            assert not receiving.done()
            await setting.store.confirm_clock()
            assert [b"a"] == values(await receiving)

    run(test, clock_jump_limit_ms=2_000)


def test_a_receive_waits_no_longer_than_its_timeout() -> None:
    async def test(setting: Setting) -> None:
        async with setting.subscribe() as subscription, setting.store.consumer("mail", group="g") as consumer:
            for timeout in (0, 0.001):
                assert 0 == len(await subscription.receive(timeout=timeout))
                assert [] == await consumer.poll(timeout=timeout)
            assert not setting.store._waiters._waiting

    run(test)


def test_many_who_wait_hold_up_nobody() -> None:
    async def test(setting: Setting) -> None:
        async with setting.subscribe() as subscription:
            waiting = [asyncio.create_task(subscription.receive(1, timeout=None)) for _ in range(10 * THREADS)]
            await setting.waiting(len(waiting))
            await setting.send(b"a", b"b")
            await setting.waiting(len(waiting) - 2)
            assert [b"a", b"b"] == sorted(await_.result()[0].value for await_ in waiting if await_.done())
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)
            assert 2 == (await subscription.stats()).leased

    run(test)


@pytest.mark.parametrize("whole", [True, False])
def test_closing_wakes_everybody(whole: bool) -> None:
    async def test(setting: Setting) -> None:
        subscription = await setting.subscribe()
        consumer = await setting.store.consumer("mail", group="g")

        async def iterate(reader: Any) -> list[Any]:
            return [message async for message in reader]

        tasks = [asyncio.create_task(each) for each in (iterate(subscription), subscription.receive(timeout=None))]
        readers = [asyncio.create_task(each) for each in (iterate(consumer), consumer.poll(timeout=None))]
        await setting.waiting(4)
        if whole:
            await setting.store.close()
            for reader in readers:
                with pytest.raises(StoreClosed):
                    await reader
        else:
            await subscription.close()
            await consumer.close()
            assert [[], []] == [await reader for reader in readers]
        assert [[], []] == [[*await task] for task in tasks]
        with pytest.raises(StoreClosed):
            await subscription.receive(timeout=None)

    run(test)


# --- Cancelling


def test_a_receive_that_is_cancelled_while_it_waits_takes_nothing() -> None:
    async def test(setting: Setting) -> None:
        async with setting.subscribe() as subscription:
            receiving = asyncio.create_task(subscription.receive(timeout=None))
            await setting.waiting()
            await cancelled(receiving)
            await setting.send(b"a")
            assert (0, 1) == ((stats := await subscription.stats()).leased, stats.due)

    run(test)


@pytest.mark.parametrize("how", ["receive", "wait", "iterate"])
@pytest.mark.parametrize("twice", [False, True])
def test_what_a_cancelled_receive_had_leased_goes_back(how: str, twice: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(setting: Setting) -> None:
        async with setting.subscribe() as subscription:
            call: Any = subscription.receive if how == "receive" else aiter(subscription).__anext__
            if how == "wait":
                call = lambda: subscription.receive(timeout=None)  # noqa: E731
                receiving = asyncio.create_task(call())
                await setting.waiting()
            gate = held(monkeypatch, subscription._blocking.receiver, "look" if how != "wait" else "take")
            await setting.send(b"a")
            if how != "wait":
                receiving = asyncio.create_task(call())
            await asyncio.to_thread(gate.came)
            assert 1 == subscription._blocking.stats().leased
            receiving.cancel()
            if twice:  # the second one does not wait for it
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                await cancelled(receiving)
                gate.open()
                await soon(lambda: subscription._blocking.stats().released == 1)
            else:
                gate.open()
                with pytest.raises(asyncio.CancelledError):
                    await receiving
            stats = await subscription.stats()
            assert (0, 1, 0) == (stats.leased, stats.released, stats.nacked)
            monkeypatch.undo()
            assert [0] == [message.redelivery_count for message in await subscription.receive()]

    run(test)


def test_a_task_that_is_cancelled_in_a_block_gives_back() -> None:
    async def test(setting: Setting) -> None:
        await setting.send(b"a")
        entered = asyncio.Event()

        async def work(subscription: aio.Subscription) -> None:
            async for message in subscription:
                async with message:
                    entered.set()
                    await asyncio.Event().wait()

        async with setting.subscribe() as subscription:
            worker = asyncio.create_task(work(subscription))
            await entered.wait()
            await cancelled(worker)
            stats = await subscription.stats()
            assert (0, 1, 0) == (stats.leased, stats.released, stats.nacked)

    run(test)


def test_an_iteration_that_is_left_gives_back_what_was_leased_ahead() -> None:
    async def test(setting: Setting) -> None:
        await setting.send(*[b"x"] * 7)
        async with setting.subscribe() as subscription:
            count = 0
            async for message in subscription:
                await subscription.ack(message)
                count += 1
                if count == 4:
                    break
            await soon(lambda: subscription._blocking.stats().leased == 0)
            assert (4, 3) == ((stats := await subscription.stats()).acked, stats.released)

    run(test)


@pytest.mark.parametrize("how", ["poll", "iterate"])
def test_what_a_cancelled_poll_had_read_comes_again(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(setting: Setting) -> None:
        await setting.send(b"a")
        async with setting.store.consumer("mail", group="g") as consumer:
            gate = held(monkeypatch, consumer._blocking, "_look" if how == "poll" else "_one")
            polling = asyncio.create_task(consumer.poll() if how == "poll" else aiter(consumer).__anext__())  # type: ignore[arg-type]
            await asyncio.to_thread(gate.came)
            polling.cancel()
            gate.open()
            with pytest.raises(asyncio.CancelledError):
                await polling
            assert {0: 0} == await consumer.positions()
            assert [b"a"] == values(await consumer.poll())

    run(test)


def test_a_send_is_made_though_its_await_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(setting: Setting) -> None:
        gate = held(monkeypatch, (await setting.store.topic("mail")).partitions[0].log, "append_one", before=True)
        sending = asyncio.create_task(setting.store.send("mail", b"a"))
        await asyncio.to_thread(gate.came)
        await cancelled(sending)
        gate.open()
        async with setting.store.consumer("mail", group="g") as consumer:
            assert [b"a"] == values(await consumer.poll(timeout=None))

    run(test)


@pytest.mark.parametrize("what", ["store", "subscription"])
def test_what_is_being_opened_is_closed_again(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(setting: Setting) -> None:
        if what == "subscription":
            gate = held(monkeypatch, setting.store._blocking._subscriptions, "subscribe")
            opening: Any = setting.subscribe()
        else:
            disk, gate = SimulatedFiles(), Gate()

            def open_held() -> Store:
                store = open_store(PATH, small(), ManualClock(NOW_MS), disk)
                gate.passing()
                return store

            opening = aio.Opening(aio.opened(open_held))
        task = asyncio.ensure_future(opening)
        await asyncio.to_thread(gate.came)
        task.cancel()
        gate.open()
        with pytest.raises(asyncio.CancelledError):
            await task
        if what == "subscription":
            assert [] == [*setting.store._blocking._subscriptions]
        else:
            open_store(PATH, small(), ManualClock(NOW_MS), disk).close()

    run(test)


# --- A consumer


def test_a_position_is_committed_as_far_as_it_is_processed() -> None:
    async def test(setting: Setting) -> None:
        await setting.send(b"a", b"b", b"c", b"d")
        open_consumer = lambda: setting.store.consumer("mail", group="g")  # noqa: E731
        async with open_consumer() as consumer:
            assert [b"a"] == values(await consumer.poll(1))

        async def failing() -> None:
            async with open_consumer() as consumer:
                async for message in consumer:
                    if message.value == b"c":
                        raise LookupError

        with pytest.raises(LookupError):
            await failing()
        consumer = await open_consumer()
        assert {0: 2} == await consumer.committed() == await consumer.positions()
        assert 2 == await consumer.lag()
        await asyncio.create_task(consumer.poll(1))
        await consumer.close()  # another task cannot know
        async with open_consumer() as consumer:
            assert [b"c"] == [message.value for message in await consumer.poll(1)]
            await consumer.commit()
            await consumer.seek(afterlog.EARLIEST)
            assert 4 == len(await consumer.poll_columns())
            assert {0: 3} == await consumer.committed()
        with pytest.raises(UnknownTopic):
            await setting.store.consumer("none", group="g")

    run(test)


def test_a_consumer_waits_for_what_becomes_due() -> None:
    async def test(setting: Setting) -> None:
        await setting.send(b"later", after_ms=1_000)
        async with setting.store.consumer("mail", group="g") as consumer:
            messages = aiter(consumer)
            for wake in (lambda: setting.clock.advance(1_000), None):
                waiting = asyncio.ensure_future(anext(messages) if wake else consumer.poll(timeout=None))  # type: ignore[arg-type]
                await setting.waiting()
                wake() if wake else await setting.send(b"now")
                await waiting

    run(test)
