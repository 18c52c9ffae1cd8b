"""Events that follow each other, and a plain model of what they make of a subscription: for several tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from pyroaring import BitMap64

from afterlog.base.clock import INT64_MAX
from afterlog.subscription.events import (
    Acked,
    Closed,
    Dead,
    DeadLetter,
    Event,
    Extended,
    Intended,
    Lapsed,
    Leapt,
    Leased,
    LeasedUntil,
    Ordered,
    Paused,
    Queued,
    Reason,
    Returned,
    Skipped,
    Sought,
)
from afterlog.subscription.lease_number import failures
from afterlog.subscription.state import Owner, SubscriptionState

OWNER = Owner("mail-0", "sender")


def returned(reason: Reason, *offsets: int, retry_ms: int = 700) -> Returned:
    column = np.array(sorted(offsets), np.int64)
    return Returned(reason, column, column + 1_000, np.full(len(column), retry_ms))


def letter(offset: int) -> DeadLetter:
    place = {"topic": "mail.dead", "partition": 2, "log_end_offset": 9}
    return DeadLetter(delivery_offset=offset, offset=offset + 1_000, failures=8, reason="zu oft ✗", **place)


STORY: tuple[Event, ...] = (
    Leased(6, BitMap64([0, 1, 3, 4, 5])),
    Acked(BitMap64([1, 4])),
    returned(Reason.NACKED, 0, 3),
    Leased(8, BitMap64([0, 6, 7])),
    returned(Reason.EXPIRED, 0, 6),
    returned(Reason.RELEASED, 5),
    Intended((letter(7),)),
    Acked(BitMap64([6])),
    Dead(BitMap64([7])),
    Leased(9, BitMap64([3, 5, 8])),
    returned(Reason.CRASHED, 8),
    Intended((letter(3), letter(5))),
    Closed(),
)
"""A bit of everything but seek and skip. In the end 0 and 8 are retrying, 3 and 5 dying, 1, 4, 6 acked, 7 dead."""
SOUGHT: tuple[Event, ...] = (*STORY, Skipped(2), Skipped(12), Leased(15, BitMap64([12, 14])), Sought(4))


HELD: tuple[Event, ...] = (
    LeasedUntil(4, BitMap64([0, 1, 2, 3]), 9_000),
    Leased(6, BitMap64([4, 5])),
    LeasedUntil(8, BitMap64([6, 7]), 12_000),
    Acked(BitMap64([1])),
    Extended(15_000, BitMap64([2, 6])),
    returned(Reason.NACKED, 0, 5),
    LeasedUntil(8, BitMap64([5]), 12_000),
    Leased(8, BitMap64([0])),
    Intended((letter(3),)),
)
"""Leases that outlive the process beside others. In the end 2 and 6 are held until 15,000, 5 and 7 until 12,000; 0 and
4 are leased; 3 is dying."""

LEAPT: tuple[Event, ...] = (*HELD[:6], Leapt(1_000), *HELD[6:], Leapt(1 << 62), Leapt(1 << 62))
"""The same, with a clock that was set forward: a second, and by more than there is."""

IN_TURN: tuple[Event, ...] = (
    Ordered(),
    Queued(6, BitMap64([0, 1, 3, 4, 5])),
    Leased(6, BitMap64([0, 3])),
    Acked(BitMap64([0])),
    LeasedUntil(6, BitMap64([1]), 9_000),
    returned(Reason.NACKED, 3),
    Paused(),
    Acked(BitMap64([4])),
    Queued(9, BitMap64([7, 8])),
    Paused(False),
    Leased(9, BitMap64([3, 7])),
    Paused(),
)
"""Ordered by key. In the end 1, 3 and 7 are leased, 5 and 8 queued; 4 was acked while it was. It is paused."""

EVERYTHING: tuple[Event, ...] = (*IN_TURN, Sought(0), *STORY[:-1], Sought(0), *HELD, Lapsed(BitMap64([4, 5])), Closed())


class Model:
    """The same with a dict: delivery offset -> acked, leased, retrying, dying or queued."""

    def __init__(self) -> None:
        self.position = 0
        self.states: dict[int, str] = {}
        self.attempts: dict[int, int] = {}
        self.releases: dict[int, int] = {}
        self.seeks = 0
        self.retry_ms: dict[int, int] = {}
        self.until_ms: dict[int, int] = {}
        """Of what is held, leased or not any more."""
        self.is_paused = self.is_ordered = False

    def among(self, *states: str) -> set[int]:
        return {offset for offset, state in self.states.items() if state in states}

    def held(self) -> dict[int, int]:
        leased = self.among("leased")
        return {offset: ms for offset, ms in self.until_ms.items() if offset in leased}

    def apply(self, event: Event) -> None:
        match event:
            case Leapt(ms):
                self.until_ms = {offset: until_ms + ms for offset, until_ms in self.until_ms.items()}
                self.retry_ms = {offset: min(retry_ms + ms, INT64_MAX) for offset, retry_ms in self.retry_ms.items()}
            case Extended(until_ms, offsets):
                self.until_ms |= dict.fromkeys(offsets, until_ms)
            case LeasedUntil(position, offsets, until_ms):
                self.apply(Leased(position, offsets))
                self.until_ms |= dict.fromkeys(offsets, until_ms)
            case Leased(position, offsets):
                self.states |= dict.fromkeys(range(self.position, position), "acked") | dict.fromkeys(offsets, "leased")
                self.position = position
            case Paused(is_paused):
                self.is_paused = is_paused
            case Ordered():
                self.is_ordered = True
            case Queued(position, offsets):
                self.states |= dict.fromkeys(range(self.position, position), "acked") | dict.fromkeys(offsets, "queued")
                self.position = position
            case Acked(offsets) | Dead(offsets) | Lapsed(offsets):
                self.states |= dict.fromkeys(offsets, "acked")
            case Returned(reason, column, _, retry_ms):
                for offset, ms in zip(column.tolist(), retry_ms.tolist(), strict=True):
                    self.states[offset] = "retrying"
                    self.until_ms.pop(offset, None)
                    self.retry_ms[offset] = ms
                    count = self.releases if reason == Reason.RELEASED else self.attempts
                    count[offset] = count.get(offset, 0) + 1
            case Intended(letters):
                self.states |= dict.fromkeys((each.delivery_offset for each in letters), "dying")
            case Skipped(position):
                self.states |= dict.fromkeys(range(position), "acked")
                self.position = max(self.position, position)
            case Sought(position):
                self.position, self.attempts, self.releases, self.until_ms = position, {}, {}, {}
                self.seeks += 1
                self.states = dict.fromkeys(range(position), "acked")

    def lease_number(self, offset: int) -> int:
        return (self.seeks << 48) + (self.releases.get(offset, 0) << 32) + self.attempts.get(offset, 0)

    def agrees(self, state: SubscriptionState) -> None:
        """AssertionError where the state is another."""
        state.check()
        assert self.position == state.position
        unread = [offset for offset, each in self.states.items() if offset < self.position and each != "acked"]
        assert min(unread, default=self.position) == state.acks.mark_delete
        assert self.among("leased") == set(state.leased())
        assert self.among("retrying") == set(state.retrying)
        assert self.among("dying") == set(state.dying)
        assert self.among("queued") == set(state.queued)
        assert (self.is_paused, self.is_ordered) == (state.is_paused, state.is_ordered)
        found = [(offset, ms) for ms, offsets in state.held.items() for offset in state.leased_among(offsets)]
        assert sorted(self.held().items()) == sorted(found)
        assert set(self.held()) == set(state.held_among(state.leased()))
        counts = [len(self.among(each)) for each in ("leased", "retrying", "dying", "queued")]
        assert counts == [state.leased_count, state.retrying_count, len(state.dying), state.queued_count]
        held = np.array(sorted(self.among("leased", "retrying", "dying", "queued")), np.int64)
        rows = state.redeliveries.find(held)
        assert [self.lease_number(offset) for offset in held.tolist()] == rows.lease_number.tolist()
        assert [self.attempts.get(offset, 0) for offset in held.tolist()] == failures(rows.lease_number).tolist()
        waiting = np.array(sorted(self.among("retrying")), np.int64)
        expected = [self.retry_ms[offset] for offset in waiting.tolist()]
        assert expected == state.redeliveries.find(waiting).retry_ms.tolist()


def facts(state: SubscriptionState) -> Any:
    """All that a state holds, to be compared."""
    return state.to_bytes(OWNER)
