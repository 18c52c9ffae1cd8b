"""The log of a Kafka broker, indexed and uploaded, opened by a store: read only, in due order, byte for byte.

What is expected is read out of the broker's own files by kafka-python, which shares no code with us.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from afterlog import EARLIEST, AfterOffset, AtTime, RecordId
from afterlog.base.clock import ManualClock
from afterlog.base.errors import CorruptFile, OffsetOutOfRange, ReadOnlyTopic, RemoteConflict, RemoteRefused
from afterlog.base.names import CHECKPOINTS, LOG, TOPICS, segment_file
from afterlog.fetch.export import export
from afterlog.fetch.partition import Partition
from afterlog.log import kafka_segment
from afterlog.log.build import IndexedSegment, SegmentToIndex, index_segment
from afterlog.log.kafka_transactions import Transactions
from afterlog.log.snapshot import ALL_MS, open_snapshot
from afterlog.log.topic_settings import FOREIGN
from afterlog.offline.locked_store import OfflineStore
from afterlog.store.store import Store, open_store
from afterlog.tier.manifest import Manifest
from afterlog.tier.remote_topics import read_remote_topics, tell_topic
from afterlog.tier.segment_files import kafka_segment_files
from afterlog.tier.upload import upload
from tests import campaigns
from tests.campaigns.simulated_disk import Image, SimulatedFiles
from tests.log import kafka_python
from tests.log.kafka_log import batch, compacted, marker, transactional
from tests.support import NOW_MS, PATH, flipped, small
from tests.tier.memory_store import MemoryStore
from tests.tier.support import attempt

FOLDER = Path("/kafka/orders-0")
LONG_AFTER_MS = NOW_MS + 10**9


class Seen(NamedTuple):
    """A record, as a reader gets it."""

    due: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


@dataclass
class Broker:
    """A partition's folder on a broker, and the bucket that it is uploaded to. `segments`: base offset, batches."""

    segments: list[tuple[int, list[bytes]]] = field(default_factory=list)
    storage: MemoryStore = field(default_factory=MemoryStore)
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW_MS))
    disk: SimulatedFiles = field(init=False)

    def __post_init__(self) -> None:
        logs = {str(self.path(base)): b"".join(batches) for base, batches in self.segments}
        self.disk = SimulatedFiles(Image(("/kafka", str(FOLDER)), logs))

    def path(self, base_offset: int) -> Path:
        return FOLDER / segment_file(base_offset, LOG)

    def uploaded(self) -> list[IndexedSegment]:
        """Index and upload as the Spark jobs do."""
        told = []
        for base, batches in self.segments:
            segment = SegmentToIndex(
                topic="orders",
                partition=0,
                base_offset=base,
                path=self.path(base),
                log_bytes=len(b"".join(batches)),
            )
            told.append(index_segment(self.disk, segment, small(), self.clock, attempt=attempt(base)))
            if told[-1].action != "built":
                continue
            files = kafka_segment_files(self.disk, self.path(base), base, config=small())
            upload(Manifest(self.storage, "orders-0"), files, attempt=attempt(base), now_ms=NOW_MS)
        tell_topic(self.storage, "orders", FOREIGN)
        return told

    def opened(self, files: SimulatedFiles | None = None, **more: Any) -> Store:
        config = small(remote_cache_bytes=1 << 20, remote_page_bytes=512)
        remote = more.pop("remote", self.storage)
        return open_store(PATH, config, self.clock, files or SimulatedFiles(), remote, background=False)

    def records(self) -> list[Seen]:
        """What the broker's files hold, in delivery order, by kafka-python. A batch is due with its last record."""
        return in_due_order(each for _, batches in self.segments for data in batches for each in records_of(data))


def records_of(data: bytes) -> list[Seen]:
    """The records of one batch, by kafka-python."""
    read = next(iter(kafka_python.memory_records.MemoryRecords(data)), None)
    records = [] if read is None or read.is_control_batch else list(read)
    due = max((asked(record.headers) for record in records), default=0)
    return [Seen(due, record.offset, record.timestamp, record.key, record.value) for record in records]


