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

Invariants (`check`): all below `durable` is synced; `durable <= size`; after a failed sync, or a rollback that failed,
nothing is written or synced again: poisoned.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from afterlog.config import Durability
from afterlog.errors import AfterlogError, SubscriptionPoisoned
from afterlog.files import Files, publishing
from afterlog.names import journal_file, parse_journal_file
from afterlog.subscription.events import Closed, Event, Kind, encode
from afterlog.subscription.frames import encode_frame

logger = logging.getLogger("afterlog.subscription")

LIMIT_BYTES = 256 << 10
"""A journal is begun anew when what was appended is more than this, and more than its snapshot. Larger: rarer, longer
restarts."""


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
        self._files = files
        self._folder = folder
        self._durability = durability
        self._poison: BaseException | None = None
        self._closed = False
        self._sync_lock = threading.Lock()
        self._begin(number, snapshot, log_end_offset)
        for other in numbers(files, folder):
            if other != number:
                self._unlink(other)

    @property
    def end(self) -> JournalPosition:
        """Behind the last event."""
        return JournalPosition(self.number, self.size)

    @property
    def poisoned(self) -> bool:
        return self._poison is not None

    @property
    def overgrown(self) -> bool:
        """Whether it is time to begin anew."""
        return self.size > self._limit_bytes

    def append(self, event: Event, log_end_offset: int) -> None:
        """Write an event. Raises StorageFull, with nothing written, or SubscriptionPoisoned."""
        self.usable()
        kind, body = encode(event)
        frame = encode_frame(
            self.number, self.size, kind, body, log_end_offset=log_end_offset, durable=self._durable.position
        )
        with self._poisoning():
            try:
                self._file.append(frame)
            except BaseException:
                self._file.truncate(self.size)
                raise
        self.size += len(frame[0]) + len(body)

    def committed(self, end: JournalPosition) -> None:
        """Return once everything before `end` is safe under the durability: one sync for all who wait."""
        if self._durability.kind == "always" and self._durable < end:
            with self._sync_lock:
                if self._durable < end:
                    self._sync_held()

    def sync(self) -> None:
        """Make all that was appended durable."""
        with self._sync_lock:
            self._sync_held()

    def sync_if_behind(self) -> None:
        """`sync`, where something is not durable yet: what the thread behind `interval` calls."""
        if self._durable < self.end and self._poison is None and not self._closed:
            self.sync()

    def postpone(self) -> None:
        """Where it cannot begin anew now, it is overgrown again only after as much again."""
        self._limit_bytes += LIMIT_BYTES

    def begin_anew(self, snapshot: bytes, log_end_offset: int) -> None:
        """Go on in a new journal, and remove this one. Where it raises StorageFull, go on in this one."""
        self.usable()
        with self._sync_lock:
            old, number = self._file, self.number
            self._begin(number + 1, snapshot, log_end_offset)
            old.close()
            self._unlink(number)

    def usable(self) -> None:
        """Raises SubscriptionPoisoned where nothing can be written any more."""
        if self._poison is not None:
            raise SubscriptionPoisoned(f"its disk failed ({self._poison}); close and reopen the store", path=self.path)

    def seal(self, log_end_offset: int) -> None:
        """Make everything durable, and prove that to who reads it next."""
        self.sync()
        self.append(Closed(), log_end_offset)

    def close(self) -> None:
        with self._sync_lock:
            self._closed = True
            self._file.close()

    def check(self) -> None:
        """AssertionError where an invariant does not hold."""
        assert self._durable <= self.end
        assert self._closed or self._file.size() == self.size

    def _begin(self, number: int, snapshot: bytes, log_end_offset: int) -> None:
        path = self._folder / journal_file(number)
        frame = encode_frame(number, 0, Kind.SNAPSHOT, snapshot, log_end_offset=log_end_offset, durable=0)
        # Once the name may be there, only a reopen can tell which journal counts. StorageFull comes before that.
        with self._poisoning():
            with publishing(self._files, path) as file:
                file.append(frame)
            self._file = self._files.open(path)
        self.path, self.number = path, number
        self.size = len(frame[0]) + len(snapshot)
        self._limit_bytes = self.size + max(LIMIT_BYTES, self.size)
        self._durable = self.end

    def _unlink(self, number: int) -> None:
        with contextlib.suppress(OSError):  # the next opening does it; until then the newest counts
            self._files.unlink(self._folder / journal_file(number))

    def _sync_held(self) -> None:
        self.usable()
        end = self.end
        if not self._closed:
            with self._poisoning():
                self._file.sync()
            self._durable = end

    @contextlib.contextmanager
    def _poisoning(self) -> Iterator[None]:
        """What fails inside, but for lack of room, leaves a disk that nobody knows. Raises SubscriptionPoisoned."""
        try:
            yield
        except AfterlogError:
            raise
        except OSError as error:
            self._poison = self._poison or error
            logger.error("%s: poisoned until it is reopened: %s", self.path, error)
            self.usable()


def numbers(files: Files, folder: Path) -> list[int]:
    """The journals in a folder, ascending; none where there is no folder."""
    try:
        names = files.names(folder)
    except FileNotFoundError:
        return []
    return sorted(number for name in names if (number := parse_journal_file(name)) is not None)
