from __future__ import annotations

import errno
import itertools
from collections.abc import Iterator
from random import Random

import numpy as np
import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.errors import (
    CorruptFile,
    GroupBusy,
    OffsetOutOfRange,
    PositionPending,
    StorageFull,
    StoreClosed,
    UnknownPartition,
)
from afterlog.fetch import consumer as consumer_module
from afterlog.fetch.consumer import AUTO_COMMIT_INTERVAL_S, Consumer
from afterlog.fetch.message import Message
from afterlog.fetch.positions import EARLIEST, LATEST, AfterOffset, AtBrokerTime, AtTime, Position
from afterlog.log.notifier import NEVER_MS
from afterlog.store.store import Store
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, Background, Calls, HeldFiles, SteppedClock, eventually, killed, open_small


class Setting:
    def __init__(self, partitions: int = 1) -> None:
        self.disk = SimulatedFiles()
        self.calls = Calls()
        self.clock = SteppedClock(NOW_MS)
        self.store: Store = open_small(HeldFiles(self.disk, self.calls), self.clock)
        self.topic = self.store.create_topic("t", partitions=partitions)

    def send(self, *values: bytes, partition: int = 0, after_ms: int | None = None) -> None:
        for value in values:
            deliver_after = None if after_ms is None else NOW_MS + after_ms
            self.store.send("t", value, deliver_after=deliver_after, partition=partition)

    def consumer(self, start: Position = EARLIEST, **settings: object) -> Consumer:
        return self.store.consumer("t", group="g", start=start, **settings)  # type: ignore[arg-type]


@pytest.fixture
def setting() -> Iterator[Setting]:
    setting = Setting()
    yield setting
    setting.store.close()


def values(messages: list[Message]) -> list[bytes | None]:
    return [message.value for message in messages]


# --- Polling


def test_poll_takes_what_is_due(setting: Setting) -> None:
    setting.send(b"later", after_ms=10)
    setting.send(b"a", b"b")
    with setting.consumer() as consumer:
        assert [b"a", b"b"] == values(consumer.poll())
        assert [] == consumer.poll()
        assert {0: 2} == consumer.positions()
        setting.clock.advance(10)
        assert [b"later"] == values(consumer.poll())


def test_poll_takes_no_more_than_asked_for(setting: Setting) -> None:
    setting.send(b"a", b"b", b"c")
    with setting.consumer() as consumer:
        assert [[b"a", b"b"], [b"c"], []] == [values(consumer.poll(max_records=2)) for _ in range(3)]
        for wrong in (0, -1):
            with pytest.raises(ValueError, match="max_records"):
                consumer.poll(max_records=wrong)


def test_poll_waits_for_a_due_time_and_for_an_append(setting: Setting) -> None:
    setting.send(b"a", after_ms=50)
    with setting.consumer() as consumer:
        setting.clock.steps = [lambda: setting.clock.advance(20), lambda: setting.clock.advance(30)]
        assert [b"a"] == values(consumer.poll(timeout=5))
        assert [(NOW_MS + 50, 5.0)] * 2 == setting.clock.waits
        setting.clock.steps = [lambda: setting.send(b"b")]
        assert [b"b"] == values(consumer.poll(timeout=None))
        assert (None, None) == setting.clock.waits[-1]


def test_poll_waits_no_longer_than_its_timeout(setting: Setting) -> None:
    with setting.consumer() as consumer:
        assert [] == consumer.poll(timeout=2.5)
        assert 2.5 == setting.clock.patience_s
        assert [] == consumer.poll()
        assert 2.5 == setting.clock.patience_s