def asked(headers: Iterable[tuple[str, bytes]]) -> int:
    """When a record is due by its headers."""
    stated = [value for name, value in headers if name == "deliver-after"]
    if not stated:
        return 0
    return int.from_bytes(stated[-1], "big") if len(stated[-1]) == 8 else int(stated[-1])


def in_due_order(records: Iterable[Seen]) -> list[Seen]:
    return sorted(records, key=lambda record: (record.due, record.offset))


def at(ms: int | None, *, value: bytes = b"v", digits: bool = False) -> tuple[int, bytes, list[tuple[str, bytes]]]:
    """A row of a batch, to be delivered so long after NOW_MS, or as soon as possible."""
    if ms is None:
        return NOW_MS - 5, value, []
    due = NOW_MS + ms
    return NOW_MS - 5, value, [("deliver-after", b"%d" % due if digits else due.to_bytes(8, "big"))]


def some_broker(seed: int) -> Broker:
    """Segments of everything that a broker may leave: codecs, epochs, gaps, thinned batches, times and none."""
    chance = random.Random(f"{campaigns.SEED} foreign {seed}")
    offset = chance.choice([0, 7, 10**6])
    segments: list[tuple[int, list[bytes]]] = []
    for _ in range(chance.randint(1, 4)):
        batches: list[bytes] = []
        base = offset
        for _ in range(chance.randint(1, 8)):
            offset += chance.choice([0, 0, 0, 1, 9])
            rows = [
                at(
                    chance.choice([None, chance.randint(-100, 1_000)]),
                    value=b"%d" % chance.randint(0, 10**9) * chance.randint(0, 40),
                    digits=chance.random() < 0.5,
                )
                for _ in range(chance.randint(1, 6))
            ]
            codec = chance.randrange(5)
            if chance.random() < 0.3:
                deltas = sorted(chance.sample(range(12), chance.randint(0, len(rows))))
                thinned = [(delta, *row) for delta, row in zip(deltas, rows, strict=False)]
                batches.append(compacted(codec, thinned, 11, offset))
                offset += 12
            else:
                batches.append(batch(codec, rows, offset, epoch=chance.choice([0, 3, 2**31 - 1])))
                offset += len(rows)
        segments.append((base, batches))
    return Broker(segments)


def seen(partition: Partition) -> list[Seen]:
    """All that a reader of columns gets now, from the log start on."""
    found, position = list[Seen](), partition.position(EARLIEST)
    while True:
        columns, behind = partition.columns(position, 5, 1 << 20)
        found += [Seen(each.due, each.offset, each.timestamp, each.key, each.value) for each in columns.to_messages()]
        if behind == position:
            return found
        position = behind


THREE = [
    (5, [batch(0, [at(300), at(100)], 5, epoch=7), batch(2, [at(None)], 7, epoch=8)]),
    (20, [batch(0, [at(50, digits=True)], 20), batch(1, [at(300)] * 3, 30, epoch=9)]),
]
"""Two segments with a gap between and one inside."""


def test_it_is_delivered_when_it_is_due_and_never_before() -> None:
    broker = Broker(THREE)
    broker.uploaded()
    expected = broker.records()
    assert [(0, 7), (50, 20), (300, 5), (300, 6), (300, 30), (300, 31), (300, 32)] == [
        (max(each.due - NOW_MS, 0), each.offset) for each in expected
    ]
    with broker.opened() as store:
        partition = store.topic("orders").partition(0)
        for ms in (0, 49, 50, 299, 300):
            broker.clock.set(NOW_MS + ms)
            assert [each for each in expected if each.due <= NOW_MS + ms] == seen(partition)
            assert len([each for each in expected if each.due > NOW_MS + ms]) == partition.pending()
        store.check()


