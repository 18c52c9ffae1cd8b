from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from afterlog.fetch.message_columns import Columns
from afterlog.records.batch import encode_headers
from afterlog.records.columns import ragged
from afterlog.spark.arrow import TYPES, record_batch
from afterlog.spark.options import COLUMNS

KEYS = [b"", None, b"k" * 300, b"x"]
VALUES = [b"a", b"\xff\x00", None, b""]
HEADERS = [b"", encode_headers([("h", b"1"), ("deliver-after", b"5")]), encode_headers([("caf\udce9", None)]), b""]


def columns() -> Columns:
    numbers = np.arange(4, dtype=np.int64)
    (key, key_valid), (value, value_valid), (headers, _) = ragged(KEYS), ragged(VALUES), ragged(HEADERS)
    return Columns(
        topic="täglich", partition=numbers * 0 + 3, offset=numbers + 10, delivery_offset=numbers + 20, due=numbers + 30,
        deliver_after=numbers - 1, timestamp=numbers + 50, broker_timestamp=numbers * 2 - 1,
        key=key, key_valid=key_valid, value=value, value_valid=value_valid, headers=headers,
    )  # fmt: skip


def expected() -> dict[str, list[object]]:
    return {
        "topic": ["täglich"] * 4,
        "partition": [3] * 4,
        "offset": [10, 11, 12, 13],
        "delivery_offset": [20, 21, 22, 23],
        "due": [30, 31, 32, 33],
        "deliver_after": [None, 0, 1, 2],
        "timestamp": [50, 51, 52, 53],
        "broker_timestamp": [None, 1, 3, 5],
        "key": [*KEYS],
        "value": [*VALUES],
        "headers": [[], [{"key": "h", "value": b"1"}], [{"key": "caf\ufffd", "value": None}], []],
    }


@pytest.mark.parametrize("rows", [slice(0, 4), slice(1, 3), slice(2, 2)])
def test_every_column_has_the_very_type(rows: slice) -> None:
    batch = record_batch(columns()[rows], [*COLUMNS])
    batch.validate(full=True)
    assert {name: TYPES[kind] for name, kind in COLUMNS.items()} == dict(
        zip(batch.schema.names, batch.schema.types, strict=True)
    )
    assert {name: values[rows] for name, values in expected().items()} == batch.to_pydict()


def test_bytes_are_not_copied() -> None:
    source = columns()
    batch = record_batch(source, ["value", "offset"])
    assert ["value", "offset"] == batch.schema.names
    assert source.value[1].ctypes.data == batch.column(0).buffers()[2].address
    assert source.offset.ctypes.data == batch.column(1).buffers()[1].address


def test_none_is_null_only_where_there_are_some() -> None:
    assert record_batch(columns()[:1], ["key"]).column(0).buffers()[0] is None
    assert pa.types.is_binary(record_batch(columns(), ["key"]).schema.types[0])
