from __future__ import annotations

import errno
import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.config import ALWAYS
from afterlog.base.errors import (
    InvalidArgument,
    InvalidDeliverAfter,
    InvalidRecord,
    InvalidTopic,
    RecordTooLarge,
    StorageFull,
    StoreClosed,
    StoreForked,
    UniqueKeyConflict,
    UnknownPartition,
)
from afterlog.base.files import PROCESS
from afterlog.base.names import LOG
from afterlog.fetch.partition import Partition
from afterlog.fetch.record_id import RecordId
from afterlog.produce import producer as producer_module
from afterlog.produce.producer import Producer
from afterlog.produce.topic import Topic
from afterlog.store.store import Store
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, Background, Calls, HeldFiles, drained, eventually, open_small

NEVER_MS = 3_600_000


class Setting:
    def __init__(self, partitions: int = 1, **settings: object) -> None:
        self.calls = Calls()
        self.clock = ManualClock(NOW_MS)
        self.files = HeldFiles(SimulatedFiles(), self.calls)
        self.store: Store = open_small(self.files, self.clock, **settings)
        self.topic: Topic = self.store.create_topic("t", partitions=partitions, max_delay_ms=1_000)

    @property
    def partition(self) -> Partition:
        return self.topic.partition(0)

    def producer(self, linger_ms: int = NEVER_MS, batch_bytes: int = 1 << 20) -> Producer[RecordId]:
        return self.store.producer("t", linger_ms=linger_ms, batch_bytes=batch_bytes)

    def batches(self) -> int:
        return self.partition.log.index.count


@pytest.fixture
def setting() -> Iterator[Setting]:
    setting = Setting()
    yield setting
    setting.store.close()


def test_nothing_is_appended_before_it_must(setting: Setting) -> None:
    with setting.producer() as producer:
        futures = [producer.send(b"%d" % number) for number in range(3)]
        assert (0, False) == (setting.partition.log_end_offset, any(future.done() for future in futures))
    assert [RecordId("t", 0, offset) for offset in range(3)] == [future.result(0) for future in futures]
    assert [b"0", b"1", b"2"] == drained(setting.partition)
    assert 1 == setting.batches()


def test_linger_is_over(setting: Setting) -> None:
    with setting.producer(linger_ms=1) as producer:
        assert 0 == producer.send(b"a").result(5).offset
        assert 1 == producer.send(b"b").result(5).offset