@pytest.mark.parametrize("zeros", [0, 5_000])
def test_headers_that_name_no_time_and_a_file_made_longer_than_it_is_filled(zeros: int) -> None:
    wrong = (NOW_MS, b"at once", [("deliver-after", b"soon")])
    left = compacted(0, [(0, *wrong)], 3, 3)
    first = [batch(0, [wrong], 0), batch(1, [at(100), wrong], 1), left, bytes(zeros)]
    broker = Broker([(0, first), (7, [batch(0, [wrong], 7)])])
    broker.uploaded()
    with broker.opened() as store:
        partition = store.topic("orders").partition(0)
        assert [(0, b"at once"), (3, b"at once"), (7, b"at once")] == [
            (each.offset, each.value) for each in seen(partition)
        ]
        broker.clock.set(NOW_MS + 100)
        assert [0, 3, 7, 1, 2] == [each.offset for each in seen(partition)]
        assert [3, 2] == partition.records_at(np.array([3, 2]), np.array([-1, -1])).offset.tolist()
        store.check()


@pytest.mark.parametrize("seed", range(campaigns.examples(8, whole=1_000)))
def test_whatever_a_broker_left_is_delivered_as_it_is(seed: int) -> None:
    broker = some_broker(seed)
    broker.uploaded()
    expected = broker.records()
    with broker.opened() as store:
        partition = store.topic("orders").partition(0)
        while broker.clock.now_ms() < NOW_MS + 1_000:
            assert [each for each in expected if each.due <= broker.clock.now_ms()] == seen(partition), seed
            broker.clock.advance(331)
        broker.clock.set(LONG_AFTER_MS)
        assert expected == seen(partition)
        raw = {data for _, batches in broker.segments for data in batches if len(records_of(data))}
        fetched, position = list[bytes](), partition.position(EARLIEST)
        while position < partition.high_watermark():
            found = partition.fetch(position, max_bytes=300)
            fetched += [bytes(data) for data in found.batches]
            position = found.next_position
        assert sorted(raw) == sorted(data for data in fetched if len(records_of(data)))
        store.check()
    campaigns.count("foreign logs", 1)


def test_columns_messages_groups_and_what_is_scheduled() -> None:
    broker = Broker(THREE)
    broker.uploaded()
    broker.clock.set(NOW_MS + 60)
    with broker.opened() as store:
        with store.consumer("orders", group="g") as consumer:
            messages = consumer.poll(10)
            assert [(7, 0), (20, NOW_MS + 50)] == [(each.offset, each.due) for each in messages]
            assert [0, NOW_MS + 50] == [each.deliver_after for each in messages]
            assert [(), ()] == [each.headers for each in messages]
        scheduled = store.pending("orders")
        assert [5, 6, 30, 31, 32] == [each.offset for each in scheduled]
        assert [NOW_MS + 300, NOW_MS + 100, 0, 0, 0][:2] == [each.deliver_after for each in scheduled][:2]
        partition = store.topic("orders").partition(0)
        assert (5, NOW_MS + 300) == (partition.pending(), partition.next_due())
        edges = np.array([0, 1, NOW_MS, NOW_MS + 51, NOW_MS + 301])
        assert [1, 0, 1, 5] == partition.due_histogram(edges).tolist()
        assert [False, True, False, True, False, False] == [
            partition.is_pending(each) for each in (7, 6, 20, 31, 8, 99)
        ]
        broker.clock.set(LONG_AFTER_MS)
        with store.consumer("orders", group="g") as consumer:
            assert [5, 6, 30, 31, 32] == [each.offset for each in consumer.poll(10)]
        by_time = partition.columns(partition.beginning(AtTime(NOW_MS + 51)), 10, 1 << 20)[0]
        assert [5, 6, 30, 31, 32] == by_time.offset.tolist()
        behind = partition.columns(partition.position(AfterOffset(6)), 10, 1 << 20)[0]
        assert [30, 31, 32] == behind.offset.tolist()
        found = partition.records_at(np.array([31, 5, 20]), np.full(3, -1))
        assert ([31, 5, 20], [300, 300, 50]) == (found.offset.tolist(), (found.due - NOW_MS).tolist())
        for gone in (8, 29):
            with pytest.raises(OffsetOutOfRange):
                partition.records_at(np.array([gone]), np.array([-1]))


