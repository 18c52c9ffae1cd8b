"""Reading entries, wherever they lie: the one module that scans, verifies and locates them.

    pieces ──> steps: so many entries at a time, checked ──┬──> read          the intact beginning, why it ends there
                                                           ├──> check_log     every check, nothing is kept
                                                           ├──> walk          from where the offset index says
                                                           └──> more_faults, every_entry    on, after what is broken

A *piece* is some bytes and their position in the log; no entry lies in two. A mapping is one piece, an active segment
has up to two, one in object storage as many as it takes, each read when it is asked for. Positions that leave this
module are those in the log, whatever piece an entry lies in.

A fault is why the next entry was not taken, in words (`records/columns.py`); empty where nothing is wrong. It stands at
the byte where that entry begins: `CorruptFile` there is for who cannot do with less than all. Bare batches do not cover
their offset with a checksum: each must follow the one before it. Those of a Kafka broker (*foreign*) may leave gaps,
and so does what a cleaning left of a segment (*gaps*); but offsets never fall.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from afterlog.base.errors import CorruptFile, InvalidBatch
from afterlog.base.files import Bytes, Files, lost, map_file
from afterlog.base.names import LOG, parse_segment_file, segment_file
from afterlog.index.cancel_index import Cancelled
from afterlog.index.entries import Entries
from afterlog.index.sparse import SparseIndexes
from afterlog.records import kernels
from afterlog.records.awaited import Awaited
from afterlog.records.columns import (
    BODY_CRC,
    FAULTS,
    INDEX,
    LENGTH,
    LOST,
    OFFSET,
    OK,
    SHORT,
    Int64Array,
    Scan,
    view_of,
)
from afterlog.records.control import Controls, ControlType, read_controls
from afterlog.records.entry import PREFIX_MAGIC, Entry, read_compacted, read_entry
from afterlog.records.entry_origin import NO_ORIGINS, Origins, origins_in
from afterlog.records.header import LENGTH_END, TRANSACTIONAL
from afterlog.records.producer_sequence import ProducerRows, producers_in

Pieces = Iterable[tuple[int, Bytes]]
"""(position in the log, bytes), in the order of the log."""
Advance = Callable[[int], None]
"""Called with the bytes that were read since the last call."""
GONE = "the file is gone"
CUT = ".cut-"
"""What repair cuts off `<name>.log` it keeps as `<name>.log.cut-<position>`."""
STEP_ENTRIES = 1 << 16
"""Entries scanned at a time. Larger: fewer calls, more memory."""
OLD_MESSAGE_BYTES_MIN = 26
"""Offset, length, CRC, magic, attributes, no key, no value; a timestamp more in magic 1."""
_WINDOW_BYTES = 1 << 20


class Scannable(Protocol):
    """A segment, as far as it is read here."""

    @property
    def path(self) -> Path: ...

    @property
    def base_offset(self) -> int: ...

    @property
    def sparse(self) -> SparseIndexes: ...

    @property
    def foreign(self) -> bool: ...

    @property
    def has_gaps(self) -> bool: ...

    def view(self, start: int, end: int) -> Pieces: ...


class Step(NamedTuple):
    """Entries that follow each other in one piece, and why the next one was not taken."""

    found: Scan
    fault: str
    piece: Bytes
    start: int
    """Where the piece begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intact:
    """The intact beginning of a log, or of a part of one: its entries in offset order, and what ends it."""

    path: Path
    base_offset: int
    """Of the first entry."""
    entries: Entries
    max_timestamp: Int64Array
    cancelled: Cancelled
    """What the control batches among the entries have cancelled."""
    size: int
    """Of the file."""
    stop: int
    """The byte after the last intact entry."""
    end_offset: int
    stamp_ms: int
    """The largest broker timestamp; 0 where no entry has one."""
    fault: str
    producers: ProducerRows = field(default_factory=ProducerRows.empty)
    """What of it a producer has numbered; of a Kafka broker's log nothing."""
    origins: tuple[Origins, ...] = ()
    """What of it was replicated, in its order."""
    fates: npt.NDArray[np.int8] | None = None
    """Of a Kafka broker's log, what becomes of each entry (`kafka_transactions.Fate`); 0: readers see it."""

    @property
    def shown(self) -> Entries:
        """The entries that readers may see."""
        return self.entries if self.fates is None else self.entries.take(np.flatnonzero(self.fates == 0))

    def whole(self) -> Intact:
        """Itself. CorruptFile where there is a fault."""
        if self.fault:
            raise CorruptFile(self.fault, path=self.path, position=self.stop)
        return self

    def index(self, sparse: SparseIndexes, end: int | None = None) -> SparseIndexes:
        """Note the entries before byte `end`."""
        rows = len(self.entries) if end is None else int(self.entries.position.searchsorted(end))
        entries = self.entries[:rows]
        sparse.add(entries.position, entries.offset + entries.records - 1, self.max_timestamp[:rows])
        return sparse


