"""What a subscription has acked: mark_delete, and the holes behind it. No cap on holes, no cost per hole.

    0 … acked … │ 7   .   9  10   .  │ not read yet …
                └ mark_delete        └ position (here 12)        un-acked: {7, 9, 10}

    acked(d)      d < position and d is not in `unacked`
    mark_delete   the first un-acked delivery offset; `position` where there is none

So the set that is kept is that of the un-acked ones, which are leased, waiting for their retry, or on their way to the
dead letters: an ack takes one out, and mark_delete moves by itself. Pulsar keeps the acked ranges, at most 10,000 of
them, and delivers the rest again after a restart (PIP-437); the complement has no such list, and no search for where
mark_delete moves to.

Invariants, proved by `check`: every un-acked offset lies in [0, position); `count` is their number.
"""

from __future__ import annotations

from pyroaring import BitMap64

from afterlog.subscription import bits

_OPTIMISE_EVERY = 4_096
"""Single acks after which runs that have been torn to pieces become bitmaps. Larger: dearer acks within runs."""


class AckSet:
    """Delivery offsets of one partition, acked by one subscription. One thread at a time."""

    def __init__(self, position: int = 0, unacked: BitMap64 | None = None) -> None:
        """ValueError where an un-acked offset lies at or beyond the position."""
        self.position = position
        """Everything at or beyond is not read yet."""
        self.unacked = BitMap64() if unacked is None else unacked
        """To be read by others, and changed by none."""
        self.count = len(self.unacked)
        """Of the un-acked ones."""
        self._until_optimised = _OPTIMISE_EVERY
        if self.count and self.unacked.max() >= position:
            raise ValueError(f"offset {self.unacked.max()} is not below the position {position}")

    @property
    def mark_delete(self) -> int:
        """All below is acked."""
        first = bits.first(self.unacked)
        return self.position if first is None else first

    def __contains__(self, delivery_offset: int) -> bool:
        """Whether it is acked."""
        return delivery_offset < self.position and delivery_offset not in self.unacked

    def read(self, position: int, delivered: BitMap64) -> int:
        """Move on to `position`; how many were stepped over: all but those `delivered`, and acked at once."""
        count = len(delivered)
        bits.insert(self.unacked, delivered)
        stepped_over = position - self.position - count
        self.position = position
        self.count += count
        return stepped_over

    def read_one(self, position: int, delivered: int) -> int:
        """`read` of one, which lies from here to `position`."""
        stepped_over = position - self.position - 1
        self.unacked.add(delivered)
        self.position = position
        self.count += 1
        return stepped_over

    def ack_one(self, offset: int) -> None:
        """`ack` of one that is un-acked."""
        self.unacked.remove(offset)
        self.count -= 1
        self._until_optimised -= 1
        if self._until_optimised <= 0:
            self._optimise()

    def ack(self, offsets: BitMap64) -> int:
        """Ack offsets; how many of them were un-acked. O(1) each, whatever the number of holes."""
        newly = offsets if len(offsets) == 1 and offsets.min() in self.unacked else offsets & self.unacked
        count = len(newly)
        bits.remove(self.unacked, newly)
        self.count -= count
        self._until_optimised -= min(count, bits.FEW)
        if self._until_optimised <= 0:
            self._optimise()
        return count

    def _optimise(self) -> None:
        self._until_optimised = _OPTIMISE_EVERY
        self.unacked.run_optimize()

    def check(self) -> None:
        """AssertionError where an invariant does not hold."""
        assert self.count == len(self.unacked)
        assert not self.count or self.unacked.max() < self.position
