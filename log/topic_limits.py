"""The limits of a topic: how much a partition may hold before it takes no more.

    append ──> max_pending: records that are not due yet, without those that are cancelled ──┬── below ──> goes on
           └─> max_bytes: logs on the local disk ────────────────────────────────────────────┴── else  ──> TopicFull

Asked before anything is written, and without a lock: an append that begins below a limit is taken as a whole, and so
are those that begin with it. What replaces a pending record is refused, too, where the limit is reached. What is due at
once is never pending.
"""

from __future__ import annotations

from afterlog.base.clock import INT64_MAX
from afterlog.base.errors import TopicFull
from afterlog.index.entries import Key
from afterlog.log.checkpoints import CheckpointFile, SealedMark
from afterlog.log.context import LogContext
from afterlog.log.version import VersionSet


class TopicLimits:
    """Of one partition. Thread-safe."""

    def __init__(self, context: LogContext, checkpoints: CheckpointFile, versions: VersionSet) -> None:
        self._context = context
        self._checkpoints = checkpoints
        self._versions = versions
        self._due = 0
        """Of all records, or more of them by now, these are due."""
        self._sealed: tuple[tuple[SealedMark, ...], int] = ((), 0)
        """The rows of sealed segments, and their bytes here. Not the segments: who holds one holds its files."""

    def check(self, deliver_after: int) -> None:
        """Raises TopicFull where no record of that time is taken."""
        settings = self._context.settings
        most, name = settings.max_pending, self._context.folder.name
        is_pending = most is not None and deliver_after > self._context.now_ms()
        if most is not None and is_pending and (pending := self._pending(most)) >= most:
            raise TopicFull(
                f"{name}: {pending} records are pending, and its topic's max_pending is {most}: wait until some are "
                "due, cancel some, or raise it"
            )
        most = settings.max_bytes
        if most is not None and (held := self.held_bytes()) >= most:
            raise TopicFull(
                f"{name}: its logs hold {held} bytes, and its topic's max_bytes is {most}: purge it, give it a "
                "retention, or raise it"
            )

    def _pending(self, enough: int) -> int:
        """How many are not due yet; more than that, where it is fewer than `enough` anyway."""
        version = self._versions.current
        pending = version.written.offset - self._due
        if pending >= enough:
            now = Key(self._context.now_ms(), INT64_MAX)
            self._due = version.delayed_index.rank(now)
            hidden = version.hidden
            pending = version.written.offset - self._due - (hidden.count - hidden.rank(now))
        return pending

    def held_bytes(self) -> int:
        """Of its logs, on the local disk."""
        known = self._checkpoints.current.sealed
        sealed, size = self._sealed
        if sealed is not known:
            size = sum(mark.log_bytes for mark in known if mark.local)
            self._sealed = known, size
        return size + self._versions.current.written.position