def unheard(size: int) -> None:
    """Nobody watches the progress."""


def corrupt(path: Path, position: int, fault: int, where: str = "") -> CorruptFile:
    """The error for an entry that fails a check, by its code."""
    return CorruptFile(FAULTS[fault] + where, path=path, position=position)


def steps(
    pieces: Pieces,
    start: int,
    end: int,
    offset: int = -1,
    *,
    bodies: bool = True,
    first: int | None = None,
    limit: int | None = None,
    foreign: bool = False,
    gaps: bool = False,
    advance: Advance = unheard,
) -> Iterator[Step]:
    """The entries between two bytes, at the first of which one begins. A fault ends the last step, and all.

    offset: of the first entry; -1: any. bodies: their checksums, too; all else is always checked. limit: entries of a
    step, `first` of the first one. gaps: offsets may be missing between entries.
    """
    for piece_start, piece in pieces:
        position, stop = max(start - piece_start, 0), min(end - piece_start, len(piece))
        while position < stop:
            dense = -1 if foreign or gaps else offset
            lost_before = lost(piece).pages
            found = kernels.scan_entries(piece, position, stop, dense, bodies, first or limit or STEP_ENTRIES, foreign)
            if foreign and found.fault == LENGTH:
                found = _compacted(found, piece, stop, bodies)
            left = stop - found.stop
            if foreign and found.fault and left >= LENGTH_END and not bool(piece[found.stop : stop].any()):
                found = found._replace(stop=stop, fault=OK)  # made that long before it was filled: `log.preallocate`
            if dense < 0:
                found = _in_order(found, offset, foreign or gaps)
            if lost(piece).pages != lost_before:
                found = _before(found, lost(piece).first - piece_start)
            advance(found.stop - position if not found.fault else end - piece_start - position)
            position, first = found.stop, None
            if len(found.offset):
                offset = found.end_offset
            if len(found.offset) or found.fault:
                yield Step(found.moved(piece_start), FAULTS[found.fault] if found.fault else "", piece, piece_start)
            if found.fault:
                return


def _before(found: Scan, position: int) -> Scan:
    """The entries that end before what the disk does not give: whatever was found there was read from zeros."""
    rows = int(np.append(found.position[1:], found.stop)[: len(found.position)].searchsorted(position, side="right"))
    return found.first(rows, LOST) if rows < len(found.position) else found._replace(fault=LOST)


def _compacted(found: Scan, piece: Bytes, stop: int, bodies: bool) -> Scan:
    """Where a batch of fewer records than offsets is the fault, none: it is found alone, or the next time.

    Its `records` are its offsets, as in any other entry.
    """
    entry = read_compacted(view_of(piece), found.stop, stop, bodies)
    if entry is None:
        return found
    if len(found.offset):
        return found._replace(fault=OK)
    header = entry.header
    row = (
        entry.position, entry.size, entry.position, header.base_offset, header.last_offset_delta + 1, -1, -1,
        header.max_timestamp, header.attributes,
    )  # fmt: skip
    return Scan._make([*(np.array([value], np.int64) for value in row), entry.position + entry.size, OK])


def _in_order(found: Scan, offset: int, gaps: bool) -> Scan:
    """The entries up to the first whose offset is not after the one before it."""
    if len(found.offset) > 1:
        later, behind = found.offset[1:], found.offset[:-1] + found.records[:-1]
        wrong = np.flatnonzero(later < behind if gaps else later != behind)
        if len(wrong):
            found = found.first(int(wrong[0]) + 1, OFFSET)
    return found.first(0, OFFSET) if gaps and len(found.offset) and int(found.offset[0]) < offset else found


def walk(
    log: Scannable, start: int, end: int, *, bodies: bool = True, first: int | None = None, limit: int | None = None
) -> Iterator[Scan]:
    """The entries between two bytes, of the first of which the offset index says that one begins there. CorruptFile."""
    known = log.base_offset if start == 0 else -1
    taken = steps(
        log.view(start, end),
        start,
        end,
        known,
        bodies=bodies,
        first=first,
        limit=limit,
        foreign=log.foreign,
        gaps=log.has_gaps,
    )
    for step in checked(log, taken, start, known):
        yield step.found


def checked(log: Scannable, taken: Iterable[Step], start: int, known: int = -1) -> Iterator[Step]:
    """The steps of a walk from byte `start`, where the offset index says that an entry begins. CorruptFile.

    known: its offset; -1: as the index says.
    """
    for step in taken:
        found = step.found
        if known < 0 and len(found.offset):
            known = int(found.offset[0])
            if known + int(found.records[0]) - 1 != log.sparse.offsets.last_offset_at(start):
                raise corrupt(log.path, start, INDEX)
        if step.fault:
            raise CorruptFile(step.fault, path=log.path, position=found.stop)
        yield step


