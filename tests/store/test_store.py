from __future__ import annotations

import contextlib
import errno
import gc
import random
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import afterlog
from afterlog.base import document
from afterlog.base.clock import ManualClock
from afterlog.base.config import ALWAYS, OS, Config, Durability
from afterlog.base.errors import (
    CorruptFile,
    InvalidDeliverAfter,
    InvalidRecord,
    InvalidTopic,
    NotPending,
    PartitionPoisoned,
    StorageFull,
    StoreClosed,
    StoreForked,
    StoreLocked,
    StoreReplaced,
    TopicExists,
    UnknownPartition,
    UnknownTopic,
)
from afterlog.base.files import PROCESS
from afterlog.base.names import CHECKPOINTS, LATER_TOPICS, LOCK, LOG, TOPICS
from afterlog.fetch.record_id import RecordId
from afterlog.log.append import Appender
from afterlog.log.cancel_result import CancelResult
from afterlog.log.commit import Commit, sync_behind
from afterlog.log.partition_log import PartitionLog
from afterlog.log.topics_document import FORMAT, VERSION, read_topics
from afterlog.log.version import End
from afterlog.store.store import Store, open_store
from tests import campaigns
from tests.campaigns.failing_files import FailingFiles
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import (
    NOW_MS,
    PATH,
    Background,
    Calls,
    HeldFiles,
    content,
    drained,
    flipped,
    killed,
    numbered_ids,
    open_small,
    power_cut,
    small,
    with_file,
)


class Setting:
    def __init__(self, **settings: object) -> None:
        self.disk = SimulatedFiles()
        self.calls = Calls()
        self.clock = ManualClock(NOW_MS)
        self.files = HeldFiles(self.disk, self.calls)
        self.store = open_small(self.files, self.clock, **settings)


@pytest.fixture
def setting() -> Iterator[Setting]:
    setting = Setting()
    yield setting
    setting.store.close()


# --- Opening, closing


def test_opening_makes_the_folders_durably() -> None:
    disk, path = SimulatedFiles(), Path("/a/b/c")
    open_store(path, small(), ManualClock(NOW_MS), disk).create_topic("t")
    store = open_store(path, small(), ManualClock(NOW_MS), power_cut(disk))
    assert ["t"] == [topic.name for topic in store.topics()]


def test_opening_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with afterlog.open("data", clock=ManualClock(NOW_MS)) as store:
        assert tmp_path / "data" == store.path
        store.create_topic("t")
        assert RecordId("t", 0, 0) == store.send("t", b"a")
    with afterlog.open(tmp_path / "data") as store:
        assert [b"a"] == drained(store.topic("t").partition(0))


def test_a_store_is_open_once(setting: Setting) -> None:
    with pytest.raises(StoreLocked) as raised:
        open_small(setting.disk, setting.clock)
    assert raised.value.retriable
    setting.store.close()
    open_small(setting.disk, setting.clock).close()


def test_a_failed_open_lets_everything_go(setting: Setting) -> None:
    setting.store.create_topic("a")
    setting.store.create_topic("b")
    setting.store.close()
    path = PATH / "b-0" / CHECKPOINTS
    whole = content(setting.disk, path)
    disk = with_file(setting.disk, path, flipped(whole, 50))
    for _ in range(2):
        with pytest.raises(CorruptFile) as raised:
            open_small(disk, setting.clock)
        assert path == raised.value.path
    disk.unlink(path)
    disk.create(path).append([whole])
    assert ["a", "b"] == [topic.name for topic in open_small(disk, setting.clock).topics()]


def test_closed(setting: Setting) -> None:
    setting.store.create_topic("t")
    setting.store.close()
    setting.store.close()
    for call in (
        lambda: setting.store.send("t", b""),
        lambda: setting.store.send_many("t", [b""]),
        lambda: setting.store.producer("t"),
        lambda: setting.store.consumer("t", group="g"),
        lambda: setting.store.create_topic("u"),
        lambda: setting.store.topic("t"),
        setting.store.topics,
        setting.store.sync,
        setting.store.check,
        setting.store.enforce_retention,
    ):
        with pytest.raises(StoreClosed, match="open it again"):
            call()


