from __future__ import annotations

import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.errors import InvalidRecord
from afterlog.base.names import LOG, segment_file
from afterlog.records.entry import (
    AppendBrokerTimestamp,
    AppendIndex,
    BrokerEntryMetadata,
    BrokerEntryMetadataInterceptor,
    Entry,
    decode_entry,
    protobuf_field,
)
from afterlog.store.store import Store
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, PATH, content, drained, open_small

REGION, COUNT, RECEIVED = 32, 33, 34


class Stamped:
    """Says where and when an append came in."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int]] = []

    def intercept(self, first_offset: int, broker_timestamp: int, entries: int) -> bytes:
        self.asked.append((first_offset, broker_timestamp, entries))
        return protobuf_field(REGION, b"eu") + protobuf_field(COUNT, entries)


class Constant:
    def __init__(self, fields: bytes) -> None:
        self.fields = fields

    def intercept(self, first_offset: int, broker_timestamp: int, entries: int) -> bytes:
        return self.fields


def opened(disk: SimulatedFiles, *interceptors: object) -> Store:
    settings = {"segment_bytes": 1 << 20, "broker_entry_metadata_interceptors": interceptors}
    return open_small(disk, ManualClock(NOW_MS), **settings)


def entries_of(disk: SimulatedFiles) -> list[Entry]:
    data = content(disk, PATH / "t-0" / segment_file(0, LOG))
    entries: list[Entry] = []
    position = 0
    while position < len(data):
        entries.append(decode_entry(data, position))
        position += entries[-1].size
    return entries


@pytest.mark.parametrize("delayed", [True, False])
def test_what_a_user_adds_is_in_every_entry(delayed: bool) -> None:
    disk, interceptor = SimulatedFiles(), Stamped()
    store = opened(disk, interceptor, Constant(protobuf_field(RECEIVED, 7)))
    partition = store.create_topic("t", delayed=delayed).partition(0)
    times = [NOW_MS + 1, NOW_MS + 1, NOW_MS + 2] if delayed else None
    store.send_many("t", [b"a", b"b", b"c"], deliver_after=times)
    store.send("t", b"d")
    batches = 2 if delayed else 1
    assert [(0, NOW_MS, batches), (3, NOW_MS, 1)] == interceptor.asked
    for entry, count in zip(entries_of(disk), [batches] * batches + [1], strict=True):
        assert entry.metadata is not None
        extra = protobuf_field(REGION, b"eu") + protobuf_field(COUNT, count) + protobuf_field(RECEIVED, 7)
        assert (extra, NOW_MS) == (entry.metadata.extra, entry.metadata.broker_timestamp)
    store.clock.advance(2)  # type: ignore[attr-defined]
    assert {b"a", b"b", b"c", b"d"} == set(drained(partition))
    store.check()
    store.close()
    assert 4 == len(drained(opened(disk).topic("t").partition(0)))


@pytest.mark.parametrize("interceptor", [AppendBrokerTimestamp(), AppendIndex()])
def test_a_fifo_topic_gets_the_prefix(interceptor: BrokerEntryMetadataInterceptor) -> None:
    disk = SimulatedFiles()
    store = opened(disk, interceptor)
    store.create_topic("t", delayed=False)
    store.send_many("t", [b"a", b"b"])
    [entry] = entries_of(disk)
    assert BrokerEntryMetadata(broker_timestamp=NOW_MS, index=1) == entry.metadata
    assert (NOW_MS, NOW_MS) == (entry.header.base_timestamp, entry.header.max_timestamp)


def test_a_fifo_topic_without_interceptors_has_none() -> None:
    disk = SimulatedFiles()
    store = opened(disk)
    store.create_topic("t", delayed=False)
    store.send("t", b"a")
    [entry] = entries_of(disk)
    assert entry.metadata is None


def test_a_delayed_topic_has_the_prefix_without_them() -> None:
    disk = SimulatedFiles()
    store = opened(disk)
    store.create_topic("t")
    store.send("t", b"a", deliver_after=NOW_MS - 5)
    store.send("t", b"b", deliver_after=NOW_MS + 5)
    store.send("t", b"c")
    stamped = {"broker_timestamp": NOW_MS}
    assert [
        BrokerEntryMetadata(**stamped, index=0, deliver_after=NOW_MS, deliver_after_asked=NOW_MS - 5),
        BrokerEntryMetadata(**stamped, index=1, deliver_after=NOW_MS + 5),
        BrokerEntryMetadata(**stamped, index=2, deliver_after=NOW_MS),
    ] == [entry.metadata for entry in entries_of(disk)]


def test_entries_with_and_without_the_prefix_may_follow_each_other() -> None:
    disk, values = SimulatedFiles(), []
    for life, interceptors in enumerate(([AppendBrokerTimestamp()], [], [Stamped()], [])):
        with opened(disk, *interceptors) as store:
            store.create_topic("t", delayed=False)
            store.send("t", b"%d" % life)
            values.append(b"%d" % life)
            assert values == drained(store.topic("t").partition(0))
            store.check()
    assert [True, False, True, False] == [entry.metadata is not None for entry in entries_of(disk)]


@pytest.mark.parametrize(
    "interceptor",
    [
        object(),
        Constant(protobuf_field(31, 1)),
        Constant(protobuf_field(16, 1)),
        Constant(b"\xff"),
        Constant(protobuf_field(40, bytes(40_000))),
    ],
)
def test_what_is_not_protobuf_of_its_own_is_refused(interceptor: object) -> None:
    disk = SimulatedFiles()
    store = opened(disk, interceptor)
    partition = store.create_topic("t").partition(0)
    with pytest.raises(InvalidRecord):
        store.send("t", b"a")
    assert (0, 0) == (partition.log_end_offset, len(content(disk, PATH / "t-0" / segment_file(0, LOG))))
    store.check()
    partition.high_watermark()
    assert 0 == len(drained(partition))


def test_one_that_raises_leaves_nothing_behind() -> None:
    class Broken:
        def intercept(self, first_offset: int, broker_timestamp: int, entries: int) -> bytes:
            raise ZeroDivisionError

    disk = SimulatedFiles()
    store = opened(disk, Broken())
    partition = store.create_topic("t").partition(0)
    with pytest.raises(ZeroDivisionError):
        store.send("t", b"a")
    store.check()
    store.clock.advance(5)  # type: ignore[attr-defined]
    assert NOW_MS + 5 == partition.fetch(0).clock_ms


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize(("delayed", "stamped"), [(True, False), (False, True), (False, False)])
def test_a_reader_is_told_when_a_record_was_appended(compression: str, delayed: bool, stamped: bool) -> None:
    interceptors = (AppendBrokerTimestamp(),) if stamped else ()
    store = open_small(
        SimulatedFiles(), clock := ManualClock(NOW_MS), segment_bytes=1 << 20, compression=compression,
        broker_entry_metadata_interceptors=interceptors,
    )  # fmt: skip
    store.create_topic("t", delayed=delayed)
    for values in ([b"a", b"b"], [b"c"]):
        store.send_many("t", values, deliver_after=[NOW_MS + 50] * len(values) if delayed else None)
        clock.advance(10)
    expected = [NOW_MS, NOW_MS, NOW_MS + 10] if delayed or stamped else [-1] * 3
    if delayed:
        assert expected == [each.broker_timestamp for each in store.pending("t")]
        clock.advance(50)
    with store.consumer("t", group="g") as consumer, store.subscribe("t", "s") as reader:
        assert expected == [each.broker_timestamp for each in consumer.poll()]
        assert expected == reader.receive().columns.broker_timestamp.tolist()
