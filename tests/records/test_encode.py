from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.base.config import Codec, Config
from afterlog.base.errors import InvalidBatch, InvalidDeliverAfter, InvalidRecord, RecordTooLarge, UnsupportedCodec
from afterlog.records import encode as batches_module
from afterlog.records.batch import Record, decode_batch, encode_batch
from afterlog.records.columns import Ragged
from afterlog.records.encode import (
    RECORD_OVERHEAD_BYTES,
    Batches,
    EncodedBatches,
    RecordColumns,
    cut,
    encode,
    join_ragged,
    parse,
    ragged,
    same_headers,
    stamp_batches,
    take_ragged,
)
from afterlog.records.header import HEADER_BYTES, BatchHeader
from afterlog.records.times import AS_SOON_AS_POSSIBLE

NOW_MS = 1_700_000_000_000
LIMIT_BYTES = 1 << 20


def int64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def columns_of(
    values: list[bytes | None], deliver_after: list[int] | None = None, keys: list[bytes | None] | None = None
) -> RecordColumns:
    value_column, value_valid = ragged(values)
    key_column, key_valid = (None, None) if keys is None else ragged(keys)
    return RecordColumns(
        values=value_column,
        value_valid=value_valid,
        keys=key_column,
        key_valid=key_valid,
        timestamps=NOW_MS + np.arange(len(values)),
        deliver_after=int64(*(deliver_after or [AS_SOON_AS_POSSIBLE] * len(values))),
    )


def strings(column: Ragged) -> list[bytes]:
    offsets, data = column
    return [data[start:end].tobytes() for start, end in itertools.pairwise(offsets)]


def split(batches: Batches, row: int = 0, last: int | None = None) -> list[bytes]:
    data, positions = batches.encoded(row, len(batches) if last is None else last)
    return [data[start:end].tobytes() for start, end in itertools.pairwise(positions)]


def records_of(parts: list[Batches]) -> list[list[Record]]:
    return [decode_batch(batch, limit_bytes=LIMIT_BYTES) for part in parts for batch in split(part)]


# --- Columns of byte strings


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], []),
        ([b"", b"a", b"bc"], [b"", b"a", b"bc"]),
        ((b"a", bytearray(b"b"), memoryview(b"cd")), [b"a", b"b", b"cd"]),
        ([None, b"a", None], [None, b"a", None]),
        ([None], [None]),
        (iter([b"a", None]), [b"a", None]),
        ((int64(0, 1, 3), b"abc"), [b"a", b"bc"]),
        ((np.array([1, 2], np.int32), np.frombuffer(b"abc", np.uint8)), [b"b"]),
        ((int64(2), b"abc"), []),
        (pa.array([b"a", None, b"bc"]), [b"a", None, b"bc"]),
        (pa.array(["ä", ""]), ["ä".encode(), b""]),
        (pa.array([b"a", None, b"bc"], pa.large_binary()), [b"a", None, b"bc"]),
        (pa.array([b"a", None, b"bc", b"d"])[1:3], [None, b"bc"]),
        (pa.chunked_array([[b"a"], [None, b"b"]]), [b"a", None, b"b"]),
        (pa.array([], pa.binary()), []),
        (pa.chunked_array([], pa.binary()), []),
        (pa.array([None, None], pa.binary()), [None, None]),
    ],
)
def test_ragged(values: Any, expected: list[bytes | None]) -> None:
    column, valid = ragged(values)
    assert len(expected) == len(column[0]) - 1
    flags = [True] * len(expected) if valid is None else valid.tolist()
    assert [value is not None for value in expected] == flags
    assert expected == [value if there else None for value, there in zip(strings(column), flags, strict=True)]
    assert np.dtype("<i8") == column[0].dtype


@pytest.mark.parametrize(
    "values",
    [
        b"bytes",
        "text",
        bytearray(b"b"),
        ["text"],
        [b"a", "text"],
        [None, "text"],
        [1],
        [[1]],
        [np.array([1, 2], np.int64)],
        [memoryview(np.array([1, 2], np.int64))],
        (int64(0, 9), b"short"),
        (int64(0, 2, 1), b"abc"),
        (int64(-1, 1), b"abc"),
        (np.array([0.0, 1.0]), b"abc"),
        (int64(), b""),
        (int64(0, 1).reshape(1, 2), b"abc"),
        pa.array([1, 2]),
        pa.array([[b"a"]]),
        5,
    ],
)
def test_not_ragged(values: Any) -> None:
    with pytest.raises(InvalidRecord):
        ragged(values)


