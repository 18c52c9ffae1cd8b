"""The upload job: sealed segments to object storage, by tier's own protocol (`afterlog.tier.upload`). Map only.

    location ── find_segments ──> neighbours, about equal bytes ── a task each ──> batches ── upload_together ──> rows

What comes of a segment:

    uploaded    it is listed by this attempt: every object is there and was read back
    skipped     `reason`: it was listed already, by itself or as it was before the store cleaned it; or retention took
                it while the job ran, or nothing in it is for readers; or it is active, and nobody asked for `roll`
    refused     `reason`: nothing was listed, and nothing is wrong with the segment: the storage would not, or lists
                other bytes at these offsets; the segment has no indexes yet; somebody gave the attempt up
    corrupt     a file, or an object as it was read back, is not as it was written: `path`, `position`, `reason`

A rerun uploads what is not listed. What a killed job leaves (rows COPY_STARTED, their objects) the next one ends, once
it is older than `leftovers_after_s`. Nothing on this machine is removed, and an open store learns of what was uploaded
from the manifest. At the end the storage is told which topics of a store it has, so that it can be read alone; and
where all that is sealed is there, how far it goes, and that what is in no row is gone.

What a job has put there stays, whatever retention and cleaning take from the folder: of a segment that was cleaned
since that goes up which no row lists (`afterlog.tier.unlisted`), a row for each part. Of a topic with
`remote_storage_enable` the store itself has what is there as it is here: what it has cleaned is left to it (`refused`).

All tasks change the manifests of the partitions, each by conditional put, where one of those who come at a time is
first and the others try again. Hence the batches: two changes for BATCH_BYTES of log instead of two for a segment; and
hence neighbours to a task, so that few tasks share a partition. With 100 tasks on one partition at 100 MB/s each, that
is about 2 changes a second, each of two requests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from afterlog.base.clock import Clock, SystemClock
from afterlog.base.config import Config
from afterlog.base.errors import (
    CorruptFile,
    CorruptRemote,
    DiskFailed,
    FileMissing,
    OutOfResources,
    RemoteConflict,
    RemoteError,
    StorageError,
)
from afterlog.base.files import Files, OsFiles, ReadOnlyFiles, map_file, temporary_folder, unused_name
from afterlog.base.kept_config import kept_config
from afterlog.base.names import CHECKPOINTS, LOG, TOPICS, partition_folder
from afterlog.log.build import SegmentToIndex, index_segment
from afterlog.log.checkpoints import CheckpointFile
from afterlog.log.facts import FileMark
from afterlog.log.scan import GONE
from afterlog.log.topic_settings import FOREIGN
from afterlog.log.topics_document import read_topics
from afterlog.spark.location import (
    ACTIVE,
    LeftActive,
    check_shared,
    find_active,
    find_segments,
    seal_active,
    sweep,
)
from afterlog.spark.tasks import contiguous, run_tasks, task_count
from afterlog.tier.log_facts import LogFacts
from afterlog.tier.manifest import Content, Manifest, Segments
from afterlog.tier.remote_segment import RemoteSegment, SegmentFiles
from afterlog.tier.remote_store import RemoteStore
from afterlog.tier.remote_topics import read_remote_topics, tell_topic
from afterlog.tier.remote_url import open_remote
from afterlog.tier.remove import remove_leftovers
from afterlog.tier.segment_files import kafka_segment_files, segment_files
from afterlog.tier.unlisted import rows_over, unlisted_parts
from afterlog.tier.upload import Outcome, upload_together

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

UploadAction = Literal["uploaded", "skipped", "active", "refused", "corrupt"]
BATCH_BYTES = 4 << 30
"""Log that is listed together. Larger: fewer changes of the manifest, more to upload again after a failure."""
BATCH_SEGMENTS = 64
LEFTOVERS_AFTER_S = 86_400.0
LISTED = "listed already"
LISTED_BEFORE = "listed already, as it was before it was cleaned"
RETAINED = "gone: retention was first"
NO_INDEXES = "it has no indexes: run the index job first"
SWEPT = "another job swept a temporary file away: run again"
SCHEMA = (
    "topic STRING, partition INT, base_offset BIGINT, end_offset BIGINT, action STRING, attempt STRING, bytes BIGINT, "
    "seconds DOUBLE, path STRING, position BIGINT, reason STRING"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadedSegment:
    """What came of a segment."""

    topic: str
    partition: int
    base_offset: int
    end_offset: int | None
    action: UploadAction
    attempt: str | None = None
    """That lists it."""
    bytes: int
    """Of its log."""
    seconds: float
    """Its share, by bytes, of what its batch took."""
    path: str | None = None
    position: int | None = None
    reason: str | None = None


assert [each.name for each in fields(UploadedSegment)] == [column.split()[0] for column in SCHEMA.split(", ")]


def upload_segments(
    spark: SparkSession,
    location: Path | str,
    remote: str,
    topics: Collection[str] | None = None,
    *,
    config: Config | None = None,
    tasks: int | None = None,
    remote_options: Mapping[str, Any] | None = None,
    leftovers_after_s: float = LEFTOVERS_AFTER_S,
    roll: bool = False,
) -> DataFrame:
    """Upload the sealed segments that are not listed yet; when it returns, it is done.

    `location`: a store, which may be open meanwhile, or segments of Kafka brokers with indexes (`build_indexes`).
    `remote`: the URL of object storage, which driver and workers open with `remote_options`
    (`afterlog.tier.remote_url`). `config`: the store's, by default as it is kept with it. `tasks`: as for
    `build_indexes`. `leftovers_after_s`: attempts
    that began so long ago and are not listed are ended first; more than a segment takes, by clocks that may differ.
    `roll`: seal what is in the active segments before, of a store that nobody has open (StoreLocked); else a row says
    what is left there.
    One row a segment (`UploadedSegment`), by topic, partition and base offset; none for what is only in object storage.
    Raises what `build_indexes` raises, and CorruptRemote, RemoteUnavailable, RemoteRefused before anything is uploaded.
    """
    files, folder = ReadOnlyFiles(), Path(location).absolute()
    config, options = config or kept_config(files, folder), dict(remote_options or {})
    if roll:
        seal_active(OsFiles(), folder, topics, config)
    segments, active = find_segments(files, folder, topics), find_active(files, folder, topics)
    sweep(OsFiles(), segments)
    storage = open_remote(remote, **options)
    kafka = not files.exists(folder / TOPICS)
    if kafka:
        check_of_kafka(storage, {segment.topic for segment in segments})
    before_ms = SystemClock().now_ms() - int(leftovers_after_s * 1000)
    for partition in sorted({_partition(segment) for segment in segments}):
        remove_leftovers(Manifest(storage, partition), started_before_ms=before_ms)

    def work(group: Sequence[SegmentToIndex]) -> Iterator[UploadedSegment]:
        return upload_group(group, remote, options, config)

    left = [_left(each) for each in active]
    done = run_tasks(spark, contiguous(segments, task_count(segments, tasks)), work, SCHEMA, left)
    if kafka:
        tell_of_kafka(storage, segments)
    else:
        vain = {(row["topic"], row["partition"]) for row in done.collect() if row["action"] in ("refused", "corrupt")}
        _tell_of_store(files, folder, storage, {segment.topic for segment in segments}, vain)
    return done


def check_of_kafka(storage: RemoteStore, topics: Collection[str]) -> None:
    """RemoteConflict where a topic of one of these names is a store's: nothing of a Kafka broker is put beside it."""
    for name, settings in read_remote_topics(storage).items():
        if name in topics and not settings.foreign:
            raise RemoteConflict(f"{name} is a store's topic there: upload to another prefix", path=TOPICS)


