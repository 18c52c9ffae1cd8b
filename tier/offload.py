"""Offload of one partition: uploads, local retention and removals, between its log and object storage.

    sealed ──> upload ──> noted in the checkpoints ──> due as a whole, local retention ──> files gone, read from there
           ├── retention ──> noted in the checkpoints ──> manifest told ──> row and objects gone
           └── cleaning ──> noted in the checkpoints ──> what was written uploaded, and listed in its place

Each arrow may break, at any byte, and is followed anew the next time. A segment is uploaded and noted before its files
may go; that its attempt is listed is asked again just before they do. What retention removed from the log is removed
from the storage by the attempts that the checkpoints noted, so that nothing is that another log put there.

*Cleaned* segments (`afterlog.log.cleaning`) replace what is listed, until when the manifest goes on saying what it did:
what lies there is more than what is here, so that of the records that went those in rows that stand are not told of as
removed (`_facts`). What overlaps, directly or by way of others, is listed in one change. Where retention was first the
rows go as what is told of them changes.

The requests of a pass for the manifest. Every change starts from the one read (`Manifest.remembering`); where somebody
else was first it is read again:

    get             always: what is listed, what broke off, and what is told of the log
    2 put_if        attempts that were given up are ended; one, where only their objects are still to go
    2 put_if, get   of each segment that is uploaded (`afterlog.tier.upload`)
    put_if          if something else is told of the log than is so, or retention removed segments: their removal begins
    get             if local files are to go: asked just before
    put_if          if segments were removed: their rows go, behind their objects
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import NamedTuple

from afterlog.base.errors import CorruptFile, CorruptRemote, FileMissing
from afterlog.base.files import unused_name
from afterlog.log.checkpoints import Checkpoints, RemoteMark
from afterlog.log.facts import SegmentFacts
from afterlog.log.partition_log import PartitionLog
from afterlog.log.segment import SealedSegment
from afterlog.tier.log_facts import LogFacts
from afterlog.tier.manifest import Content, Manifest, Segments, moved
from afterlog.tier.remote_segment import RemoteSegment, SegmentFiles, SegmentState
from afterlog.tier.remove import end_attempts, leftovers, remove
from afterlog.tier.segment_files import segment_files
from afterlog.tier.upload import TellLog, upload, upload_instead, upload_replacing

LEFTOVER_MS = 3_600_000
"""An attempt that is not done after so long has been given up. Larger: what a crash left stays longer."""

logger = logging.getLogger("afterlog.tier")


@dataclass(frozen=True, slots=True, kw_only=True)
class Offloaded:
    """What one pass over a partition did, in segments."""

    uploaded: int
    freed: int
    """Whose local files went."""
    expired: int
    """That retention removed from the log."""
    removed: int
    """That went from object storage for that."""


class OffloadCounts(NamedTuple):
    """What all passes over a partition have done since it was opened."""

    copied_segments: int = 0
    copied_bytes: int = 0
    """Of all their files."""
    deleted_segments: int = 0
    """In object storage."""
    errors: int = 0
    """Passes that ended early."""


class Offloader:
    """Of one partition that is open. One pass at a time."""

    def __init__(self, log: PartitionLog, manifest: Manifest) -> None:
        self.log = log
        self.manifest = manifest
        self.counts = OffloadCounts()
        self._lock = threading.Lock()

    def offload(self, *, roll: bool = False) -> Offloaded:
        """All that there is to do now. Raises what the storage, the disk and `upload` do; what was done stays done.

        `roll`: seal what is being appended to first.

        A segment that is corrupt, here or as it was read back, is told of when all else is done.
        """
        with self._lock:
            try:
                if roll:
                    self.log.roll()
                with self.manifest.remembering():
                    return self._offload()
            except BaseException:
                self._count(errors=1)
                raise

    def wait(self) -> None:
        """Return when no pass is under way."""
        with self._lock:
            pass

    @property
    def lag(self) -> tuple[int, int]:
        """(segments, bytes) that are sealed and not uploaded."""
        left = [segment.size for segment in self.log.sealed if segment.mark.remote is None]
        return len(left), sum(left)

    def _offload(self) -> Offloaded:
        given_up_ms = self.log.context.now_ms() - LEFTOVER_MS
        end_attempts(self.manifest, *leftovers(self.manifest.known.segments, started_before_ms=given_up_ms))
        self._note_unlisted()
        uploaded, faults = self._upload()
        expired = self.log.enforce_retention()
        removals = frozenset(self.log.removals)
        self._tell(removals)
        self._end_replaced()
        freed = self.log.enforce_local_retention(self._listed)
        done = Offloaded(uploaded=uploaded, freed=freed, expired=expired, removed=self._remove(removals))
        for fault in faults:
            raise fault
        return done

    def _upload(self) -> tuple[int, list[CorruptFile | CorruptRemote]]:
        """Upload what is sealed: how many segments, and what is wrong with those that are not fit for it.

        Such a one holds up no other. A storage that is another log's, or does not answer, ends the pass.
        """
        uploaded, faults = 0, list[CorruptFile | CorruptRemote]()
        left = [segment for segment in self.log.sealed if segment.mark.remote is None]
        for segments, rows in _together(left, self._replaced()):
            if any(map(self._is_read, rows)):
                left = [segment for segment in left if segment not in segments]
                continue
            try:
                try:
                    self._upload_cleaned(segments, rows)
                except FileMissing:  # as in `_uploaded`
                    self._upload_cleaned(segments, rows)
            except (CorruptFile, CorruptRemote) as error:
                faults.append(error)
                left = [segment for segment in left if segment not in segments]
        for segment in left:
            try:
                # What a fresh machine does not find below the end that it is told is gone to it: told with the last.
                uploaded += self._uploaded(segment, self._facts if segment is left[-1] else None)
            except (CorruptFile, CorruptRemote) as error:
                faults.append(error)
        return uploaded, faults

    def _count(self, **more: int) -> None:
        self.counts = self.counts._replace(**{name: getattr(self.counts, name) + count for name, count in more.items()})

    def _note_unlisted(self) -> None:
        """Somebody may have taken a segment out of the manifest: what is here still is uploaded again."""
        listed = {row.attempt for row in self.manifest.known.listed}
        for segment in self.log.sealed:
            remote = segment.mark.remote
            if remote is not None and remote.attempt not in listed:
                where = "it is uploaded again" if remote.local else "its records cannot be read"
                logger.error("%s: no longer listed in %s; %s", segment.path, self.manifest.key, where)
                self.log.uploaded({segment.base_offset: None})

    def _replaced(self) -> list[RemoteSegment]:
        """The rows that list what was written anew since, and what retention removed beside it."""
        known = self.log.checkpoints.current
        over = {*known.replaced, *known.removals}
        return [row for row in self.manifest.known.listed if row.attempt in over] if known.replaced else []

    def _upload_cleaned(self, segments: Sequence[SealedSegment], rows: Sequence[RemoteSegment]) -> None:
        """Upload what was written anew in the place of these rows; `_uploaded` then finds it listed, and notes it.

        Where retention, or a merge, has been first with one of them nothing is done, and the next pass tries again.
        """
        context = self.log.context
        with contextlib.ExitStack() as held:
            try:
                named = {unused_name(): segment for segment in segments}
                files = {name: held.enter_context(self._files(segment, name)) for name, segment in named.items()}
                listed = upload_replacing(self.manifest, files, rows, now_ms=context.now_ms(), log=self._facts)
            except (FileNotFoundError, CorruptFile):
                if all(map(self._there, segments)):
                    raise
                return
        ours = [row for row in listed if row.attempt in files]
        self._count(
            copied_segments=len(ours), copied_bytes=sum(mark.size for row in ours for mark in row.files.values())
        )

    def _files(self, segment: SealedSegment, attempt: str) -> contextlib.AbstractContextManager[SegmentFiles]:
        context = self.log.context
        return segment_files(
            context.files,
            context.folder,
            segment.mark,
            config=context.config,
            delayed=self.log.delayed,
            attempt=attempt,
        )

    def _is_read(self, row: RemoteSegment) -> bool:
        """Whether retention has removed it, and somebody reads it still."""
        return row.attempt in self.log.checkpoints.current.removals and row.attempt not in self.log.removals

    def _end_replaced(self) -> None:
        """What is not listed any more has been replaced, or went: its objects go, and then it is forgotten."""
        listed = {row.attempt for row in self.manifest.known.listed}
        over = {attempt for attempt in self.log.checkpoints.current.replaced if attempt not in listed}
        if over:
            end_attempts(self.manifest, *(row for row in self.manifest.known.segments if row.attempt in over))
            self.log.removed(over)

    def _uploaded(self, segment: SealedSegment, facts: TellLog | None) -> bool:
        """Upload a segment and note it, and tell the facts with it; False where it is gone meanwhile.

        A merge may take the segment's own run from under it. The second time it is made from the log, which stays.
        """
        try:
            return self._uploaded_once(segment, facts)
        except FileMissing:
            return self._uploaded_once(segment, facts)

    def _uploaded_once(self, segment: SealedSegment, facts: TellLog | None) -> bool:
        """The same. FileNotFoundError where a file of it is gone, and the segment is not."""
        context, attempts = self.log.context, (unused_name(), unused_name())
        try:
            with self._files(segment, attempts[0]) as files:
                row = upload(self.manifest, files, attempt=attempts[0], now_ms=context.now_ms(), log=facts)
                if row.indexes != files.facts.indexes:  # ours were made anew
                    row = upload_instead(self.manifest, files, row, attempt=attempts[1], now_ms=context.now_ms())
        except (FileNotFoundError, CorruptFile):
            if self._there(segment):
                raise
            return False
        if row.attempt in attempts:
            self._count(copied_segments=1, copied_bytes=sum(mark.size for mark in row.files.values()))
        self.log.uploaded({segment.base_offset: RemoteMark(attempt=row.attempt, run=row.run)})
        if self._there(segment):
            return True
        if row.attempt in attempts:  # retention was first, and could not note what was not there yet
            remove(self.manifest, row)
        return False

    def _there(self, segment: SealedSegment) -> bool:
        """Whether retention has not taken it."""
        return any(each.path == segment.path for each in self.log.sealed)

    def _facts(self, rows: Segments) -> LogFacts:
        """What the log is like now, as far as it is told of where these are its rows."""
        self.log.read_clock()
        known = self.log.checkpoints.current
        facts = LogFacts.of(known, delayed=self.log.delayed)
        standing = [
            row
            for row in rows
            if row.state == SegmentState.COPY_FINISHED and row.attempt in known.replaced
            if row.last_key > known.log_start.key  # else a fresh machine takes it for removed
        ]
        held = sum(row.kept for row in standing) - sum(mark.kept for mark in known.sealed if _overlaps(mark, standing))
        return replace(
            facts,
            frontier_ms=max(self.log.frontier_ms, facts.frontier_ms),
            removed_records=facts.removed_records - held,
        )

    def _tell(self, removals: AbstractSet[str]) -> None:
        """Let the manifest say what the log is like now, where it says something else, and list no removed segment.

        That a segment is due is told before its local files go: a fresh machine must not take it for pending. That one
        was removed is told before its objects go.
        """
        known, sealed = self.log.checkpoints.current, [segment.mark for segment in self.log.sealed]

        def told(content: Content) -> Content:
            gone = {row.attempt for row in content.listed if not _overlaps(row, sealed)} & {*known.replaced}
            rows = moved(content.segments, removals | gone, SegmentState.COPY_FINISHED, SegmentState.DELETE_STARTED)
            facts = self._facts(rows)
            return content._replace(segments=rows, log=facts if _differs(content, facts, known) else content.log)

        if told(self.manifest.known) != self.manifest.known:
            self.manifest.change(told)

    def _listed(self) -> set[str]:
        """The attempts that are listed at this moment."""
        return {row.attempt for row in self.manifest.listed()}

    def _remove(self, removals: AbstractSet[str]) -> int:
        if removals:
            rows = [row for row in self.manifest.known.segments if row.attempt in removals]
            self._count(deleted_segments=len(end_attempts(self.manifest, *rows)))
            self.log.removed(removals)
        return len(removals)


def _overlaps(span: SegmentFacts, others: Iterable[SegmentFacts]) -> bool:
    return any(span.base_offset < other.end_offset and other.base_offset < span.end_offset for other in others)


def _together(
    segments: Sequence[SealedSegment], rows: Sequence[RemoteSegment]
) -> list[tuple[list[SealedSegment], list[RemoteSegment]]]:
    """What was written anew and the rows that it replaces, by what overlaps, directly or by way of others."""
    found: list[tuple[list[SealedSegment], list[RemoteSegment]]] = []
    spans = [(row.base_offset, row.end_offset, None, row) for row in rows]
    end_offset = -1
    for base, end, segment, row in sorted(
        [*spans, *((each.base_offset, each.end_offset, each, None) for each in segments)], key=lambda span: span[:2]
    ):
        if base >= end_offset:
            found.append(([], []))
        end_offset = max(end_offset, end)
        ours, replaced = found[-1]
        if segment is not None:
            ours.append(segment)
        if row is not None:
            replaced.append(row)
    return [(ours, replaced) for ours, replaced in found if ours and replaced]


def _differs(content: Content, facts: LogFacts, known: Checkpoints) -> bool:
    """Whether a fresh machine would be told something else: of what is in the log, or of which segments all is due."""
    told = content.log
    due_ms = [mark.max_deliver_after for mark in known.sealed if mark.max_deliver_after <= facts.frontier_ms]
    return (
        told is None
        or (told.end_offset, told.removed_records, told.log_start)
        != (facts.end_offset, facts.removed_records, facts.log_start)
        or told.frontier_ms < max(due_ms, default=0)
    )