def read(
    path: Path,
    base_offset: int,
    taken: Iterable[Step],
    *,
    start: int,
    size: int,
    foreign: bool = False,
    gaps: bool = False,
) -> Intact:
    """What the steps, which begin at byte `start`, have found.

    The last entry is left out where it is a RESCHEDULE, whose follower is torn: then neither was acknowledged. Behind
    gaps it may have been cleaned away.
    CorruptFile where a control batch is none that is known here: that is nothing to repair.
    """
    parts, controls, producers, origins = list[Scan](), list[Controls](), list[ProducerRows](), list[Origins]()
    stop, fault = start, ""
    for step in taken:
        if len(step.found.offset):
            parts.append(step.found)
            controls.append(Controls.empty() if foreign else _controls(path, step))
            if not foreign:
                producers.append(producers_of_step(step))
                found = origins_of_step(path, step, controls[-1])
                origins += [found] if found is not NO_ORIGINS else []
        stop, fault = step.found.stop, step.fault
    if parts and not gaps and controls[-1].unfollowed(parts[-1]):
        parts[-1] = parts[-1].first(len(parts[-1].offset) - 1, SHORT)
        stop, fault = parts[-1].stop, FAULTS[SHORT]

    def column(name: str) -> Int64Array:
        return np.concatenate([getattr(part, name) for part in parts]) if parts else np.empty(0, np.int64)

    offset, records = column("offset"), column("records")
    end_offset = int(offset[-1] + records[-1]) if len(offset) else base_offset
    return Intact(
        path=path,
        base_offset=base_offset,
        # One without a prefix was asked for as soon as possible.
        entries=Entries(np.maximum(column("deliver_after"), 0), offset, column("position"), records),
        max_timestamp=column("max_timestamp"),
        cancelled=Cancelled.concatenate([part.cancelled for part in controls]).before(end_offset),
        size=size,
        stop=stop,
        end_offset=end_offset,
        stamp_ms=int(column("broker_timestamp").max(initial=0)),
        fault=fault,
        producers=ProducerRows.concatenate(producers),
        origins=(*origins,),
    )


def producers_of_step(step: Step) -> ProducerRows:
    """What of the entries of a step a producer has numbered."""
    return producers_in(step.piece, step.found.moved(-step.start)).runs()


def origins_of_step(path: Path, step: Step, controls: Controls | None = None) -> Origins:
    """What of the entries of a step was replicated, or is not to be. Raises CorruptFile.

    controls: those of the step, where they are known.
    """
    controls = controls or _controls(path, step)
    try:
        found = origins_in(step.piece, step.found.moved(-step.start))
        notes = [note for note in controls.notes if note.type == ControlType.CANCEL_AWAITED]
        return found._replace(awaited=tuple(Awaited.of_bytes(note.value) for note in notes)) if notes else found
    except InvalidBatch as error:
        raise CorruptFile(str(error), path=path) from error


def intact_steps(log: Scannable, stop: int) -> Iterator[Step]:
    """The entries of a segment up to a byte, in chunks. Raises CorruptFile."""
    for step in steps(log.view(0, stop), 0, stop, log.base_offset, gaps=log.has_gaps):
        if step.fault:
            raise CorruptFile(step.fault, path=log.path, position=step.found.stop)
        yield step


def _controls(path: Path, step: Step) -> Controls:
    """Raises CorruptFile where a batch is one that no append of this log makes: somebody else wrote it."""
    transactional = np.flatnonzero(step.found.attributes & TRANSACTIONAL)
    if len(transactional):
        offset, position = (int(column[transactional[0]]) for column in (step.found.offset, step.found.position))
        raise CorruptFile(
            f"the batch at offset {offset} is transactional: no append here makes one, and no marker would end it",
            path=path,
            position=position,
        )
    try:
        return read_controls(step.piece, step.found.moved(-step.start))
    except InvalidBatch as error:
        raise CorruptFile(str(error), path=path, position=int(step.found.position[0])) from error


def read_segment(log: Scannable, end: int) -> Intact:
    """The entries of a segment up to the byte `end`, all of which must be intact. CorruptFile."""
    taken = steps(log.view(0, end), 0, end, log.base_offset, gaps=log.has_gaps)
    return read(log.path, log.base_offset, taken, start=0, size=end, gaps=log.has_gaps).whole()


