"""The frontier that the partitions of a store share: one write for all of them, and what is left of it when."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from afterlog.base import document
from afterlog.base.clock import ManualClock
from afterlog.base.errors import ClockBehind, CorruptFile, PartitionPoisoned, StorageFull, StoreClosed
from afterlog.base.names import CHECKPOINTS, FRONTIER, LATER_TOPICS
from afterlog.index.entries import Key
from afterlog.log.checkpoints import FrontierLease
from afterlog.log.store_frontier import SharedLease, StoreFrontier, frontier_path, read_frontier, write_frontier
from afterlog.log.topics_document import make_room
from afterlog.store.store import Store
from tests import campaigns
from tests.campaigns import strikes
from tests.campaigns.failing_files import FailingFiles
from tests.campaigns.simulated_disk import SimulatedFiles, os_error
from tests.support import (
    NOW_MS,
    PATH,
    Background,
    Calls,
    drained,
    due_of,
    durable_frontier,
    flipped,
    killed,
    open_small,
    power_cut,
    with_file,
)

LEASE_MS = 1_000
ORIGINAL_END = StoreFrontier.end


class Setting:
    """Topics with a record each, due in 5 ms, and a checkpoint behind it: at rest when the process is killed."""

    def __init__(self, topics: int = 3) -> None:
        self.disk, self.calls, self.clock = SimulatedFiles(), Calls(), ManualClock(NOW_MS)
        self.store = open_small(FailingFiles(self.disk, self.calls), self.clock)
        self.store.create_topics(f"t{number}" for number in range(topics))
        for number in range(topics):
            self.store.send(f"t{number}", b"value", delay=0.005)
            self.store.topic(f"t{number}").log(0).checkpoint()

    def deliver(self, number: int) -> None:
        assert [b"value"] == drained(self.store.topic(f"t{number}").partition(0))

    def writes(self, name: str) -> int:
        return self.calls.count("append", f"{name}.tmp")

    def left(self) -> SharedLease:
        return read_frontier(self.disk, PATH)

    def reopened(self, ms: int) -> Store:
        """After a kill, at that time by the clock."""
        self.disk, self.clock = killed(self.disk), ManualClock(ms)
        self.store = open_small(self.disk, self.clock)
        return self.store


def test_topics_that_become_due_together_share_a_write() -> None:
    setting = Setting()
    before = setting.writes(CHECKPOINTS)
    setting.clock.advance(10)
    for number in range(3):
        setting.deliver(number)
    assert (1, before) == (setting.writes(FRONTIER), setting.writes(CHECKPOINTS))
    assert SharedLease(lease_ms=NOW_MS + 10 + LEASE_MS, used_ms={"t0-0": NOW_MS + 10}) == setting.left()
    setting.store.send("t0", b"value")
    setting.clock.advance(LEASE_MS)
    setting.store.topic("t0").partition(0).high_watermark()
    assert 1 == setting.writes(FRONTIER)
    setting.store.send("t1", b"value", delay=0.001)
    setting.clock.advance(1)
    setting.store.topic("t1").partition(0).high_watermark()
    used_ms = {"t0-0": NOW_MS + 1_010, "t1-0": NOW_MS + 1_011, "t2-0": NOW_MS + 10}
    assert SharedLease(lease_ms=NOW_MS + 1_011 + LEASE_MS, used_ms=used_ms) == setting.left()


def test_a_clean_close_leaves_none() -> None:
    setting = Setting()
    setting.clock.advance(10)
    setting.deliver(1)
    log = setting.store.topic("t1").log(0)
    setting.store.close()
    assert SharedLease() == setting.left()
    assert FrontierLease(used_ms=NOW_MS + 10, lease_ms=NOW_MS + 10) == durable_frontier(setting.disk, log)
    store = setting.reopened(NOW_MS + 11)
    offset = store.send("t1", b"at once").offset
    assert NOW_MS + 11 == due_of(store.topic("t1").partition(0), offset)


@pytest.mark.parametrize("left", [killed, power_cut])
def test_a_crash_leaves_a_lease_for_all_partitions_and_their_own_readings(
    left: Callable[[SimulatedFiles], SimulatedFiles],
) -> None:
    setting = Setting()
    setting.clock.advance(10)
    for number in range(2):
        setting.deliver(number)
    setting.disk = left(setting.disk)
    store = setting.reopened(NOW_MS)
    partitions = [store.topic(f"t{number}").partition(0) for number in range(3)]
    assert [1, 0, 0] == [partition.high_watermark() for partition in partitions], "of the first alone it is known"
    for partition in partitions:
        assert NOW_MS + 10 + LEASE_MS == partition.log.opened_lease_ms
        offset = store.send(partition.topic, b"at once").offset
        due = due_of(partition, offset)
        assert due is not None
        assert due >= NOW_MS + 10 + LEASE_MS


def test_what_stays_at_rest_keeps_what_a_crash_left() -> None:
    """Over clean closes, and lives whose own lease is larger."""
    setting = Setting()
    setting.clock.advance(10)
    setting.deliver(2)
    lease_ms = NOW_MS + 10 + LEASE_MS
    for ms in (NOW_MS + 10_000, NOW_MS + 20_000):
        with setting.reopened(ms) as store:
            assert [b"value"] == drained(store.topic("t0").partition(0)) or ms > NOW_MS + 10_000
            store.send("t0", b"value", delay=0.001)
            setting.clock.advance(1)
            drained(store.topic("t0").partition(0))
            assert setting.left().lease_ms > lease_ms
            assert NOW_MS + 10 == setting.left().used_ms["t2-0"]
        assert SharedLease(lease_ms=lease_ms, used_ms={"t2-0": NOW_MS + 10}) == setting.left()
    with setting.reopened(NOW_MS) as store:
        assert 1 == store.topic("t2").partition(0).high_watermark()
        store.send("t2", b"at once")
        due = due_of(store.topic("t2").partition(0), 1)
        assert due is not None
        assert due >= lease_ms
    assert SharedLease(lease_ms=lease_ms) == setting.left()
    with setting.reopened(NOW_MS + 30_000) as store:
        store.check()
    assert not setting.disk.exists(frontier_path(PATH))


def test_a_close_without_use_writes_nothing() -> None:
    setting = Setting()
    setting.clock.advance(10)
    setting.deliver(0)
    setting.disk = killed(setting.disk)
    calls = Calls()
    open_small(FailingFiles(setting.disk, calls), ManualClock(NOW_MS)).close()
    assert 0 == calls.count("append", f"{FRONTIER}.tmp")


def test_it_stays_where_a_partition_is_poisoned() -> None:
    setting = Setting()
    setting.clock.advance(10)
    setting.deliver(0)
    before = setting.left()
    setting.store.topic("t0").log(0).commit.poison(OSError("planted"))
    setting.store.close()
    assert before == setting.left()


def test_it_stays_where_the_store_could_not_be_opened() -> None:
    """Then it is not known which partitions there are."""
    setting = Setting()
    setting.clock.advance(10)
    setting.deliver(0)
    before, path = setting.left(), PATH / "t1-0" / CHECKPOINTS
    whole = setting.disk.image().contents[str(path)]
    setting.disk = with_file(killed(setting.disk), path, flipped(whole, len(whole) - 9))
    with pytest.raises(CorruptFile):
        open_small(setting.disk, ManualClock(NOW_MS + 20))
    assert before == setting.left()


@pytest.mark.parametrize(("number", "error"), [(errno.ENOSPC, StorageFull), (errno.EIO, PartitionPoisoned)])
def test_a_write_that_fails_delivers_nothing(number: int, error: type[Exception]) -> None:
    setting = Setting()
    setting.clock.advance(10)
    operation = "sync" if number == errno.EIO else "append"
    setting.calls.fail(operation, f"{FRONTIER}.tmp", os_error(number, frontier_path(PATH)))
    with pytest.raises(error):
        setting.deliver(0)
    assert SharedLease() == setting.left()
    setting.deliver(1)
    if error is StorageFull:
        setting.deliver(0)


def test_a_store_that_crashed_far_ahead_delivers_nothing_in_any_topic() -> None:
    setting = Setting()
    setting.clock.advance(3 * 3_600_000)
    setting.deliver(0)
    store = setting.reopened(NOW_MS + 10)
    for number in range(3):
        with pytest.raises(ClockBehind):
            drained(store.topic(f"t{number}").partition(0))


def test_versions_that_do_not_know_it_refuse_it() -> None:
    """They read each document beside those of later topics."""
    disk = SimulatedFiles()
    disk.make_folder(PATH)
    make_room(disk, PATH)
    write_frontier(disk, PATH, SharedLease(lease_ms=5))
    assert [FRONTIER] == disk.names(PATH / LATER_TOPICS)
    assert frontier_path(PATH).name.rpartition("-")[2] == "1", "as of a partition, and no topic's first"


def test_threads_share_a_write() -> None:
    disk, calls = SimulatedFiles(), Calls()
    disk.make_folder(PATH)
    make_room(disk, PATH)
    frontier = StoreFrontier(FailingFiles(disk, calls), PATH, LEASE_MS)
    frontier.recover()
    threads = [Background(lambda name=f"t-{number}": frontier.lease(name, NOW_MS)) for number in range(8)]  # type: ignore[misc]
    for thread in threads:
        thread.answer()
    assert 1 == calls.count("append", f"{FRONTIER}.tmp")
    frontier.lease("t-0", NOW_MS + LEASE_MS + 1)
    assert {f"t-{number}" for number in range(8)} == set(read_frontier(disk, PATH).used_ms)


OPERATIONS: dict[str, Callable[[Setting], object]] = {
    "deliver": lambda setting: setting.deliver(0),
    "deliver behind the lease": lambda setting: setting.deliver(1),
    "close": lambda setting: setting.store.close(),
    "open": lambda setting: setting.reopened(NOW_MS + 10),
}


def ready(name: str) -> tuple[Setting, list[int]]:
    """Before that operation, and who delivered."""
    setting, delivered = Setting(2), list[int]()
    setting.clock.advance(10)
    if name != "deliver":
        setting.deliver(0)
        delivered.append(0)
    setting.clock.advance(2_000 if name == "deliver behind the lease" else 0)
    if name == "open":
        setting.disk = killed(setting.disk)
    return setting, delivered


def places(name: str) -> list[int]:
    setting, _ = ready(name)
    return strikes.places(lambda: OPERATIONS[name](setting))


@pytest.mark.usefixtures("quiet")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", OPERATIONS)
def test_struck_at_every_place_nothing_is_stamped_below_what_was_delivered(name: str) -> None:
    """Then closed or not, and killed, and the clock set back."""
    for number, place in campaigns.share([*enumerate(places(name))], 60):
        setting, delivered = ready(name)
        used_ms = setting.clock.now_ms()
        with suppress(KeyboardInterrupt), strikes.strike(place, KeyboardInterrupt):
            OPERATIONS[name](setting)
            delivered += [0] if name == "deliver" else [1] if "deliver" in name else []
        if number % 2:
            setting.store.close()
        store = setting.reopened(NOW_MS)
        for each in delivered:
            offset = store.send(f"t{each}", b"at once").offset
            due = due_of(store.topic(f"t{each}").partition(0), offset)
            assert due is not None
            assert due >= (NOW_MS + 10 if each == 0 else used_ms), f"place {place}"
        campaigns.count("interrupts")


class Lives:
    """Some topics over lives that are closed and killed, by a clock that is set back and forth, from one seed."""

    TOPICS = ("a", "b", "c")

    def __init__(self, seed: str) -> None:
        self.chance = random.Random(seed)
        self.disk, self.clock = SimulatedFiles(), ManualClock(NOW_MS)
        self.open()
        self.store.create_topics(self.TOPICS)
        self.sent = {topic: list[Key]() for topic in self.TOPICS}
        self.delivered = {topic: list[Key]() for topic in self.TOPICS}
        self.read_ms = dict.fromkeys(self.TOPICS, 0)
        """The latest that the clock of the store was when the topic was read."""

    def open(self) -> None:
        self.store = open_small(self.disk, self.clock, frontier_lease_ms=50)
        self.used = self.chance.sample(self.TOPICS, self.chance.choice([1, 1, 2, 3]))
        """In this life; the others stay at rest, if they are."""

    def send(self, topic: str) -> None:
        after = self.chance.choice([None, 0.001, 0.02, 0.3])
        offset = self.store.send(topic, b"value", delay=after).offset
        due = due_of(self.store.topic(topic).partition(0), offset)
        assert due is not None
        self.sent[topic].append(Key(due, offset))
        assert self.delivered[topic][-1:] < [Key(due, offset)], "in front of what was delivered"

    def deliver(self, topic: str) -> None:
        self.read_ms[topic] = max(self.read_ms[topic], self.store.now_ms())
        delivered = self.delivered[topic]
        columns, _ = self.store.topic(topic).partition(0).columns(len(delivered), 1_000, 1 << 20)
        for message in columns.to_messages():
            assert len(delivered) == message.delivery_offset
            assert message.due <= self.read_ms[topic], "early"
            delivered.append(Key(message.due, message.offset))

    def checkpoint(self, topic: str) -> None:
        self.store.topic(topic).log(0).checkpoint()

    def step(self, _: str) -> None:
        ms = self.clock.now_ms() + self.chance.choice([-1, 1]) * self.chance.choice([1, 7, 40, 70, 5_000])
        self.clock.set(min(max(ms, NOW_MS - 100_000), NOW_MS + 100_000))

    def kill(self, _: str) -> None:
        self.disk = power_cut(self.disk) if self.chance.random() < 0.2 else killed(self.disk)
        self.open()

    def close(self, _: str) -> None:
        self.store.close()
        self.open()

    def go(self, turns: int) -> None:
        does = [self.send, self.send, self.deliver, self.deliver, self.checkpoint, self.step, self.step, self.kill]
        for _ in range(turns):
            does_it = self.chance.choice([*does, self.close])
            if does_it == self.kill:  # what is written is there, also where the power is cut
                self.store.sync()
            does_it(self.chance.choice(self.used))
        self.clock.set(NOW_MS + 1_000_000)
        for topic in self.TOPICS:
            self.deliver(topic)
            assert sorted(self.sent[topic]) == self.delivered[topic], "not all, or in another order"


@pytest.mark.usefixtures("quiet")
def test_nothing_is_early_or_skipped_in_any_topic_whatever_the_clock_does() -> None:
    for number in range(1_000 if campaigns.WHOLE else 20 * campaigns.DEPTH):
        Lives(f"{campaigns.SEED} {number}").go(60)
        campaigns.count("lives of many topics")


def anothers_reading(frontier: StoreFrontier, partition: str, own: FrontierLease) -> FrontierLease:
    used_ms = max([own.used_ms, *frontier._found.used_ms.values()])
    return FrontierLease(used_ms=used_ms, lease_ms=max(own.lease_ms, frontier.lease_ms))


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    ("name", "planted"),
    [
        ("joined", lambda frontier, partition, own: own),
        ("joined", anothers_reading),
        ("lease", lambda frontier, partition, reading_ms: None),
    ],
    ids=["own alone", "another's reading", "not durable"],
)
def test_planted_bug_is_caught(name: str, planted: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreFrontier, name, planted)
    for number in range(300):
        try:
            Lives(f"planted {number}").go(60)
        except AssertionError:
            return
    raise AssertionError("nobody saw it")


def test_planted_bug_is_caught_taken_back_while_others_are_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreFrontier, "end", lambda frontier, at_rest: ORIGINAL_END(frontier, ()))
    with pytest.raises(AssertionError):
        test_what_stays_at_rest_keeps_what_a_crash_left()


def test_nobody_leases_behind_the_close() -> None:
    setting = Setting()
    log = setting.store.topic("t0").log(0)
    setting.store.close()
    with pytest.raises(StoreClosed):
        log.lease(NOW_MS + 10)
    assert not setting.disk.exists(frontier_path(PATH))


@pytest.mark.parametrize("body", [{}, {"lease_ms": 1}, {"lease_ms": "1", "used_ms": {}}, {"lease_ms": 1, "used_ms": []},
    {"lease_ms": 1, "used_ms": {"t-0": 0.5}}])  # fmt: skip
def test_what_is_not_a_frontier_is_corrupt(body: dict[str, object]) -> None:
    disk = SimulatedFiles()
    disk.make_folder(PATH)
    make_room(disk, PATH)
    document.write(disk, frontier_path(PATH), "afterlog-frontier", 1, body)
    with pytest.raises(CorruptFile):
        read_frontier(disk, PATH)
