from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.errors import InvalidDeliverAfter, InvalidRecord, RecordTooLarge, UnknownPartition
from afterlog.fetch.record_id import RecordId
from afterlog.produce.topic import Topic
from afterlog.store.store import Store
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, drained, durable_frontier, open_small

KEYS = [b"", b"a", b"key", b"\0" * 40, "ключ".encode(), b"key", *(b"%d" % number for number in range(50))]


@pytest.fixture
def store() -> Iterator[Store]:
    with open_small(SimulatedFiles(), ManualClock(NOW_MS)) as store:
        yield store


@pytest.fixture
def topic(store: Store) -> Topic:
    return store.create_topic("t", partitions=5, max_delay_ms=1_000)


def test_keys_go_where_librdkafka_sends_them(topic: Topic) -> None:
    assert 0xCBF43926 % 5 == topic.partition_of(b"123456789")
    for key in KEYS:
        assert zlib.crc32(key) % 5 == topic.partition_of(key)


@pytest.mark.parametrize(
    "keys",
    [
        KEYS,
        tuple(map(bytearray, KEYS)),
        (np.cumsum([0, *map(len, KEYS)]), b"".join(KEYS)),
        (np.cumsum([3, *map(len, KEYS)]), b"..." + b"".join(KEYS) + b"..."),
        pa.array(KEYS),
        pa.chunked_array([KEYS[:3], KEYS[3:]]),
        iter(KEYS),
    ],
    ids=lambda keys: type(keys).__name__,
)
def test_a_column_of_keys_goes_where_each_of_them_goes(store: Store, topic: Topic, keys: Any) -> None:
    values = [b"%d" % row for row in range(len(KEYS))]
    offsets = store.send_many("t", values, keys=keys)
    expected_offsets, found = [], {number: drained(topic.partition(number)) for number in range(5)}
    held: dict[int, list[bytes | None]] = {number: [] for number in range(5)}
    for value, key in zip(values, KEYS, strict=True):
        number = topic.partition_of(key)
        expected_offsets.append(len(held[number]))
        held[number].append(value)
    assert (expected_offsets, held) == (offsets.tolist(), found)


def test_records_without_a_key_take_turns(store: Store, topic: Topic) -> None:
    assert [1, 2, 3, 4, 0, 1] == [store.send("t", b"").partition for _ in range(6)]
    store.send_many("t", [b"a", b"b"])
    assert 3 == topic.partition(2).log_end_offset


def test_one_partition_takes_all(store: Store) -> None:
    topic = store.create_topic("one")
    assert [0, 0] == [topic.partition_of(key) for key in (None, b"key")]
    assert [0, 1] == store.send_many("one", [b"a", b"b"], keys=[None, b"k"]).tolist()


def test_a_column_with_a_record_without_a_key_is_unclear(store: Store, topic: Topic) -> None:
    with pytest.raises(InvalidRecord, match="no key"):
        store.send_many("t", [b"a", b"b"], keys=[b"k", None])
    assert 0 == sum(partition.log_end_offset for partition in topic.partitions)
    assert [0, 1] == store.send_many("t", [b"a", b"b"], keys=[b"k", None], partition=3).tolist()


@pytest.mark.parametrize(
    ("error", "fields"),
    [
        (InvalidDeliverAfter, {"deliver_after": [NOW_MS] * 19 + [NOW_MS + 1_001]}),
        (RecordTooLarge, {"values": [b""] * 19 + [bytes(2_048)]}),
    ],
)
def test_a_record_that_cannot_be_taken_keeps_all_partitions_empty(
    store: Store, topic: Topic, error: type[Exception], fields: dict[str, Any]
) -> None:
    with pytest.raises(error):
        store.send_many("t", **{"values": [b""] * 20, "keys": KEYS[-20:], **fields})
    assert 0 == sum(partition.log_end_offset for partition in topic.partitions)


def test_offsets_come_in_the_order_given() -> None:
    with open_small(SimulatedFiles(), ManualClock(NOW_MS), deliver_after_spread_ms=5) as store:
        store.create_topic("t", partitions=2)
        times = [NOW_MS + ms for ms in (50, 10, 30, 20)]
        assert [3, 0, 2, 1] == store.send_many("t", [b""] * 4, deliver_after=times, partition=1).tolist()
        keys = [b"a", b"b", b"a", b"b"]
        numbers = [store.topic("t").partition_of(key) for key in keys]
        offsets = store.send_many("t", [b""] * 4, deliver_after=times, keys=keys)
        assert len(set(zip(numbers, offsets.tolist(), strict=True))) == 4


def test_partitions(topic: Topic) -> None:
    assert (5, 4) == (topic.partition_count, topic.partition(4).number)
    assert 3 == topic.checked_partition(3)
    assert RecordId("t", 3, 7) == topic.record_id(3, 7)
    for wrong in (-1, 5, "0", 1.0, None):
        for call in (topic.partition, topic.checked_partition):
            with pytest.raises(UnknownPartition, match="0 to 4"):
                call(wrong)  # type: ignore[arg-type]


def test_check_asked(topic: Topic) -> None:
    topic.check_asked(-1)
    topic.check_asked(NOW_MS + 1_000)
    with pytest.raises(InvalidDeliverAfter):
        topic.check_asked(NOW_MS + 1_001)


def test_who_only_sends_has_the_log_alone(topic: Topic) -> None:
    assert {} == topic.opened_logs
    log = topic.log(3)
    assert {3: log} == topic.opened_logs
    partition = topic.partition(3)
    assert log is partition.log
    assert partition is topic.partition(3) is topic.partitions[3]
    assert 5 == len(topic.logs) == len(topic.opened_logs)
    with pytest.raises(UnknownPartition, match="0 to 4"):
        topic.log(5)


def test_a_first_reader_leases_what_became_due_before_it_came() -> None:
    """As retention does, whose reading moves the frontier: nothing may be delivered by it that is not durable."""
    clock = ManualClock(NOW_MS)
    disk = SimulatedFiles()
    with open_small(disk, clock) as store:
        topic = store.create_topic("t")
        store.send("t", b"value", delay=10)
        clock.advance(60_000)
        log = topic.log(0)
        log.read_clock()
        assert NOW_MS + 60_000 == log.frontier_ms
        assert durable_frontier(disk, log).lease_ms < log.frontier_ms
        assert [b"value"] == drained(topic.partition(0))
        assert durable_frontier(disk, log).lease_ms >= log.frontier_ms
