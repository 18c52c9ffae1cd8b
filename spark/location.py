"""What lies at a location: the one place that knows where a Spark job finds segments.

On the disk, under the same path for driver and workers:

a store                      its topics document says which topics there are; of each partition the sealed segments
                             that its checkpoints name and the folder has. The active segment is the store's own: jobs
                             say what is left in it, or have it sealed first (`seal_active`)
a directory of Kafka logs    <topic>-<partition>/<base offset>.log, as a broker's log.dirs are
a folder of segments         <base offset>.log: the partition is the folder's name where that is one's, else 0

In object storage, by a URL (`afterlog.tier.remote_url`), partition by partition:

what afterlog uploaded       <topic>-<partition>/manifest: the segments that it lists
segments of a Kafka broker   <topic>-<partition>/<base offset>.log, as they were copied there
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afterlog.base.clock import Clock
from afterlog.base.config import Config
from afterlog.base.errors import InvalidOption, StoreLocked, UnknownTopic
from afterlog.base.files import Files, opened
from afterlog.base.locks import Condition
from afterlog.base.names import (
    BUCKETS,
    CHECKPOINTS,
    DELIVER_AFTER_INDEX,
    LOG,
    MANIFEST,
    TOPICS,
    parse_partition_folder,
    parse_segment_file,
    partition_folder,
    segment_file,
)
from afterlog.index.run import Run
from afterlog.log.build import SegmentToIndex, abandoned
from afterlog.log.checkpoints import CheckpointFile
from afterlog.log.run_files import runs_of_sealed, spans_of
from afterlog.log.scan import logs_in
from afterlog.log.topic_settings import TopicSettings
from afterlog.log.topics_document import read_topics
from afterlog.tier.manifest import Manifest
from afterlog.tier.remote_indexing import INDEXES
from afterlog.tier.remote_segment import RemoteSegment
from afterlog.tier.remote_store import RemoteStore
from afterlog.tier.remote_url import open_remote

if TYPE_CHECKING:
    from afterlog.store.store import Store


def find_segments(files: Files, location: Path, topics: Collection[str] | None = None) -> list[SegmentToIndex]:
    """The segments of all topics, or of some, by partition and base offset.

    FileNotFoundError, NotADirectoryError, UnknownTopic, CorruptFile where a store's documents are.
    """
    names = files.names(location)
    found = list(_of_store(files, location, topics) if TOPICS in names else _of_kafka(files, location, names, topics))
    missing = set(topics or ()) - {segment.topic for segment in found}
    if missing and TOPICS not in names:
        raise UnknownTopic(f"no segments of topic {min(missing)!r} in {location}")
    return found


LOCK_RETRY_S = 0.1
ACTIVE = "active: nothing is done with it until it is sealed (roll=True, or the store's segment_bytes, segment_ms)"
"""Why a job has left something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftActive:
    """The active segment of a partition of a store, which has something in it."""

    topic: str
    partition: int
    base_offset: int
    end_offset: int | None
    """As far as the last checkpoint says; None where it says nothing of this segment yet."""
    log_bytes: int
    delayed: bool


def find_active(files: Files, location: Path, topics: Collection[str] | None = None) -> list[LeftActive]:
    """Those that are not empty, by partition; none where there is no store. Raises as `find_segments` does."""
    if TOPICS not in files.names(location):
        return []
    found: list[LeftActive] = []
    for topic, partition, settings in _partitions(files, location, topics):
        folder = location / partition_folder(topic, partition)
        known = CheckpointFile.open(files, folder / CHECKPOINTS).current
        base, end = known.active.base_offset, known.recovery.offset
        with opened(files, folder / segment_file(base, LOG)) as file:
            size = file.size()
        if size:
            found.append(
                LeftActive(
                    topic=topic,
                    partition=partition,
                    base_offset=base,
                    end_offset=end if end > base else None,
                    log_bytes=size,
                    delayed=settings.delayed,
                )
            )
    return found


def seal_active(files: Files, location: Path, topics: Collection[str] | None, config: Config | None) -> None:
    """Seal the active segments of a store that nobody has open. Nothing where there is no store.

    Raises StoreLocked, UnknownTopic, and what `afterlog.open` does.
    """
    if TOPICS not in files.names(location):
        return
    from afterlog.store.store import open_store

    with open_store(location, config, None, files, background=False) as store:
        for topic, partition, settings in _partitions(files, location, topics):
            if not settings.foreign:
                store.topic(topic).log(partition).roll()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSegment:
    """A segment in object storage."""

    topic: str
    partition: int
    base_offset: int
    log_bytes: int
    row: RemoteSegment | None = None
    """The manifest's; None: a Kafka broker's."""
    indexes: frozenset[str] = frozenset()
    """Of a Kafka broker's: the suffixes of those indexes that are beside it."""
    bases: tuple[int, ...] = ()
    """Of a Kafka broker's: base offsets of all segments of the partition, ascending; one value for all of them."""

    @property
    def folder(self) -> str:
        """The partition's, in object storage."""
        return partition_folder(self.topic, self.partition)


def check_shared(files: Files, folders: Iterable[Path]) -> None:
    """For a task: the driver has seen these folders. Raises InvalidOption where this worker does not."""
    for folder in folders:
        if not files.exists(folder):
            raise InvalidOption(f"{folder} is not on this worker: driver and workers need it under the same path")


