"""Events that follow each other, and a plain model of what they make of a subscription: for several tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from pyroaring import BitMap64

from afterlog.subscription.events import (
    Acked,
    Closed,
    Dead,
    DeadLetter,
    Event,
    Intended,
    Leased,
    Reason,
    Returned,
    Skipped,
    Sought,
)
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


class Model:
    """The same with a dict: delivery offset -> acked, leased, retrying or dying."""

    def __init__(self) -> None:
        self.position = 0
        self.states: dict[int, str] = {}
        self.attempts: dict[int, int] = {}
        self.retry_ms: dict[int, int] = {}

    def among(self, *states: str) -> set[int]:
        return {offset for offset, state in self.states.items() if state in states}

    def apply(self, event: Event) -> None:
        match event:
            case Leased(position, offsets):
                self.states |= dict.fromkeys(range(self.position, position), "acked") | dict.fromkeys(offsets, "leased")
                self.position = position
            case Acked(offsets) | Dead(offsets):
                self.states |= dict.fromkeys(offsets, "acked")
            case Returned(reason, column, _, retry_ms):
                for offset, ms in zip(column.tolist(), retry_ms.tolist(), strict=True):
                    self.states[offset] = "retrying"
                    self.retry_ms[offset] = ms
                    self.attempts[offset] = self.attempts.get(offset, 0) + (reason != Reason.RELEASED)
            case Intended(letters):
                self.states |= dict.fromkeys((each.delivery_offset for each in letters), "dying")
            case Skipped(position):
                self.states |= dict.fromkeys(range(position), "acked")
                self.position = max(self.position, position)
            case Sought(position):
                self.position, self.attempts = position, {}
                self.states = dict.fromkeys(range(position), "acked")

    def agrees(self, state: SubscriptionState) -> None:
        """AssertionError where the state is another."""
        state.check()
        assert self.position == state.position
        unread = [offset for offset, each in self.states.items() if offset < self.position and each != "acked"]
        assert min(unread, default=self.position) == state.acks.mark_delete
        assert self.among("leased") == set(state.leased())
        assert self.among("retrying") == set(state.retrying)
        assert self.among("dying") == set(state.dying)
        counts = [len(self.among(each)) for each in ("leased", "retrying", "dying")]
        assert counts == [state.leased_count, state.retrying_count, len(state.dying)]
        held = np.array(sorted(self.among("leased", "retrying", "dying")), np.int64)
        rows = state.redeliveries.find(held)
        assert [self.attempts.get(offset, 0) for offset in held.tolist()] == rows.attempts.tolist()
        waiting = np.array(sorted(self.among("retrying")), np.int64)
        expected = [self.retry_ms[offset] for offset in waiting.tolist()]
        assert expected == state.redeliveries.find(waiting).retry_ms.tolist()


def facts(state: SubscriptionState) -> Any:
    """All that a state holds, to be compared."""
    return state.to_bytes(OWNER)
