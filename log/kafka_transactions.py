"""Records of a Kafka broker's log that no reader may see: markers, and transactions that were aborted or never ended.

    transactional batch ── its producer ──> the first marker of that producer behind it ──┬── COMMIT   shown
                                                                                          ├── ABORT    aborted
                                                                                          └── none     uncommitted

A producer has one transaction at a time, so that the first marker of its own after a batch decides about it; that is
what Kafka's `read_committed` comes to, once a log has ended. The marker may lie in a later segment: these are read,
headers alone, as far as it takes. A `.txnindex` tells nothing more, and need not be there.

A marker is a control batch of one record, whose key is a version and a type, i16 each: 0 is ABORT, 1 is COMMIT
(KIP-98). Compaction may have taken the record out of it; then nothing is left that it decided about.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from afterlog.base.errors import CorruptFile
from afterlog.base.files import Files, map_file
from afterlog.log.scan import GONE, Step, logs_in, steps
from afterlog.records.batch import decode_compacted
from afterlog.records.columns import Int64Array
from afterlog.records.header import CONTROL, TRANSACTIONAL

_KEY = struct.Struct(">hh")  # version, type
_ABORT, _COMMIT = 0, 1
_PRODUCER_ID = np.arange(43, 51)
_MARKER_BYTES_MAX = 1 << 16
"""A marker is not compressed; one that is, and larger, is none."""


class Fate(enum.IntEnum):
    """What becomes of a batch."""

    SHOWN = 0
    CONTROL = 1
    """It is a marker, or another control batch."""
    ABORTED = 2
    UNCOMMITTED = 3
    """Its transaction had not ended when the log did."""


class Transactions:
    """Of one segment: looks at the entries as they are read, and tells their fates in the end."""

    def __init__(self) -> None:
        self._attributes = [np.empty(0, np.int64)]
        self._ends: list[tuple[int, int, int | None]] = []
        """(row, producer, type) of each transactional batch; None: it is no marker."""
        self._count = 0

    def watch(self, found: Iterable[Step]) -> Iterator[Step]:
        """The same steps."""
        for step in found:
            self._ends += [(self._count + row, producer, kind) for row, producer, kind in _transactional(step)]
            self._attributes.append(step.found.attributes)
            self._count += len(step.found.offset)
            yield step

    def fates(self, files: Files, following: Iterable[Path]) -> npt.NDArray[np.int8]:
        """A `Fate` for each entry, int8[n]. `following`: the logs behind, in order. CorruptFile where one is broken."""
        fates = np.zeros(self._count, np.int8)
        fates[np.concatenate(self._attributes) & CONTROL != 0] = Fate.CONTROL
        decided = dict[int, int]()
        undecided = list[tuple[int, int]]()
        for row, producer, kind in reversed(self._ends):
            if kind is not None:
                decided[producer] = kind
            elif producer not in decided:
                undecided.append((row, producer))
            elif decided[producer] == _ABORT:
                fates[row] = Fate.ABORTED
        later = _first_markers(files, following, {producer for _, producer in undecided})
        for row, producer in undecided:
            kind = later.get(producer)
            fates[row] = Fate.UNCOMMITTED if kind is None else Fate.ABORTED if kind == _ABORT else Fate.SHOWN
        return fates


def later_logs(files: Files, path: Path, base_offset: int) -> Iterator[Path]:
    """The logs behind one in its folder, in order."""
    for base, later in logs_in(files, path.parent).items():  # asked when the first one is
        if base > base_offset:
            yield later


def _first_markers(files: Files, following: Iterable[Path], producers: Collection[int]) -> dict[int, int]:
    """By producer the type of its first marker in some logs, of those that have one there."""
    found, left = dict[int, int](), set(producers)
    if not left:
        return found
    for path in following:
        try:
            data = map_file(files, path)
        except FileNotFoundError:
            raise CorruptFile(GONE, path=path) from None
        for step in steps([(0, data)], 0, len(data), foreign=True, bodies=False):
            for _, producer, kind in _transactional(step):
                if kind is not None and producer in left:
                    found[producer] = kind
                    left.discard(producer)
            if not left:
                return found
            if step.fault:
                raise CorruptFile(step.fault, path=path, position=step.found.stop)
    return found


def _transactional(step: Step) -> Iterator[tuple[int, int, int | None]]:
    """(row, producer, type) of the transactional batches of a step; None: it is no marker."""
    found, piece = step.found, step.piece
    rows = np.flatnonzero(found.attributes & TRANSACTIONAL)
    if not len(rows):
        return
    begin: Int64Array = found.batch_position[rows] - step.start
    producers = piece[begin[:, None] + _PRODUCER_ID].view(">i8").ravel().tolist()
    for row, producer in zip(rows.tolist(), producers, strict=True):
        if not int(found.attributes[row]) & CONTROL:
            yield row, producer, None
            continue
        start, stop = int(found.batch_position[row]) - step.start, int(found.position[row] + found.size[row])
        kind = _type_of(bytes(piece[start : stop - step.start]))
        if kind is not None:
            yield row, producer, kind


def _type_of(marker: bytes) -> int | None:
    """ABORT, COMMIT, or neither."""
    records = decode_compacted(marker, limit_bytes=_MARKER_BYTES_MAX)
    key = records[0][1].key if records else None
    if key is None or len(key) < _KEY.size:
        return None
    kind = int(_KEY.unpack_from(key)[1])
    return kind if kind in (_ABORT, _COMMIT) else None
