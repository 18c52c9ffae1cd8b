from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from afterlog.base.errors import StoreClosed
from tests.subscription.support import Setting, handling, values


@pytest.fixture
def setting() -> Iterator[Setting]:
    setting = Setting()
    yield setting
    setting.store.check()
    setting.store.close()


def test_a_block_that_ends_well_acks(setting: Setting) -> None:
    setting.send(b"a", b"b", b"c", b"d")
    with setting.subscribe() as sub:
        messages = sub.receive()
        for message, settled in zip(
            messages,
            (lambda _: None, sub.ack, sub.release, lambda message: sub.nack([message], delay=1)),
            strict=True,
        ):
            with message as entered:
                assert entered is message
                settled(message)
        stats = sub.stats()
        assert (2, 1, 1) == (stats.acked, stats.released, stats.nacked)


def test_what_a_block_raises_stays_inside(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    setting.send(b"a", b"b")
    with setting.subscribe() as sub:
        first, second = sub.receive()
        with first:
            raise LookupError("nobody there")
        with second:
            sub.ack(second)
            raise LookupError("afterwards")
        assert (1, 1) == (sub.stats().nacked, sub.stats().acked)
    assert ["mail-0@0 failed in sender (0 before)", "mail-0@1 failed in sender (0 before)"] == caplog.messages
    assert [logging.ERROR] * 2 == [record.levelno for record in caplog.records]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupt_gives_back_and_goes_on_its_way(setting: Setting, kind: type[BaseException]) -> None:
    setting.send(b"a", b"b")
    with setting.subscribe() as other:

        def work() -> None:
            with setting.subscribe() as sub:
                for message in sub:
                    with message:
                        raise kind

        with pytest.raises(kind):
            work()
        assert [(b"a", 0), (b"b", 0)] == [(each.value, each.redelivery_count) for each in other.receive()]
        stats = other.stats()
        assert (0, 1) == (stats.nacked, stats.released)


def test_what_cannot_be_acked_any_more_is_told(setting: Setting) -> None:
    setting.send(b"a", b"b")
    sub = setting.subscribe()
    first, second = sub.receive()
    with pytest.raises(StoreClosed), first:
        setting.store.close()
    with pytest.raises(KeyboardInterrupt), second:
        raise KeyboardInterrupt
    assert not sub.blocks
    setting.open(setting.disk)


def test_a_block_that_ends_behind_a_close_still_acks(setting: Setting) -> None:
    """What is in a handler stays leased; the last block that ends lets the partitions go."""
    setting.send(b"a", b"b", b"c", b"d")
    sub = setting.subscribe(dead_letter="mail.dead")
    first, second, third, fourth = sub.receive()
    with handling(first):
        with handling(second):
            with handling(third):
                sub.close()
                with setting.subscribe() as other:
                    assert [] == [*other.receive()]
                third.reject("never")
            second.retry(5)
        assert 1 == len(setting.store.open_subscriptions())
    assert [] == setting.store.open_subscriptions()
    with pytest.raises(StoreClosed):
        sub.ack(fourth)
    with setting.subscribe() as other:
        assert [b"d"] == values(other.receive())
        stats = other.stats()
        assert (1, 1, 1) == (stats.dead, stats.retrying, stats.leased)
    assert [(b"c", "never", 1)] == setting.dead()
