"""Timers of a subscription: when leases end and when retries are due. In memory only, made anew from the state.

    leases    deadline ──> offsets, Roaring          few deadlines, on a grid of 1/128 of the lease (`deadlines.py`)
    retries   retry time ──> offsets                 a time bucket tracker (`index/time_bucket_tracker.py`)
              (retry time, offset), sorted           columns, for many at scattered times: it costs a call for each
                                                     block, and not for each bucket (`index/memory_tracker.py`)

Both round up: late by less than 1/128 of the lease (10 ms at least), and by less than
`delayed_delivery_tick_time_ms` for a retry, and never early. Acks do not
come here: what is acked stays in its bucket until its time, and is left out then. So an ack costs nothing here, and a
leased record is found by looking through a hundred buckets, newest first, when it is nacked.

Invariants, proved by `check` against the state: every leased offset is in one bucket of the leases, of one that is held
in the state in that which the state says; every retrying one is in one of the trackers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from pyroaring import BitMap64

from afterlog.base.clock import INT64_MAX
from afterlog.index.entries import Keys
from afterlog.index.growing_columns import Int64Array
from afterlog.index.memory_tracker import MemoryTracker
from afterlog.index.offset_set import column_of
from afterlog.index.time_bucket_tracker import TimeBucketTracker
from afterlog.subscription import bits
from afterlog.subscription.deadlines import Deadlines
from afterlog.subscription.state import SubscriptionState

STEP_MS = 10
"""Deadlines lie on a grid of no less than this, and retries where no setting says otherwise."""
DENSE = 8
"""Retries for each bucket, at least, that go there at once. Larger: more memory, fewer calls."""
LEASE_STEPS = 128
"""Deadlines that leases of one length have at one time, at most. Larger: more punctual, dearer nacks."""


class Timers:
    """Of one partition of one subscription. One thread at a time."""

    def __init__(self, state: SubscriptionState, precision_ms: int = STEP_MS) -> None:
        """Timers for what is retrying in the state, and what is held; what else is leased there has no deadline, and is
        the caller's.
        """
        self._state = state
        self._leases = Deadlines()
        self._retries = TimeBucketTracker(precision_ms)
        self._scattered = MemoryTracker()
        self._quiet_until_ms = 0
        """No lease ends and no retry is due before, but it may be later."""
        for until_ms, offsets in state.held.items():
            self.lease(until_ms, offsets)
        if state.retrying_count:
            rows = state.redeliveries.rows()
            retrying = bits.rows_in(rows.delivery_offset, state.retrying)
            self._scattered.add_many(self._retries.rounded(rows.retry_ms[retrying]), rows.delivery_offset[retrying])

    def lease(self, deadline_ms: int, offsets: BitMap64) -> None:
        self._quiet_until_ms = min(self._quiet_until_ms, deadline_ms)
        self._leases.put(deadline_ms, offsets)

    def lease_one(self, deadline_ms: int, offset: int) -> bool:
        """`lease` of one; False where other leases end then, and so whoever waits looks by then."""
        if deadline_ms < self._quiet_until_ms:
            self._quiet_until_ms = deadline_ms
        return self._leases.put_one(deadline_ms, offset)

    def unlease(self, offsets: BitMap64) -> None:
        """Forget the deadlines of leased offsets."""
        self._leases.remove(offsets)

    def extend(self, deadline_ms: int, offsets: BitMap64) -> None:
        """Leased offsets end then, be it earlier or later."""
        self._quiet_until_ms = min(self._quiet_until_ms, deadline_ms)
        self._leases.move(deadline_ms, offsets)

    def ending_before(self, deadline_ms: int, offsets: BitMap64) -> BitMap64:
        """Those of leased offsets that end earlier."""
        return self._leases.before(deadline_ms, offsets)

    def expired(self, now_ms: int) -> Iterator[tuple[int, BitMap64]]:
        """(deadline, offsets) of leases that have ended; each is forgotten when the next is asked for."""
        while (first := self._leases.first()) is not None and first[0] <= now_ms:
            deadline_ms, offsets = first
            live = self._state.leased_among(offsets)
            if live:
                yield deadline_ms, live
            self._leases.forget(deadline_ms)

    def anew(self, state: SubscriptionState, later_ms: int = 0) -> tuple[Timers, BitMap64]:
        """After an interruption: timers for the state as it is, with the deadlines that are known; and what is leased
        and has none. Or after a leap of the clock: these so much later.

        What is held ends when the state says, where a deadline of it is known here: else nobody has heard of it.
        """
        timers, left = Timers(state, self._retries.precision_ms), state.leased()
        held = state.held.among(left)
        for deadline_ms, offsets in self._leases.items():
            found = left & offsets
            if found:
                timers.lease(deadline_ms + later_ms, found - held)
                left -= found
        return timers, left

    def retry(self, retry_ms: Int64Array, offsets: Int64Array) -> None:
        self._quiet_until_ms = min(self._quiet_until_ms, int(retry_ms.min(initial=INT64_MAX)))
        if len(offsets) == 1:
            self._retries.add(int(retry_ms[0]), int(offsets[0]))
        elif np.ptp(retry_ms) * DENSE <= len(offsets) * self._retries.precision_ms:
            self._retries.add_many(retry_ms, offsets)
        else:
            self._scattered.add_many(self._retries.rounded(retry_ms), offsets)

    def quiet(self, now_ms: int) -> bool:
        """Whether no lease has ended, and no retry is due. Few calls look at more than one number."""
        if now_ms >= self._quiet_until_ms:
            first = self._leases.first()
            times = (None if first is None else first[0], self._retries.next_due(), self._scattered.next_due())
            self._quiet_until_ms = min((ms for ms in times if ms is not None), default=INT64_MAX)
        return now_ms < self._quiet_until_ms

    def has_ended(self, now_ms: int) -> bool:
        """Whether a lease has."""
        first = self._leases.first()
        return first is not None and first[0] <= now_ms

    def has_due(self, now_ms: int) -> bool:
        return self._retries.has_due(now_ms) or self._scattered.has_due(now_ms)

    def due(self, now_ms: int, limit: int) -> Keys:
        """Take out up to `limit` retries whose time has come, in the order of (time, offset)."""
        parts: list[Keys] = []
        while limit > 0 and self.has_due(now_ms):
            part = self._taken(now_ms, limit)
            retrying = bits.of_column(np.sort(part.offset)) & self._state.retrying
            if len(retrying) < len(part):
                part = part.take(np.flatnonzero(np.isin(part.offset, column_of(retrying))))
            parts.append(part)
            limit -= len(part)
        return Keys.concatenate(parts)

    def put_back(self, due: Keys) -> None:
        """Those of what was taken out that have not been leased."""
        retrying = bits.of_column(np.sort(due.offset)) & self._state.retrying
        if retrying:
            rows = np.isin(due.offset, column_of(retrying))
            self.retry(due.deliver_after[rows], due.offset[rows])

    def next_ms(self) -> int | None:
        """When the next lease ends or the next retry is due; early at most where it was acked since."""
        first = self._leases.first(self._state.leased_among)
        ends = [] if first is None else [first[0]]
        retries = (self._retries.next_due(), self._scattered.next_due()) if self._state.retrying_count else ()
        return min([*ends, *(ms for ms in retries if ms is not None)], default=None)

    def ends(self) -> list[tuple[int, BitMap64]]:
        """When leases end: (deadline, offsets), of what is settled, too. To be read, and changed by nobody."""
        return [*self._leases.items()]

    def next_end_ms(self) -> int:
        """When the next lease ends; INT64_MAX where there is none."""
        first = self._leases.first(self._state.leased_among)
        return INT64_MAX if first is None else first[0]

    def memory_bytes(self) -> int:
        """Of the retries."""
        return self._retries.memory_bytes() + self._scattered.memory_bytes()

    def check(self) -> None:
        """AssertionError where an invariant does not hold."""
        self._retries.check()
        self._scattered.check()
        assert all(self._quiet_until_ms <= deadline_ms for deadline_ms, _ in self._leases.items())
        retries = (self._retries.next_due(), self._scattered.next_due())
        assert all(self._quiet_until_ms <= retry_ms for retry_ms in retries if retry_ms is not None)
        timed = BitMap64()
        for _, offsets in self._leases.items():
            leased = self._state.leased_among(offsets)
            assert timed.isdisjoint(leased)
            timed |= leased
        assert self._state.leased() == timed
        for deadline_ms, offsets in self._state.held.items():
            assert self._state.leased_among(offsets) <= self._leases.at(deadline_ms)
        for offset in column_of(self._state.retrying).tolist():
            assert self._retries.contains(offset) != self._scattered.contains(offset)

    def _taken(self, now_ms: int, limit: int) -> Keys:
        """Out of both trackers, retrying or not: the first of what has come."""
        if not self._scattered.has_due(now_ms):
            return self._retries.due(now_ms, limit)
        if not self._retries.has_due(now_ms):
            return self._scattered.due(now_ms, limit)
        both = Keys.concatenate([self._retries.due(now_ms, limit), self._scattered.due(now_ms, limit)]).sorted()
        self._scattered.add_many(both.deliver_after[limit:], both.offset[limit:])
        return both[:limit]


def deadline_ms(now_ms: int, lease_ms: int) -> int:
    """When a lease taken now ends: on the grid of its length."""
    step_ms = max(lease_ms // LEASE_STEPS // STEP_MS, 1) * STEP_MS
    return -(-(now_ms + lease_ms) // step_ms) * step_ms


def at_once_ms(now_ms: int, precision_ms: int = STEP_MS) -> int:
    """A retry time that has come by now, as the tracker rounds up."""
    return now_ms // precision_ms * precision_ms
