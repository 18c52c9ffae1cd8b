from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from afterlog.base.errors import InvalidArgument, NoDeadLetterTopic, NotInMainThread, StoreClosed, WrongType
from afterlog.subscription.draining import Draining
from tests.subscription.support import Setting, handling, values
from tests.support import PATIENCE_S, Background, Gate, eventually


@pytest.fixture
def setting() -> Iterator[Setting]:
    setting = Setting()
    yield setting
    setting.store.check()
    setting.store.close()


@pytest.fixture
def before() -> Iterator[list[int]]:
    """The signals that the previous handler got."""
    got: list[int] = []
    was = signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
    yield got
    signal.signal(signal.SIGTERM, was)


def drains() -> set[str]:
    return {thread.name for thread in threading.enumerate()} & {"afterlog-drain"}


class TestDrain:
    def test_nothing_more_is_taken_and_what_waits_goes_back(self, setting: Setting) -> None:
        setting.send(*[b"%d" % number for number in range(9)])
        with setting.subscribe() as sub, setting.subscribe() as other:
            messages = iter(sub)
            for _ in range(3):
                with next(messages):
                    pass
            with handling(next(messages)) as message:
                assert not sub.drain(0)
                assert [(each, 0) for each in (b"4", b"5", b"6", b"7", b"8")] == sorted(
                    (each.value, each.redelivery_count) for each in other.receive()
                )
            assert message.settled
            assert sub.drain(0)
            assert [] == [*messages]
            assert (0, 0) == (len(sub.receive()), len(sub.receive(1, timeout=None)))
            assert (4, 0, 0) == (sub.stats().acked, sub.stats().nacked, sub.stats().expired)

    def test_it_waits_for_handlers_in_threads(self, setting: Setting) -> None:
        setting.send(b"a", b"b")
        gate = Gate()
        with setting.subscribe() as sub:

            def work() -> None:
                for message in sub:
                    with message:
                        gate.passing()

            worker = Background(work)
            gate.came()
            drained = Background(lambda: sub.drain(None))
            eventually(lambda: sub.ended)
            assert drained.is_alive()
            gate.open()
            assert drained.answer()
            worker.answer()
        with setting.subscribe() as again:
            assert [b"b"] == values(again.receive())

    def test_what_was_handed_out_and_not_begun_is_waited_for(self, setting: Setting) -> None:
        setting.send(b"a", b"b")
        with setting.subscribe() as sub:
            messages = iter(sub)
            message = next(messages)
            assert not sub.drain(0.0)
            sub.ack(message)
            assert sub.drain(0.0)

    def test_who_waits_for_a_record_comes_back(self, setting: Setting) -> None:
        with setting.subscribe() as sub:
            waiting = [Background(lambda: [*sub]), Background(lambda: [*sub.receive(timeout=None)])]
            eventually(lambda: bool(sub.receiver.aheads))
            assert sub.drain(PATIENCE_S)
            assert [[], []] == [each.answer() for each in waiting]

    def test_closed(self, setting: Setting) -> None:
        sub = setting.subscribe()
        sub.close()
        with pytest.raises(StoreClosed):
            sub.drain()


