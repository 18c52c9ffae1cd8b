"""Group commit: makes appends durable, once for all who wait, and poisons the log when a disk fails.

    written ──fdatasync, shared by all who wait──> safe
        └──────────── DiskFailed ──> poisoned: nothing is written or synced again until a reopen has looked

Logs and the journals of subscriptions commit by the same rules; each is a `Written`.

Who waits does so in a round (docs/decisions/0038). The first of a round leads it: it waits for the sync before, then
for those that were in the round before and are on their way back, closes the round, and syncs once for all in it.

    round 7   A B C D   synced ──> all return, and send again ─┐
    round 8   E                    E leads: waits for A B C D <┘ ──> closed, synced: 5 records
    round 9                        open from then on

A round is left by its lock: the leader holds it to the end, and each of the others gets it in turn and looks whether
its part is safe. Where the leader was interrupted it is not, and who gets the lock leads. So nobody has to clean up.

Invariant: after a failed sync, or a write of which nobody knows how far it got, nothing is written or synced again.
What was safe stays readable.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn, Protocol

from afterlog.base.clock import Clock, SystemClock
from afterlog.base.config import Durability
from afterlog.base.errors import AfterlogError, DiskFailed, StorageError, StoreClosed, TopicDeleted
from afterlog.base.files import PROCESS

logger = logging.getLogger("afterlog.log")

PATIENCE = 0.5
"""How long the leader of a round waits while nobody comes back, in durations of the last sync. Larger: fewer syncs
where threads are slow, and a longer wait for the one that went away for good, which is waited for once."""


class Written(Protocol):
    """What grows at its end. Ends are compared with each other and with nothing else."""

    @property
    def written(self) -> Any:
        """The end of what the operating system has."""

    @property
    def safe(self) -> Any:
        """The end of what is safe under the durability."""

    def make_safe(self) -> None:
        """Sync what is written when it is called; then `safe` tells so. OSError."""


class Round:
    """Who waits for one sync. What it knows of threads is a guess that saves syncs: nothing is decided by it."""

    __slots__ = ("_all_back", "_away", "_joined", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Of who leads, and then of each in turn who finds that it is over."""
        self._away = set[int]()
        """The threads that joined, and have not joined another since, of whatever log."""
        self._all_back = threading.Lock()
        """Held until all are. A lock, and no queue: CPython's, told to wait for so long, waits for ever where a signal
        strikes its thread as the time is over."""
        self._all_back.acquire()
        self._joined = 0

    @property
    def shared(self) -> bool:
        """Whether more than one has joined."""
        return self._joined > 1

    def join(self) -> None:
        """Of the calling thread, which wants its lock next."""
        thread, before = threading.get_ident(), _HERE.joined
        if before is not None:
            before._away.discard(thread)
            if not before._away:
                try:  # on the way of every append
                    before._all_back.release()
                except RuntimeError:  # it was before, and nobody has looked
                    pass
        self._away.add(thread)
        self._joined += 1
        _HERE.joined = self

    def gather(self, patience_s: float) -> None:
        """When it is over: return when all have come back, to wait somewhere, or nobody did for so long."""
        left = len(self._away)
        while left:
            if not self._all_back.acquire(True, patience_s) and left == len(self._away):
                return
            left = len(self._away)


class _Here(threading.local):
    """Of each thread."""

    joined: Round | None = None
    """The last one, of whatever log."""


_HERE = _Here()