def open_when_free(
    location: Path, remote: str | None, remote_options: Mapping[str, Any], lock_timeout_ms: int, clock: Clock
) -> Store:
    """A store, with its object storage, when nobody else has it open any more. Raises StoreLocked after that time."""
    from afterlog.store.store import open_store

    storage = open_remote(remote, **remote_options) if remote else None
    patience, until_s = Condition(), clock.monotonic_s() + lock_timeout_ms / 1_000
    while True:
        try:
            return open_store(location, None, clock, None, storage, background=False)
        except StoreLocked:
            left_s = until_s - clock.monotonic_s()
            if left_s <= 0:
                raise
            with patience:
                clock.wait(patience, None, min(left_s, LOCK_RETRY_S))


def is_url(location: Path | str) -> bool:
    """Whether it names object storage, and not a folder."""
    return isinstance(location, str) and "://" in location


def find_remote_segments(remote: RemoteStore, topics: Collection[str] | None = None) -> list[StoredSegment]:
    """The segments of all topics, or of some, by partition and base offset. Other keys are passed over.

    UnknownTopic, CorruptRemote where a manifest is, RemoteUnavailable, RemoteRefused.
    """
    partitions: dict[tuple[str, int], dict[str, int]] = {}
    for key, size in remote.list_objects():
        folder, _, name = key.rpartition("/")
        parsed = parse_partition_folder(folder)
        if parsed is not None and (topics is None or parsed[0] in topics):
            partitions.setdefault(parsed, {})[name] = size
    found: list[StoredSegment] = []
    for (topic, partition), sizes in sorted(partitions.items()):
        if MANIFEST in sizes:
            found += _listed(remote, topic, partition)
        else:
            found += _kafka(topic, partition, sizes)
    missing = set(topics or ()) - {segment.topic for segment in found}
    if missing:
        raise UnknownTopic(f"no segments of topic {min(missing)!r} in object storage")
    return found


def sweep(files: Files, segments: Collection[SegmentToIndex]) -> None:
    """Remove the temporary files that killed jobs left beside the segments. Another job that runs has to try again."""
    for folder in sorted({segment.path.parent for segment in segments}):
        for name in abandoned(files.names(folder)):
            files.unlink(folder / name)


def _listed(remote: RemoteStore, topic: str, partition: int) -> Iterator[StoredSegment]:
    for row in Manifest(remote, partition_folder(topic, partition)).listed():
        yield StoredSegment(
            topic=topic,
            partition=partition,
            base_offset=row.base_offset,
            log_bytes=row.log_bytes,
            row=row,
        )


def _kafka(topic: str, partition: int, sizes: Mapping[str, int]) -> Iterator[StoredSegment]:
    parsed = [(segment, size) for name, size in sorted(sizes.items()) if (segment := parse_segment_file(name))]
    logs = [(segment.base_offset, size) for segment, size in parsed if segment.suffix == LOG]
    bases = tuple(base for base, _ in logs)
    for base, size in logs:
        yield StoredSegment(
            topic=topic,
            partition=partition,
            base_offset=base,
            log_bytes=size,
            indexes=frozenset(suffix for suffix in INDEXES if segment_file(base, suffix) in sizes),
            bases=bases,
        )


def _of_store(files: Files, store: Path, topics: Collection[str] | None) -> Iterator[SegmentToIndex]:
    for topic, partition, settings in _partitions(files, store, topics):
        yield from _of_partition(files, store, topic, partition, settings)


def _partitions(files: Files, store: Path, topics: Collection[str] | None) -> Iterator[tuple[str, int, TopicSettings]]:
    """Of all topics of a store, or of some, in order."""
    known = read_topics(files, store)
    for topic in sorted(known if topics is None else topics):
        if topic not in known:
            raise UnknownTopic(f"no topic {topic!r} in {store}")
        for partition in range(known[topic].partitions):
            yield topic, partition, known[topic]


def _of_partition(
    files: Files, store: Path, topic: str, partition: int, settings: TopicSettings
) -> Iterator[SegmentToIndex]:
    folder = store / partition_folder(topic, partition)
    known = CheckpointFile.open(files, folder / CHECKPOINTS).current
    spans = spans_of(files.names(folder / BUCKETS)) if files.exists(folder / BUCKETS) else []
    found = runs_of_sealed(lambda key: Run.open(files, folder / key), spans, known)
    runs = {run.path for run, _ in found.groups if run is not None}  # not in use: what a bucket holds, or nobody needs
    for mark in known.sealed:
        if not mark.local:
            continue
        yield SegmentToIndex(
            topic=topic,
            partition=partition,
            base_offset=mark.base_offset,
            path=folder / mark.file(LOG),
            log_bytes=mark.log_bytes,
            mark=mark,
            delayed=settings.delayed,
            tiered=settings.remote_storage_enable,
            has_run=settings.delayed and (mark in found.missing or folder / mark.file(DELIVER_AFTER_INDEX) in runs),
        )


def _of_kafka(
    files: Files, location: Path, names: Collection[str], topics: Collection[str] | None
) -> Iterator[SegmentToIndex]:
    folders = [(location / name, parsed) for name in names if (parsed := parse_partition_folder(name))]
    folders.sort(key=lambda folder: folder[1])
    if not folders:
        folders = [(location, parse_partition_folder(location.name) or (location.name, 0))]
    for folder, (topic, partition) in folders:
        if topics is not None and topic not in topics:
            continue
        for base, path in logs_in(files, folder).items():
            with opened(files, path) as file:
                size = file.size()
            yield SegmentToIndex(topic=topic, partition=partition, base_offset=base, path=path, log_bytes=size)
