"""Restore: from the manifest of a partition to a folder that opens, on a machine that has nothing else.

    manifest ── rows, log ──> checkpoints: every segment in object storage, an empty active one behind them

Nothing is downloaded but the manifest, and a little of some runs where retention has removed records; opening the
folder then fetches the cancel indexes. What had not been uploaded is gone: the records of the segment that was being
appended to, and of those sealed since. Appends go on after the last offset that the manifest knows of. Offsets stay
what they were; delivery offsets do where nothing was lost that was due before what is there. Positions and
subscriptions are not in object storage.

Of a Kafka broker's log (docs/decisions/0032) what is listed now is all that there will ever be: the set is fixed here,
and with it every rank. Offsets that no record has, in gaps of the log or of its runs, are counted as if retention had
removed records: delivery order begins behind them.
"""

from __future__ import annotations

from collections.abc import Sequence

from afterlog.base.errors import CorruptRemote
from afterlog.index.delayed_index import DelayedIndex
from afterlog.log.checkpoints import ActiveMark, Checkpoints, FrontierLease, LogStart, Recovery, RemoteMark, SealedMark
from afterlog.log.context import LogContext
from afterlog.log.recovery import create_log
from afterlog.tier.log_facts import LogFacts
from afterlog.tier.manifest import Manifest
from afterlog.tier.remote_segment import RemoteSegment, SegmentState


def restore(context: LogContext, manifest: Manifest, *, partial: bool = False) -> None:
    """Make the partition's folder, durably, in the place of anything that is there. `context.remote` reads its runs.

    CorruptRemote: the manifest fails its checks, or segments are missing that retention did not remove. `partial`: then
    their records are gone for good, as if it had.
    """
    create_log(context, of_manifest(context, manifest, partial=partial))


def of_manifest(context: LogContext, manifest: Manifest, *, partial: bool) -> Checkpoints:
    """The checkpoints of the partition as the manifest knows it."""
    content = manifest.content()
    facts = content.log or LogFacts(end_offset=0, removed_records=0, log_start=LogStart(), frontier_ms=0, stamp_ms=0)
    listed = [row for row in content.segments if row.state == SegmentState.COPY_FINISHED]
    removed = [row for row in listed if _removed(row, facts, delayed=context.settings.delayed)]
    marks = [mark_in(context, row) for row in listed if row not in removed]
    base_offset = max(facts.end_offset, marks[-1].end_offset if marks else 0)
    held = sum(mark.records for mark in marks)
    if content.log is not None and marks and not partial:
        _check_complete(marks, held, facts, manifest)
    return Checkpoints(
        recovery=Recovery(segment=base_offset, position=0, offset=base_offset, stamp_ms=facts.stamp_ms),
        active=ActiveMark(base_offset=base_offset),
        frontier=FrontierLease(used_ms=facts.frontier_ms, lease_ms=facts.frontier_ms),
        log_start=_log_start(context, marks, base_offset - held, facts),
        removed_records=base_offset - held,
        sealed=tuple(marks),
        removals=tuple(row.attempt for row in removed),
        cleanings=max((mark.generation for mark in marks), default=0),
    )


def mark_of(row: RemoteSegment, records: int | None = None) -> SealedMark:
    """A listed segment as checkpoints have it that is in object storage only."""
    return SealedMark(**row.facts(), remote=RemoteMark(attempt=row.attempt, run=row.run, local=False, records=records))


def mark_in(context: LogContext, row: RemoteSegment) -> SealedMark:
    """The same of a segment of some partition: of a Kafka broker's its run is asked for its records. CorruptRemote."""
    mark = mark_of(row)
    return mark_of(row, context.remote.copy(mark).records()) if context.settings.foreign else mark


def _removed(row: RemoteSegment, facts: LogFacts, *, delayed: bool) -> bool:
    """Whether retention has removed the segment, and its row has not gone yet."""
    if not delayed:
        return row.end_offset <= facts.log_start.delivery_offset
    return row.last_key <= facts.log_start.key


def _check_complete(marks: Sequence[SealedMark], held: int, facts: LogFacts, manifest: Manifest) -> None:
    missing = marks[-1].end_offset - held - facts.removed_records
    if missing > 0:
        raise CorruptRemote(
            f"{missing} records below offset {marks[-1].end_offset} are in no listed segment, and retention did not "
            "remove them: finish the upload that was cut short, or give them up with `afterlog restore --partial`",
            path=manifest.key,
        )


def _log_start(context: LogContext, marks: Sequence[SealedMark], removed_records: int, facts: LogFacts) -> LogStart:
    """Where delivery order begins; its rank is counted anew, for less may be there than was."""
    if not context.settings.delayed:
        return LogStart()
    key = facts.log_start.key
    index = DelayedIndex.of([context.remote.copy(mark).run() for mark in marks], removed_records=removed_records)
    return LogStart(delivery_offset=index.rank(key), deliver_after=key.deliver_after, offset=key.offset)
