"""What a program sends is what a relay reads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from afterlog import relay
from afterlog.base.clock import ManualClock
from afterlog.base.errors import InvalidArgument, InvalidDeliverAfter, InvalidRecord
from afterlog.relay.instruction import (
    KNOWN_NAMES,
    Cancellation,
    HeaderNames,
    Instruction,
    InstructionReader,
    KafkaRecord,
    ScheduledDelivery,
)
from afterlog.relay.scheduler import Scheduler, Sendable


def test_the_package_has_what_people_use() -> None:
    assert relay.Scheduler is Scheduler
    assert all(getattr(relay, name).__name__ == name for name in relay.__all__)
    with pytest.raises(AttributeError, match="no attribute 'relays'"):
        _ = relay.relays


NOW_MS = 1_770_000_000_000
LATER = Scheduler("later", clock=ManualClock(NOW_MS))


def read(sent: Sendable, names: HeaderNames = KNOWN_NAMES["afterlog"]) -> Instruction:
    assert sent["topic"] == "later"
    return InstructionReader(names).read(KafkaRecord(3, NOW_MS, sent["key"], sent["value"], sent["headers"]))


def test_a_delay() -> None:
    sent = LATER.send("mail", b"v", key=b"k", headers=[("a", b"1")], delay=timedelta(seconds=5))
    assert ScheduledDelivery(3, NOW_MS + 5_000, "mail", b"k", b"v", (("a", b"1"),), NOW_MS) == read(sent)


def test_an_instant_and_at_once() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    found = read(LATER.send("mail", None, deliver_after=at))
    assert isinstance(found, ScheduledDelivery)
    assert (int(at.timestamp() * 1_000), None) == (found.due_ms, found.value)
    now = read(LATER.send("mail", b""))
    assert isinstance(now, ScheduledDelivery)
    assert now.due_ms == NOW_MS


@pytest.mark.parametrize("key", [None, b"k", b""])
def test_an_id_decides_the_partition_and_the_key_goes_along(key: bytes | None) -> None:
    sent, cancel = LATER.send("mail", b"v", key=key, delay=1, schedule_id="order-17"), LATER.cancel("order-17")
    assert sent["key"] == cancel["key"] == b"order-17"
    found = read(sent)
    assert isinstance(found, ScheduledDelivery)
    assert (key, b"order-17") == (found.key, found.id)
    assert Cancellation(3, b"order-17") == read(cancel)


def test_other_names() -> None:
    names = HeaderNames(deliver_after="when", deliver_to="where", delay="")
    found = read(Scheduler("later", names=names, clock=ManualClock(NOW_MS)).send("mail", b"v", delay=1), names)
    assert isinstance(found, ScheduledDelivery)
    assert found.due_ms == NOW_MS + 1_000


def test_what_cannot_be_sent() -> None:
    with pytest.raises(InvalidRecord, match="the relay reads"):
        LATER.send("mail", b"v", headers=[("delay", b"1")])
    with pytest.raises(InvalidRecord, match="an id has"):
        LATER.cancel("")
    with pytest.raises(InvalidRecord, match="an id has"):
        LATER.send("mail", b"", schedule_id=17)  # type: ignore[arg-type]
    with pytest.raises(InvalidDeliverAfter):
        LATER.send("mail", b"v", delay=1, deliver_after=NOW_MS)
    with pytest.raises(InvalidArgument, match="by its key"):
        Scheduler("later", names=KNOWN_NAMES["etf1"])