def test_what_becomes_due_between_looking_and_waiting_is_not_slept_through(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting.send(b"a", after_ms=50)
    setting.send(b"b", after_ms=500)
    with setting.consumer() as consumer:
        sweep, sweeps = consumer._sweep, []

        def sweeping(max_records: int) -> object:
            sweeps.append(sweep(max_records))
            if len(sweeps) == 1:
                setting.clock.advance(50)
            return sweeps[-1]

        monkeypatch.setattr(consumer, "_sweep", sweeping)
        assert [b"a"] == values(consumer.poll(timeout=5))
        assert [] == setting.clock.waits


def test_poll_columns(setting: Setting) -> None:
    setting.send(b"a", b"bc")
    with setting.consumer() as consumer:
        columns = consumer.poll_columns()
        assert ([0, 1, 3], b"abc") == (columns.value[0].tolist(), columns.value[1].tobytes()[-3:])
        assert 0 == len(consumer.poll_columns())


def test_partitions_take_turns() -> None:
    setting = Setting(partitions=3)
    for partition in range(3):
        setting.send(*[b"%d" % partition] * 10, partition=partition)
    with setting.consumer() as consumer:
        polls = [values(consumer.poll(max_records=5)) for _ in range(6)]
        assert {b"0", b"1", b"2"} == {value for poll in polls[:3] for value in poll}
        assert 30 == sum(map(len, polls))
        assert {0: 10, 1: 10, 2: 10} == consumer.positions()


def test_a_poll_fills_up_from_the_next_partition() -> None:
    setting = Setting(partitions=2)
    setting.send(b"0", partition=0)
    setting.send(b"1", b"1", partition=1)
    with setting.consumer() as consumer:
        assert [b"0", b"1", b"1"] == values(consumer.poll())


def test_some_partitions_only() -> None:
    setting = Setting(partitions=3)
    for partition in range(3):
        setting.send(b"%d" % partition, partition=partition)
    with setting.consumer(partitions=[2, 0, 2]) as consumer:
        assert {b"0", b"2"} == set(values(consumer.poll()))
        assert {0: 1, 2: 1} == consumer.positions()
        with setting.consumer(partitions=[1]) as other:
            assert [b"1"] == values(other.poll())
    for wrong in ([], [3], [-1], ["0"]):
        with pytest.raises(UnknownPartition):
            setting.consumer(partitions=wrong)


def test_what_another_partition_gave_comes_where_one_fails(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the error, and the position of neither has moved by it: else the next poll would take it for processed."""
    topic = setting.store.create_topic("two", partitions=2)
    setting.store.send("two", b"a", partition=0)
    setting.store.send("two", b"b", partition=1)
    columns = topic.partition(1).columns

    def failing(*arguments: object) -> object:
        raise CorruptFile("rotten", path="log")

    with setting.store.consumer("two", group="g") as consumer:
        monkeypatch.setattr(topic.partition(1), "columns", failing)
        assert [b"a"] == values(consumer.poll())
        for _ in range(3):
            with pytest.raises(CorruptFile):
                consumer.poll()
            assert {0: 1, 1: 0} == consumer.positions()
        monkeypatch.setattr(topic.partition(1), "columns", columns)
        assert [b"b"] == values(consumer.poll())


# --- Iterating


def test_iterating_waits_for_each(setting: Setting) -> None:
    setting.send(b"a", b"b")
    setting.send(b"c", after_ms=50)
    setting.clock.steps = [lambda: setting.clock.advance(50), lambda: setting.send(b"d")]
    found = []
    with setting.consumer() as consumer:
        for message in consumer:
            found.append((message.value, message.delivery_offset, consumer.positions()[0]))
            if message.value == b"d":
                break
        assert [(b"a", 0, 1), (b"b", 1, 2), (b"c", 2, 3), (b"d", 3, 4)] == found
        setting.send(b"e")
        assert [b"e"] == values(consumer.poll())


def test_polling_and_iterating_may_be_mixed(setting: Setting) -> None:
    setting.send(*(b"%d" % number for number in range(6)))
    with setting.consumer() as consumer:
        messages = iter(consumer)
        assert b"0" == next(messages).value
        assert [b"1", b"2"] == values(consumer.poll(max_records=2))
        assert b"3" == next(messages).value
        consumer.seek(1)
        assert b"1" == next(messages).value
        assert {0: 2} == consumer.positions()


def test_reads_of_any_kind_hand_each_record_out_once_and_in_order() -> None:
    setting = Setting(partitions=3)
    for number in range(900):
        setting.send(b"%d" % number, partition=number % 3 if number < 400 else 1)
    rng, found = Random(7), dict[int, list[int]]()
    with setting.consumer() as consumer:
        messages = iter(consumer)
        while consumer.lag():
            some = [next(messages)] if rng.random() < 0.3 else consumer.poll(rng.choice([1, 1, 2, 60, 300]))
            for message in some:
                found.setdefault(message.partition, []).append(int(message.value or b""))
                assert len(found[message.partition]) == message.delivery_offset + 1
        assert {number: len(there) for number, there in found.items()} == consumer.positions()
    assert [*range(900)] == sorted(itertools.chain(*found.values()))
    assert all(there == sorted(there) for there in found.values())


def test_iterating_reads_ahead_and_says_only_what_it_handed_out() -> None:
    setting = Setting(partitions=2)
    setting.send(b"a", b"b", partition=0)
    setting.send(b"c", b"d", partition=1)
    with setting.consumer() as consumer:
        positions = []
        for _, _message in zip(range(3), consumer, strict=False):
            positions.append(tuple(consumer.positions().values()))
        assert [(1, 0), (2, 0), (2, 1)] == positions
        assert 1 == consumer.lag()


def test_closing_from_another_thread_ends_the_iteration() -> None:
    store = open_small(SimulatedFiles(), ManualClock(NOW_MS))
    store.create_topic("t")
    store.send("t", b"a")
    consumer = store.consumer("t", group="g")
    found: list[bytes | None] = []

    def iterate() -> None:
        for message in consumer:
            found.append(message.value)

    iterating = Background(iterate)
    eventually(lambda: found == [b"a"])
    eventually(lambda: consumer._processed == [1])
    consumer.close()
    iterating.answer()
    assert {0: 1} == consumer.committed()
    store.consumer("t", group="g").close()


def test_closing_from_another_thread_does_not_commit_what_is_in_work(setting: Setting) -> None:
    setting.send(b"a", b"b")
    consumer = setting.consumer()
    messages = iter(consumer)
    assert [b"a", b"b"] == [next(messages).value, next(messages).value]
    Background(consumer.close).answer()
    assert {0: 1} == consumer.committed()
    assert [] == list(messages)


def test_closing_the_store_ends_a_waiting_poll() -> None:
    store = open_small(SimulatedFiles(), ManualClock(NOW_MS))
    store.create_topic("t")
    consumer = store.consumer("t", group="g")
    polling = Background(lambda: consumer.poll(timeout=None))
    eventually(lambda: polling.is_alive())
    store.close()
    with pytest.raises(StoreClosed):
        polling.answer()


# --- Committing


def test_leaving_the_block_commits_what_was_handed_out(setting: Setting) -> None:
    setting.send(b"a", b"b", b"c")
    with setting.consumer() as consumer:
        consumer.poll(max_records=2)
        assert {0: None} == consumer.committed()
    assert {0: 2} == consumer.committed()
    with setting.consumer() as consumer:
        assert [b"c"] == values(consumer.poll())


def test_what_was_in_work_when_the_block_failed_comes_again(setting: Setting) -> None:
    setting.send(b"a", b"b", b"c")

    def work() -> None:
        with setting.consumer() as consumer:
            for message in consumer:
                assert message.value != b"b", "cannot be worked on"

    with pytest.raises(AssertionError, match="cannot be worked on"):
        work()
    with setting.consumer() as consumer:
        assert [b"b", b"c"] == values(consumer.poll())


def test_a_whole_poll_comes_again_when_its_work_failed(setting: Setting) -> None:
    setting.send(b"a", b"b", b"c")

    def work() -> None:
        with setting.consumer() as consumer:
            consumer.poll(max_records=1)
            consumer.poll(max_records=1)
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        work()
    with setting.consumer() as consumer:
        assert [b"b", b"c"] == values(consumer.poll())


def test_commit_says_that_all_handed_out_is_processed(setting: Setting) -> None:
    setting.send(b"a", b"b", b"c")
    with setting.consumer(auto_commit=False) as consumer:
        consumer.poll(max_records=1)
        consumer.commit()
        consumer.poll(max_records=1)
    assert {0: 1} == consumer.committed()
    after_crash = open_small(killed(setting.disk), ManualClock(NOW_MS)).consumer("t", group="g")
    assert ({0: 1}, {0: 1}) == (after_crash.committed(), after_crash.positions())


def test_without_auto_commit_nothing_is_committed(setting: Setting) -> None:
    setting.send(b"a")
    with setting.consumer(auto_commit=False) as consumer:
        consumer.poll()
        setting.clock.patience_s += 10 * AUTO_COMMIT_INTERVAL_S
        consumer.poll()
    assert {0: None} == consumer.committed()


def test_auto_commit_after_its_interval_and_only_what_is_processed(setting: Setting) -> None:
    setting.send(b"a", b"b", b"c")
    consumer = setting.consumer()
    consumer.poll(max_records=1)
    consumer.poll(max_records=1)
    assert {0: None} == consumer.committed()
    setting.clock.patience_s += AUTO_COMMIT_INTERVAL_S
    consumer.poll(max_records=1)
    assert {0: 2} == consumer.committed()
    consumer.poll()
    assert {0: 2} == consumer.committed()
    consumer.close()
    assert {0: 3} == consumer.committed()


def test_a_consumer_that_only_waits_commits_too(setting: Setting) -> None:
    """Else a kill an hour later would bring back the last record before the silence."""
    setting.send(b"a")
    consumer = setting.consumer()

    def silence() -> None:
        setting.clock.patience_s += AUTO_COMMIT_INTERVAL_S

    setting.clock.steps = [silence, lambda: setting.send(b"b")]
    messages = iter(consumer)
    assert [b"a", b"b"] == [next(messages).value, next(messages).value]
    assert {0: 1} == consumer.committed()
    consumer.close()


def test_a_commit_without_room_can_be_made_again(setting: Setting) -> None:
    setting.send(b"a")
    consumer = setting.consumer()
    consumer.poll()
    setting.calls.fail("append", "position.tmp", OSError(errno.ENOSPC, "full"))
    with pytest.raises(StorageFull):
        consumer.commit()
    assert {0: None} == consumer.committed()
    consumer.commit()
    assert {0: 1} == consumer.committed()
    setting.calls.fail("append", "position.tmp", OSError(errno.ENOSPC, "full"))
    setting.send(b"b")
    consumer.poll()
    with pytest.raises(StorageFull):
        consumer.close()
    setting.consumer().close()


# --- Seeking, lag


def test_seek(setting: Setting) -> None:
    setting.send(b"c", after_ms=3)
    setting.send(b"a", after_ms=1)
    setting.send(b"b", after_ms=2)
    setting.clock.advance(3)
    with setting.consumer() as consumer:
        for position, expected in (
            (EARLIEST, b"a"), (1, b"b"), (np.int64(2), b"c"), (AtTime(NOW_MS + 2), b"b"), (AfterOffset(1), b"b"),
            (AtBrokerTime(NOW_MS), b"a"),
        ):  # fmt: skip
            consumer.seek(position)  # type: ignore[arg-type]
            assert expected == consumer.poll(max_records=1)[0].value
        consumer.seek(LATEST)
        assert [] == consumer.poll()
        consumer.seek(EARLIEST, partition=0)
        assert 3 == len(consumer.poll())


def test_a_seek_that_fails_moves_nothing() -> None:
    setting = Setting(partitions=2)
    setting.send(b"a", b"b", partition=0)
    with setting.consumer() as consumer:
        consumer.poll(max_records=1)
        with pytest.raises(OffsetOutOfRange):
            consumer.seek(2)
        assert {0: 1, 1: 0} == consumer.positions()
        with pytest.raises(UnknownPartition):
            consumer.seek(0, partition=7)


def test_a_seek_to_the_end_of_what_is_pending_is_refused_for_what_may_still_come_before_it() -> None:
    setting = Setting(partitions=2)
    setting.send(b"later", after_ms=60_000, partition=1)
    with setting.consumer() as consumer:
        end = setting.store.topic("t").partition(1).log_end_offset
        with pytest.raises(PositionPending, match="seek to LATEST"):
            consumer.seek(end, partition=1)
        consumer.seek(LATEST)
        setting.send(b"soon", after_ms=1, partition=1)
        setting.clock.advance(60_000)
        assert [b"soon", b"later"] == [message.value for message in consumer.poll()]
    setting.send(b"again", after_ms=90_000, partition=1)
    with pytest.raises(PositionPending):
        setting.store.consumer("t", group="other", start=3, partitions=[1])


def test_seeking_back_is_committed(setting: Setting) -> None:
    setting.send(b"a", b"b")
    with setting.consumer() as consumer:
        consumer.poll()
        consumer.seek(0)
    assert {0: 0} == consumer.committed()


def test_lag(setting: Setting) -> None:
    setting.send(b"a", b"b")
    setting.send(b"c", after_ms=5)
    with setting.consumer() as consumer:
        assert 2 == consumer.lag()
        consumer.poll(max_records=1)
        assert 1 == consumer.lag()
        setting.clock.advance(5)
        assert 2 == consumer.lag()
        assert [b"b", b"c"] == values(consumer.poll() + consumer.poll())
        assert 0 == consumer.lag()


@pytest.mark.parametrize(("start", "expected"), [(EARLIEST, [b"a", b"b"]), (LATEST, []), (1, [b"b"])])
def test_start_is_for_a_group_that_never_committed(
    setting: Setting, start: Position, expected: list[bytes | None]
) -> None:
    setting.send(b"a", b"b")
    with setting.consumer(start=start) as consumer:
        assert expected == values(consumer.poll())
    setting.send(b"c")
    with setting.consumer(start=EARLIEST) as consumer:
        assert [b"c"] == values(consumer.poll())


# --- Groups, closing


def test_a_partition_has_one_reader_of_a_group() -> None:
    setting = Setting(partitions=2)
    with setting.consumer(partitions=[0]):
        for partitions in ([0], None):
            with pytest.raises(GroupBusy) as raised:
                setting.consumer(partitions=partitions)
            assert raised.value.retriable
        setting.consumer(partitions=[1]).close()
        setting.store.consumer("t", group="other").close()
    setting.consumer().close()


def test_a_start_that_is_none_leaves_the_group_free(setting: Setting) -> None:
    with pytest.raises(OffsetOutOfRange):
        setting.consumer(start=7)
    setting.consumer().close()


def test_groups_do_not_see_each_other(setting: Setting) -> None:
    setting.send(b"a")
    for group in ("g", "h"):
        with setting.store.consumer("t", group=group) as consumer:
            assert [b"a"] == values(consumer.poll())


def test_closed(setting: Setting) -> None:
    consumer = setting.consumer()
    consumer.close()
    consumer.close()
    for call in (consumer.poll, consumer.poll_columns, consumer.commit):
        with pytest.raises(StoreClosed, match="consumer is closed"):
            call()
    assert [] == list(consumer)


def test_nothing_is_committed_to_a_store_that_is_closed(setting: Setting) -> None:
    """By then the folder may be another process's."""
    setting.send(b"a")
    consumer = setting.consumer()
    consumer.poll()
    setting.store.close()
    before = setting.disk.image()
    with pytest.raises(StoreClosed):
        consumer.commit()
    with pytest.raises(StoreClosed):
        consumer.close()
    assert before == setting.disk.image()


def test_read_ahead_is_bounded(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_module, "READ_AHEAD_RECORDS", 3)
    setting.send(*(b"%d" % number for number in range(10)))
    with setting.consumer() as consumer:
        messages = iter(consumer)
        assert [b"%d" % number for number in range(10)] == [next(messages).value for _ in range(10)]


def test_an_append_that_fails_is_news(setting: Setting) -> None:
    """It may have held back what had become due, and moves no end."""
    setting.send(b"a")
    agenda = setting.topic.partitions[0].agenda()
    agenda.rest(0, 0, NEVER_MS)
    setting.calls.fail("append", ".log", StorageFull("no room", path="log"))
    with pytest.raises(StorageFull):
        setting.send(b"b")
    assert agenda.due()


def test_lag_counts_nothing_that_nobody_gets() -> None:
    clock = ManualClock(NOW_MS)
    store = open_small(SimulatedFiles(), clock)
    store.create_topic("mail")
    cancelled = [store.send("mail", b"x", delay=1) for _ in range(20)]
    store.send_many("mail", [b"y"] * 5)
    store.cancel_many("mail", 0, [each.offset for each in cancelled])
    clock.advance(2_000)
    with store.consumer("mail", group="g") as consumer:
        assert 5 == consumer.lag()
        assert 2 == len(consumer.poll(2))
        assert 3 == consumer.lag()
        consumer.poll()
        assert 0 == consumer.lag()
    store.close()
