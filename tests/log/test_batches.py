from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.clock import ManualClock
from afterlog.config import Config
from afterlog.errors import InvalidRecord, RecordTooLarge, StorageFull
from afterlog.files import Bytes
from afterlog.log import batches
from afterlog.log.batch import decode_batch, validate_batches
from afterlog.log.batches import Batches, RecordColumns, cut, encode, join_ragged, ragged, stamp_batches, take_ragged
from afterlog.log.columns import Ragged
from afterlog.log.header import BatchHeader
from afterlog.log.segment import ActiveSegment
from tests.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, drained, open_small


def columns(values: list[bytes | None], deliver_after: list[int]) -> RecordColumns:
    data, valid = ragged(values)
    return RecordColumns(
        values=data,
        value_valid=valid,
        timestamps=np.full(len(values), NOW_MS),
        deliver_after=np.array(deliver_after, np.int64),
    )


def strings(column: Ragged) -> list[bytes]:
    offsets, data = column
    return [data[start:end].tobytes() for start, end in pairwise(offsets)]


def written(part: Batches) -> list[list[bytes | None]]:
    data, positions = part.encoded(0, len(part))
    return [
        [record.value for record in decode_batch(data[start:end], limit_bytes=1 << 20)]
        for start, end in pairwise(positions.tolist())
    ]


def test_equal_neighbours_share_a_batch() -> None:
    [part], order = encode(columns([b"a", b"b", None, b"d"], [5, 5, 7, 5]), Config())
    assert order is None
    assert [[b"a", b"b"], [None], [b"d"]] == written(part)
    assert ([2, 1, 1], [5, 7, 5]) == (part.records.tolist(), part.deliver_after.tolist())


def test_with_a_spread_records_are_sorted_and_close_ones_share_a_batch() -> None:
    [part], order = encode(columns([b"a", b"b", b"c"], [30, 10, 14]), Config(deliver_after_spread_ms=9))
    assert order is not None
    assert [1, 2, 0] == order.tolist()
    assert [[b"b", b"c"], [b"a"]] == written(part)  # a step is 10 to 19
    assert [14, 30] == part.deliver_after.tolist()


def test_many_records_are_appended_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "PART_RECORDS", 2)
    parts, _ = encode(columns([b"a", b"b", b"c"], [1, 2, 3]), Config())
    assert [[[b"a"], [b"b"]], [[b"c"]]] == [written(part) for part in parts]


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 3)), min_size=1), st.integers(0, 3))
def test_a_batch_is_smaller_than_twice_the_limit_or_one_record(rows: list[tuple[int, int]], spread_ms: int) -> None:
    size = np.array([size for size, _ in rows], np.int64)
    deliver_after = np.array([due for _, due in rows], np.int64)
    bounds = cut(deliver_after, size, 100, spread_ms)
    assert (0, len(rows)) == (bounds[0], bounds[-1])
    for start, end in pairwise(bounds.tolist()):
        assert end == start + 1 or int(size[start:end].sum()) < 200
        assert int(np.ptp(deliver_after[start:end])) <= spread_ms


def test_records_that_fit_are_never_refused_for_their_company() -> None:
    config = Config(batch_bytes_max=2_048)
    [part], _ = encode(columns([bytes(900), bytes(1_900), bytes(900)], [1, 1, 1]), config)
    assert [1, 1, 1] == part.records.tolist()
    assert int(np.diff(part.positions).max()) <= config.batch_bytes_max
    with pytest.raises(RecordTooLarge, match="batch_bytes_max"):
        encode(columns([bytes(2_048)], [1]), config)


