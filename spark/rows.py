"""Rows on their way into the log: from Arrow to columns, each record with its partition. No Spark here.

    value          BINARY or STRING        null: a tombstone
    deliver_after  TIMESTAMP or BIGINT     instant, or ms since the epoch; null, or no such column: as soon as possible
    key            BINARY or STRING        null, or no such column: none
    headers        ARRAY<STRUCT<key: STRING, value: BINARY>>, the value STRING, too; or MAP<STRING, BINARY or STRING>
                   a Python object each, so only where they are needed; a value may be null
    partition      INT or BIGINT           null, or no such column: by the key, without one in turn

Names are taken in any case, as Spark's are. A TIMESTAMP has microseconds: it is rounded up, never early. Rows of a part
go to the log by due time, those of equal times in the order in which they came, so that neighbours share a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from afterlog.base.errors import InvalidDeliverAfter, InvalidOption, InvalidRecord, UnknownPartition
from afterlog.index.entries import sort_by_due
from afterlog.records.batch import encode_headers, own_headers
from afterlog.records.columns import Int64Array
from afterlog.records.columns import ragged as ragged_column
from afterlog.records.encode import PART_RECORDS, RecordColumns, ragged
from afterlog.records.partitioner import Partitioner
from afterlog.records.times import AS_SOON_AS_POSSIBLE, check_instant_column

PART_BYTES = 64 << 20
"""Rows are sorted and encoded so many bytes at a time, or PART_RECORDS. Larger: more memory, larger batches."""
TYPES = {
    "value": ("binary", "string"),
    "deliver_after": ("timestamp", "bigint"),
    "key": ("binary", "string"),
    "headers": (
        "array<struct<key:string,value:binary>>", "array<struct<key:string,value:string>>", "map<string,binary>",
        "map<string,string>",
    ),
    "partition": ("int", "bigint", "smallint", "tinyint"),
}  # fmt: skip
"""The columns, and of which of Spark's types they may be."""
CASTS = {
    "timestamp_ntz": "cast it to timestamp, which reads it in the session's time zone",
    "date": "cast it to timestamp, which takes midnight in the session's time zone",
}
"""What would do in place of a type that is none of them."""


def check_columns(columns: Sequence[tuple[str, str]]) -> None:
    """Raises InvalidOption where the columns, each with its name and type, are not those that can be written."""
    names = [name.lower() for name, _ in columns]
    for name, (asked, kind) in zip(names, columns, strict=True):
        if name not in TYPES:
            raise InvalidOption(f"column {asked!r} of type {kind} cannot be written: there are {', '.join(TYPES)}")
        if kind not in TYPES[name]:
            cast = f": {CASTS[kind]}" if kind in CASTS else ""
            raise InvalidOption(f"column {name!r} must be {' or '.join(TYPES[name])}, not {kind}{cast}")
        if names.count(name) > 1:
            raise InvalidOption(f"column {name!r} of type {kind} is there twice")
    if "value" not in names:
        raise InvalidOption(f"column 'value' of type binary or string is missing; there are {', '.join(names)}")


class Routed(NamedTuple):
    """Records of one partition, by due time."""

    partition: int
    columns: RecordColumns


def routed(
    rows: Iterable[pa.RecordBatch], partitioner: Partitioner, turn: int, timestamp_ms: int, *,
    check_instants: bool = False,
) -> Iterator[Routed]:  # fmt: skip
    """All rows, part by part. `turn`: of the first one without a key. partitioner, check_instants: of the topic.

    Raises InvalidRecord, InvalidDeliverAfter, UnknownPartition, which say which row it is of those of the task.
    """
    before = 0
    for part in _parts(rows):
        numbers = _numbers(part, partitioner, turn, before)
        turn += len(numbers)
        due = _deliver_after(part, before)
        if check_instants:
            check_instant_column(due, timestamp_ms, before=before)
        headers = _headers(part.column("headers"), before) if _has(part, "headers") else None
        before += len(numbers)
        order = _order(numbers, due)
        if order is not None:
            part, numbers, due = part.take(pa.array(order)), numbers[order], due[order]
            headers = None if headers is None else [headers[row] for row in order.tolist()]
        columns = _columns(part, due, headers, timestamp_ms)
        present, starts = np.unique(numbers, return_index=True)
        ends = [*starts[1:].tolist(), len(numbers)]
        for number, start, end in zip(present.tolist(), starts.tolist(), ends, strict=True):
            yield Routed(number, columns[start:end])