@given(st.lists(st.binary(max_size=5), max_size=8), st.lists(st.integers(0, 7), max_size=12))
def test_take_and_join(values: list[bytes], rows: list[int]) -> None:
    rows = [row for row in rows if row < len(values)]
    column, _ = ragged([b"in front", *values])
    column = column[0][1:], column[1]  # a view that does not begin at 0
    assert [values[row] for row in rows] == strings(take_ragged(column, int64(*rows)))
    assert values + values == strings(join_ragged([column, column]))
    assert [] == strings(join_ragged([]))


def test_same_headers() -> None:
    assert same_headers([], 3) is None
    headers = same_headers([("a", b"1"), ("b", None)], 3)
    assert headers is not None
    assert 1 == len(set(strings(headers)))
    [record] = decode_batch(encode_batch([Record(value=b"", timestamp=0)]), limit_bytes=LIMIT_BYTES)
    assert () == record.headers


def test_columns_of_records_are_cut_and_taken() -> None:
    columns = columns_of([b"a", None, b"c"], [1, 2, 3], [None, b"k", b"l"])
    for part in (columns[1:3], columns.take(int64(1, 2))):
        assert 2 == len(part)
        assert ([b"", b"c"], [b"k", b"l"]) == (strings(part.values), strings(part.keys or part.values))
        assert ([False, True], [2, 3]) == (
            [] if part.value_valid is None else part.value_valid.tolist(), part.deliver_after.tolist()
        )  # fmt: skip


# --- Cutting into batches


@pytest.mark.parametrize(
    ("due", "spread_ms", "expected"),
    [
        ([], 0, [0]),
        ([5], 0, [0, 1]),
        ([5, 5, 5], 0, [0, 3]),
        ([5, 5, 6, 5], 0, [0, 2, 3, 4]),
        ([-1, -1, 0], 0, [0, 2, 3]),
        ([-1, 0, 9, 10, 19, 20], 9, [0, 1, 3, 5, 6]),
    ],
)
def test_a_batch_ends_where_the_time_changes(due: list[int], spread_ms: int, expected: list[int]) -> None:
    assert expected == cut(int64(*due), np.full(len(due), 10), 1_000_000, spread_ms).tolist()


@pytest.mark.parametrize("spread_ms", [1, 7, 50])
def test_no_further_apart_than_the_spread_they_share_a_batch_whenever_the_first_is_due(spread_ms: int) -> None:
    size = np.full(4, 10)
    for phase in range(2 * spread_ms + 3):
        due = int64(-1, phase, phase + spread_ms, phase + spread_ms + 1)
        assert [0, 1, 3, 4] == cut(due, size, 1_000_000, spread_ms).tolist(), phase


def test_a_spread_beyond_the_end_of_time() -> None:
    due = int64(-1, 0, 5, 2**63 - 1)
    assert [0, 1, 4] == cut(due, np.full(4, 10), 1_000_000, 2**63 - 1).tolist()
    assert [0, 1, 3, 4] == cut(due, np.full(4, 10), 1_000_000, 2**61).tolist()


def test_a_batch_ends_where_it_is_full() -> None:
    assert [0, 3, 5, 6] == cut(int64(1, 1, 1, 1, 1, 1), int64(10, 10, 10, 10, 25, 10), 30, 0).tolist()
    assert [0, 1, 2, 3] == cut(int64(1, 1, 1), int64(10, 31, 10), 30, 0).tolist()


@given(st.lists(st.tuples(st.integers(-1, 30), st.integers(1, 50)), min_size=1), st.integers(1, 60), st.integers(0, 9))
def test_every_batch_is_small_and_close(rows: list[tuple[int, int]], batch_bytes: int, spread_ms: int) -> None:
    rows = sorted(rows) if spread_ms else rows
    bounds = cut(int64(*(due for due, _ in rows)), int64(*(size for _, size in rows)), batch_bytes, spread_ms).tolist()
    assert (0, len(rows)) == (bounds[0], bounds[-1])
    for start, end in itertools.pairwise(bounds):
        batch = rows[start:end]
        assert batch
        assert max(batch)[0] - min(batch)[0] <= spread_ms
        assert -1 not in {due for due, _ in batch} or {-1} == {due for due, _ in batch}
        assert len(batch) == 1 or sum(size for _, size in batch) < 2 * batch_bytes


