"""Prepared records: batches that a task has encoded and made durable beside the log, for a commit to append.

    rows ── encode ──> adoption/<job>-<batch>-<created_ms>-<attempt>.prepared ── adoption ──> log

A file is sections one after another, each with records of one partition in the order in which they are to be appended:

    section    record batches | zeros up to a multiple of 8 | columns
    columns    int64 little-endian, of n batches:  positions[n+1] | records[n] | deliver_after[n] | max_timestamp[n]

The batches are Kafka's, with base offset 0. Offsets and stamps are for the log to give when it takes them; both lie
outside Kafka's own CRC, so nothing is encoded twice. positions: where each batch begins and the last one ends.
deliver_after: as asked, of a batch the largest; -1 for as soon as possible.

A file says nothing about itself. Whoever wants it adopted has the rows of its sections, in a document with a checksum:

    [partition, position, size, batches, records, crc32c]

The CRC-32C covers the whole section. Example: two records for partition 1, due at different times, make two batches of
73 bytes; 146 bytes, 6 zeros, and 8 * (3 + 2 + 2 + 2) bytes of columns are a section of 224 bytes, whose row may be
[1,0,224,2,2,305419896].

A file has its name when it is whole and durable. What a task that failed or was killed leaves has a temporary one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from afterlog.base.checksum import crc32c
from afterlog.base.config import Config
from afterlog.base.document import well_typed, whole
from afterlog.base.errors import CorruptFile
from afterlog.base.files import Bytes, File, Files, map_file, publishing
from afterlog.base.names import ADOPTION, PREPARED, is_job, parse_prepared_file
from afterlog.records.columns import check_rising
from afterlog.records.encode import Batches, EncodedBatches, RecordColumns, encode
from afterlog.records.header import HEADER_BYTES

_ALIGNMENT = 8


class Section(NamedTuple):
    """Where records of one partition lie in a file."""

    partition: int
    position: int
    size: int
    batches: int
    records: int
    crc32c: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedFile:
    """What one task prepared."""

    name: str
    sections: tuple[Section, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a job prepared: adopted as a whole or not at all, and once for each job and batch.

    A job that runs once has the batch 0; a stream is one job, whose batches count up.
    """

    job: str
    batch: int
    topic: str
    files: tuple[PreparedFile, ...]

    @property
    def records(self) -> int:
        return sum(section.records for file in self.files for section in file.sections)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of_json(body: dict[str, Any]) -> Prepared:
        """ValueError, TypeError or LookupError where it is not what `to_json` made."""
        files = tuple(
            PreparedFile(name=file["name"], sections=tuple(Section(*map(whole, row)) for row in file["sections"]))
            for file in body["files"]
        )
        prepared = well_typed(Prepared(job=body["job"], batch=body["batch"], topic=body["topic"], files=files))
        for file in files:
            name = parse_prepared_file(file.name)
            if name is None or name.suffix != PREPARED:
                raise ValueError(f"{file.name!r} names no prepared file")
        if not is_job(prepared.job) or prepared.batch < 0:
            raise ValueError(f"no job {prepared.job!r}, or no batch {prepared.batch}")
        return prepared


class PreparedWriter:
    """A prepared file in the making; `sections` are those written so far. See `preparing`."""

    def __init__(self, file: File, config: Config) -> None:
        self.sections: list[Section] = []
        self._file = file
        self._config = config
        self._position = 0

    def add(self, partition: int, columns: RecordColumns) -> None:
        """Records of one partition; a spread sorts them by time, else their order stays. Raises RecordTooLarge."""
        parts, _ = encode(columns, self._config)
        for batches in parts:
            self._add(partition, batches)

    def _add(self, partition: int, batches: Batches) -> None:
        data, positions = [], [np.zeros(1, np.int64)]
        for row, last in batches.pieces(0, len(batches)):
            piece, at = batches.encoded(row, last)
            data.append(piece[: int(at[-1])])
            positions.append(at[1:] + positions[-1][-1])
        columns = (np.concatenate(positions), batches.records, batches.deliver_after, batches.max_timestamp)
        padding = np.zeros(-int(columns[0][-1]) % _ALIGNMENT, np.uint8)
        parts = [*data, padding, *(np.ascontiguousarray(column, "<i8").view(np.uint8) for column in columns)]
        crc = 0
        for part in parts:
            crc = crc32c(part.data, crc)
        self._file.append(parts)
        size = sum(map(len, parts))
        records = int(batches.records.sum())
        self.sections.append(Section(partition, self._position, size, len(batches), records, crc))
        self._position += size


@contextlib.contextmanager
def preparing(files: Files, store: Path, name: str, config: Config) -> Iterator[PreparedWriter]:
    """A prepared file of this name (`afterlog.base.names.prepared_file`), durable when the block has ended."""
    folder = adoption_folder(files, store)
    with publishing(files, folder / name) as file:
        yield PreparedWriter(file, config)


def adoption_folder(files: Files, store: Path) -> Path:
    """The folder of what is prepared, made where it is missing. Its name is durable when something is adopted."""
    folder = store / ADOPTION
    with contextlib.suppress(FileExistsError):
        files.make_folder(folder)
    return folder


def read_sections(files: Files, store: Path, file: PreparedFile) -> list[EncodedBatches]:
    """What each section of a file holds, verified; the batches are mapped. Raises CorruptFile."""
    path = store / ADOPTION / file.name
    try:
        data = map_file(files, path)
    except FileNotFoundError:
        raise CorruptFile("what was prepared is gone: it was adopted or given up long ago", path=path) from None
    return [_read(data, section, path) for section in file.sections]


def _read(data: Bytes, section: Section, path: Path) -> EncodedBatches:
    count, position = section.batches, section.position
    columns_size = 8 * (4 * count + 1)
    if count < 1 or position < 0 or position % _ALIGNMENT or section.size % _ALIGNMENT or columns_size > section.size:
        raise CorruptFile(f"no section can be {section}", path=path)
    part = data[position : position + section.size]
    if len(part) != section.size or crc32c(part.data) != section.crc32c:
        raise CorruptFile("a section is not as it was prepared", path=path, position=position)
    columns = part[-columns_size:].view("<i8").astype(np.int64)
    positions, rest = columns[: count + 1], columns[count + 1 :].reshape(3, count)
    records, deliver_after, max_timestamp = rest
    try:
        check_rising(positions, section.size - columns_size, HEADER_BYTES, "positions")
    except ValueError as error:
        raise CorruptFile(str(error), path=path, position=position) from None
    if positions[0] or int(records.min()) < 1 or int(rest[1:].min()) < -1 or int(records.sum()) != section.records:
        raise CorruptFile("columns that no batches can have", path=path, position=position)
    return EncodedBatches(positions, records, deliver_after, max_timestamp, part)
