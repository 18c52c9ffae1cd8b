from __future__ import annotations

import pytest
from pyroaring import BitMap64

from afterlog.subscription.ack_set import AckSet
from afterlog.subscription.events import (
    Acked,
    Event,
    Extended,
    Kind,
    Leased,
    LeasedUntil,
    Skipped,
    Sought,
    decode,
    encode,
)
from afterlog.subscription.state import SubscriptionState
from tests.subscription.samples import HELD, LEAPT, SOUGHT, facts


def test_the_worked_example() -> None:
    leased = "02 00 00 00 00 00 00 00  01 00 00 00 00 00 00 00 00 00 00 00 3b 30 00 00 01 00 00 01 00 01 00 00 00 01 00"
    bits = BitMap64()
    bits.add_range(0, 2)
    assert (Kind.LEASED, bytes.fromhex(leased)) == encode(Leased(2, bits))
    until = bytes.fromhex("e8 03 00 00 00 00 00 00" + leased)
    assert (Kind.LEASED_UNTIL, until) == encode(LeasedUntil(2, bits, 1_000))


@pytest.mark.parametrize("events", [SOUGHT, HELD, LEAPT], ids=["sought", "held", "leapt"])
def test_each_comes_back(events: tuple[Event, ...]) -> None:
    written, read = SubscriptionState(AckSet()), SubscriptionState(AckSet())
    for event in events:
        kind, body = encode(event)
        again = decode(kind, memoryview(body))
        assert type(event) is type(again)
        assert (kind, body) == encode(again)
        written.apply(event)
        read.apply(again)
        assert facts(written) == facts(read)


@pytest.mark.parametrize("event", [*SOUGHT[:-2], *LEAPT], ids=lambda event: type(event).__name__)
def test_cut_short_it_is_none(event: Event) -> None:
    kind, body = encode(event)
    for size in range(len(body)):
        try:
            again = decode(kind, memoryview(body)[:size])
        except (ValueError, IndexError):
            continue
        assert (kind, body[:size]) == encode(again), "read as something else"


def test_not_events() -> None:
    for kind, body in [(Kind.SNAPSHOT, b""), (Kind.INTENDED, b"[1]"), (Kind.INTENDED, b'[{"offset":1}]'),
                       (Kind.LEASED_UNTIL, encode(LeasedUntil(1, BitMap64([0]), -1))[1]), (Kind.EXTENDED, bytes(7)),
                       (Kind.EXTENDED, encode(Extended(-1, BitMap64([0])))[1]), (Kind.EXTENDED, bytes(8)),
                       (Kind.RETURNED, (77).to_bytes(8, "little")), (Kind.ACKED, b"")]:  # fmt: skip
        with pytest.raises(ValueError, match=r"."):
            decode(kind, memoryview(body))


def test_an_acked_bitmap() -> None:
    acked = decode(Kind.ACKED, memoryview(encode(Acked(BitMap64([2**62])))[1]))
    assert isinstance(acked, Acked)
    assert [2**62] == list(acked.offsets)


@pytest.mark.parametrize("event", [Skipped(3), Sought(3), Leased(3, BitMap64([1])), LeasedUntil(3, BitMap64([1]), 9)])
def test_no_position_before_the_first(event: Event) -> None:
    """The state that followed could not be read again. Found by the fuzzer, of a Sought."""
    kind, body = encode(event)
    at = 8 if kind == Kind.LEASED_UNTIL else 0
    assert (3).to_bytes(8, "little") == body[at : at + 8]
    with pytest.raises(ValueError, match="no delivery offset"):
        decode(kind, memoryview(body[:at] + (-3).to_bytes(8, "little", signed=True) + body[at + 8 :]))