class Commit:
    """Group commit of one `Written`, its poison and its end. Thread-safe."""

    def __init__(
        self,
        of: Written,
        path: Path,
        durability: Durability,
        poisoned: type[StorageError],
        clock: Clock | None = None,
    ) -> None:
        """path: what errors call it; poisoned: the error that says so."""
        self.path = path
        self.sync_lock = threading.Lock()
        """Covers one fdatasync, and the wait for those that share it. Taken behind the lock of a round."""
        self._round = Round()
        """The one that can be joined."""
        self._before = Round()
        """The one before."""
        self._clock = clock or SystemClock()
        self._sync_s = 0.0
        """How long the last sync took."""
        self._of = of
        self._durability = durability
        self._error = poisoned
        self._poison: str | None = None
        """What failed, in words: the error itself would hold its frames, and with them their locks."""
        self.closed = False
        self.deleted = False
        """Closed, and gone for good: who has it still is told so."""
        self._owner = PROCESS.id

    @property
    def poisoned(self) -> bool:
        return self._poison is not None

    def committed(self, end: Any) -> None:
        """Return once everything below `end` is safe under the durability. Raises as `usable` does."""
        if self._durability.kind == "always" and self._of.safe < end:
            waiting = self._round
            waiting.join()
            with waiting.lock:
                if self._of.safe < end:
                    self._lead(waiting, end)

    def _lead(self, waiting: Round, end: Any) -> None:
        """Sync for all in a round, whose lock the caller holds."""
        crowded = self._before.shared or self.sync_lock.locked()  # threads that take turns wait for nobody
        with self.sync_lock:
            if self._of.safe < end:
                if crowded:
                    self._before.gather(self._sync_s * PATIENCE)
                self._before, self._round = waiting, Round()
                begun_s = self._clock.monotonic_s()
                self.sync_held()
                self._sync_s = self._clock.monotonic_s() - begun_s

    def sync(self) -> None:
        """Make all that is written durable, and so visible, whatever the durability."""
        with self.sync_lock:
            self.sync_held()

    def sync_if_behind(self) -> None:
        """`sync`, where something is written that is not safe yet: for the thread behind `Durability.interval`."""
        if self._of.safe < self._of.written and self._poison is None and not self.closed:
            self.sync()

    def sync_if_forsaken(self) -> None:
        """`sync` under `always`, where something is written and nobody syncs it: who waited for it was interrupted, or
        has not come to it yet, and finds it done. For readers: what fails is told to who writes.
        """
        if (
            self._durability.kind == "always"
            and self._of.safe < self._of.written
            and self._poison is None
            and not self.sync_lock.locked()
        ):
            with contextlib.suppress(OSError):
                self.sync()

    def sync_held(self) -> None:
        """`sync` for a caller that holds the sync lock."""
        self.usable()
        try:
            self._of.make_safe()
        except OSError as error:
            self.failed(error)

    def make_delivered_durable(self) -> None:
        """Before a position is: under `os` readers see records that a power cut may take. Raises as `usable` does."""
        self.usable()
        if self._durability.kind == "os":
            self.sync()

    def owned(self) -> None:
        """Raises StoreClosed, StoreForked where nothing can be read any more."""
        if self.deleted:
            raise TopicDeleted(f"the topic of {self.path.name} was deleted")
        if self.closed:
            raise StoreClosed("the store is closed; open it again with afterlog.open(path)")
        PROCESS.check_is(self._owner)

    def usable(self) -> None:
        """Raises the same, or the error of what is poisoned, where nothing can be written any more."""
        if self.closed or self.deleted or PROCESS.id != self._owner:
            self.owned()
        if self._poison is not None:
            raise self._poisoned()

    def _poisoned(self) -> AfterlogError:
        return self._error(f"the disk failed ({self._poison}); close and reopen the store", path=self.path)

    def poison(self, error: BaseException) -> None:
        """Nobody knows what is on disk: refuse to write until a reopen has looked."""
        self._poison = self._poison or str(error) or repr(error)
        logger.error("%s: poisoned until it is reopened: %s", self.path, self._poison)

    @contextlib.contextmanager
    def poisoning(self) -> Iterator[None]:
        """What fails inside, but for lack of room, leaves a disk that nobody knows. Raises as `usable` does."""
        try:
            yield
        except OSError as error:
            self.failed(error)

    def failed(self, error: OSError) -> NoReturn:
        """A call to the disk did. Raises it where nobody need doubt the disk: there was no room, or no descriptor."""
        if isinstance(error, DiskFailed) or not isinstance(error, AfterlogError):
            self.poison(error)
            raise self._poisoned() from error  # also while it is closed
        raise error

    def close(self) -> None:
        """After the sync that is under way. Nothing is written or synced any more."""
        with self.sync_lock:
            self.closed = True


def sync_behind(commits: Iterable[Commit]) -> None:
    """What the thread behind `Durability.interval(ms)` does each time. What fails is poisoned; the others go on."""
    for commit in commits:
        try:
            commit.sync_if_behind()
        except (StoreClosed, TopicDeleted):
            pass  # since it was asked for, by who made it durable
        except AfterlogError as error:
            logger.error("%s: not synced: %s", commit.path, error)
