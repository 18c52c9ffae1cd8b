"""From a sealed segment in a folder to `SegmentFiles`: everything that goes up, each byte of it checked.

    .log            every check of every entry, in little memory; size and end as they were sealed
    .index, .timeindex, .cancelindex    CRC-32C as in the checkpoints; sparse ones are mended, as the store does it
    .deliverafterindex    the segment's own; where a bucket of several segments holds it, a temporary one

What cannot be vouched for does not go up: once it is there, the local copy may go.

The temporary run, `<base>.deliverafterindex.<attempt>.tmp`, is made from the log and goes at the end of the block. A
process that is killed leaves it: whoever opens the store removes it (`afterlog.log.recovery` takes every `.tmp`), and
so does the next job over the folder (`segment_indexing.abandoned`). A job that sweeps while another one uploads takes
the run from under it: FileNotFoundError, with the log still there; try again. With the log gone too, retention was
first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from afterlog.base.config import Config
from afterlog.base.errors import CorruptFile
from afterlog.base.files import Files, map_file
from afterlog.base.names import (
    CANCEL_INDEX,
    DELIVER_AFTER_INDEX,
    LOG,
    parse_partition_folder,
)
from afterlog.index.run import Coverage, Run
from afterlog.index.sparse import SparseIndexes
from afterlog.log.build import SegmentToIndex, mend_sparse, whole_run
from afterlog.log.facts import FileMark, SegmentFacts
from afterlog.log.scan import check_log
from afterlog.log.segment import load_cancelled
from afterlog.tier.remote_segment import SegmentFiles


@contextlib.contextmanager
def segment_files(
    files: Files, folder: Path, mark: SegmentFacts, *, config: Config, delayed: bool, attempt: str
) -> Iterator[SegmentFiles]:
    """The files of a sealed segment of a store, whole for as long as the block lasts; the store may be open meanwhile.

    `delayed`: of the topic; a FIFO topic has no runs. `attempt`: an `unused_name`, best that of the upload.
    CorruptFile: the log or the cancel index is not as it was sealed. FileNotFoundError: see above. StorageFull.
    """
    path = folder / mark.file(LOG)
    topic, partition = parse_partition_folder(folder.name) or (folder.name, 0)
    segment = SegmentToIndex(
        topic=topic, partition=partition, base_offset=mark.base_offset, path=path, log_bytes=mark.log_bytes, mark=mark
    )
    check_log(files, path, mark.base_offset, size=mark.log_bytes, end_offset=mark.end_offset, gaps=mark.has_gaps)
    mend_sparse(files, segment, config, attempt=attempt)
    paths = {suffix: path.with_suffix(suffix) for suffix in (LOG, *mark.indexes)}
    if load_cancelled(files, path, mark.cancel_index) is None:
        raise CorruptFile("missing or unreadable: opening the store mends it", path=path.with_suffix(CANCEL_INDEX))
    with whole_run(files, segment, config, attempt=attempt) if delayed else contextlib.nullcontext() as run:
        yield SegmentFiles(files=files, facts=mark, paths=paths if run is None else {**paths, DELIVER_AFTER_INDEX: run})


def kafka_segment_files(files: Files, path: Path, base_offset: int, *, config: Config) -> SegmentFiles:
    """The files of a Kafka broker's segment with its indexes beside it; nobody may be writing it. `path`: of its log.

    Its run says where it ends. CorruptFile: something is not as it was written, or is not what the log says.
    FileNotFoundError: the log or an index is not there.
    """
    run = Run.open(files, path.with_suffix(DELIVER_AFTER_INDEX))
    size, end_offset = run.coverage.end_position, run.coverage.end_offset
    if run.coverage != Coverage(base_offset, end_offset, base_offset, 0, base_offset, size):
        raise CorruptFile("covers another part of the log than it should", path=run.path)
    sparse = SparseIndexes(base_offset, config.index_interval_bytes)
    check_log(files, path, base_offset, size=size, end_offset=end_offset, foreign=True, sparse=sparse)
    run.check()
    sparse.finish()
    index, time_index = sparse.to_bytes()
    facts = SegmentFacts(
        base_offset=base_offset,
        end_offset=end_offset,
        log_bytes=size,
        max_deliver_after=run.last_key.deliver_after,
        max_timestamp=sparse.latest[0],
        index=FileMark.of(index),
        time_index=FileMark.of(time_index),
    )
    paths = {suffix: path.with_suffix(suffix) for suffix in (LOG, *facts.indexes, DELIVER_AFTER_INDEX)}
    for suffix, mark in facts.indexes.items():
        if FileMark.of(map_file(files, paths[suffix])) != mark:
            raise CorruptFile("not what the log says", path=paths[suffix])
    return SegmentFiles(files=files, facts=facts, paths=paths)
