"""One version of a partition: all that it consists of at one instant, as one immutable value (LevelDB's word).

    append: entries ──> file, index ──┐                       ┌──> pinned by a fetch, with one reading of the clock
    edit:   files ──> checkpoints ────┴──> one swap ──> current ──> pinned by a look-up, an upload, …
                                                              └──> in its place the next one

A version is pinned by being held: Python counts who does. Nothing that a version names changes while it is held. A
sealed segment and a run are immutable; of the active segment and the mutable bucket, which grow, a version tells how
far they count. Files go when no version from now on names them, and the last one that did is gone (`Obsolete`).

What an operation changes becomes true by one swap after its last write, and by nothing else. An operation that did not
get there has changed nothing that a version tells (`PartitionLog` heals what it left behind).

*No update is lost.* Between the version that an operation began with and its swap others swap: a sync makes visible
what was written before. So a swap is a function of the version of now, under the one lock: it says what it changes, and
all else stays as it is by then. Of what it made out of an older version it says which that was, and it is refused where
somebody has put another value there meanwhile: none can who holds the append lock, as all must that make one.

Invariants (`check`):

1. visible <= written; both only grow. Bytes below the written end never change, so readers need no lock to read them.
2. An append is in flight under the clock from its stamp until it is visible: no fetch decides "due" above its stamp.
3. What control batches below the visible end say is hidden; what waits to be (`landing`) lies behind it. So are the
   ranges that all readers have acked, as the index has them.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from afterlog.index.cancel_index import Cancelled
from afterlog.index.delayed_index import DelayedIndex
from afterlog.index.entries import Key
from afterlog.index.hidden_keys import HiddenKeys
from afterlog.index.origin_index import OriginIndex
from afterlog.index.producer_states import ProducerStates
from afterlog.index.unique_keys import UniqueKeyIndex
from afterlog.log.cancellation import Cancellations
from afterlog.log.checkpoints import LogStart
from afterlog.log.log_clock import LogClock
from afterlog.log.notifier import NEVER_MS, Notifier
from afterlog.log.segment import ActiveSegment, SealedSegment, Segment


class End(NamedTuple):
    """An end of the log: the next offset, and the byte after the last entry in the active segment."""

    offset: int
    position: int


class Visible(NamedTuple):
    """Segments in offset order, and how far the last of them may be read."""

    segments: tuple[Segment, ...]
    end: End


class Version(NamedTuple):
    """A partition at one instant."""

    sealed: tuple[SealedSegment, ...]
    """In offset order."""
    active: ActiveSegment
    delayed_index: DelayedIndex
    """Of all that is written; of a FIFO topic empty."""
    log_start: LogStart
    """Where delivery order begins, as retention left it."""
    cancellations: Cancellations
    written: End
    visible: End
    """Safe under the durability: what may be delivered."""
    unique_keys: UniqueKeyIndex | None = None
    """Of all that is written; None where nobody ever sent with a unique key."""
    producers: ProducerStates | None = None
    """Of all that is written; None where no producer ever numbered anything."""
    origins: OriginIndex | None = None
    """Of all that is written; None where nothing was ever replicated to it."""

    @property
    def segments(self) -> tuple[Segment, ...]:
        return (*self.sealed, self.active)

    @property
    def hidden(self) -> HiddenKeys:
        """What is cancelled, as of what is visible: it keeps its delivery offsets and is stepped over."""
        return self.cancellations.hidden

    @property
    def log_start_offset(self) -> int:
        """Offset of the first record that is still in the log."""
        return self.segments[0].base_offset

    def readable(self) -> Visible:
        """What a reader may touch."""
        return Visible(self.segments, self.visible)

    def all_written(self) -> Visible:
        """The same, with what is written and not yet visible: to look up, not to deliver."""
        return Visible(self.segments, self.written)


class VersionSet:
    """The current version of a partition, and the clock by which it is read. Thread-safe; its lock covers no I/O."""

    def __init__(self, version: Version, clock: LogClock) -> None:
        self.current = version
        """Of now. One pointer, put in place of another under the lock."""
        self.notifier = Notifier()
        """Tells when the visible end moves, and when a fetch is held back no longer."""
        self._clock = clock
        self._coming_ms = NEVER_MS
        """Nothing that is written and not visible yet is due before, nor anything that was `held_back`."""
        self._lock = threading.Lock()

    # What `Commit` asks.

    @property
    def written(self) -> int:
        return self.current.written.offset

    @property
    def safe(self) -> int:
        return self.current.visible.offset

    def make_safe(self) -> None:
        version = self.current
        version.active.sync()
        self.show(version)

    # What readers and the log ask.

    @property
    def frontier_ms(self) -> int:
        """The largest reading of the log clock that decided "due" so far."""
        return self._clock.used_ms

    def due_reading(self) -> tuple[int, Version]:
        """A reading of the log clock for one fetch, and the version at it. Raises ClockBehind."""
        with self._lock:
            return self._clock.due(), self.current

    def settled(self) -> tuple[Key, Version]:
        """The key up to which delivery order is final, whatever is appended from now on, and the version at it."""
        with self._lock:
            return Key(self._clock.settled_ms, self.current.visible.offset - 1), self.current

    def held_back(self, ms: int, told_ms: int) -> bool:
        """Whether an append in flight holds back what is due at `ms`: then its end notifies, for `told_ms`."""
        with self._lock:
            held = self._clock.holds_back(ms)
            if held:
                self._coming_ms = min(self._coming_ms, told_ms)
        return held

    def begin(self, end_offset: int) -> int:
        """The stamp of an append up to `end_offset`, in flight from now on."""
        with self._lock:
            return self._clock.stamp(end_offset)

    def stamp_reading(self) -> int:
        """What a stamp would be now, and none is below from now on."""
        with self._lock:
            return self._clock.reading()

    def withdraw(self) -> None:
        """The append begun last failed, and left nothing behind."""
        with self._lock:
            self._clock.withdrawn()
        self.notifier.notify()  # a fetch may have been held back by it

    def wrote(self, end: End, cancelled: Cancelled | None, due_ms: int, *, safe: bool) -> None:
        """The swap of an append: what is written goes up to `end`, and nothing of what came is due before `due_ms`.

        cancelled: what its control batch says, where it is one. safe: by the durability: it may be seen at once.
        """
        with self._lock:
            if due_ms < self._coming_ms:
                self._coming_ms = due_ms
            sealed, active, delayed_index, log_start, cancellations, _, visible, keys, producers, origins = self.current
            if cancelled is not None:
                cancellations = cancellations.wrote(cancelled)
            version = Version(
                sealed, active, delayed_index, log_start, cancellations, end, visible, keys, producers, origins
            )
            self.current = version
            told_ms = self._show(version) if safe else NEVER_MS
        if safe:
            self.notifier.notify(told_ms)

    def swap(self, since: Version, **parts: object) -> None:
        """Another version from now on, with these parts, which were made of those of the version `since`.

        What is cancelled goes by itself, as far as it lies before the log start, or in a range that all readers have
        acked. Raises RuntimeError where one of the parts is not what it was then: what others made true meanwhile would
        be lost.
        """
        with self._lock:
            current = self.current
            changed = [name for name in parts if getattr(current, name) is not getattr(since, name)]
            if changed:
                raise RuntimeError(f"{', '.join(changed)} of the version: changed by another operation meanwhile")
            current = current._replace(**parts)  # type: ignore[arg-type]
            cancellations = current.cancellations
            if "log_start" in parts:
                cancellations = cancellations.behind(current.log_start.key)
            if cancellations.hidden.acked is not current.delayed_index.acked:
                cancellations = cancellations.with_acked(current.delayed_index.acked)
            if cancellations is not current.cancellations:
                current = current._replace(cancellations=cancellations)
            self.current = current

    def show(self, version: Version) -> None:
        """What was written in that version may be seen from now on."""
        with self._lock:
            told_ms = self._show(version)
        self.notifier.notify(told_ms)

    def _show(self, version: Version) -> int:
        """Under the lock; from when on there may be something for readers."""
        current, end = self.current, version.written
        if end.offset > current.visible.offset and version.active is current.active:
            cancellations = current.cancellations
            if cancellations.landing:
                cancellations = cancellations.landed(end.offset)
            sealed, active, delayed_index, log_start, _, written, _, keys, producers, origins = current
            current = Version(
                sealed, active, delayed_index, log_start, cancellations, written, end, keys, producers, origins
            )
            self.current = current
        self._clock.landed(current.visible.offset)
        coming_ms = self._coming_ms
        if current.visible.offset == current.written.offset:
            self._coming_ms = NEVER_MS
        return coming_ms if coming_ms > self._clock.used_ms else 0

    def begin_anew(self, version: Version) -> None:
        """Nothing is in flight any more, and all that is written is visible."""
        with self._lock:
            self.current = version
            self._clock.cleared()
            self._coming_ms = NEVER_MS
        self.notifier.notify()

    def check(self) -> None:
        """Prove the invariants."""
        with self._lock:
            version = self.current
            assert version.visible.offset <= version.written.offset
            assert version.visible.position <= version.written.position
            assert all(int(each.control[-1]) >= version.visible.offset for each in version.cancellations.landing)
            assert version.cancellations.hidden.acked is version.delayed_index.acked
            self._clock.check()