def tell_of_kafka(storage: RemoteStore, segments: Collection[SegmentToIndex]) -> None:
    """Say in object storage which topics of Kafka brokers have segments there, so that a store can open them.

    Last of all: who opens one has what is listed then, and never more.
    """
    for topic, partition in sorted({(segment.topic, segment.partition) for segment in segments}):
        if Manifest(storage, partition_folder(topic, partition)).listed():
            tell_topic(storage, topic, replace(FOREIGN, partitions=partition + 1))


def _tell_of_store(
    files: Files, store: Path, storage: RemoteStore, uploaded: Collection[str], vain: Collection[tuple[str, int]]
) -> None:
    """Say in object storage what a machine must know that has nothing else, where the store did not say it itself.

    vain: partitions of which not all that is sealed is there.
    """
    for topic, settings in read_topics(files, store).items():
        if topic not in uploaded:
            continue
        tell_topic(storage, topic, replace(settings, remote_storage_enable=True))
        for number in range(settings.partitions):
            partition = partition_folder(topic, number)
            manifest = Manifest(storage, partition, settings.topic_id)
            known = CheckpointFile.open(files, store / partition / CHECKPOINTS).current
            facts = LogFacts.of(known, delayed=settings.delayed)
            if manifest.content().log is None:
                manifest.tell(facts)
            elif not settings.remote_storage_enable and (topic, number) not in vain:
                manifest.change(partial(_told_anew, facts=facts))


