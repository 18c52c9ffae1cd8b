"""What a tracker of delayed delivery is: offsets that wait for their time.

    add ──► [held] ──time──► [due] ──due()──► taken out

Three keep this protocol, and one suite of tests proves all of them (`DelayedDeliveryTrackerTests`):

    MemoryTracker        everything in memory, sorted, to the millisecond. 16 bytes an entry
    BucketTracker        on disk in runs (PIP-195); memory does not grow with what it holds
    TimeBucketTracker    in memory, time rounded up to a precision, offsets in Roaring bitmaps and arrays

A tracker delivers by *its* time of an entry, which is never before the `deliver_after` that was given to `add`: the
time bucket tracker rounds up, the bucket tracker puts nothing in front of what it gave out before. Due entries come in
the order of (tracker's time, offset).

A tracker that `contains` an offset will give it out, and one that gave it out does not contain it: due is decided
before membership. So `add` may answer "held already", and nothing is lost by believing it.
"""

from __future__ import annotations

from typing import Protocol

from afterlog.base.clock import INT64_MAX, check_deliver_after
from afterlog.base.errors import OffsetOutOfRange
from afterlog.index.entries import Keys
from afterlog.index.growing_columns import Int64Array


class DelayedDeliveryTracker(Protocol):
    """Offsets by the time at which they are due. One thread at a time: its users hold a lock of their own.

    Times are 0 to 2^63-1, else InvalidDeliverAfter; so are offsets, else OffsetOutOfRange. A call that raises one of
    these changed nothing.
    """

    def add(self, deliver_after: int, offset: int) -> bool:
        """Hold an offset until its time. False, and nothing changed, where it holds the offset already."""

    def add_many(self, deliver_after: Int64Array, offset: Int64Array) -> int:
        """Add columns of one length; how many were new. Of an offset that comes twice the first row counts."""

    def has_due(self, now_ms: int) -> bool:
        """Whether `due` would give anything."""
        next_due = self.next_due()
        return next_due is not None and next_due <= now_ms

    def due(self, now_ms: int, limit: int) -> Keys:
        """Take out the first `limit` entries, at least 1, whose time has come: their keys by the tracker's times."""

    def contains(self, offset: int) -> bool:
        """Whether it holds the offset: then `due` will give it out."""

    def next_due(self) -> int | None:
        """The tracker's time of the first entry, None without any."""

    def clear(self) -> None:
        """Forget all that is held, as PIP-195 has it: from then on it is like a new one."""

    def __len__(self) -> int: ...

    def memory_bytes(self) -> int:
        """Bytes of memory that it has allocated for what it holds, not what they would be when serialised."""

    def check(self) -> None:
        """AssertionError where an invariant does not hold."""


def check_entry(deliver_after: int, offset: int) -> None:
    """InvalidDeliverAfter or OffsetOutOfRange unless both are 0 to 2^63-1."""
    check_deliver_after(deliver_after)
    if not 0 <= offset <= INT64_MAX:
        raise OffsetOutOfRange(
            f"an offset is 0 to 2^63-1, not {offset}", position=offset, log_start=0, log_end=INT64_MAX
        )


def check_columns(deliver_after: Int64Array, offset: Int64Array) -> None:
    """`check_entry` for each row; ValueError where the columns differ in length."""
    if len(deliver_after) != len(offset):
        raise ValueError(f"{len(deliver_after)} times do not go with {len(offset)} offsets")
    if len(offset):
        check_entry(int(deliver_after.min()), int(offset.min()))


def check_limit(limit: int) -> None:
    """ValueError unless at least 1."""
    if limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")