def test_every_rank_is_final() -> None:
    """Nothing is ever appended: a reader may begin among what is pending, and finds the same record after a restart."""
    broker = Broker(THREE)
    broker.uploaded()
    disk = SimulatedFiles()
    with broker.opened(disk) as store:
        partition = store.topic("orders").partition(0)
        ranks = partition.log_start + np.arange(7)
        assert ranks[-1] + 1 == partition.log_end_offset
        assert ranks[4] == partition.beginning(int(ranks[4]))
        with store.consumer("orders", group="g", start=int(ranks[4])) as consumer:
            assert [] == consumer.poll(10)
    Broker([(40, [batch(0, [at(None)], 40)])], broker.storage).uploaded()
    broker.clock.set(LONG_AFTER_MS)
    with broker.opened(disk) as store:
        partition = store.topic("orders").partition(0)
        with store.consumer("orders", group="g") as consumer:
            assert [30, 31, 32] == [each.offset for each in consumer.poll(10)]
        assert ranks.tolist() == partition.columns(int(ranks[0]), 10, 1 << 20)[0].delivery_offset.tolist()
        store.check()
    with broker.opened() as fresh:  # only another machine finds what was uploaded later
        assert [7, 40, 20, 5, 6, 30, 31, 32] == [each.offset for each in seen(fresh.topic("orders").partition(0))]


def test_a_subscription_gets_each_record_until_it_is_acked() -> None:
    thinned = compacted(4, [(1, *at(10)), (4, *at(70)), (5, *at(20))], 9, 50)
    broker = Broker([*THREE, (50, [thinned, batch(0, [at(71)], 60)])])
    broker.uploaded()
    broker.clock.set(NOW_MS + 75)
    disk = SimulatedFiles()
    with broker.opened(disk) as store, store.subscribe("orders", "s", lease_ms=1_000) as subscription:
        first = subscription.receive(2)
        assert [7, 20] == [each.offset for each in first]
        subscription.ack_many(first)
        second = subscription.receive(10)
        assert [51, 54, 55, 60] == [each.offset for each in second]
        subscription.ack(second[1])
    broker.clock.advance(1)
    with broker.opened(disk) as store, store.subscribe("orders", "s") as subscription:
        again = subscription.receive(10)
        assert [51, 55, 60] == [each.offset for each in again]
        subscription.nack(again[0])
        subscription.ack_many(again[1:])
        broker.clock.set(LONG_AFTER_MS)
        rest = subscription.receive(10)
        assert {5, 6, 30, 31, 32, 51} == {each.offset for each in rest}
        subscription.ack_many(rest)
        stats = subscription.stats().partitions[0]
        assert (0, 0, 0) == (stats.pending, stats.due, stats.leased)
        assert stats.mark_delete == stats.position == store.topic("orders").partition(0).log_end_offset
        store.check()


def refusals(store: Store) -> list[Callable[[], object]]:
    """Whatever would change the topic."""
    partition = store.topic("orders").partition(0)
    return [
        lambda: store.send("orders", b"v"),
        lambda: store.send_many("orders", [b"v"] * 3, delay=5),
        lambda: store.producer("orders").send(b"v"),
        lambda: partition.append(batch(0, [at(None)])),
        lambda: store.cancel(RecordId("orders", 0, 5)),
        lambda: store.reschedule(RecordId("orders", 0, 5), delay=9),
        lambda: partition.log.enforce_retention(),
        lambda: store.subscribe("mine", "s", dead_letter="orders"),
    ]


def test_what_would_change_it_is_refused() -> None:
    broker = Broker(THREE)
    broker.uploaded()
    with broker.opened() as store:
        store.create_topic("mine")
        for refused in refusals(store):
            with pytest.raises(ReadOnlyTopic, match="only read"):
                refused()
        assert 0 == store.enforce_retention()
        assert 0 == store.held_bytes("orders").total
        assert {} == store.offload()
        before = broker.storage.list_objects()
        store.send("mine", b"v")
        assert 1 == store.topic("mine").partition(0).log_end_offset
        assert 7 == store.topic("orders").partition(0).pending() + store.topic("orders").partition(
            0
        ).high_watermark() - (store.topic("orders").partition(0).log_start)
        assert [*before] == [*broker.storage.list_objects()]
        store.check()


