"""Leased offsets by the time at which their leases end: few times, since they lie on a grid (`timers.deadline_ms`).

    until_ms ──> offsets, Roaring        1/128 of a lease apart, so a hundred or two of leases of one length

An offset that is leased is under one time; it is found by looking through the times, newest first. One that was acked
stays where it is: whoever asks knows what is leased, and looks at nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from pyroaring import BitMap64
from sortedcontainers import SortedDict

from afterlog.subscription import bits


class Deadlines:
    """One thread at a time."""

    __slots__ = ("_ends",)

    def __init__(self) -> None:
        self._ends = SortedDict()

    def __bool__(self) -> bool:
        return bool(self._ends)

    def items(self) -> Iterable[tuple[int, BitMap64]]:
        """(time, offsets), in no order: an interruption may break the order, and leaves what is held."""
        return dict.items(self._ends)

    def put(self, until_ms: int, offsets: BitMap64) -> None:
        held = self._ends.get(until_ms)
        if held is None:
            self._ends[until_ms] = offsets.copy()
        else:
            bits.insert(held, offsets)

    def put_one(self, until_ms: int, offset: int) -> bool:
        """`put` of one; whether nothing ended then before."""
        held = self._ends.get(until_ms)
        if held is not None:
            held.add(offset)
            return False
        self._ends[until_ms] = bits.of_one(offset)
        return True

    def later(self, ms: int) -> Deadlines:
        """The same, by so much later."""
        made = Deadlines()
        made._ends.update({until_ms + ms: offsets for until_ms, offsets in self.items()})
        return made

    def remove(self, offsets: BitMap64) -> None:
        """Take these out, where they are here."""
        for until_ms, found in self._found(offsets):
            bits.remove(self._ends[until_ms], found)

    def move(self, until_ms: int, offsets: BitMap64) -> None:
        """Put these, which are here, under another time. Whatever strikes in the middle, they are under one."""
        moved = offsets - self.at(until_ms)
        if moved:
            places = [*self._found(moved)]
            self.put(until_ms, moved)
            for ends_ms, found in places:
                bits.remove(self._ends[ends_ms], found)

    def among(self, offsets: BitMap64) -> BitMap64:
        """Those of the offsets that are here."""
        return BitMap64().union(*(found for _, found in self._found(offsets)))

    def _found(self, offsets: BitMap64) -> Iterator[tuple[int, BitMap64]]:
        """Where these are: (time, those of them), newest first."""
        left = offsets
        for until_ms in reversed(self._ends):
            found = left & self._ends[until_ms]
            if found:
                yield until_ms, found
                left = left - found
            if not left:
                return

    def before(self, until_ms: int, offsets: BitMap64) -> BitMap64:
        """Those of the offsets that end earlier."""
        found = BitMap64()
        for ends_ms in self._ends.irange(maximum=until_ms, inclusive=(True, False)):
            found |= offsets & self._ends[ends_ms]
        return found

    def at(self, until_ms: int) -> BitMap64:
        """What ends then; not to be changed."""
        held = self._ends.get(until_ms)
        return BitMap64() if held is None else held

    def first(self, leased_among: Callable[[BitMap64], BitMap64] | None = None) -> tuple[int, BitMap64] | None:
        """The earliest time, and what is under it. leased_among: times under which nothing is leased go first."""
        while self._ends:
            until_ms, offsets = self._ends.peekitem(0)
            if leased_among is None or leased_among(offsets):
                return until_ms, offsets
            self._ends.popitem(0)
        return None

    def forget(self, until_ms: int) -> None:
        del self._ends[until_ms]
