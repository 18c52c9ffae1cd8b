"""From Arrow to columns by partition; no Spark."""

from __future__ import annotations

import zlib
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.base.errors import AfterlogError, InvalidDeliverAfter, InvalidOption, InvalidRecord, UnknownPartition
from afterlog.records.batch import decode_headers
from afterlog.records.partitioner import Partitioner
from afterlog.spark import rows
from afterlog.spark.arrow import TYPES
from afterlog.spark.rows import check_columns, routed

HEADERS = TYPES["ARRAY<STRUCT<key: STRING, value: BINARY>>"]
NOW_MS = 1_700_000_000_000

Row = tuple[int, bytes | None, bytes | None, int]


def found(*batches: pa.RecordBatch, partitions: int = 3, turn: int = 0) -> list[Row]:
    """(partition, key, value, deliver_after) in the order in which they go to the log."""
    read: list[Row] = []
    for part in routed(batches, Partitioner("mail", partitions, 1), turn, NOW_MS):
        columns = part.columns
        assert [NOW_MS] * len(columns) == columns.timestamps.tolist()
        keys = items(columns.keys, columns.key_valid) if columns.keys else [None] * len(columns)
        values = items(columns.values, columns.value_valid)
        read += zip([part.partition] * len(columns), keys, values, columns.deliver_after.tolist(), strict=True)
    return read


def items(column: Any, valid: Any) -> list[bytes | None]:
    offsets, data = column
    parts = [data[start:end].tobytes() for start, end in pairwise(offsets.tolist())]
    return [part if valid is None or valid[row] else None for row, part in enumerate(parts)]


def batch(**columns: Any) -> pa.RecordBatch:
    kinds = {"value": pa.binary(), "key": pa.string(), "deliver_after": pa.int64(), "partition": pa.int32()}
    kinds["headers"] = HEADERS
    arrays = {
        name: each if isinstance(each, pa.Array) else pa.array(each, kinds[name]) for name, each in columns.items()
    }
    return pa.RecordBatch.from_pydict(arrays)


RECORDS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=3),
        st.none() | st.sampled_from(["", "a", "b", "key"]),
        st.none() | st.integers(0, 3),
        st.none() | st.integers(0, 2),
    ),
    max_size=30,
)


@given(RECORDS, st.integers(1, 30), st.integers(0, 2), st.sampled_from([3, 1000]))
def test_each_row_goes_where_it_should(
    records: list[tuple[bytes | None, str | None, int | None, int | None]], size: int, turn: int, part_records: int
) -> None:
    """Against the same said row by row."""
    batches = [
        batch(**dict(zip(("value", "key", "deliver_after", "partition"), zip(*piece, strict=True), strict=True)))
        for piece in (records[start : start + size] for start in range(0, len(records), size))
    ]
    with patch.object(rows, "PART_RECORDS", part_records):
        read = found(*batches, partitions=3, turn=turn)
    expected: list[Row] = []
    for row, (value, key, due, partition) in enumerate(records):
        by_key = (turn + row) % 3 if key is None else zlib.crc32(key.encode()) % 3
        number = by_key if partition is None else partition
        expected.append((number, None if key is None else key.encode(), value, -1 if due is None else due))
    assert sorted(map(repr, expected)) == sorted(map(repr, read))
    if part_records == 1000:
        assert sorted(expected, key=lambda row: (row[0], row[3])) == read, "by due time, stably"


def test_the_least() -> None:
    assert [(0, None, b"a", -1), (1, None, b"b", -1)] == found(batch(value=pa.array(["a", "b"])), partitions=2)
    assert [] == found(batch(value=[]))
    assert [(0, b"k", b"a", -1)] == found(batch(value=[b"a"], key=pa.array([b"k"], pa.large_binary())), partitions=1)


def test_an_instant_is_rounded_up() -> None:
    times = pa.array([1_000_000, 1_000_001, None, 1_999_999, 0], pa.timestamp("us", "UTC"))
    read = found(batch(value=[b""] * 5, deliver_after=times), partitions=1)
    assert [-1, 0, 1_000, 1_001, 2_000] == [row[3] for row in read]


def test_an_instant_that_is_surely_wrong_is_told_by_its_row() -> None:
    """Seconds for milliseconds: it was row 0 whichever it was, for it came first once they were sorted."""
    good, seconds = NOW_MS + 1_000, NOW_MS // 1_000
    batches = [batch(value=[b""] * 3, deliver_after=[good, good, None]), batch(value=[b""], deliver_after=[seconds])]
    with patch.object(rows, "PART_RECORDS", 3):
        wrong = routed(batches, Partitioner("mail", 2, 1), 0, NOW_MS, check_instants=True)
        assert 2 == len([next(wrong), next(wrong)])
        with pytest.raises(InvalidDeliverAfter, match=r"row 3: .* looks like seconds"):
            next(wrong)
    assert 4 == len(found(*batches, partitions=2))