def with_transactions() -> Broker:
    """Each is decided by the first marker of its producer, which may lie in a later segment."""
    first = [
        transactional([at(5, value=b"committed")], 1, 0),
        transactional([at(6, value=b"aborted"), at(1)], 2, 1),
        batch(0, [at(7, value=b"plain")], 3),
        marker(2, commit=False, offset=4),
        marker(1, commit=True, offset=5),
        transactional([at(8, value=b"committed later")], 1, 6),
        transactional([at(9, value=b"aborted later")], 2, 7),
        transactional([at(10, value=b"never ended")], 3, 8),
        transactional([at(11, value=b"committed last")], 4, 9),
    ]
    second = [marker(1, commit=True, offset=10), transactional([at(0)], 1, 11), marker(2, commit=False, offset=12)]
    third = [marker(1, commit=False, offset=13), marker(4, commit=True, offset=14), batch(0, [at(4)], 15)]
    return Broker([(0, first), (10, second), (13, third)])


COMMITTED = [b"v", b"committed", b"plain", b"committed later", b"committed last"]
"""What of it readers see, in due order."""


def test_markers_and_transactions_that_came_to_nothing_are_left_out_and_counted() -> None:
    broker = with_transactions()
    told = broker.uploaded()
    assert [("built", 2, 2, 1), ("skipped", 2, 1, 0), ("built", 2, 0, 0)] == [
        (each.action, each.control_batches, each.aborted_batches, each.uncommitted_batches) for each in told
    ]
    broker.clock.set(LONG_AFTER_MS)
    with broker.opened() as store:
        partition = store.topic("orders").partition(0)
        assert COMMITTED == [each.value for each in seen(partition)]
        assert 5 == partition.high_watermark() - partition.log_start
        broker.clock.set(NOW_MS)
        for hidden in (1, 4, 8, 11, 14):
            assert not partition.is_pending(hidden)
        store.check()


@pytest.mark.parametrize("delivery_order", [True, False])
def test_exported_it_is_a_plain_log_of_what_was_committed(delivery_order: bool) -> None:
    broker = with_transactions()
    broker.uploaded()
    broker.clock.set(LONG_AFTER_MS)
    disk, out = SimulatedFiles(), Path("/out")
    with broker.opened(disk) as store:
        partition = store.topic("orders").partition(0)
        log = open_snapshot(partition.log.context, at_ms=ALL_MS)
        done = export(disk, Partition("orders", 0, log), out, delivery_order=delivery_order)
        expected = [(each.offset, each.value) for each in sorted(seen(partition), key=lambda each: each.offset)]
        if delivery_order:
            expected = [*enumerate(COMMITTED, partition.log_start)]
    records = kafka_python.memory_records.MemoryRecords(
        disk.image().contents[str(out / segment_file(done.first_offset, LOG))]
    )
    batches = iter(records.next_batch, None)
    found = [(batch.is_transactional, record.offset, record.value) for batch in batches for record in batch]
    assert [(False, *each) for each in expected] == found


def test_verify_finds_nothing_wrong_and_repair_mends_what_is_lost() -> None:
    broker = with_transactions()
    broker.uploaded()
    disk = SimulatedFiles()
    broker.opened(disk).close()
    with OfflineStore(PATH, disk, broker.clock, broker.storage) as store:
        assert [] == list(store.verify())
    broker.clock.set(LONG_AFTER_MS)
    for lost in (TOPICS, f"orders-0/{CHECKPOINTS}"):
        disk.unlink(PATH / lost)
        with OfflineStore(PATH, disk, broker.clock, broker.storage) as store:
            assert [lost] == [str(finding.path.relative_to(PATH)) for finding in store.verify()]
            store.apply(store.plan())
        with OfflineStore(PATH, disk, broker.clock) as store:
            assert [] == list(store.verify())
        with broker.opened(disk) as opened:
            assert COMMITTED == [each.value for each in seen(opened.topic("orders").partition(0))]
            opened.check()