# --- Encoding


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("part_records", [2, 1_000])
def test_encode_keeps_the_order(codec: Codec, part_records: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_module, "PART_RECORDS", part_records)
    values: list[bytes | None] = [b"a" * 100, b"b" * 100, None, b"d", b"e"]
    parts, order = encode(columns_of(values, [7, 7, 7, 9, 7], [None, b"k", b"", b"", None]), Config(compression=codec))
    assert order is None
    found = [record for batch in records_of(parts) for record in batch]
    assert values == [record.value for record in found]
    assert [None, b"k", b"", b"", None] == [record.key for record in found]
    assert [NOW_MS + number for number in range(5)] == [record.timestamp for record in found]
    per_batch = [
        row for part in parts for row in zip(part.records, part.deliver_after, part.max_timestamp, strict=True)
    ]
    if part_records == 1_000:
        assert [(3, 7, NOW_MS + 2), (1, 9, NOW_MS + 3), (1, 7, NOW_MS + 4)] == per_batch
    assert all(len(part) for part in parts)


def test_encode_with_a_spread_sorts_by_time() -> None:
    values: list[bytes | None] = [b"0", b"1", b"2", b"3"]
    [batches], order = encode(columns_of(values, [30, 11, 19, 10]), Config(deliver_after_spread_ms=9))
    assert order is not None
    assert [3, 1, 2, 0] == order.tolist()
    [first, second] = records_of([batches])
    assert [b"3", b"1", b"2"] == [record.value for record in first]
    assert [b"0"] == [record.value for record in second]
    assert [19, 30] == batches.deliver_after.tolist()
    assert [None] * 3 == [record.deliver_after for record in first]  # they have the time of the batch


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize(("part_records", "piece_bytes"), [(2, 1 << 20), (1_000, 1), (1_000, 300)])
def test_with_a_spread_records_keep_all_but_their_time(
    codec: Codec, part_records: int, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches_module, "PART_RECORDS", part_records)
    monkeypatch.setattr(batches_module, "PIECE_BYTES", piece_bytes)
    values: list[bytes | None] = [b"a" * 100, None, b"b" * 100, b"d", b"e"]
    keys: list[bytes | None] = [None, b"k", b"", b"l", None]
    due = [7, 30, -1, 9, 28]
    config = Config(compression=codec, deliver_after_spread_ms=2)
    parts, order = encode(columns_of(values, due, keys), config)
    assert order is not None
    assert [2, 0, 3, 4, 1] == order.tolist()
    written = [
        record
        for part in parts
        for row, last in part.pieces(0, len(part))
        for batch in split(part, row, last)
        for record in decode_batch(batch, limit_bytes=LIMIT_BYTES)
    ]
    assert [values[row] for row in order] == [record.value for record in written]
    assert [keys[row] for row in order] == [record.key for record in written]
    assert [NOW_MS + row for row in order] == [record.timestamp for record in written]
    if part_records == 1_000:
        [part] = parts
        assert [-1, 9, 30] == part.deliver_after.tolist()
        assert [1, 2, 2] == part.records.tolist()
        assert [NOW_MS + 2, NOW_MS + 3, NOW_MS + 4] == part.max_timestamp.tolist()


@given(
    st.lists(st.tuples(st.binary(max_size=60), st.none() | st.binary(max_size=60), st.integers(0, 3)), min_size=1),
    st.integers(1, 300),
)
def test_positions_bound_what_is_encoded(rows: list[tuple[bytes, bytes | None, int]], batch_bytes: int) -> None:
    config = Config(batch_bytes=batch_bytes, batch_bytes_max=400)
    [batches], _ = encode(
        columns_of([row[0] for row in rows], [row[2] for row in rows], [row[1] for row in rows]), config
    )
    sizes = [len(batch) for batch in split(batches)]
    bounds = np.diff(batches.positions).tolist()
    assert all(size <= bound <= config.batch_bytes_max for size, bound in zip(sizes, bounds, strict=True))
    for row, last in batches.pieces(0, len(batches)):
        data, positions = batches.encoded(row, last)
        assert sizes[row:last] == np.diff(positions).tolist()
        assert b"".join(split(batches)[row:last]) == data.tobytes()


