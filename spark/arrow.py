"""Columns of records as Arrow record batches of exactly the types that Spark wants. Bytes are not copied.

Spark takes binary columns with int32 offsets only, and refuses a batch that differs in any type: keys and values keep
their bytes where they are and get new offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from afterlog.records.batch import decode_own_headers
from afterlog.records.columns import Bools, Int64Array, Ragged

TYPES: dict[str, pa.DataType] = {
    "STRING": pa.string(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "BINARY": pa.binary(),
    "ARRAY<STRUCT<key: STRING, value: BINARY>>": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}
"""By the names of Spark's DDL."""


def schema_of(ddl: str) -> pa.Schema:
    """The Arrow schema for columns of simple types in Spark's DDL: `topic STRING, partition INT`."""
    return pa.schema([(name, TYPES[kind]) for name, kind in map(str.split, ddl.split(", "))])


def record_batch(columns: Any, names: Sequence[str]) -> pa.RecordBatch:
    """The columns of these names (`afterlog.spark.options.COLUMNS`), of `Columns`, or of `Places` as far as it goes."""
    return pa.RecordBatch.from_arrays([_array(columns, name) for name in names], names=list(names))


def _array(columns: Any, name: str) -> pa.Array:
    match name:
        case "topic":
            return _repeated(columns.topic.encode(), len(columns))
        case "partition":
            return pa.array(columns.partition.astype(np.int32))
        case "deliver_after" | "broker_timestamp":
            times = getattr(columns, name)
            return pa.array(times, mask=_mask(times))
        case "key":
            return _binary(columns.key, columns.key_valid)
        case "value":
            return _binary(columns.value, columns.value_valid)
        case "headers":
            return pa.array(_headers(columns.headers), TYPES["ARRAY<STRUCT<key: STRING, value: BINARY>>"])
    return pa.array(getattr(columns, name))


def _binary(column: Ragged, valid: Bools) -> pa.Array:
    offsets, data = column
    first, last = int(offsets[0]), int(offsets[-1])
    mask = None if bool(valid.all()) else pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [mask, pa.py_buffer((offsets - first).astype(np.int32)), pa.py_buffer(data[first:last])]
    return pa.Array.from_buffers(pa.binary(), len(valid), buffers)


def _repeated(text: bytes, count: int) -> pa.Array:
    offsets = np.arange(count + 1, dtype=np.int32) * len(text)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text * count)])


def _mask(times: Int64Array) -> Bools | None:
    """A record of a FIFO topic asked for no time, and may have no stamp."""
    absent = times < 0
    return absent if bool(absent.any()) else None


def _headers(column: Ragged) -> list[list[dict[str, str | bytes | None]] | None]:
    """A Python object for each header: for who asks for them. A key that is not UTF-8 has marks in it."""
    offsets, data = column
    text = data.tobytes()
    sections = (text[start:end] for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True))
    return [
        [
            {"key": name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), "value": value}
            for name, value in decode_own_headers(section)
        ]
        for section in sections
    ]
