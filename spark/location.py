"""What lies at a location: the one place that knows where a Spark job finds segments.

a store                      its topics document says which topics there are; of each partition the sealed segments
                             that its checkpoints name. The active segment is the store's own
a directory of Kafka logs    <topic>-<partition>/<base offset>.log, as a broker's log.dirs are
a folder of segments         <base offset>.log: the partition is the folder's name where that is one's, else 0
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from afterlog.errors import UnknownTopic
from afterlog.files import Files, opened
from afterlog.index.run import Run
from afterlog.log.checkpoints import CheckpointFile
from afterlog.log.place import TopicSettings
from afterlog.log.run_files import runs_of_sealed, spans_of
from afterlog.log.segment_indexing import SegmentToIndex, abandoned
from afterlog.log.stretch import log_bases
from afterlog.log.topics import read_topics
from afterlog.names import (
    BUCKETS,
    CHECKPOINTS,
    LOG,
    TOPICS,
    parse_partition_folder,
    partition_folder,
    run_key,
    segment_file,
)


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


def sweep(files: Files, segments: Collection[SegmentToIndex]) -> None:
    """Remove the temporary files that killed jobs left beside the segments. Another job that runs has to try again."""
    for folder in sorted({segment.path.parent for segment in segments}):
        for name in abandoned(files.names(folder)):
            files.unlink(folder / name)


def _of_store(files: Files, store: Path, topics: Collection[str] | None) -> Iterator[SegmentToIndex]:
    known = read_topics(files, store)
    for topic in sorted(known if topics is None else topics):
        if topic not in known:
            raise UnknownTopic(f"no topic {topic!r} in {store}")
        for partition in range(known[topic].partitions):
            yield from _of_partition(files, store, topic, partition, known[topic])


def _of_partition(
    files: Files, store: Path, topic: str, partition: int, settings: TopicSettings
) -> Iterator[SegmentToIndex]:
    folder = store / partition_folder(topic, partition)
    known = CheckpointFile.open(files, folder / CHECKPOINTS).current
    spans = spans_of(files.names(folder / BUCKETS)) if files.exists(folder / BUCKETS) else []
    found = runs_of_sealed(lambda key: Run.open(files, folder / key), spans, known)
    runs = {run.path for run, _ in found.groups if run is not None}  # not in use: what a bucket holds, or nobody needs
    for mark in known.sealed:
        yield SegmentToIndex(
            topic=topic,
            partition=partition,
            base_offset=mark.base_offset,
            path=folder / segment_file(mark.base_offset, LOG),
            log_bytes=mark.log_bytes,
            mark=mark,
            has_run=settings.delayed and (mark in found.missing or folder / run_key(mark.base_offset) in runs),
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
        for base in log_bases(files, folder):
            path = folder / segment_file(base, LOG)
            with opened(files, path) as file:
                size = file.size()
            yield SegmentToIndex(topic=topic, partition=partition, base_offset=base, path=path, log_bytes=size)