def test_closing_makes_everything_durable() -> None:
    for durability in (ALWAYS, Durability.interval(3_600_000), afterlog.OS):
        setting = Setting(durability=durability)
        setting.store.create_topic("t", partitions=2)
        for number in range(2):
            setting.store.send("t", b"%d" % number, partition=number)
        setting.store.close()
        partitions = open_small(power_cut(setting.disk), setting.clock).topic("t").partitions
        assert [[b"0"], [b"1"]] == [drained(partition) for partition in partitions]


def test_a_partition_that_fails_to_close_keeps_no_other_open(setting: Setting) -> None:
    setting.store.create_topic("t", partitions=3)
    for number in range(3):
        setting.store.send("t", b"%d" % number, partition=number)
    setting.calls.fail("append", "checkpoints.tmp", OSError(errno.EIO, "broken"))
    with pytest.raises(PartitionPoisoned):
        setting.store.close()
    assert [True] * 3 == [log.commit.closed for log in setting.store._topics.logs()]
    store = open_small(setting.disk, setting.clock)
    assert [[b"0"], [b"1"], [b"2"]] == [drained(partition) for partition in store.topic("t").partitions]


def test_a_forked_child_only_forgets(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    setting.store.create_topic("t")
    with monkeypatch.context() as child:
        child.setattr(PROCESS, "id", -1)
        with pytest.raises(StoreForked):
            setting.store.send("t", b"")
        before = setting.disk.image()
        setting.store.close()
        assert before == setting.disk.image()
    with pytest.raises(StoreLocked):
        open_small(setting.disk, setting.clock)
    setting.store._closed = False  # the parent's copy never heard of it


# --- Topics


def test_topics_are_there_after_a_reopen(setting: Setting) -> None:
    made = setting.store.create_topic("mail.v1", 3, max_delay_ms=5, retention_ms=6, retention_bytes=7)
    setting.store.create_topic("a-0", delayed=False)
    again = open_small(power_cut(setting.disk), setting.clock)
    assert [("a-0", 1), ("mail.v1", 3)] == [(topic.name, topic.partition_count) for topic in again.topics()]
    assert made.settings == again.topic("mail.v1").settings
    assert not again.topic("a-0").settings.delayed
    assert {topic.name: topic.settings for topic in again.topics()} == read_topics(setting.disk, PATH)


def test_making_a_topic_twice(setting: Setting) -> None:
    topic = setting.store.create_topic("t", 2, retention_ms=5)
    assert topic is setting.store.create_topic("t", 2, retention_ms=5)
    for settings in ({"partitions": 3}, {"delayed": False}, {"retention_ms": 6}, {"max_delay_ms": 1}):
        with pytest.raises(TopicExists, match="is there with"):
            setting.store.create_topic("t", **{"partitions": 2, "retention_ms": 5, **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [
        {"partitions": 0},
        {"partitions": 1.0},
        {"partitions": True},
        {"partitions": None},
        {"max_delay_ms": -1},
        {"retention_ms": "7"},
        {"retention_bytes": True},
        {"max_delay_ms": 5, "delayed": False},
    ],
)
def test_settings_that_make_no_topic(setting: Setting, settings: dict[str, object]) -> None:
    before = setting.disk.image()
    with pytest.raises(InvalidTopic):
        setting.store.create_topic("t", **settings)  # type: ignore[arg-type]
    assert before == setting.disk.image()


def test_every_failing_call_of_create_topic_leaves_it_to_be_made_again() -> None:
    """Where a call fails the topic is not there; made again, it is empty and works."""
    for call in range(1, 200):
        setting = Setting()
        setting.store.create_topic("other")
        setting.store.send("other", b"kept")
        made = setting.files.calls

        def failing(
            operation: str, path: Path, last: int = made + call, files: FailingFiles = setting.files
        ) -> OSError | None:
            return OSError(errno.ENOSPC, "full") if files.calls == last else None

        setting.calls.failing = failing
        try:
            setting.store.create_topic("t", 2)
        except (StorageFull, OSError):
            again = open_small(killed(setting.disk), setting.clock)
            assert [b"kept"] == drained(again.topic("other").partition(0))
            setting.store.create_topic("t", 2)
            setting.store.send("t", b"a", partition=1)
            setting.store.check()
            assert [b"a"] == drained(setting.store.topic("t").partition(1))
        else:
            assert call > 10
            return
    raise AssertionError("it never ran through")


def test_unknown(setting: Setting) -> None:
    setting.store.create_topic("t")
    for name in ("nothing", "", None, 7, ["t"]):
        with pytest.raises(UnknownTopic):
            setting.store.topic(name)  # type: ignore[arg-type]
    for partition in (-1, 1, "0"):
        with pytest.raises(UnknownPartition):
            setting.store.send("t", b"", partition=partition)  # type: ignore[arg-type]


@pytest.mark.parametrize("body", [{"t": 7}, {"t": {"unknown": 1}}, {"../t": {}}])
def test_an_intact_topics_document_of_something_else(setting: Setting, body: dict[str, object]) -> None:
    setting.store.close()
    document.write(setting.disk, PATH / TOPICS, FORMAT, VERSION, body)
    with pytest.raises(CorruptFile, match="unknown kind") as raised:
        open_small(setting.disk, setting.clock)
    assert PATH / TOPICS == raised.value.path


# --- Sending


def test_send(setting: Setting) -> None:
    partition = setting.store.create_topic("t").partition(0)
    moment = datetime.fromtimestamp(NOW_MS / 1000, UTC)
    for number, fields in enumerate(
        (
            {},
            {"delay": 0.005},
            {"delay": timedelta(milliseconds=4)},
            {"deliver_after": NOW_MS + 3},
            {"deliver_after": moment + timedelta(milliseconds=2)},
            {"deliver_after": 0},
        )
    ):
        sent = setting.store.send("t", b"%d" % number, key=b"k", headers=[("h", None)], **fields)  # type: ignore[arg-type]
        assert RecordId("t", 0, number) == sent
    setting.clock.advance(5)
    columns, _ = partition.columns(0, 10, 1 << 20)
    found = columns.to_messages()
    assert [b"0", b"5", b"4", b"3", b"2", b"1"] == [message.value for message in found]
    assert [0, 0, 2, 3, 4, 5] == [message.due - NOW_MS for message in found]
    assert {(b"k", (("h", None),), NOW_MS)} == {(each.key, each.headers, each.timestamp) for each in found}
    assert [found[0].id] == [RecordId("t", 0, 0)]


def test_send_many(setting: Setting) -> None:
    partition = setting.store.create_topic("t").partition(0)
    offsets = setting.store.send_many(
        "t", [b"a", None, b"c"], keys=[b"k", b"", None], headers=[("h", b"1")], delay=[0.003, 0.001, 0.002],
        timestamps=NOW_MS - np.array([1, 2, 3]),
    )  # fmt: skip
    assert [0, 1, 2] == offsets.tolist()
    setting.clock.advance(3)
    found = partition.columns(0, 10, 1 << 20)[0].to_messages()
    assert [(None, b"", NOW_MS - 2), (b"c", None, NOW_MS - 3), (b"a", b"k", NOW_MS - 1)] == [
        (each.value, each.key, each.timestamp) for each in found
    ]
    assert {(("h", b"1"),)} == {each.headers for each in found}
    assert [] == setting.store.send_many("t", []).tolist()
    pair = (np.array([0, 1, 3]), b"abb")
    assert [3, 4] == setting.store.send_many("t", pair).tolist()


@pytest.mark.parametrize(
    "fields",
    [
        {"values": [b"a"], "keys": [b"k", b"l"]},
        {"values": [b"a", b"b"], "timestamps": np.array([1])},
        {"values": [b"a"], "timestamps": 5},
        {"values": ["a"]},
        {"values": [b"a"], "keys": ["k"]},
        {"values": [b"a"], "headers": [("h\udfff" * 2, "text")]},
        {"values": [b"a"], "timestamps": np.array([-2])},
        {"values": [b"a"], "timestamps": [1.5]},
        {"values": [b"a"], "timestamps": np.array([2**63], np.uint64)},
        {"values": [b"a"], "timestamps": [2**70]},
    ],
)
def test_send_many_refuses(setting: Setting, fields: dict[str, object]) -> None:
    setting.store.create_topic("t")
    before = setting.disk.image()
    with pytest.raises(InvalidRecord):
        setting.store.send_many("t", **fields)  # type: ignore[arg-type]
    assert before == setting.disk.image()


def test_a_send_over_several_segments_keeps_its_order(setting: Setting) -> None:
    partition = setting.store.create_topic("t").partition(0)
    texts = [b"%d" % number * 50 for number in range(300)]
    assert list(range(300)) == setting.store.send_many("t", texts).tolist()
    assert 3 < len(partition.log.version.segments)
    assert texts == drained(partition)
    setting.store.check()


def test_threads_send_and_read(setting: Setting) -> None:
    partition = setting.store.create_topic("t").partition(0)
    start = threading.Barrier(4)

    def send(thread: int) -> list[int]:
        start.wait()
        return [setting.store.send("t", b"%d %d" % (thread, number)).offset for number in range(40)]

    def read() -> list[bytes | None]:
        start.wait()
        found: list[bytes | None] = []
        while len(found) < 120:
            found += drained(partition, len(found))
        return found

    reader = Background(read)
    offsets = [thread.answer() for thread in [Background(lambda thread=thread: send(thread)) for thread in range(3)]]  # type: ignore[misc]
    found = reader.answer()
    assert list(range(120)) == sorted(offset for each in offsets for offset in each)
    for thread, each in enumerate(offsets):
        assert [b"%d %d" % (thread, number) for number in range(40)] == [found[offset] for offset in each]
    setting.store.check()


# --- Keeping


def test_sync_spans_all_partitions() -> None:
    setting = Setting()
    for name in ("a", "b"):
        setting.store.create_topic(name, 2)
        setting.store.send(name, b"x", partition=1)
    setting.store.sync()
    store = open_small(power_cut(setting.disk), setting.clock)
    assert [[b"x"], [b"x"]] == [drained(topic.partition(1)) for topic in store.topics()]


def test_sync_beside_a_reader_that_goes_is_of_all_the_others() -> None:
    """The last reader of a subscription closes it when its journal was asked for, and is not synced yet."""
    setting = Setting()
    store = setting.store
    store.create_topic("t")
    going, staying = (store.subscribe("t", name) for name in ("going", "staying"))
    commits = [*store._commits()]

    def one_goes() -> Iterator[Commit]:
        yield from commits[:1]
        going.close()
        yield from commits[1:]

    with patch.object(store, "_commits", one_goes):
        store.sync()
        sync_behind(store._commits())
    staying.close()
    store.close()
    closed_meanwhile = [None, StoreClosed("it was closed meanwhile")]
    with patch.object(store, "_usable", side_effect=closed_meanwhile), pytest.raises(StoreClosed):
        store.sync()


def test_torn_tails_are_reported(setting: Setting) -> None:
    setting.store.create_topic("t", 2)
    setting.store.send("t", b"a", partition=1)
    [path] = [PATH / "t-1" / name for name in setting.disk.names(PATH / "t-1") if name.endswith(LOG)]
    disk = with_file(setting.disk, path, content(setting.disk, path)[:-1])
    store = open_small(disk, setting.clock)
    assert {("t", 1): len(content(setting.disk, path)) - 1} == store.cut_bytes
    store.close()
    assert {} == open_small(disk, setting.clock).cut_bytes


def test_a_jump_of_the_clock_is_reported_and_held_until_confirmed() -> None:
    class Jumping(ManualClock):
        def boot_ms(self) -> int:
            return 0

    clock = Jumping(NOW_MS)
    store = open_small(SimulatedFiles(), clock, clock_jump_limit_ms=10_000)
    partition = store.create_topic("t").partition(0)
    store.send("t", b"a", delay=60)
    clock.advance(5_000)
    assert (0, 1) == (partition.high_watermark(), store.clock_jumps)
    clock.advance(100_000)
    assert (0, 2) == (partition.high_watermark(), store.clock_jumps)
    waiting = Background(lambda: partition.fetch(0, max_wait_ms=5_000))
    store.confirm_clock()
    assert 1 == waiting.answer().next_position


def test_enforce_retention_counts_over_all_topics(setting: Setting) -> None:
    for name in ("a", "b"):
        partition = setting.store.create_topic(name, retention_ms=0).partition(0)
        setting.store.send(name, b"x", delay=1)
        partition.log.roll()
    setting.clock.advance(1_000)
    assert [2, 0] == [setting.store.enforce_retention(), setting.store.enforce_retention()]


def test_check_looks_into_every_partition(setting: Setting) -> None:
    setting.store.create_topic("t", 2)
    setting.store.check()
    log = setting.store.topic("t").log(1)
    log.versions.swap(log.version, visible=End(2, 2))
    with pytest.raises(AssertionError):
        setting.store.check()


def test_the_lock_and_a_folder_for_what_comes_later_are_all_beside_topics_and_partitions(setting: Setting) -> None:
    setting.store.create_topic("t", 2)
    assert [LATER_TOPICS, LOCK, "t-0", "t-1", TOPICS] == setting.disk.names(PATH)
    assert [] == setting.disk.names(PATH / LATER_TOPICS)


# --- What is scheduled


def test_cancel_by_what_send_returned(setting: Setting) -> None:
    setting.store.create_topic("t", partitions=2)
    records = [setting.store.send("t", b"%d" % delay, delay=delay, partition=delay % 2) for delay in range(4)]
    assert [CancelResult.ALREADY_DELIVERED, CancelResult.CANCELLED] == [
        setting.store.cancel(one) for one in records[:2]
    ]
    assert CancelResult.UNKNOWN is setting.store.cancel(RecordId("t", 1, 99))
    answers = setting.store.cancel_many("t", 1, [0, 1, 1, 7])
    assert (np.int8, [2, 0, 2, 3]) == (answers.dtype, answers.tolist())
    setting.clock.advance(9_000)
    with setting.store.consumer("t", group="g") as consumer:
        delivered = consumer.poll()
    assert [b"0", b"2"] == [message.value for message in delivered]
    assert CancelResult.ALREADY_DELIVERED is setting.store.cancel(delivered[0].id)


@pytest.mark.parametrize("offsets", [5, [[1]], [0.5], ["a"]])
def test_cancel_needs_offsets(setting: Setting, offsets: object) -> None:
    setting.store.create_topic("t")
    with pytest.raises(InvalidRecord):
        setting.store.cancel_many("t", 0, offsets)  # type: ignore[arg-type]
    with pytest.raises(UnknownPartition):
        setting.store.cancel_many("t", 1, np.array([0]))
    with pytest.raises(UnknownTopic):
        setting.store.cancel(RecordId("u", 0, 0))


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_rescheduled_record_stays_what_it_is(compression: str) -> None:
    setting = Setting(compression=compression)
    setting.store.create_topic("t", partitions=2)
    headers = (("a", b"1" * 90), ("b", None))
    first = setting.store.send("t", b"v" * 200, key=b"k", headers=headers, delay=60)
    setting.clock.advance(5)
    later = setting.store.reschedule(first, delay=120)
    sooner = setting.store.reschedule(later, deliver_after=NOW_MS + 30_000)
    at_once = setting.store.reschedule(setting.store.send("t", None, delay=60, partition=0))
    assert (first.offset + 2, first.offset + 4) == (later.offset, sooner.offset)
    assert [] == [one.id for one in setting.store.pending("t") if one.id != sooner]
    for store in (setting.store, open_small(killed(setting.disk), setting.clock)):
        setting.clock.set(NOW_MS + 30_000)
        with store.consumer("t", group="g", auto_commit=False) as consumer:
            found = {message.id: message for message in consumer.poll()}
        assert {at_once, sooner} == set(found)
        message = found[sooner]
        assert (b"k", b"v" * 200, headers, NOW_MS) == (message.key, message.value, message.headers, message.timestamp)
        assert NOW_MS + 30_000 == message.due == message.deliver_after
        assert (None, None) == (found[at_once].key, found[at_once].value)


@pytest.mark.parametrize("seed", range(campaigns.examples(6, whole=200)))
def test_what_takes_the_place_of_one_is_written_as_by_columns(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Byte for byte, with what is indexed of it, unique keys, clamped times and rolls in between."""

    def rescheduled() -> tuple[Any, ...]:
        with numbered_ids():
            chance, setting = random.Random(f"{campaigns.SEED} {seed}"), Setting(compression="none")
            partition = setting.store.create_topic("t").partition(0)
            records = list[RecordId]()
            for number in range(30):
                unique = b"key %d" % number if chance.random() < 0.3 else None
                value = bytes(chance.choice([0, 1, 200, 900]))
                headers = [("h", b"%d" % number)] * chance.randrange(3)
                record = setting.store.send("t", value, headers=headers, unique_key=unique, delay=60 + number)
                assert record is not None
                records.append(record)
            for _ in range(40):
                row = chance.randrange(len(records))
                due_ms = setting.clock.now_ms() + chance.choice([-5_000, 0, 1, 50_000, 99_000])
                with contextlib.suppress(NotPending):
                    records[row] = setting.store.reschedule(records[row], deliver_after=due_ms)
                setting.store.send(
                    "t", b"again", unique_key=b"key %d" % row, on_conflict="replace", deliver_after=due_ms + 1_000
                )
                setting.clock.advance(chance.choice([0, 1, 700]))
            setting.store.check()
            told = records, partition.log.clamped_records, setting.store.pending("t", limit=99)

            setting.store.close()
            return (*told, setting.disk.image().contents)

    short = rescheduled()
    monkeypatch.setattr(PartitionLog, "takes_one", lambda log, record: False)
    assert rescheduled() == short


def test_a_topic_that_is_altered_before_a_reschedule_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was looked at as one plain record, and is not written as such any more: AssertionError, with a stamp begun."""
    setting = Setting()
    setting.store.create_topic("t")
    record = setting.store.send("t", b"v" * 200, delay=60)
    monkeypatch.setattr(PartitionLog, "takes_one", lambda log, record: True)
    monkeypatch.setattr(Appender, "takes_one", False)
    moved = setting.store.reschedule(record, delay=120)
    setting.store.check()
    [pending] = setting.store.pending("t")
    assert (moved, b"v" * 200) == (pending.id, pending.value)


def test_what_cannot_be_rescheduled_says_why_and_stays(setting: Setting) -> None:
    setting.store.create_topic("t", max_delay_ms=100_000)
    due, pending, cancelled = [setting.store.send("t", b"", delay=delay) for delay in (0, 60, 60)]
    setting.store.cancel(cancelled)
    before = setting.store.topic("t").partition(0).log_end_offset
    for record, answer in (
        (due, CancelResult.ALREADY_DELIVERED),
        (cancelled, CancelResult.ALREADY_CANCELLED),
        (RecordId("t", 0, 3), CancelResult.UNKNOWN),
        (RecordId("t", 0, 99), CancelResult.UNKNOWN),
    ):
        with pytest.raises(NotPending) as caught:
            setting.store.reschedule(record, delay=70)
        assert answer is caught.value.answer
    with pytest.raises(InvalidDeliverAfter):
        setting.store.reschedule(pending, delay=101)
    setting.calls.fail("append", LOG, StorageFull("no room", path=PATH))
    with pytest.raises(StorageFull):
        setting.store.reschedule(pending, delay=70)
    setting.store.check()
    assert before == setting.store.topic("t").partition(0).log_end_offset
    assert [pending] == [one.id for one in setting.store.pending("t")]
    assert pending.offset + 4 == setting.store.reschedule(pending, delay=70).offset


def test_a_reschedule_does_not_straddle_segments(setting: Setting) -> None:
    partition = setting.store.create_topic("t").partition(0)
    record = setting.store.send("t", bytes(1_500), delay=60)
    for delay in range(61, 75):
        record = setting.store.reschedule(record, delay=delay)
        segments = partition.log.version.segments
        assert all(segment.base_offset != record.offset for segment in segments)
    assert len(segments) > 4
    setting.store.check()
    assert [record] == [one.id for one in setting.store.pending("t")]


def test_in_a_fifo_topic_nothing_is_ever_pending(setting: Setting) -> None:
    setting.store.create_topic("t", delayed=False)
    record = setting.store.send("t", b"v")
    assert CancelResult.ALREADY_DELIVERED is setting.store.cancel(record)
    assert CancelResult.UNKNOWN is setting.store.cancel(RecordId("t", 0, 1))
    with pytest.raises(NotPending):
        setting.store.reschedule(record)
    assert [] == setting.store.pending("t")
    assert 1 == setting.store.topic("t").partition(0).log_end_offset


def test_pending_over_partitions_and_by_key(setting: Setting) -> None:
    setting.store.create_topic("t", partitions=2)
    setting.store.send("t", b"due", key=b"a", partition=0)
    delays, keys = [3, 1, 2, 2, 9, 1], [b"a", b"b", b"a", b"ab", b"", b"a"]
    for number, (delay, key) in enumerate(zip(delays, keys, strict=True)):
        setting.store.send("t", b"%d" % number, key=key, delay=delay, partition=number % 2, headers=[("h", b"1")])
    found = setting.store.pending("t")
    assert [b"1", b"5", b"2", b"3", b"0", b"4"] == [one.value for one in found]
    first = found[0]
    assert ("t", 1, 0, b"b", (("h", b"1"),)) == (first.topic, first.partition, first.offset, first.key, first.headers)
    assert (NOW_MS + 1_000, NOW_MS + 1_000, NOW_MS) == (first.due, first.deliver_after, first.timestamp)
    assert [b"1", b"5"] == [one.value for one in setting.store.pending("t", limit=2)]
    assert [b"2", b"0"] == [one.value for one in setting.store.pending("t", key=b"a", partition=0)]
    assert [b"5", b"2"] == [one.value for one in setting.store.pending("t", key=b"a", limit=2)]
    assert [b"4"] == [one.value for one in setting.store.pending("t", key=b"")]
    assert [] == setting.store.pending("t", key=b"c") == setting.store.pending("t", limit=0)
    with pytest.raises(InvalidRecord):
        setting.store.pending("t", key="a")  # type: ignore[arg-type]


def test_tens_of_thousands_cancelled_at_once() -> None:
    setting = Setting(segment_bytes=1 << 20, batch_bytes_max=1 << 16, min_index_count_per_bucket=10_000)
    partition = setting.store.create_topic("t").partition(0)
    count = 20_000
    offsets = setting.store.send_many("t", [b""] * count, delay=np.arange(count) % 977 + 1.0)
    chosen = np.random.default_rng(4).permutation(offsets)[: count // 2]
    assert not setting.store.cancel_many("t", 0, chosen).any()
    assert (setting.store.cancel_many("t", 0, offsets) == CancelResult.CANCELLED).sum() == count // 2
    assert (0, None) == (partition.pending(), partition.next_due())
    setting.store.check()
    again = open_small(killed(setting.disk), setting.clock, segment_bytes=1 << 20, batch_bytes_max=1 << 16)
    setting.clock.advance(1_000_000)
    assert [] == drained(again.topic("t").partition(0))


@pytest.mark.parametrize("durability", [ALWAYS, Durability.interval(3_600_000)], ids=["always", "interval"])
def test_a_store_that_nobody_holds_is_let_go_of(durability: Durability) -> None:
    """Its threads keep neither it nor its lock alive."""
    disk = SimulatedFiles()
    store = open_store(PATH, Config(durability=durability), ManualClock(NOW_MS), disk)
    store.create_topic("t")
    store.send("t", b"v")
    del store
    gc.collect()
    open_store(PATH, Config(), ManualClock(NOW_MS), disk).close()


def other_store(path: Path) -> None:
    """A store that somebody restores to the folder, with the documents of it."""
    with afterlog.open(path, config=Config(durability=OS)) as store:
        store.create_topic("t")
        store.send("t", b"restored")


def tree(path: Path) -> dict[Path, bytes]:
    """All that is in a folder."""
    return {each.relative_to(path): each.read_bytes() for each in path.rglob("*") if each.is_file()}


WRITING: dict[str, Callable[[Store], object]] = {
    "close": lambda store: store.close(),
    "create a topic": lambda store: store.create_topic("new"),
    "alter a topic": lambda store: store.alter_topic("t", retention_ms=1_000),
    "delete a topic": lambda store: store.delete_topic("t"),
    "roll": lambda store: store.topic("t").log(0).roll(),
    "checkpoint": lambda store: store.topic("t").log(0).checkpoint(),
    "commit": lambda store: store.consumer("t", group="g").seek("t", 0, 1),
    "subscribe": lambda store: store.subscribe("t", "s"),
    "schedule": lambda store: store.schedule("t", name="tick", every=timedelta(seconds=1)),
    "backup": lambda store: store.backup(store.path.parent / "backups"),
}


@pytest.mark.parametrize("way", ["restored", "no lock", "another lock"])
@pytest.mark.parametrize("operation", WRITING)
def test_who_was_moved_away_writes_nothing_into_what_is_there(tmp_path: Path, operation: str, way: str) -> None:
    """A backup is put in place of the folder, or the lock's file is removed, while a process has it open."""
    path = tmp_path / "data"
    store = afterlog.open(path, config=Config(durability=OS))
    store.create_topic("t")
    store.send("t", b"old")
    if way == "restored":
        path.rename(tmp_path / "old")
        other_store(path)
    else:
        (path / "lock").unlink()
        if way == "another lock":
            (path / "lock").touch()
    before = tree(path)
    with pytest.raises(StoreReplaced, match="moved or restored the folder"):
        WRITING[operation](store)
    with contextlib.suppress(StoreReplaced):
        store.close()
    assert before == tree(path)
    with afterlog.open(tmp_path / "old" if way == "restored" else path) as again:
        assert b"old" in [message.value for message in again.consumer("t", group="g").poll(9)]
