"""Repair of a rotten run: rebuilt from the log, byte for byte, and accepted only if its checksums match.

    rotten chunk, rotten bitmap ──> the entries of the covered log ──> the same bytes again, by their checksums ──> file

Only what fails its checksum is made, and only believed where the checksum of then is met: so the run is the very one
that it was, whoever is reading it. A run of which a segment is gone since, or whose log rots too, is not mended:
whoever needs it gets the error, as before.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from afterlog.base.checksum import crc32c
from afterlog.base.errors import CorruptFile
from afterlog.base.files import Files, publish, read_file
from afterlog.base.names import parse_bucket_file, parse_segment_file
from afterlog.index.bucket_snapshot import MappedSnapshot
from afterlog.index.entries import Entries
from afterlog.index.offset_bitmap import BitmapBuilder
from afterlog.index.run import Coverage, Run
from afterlog.index.run_format import FilePart
from afterlog.index.run_writer import stored_chunk
from afterlog.log.scan import logs_in, read_log

logger = logging.getLogger("afterlog.log")


def mended(files: Files, folder: Path, run: Run) -> MappedSnapshot:
    """The run of a partition in `folder`, as it was written, in its file again where there is room.

    CorruptFile, FileNotFoundError: the log does not give it.
    """
    data, directory, first_offset = bytearray(read_file(files, run.path)), run.directory, run.coverage.first_offset
    named = parse_segment_file(run.path.name) or parse_bucket_file(run.path.name)
    cleaning = 0 if named is None else named.generation
    entries, bitmap = _entries(files, folder, run.coverage, cleaning), BitmapBuilder()
    for chunk in range(run.chunks):
        held = _between(entries, run, chunk)
        bitmap.add((held.offset - first_offset).astype("<u4"), held.records.astype("<u4"))
        part = FilePart(*(int(column[chunk]) for column in (directory.position, directory.size, directory.crc32c)))
        _mend(run, data, part, stored_chunk(held, first_offset) if len(held) else b"")
    _mend(run, data, run.parts.bitmap, bitmap.finish().serialize())
    logger.warning("%s: rotten; made anew from the log, as it was", run.path)
    whole = bytes(data)
    try:
        publish(files, run.path, [whole])
    except OSError as error:
        logger.warning("%s: mended in memory only: %s", run.path, error)
    return MappedSnapshot(run.path, np.frombuffer(whole, np.uint8), run.key)


def _mend(run: Run, data: bytearray, part: FilePart, made: bytes) -> None:
    """Put a part as it is made of the log where it fails its checksum."""
    position, size, crc = part
    if crc32c(data[position : position + size]) == crc:
        return
    if len(made) != size or crc32c(made) != crc:
        raise CorruptFile("the log that it was made of is not all here any more", path=run.path, position=position)
    data[position : position + size] = made


def _entries(files: Files, folder: Path, coverage: Coverage, cleaning: int) -> Entries:
    """What the covered log holds, in delivery order, as far as its segments are here. CorruptFile.

    cleaning: the last one that it knows of.
    """
    first, last = coverage.start_segment, coverage.end_segment
    found = []
    for base, path in logs_in(files, folder, cleaning=cleaning).items():
        if not first <= base <= last:
            continue
        start, offset = (coverage.start_position, coverage.first_offset) if base == first else (0, base)
        end = coverage.end_position if base == last else None
        found.append(read_log(files, path, offset, start=start, end=end).whole().entries)
    return Entries.concatenate(found).sorted()


def _between(entries: Entries, run: Run, chunk: int) -> Entries:
    """Those of a chunk, by the keys that the directory tells."""
    directory, due, offset = run.directory, entries.deliver_after, entries.offset
    first_due, first = int(directory.first_deliver_after[chunk]), int(directory.first_offset[chunk])
    last_due, last = int(directory.last_deliver_after[chunk]), int(directory.last_offset[chunk])
    start, behind = due.searchsorted(first_due, "left"), due.searchsorted(last_due, "right")
    rows = np.arange(start, behind)
    here = (due[rows] > first_due) | (offset[rows] >= first)
    here &= (due[rows] < last_due) | (offset[rows] <= last)
    return entries.take(rows[here])
