"""Whose turn it is in a subscription that is ordered by key: of each key one record at a time, in delivery order.

    queue      a1 b1 a2 c1 a3 b2 …          read, in delivery order; durable, about a bit each (`state.py`)
    in flight  a1                           leased, or comes back: a2 and a3 wait until it is done with
    turns      b1 c1                        the first of their keys, with nobody before them

A key that was served goes behind those that have their turn already, and reading goes on while few have: so what waits
behind a million records of one key is found, and does not wait for them (SQS' fair queues; Pulsar's Key_Shared blocks
there). A record that comes back holds up its own key alone.

What is in memory: each key that is in flight or has its turn, and up to WAITING of what waits behind it. What lies
beyond is in the queue, and is looked for there when these are used up (`hungry`). Keys are known by 64 bits of a hash:
two that share one wait for each other. A record without a key has one of its own.

Invariants, proved by `check` against the state: what is un-acked and not queued is in flight; of each key at most one
record is in flight or has its turn, and all that waits lies behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice

import numpy as np
from pyroaring import BitMap64

from afterlog.fetch.message_columns import Columns
from afterlog.index.growing_columns import Int64Array
from afterlog.index.offset_set import column_of
from afterlog.records.unique_key import hashes_in
from afterlog.subscription import bits
from afterlog.subscription.state import SubscriptionState

WAITING = 64
"""Of a key, at a time. Larger: more memory for each key in flight, fewer looks for what waits."""
_ODD = np.int64(-0x61C8864680B583EB)
"""2^64 by the golden ratio: a record without a key is told apart from others by its delivery offset times this."""


def key_hashes(columns: Columns) -> Int64Array:
    """By what the keys of records are known, int64[n]."""
    offsets, data = columns.key
    with np.errstate(over="ignore"):
        alone = columns.delivery_offset * _ODD
    return np.where(columns.key_valid, hashes_in(data, offsets[:-1], offsets[1:]), alone)


class KeyOrder:
    """Of one partition of one subscription. One thread at a time."""

    def __init__(self) -> None:
        self._in_flight: dict[int, int] = {}
        """Delivery offset ──> hash of its key, as the next two."""
        self._turns: dict[int, int] = {}
        """In the order in which they came to it."""
        self._keys: set[int] = set()
        """Those of both."""
        self._waiting: dict[int, deque[int]] = {}
        """Hash ──> the next of it, ascending."""
        self._more: dict[int, int] = {}
        """Hash ──> a delivery offset: there, or behind it, may be more of it."""
        self.hungry: dict[int, int] = {}
        """The same of keys of which nobody is in flight, or has a turn, until they have been looked for."""

    @property
    def has_turns(self) -> bool:
        """Whether somebody has a turn, or may have."""
        return bool(self._turns or self.hungry)

    @property
    def turn_count(self) -> int:
        return len(self._turns)

    def turns(self, limit: int) -> list[int]:
        """Up to so many delivery offsets whose turn it is, the longest first."""
        return list(islice(self._turns, limit))

    def in_flight(self, offset: Int64Array, key: Int64Array) -> None:
        """Records are leased, or come back, as the state says: before any is queued."""
        self._in_flight.update(zip(offset.tolist(), key.tolist(), strict=True))
        self._keys.update(self._in_flight.values())

    def queue(self, offset: Int64Array, key: Int64Array) -> None:
        """Records were read, ascending, behind all that were before: int64[n] both."""
        ascending = np.argsort(key, kind="stable")
        starts = np.flatnonzero(np.diff(key[ascending], prepend=key[ascending][:1] - 1))
        firsts = ascending[starts]
        if len(firsts) == len(offset) and self._keys.isdisjoint(key.tolist()):  # as a rule, where keys are many
            self._turns.update(zip(offset.tolist(), key.tolist(), strict=True))
            self._keys.update(key.tolist())
            return
        groups = np.split(offset[ascending], starts[1:])
        for row in np.argsort(firsts).tolist():
            self._queue_key(int(key[firsts[row]]), groups[row].tolist())

    def lease(self, offsets: Iterable[int]) -> None:
        """These go out: those of them that had a turn are in flight."""
        for offset in offsets:
            key = self._turns.pop(offset, None)
            if key is not None:
                self._in_flight[offset] = key

    def settle(self, offsets: Iterable[int], queued: BitMap64) -> bool:
        """These are done with; whether others have their turn for it. queued: what still is."""
        before = len(self._turns) + len(self.hungry)
        for offset in offsets:
            key = self._in_flight.pop(offset, None)
            if key is None:  # acked by its number, while it had its turn, or waited
                key = self._turns.pop(offset, None)
                before -= key is not None
            if key is not None:
                self._pass_on(key, queued)
        return len(self._turns) + len(self.hungry) > before

    def found(self, offset: Int64Array, key: Int64Array, end: int | None, queued: BitMap64) -> None:
        """What is queued from the first of what is hungry up to `end`, or its last: int64[n] both, ascending."""
        for hungry, start in list(self.hungry.items()):
            rows = offset[(key == hungry) & (offset >= start)]
            del self.hungry[hungry]
            if len(rows) > WAITING:
                self._more[hungry] = int(rows[WAITING])
            elif end is not None:
                self._more[hungry] = max(start, end)
            if len(rows):
                self._waiting[hungry] = deque(rows[:WAITING].tolist())
            self._pass_on(hungry, queued)

    def check(self, state: SubscriptionState, key_of: dict[int, int]) -> None:
        """AssertionError where an invariant does not hold. key_of: the hash of each that is un-acked."""
        every = self._in_flight | self._turns
        assert self._in_flight.keys() == set(column_of(state.acks.unacked - state.queued).tolist())
        assert all(offset in state.queued for offset in self._turns)
        assert all(key_of[offset] == key for offset, key in every.items())
        assert len(every) == len(set(every.values())), "two records of a key are out"
        first = {key: offset for offset, key in every.items()}
        assert self._keys == first.keys() | self.hungry.keys()
        for offset in column_of(state.queued).tolist():
            key = key_of[offset]
            if offset in self._turns:
                continue
            if key in self.hungry:
                assert offset >= self.hungry[key], "it was passed over"
                continue
            assert first[key] < offset, "a later record of a key went before it"
            assert offset in self._waiting.get(key, ()) or offset >= self._more[key], "it is forgotten"

    def _queue_key(self, key: int, offsets: list[int]) -> None:
        if key not in self._keys:
            self._keys.add(key)
            self._turns[offsets.pop(0)] = key
        if not offsets or key in self._more or key in self.hungry:
            return
        waiting = self._waiting.setdefault(key, deque())
        room = WAITING - len(waiting)
        waiting.extend(offsets[:room])
        if len(offsets) > room:
            self._more[key] = offsets[room]

    def _pass_on(self, key: int, queued: BitMap64) -> None:
        """The next of a key has its turn, of which nobody is out."""
        waiting = self._waiting.get(key, ())
        while waiting:
            offset = waiting.popleft()
            if offset in queued:
                self._turns[offset] = key
                return
        self._waiting.pop(key, None)
        if key in self._more:
            self.hungry[key] = self._more.pop(key)
        else:
            self._keys.discard(key)


def queued_between(queued: BitMap64, start: int, end: int) -> Int64Array:
    """What of the queue lies in a range of delivery offsets, ascending."""
    return column_of(queued & bits.of_range(start, end)) if start < end else np.empty(0, np.int64)
