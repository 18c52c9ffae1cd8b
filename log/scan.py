"""Reading the log of a segment that may be broken: its intact beginning, why it ends there, where it goes on behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from afterlog.errors import CorruptFile, InvalidBatch
from afterlog.files import Files, map_file
from afterlog.index.cancel_index import Cancelled
from afterlog.index.entries import Entries
from afterlog.index.sparse import SparseIndexes
from afterlog.names import LOG, parse_segment_file
from afterlog.records import kernels
from afterlog.records.columns import Int64Array
from afterlog.records.control import read_controls, read_tail
from afterlog.records.entry import PREFIX_MAGIC, Entry, read_entry

Advance = Callable[[int], None]
"""Called with the bytes that were read since the last call."""
GONE = "the file is gone"
CUT = ".cut-"
"""What repair cuts off `<name>.log` it keeps as `<name>.log.cut-<position>`."""
_STEP_ENTRIES = 1 << 16
_WINDOW_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """The intact beginning of a segment's log: its entries in offset order, and what ends it."""

    path: Path
    base_offset: int
    entries: Entries
    max_timestamp: Int64Array
    cancelled: Cancelled
    """What the control batches among the entries have cancelled."""
    size: int
    """Of the file."""
    stop: int
    """The byte behind the last intact entry."""
    end_offset: int
    stamp_ms: int
    """The largest broker timestamp; 0 where no entry has one."""
    fault: str
    """Why it ends there; empty where nothing is wrong."""


def unheard(size: int) -> None:
    """Nobody watches the progress."""


def read_log(
    files: Files, path: Path, base_offset: int, *, start: int = 0, end: int | None = None, advance: Advance = unheard
) -> Stretch:
    """The entries of a log from byte `start`, which begins offset `base_offset`, to `end` (None: all of the file).

    Raises CorruptFile where a control batch is none that is known here: that is nothing to repair.
    """
    try:
        data, fault = map_file(files, path), ""
    except FileNotFoundError:
        data, fault = np.empty(0, np.uint8), GONE
    stop = len(data) if end is None else min(end, len(data))
    if end is not None and len(data) < end:
        fault = fault or f"{end} bytes were durable, {len(data)} are left"
    scans: list[kernels.Scan] = []
    cancelled: list[Cancelled] = []
    position, offset = min(start, stop), base_offset
    while position < stop:
        scan = kernels.scan_entries(data, position, stop, offset, True, _STEP_ENTRIES)
        try:
            at_end = scan.fault or scan.stop == stop
            scan, named = read_tail(data, scan) if at_end else (scan, read_controls(data, scan).cancelled)
        except InvalidBatch as error:
            raise CorruptFile(str(error), path=path, position=position) from error
        scans.append(scan)
        cancelled.append(named)
        advance(scan.stop - position)
        position = scan.stop
        offset += int(scan.records.sum())
        if scan.fault:
            advance(stop - position)
            fault = kernels.FAULTS[scan.fault]
            break
    columns = {
        name: np.concatenate([getattr(scan, name) for scan in scans]) if scans else np.empty(0, np.int64)
        for name in ("deliver_after", "offset", "position", "records", "max_timestamp", "broker_timestamp")
    }
    return Stretch(
        path=path,
        base_offset=base_offset,
        # One without a prefix was asked for as soon as possible.
        entries=Entries(
            np.maximum(columns["deliver_after"], 0), columns["offset"], columns["position"], columns["records"]
        ),
        max_timestamp=columns["max_timestamp"],
        cancelled=Cancelled.concatenate(cancelled),
        size=len(data),
        stop=position,
        end_offset=offset,
        stamp_ms=int(columns["broker_timestamp"].max(initial=0)),
        fault=fault,
    )


def check_log(
    files: Files,
    path: Path,
    base_offset: int,
    *,
    size: int,
    end_offset: int,
    plain: bool = False,
    sparse: SparseIndexes | None = None,
) -> None:
    """Every check of every entry of a log that is sealed, in little memory. CorruptFile, FileNotFoundError.

    `plain`: one that a Kafka broker wrote. `sparse`: is told of the entries.
    """
    data = map_file(files, path)
    if len(data) != size:
        raise CorruptFile(f"sealed at {size} bytes, now {len(data)}", path=path)
    position, offset = 0, base_offset
    while position < size:
        scan = kernels.scan_entries(data, position, size, -1 if plain else offset, True, _STEP_ENTRIES, plain)
        if scan.fault:
            raise CorruptFile(kernels.FAULTS[scan.fault], path=path, position=scan.stop)
        if sparse is not None:
            sparse.add(scan.position, scan.offset + scan.records - 1, scan.max_timestamp)
        position, offset = scan.stop, int(scan.offset[-1] + scan.records[-1])
    if offset != end_offset:
        raise CorruptFile(f"sealed at offset {end_offset}, now {offset}", path=path, position=size)


def next_entry(view: memoryview, position: int) -> int:
    """Where the next entry with an intact header begins behind the broken one at `position`; the end where none does.

    Found by the prefix's magic: behind a broken header of a log of bare batches nothing is found.
    """
    entry = read_entry(view, position, len(view), check_body=False)
    if isinstance(entry, Entry):
        return position + entry.size
    magic = PREFIX_MAGIC.to_bytes(2, "big")
    for start in range(position + 1, len(view), _WINDOW_BYTES):
        window = view[start : start + _WINDOW_BYTES + 1].tobytes()
        found = window.find(magic)
        while found >= 0:
            if isinstance(read_entry(view, start + found, len(view), check_body=False), Entry):
                return start + found
            found = window.find(magic, found + 1)
    return len(view)


def log_bases(files: Files, folder: Path) -> list[int]:
    """Base offsets of the segments that have a log in the folder, ascending."""
    parsed = (parse_segment_file(name) for name in files.names(folder))
    return sorted(one[0] for one in parsed if one is not None and one[1] == LOG)
