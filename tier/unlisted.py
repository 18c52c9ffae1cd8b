"""What object storage does not list of a segment that was cleaned: for a job, which keeps there all that it once put.

    here       A.7  ██░█░░░█·██░█     written anew with what is to come
    listed     A    ████████          as it was before, with what was delivered since: it stays
    goes up    B.7          ·██░█     the rest, byte for byte, with indexes of its own

Where the store itself has a topic in object storage it replaces there what it has cleaned (`afterlog.tier.offload`). A
job does not: what retention and cleaning take from a folder stays where a job has put it. So of a cleaned segment only
that goes up which no row holds. That a row holds the rest is told by its run: the same offsets, due at the same times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from afterlog.base.config import Config
from afterlog.base.errors import CorruptRemote, RemoteConflict
from afterlog.base.files import Files, map_file, publishing
from afterlog.base.names import DELIVER_AFTER_INDEX, LOG, segment_file
from afterlog.index.entries import Entries
from afterlog.index.run import Run
from afterlog.log.build import SegmentToIndex, index_cleaned
from afterlog.log.facts import SegmentFacts
from afterlog.log.scan import read_log
from afterlog.tier.manifest import Manifest
from afterlog.tier.remote_indexing import fetch
from afterlog.tier.remote_segment import RemoteSegment


def rows_over(segment: SegmentFacts, rows: Sequence[RemoteSegment]) -> list[RemoteSegment]:
    """The rows that list offsets of it."""
    return [row for row in rows if row.base_offset < segment.end_offset and segment.base_offset < row.end_offset]


def unlisted_parts(
    files: Files,
    segment: SegmentToIndex,
    facts: SegmentFacts,
    manifest: Manifest,
    rows: Sequence[RemoteSegment],
    config: Config,
    scratch: Path,
) -> Iterator[SegmentToIndex]:
    """The parts of a cleaned segment that are in none of these rows, each made in `scratch`, which is left so.

    rows: `rows_over`, in append order. CorruptFile: its log is not as it was written. CorruptRemote: a run in object
    storage is not. RemoteConflict: a row holds other records at these offsets. Raises what the storage and disk do.
    """
    log = read_log(files, segment.path, segment.base_offset).whole()
    offset = log.entries.offset
    place = np.array([row.base_offset for row in rows]).searchsorted(offset, side="right") - 1
    is_listed = (place >= 0) & (offset < np.array([row.end_offset for row in rows])[place])
    for number, row in enumerate(rows):
        ours = log.entries.take(np.flatnonzero(is_listed & (place == number)))
        _check_held(files, manifest, row, ours, scratch)
    stretch = np.where(is_listed, -1, place + 1)
    bounds = np.append(log.entries.position, log.stop)
    for name in np.unique(stretch[~is_listed]).tolist():
        found = np.flatnonzero(stretch == name)
        first, last = int(found[0]), int(found[-1])
        base_offset = int(offset[first])
        path = scratch / segment_file(base_offset, LOG, facts.generation)
        data = map_file(files, segment.path)[int(bounds[first]) : int(bounds[last + 1])]
        with publishing(files, path, sync_name=False) as file:
            file.append([data])
        part, _ = index_cleaned(files, path, base_offset, facts.generation, config)
        yield replace(segment, base_offset=base_offset, path=path, log_bytes=part.log_bytes, mark=part, has_run=False)


def _check_held(files: Files, manifest: Manifest, row: RemoteSegment, ours: Entries, scratch: Path) -> None:
    """Prove by the run of a row that it holds these entries."""
    if not len(ours):
        return
    key, path = manifest.object_key(row, DELIVER_AFTER_INDEX), scratch / f"{row.attempt}{DELIVER_AFTER_INDEX}"
    if not files.exists(path) and fetch(manifest.remote, key, files, path) != row.run:
        raise CorruptRemote("not what the manifest says", path=key)
    theirs = Run.open(files, path).entries()
    theirs = theirs.take(np.argsort(theirs.offset))
    places = theirs.offset.searchsorted(ours.offset)
    found = theirs.take(np.minimum(places, len(theirs) - 1))
    for mine, other in ((ours.offset, found.offset), (ours.deliver_after, found.deliver_after)):
        if not np.array_equal(mine, other):
            span = f"offsets {row.base_offset} to {row.end_offset}"
            raise RemoteConflict(f"{span} hold other records: are they another log's?", path=manifest.key)