def _parts(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows in fewer, larger batches; none that is empty."""
    held: list[pa.RecordBatch] = []
    for batch in rows:
        if not batch.num_rows:
            continue
        batch = batch.rename_columns([name.lower() for name in batch.schema.names])
        full = sum(each.num_rows for each in held) + batch.num_rows > PART_RECORDS
        if held and (full or sum(each.nbytes for each in held) >= PART_BYTES):
            yield from _combined(held)
            held = []
        held.append(batch)
    if held:
        yield from _combined(held)


def _combined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """One batch, or a few where 32-bit offsets do not reach."""
    combined: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return combined


def _columns(
    part: pa.RecordBatch, due: Int64Array, headers: Sequence[bytes] | None, timestamp_ms: int
) -> RecordColumns:
    values, value_valid = ragged(part.column("value"))
    keys, key_valid = ragged(part.column("key"), "key") if _has(part, "key") else (None, None)
    return RecordColumns(
        values=values,
        value_valid=value_valid,
        keys=keys,
        key_valid=key_valid,
        headers=None if headers is None else ragged_column(headers)[0],
        timestamps=np.full(part.num_rows, timestamp_ms),
        deliver_after=due,
    )


def _has(part: pa.RecordBatch, name: str) -> bool:
    return name in part.schema.names


def _order(numbers: Int64Array, due: Int64Array) -> Int64Array | None:
    """The rows by (partition, due time), stably; None where they are so already."""
    _, by_due = sort_by_due(due)
    numbers = numbers[by_due]
    if not bool((numbers[1:] < numbers[:-1]).any()):
        order = by_due
    else:
        narrow = numbers.astype(np.uint16) if int(numbers.max()) < 1 << 16 else numbers  # a radix sort
        order = by_due[np.argsort(narrow, kind="stable")]
    return None if bool((order[1:] > order[:-1]).all()) else order


def _deliver_after(part: pa.RecordBatch, before: int) -> Int64Array:
    """As asked, ms: int64[n]. before: rows of the task before this part."""
    if not _has(part, "deliver_after"):
        return np.full(part.num_rows, AS_SOON_AS_POSSIBLE, np.int64)
    column = part.column("deliver_after")
    times = _int64(column, 0)
    if pa.types.is_timestamp(column.type):
        times = -(-times // 1_000)
    if int(times.min()) < 0:
        row = int(times.argmin())
        raise InvalidDeliverAfter(
            f"row {before + row}: deliver_after {times[row]} is a time before 1970; null is as soon as possible"
        )
    if column.null_count:
        times[np.asarray(column.is_null())] = AS_SOON_AS_POSSIBLE
    return times


def _numbers(part: pa.RecordBatch, partitioner: Partitioner, turn: int, before: int) -> Int64Array:
    """The partition of each row, int64[n]. before: rows of the task before this part."""
    partitions, numbers = partitioner.partitions, partitioner.in_turn(part.num_rows, turn)
    if partitions > 1 and _has(part, "key"):
        keys, valid = ragged(part.column("key"), "key")
        by_key = partitioner.partitions_of(keys)
        numbers = by_key if valid is None else np.where(valid, by_key, numbers)
    if not _has(part, "partition"):
        return numbers
    column = part.column("partition")
    named = _int64(column, 0)
    if not 0 <= int(named.min()) <= int(named.max()) < partitions:
        row = int(np.flatnonzero((named < 0) | (named >= partitions))[0])
        raise UnknownPartition(
            f"row {before + row}: the topic has the partitions 0 to {partitions - 1}, not {named[row]}"
        )
    return np.where(np.asarray(column.is_valid()), named, numbers)


def _int64(column: pa.Array, null: int) -> Int64Array:
    """A column of integers or timestamps, with a number for what is null."""
    numbers = column.cast(pa.int64())
    return np.array(numbers.fill_null(null) if column.null_count else numbers, np.int64)


def _headers(column: pa.Array, before: int) -> list[bytes] | None:
    """The section of each row; None where nobody has any. before: rows of the task before this part."""
    pair = _of_map if pa.types.is_map(column.type) else _of_struct
    sections: list[bytes] = []
    for row, headers in enumerate(column.to_pylist()):
        try:
            sections.append(encode_headers(own_headers([pair(header) for header in headers])) if headers else b"")
        except InvalidRecord as error:
            raise InvalidRecord(f"row {before + row}: {error}") from None
    return sections if any(sections) else None


def _of_struct(header: dict[str, Any] | None) -> tuple[str, bytes | None]:
    if header is None:
        raise InvalidRecord("a header is null")
    return _of_map((header["key"], header["value"]))


def _of_map(header: tuple[str | None, bytes | str | None]) -> tuple[str, bytes | None]:
    name, value = header
    if name is None:
        raise InvalidRecord("the key of a header is null")
    return name, value.encode() if isinstance(value, str) else value