def test_headers() -> None:
    named = [[{"key": "h", "value": b"1"}, {"key": "i", "value": None}], None, []]
    [part] = routed([batch(value=[b"a", b"b", b"c"], headers=named)], Partitioner("mail", 1, 1), 0, NOW_MS)
    assert part.columns.headers
    sections = items(part.columns.headers, None)
    assert [[("h", b"1"), ("i", None)], [], []] == [decode_headers(section or b"") for section in sections]
    [part] = routed([batch(value=[b"a"], headers=[None])], Partitioner("mail", 1, 1), 0, NOW_MS)
    assert part.columns.headers is None


@pytest.mark.parametrize(
    "kind",
    [
        pa.map_(pa.string(), pa.binary()),
        pa.map_(pa.string(), pa.string()),
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])),
    ],
)
def test_headers_that_are_maps_or_text(kind: pa.DataType) -> None:
    value = (lambda text: text.encode()) if kind == pa.map_(pa.string(), pa.binary()) else (lambda text: text)
    pairs = [("h", value("wörd")), ("i", None)]
    named = [pairs if pa.types.is_map(kind) else [{"key": key, "value": each} for key, each in pairs], None]
    [part] = routed([batch(value=[b"a", b"b"], headers=pa.array(named, kind))], Partitioner("mail", 1, 1), 0, NOW_MS)
    assert part.columns.headers
    sections = items(part.columns.headers, None)
    assert [[("h", "wörd".encode()), ("i", None)], []] == [decode_headers(section or b"") for section in sections]


def test_names_in_any_case() -> None:
    upper = batch(value=[b"a"], key=["k"], deliver_after=[7], partition=[2])
    check_columns([("VALUE", "binary"), ("Deliver_After", "bigint"), ("Key", "string"), ("PARTITION", "int")])
    assert [(2, b"k", b"a", 7)] == found(upper.rename_columns([name.upper() for name in upper.schema.names]))


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"deliver_after": [5, 5, 5, -7]}, "row 5: deliver_after -7"),
        ({"partition": [0, 3, 0, 0]}, "row 3: the topic has the partitions 0 to 2, not 3"),
        ({"headers": [None, None, [None], None]}, "row 4: a header is null"),
    ],
)
def test_a_row_is_told_by_its_number_in_the_task(columns: dict[str, Any], told: str) -> None:
    good = batch(value=[b"a", b"b"], **{name: [None] * 2 for name in columns})
    with patch.object(rows, "PART_RECORDS", 4), pytest.raises(AfterlogError, match=told):
        found(good, batch(value=[b""] * 4, **columns))


@pytest.mark.parametrize(
    ("error", "columns"),
    [
        (InvalidDeliverAfter, {"deliver_after": [-1]}),
        (InvalidDeliverAfter, {"deliver_after": pa.array([-1_000], pa.timestamp("us", "UTC"))}),
        (UnknownPartition, {"partition": [3]}),
        (UnknownPartition, {"partition": [-1]}),
        (InvalidRecord, {"headers": [[{"key": "deliver-after", "value": b"1"}]]}),
        (InvalidRecord, {"headers": [[{"key": None, "value": b"1"}]]}),
        (InvalidRecord, {"headers": [[None]]}),
    ],
)
def test_what_no_record_can_be(error: type[AfterlogError], columns: dict[str, Any]) -> None:
    with pytest.raises(error):
        found(batch(value=[b""], **columns))


def test_columns() -> None:
    check_columns([(name, kinds[-1]) for name, kinds in rows.TYPES.items()])
    check_columns([("value", "string")])


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ([("key", "binary")], "'value' of type binary or string is missing"),
        ([("value", "binary"), ("due", "bigint")], "'due' of type bigint"),
        ([("value", "int")], "'value' must be binary or string, not int"),
        ([("value", "binary"), ("deliver_after", "timestamp_ntz")], "timestamp or bigint, not timestamp_ntz: cast it"),
        ([("value", "binary"), ("deliver_after", "date")], "not date: cast it to timestamp"),
        ([("value", "binary"), ("Value", "binary")], "twice"),
        ([("value", "binary"), ("value", "string")], "twice"),
    ],
)
def test_what_no_column_can_be(columns: list[tuple[str, str]], told: str) -> None:
    with pytest.raises(InvalidOption, match=told):
        check_columns(columns)