def test_the_overhead_of_a_record_is_bounded() -> None:
    """The longest varints, and a deliver-after header beside one of the user's."""
    headers = [("h", b"")]
    section = same_headers(headers, 2)
    columns = RecordColumns(
        values=ragged([b"v" * 70_000] * 2)[0],
        keys=ragged([b"k" * 70_000] * 2)[0],
        headers=section,
        timestamps=int64(0, 2**62),
        deliver_after=int64(2**62, 2**62 - 1),
    )
    [batches], _ = encode(columns, Config(deliver_after_spread_ms=2**61, batch_bytes=1 << 19))
    [batch] = split(batches)
    bound = columns.record_bytes()
    assert len(batch) - HEADER_BYTES <= int(bound.sum())
    assert int(bound[0]) - 140_000 <= RECORD_OVERHEAD_BYTES + 10


def test_pieces_are_of_at_least_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_module, "PIECE_BYTES", 250)
    nothing = np.empty(0, np.int64)
    batches = EncodedBatches(int64(0, 100, 200, 300, 900, 1000), nothing, nothing, nothing, np.empty(0, np.uint8))
    assert [(0, 2), (2, 3), (3, 4), (4, 5)] == list(batches.pieces(0, 5))
    assert [(1, 3), (3, 4)] == list(batches.pieces(1, 4))


@pytest.mark.parametrize("size", [2_000 - HEADER_BYTES - RECORD_OVERHEAD_BYTES, 5_000])
def test_a_record_that_fits_into_no_batch(size: int) -> None:
    config = Config(batch_bytes_max=2_000)
    with pytest.raises(RecordTooLarge):
        encode(columns_of([b"small", bytes(size + 1)]), config)
    if size < 2_000:
        encode(columns_of([b"small", bytes(size)]), config)


# --- Batches of producers


def test_parse_takes_batches_as_they_are() -> None:
    first = encode_batch([Record(value=b"a", timestamp=5), Record(value=b"b", timestamp=9)], "zstd")
    second = encode_batch([Record(value=b"c", timestamp=7, headers=[("deliver-after", b"123")])])
    batches = parse(first + second, None, Config())
    assert [first, second] == split(batches)
    assert ([2, 1], [9, 7], [AS_SOON_AS_POSSIBLE, 123]) == (
        batches.records.tolist(), batches.max_timestamp.tolist(), batches.deliver_after.tolist()
    )  # fmt: skip
    assert [77, 123] == parse(first + second, 77, Config()).deliver_after.tolist()


def test_parse_refuses() -> None:
    good = encode_batch([Record(value=b"a" * 500, timestamp=5)], "gzip")
    header = BatchHeader.read(memoryview(good), 0)
    for error, data in (
        (InvalidBatch, b""),
        (InvalidBatch, good[:-1]),
        (InvalidBatch, good + b"x"),
        (UnsupportedCodec, _with(header, good, attributes=7)),
        (InvalidBatch, _with(header, good, attributes=header.attributes | 0x20)),
        (InvalidDeliverAfter, encode_batch([Record(value=b"", timestamp=0, headers=[("deliver-after", b"soon")])])),
    ):
        with pytest.raises(error):
            parse(data, None, Config())
    with pytest.raises(InvalidBatch):
        parse(good, None, Config(decompressed_bytes_max=499))


def _with(header: BatchHeader, batch: bytes, **fields: int) -> bytes:
    from afterlog.records.header import with_crc

    return with_crc(header._replace(**fields), batch[HEADER_BYTES:])


def test_stamp_batches_sets_base_offset_and_epoch_and_nothing_else() -> None:
    data = bytearray(b"".join(encode_batch([Record(value=b"v", timestamp=1)] * count) for count in (2, 1, 3)))
    data[12:16] = b"\1\2\3\4"
    batches = parse(bytes(data), None, Config())
    encoded, positions = batches.encoded(0, 3)
    before = encoded.tobytes()
    stamped = stamp_batches(encoded, positions, batches.records, 1_000)
    assert before == encoded.tobytes()
    expected = b"".join(
        base.to_bytes(8, "big") + batch[8:12] + bytes(4) + batch[16:]
        for base, batch in zip((1_000, 1_002, 1_003), split(batches), strict=True)
    )
    assert expected == stamped.tobytes()