@given(st.lists(st.binary(max_size=300), min_size=1), st.integers(1, 400))
def test_pieces_follow_each_other_and_places_are_bounded(values: list[bytes], piece_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "PIECE_BYTES", piece_bytes)
        [part], _ = encode(columns(list(values), list(range(len(values)))), Config())
        pieces = list(part.pieces(0, len(part)))
    assert (0, len(part)) == (pieces[0][0], pieces[-1][1])
    assert all(stop == following for (_, stop), (following, _) in pairwise(pieces))
    whole, _ = part.encoded(0, len(part))
    assert whole.tobytes() == b"".join(part.encoded(*piece)[0].tobytes() for piece in pieces)
    for row, last in pieces:
        _, exact = part.encoded(row, last)
        assert last == row + 1 or part.positions[last] - part.positions[row] <= piece_bytes
        assert int(exact[-1]) <= int(part.positions[last] - part.positions[row])


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_compressed_batches_are_cut_out_of_what_was_compressed_once(codec: str) -> None:
    [part], _ = encode(columns([bytes(500), bytes(500)], [1, 2]), Config(compression=codec))  # type: ignore[arg-type]
    assert int(part.positions[-1]) < 400
    first, _ = part.encoded(0, 1)
    second, positions = part.encoded(1, 2)
    assert [0, len(second)] == positions.tolist()
    assert [bytes(500)] * 2 == [decode_batch(data, limit_bytes=1_000)[0].value for data in (first, second)]


def test_bare_batches_get_base_offsets_and_no_epoch() -> None:
    [part], _ = encode(columns([b"a", b"b", b"c"], [1, 1, 2]), Config())
    data, positions = part.encoded(0, 2)
    stamped = stamp_batches(data, positions, part.records, 1_000)
    assert [2, 1] == validate_batches(stamped, limit_bytes=100).records.tolist()
    headers = [BatchHeader.read(memoryview(stamped.data), start) for start in positions[:-1].tolist()]
    assert [(1_000, 0), (1_002, 0)] == [(header.base_offset, header.partition_leader_epoch) for header in headers]


def test_a_failure_between_pieces_leaves_nothing_of_the_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "PIECE_BYTES", 1)
    clock = ManualClock(NOW_MS)
    with open_small(SimulatedFiles(), clock, segment_bytes=1 << 20) as store:
        partition = store.create_topic("t").partition(0)
        store.send("t", b"before")
        append, calls = ActiveSegment.append, iter(range(10))

        def full(segment: ActiveSegment, data: Bytes) -> None:
            if next(calls) == 2:
                raise StorageFull("no room left to write", path=Path("t"))
            append(segment, data)

        monkeypatch.setattr(ActiveSegment, "append", full)
        with pytest.raises(StorageFull):
            store.send_many("t", [b"a", b"b", b"c"], deliver_after=[NOW_MS + 1, NOW_MS + 2, NOW_MS + 3])
        assert 1 == partition.log_end_offset
        assert [1, 2, 3] == store.send_many("t", [b"a", b"b", b"c"], delay=[1, 2, 3]).tolist()
        store.check()
        clock.advance(3_000)
        assert [b"before", b"a", b"b", b"c"] == drained(partition)


@given(st.lists(st.none() | st.binary(max_size=5)))
def test_ragged_takes_bytes_and_nulls(values: list[bytes | None]) -> None:
    column, valid = ragged(values)
    assert [value or b"" for value in values] == strings(column)
    assert [value is not None for value in values] == ([True] * len(values) if valid is None else valid.tolist())


def test_ragged_takes_pairs_and_arrow_columns() -> None:
    pair = (np.array([1, 3, 3], np.int32), b"xabc")
    assert [b"ab", b""] == strings(ragged(pair)[0])
    column, valid = ragged(pa.array([b"a", None, b"bc"], pa.binary())[1:])
    assert ([b"", b"bc"], [False, True]) == (strings(column), [] if valid is None else valid.tolist())


@pytest.mark.parametrize(
    "values",
    [
        b"one string",
        "text",
        ["text"],
        [1],
        (np.array([0, 4]), b"abc"),
        (np.array([2, 1]), b"abc"),
        (np.array([0.0, 1.0]), b"abc"),
        (np.empty(0, np.int64), b"abc"),
        pa.array([1, 2]),
        [memoryview(b"abcd").cast("H")],
    ],
)
def test_ragged_refuses_the_rest(values: object) -> None:
    with pytest.raises(InvalidRecord):
        ragged(values)


@given(st.lists(st.binary(max_size=5)), st.data())
def test_ragged_columns_are_taken_and_joined(values: list[bytes], data: st.DataObject) -> None:
    column, _ = ragged(values)
    rows = data.draw(st.lists(st.sampled_from(range(len(values))))) if values else []
    assert [values[row] for row in rows] == strings(take_ragged(column, np.array(rows, np.int64)))
    assert values * 2 == strings(join_ragged([column, column]))