def test_linger_goes_on_where_there_was_no_memory_once(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing = iter([MemoryError()])

    def ripe(*arguments: Any) -> bool:
        for error in failing:
            raise error
        return is_ripe(*arguments)

    is_ripe = Producer._ripe
    monkeypatch.setattr(Producer, "_ripe", ripe)
    with setting.producer(linger_ms=1) as producer:
        assert 0 == producer.send(b"a").result(5).offset
    assert "nothing was appended" in caplog.text


def test_a_batch_is_full(setting: Setting) -> None:
    with setting.producer(batch_bytes=500) as producer:
        first = producer.send(bytes(300))
        assert not first.done()
        producer.send(bytes(300)).result(5)
        assert first.done()
        assert 1 == setting.batches()


def test_flush_resolves_every_future_so_far(setting: Setting) -> None:
    with setting.producer() as producer:
        futures = [producer.send(b"a") for _ in range(5)]
        producer.flush()
        assert [0, 1, 2, 3, 4] == [future.result(0).offset for future in futures]
        later = producer.send(b"b")
        assert not later.done()
        producer.flush()
        producer.flush()
        assert later.done()


def test_a_future_resolves_when_its_record_is_durable() -> None:
    setting = Setting(durability=ALWAYS)
    gate = setting.files.hold("sync", LOG)
    with setting.producer(linger_ms=1) as producer:
        future = producer.send(b"a")
        gate.came()
        assert not future.done()
        gate.open()
        assert 0 == future.result(5).offset
    setting.store.close()


def test_records_of_unlike_times_do_not_share_a_batch(setting: Setting) -> None:
    with setting.producer() as producer:
        for delay in (0.1, 0.1, 0.5, 0.1):
            producer.send(b"%d" % (delay * 1000), delay=delay)
    assert 3 == setting.batches()
    setting.clock.advance(1_000)
    assert [b"100", b"100", b"100", b"500"] == drained(setting.partition)


def test_within_the_spread_they_do() -> None:
    setting = Setting(deliver_after_spread_ms=99)
    with setting.producer() as producer:
        futures = [producer.send(b"%d" % at, deliver_after=NOW_MS + at) for at in (550, 100, 510, 199)]
    assert 2 == setting.batches()
    assert [3, 0, 2, 1] == [future.result(0).offset for future in futures]
    setting.clock.advance(198)
    assert [] == drained(setting.partition)
    setting.clock.advance(1)
    assert [b"100", b"199"] == drained(setting.partition)


def test_fields_arrive(setting: Setting) -> None:
    with setting.producer() as producer:
        producer.send(None, key=b"k", headers=[("h", None), ("g", b"1")], delay=0.25)
        producer.send(bytearray(b"v"), deliver_after=NOW_MS + 250)
    setting.clock.advance(250)
    first, second = setting.partition.columns(0, 10, 1 << 20)[0].to_messages()
    assert (None, b"k", (("h", None), ("g", b"1")), NOW_MS, NOW_MS + 250) == (
        first.value, first.key, first.headers, first.timestamp, first.deliver_after
    )  # fmt: skip
    assert (b"v", None, ()) == (second.value, second.key, second.headers)


def test_partitions() -> None:
    setting = Setting(partitions=3)
    with setting.producer() as producer:
        named = [producer.send(b"", partition=number) for number in (2, 0, 1, 2)]
        keyed = [producer.send(b"", key=b"key") for _ in range(3)]
        in_turn = [producer.send(b"") for _ in range(3)]
    assert [2, 0, 1, 2] == [future.result(0).partition for future in named]
    assert {setting.topic.partition_of(b"key")} == {future.result(0).partition for future in keyed}
    assert {0, 1, 2} == {future.result(0).partition for future in in_turn}


@pytest.mark.parametrize(
    ("error", "fields"),
    [
        (InvalidDeliverAfter, {"delay": -1}),
        (InvalidDeliverAfter, {"delay": 1.001}),
        (InvalidDeliverAfter, {"delay": 0, "deliver_after": 0}),
        (InvalidRecord, {"value": "text"}),
        (InvalidRecord, {"key": "text"}),
        (RecordTooLarge, {"value": bytes(2_048)}),
        (UnknownPartition, {"partition": 1}),
    ],
)
def test_what_cannot_be_taken_raises_at_once(
    setting: Setting, error: type[Exception], fields: dict[str, object]
) -> None:
    with setting.producer() as producer:
        good = producer.send(b"good")
        with pytest.raises(error):
            producer.send(**{"value": b"", **fields})  # type: ignore[arg-type]
        producer.flush()
        assert 0 == good.result(0).offset
    assert [b"good"] == drained(setting.partition)


def test_a_fifo_topic_takes_no_times(setting: Setting) -> None:
    setting.store.create_topic("fifo", delayed=False)
    with setting.store.producer("fifo") as producer, pytest.raises(InvalidTopic):
        producer.send(b"", delay=1)


def test_a_failed_append_fails_its_futures_and_no_other(setting: Setting) -> None:
    with setting.producer() as producer:
        setting.calls.fail("append", LOG, OSError(errno.ENOSPC, "full"))
        lost = [producer.send(b"lost"), producer.send(b"lost")]
        producer.flush()
        kept = producer.send(b"kept")
    for future in lost:
        with pytest.raises(StorageFull):
            future.result(0)
    assert 0 == kept.result(0).offset
    assert [b"kept"] == drained(setting.partition)


def test_whatever_an_interceptor_raises_the_thread_goes_on() -> None:
    class Broken:
        broken = True

        def intercept(self, first_offset: int, broker_timestamp: int, entries: int) -> bytes:
            if self.broken:
                raise ZeroDivisionError
            return b""

    interceptor = Broken()
    setting = Setting(broker_entry_metadata_interceptors=(interceptor,))
    with setting.producer(linger_ms=1) as producer:
        with pytest.raises(ZeroDivisionError):
            producer.send(b"lost").result(5)
        interceptor.broken = False
        assert 0 == producer.send(b"kept").result(5).offset


def test_what_is_buffered_cannot_be_cancelled(setting: Setting) -> None:
    with setting.producer() as producer:
        first, second = producer.send(b"a"), producer.send(b"b")
        assert not first.cancel()
    assert [0, 1] == [first.result(0).offset, second.result(0).offset]


def test_closing_flushes_and_ends(setting: Setting) -> None:
    producer = setting.producer()
    future = producer.send(b"a")
    producer.close()
    producer.close()
    assert future.done()
    assert not producer._thread.is_alive()
    with pytest.raises(StoreClosed):
        producer.send(b"b")


def test_the_store_is_closed_first(setting: Setting) -> None:
    producer = setting.producer()
    future = producer.send(b"a")
    setting.store.close()
    producer.close()
    with pytest.raises(StoreClosed):
        future.result(0)


@pytest.mark.parametrize("used", [True, False])
def test_a_forked_child_cannot_send(setting: Setting, used: bool) -> None:
    with setting.producer() as producer:
        if used:
            producer.send(b"of the parent")
        with pytest.MonkeyPatch.context() as child:
            child.setattr(PROCESS, "id", -1)
            with pytest.raises(StoreForked, match="forked child"):
                producer.send(b"a")


def test_a_send_waits_while_too_much_is_buffered(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_module, "BUFFERED_BYTES_MAX", 1_000)
    gate = setting.files.hold("append", LOG)
    with setting.producer(batch_bytes=600, linger_ms=1) as producer:
        first = producer.send(bytes(700))
        gate.came()  # the thread is in the append: nobody else empties the buffer
        producer.send(bytes(1_100))
        sending = Background(lambda: producer.send(b"waits"))
        assert producer._buffers[0].size > 1_000
        assert sending.is_alive()
        gate.open()
        assert 2 == sending.answer().result(5).offset
        assert 0 == first.result(0).offset


def test_a_waiting_send_learns_that_the_producer_is_closed(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_module, "BUFFERED_BYTES_MAX", 0)
    gate = setting.files.hold("append", LOG)
    producer = setting.producer(batch_bytes=1)
    producer.send(b"a")
    gate.came()
    second = producer.send(b"b")
    sending = Background(lambda: producer.send(b"waits"))
    closing = Background(producer.close)
    eventually(lambda: producer._closed)
    with pytest.raises(StoreClosed):
        sending.answer()
    gate.open()
    closing.answer()
    assert 1 == second.result(0).offset


def test_threads_keep_their_order_and_lose_nothing() -> None:
    setting = Setting(partitions=2, segment_bytes=1 << 20, min_index_count_per_bucket=100)
    with setting.producer(linger_ms=1, batch_bytes=2_000) as producer:
        start = threading.Barrier(4)

        def send(thread: int) -> None:
            start.wait()
            for number in range(200):
                producer.send(b"%d %d" % (thread, number), partition=thread % 2)

        for sender in [Background(lambda thread=thread: send(thread)) for thread in range(4)]:  # type: ignore[misc]
            sender.answer()
    setting.store.check()
    for partition in setting.topic.partitions:
        found = [tuple(map(int, (value or b"").split())) for value in drained(partition)]
        assert 400 == len(found)
        for thread in range(4):
            mine = [number for sender, number in found if sender == thread]
            assert mine == ([] if thread % 2 != partition.number else list(range(200)))


def test_a_batch_is_never_larger_than_allowed(setting: Setting) -> None:
    with setting.producer() as producer:
        futures = [producer.send(bytes(400)) for _ in range(20)]
    assert list(range(20)) == [future.result(0).offset for future in futures]
    setting.store.check()


def test_a_callback_may_flush_and_close() -> None:
    setting, done = Setting(), threading.Event()
    producer = setting.producer(linger_ms=0)

    def again(_: object) -> None:
        producer.flush()
        producer.close()
        done.set()

    producer.send(b"x").add_done_callback(again)
    assert done.wait(10)
    producer.close()
    assert 1 == setting.partition.log_end_offset


# --- Unique keys


def ids(*futures: Future[RecordId]) -> list[int]:
    return [future.result(5).offset for future in futures]


def pending_values(setting: Setting) -> list[bytes | None]:
    return [record.value for record in setting.store.pending("t")]


def test_a_conflict_fails_its_future_and_no_other(setting: Setting) -> None:
    held = setting.store.send("t", b"held", delay=1, unique_key=b"k")
    with setting.producer() as producer:
        futures = [
            producer.send(value, delay=1, unique_key=key)
            for value, key in [(b"a", b"a"), (b"in conflict", b"k"), (b"b", b"b"), (b"again", b"a"), (b"plain", None)]
        ]
        producer.flush()
        assert [1, 2, 3] == ids(futures[0], futures[2], futures[4])
        with pytest.raises(UniqueKeyConflict) as caught:
            futures[1].result()
        assert held == caught.value.record
        with pytest.raises(UniqueKeyConflict):
            futures[3].result()
    assert [b"held", b"a", b"b", b"plain"] == pending_values(setting)


def test_keys_that_nobody_holds_share_one_append(setting: Setting) -> None:
    with setting.producer() as producer:
        futures = [producer.send(b"%d" % number, delay=1, unique_key=b"%d" % number) for number in range(5)]
        producer.flush()
        assert [0, 1, 2, 3, 4] == ids(*futures)
    assert 1 == setting.batches()


def test_one_buffer_of_several_ways(setting: Setting) -> None:
    setting.store.send("t", b"held", delay=1, unique_key=b"k")
    with setting.producer() as producer:
        kept = producer.send(b"x", delay=1, unique_key=b"k", on_conflict="keep")
        first = producer.send(b"first", delay=1, unique_key=b"k", on_conflict="replace")
        last = producer.send(b"last", delay=1, unique_key=b"k", on_conflict="replace")
        plain = producer.send(b"plain", headers=[("h", b"v")])
        producer.flush()
        assert [0, 2, 2, 3] == ids(kept, first, last, plain)
    assert [b"last"] == pending_values(setting)
    [record] = setting.store.pending("t")
    assert (("unique-key", b"k"),) == record.headers


def test_the_unique_key_decides_the_partition() -> None:
    setting = Setting(partitions=4)
    with setting.producer() as producer:
        for number in range(20):
            key = b"%d" % number
            sent = producer.send(b"", key=b"same", delay=1, unique_key=key)
            kept = producer.send(b"", delay=1, unique_key=key, on_conflict="keep")
            producer.flush()
            assert sent.result(5) == kept.result(5)
            assert setting.topic.partition_of(key) == sent.result().partition
    setting.store.close()


@pytest.mark.parametrize(
    ("error", "topic", "asked"),
    [
        (InvalidArgument, "t", {"on_conflict": "keep"}),
        (InvalidArgument, "t", {"unique_key": b"k", "on_conflict": "drop"}),
        (InvalidRecord, "t", {"unique_key": b""}),
        (InvalidTopic, "fifo", {"unique_key": b"k"}),
    ],
)
def test_unique_keys_that_cannot_be_raise_at_once(
    setting: Setting, error: type[Exception], topic: str, asked: dict[str, Any]
) -> None:
    setting.store.create_topic("fifo", delayed=False)
    with setting.store.producer(topic) as producer, pytest.raises(error):
        producer.send(b"v", **asked)


@pytest.mark.parametrize("sends", [0, 1])
def test_one_that_nobody_holds_keeps_nothing(sends: int) -> None:
    """Neither its thread nor its store, once what was buffered is appended."""
    setting = Setting()
    producer = setting.store.producer("t", linger_ms=1)
    thread, futures = producer._thread, [producer.send(b"x") for _ in range(sends)]
    for future in futures:
        future.result(10)
    held = weakref.ref(producer)
    del producer
    eventually(lambda: gc.collect() >= 0 and held() is None)
    thread.join(10)
    assert not thread.is_alive()
    assert sends == setting.partition.log_end_offset
    setting.store.close()


def test_one_that_nobody_holds_appends_what_it_has() -> None:
    setting = Setting()
    setting.store.producer("t", linger_ms=1).send(b"x")
    eventually(lambda: gc.collect() >= 0 and 1 == setting.partition.log_end_offset)
    setting.store.close()