def read_log(
    files: Files,
    path: Path,
    base_offset: int,
    *,
    start: int = 0,
    end: int | None = None,
    gaps: bool | None = None,
    advance: Advance = unheard,
) -> Intact:
    """The entries of a log from byte `start`, which begins offset `base_offset`, to `end` (None: all of the file).

    gaps: whether offsets may be missing in between; by default where the name says that a cleaning wrote it. Raises
    CorruptFile where a control batch is none that is known here.
    """
    try:
        data, fault = map_file(files, path), ""
    except FileNotFoundError:
        data, fault = np.empty(0, np.uint8), GONE
    stop = len(data) if end is None else min(end, len(data))
    if end is not None and stop < end:
        fault = fault or f"{end} bytes were durable, {stop} are left"
    if gaps is None:
        named = parse_segment_file(path.name)
        gaps = named is not None and named.generation > 0
    taken = steps([(0, data)], start, stop, base_offset, gaps=gaps, advance=advance)
    found = read(path, base_offset, taken, start=min(start, stop), size=len(data), gaps=gaps)
    return replace(found, fault=found.fault or fault)


def check_log(
    files: Files,
    path: Path,
    base_offset: int,
    *,
    size: int,
    end_offset: int,
    foreign: bool = False,
    gaps: bool = False,
    sparse: SparseIndexes | None = None,
) -> None:
    """Every check of every entry of a log that is sealed, in little memory. CorruptFile, FileNotFoundError.

    `sparse`: is told of the entries.
    """
    data = map_file(files, path)
    if len(data) != size:
        raise CorruptFile(f"sealed at {size} bytes, now {len(data)}", path=path)
    offset = base_offset
    for found, fault, *_ in steps([(0, data)], 0, size, base_offset, foreign=foreign, gaps=gaps):
        if fault:
            raise CorruptFile(fault, path=path, position=found.stop)
        if sparse is not None:
            sparse.add(found.position, found.offset + found.records - 1, found.max_timestamp)
        offset = found.end_offset
    if offset != end_offset:
        raise CorruptFile(f"sealed at offset {end_offset}, now {offset}", path=path, position=size)


def more_faults(data: Bytes, position: int) -> Iterator[tuple[int, str]]:
    """Where and why entries are broken behind the broken one at `position`, as far as intact ones are found between."""
    view = view_of(data)
    while (position := _next_entry(view, position)) < len(data):
        for found, fault, *_ in steps([(0, data)], position, len(data), gaps=True):
            position = found.stop
            if fault:
                yield position, fault


def every_entry(data: Bytes) -> Iterator[tuple[int, int, Entry | None, str]]:
    """(position, size, entry, fault) of each entry, and of what lies between two: there None is the entry.

    Bare batches may be a Kafka broker's.
    """
    view, position = view_of(data), 0
    while position < len(view):
        entry, fault = read_entry(view, position, len(view), any_epoch=True), ""
        if isinstance(entry, int):
            fault = FAULTS[entry]
            if entry == BODY_CRC:
                entry = read_entry(view, position, len(view), check_body=False, any_epoch=True)
            elif entry == LENGTH and (compacted := read_compacted(view, position, len(view))) is not None:
                entry, fault = compacted, ""
        whole = entry if isinstance(entry, Entry) else None
        if whole is None and (size := _old_message_bytes(view, position)):
            fault, behind = f"a message of magic {view[position + 16]}, as before Kafka 0.11", position + size
        else:
            behind = _next_entry(view, position) if whole is None else position + whole.size
        yield position, behind - position, whole, fault
        position = behind


def _old_message_bytes(view: memoryview, position: int) -> int:
    """How long the intact message of magic 0 or 1 is that begins there; 0 where none does."""
    if len(view) - position < OLD_MESSAGE_BYTES_MIN or view[position + 16] not in (0, 1):
        return 0
    length, crc = struct.unpack_from(">iI", view, position + 8)
    end = position + LENGTH_END + length
    is_whole = OLD_MESSAGE_BYTES_MIN - LENGTH_END <= length <= len(view) - position - LENGTH_END
    return end - position if is_whole and zlib.crc32(view[position + 16 : end]) == crc else 0


def _next_entry(view: memoryview, position: int) -> int:
    """Where the next entry with an intact header begins after the one at `position`; the end where none does.

    Behind a broken header it is found by the prefix's magic: in a log of bare batches nothing is.
    """
    entry = read_entry(view, position, len(view), check_body=False, any_epoch=True)
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


def logs_in(files: Files, folder: Path, *, cleaning: int | None = None) -> dict[int, Path]:
    """The logs in a folder by base offset, ascending; of several of one base the one of the last cleaning.

    cleaning: none that a later one wrote.
    """
    parsed = (parse_segment_file(name) for name in files.names(folder))
    found = sorted(
        (each.base_offset, each.generation)
        for each in parsed
        if each is not None and each.suffix == LOG and (cleaning is None or each.generation <= cleaning)
    )
    return {base: folder / segment_file(base, LOG, generation) for base, generation in found}