def _told_anew(content: Content, *, facts: LogFacts) -> Content:
    """How far the log goes by now. Where it begins stays as it was told first: what is listed there stays, too."""
    if content.log is None or not content.listed:
        return content
    told = replace(
        content.log,
        end_offset=max(content.log.end_offset, facts.end_offset),
        removed_records=content.listed[-1].end_offset - sum(row.kept for row in content.listed),
        frontier_ms=max(content.log.frontier_ms, facts.frontier_ms),
        stamp_ms=max(content.log.stamp_ms, facts.stamp_ms),
    )
    return content._replace(log=told)


def upload_group(
    group: Sequence[SegmentToIndex], url: str, options: Mapping[str, Any], config: Config
) -> Iterator[UploadedSegment]:
    """What one task does."""
    check_shared(ReadOnlyFiles(), {segment.path.parent for segment in group})
    storage = open_remote(url, **options)
    for batch in batches(group):
        manifest = Manifest(storage, _partition(batch[0]))
        with temporary_folder() as scratch:
            yield from upload_batch(OsFiles(), manifest, batch, config, SystemClock(), scratch)


def batches(group: Sequence[SegmentToIndex]) -> Iterator[list[SegmentToIndex]]:
    """Neighbours of one partition, up to BATCH_BYTES or BATCH_SEGMENTS of them."""
    batch: list[SegmentToIndex] = []
    for segment in group:
        size = sum(each.log_bytes for each in batch) + segment.log_bytes
        full = size > BATCH_BYTES or len(batch) == BATCH_SEGMENTS
        if batch and (full or _partition(segment) != _partition(batch[0])):
            yield batch
            batch = []
        batch.append(segment)
    if batch:
        yield batch


def upload_batch(
    files: Files,
    manifest: Manifest,
    batch: Sequence[SegmentToIndex],
    config: Config,
    clock: Clock,
    scratch: Path,
) -> list[UploadedSegment]:
    """Upload segments of one partition. What cannot be uploaded is told, not raised; OSError of this machine is.

    scratch: an empty folder, for parts of what was cleaned.
    """
    start_s = clock.monotonic_s()
    tried, outcomes, prepared = dict[str, SegmentToIndex](), dict[str, Outcome](), dict[str, SegmentFiles]()
    with ExitStack() as held:
        try:
            listed = manifest.listed()
            for segment in batch:
                for part, outcome in _to_upload(files, segment, manifest, listed, config, scratch):
                    attempt = unused_name()
                    tried[attempt] = part
                    try:
                        if outcome is None:
                            prepared[attempt] = _files_of(files, part, config, attempt, held)
                        else:
                            outcomes[attempt] = outcome
                    except StorageError as error:
                        if _is_of_this_machine(error):
                            raise
                        outcomes[attempt] = error
            outcomes |= upload_together(manifest, prepared, now_ms=clock.now_ms())
        except RemoteError as error:  # the manifest cannot be read, or changed
            tried = tried or {unused_name(): segment for segment in batch}
            outcomes |= {attempt: error for attempt in tried if attempt not in outcomes}
    seconds, total = clock.monotonic_s() - start_s, sum(segment.log_bytes for segment in tried.values())
    return [
        _told(files, segment, attempt, outcomes[attempt], seconds * segment.log_bytes / max(total, 1), config, clock)
        for attempt, segment in tried.items()
    ]


