"""The journal of one subscription in one partition: events are appended, and now and then it is begun anew.

    journal-…07   SNAPSHOT | LEASED | ACKED | LEASED | RETURNED …    longer than LIMIT_BYTES and than its snapshot:
    journal-…08   SNAPSHOT                                           published, and only then …07 goes

So it does not grow with the number of nacks, and a restart reads no more than a snapshot, and as much again or 256
KiB. The format is drawn in `frames.py`.

*Acks ahead of the log.* A frame says how far the log was visible when it was written. Under durability `os` a power cut
may keep the journal and lose the end of the log; what is appended then takes its place in delivery order, and an ack of
the lost would be an ack of the new. So replay stops at the first frame that has seen more of the log than there is: all
behind it is given up, which `os` permits, and nothing is skipped. A snapshot is published only after the log was
synced, so it never has seen too much. Under `always` and `interval` readers only see what is synced, and nothing is
ever given up.

Every opening begins a journal: what was cut, or given up, is gone for good before anything new is promised.

*Interruptions.* `written` is one pointer, swapped after the write that it tells of, or behind the new journal. What
lies behind it was never told to anybody: `rollback` cuts it, and a journal that was begun and not swapped to goes.

Invariants (`check`): all below `safe` is synced; `safe <= written`. How it is synced, and poisoned, is told by
`afterlog.log.commit`.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

from afterlog.base.config import Durability
from afterlog.base.errors import StorageFull, SubscriptionPoisoned
from afterlog.base.files import Files, publishing
from afterlog.base.names import journal_file, parse_journal_file
from afterlog.log.commit import Commit
from afterlog.subscription.events import Closed, Event, Kind, encode
from afterlog.subscription.frames import encode_acked_one, encode_frame, encode_leased_one

LIMIT_BYTES = 256 << 10
"""A journal is begun anew when what was appended is more than this, and more than its snapshot. Larger: rarer, longer
restarts."""


ROOM_BYTES = 256
"""Room for a frame of one record."""


class JournalPosition(NamedTuple):
    """A place in all journals that a subscription ever has: of which number, and behind which byte."""

    number: int
    position: int


class Journal:
    """Open for appending. `append` and `begin_anew` by one thread at a time, the rest by any."""

    def __init__(
        self, files: Files, folder: Path, durability: Durability, number: int, snapshot: bytes, log_end_offset: int
    ) -> None:
        """Begin journal `number` with a snapshot of when the log, which is synced, ended there; all others go."""
        self.path = folder / journal_file(number)
        self.commit = Commit(self, self.path, durability, SubscriptionPoisoned)
        self._files = files
        self._folder = folder
        self._written: JournalPosition
        self._successor: Path | None = None
        """What was begun to go on in, and could not be, for lack of descriptors: it may be there."""
        self._begin(number, snapshot, log_end_offset)
        for other in numbers(files, folder):
            if other != number:
                self._unlink(other)

    @property
    def written(self) -> JournalPosition:
        """After the last event."""
        return self._written

    @property
    def number(self) -> int:
        return self._written.number

    @property
    def size(self) -> int:
        """In bytes, as far as it is believed."""
        return self._written.position

    @property
    def safe(self) -> JournalPosition:
        return self._safe

    def make_safe(self) -> None:
        written = self.written
        self._file.sync()
        self._safe = written

    @property
    def overgrown(self) -> bool:
        """Whether it is time to begin anew."""
        return self._written.position > self._limit_bytes

    @property
    def has_room(self) -> bool:
        """Whether that will not be so behind the next frame of one record."""
        return self._written.position + ROOM_BYTES <= self._limit_bytes

    def append(self, event: Event, log_end_offset: int) -> None:
        """Write an event. Raises StorageFull, OutOfResources, with nothing written, or SubscriptionPoisoned."""
        number, size, durable = self._place()
        kind, body = encode(event)
        frame = encode_frame(number, size, kind, body, log_end_offset=log_end_offset, durable=durable)
        self._append(frame, number, size)

    def append_leased_one(self, upto: int, delivery_offset: int, log_end_offset: int) -> None:
        """`append` of Leased, of one offset, read up to `upto`."""
        number, size, durable = self._place()
        frame = encode_leased_one(number, size, upto, delivery_offset, log_end_offset, durable)
        self._append(frame, number, size)

    def append_acked_one(self, delivery_offset: int, log_end_offset: int) -> None:
        """`append` of Acked, of one offset."""
        number, size, durable = self._place()
        self._append(encode_acked_one(number, size, delivery_offset, log_end_offset, durable), number, size)

    def _place(self) -> tuple[int, int, int]:
        """Where the next frame goes: the journal's number, the position in it, and how much of it is durable."""
        self.commit.usable()
        if self._successor is not None:
            self._remove_successor()
        number, size = self._written
        safe_number, safe = self._safe
        return number, size, safe if safe_number == number else 0

    def _append(self, frame: bytes, number: int, size: int) -> None:
        try:
            try:
                self._file.append((frame,))
            except BaseException:
                self._file.truncate(size)
                raise
        except OSError as error:
            self.commit.failed(error)
        self._written = JournalPosition(number, size + len(frame))

    def postpone(self) -> None:
        """Where it cannot begin anew now, it is overgrown again only after as much again."""
        self._limit_bytes += LIMIT_BYTES

    def begin_anew(self, snapshot: bytes, log_end_offset: int) -> None:
        """Go on in a new journal, and remove this one. StorageFull, OutOfResources: go on in this one."""
        self.commit.usable()
        with self.commit.sync_lock:
            old, number = self._file, self.number
            self._begin(number + 1, snapshot, log_end_offset)
            old.close()
            self._unlink(number)

    def rollback(self) -> None:
        """Cut what an interrupted call left behind `written`. Raises SubscriptionPoisoned."""
        self.commit.usable()
        with self.commit.sync_lock, self.commit.poisoning():
            for other in numbers(self._files, self._folder):
                if other > self.number:
                    self._files.unlink(self._folder / journal_file(other))
                    self._files.sync_folder(self._folder)
            self.path = self._folder / journal_file(self.number)
            self._file = self._files.open(self.path)
            self._file.truncate(self.size)

    def seal(self, log_end_offset: int) -> None:
        """Make everything durable, and prove that to who reads it next."""
        self.commit.sync()
        self.append(Closed(), log_end_offset)

    def close(self) -> None:
        self.commit.close()
        self._file.close()

    def check(self) -> None:
        """AssertionError where an invariant does not hold."""
        assert self.safe <= self.written
        assert self.commit.closed or self._file.size() == self.size

    def _begin(self, number: int, snapshot: bytes, log_end_offset: int) -> None:
        path = self._folder / journal_file(number)
        frame = encode_frame(number, 0, Kind.SNAPSHOT, snapshot, log_end_offset=log_end_offset, durable=0)
        # Once the name may be there, only a reopen can tell which journal counts. StorageFull comes before that; where
        # there was no descriptor, both say the same until something is written to this one.
        with self.commit.poisoning():
            self._successor = path
            try:
                with publishing(self._files, path) as file:
                    file.append([frame])
                self._file = self._files.open(path)
            except StorageFull:
                self._successor = None
                raise
        self._successor = None
        size = len(frame)
        self.path, self._limit_bytes = path, size + max(LIMIT_BYTES, size)
        self._written = self._safe = JournalPosition(number, size)

    def _remove_successor(self) -> None:
        """Before anything is written that a successor would not know of, which was begun and may have its name."""
        assert self._successor is not None
        with self.commit.sync_lock, self.commit.poisoning():
            with contextlib.suppress(FileNotFoundError):
                self._files.unlink(self._successor)
            self._files.sync_folder(self._folder)
            self._successor = None

    def _unlink(self, number: int) -> None:
        with contextlib.suppress(OSError):  # the next opening does it; until then the newest counts
            self._files.unlink(self._folder / journal_file(number))


def numbers(files: Files, folder: Path) -> list[int]:
    """The journals in a folder, ascending; none where there is no folder."""
    try:
        names = files.names(folder)
    except FileNotFoundError:
        return []
    return sorted(number for name in names if (number := parse_journal_file(name)) is not None)
