"""The fields by which a retry is known: what a call may say, and what the headers of batches say."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.base.config import Config
from afterlog.base.errors import InvalidArgument, WrongType
from afterlog.index.producer_states import SEQUENCES
from afterlog.records.columns import Int64Array, Producers
from afterlog.records.encode import EncodedBatches, RecordColumns, encode, encode_each, parse
from afterlog.records.header import BatchHeader
from afterlog.records.kernels import scan_entries
from afterlog.records.producer_sequence import (
    EPOCH_MAX,
    ProducerRows,
    ProducerSequence,
    checked_sequence,
    producers_in,
    producers_of,
)
from afterlog.records.single import SingleRecord, columns_of

T = 1_700_000_000_000
SENT = ProducerSequence(7, 3, 5)
LAST = SEQUENCES - 1


def int64(*numbers: int) -> Int64Array:
    return np.array(numbers, np.int64)


def columns(*due: int) -> RecordColumns:
    """Records of the values 0, 1, 2 …"""
    return columns_of([SingleRecord(b"%d" % row, None, b"", T, at) for row, at in enumerate(due)])


def fields(data: Any, positions: Int64Array) -> list[tuple[int, int, int, int]]:
    headers = [BatchHeader.read(memoryview(bytes(data)), at) for at in positions[:-1].tolist()]
    return [(each.producer_id, each.producer_epoch, each.base_sequence, each.records) for each in headers]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((-1, 0, 0), InvalidArgument),
        ((2**63, 0, 0), InvalidArgument),
        ((0, -1, 0), InvalidArgument),
        ((0, EPOCH_MAX + 1, 0), InvalidArgument),
        ((0, 0, -1), InvalidArgument),
        ((0, 0, SEQUENCES), InvalidArgument),
        (("7", 0, 0), WrongType),
        ((0, 0.5, 0), WrongType),
        ((0, 0, True), WrongType),
    ],
)
def test_what_cannot_be(arguments: tuple[Any, Any, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        ProducerSequence(*arguments)


def test_what_can_be() -> None:
    most = ProducerSequence(2**63 - 1, EPOCH_MAX, LAST)
    assert most == pickle.loads(pickle.dumps(most)) == checked_sequence(most)
    given_by_numpy: Any = np.int64(5)
    assert type(ProducerSequence(given_by_numpy, 0, 0).producer_id) is int
    with pytest.raises(WrongType, match="ProducerSequence"):
        checked_sequence((7, 0, 0))


def test_behind_the_last_comes_0() -> None:
    assert ProducerSequence(7, 3, 1) == ProducerSequence(7, 3, LAST).after(2)
    producers = ProducerSequence(7, 3, LAST).of_batches(int64(0, 1, 5))
    assert [(7, 3, LAST), (7, 3, 0), (7, 3, 4)] == [producers.of(batch) for batch in range(3)]


class TestEncoded:
    def test_each_batch_has_its_running_sequence(self) -> None:
        [batches], _ = encode(columns(9, 9, 8, 9, 9), Config(), sequence=SENT)
        data, positions = batches.encoded(0, 3)
        assert [(7, 3, 5, 2), (7, 3, 7, 1), (7, 3, 8, 2)] == fields(data, positions)
        data, positions = batches.encoded(1, 3)
        assert [(7, 3, 7, 1), (7, 3, 8, 2)] == fields(data, positions)

    def test_in_the_order_written(self) -> None:
        """With a spread that is by time."""
        [batches], order = encode(columns(9, 1, 5_000, 2), Config(deliver_after_spread_ms=10), sequence=SENT)
        assert order is not None
        assert [1, 3, 0, 2] == order.tolist()
        assert [(7, 3, 5, 3), (7, 3, 8, 1)] == fields(*batches.encoded(0, 2))

    def test_in_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("afterlog.records.encode.PART_RECORDS", 2)
        parts, _ = encode(columns(9, 9, 9, 8, 8), Config(), sequence=SENT)
        assert [[(7, 3, 5, 2)], [(7, 3, 7, 1), (7, 3, 8, 1)], [(7, 3, 9, 1)]] == [
            fields(*part.encoded(0, len(part))) for part in parts
        ]

    @pytest.mark.parametrize("codec", ["none", "gzip"])
    def test_compressed_and_as_entries(self, codec: Any) -> None:
        [batches], _ = encode(columns(*[T + 9] * 50, T + 8), Config(compression=codec), sequence=SENT)
        data, _ = batches.entries(0, 2, 100, T, delayed=True, extra=b"")
        found = scan_entries(data, 0, -1, 100, True)
        assert (0, 2) == (found.fault, len(found.offset))
        rows = producers_in(data, found)
        expected = [(7, 3, 5, 50, 100, T), (7, 3, 55, 1, 150, T)]
        assert expected == list(zip(*(column.tolist() for column in rows), strict=True))
        [run] = zip(*(column.tolist() for column in rows.runs()), strict=True)
        assert (7, 3, 5, 51, 100, T) == run

    def test_one_by_one(self) -> None:
        producers = Producers(int64(7, -1, 8), int64(0, -1, 2), int64(4, -1, 0))
        batches = encode_each(columns(9, 9, 9), Config(), producers)
        assert [(7, 0, 4, 1), (-1, -1, -1, 1), (8, 2, 0, 1)] == fields(*batches.encoded(0, 3))

    def test_joined(self) -> None:
        [plain], _ = encode(columns(9, 9), Config())
        [sent], _ = encode(columns(9, 8), Config(), sequence=SENT)
        assert EncodedBatches.joined([plain, plain]).producers is None
        joined = EncodedBatches.joined([plain, sent, EncodedBatches.of(sent, 1, 2)])
        expected = [(-1, -1, -1, 2), (7, 3, 5, 1), (7, 3, 6, 1), (7, 3, 6, 1)]
        data, positions = joined.encoded(0, 4)
        assert expected == fields(data, positions)
        assert joined.producers is not None
        assert [each[:3] for each in expected] == [joined.producers.of(batch) for batch in range(4)]
        assert expected[2:] == fields(*joined.behind(2).encoded(0, 2))
        assert [2, 1, 1, 1] == joined.records.tolist()
        parsed = parse(data.tobytes(), None, Config())
        assert parsed.producers is not None
        assert joined.producers.producer_id.tolist() == parsed.producers.producer_id.tolist()

    def test_parsed_of_nobody(self) -> None:
        [plain], _ = encode(columns(9, 9), Config())
        assert parse(plain.encoded(0, 1)[0].tobytes(), None, Config()).producers is None


def test_of_a_single_record() -> None:
    record = SingleRecord(b"v", b"k", b"", T, T + 9)
    [batches], _ = encode(record.columns(), Config(), sequence=SENT)
    expected, _ = batches.entries(0, 1, 7, T, delayed=True, extra=b"")
    assert expected.tobytes() == record.entry_of(SENT, 7, T)
    assert record.entry(7, T) != record.entry_of(SENT, 7, T)


@given(
    st.lists(
        st.tuples(st.integers(-1, 2), st.integers(0, 1), st.integers(LAST - 3, LAST), st.integers(1, 3)), max_size=12
    )
)
def test_runs_are_what_follows_each_other(sent: list[tuple[int, int, int, int]]) -> None:
    offsets = np.cumsum([0, *(records for *_, records in sent)])[:-1].tolist()
    rows = [(*each, offset, 3) for each, offset in zip(sent, offsets, strict=True)]
    runs = ProducerRows(*np.array(rows, np.int64).reshape(-1, 6).T.copy()).runs()
    expected = list[list[int]]()
    for row in rows:
        last = expected[-1] if expected else None
        if last is not None and row[:2] == tuple(last[:2]) and row[2] == (last[2] + last[3]) % SEQUENCES:
            last[3] += row[3]
        else:
            expected.append([*row])
    assert expected == [[*row] for row in zip(*(column.tolist() for column in runs), strict=True)]


def test_a_header_without_a_sequence_is_nobody_s() -> None:
    """As Kafka's markers of transactions have it."""
    producers = Producers(int64(7, 8), int64(0, 0), int64(-1, 4))
    batches = encode_each(columns(9, 9), Config(), producers)
    data, positions = batches.encoded(0, 2)
    assert [(7, 0, -1, 1), (8, 0, 4, 1)] == fields(data, positions)
    found = scan_entries(batches.entries(0, 2, 0, T, delayed=True, extra=b"")[0], 0, -1, 0, True)
    rows = producers_in(batches.entries(0, 2, 0, T, delayed=True, extra=b"")[0], found)
    assert [8] == rows.producer_id.tolist()
    known = producers_of(data, positions[:-1])
    assert known is not None
    assert [-1, 4] == known.base_sequence.tolist()
    assert not ProducerRows.empty()
    assert not ProducerRows.concatenate([])