def _to_upload(
    files: Files, segment: SegmentToIndex, manifest: Manifest, listed: Segments, config: Config, scratch: Path
) -> list[tuple[SegmentToIndex, Outcome | None]]:
    """The segment, or parts of it, each with what has come of it already."""
    try:
        row, mark = _row_of(files, segment, listed), segment.mark
        if row is not None or mark is None or not mark.has_gaps or segment.tiered:
            return [(segment, row)]
        rows = rows_over(mark, listed)
        if not rows:
            return [(segment, None)]
        parts = unlisted_parts(files, segment, mark, manifest, rows, config, scratch)
        return [(part, None) for part in parts] or [(segment, rows[0])]
    except StorageError as error:
        if _is_of_this_machine(error):
            raise
        return [(segment, error)]


def _is_of_this_machine(error: StorageError) -> bool:
    """Whether its disk failed: not what a segment is like, and not the storage."""
    return isinstance(error, DiskFailed | OutOfResources) and not isinstance(error, FileMissing)


def _partition(segment: SegmentToIndex) -> str:
    return partition_folder(segment.topic, segment.partition)


def _row_of(files: Files, segment: SegmentToIndex, listed: Segments) -> RemoteSegment | None:
    """The row that lists just this log: told without looking at its indexes, so that a rerun is quick."""
    for row in listed:
        if row.base_offset == segment.base_offset and row.log_bytes == segment.log_bytes:
            return row if row.files[LOG] == FileMark.of(map_file(files, segment.path)) else None
    return None


def _files_of(files: Files, segment: SegmentToIndex, config: Config, attempt: str, held: ExitStack) -> SegmentFiles:
    if segment.mark is None:
        return kafka_segment_files(files, segment.path, segment.base_offset, config=config)
    return held.enter_context(
        segment_files(files, segment.path.parent, segment.mark, config=config, delayed=segment.delayed, attempt=attempt)
    )


def _told(
    files: Files,
    segment: SegmentToIndex,
    attempt: str,
    outcome: Outcome,
    seconds: float,
    config: Config,
    clock: Clock,
) -> UploadedSegment:
    """The row of a segment."""
    end_offset = segment.mark.end_offset if segment.mark else None
    action: UploadAction
    listed_by = path = position = reason = None
    if isinstance(outcome, RemoteSegment):
        action, listed_by = "uploaded", outcome.attempt
        end_offset = end_offset or outcome.end_offset
        if listed_by != attempt:
            is_that = (outcome.base_offset, outcome.log_bytes) == (segment.base_offset, segment.log_bytes)
            action, reason = "skipped", LISTED if is_that else LISTED_BEFORE
    elif not isinstance(outcome, RemoteError) and not files.exists(segment.path):
        kept = _is_kept(files, segment)
        action, reason, path = ("corrupt", GONE, str(segment.path)) if kept else ("skipped", RETAINED, None)
    elif isinstance(outcome, CorruptFile | CorruptRemote):
        action, path, position, reason = "corrupt", str(outcome.path), outcome.position, outcome.message
    elif isinstance(outcome, FileMissing):
        action, reason = "refused", SWEPT
        if segment.mark is None:
            looked = index_segment(files, segment, config, clock, attempt=attempt, verify_only=True)
            needs_none = looked.action == "skipped"
            action, reason = ("skipped", looked.reason) if needs_none else ("refused", NO_INDEXES)
    elif isinstance(outcome, StorageError) and not _is_of_this_machine(outcome):
        action, path, reason = "refused", str(outcome.path), outcome.message
    else:
        raise outcome
    return UploadedSegment(
        topic=segment.topic,
        partition=segment.partition,
        base_offset=segment.base_offset,
        end_offset=end_offset,
        action=action,
        attempt=listed_by,
        bytes=segment.log_bytes,
        seconds=seconds,
        path=path,
        position=position,
        reason=reason,
    )


def _left(active: LeftActive) -> UploadedSegment:
    return UploadedSegment(
        topic=active.topic,
        partition=active.partition,
        base_offset=active.base_offset,
        end_offset=active.end_offset,
        action="active",
        bytes=active.log_bytes,
        seconds=0.0,
        reason=ACTIVE,
    )


def _is_kept(files: Files, segment: SegmentToIndex) -> bool:
    """Whether the checkpoints, as they are now, still say that the segment is in the folder."""
    if segment.mark is None:
        return False
    known = CheckpointFile.open(files, segment.path.parent / CHECKPOINTS).current
    return any(mark.base_offset == segment.base_offset and mark.local for mark in known.sealed)
