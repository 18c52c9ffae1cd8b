"""A topic made with delayed=False is, byte for byte, a Kafka log: kafka-python's own decoder reads its files whole.

confluent-kafka exposes no decoder of record batches, so it has no part in this.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import afterlog
from afterlog.base.clock import ManualClock
from afterlog.base.config import OS, Codec, Config
from afterlog.base.names import LOG, OFFSET_INDEX, TIME_INDEX
from afterlog.fetch.partition import Partition
from afterlog.records.batch import decode_batch
from afterlog.store.store import Store, open_store
from tests.log import kafka_python
from tests.support import NOW_MS

from kafka.record.memory_records import MemoryRecords  # isort: skip  # behind the import that silences a warning

CODECS: list[Codec] = ["none", "gzip", "snappy", "lz4", "zstd"]
KAFKA_CODECS = dict(enumerate(CODECS))
HEADERS = [("h", b"1"), ("no value", None)]


class Row(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def stored(path: Path, codec: Codec = "none", **settings: Any) -> Store:
    config = Config(
        durability=OS,
        compression=codec,
        batch_bytes=1_000,
        segment_bytes=20_000,
        batch_bytes_max=10_000,
        index_interval_bytes=4_096,
        **settings,
    )
    return open_store(path, config, ManualClock(NOW_MS), None)


def fill(store: Store) -> list[Row]:
    """Some hundred records in all shapes."""
    rows: list[Row] = []
    for number in range(300):
        key = None if number % 3 else b"key %d" % (number % 7)
        value = None if number % 11 == 0 else b"value %d " % number * (number % 40)
        headers = HEADERS if number % 5 == 0 else []
        timestamp = NOW_MS + number * 7_919 % 1_000
        [offset] = store.send_many(
            "t",
            [value],
            keys=None if key is None else [key],
            headers=headers,
            timestamps=[timestamp],  # type: ignore[arg-type]
        ).tolist()
        rows.append(Row(offset, timestamp, key, value, headers))
    texts = [b"text %d" % number * 20 for number in range(200)]
    offsets = store.send_many("t", texts).tolist()
    return rows + [Row(offset, NOW_MS, None, text, []) for offset, text in zip(offsets, texts, strict=True)]


def files(path: Path, suffix: str) -> list[Path]:
    return sorted((path / "t-0").glob(f"*{suffix}"))


def batches_of(path: Path) -> Iterator[Any]:
    """The batches of a whole .log file, as kafka-python finds them, their CRCs checked."""
    records = MemoryRecords(path.read_bytes())
    while (batch := records.next_batch()) is not None:
        assert batch.validate_crc()
        yield batch
    assert records.valid_bytes() == records.size_in_bytes() == path.stat().st_size


@pytest.mark.parametrize("codec", CODECS)
def test_kafka_python_reads_whole_log_files(tmp_path: Path, codec: Codec) -> None:
    with stored(tmp_path, codec) as store:
        store.create_topic("t", delayed=False)
        expected = fill(store)
    logs = files(tmp_path, LOG)
    assert len(logs) > 1 or codec != "none"
    found, codecs = [], set()
    for path in logs:
        assert int(path.stem) == len(found)
        for batch in batches_of(path):
            assert (2, 0, False, 0) == (batch.magic, batch.leader_epoch, batch.is_control_batch, batch.timestamp_type)
            assert len(found) == batch.base_offset
            codecs.add(KAFKA_CODECS[batch.compression_type])
            found += [Row(*_fields(record)) for record in batch]
    assert expected == found
    assert {"none", codec} >= codecs
    assert codec in codecs


def _fields(record: Any) -> tuple[Any, ...]:
    return record.offset, record.timestamp, record.key, record.value, list(record.headers)


def test_the_indexes_follow_kafkas_rules(tmp_path: Path) -> None:
    """Read with nothing but struct: what an entry names is there in the log, and it is the sparsest choice allowed."""
    with stored(tmp_path) as store:
        store.create_topic("t", delayed=False)
        fill(store)
    for log, index, times in zip(*(files(tmp_path, suffix) for suffix in (LOG, OFFSET_INDEX, TIME_INDEX)), strict=True):
        base, position = int(log.stem), 0
        places: dict[int, int] = {}
        latest: dict[int, int] = {}
        for batch in batches_of(log):
            places[position] = batch.last_offset
            latest[batch.last_offset] = max(batch.max_timestamp, *latest.values(), -1)
            position += batch.size_in_bytes
        entries = list(struct.iter_unpack(">ii", index.read_bytes()))
        assert entries
        for relative, at in entries:
            assert places[at] == base + relative
        assert entries == sorted(set(entries))
        pages = [at // 4_096 for _, at in entries]
        assert all(before < after for before, after in pairwise(pages))
        assert {at // 4_096 for at in places} - {0} == set(pages)
        for timestamp, relative in struct.iter_unpack(">qi", times.read_bytes()):
            assert latest[base + relative] == timestamp
        stamps = [timestamp for timestamp, _ in struct.iter_unpack(">qi", times.read_bytes())]
        assert stamps == sorted(set(stamps))
        if log != files(tmp_path, LOG)[-1]:
            assert max(latest.values()) == stamps[-1]


def built(codec: int, rows: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]]) -> bytes:
    builder = kafka_python.records.DefaultRecordBatchBuilder(
        magic=2, compression_type=codec, is_transactional=False, producer_id=-1, producer_epoch=-1, base_sequence=-1,
        batch_size=1 << 20,
    )  # fmt: skip
    for offset, (timestamp, key, value, headers) in enumerate(rows):
        assert builder.append(offset, timestamp, key, value, headers) is not None
    return bytes(builder.build())


@pytest.mark.parametrize("delayed", [True, False])
@pytest.mark.parametrize("codec", range(5))
def test_batches_of_kafka_python_are_taken_and_come_back(tmp_path: Path, codec: int, delayed: bool) -> None:
    rows = [(NOW_MS + number, b"k" * number, b"v" * 50 * number, HEADERS[: number % 3]) for number in range(1, 9)]
    batch = built(codec, rows)
    with stored(tmp_path) as store:
        partition = store.create_topic("t", delayed=delayed).partition(0)
        assert 0 == partition.append(batch)
        assert 8 == partition.append(batch)
        found = [bytes(view) for view in partition.fetch(0).batches]
    assert [batch, (8).to_bytes(8, "big") + batch[8:]] == found
    decoded = decode_batch(found[1], limit_bytes=1 << 20)
    assert rows == [(record.timestamp, record.key, record.value, list(record.headers)) for record in decoded]
    again = kafka_python.records.DefaultRecordBatch(found[1])
    assert again.validate_crc()
    assert [8 + number for number in range(8)] == [record.offset for record in again]


@pytest.mark.parametrize("codec", CODECS)
def test_kafka_python_reads_what_a_fetch_of_a_delayed_topic_returns(tmp_path: Path, codec: Codec) -> None:
    with stored(tmp_path, codec) as store:
        partition = store.create_topic("t").partition(0)
        store.send_many("t", [b"b" * 200, b"c" * 200], delay=1)
        store.send("t", b"a" * 200, key=b"k", headers=HEADERS)
        store.clock.advance(1_000)  # type: ignore[attr-defined]
        batches = [kafka_python.records.DefaultRecordBatch(bytes(view)) for view in partition.fetch(0).batches]
        assert all(batch.validate_crc() for batch in batches)
        assert [b"a" * 200, b"b" * 200, b"c" * 200] == [record.value for batch in batches for record in batch]


def due_of(partition: Partition) -> list[tuple[bytes | None, int, int]]:
    """(value, due, deliver_after as asked) in delivery order, with the clock far ahead."""
    columns, _ = partition.columns(0, 100, 1 << 20)
    return [(message.value, message.due - NOW_MS, message.deliver_after - NOW_MS) for message in columns.to_messages()]


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("encoded", [lambda ms: ms.to_bytes(8, "big"), lambda ms: b"%d" % ms], ids=["int64", "digits"])
def test_the_header_deliver_after_of_other_producers(tmp_path: Path, codec: int, encoded: Any) -> None:
    def row(value: bytes, after_ms: int | None) -> tuple[int, bytes | None, bytes | None, list[Any]]:
        headers = [] if after_ms is None else [("deliver-after", encoded(NOW_MS + after_ms))]
        return NOW_MS, None, value * 100, headers

    with stored(tmp_path) as store:
        partition = store.create_topic("t").partition(0)
        partition.append(built(codec, [row(b"a", 500), row(b"b", 200)]))
        partition.append(built(codec, [row(b"c", 300)]))
        partition.append(built(codec, [row(b"d", None)]))
        partition.append(built(codec, [row(b"e", None), row(b"f", 400)]))
        partition.append(built(codec, [row(b"g", -600)]))
        assert (2, 5, NOW_MS + 300) == (partition.high_watermark(), partition.pending(), partition.next_due())
        store.clock.advance(499)  # type: ignore[attr-defined]
        assert 5 == partition.high_watermark()
        store.clock.advance(1)  # type: ignore[attr-defined]
        expected = [
            (b"d", 0, 0), (b"g", 0, -600), (b"c", 300, 300), (b"e", 400, 400), (b"f", 400, 400), (b"a", 500, 500),
            (b"b", 500, 200),
        ]  # fmt: skip
        assert expected == [(value[:1], due, asked) for value, due, asked in due_of(partition) if value]


@pytest.mark.parametrize("header", [b"", b"soon", b"-5", b"1.5", b"9" * 30, (2**63).to_bytes(8, "big")])
def test_a_header_that_is_no_time(tmp_path: Path, header: bytes) -> None:
    batch = built(0, [(NOW_MS, None, b"v", [("deliver-after", header)])])
    with stored(tmp_path) as store:
        partition = store.create_topic("t").partition(0)
        with pytest.raises(afterlog.InvalidDeliverAfter):
            partition.append(batch)
        assert 0 == partition.log_end_offset


def test_a_fifo_topic_of_a_reopened_store_goes_on_as_a_kafka_log(tmp_path: Path) -> None:
    for life in range(3):
        with stored(tmp_path) as store:
            store.create_topic("t", delayed=False)
            store.send_many("t", [b"%d" % life] * 5)
    [log] = files(tmp_path, LOG)
    assert [b"%d" % life for life in range(3) for _ in range(5)] == [
        record.value for batch in batches_of(log) for record in batch
    ]