@pytest.mark.parametrize("planted", ["early", "aborted"])
def test_planted_bug_is_caught(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that calls batches due too early, and one that holds what was aborted."""
    if planted == "early":
        asked_for = kafka_segment._asked
        monkeypatch.setattr(kafka_segment, "_asked", lambda *args: np.maximum(asked_for(*args) - 50, -1))
    else:
        monkeypatch.setattr(Transactions, "fates", lambda self, *args: np.zeros(self._count, np.int8))
    broker = with_transactions()
    broker.uploaded()
    monkeypatch.undo()
    broker.clock.set(LONG_AFTER_MS)
    with broker.opened() as store:
        partition = store.topic("orders").partition(0)
        if planted == "aborted":
            assert COMMITTED != [each.value for each in seen(partition)]
            return
        with pytest.raises(CorruptFile, match="is not the one that the index names"):
            seen(partition)


def test_what_is_in_the_bucket_is_not_believed() -> None:
    broker = Broker(THREE)
    broker.uploaded()
    broker.clock.set(LONG_AFTER_MS)
    early = Broker([(5, [batch(0, [at(299), at(100)], 5), batch(2, [at(None)], 7)])])
    early.uploaded()
    key, theirs = (log_key(each.storage) for each in (broker, early))
    broker.storage.objects[key] = early.storage.objects[theirs]
    with broker.opened() as store:
        partition = store.topic("orders").partition(0)

        def fetched() -> None:
            position = partition.log_start
            while position < partition.high_watermark():
                position = partition.fetch(position, max_bytes=1 << 20).next_position

        for read in (lambda: seen(partition), fetched):
            with pytest.raises(CorruptFile, match="is not the one that the index names"):
                read()


def test_a_bit_that_rots_in_the_bucket_is_an_error_or_changes_nothing() -> None:
    """Kafka's checksum covers neither base offset, which the index tells, nor leader epoch, which nobody reads."""
    broker = Broker(THREE)
    broker.uploaded()
    broker.clock.set(LONG_AFTER_MS)
    key, expected = log_key(broker.storage), broker.records()
    good, harmless = broker.storage.objects[key], list[int]()
    for position in campaigns.share(range(len(good)), 12):
        broker.storage.objects[key] = flipped(good, position)
        with broker.opened() as store:
            try:
                assert expected == seen(store.topic("orders").partition(0))
            except CorruptFile:
                continue
        harmless.append(position)
    second = len(THREE[0][1][0])
    assert {*harmless} <= {*range(12, 16), *range(second + 12, second + 16)}  # the epochs


def log_key(storage: MemoryStore) -> str:
    """Of the first segment."""
    manifest = Manifest(storage, "orders-0")
    return manifest.object_key(manifest.listed()[0], LOG)


def test_without_object_storage_it_is_known_and_cannot_be_read() -> None:
    broker = Broker(THREE)
    broker.uploaded()
    broker.clock.set(LONG_AFTER_MS)
    disk = SimulatedFiles()
    broker.opened(disk).close()
    with broker.opened(disk, remote=None) as store:
        partition = store.topic("orders").partition(0)
        with pytest.raises(RemoteRefused, match="remote="):
            partition.fetch(EARLIEST)


def test_a_topic_is_told_of_every_partition() -> None:
    storage = MemoryStore()
    for partitions in (1, 3, 2):
        tell_topic(storage, "orders", replace(FOREIGN, partitions=partitions))
    assert {"orders": replace(FOREIGN, partitions=3)} == read_remote_topics(storage)
    with pytest.raises(RemoteConflict):
        tell_topic(storage, "orders", replace(FOREIGN, foreign=False))
    tell_topic(storage, "mine", replace(FOREIGN, foreign=False))
    with pytest.raises(RemoteConflict):
        tell_topic(storage, "mine", FOREIGN)