class TestOnASignal:
    def test_it_drains_and_the_handler_is_put_back(self, setting: Setting, before: list[int]) -> None:
        setting.send(*[b"%d" % number for number in range(9)])
        previous = signal.getsignal(signal.SIGTERM)
        handled = []
        with setting.subscribe() as sub, sub.draining_on(signal.SIGTERM) as draining:
            for message in sub:
                with message:
                    handled.append(message.value)
                    if len(handled) == 3:
                        signal.raise_signal(signal.SIGTERM)
        assert (3, True, True, []) == (len(handled), draining.signalled, draining.drained, before)
        assert previous is signal.getsignal(signal.SIGTERM)
        assert not drains()
        with setting.subscribe() as again:
            assert [0] * 6 == [message.redelivery_count for message in again.receive()]

    def test_the_second_one_is_the_previous_handlers(self, setting: Setting, before: list[int]) -> None:
        with setting.subscribe() as sub, sub.draining_on(signal.SIGTERM):
            signal.raise_signal(signal.SIGTERM)
            assert [] == before
            signal.raise_signal(signal.SIGTERM)
        assert [signal.SIGTERM] == before

    def test_one_drains_all(self, setting: Setting, before: list[int]) -> None:
        with (
            setting.subscribe() as one,
            setting.subscribe("other") as other,
            one.draining_on(signal.SIGTERM),
            other.draining_on(signal.SIGTERM),
        ):
            signal.raise_signal(signal.SIGTERM)
            assert one.ended
            assert other.ended
            signal.raise_signal(signal.SIGTERM)
            assert [signal.SIGTERM] == before

    def test_who_waits_is_woken(self, setting: Setting, before: list[int]) -> None:
        with setting.subscribe() as sub, sub.draining_on(signal.SIGTERM):
            setting.clock.steps = [lambda: signal.raise_signal(signal.SIGTERM)]
            assert [] == [*sub.receive(timeout=None)]

    def test_without_a_signal_nothing_happens(self, setting: Setting, before: list[int]) -> None:
        setting.send(b"a")
        with setting.subscribe() as sub:
            with sub.draining_on(signal.SIGTERM) as draining:
                pass
            assert not draining.signalled
            assert [b"a"] == values(sub.receive())
        assert not drains()

    def test_a_handler_that_somebody_sets_inside_stays(self, setting: Setting, before: list[int]) -> None:
        with setting.subscribe() as sub, sub.draining_on(signal.SIGTERM):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert signal.SIG_IGN == signal.getsignal(signal.SIGTERM)

    def test_a_handler_that_takes_too_long(self, setting: Setting, before: list[int]) -> None:
        setting.send(b"a")
        with setting.subscribe() as sub, handling(sub.receive()[0]):
            with sub.draining_on(signal.SIGTERM, timeout=1.5) as draining:
                signal.raise_signal(signal.SIGTERM)
            assert not draining.drained
            assert 1.5 == setting.clock.patience_s

    def test_an_exception_is_not_held_up(self, setting: Setting, before: list[int]) -> None:
        setting.send(b"a")
        with setting.subscribe() as sub, handling(sub.receive()[0]):
            draining = sub.draining_on(signal.SIGTERM).__enter__()
            signal.raise_signal(signal.SIGTERM)
            draining.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
            assert not drains()

    def test_where_signals_cannot_be_heeded(self, setting: Setting) -> None:
        with setting.subscribe() as sub:
            with pytest.raises(NotInMainThread):
                Background(lambda: sub.draining_on(signal.SIGTERM).__enter__()).answer()
            with pytest.raises(InvalidArgument, match="cannot be heeded"), sub.draining_on(signal.SIGKILL):
                pass
            with pytest.raises(InvalidArgument):
                sub.draining_on(12_345)
            with pytest.raises(WrongType):
                sub.draining_on("TERM")  # type: ignore[arg-type]
        assert not drains()

    def test_where_giving_back_fails_it_is_told(self, setting: Setting, caplog: Any, before: list[int]) -> None:
        class Broken:
            def halt(self) -> None:
                pass

            def stop_taking(self) -> None:
                raise LookupError

            def drain(self, timeout: float | None) -> bool:
                return True

        with Draining(Broken(), signal.SIGTERM, None):
            signal.raise_signal(signal.SIGTERM)
        assert "could not be given back" in caplog.text


class TestRejectAndRetry:
    def test_a_rejected_message_is_a_dead_letter_at_once(self, setting: Setting) -> None:
        setting.send(b"a", b"b", b"c")
        with setting.subscribe(dead_letter="mail.dead") as sub:
            received = sub.receive()
            with handling(received[0]) as message:
                assert 1 == message.reject("no such address").done
            assert 2 == sub.reject(received[1:]).done
            assert 3 == sub.reject(received).stale
            assert (3, 0, 0) == (sub.stats().dead, sub.stats().leased, sub.stats().nacked)
        assert [(b"a", "no such address", 1), (b"b", "rejected", 1), (b"c", "rejected", 1)] == setting.dead()

    def test_without_dead_letters_it_stays_leased(self, setting: Setting) -> None:
        setting.send(b"a")
        with setting.subscribe() as sub:
            [message] = sub.receive()
            with pytest.raises(NoDeadLetterTopic, match="dead_letter="):
                message.reject("why")
            assert not message.settled
            assert 1 == sub.stats().leased
            with message:
                pass
            assert 1 == sub.stats().acked

    def test_retry(self, setting: Setting) -> None:
        setting.send(b"a")
        with setting.subscribe() as sub:
            for delay_ms in (5_000, 2_000):
                [message] = sub.receive()
                with handling(message):
                    assert 1 == message.retry(None if delay_ms == 2_000 else delay_ms / 1_000).done
                setting.clock.advance(delay_ms - 1)
                assert not sub.receive()
                setting.clock.advance(10)
            assert [2] == [each.redelivery_count for each in sub.receive()]
