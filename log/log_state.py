"""What appends and fetches of one partition share: its ends, its clock, its poison; and group commit over them.

    written ──fdatasync, shared by all who wait──> visible

Invariants (`check`):

1. visible <= written; both only grow. Bytes below the visible end never change, so readers need no lock to read them.
2. An append is in flight under the clock from its stamp until it is visible: no fetch decides "due" above its stamp.
3. After a failed fsync or rollback nothing is written or synced again: poisoned. What was visible stays readable.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from afterlog.config import Durability
from afterlog.errors import AfterlogError, PartitionPoisoned, StoreClosed, StoreForked
from afterlog.files import process_id
from afterlog.log.log_clock import LogClock
from afterlog.log.segment import ActiveSegment, SealedSegment, Segment

logger = logging.getLogger("afterlog.log")


class End(NamedTuple):
    """An end of the log: the next offset, and the byte behind the last entry in the active segment."""

    offset: int
    position: int
    active: ActiveSegment


class Visible(NamedTuple):
    """What a reader may touch, from one moment: all segments in offset order, and the end in the last of them."""

    segments: tuple[Segment, ...]
    end: End


class LogState:
    """Thread-safe. The state lock covers no I/O; the sync lock covers one fdatasync."""

    def __init__(
        self,
        path: Path,
        durability: Durability,
        clock: LogClock,
        sealed: tuple[SealedSegment, ...],
        end: End,
        changed: threading.Condition,
    ) -> None:
        self.path = path
        self.sync_lock = threading.Lock()
        self._durability = durability
        self._clock = clock
        self._segments: tuple[Segment, ...] = (*sealed, end.active)
        self._written = end
        self._visible = end
        self._changed = changed
        self.withdrawals = 0
        """Appends that failed: what they held back is held back no longer, though the end has not moved."""
        self._poison: BaseException | None = None
        self._closed = False
        self._owner = process_id()
        self._lock = threading.Lock()

    @property
    def written(self) -> End:
        return self._written

    @property
    def poisoned(self) -> bool:
        return self._poison is not None

    @property
    def closed(self) -> bool:
        return self._closed

    def visible(self) -> Visible:
        with self._lock:
            return Visible(self._segments, self._visible)

    def visible_or_closed(self) -> Visible:
        """`visible`, for one fetch. Raises StoreClosed, StoreForked."""
        self._owned()
        return self.visible()

    def written_or_closed(self) -> Visible:
        """The same, with what is written and not yet visible: to look up, not to deliver."""
        self._owned()
        with self._lock:
            return Visible(self._segments, self._written)

    def due_reading(self) -> tuple[int, Visible]:
        """A reading of the log clock for one fetch, and what is visible at it. Raises ClockBehind, StoreClosed."""
        self._owned()
        with self._lock:
            return self._clock.due(), Visible(self._segments, self._visible)

    def usable(self) -> None:
        """Raises StoreClosed, StoreForked or PartitionPoisoned where nothing can be appended any more."""
        self._owned()
        if self._poison is not None:
            raise PartitionPoisoned(f"the disk failed ({self._poison}); close and reopen the store", path=self.path)

    def begin(self, end_offset: int) -> int:
        """The stamp of an append up to `end_offset`, in flight from now on."""
        with self._lock:
            self.usable()
            return self._clock.stamp(end_offset)

    def withdraw(self) -> None:
        """The append begun last failed, and left nothing behind."""
        with self._lock:
            self._clock.withdrawn()
            self.withdrawals += 1
        with self._changed:  # a fetch may have been held back by it
            self._changed.notify_all()

    def wrote(self, end: End) -> None:
        """An append reached the operating system."""
        with self._lock:
            self._written = end
        if self._durability.kind == "os":
            self._show(end)

    def committed(self, offset: int) -> None:
        """Return once everything below `offset` is safe under the durability. Raises PartitionPoisoned."""
        if self._durability.kind == "always" and self._visible.offset < offset:
            with self.sync_lock:
                if self._visible.offset < offset:
                    self.sync_held()

    def sync(self) -> None:
        """Make all that is written durable, and so visible."""
        with self.sync_lock:
            self.sync_held()

    def sync_if_behind(self) -> None:
        """`sync`, where something is written that is not visible yet."""
        if self._visible.offset < self._written.offset and self._poison is None and not self._closed:
            self.sync()

    def sync_held(self) -> None:
        """`sync` for a caller that holds the sync lock."""
        self.usable()
        end = self._written
        try:
            end.active.sync()
        except OSError as error:
            self.poison(error)
            self.usable()
        self._show(end)

    def switch(self, sealed: tuple[SealedSegment, ...], end: End) -> None:
        """Readers see these segments from now on; everything up to `end` is durable."""
        with self._lock:
            self._segments = (*sealed, end.active)
            self._written = self._visible = end

    def retain(self, sealed: tuple[SealedSegment, ...]) -> None:
        """Readers find only these sealed segments from now on."""
        with self._lock:
            self._segments = (*sealed, self._written.active)

    def poison(self, error: BaseException) -> None:
        """Nobody knows what is on disk: refuse appends until a reopen has looked."""
        with self._lock:
            self._poison = self._poison or error
        logger.error("%s: poisoned until it is reopened: %s", self.path, error)

    @contextlib.contextmanager
    def poisoning(self) -> Iterator[None]:
        """What fails inside, but for lack of room, leaves a disk that nobody knows. Raises PartitionPoisoned."""
        try:
            yield
        except AfterlogError:
            raise
        except OSError as error:
            self.poison(error)
            self.usable()

    def make_delivered_durable(self) -> None:
        """Before a position is: under `os` readers see records that a power cut may take. Raises as `usable` does."""
        self.usable()
        if self._durability.kind == "os":
            self.sync()

    def close(self) -> None:
        with self.sync_lock, self._lock:
            self._closed = True
            self._written.active.close()
        with self._changed:
            self._changed.notify_all()

    def check(self) -> None:
        """Prove the invariants."""
        with self._lock:
            assert self._visible.offset <= self._written.offset
            assert self._visible.position <= self._written.position
            assert self._written.active is self._segments[-1] is self._visible.active
            self._clock.check()

    def _show(self, end: End) -> None:
        with self._lock:
            if end.offset > self._visible.offset and end.active is self._written.active:
                self._visible = end
            self._clock.landed(self._visible.offset)
        with self._changed:
            self._changed.notify_all()

    def _owned(self) -> None:
        if self._closed:
            raise StoreClosed("the store is closed; open it again with afterlog.open(path)")
        if process_id() != self._owner:
            raise StoreForked("this is a forked child, the store belongs to its parent: open stores after the fork")
