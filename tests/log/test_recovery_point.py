"""Checkpoints that are made while appends go on: between any two of their calls to the disk, and what comes next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.errors import PartitionPoisoned, StorageFull, StoreClosed
from afterlog.base.files import TEMPORARY_SUFFIX
from afterlog.base.names import BUCKETS, CHECKPOINTS, OFFSET_INDEX
from afterlog.log.checkpointer import DueCheckpoints
from afterlog.log.context import DueCheckpoint
from afterlog.log.partition_log import PartitionLog
from afterlog.log.recovery_point import BEHIND
from afterlog.store.store import Store, open_store
from tests import campaigns
from tests.campaigns.crash_states import CrashModel, crash_states, kill_state
from tests.campaigns.failing_files import FailingFiles
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, PATH, Background, Calls, HeldFiles, drained, eventually, killed, open_small, small

LATER_MS = 1_000


class InterleavedFiles(FailingFiles):
    """Calls `between` in front of one call to the disk, the `at`-th from now on."""

    def __init__(self, disk: SimulatedFiles) -> None:
        super().__init__(disk, lambda operation, path, call: None)
        self.at = 0
        self.between: Callable[[], object] = lambda: None

    def ask(self, operation: str, path: Path) -> int | None:
        self.at -= 1
        if self.at == 0:
            self.between()
        return super().ask(operation, path)


class Setting:
    """A store in which nothing is sealed but by hand, and what was sent to it, by the offset."""

    def __init__(self, *, delayed: bool = True) -> None:
        self.disk = SimulatedFiles()
        self.files = InterleavedFiles(self.disk)
        self.clock = ManualClock(NOW_MS)
        self.store = open_small(self.files, self.clock, min_index_count_per_bucket=1_000)
        self.partition = self.store.create_topic("t", delayed=delayed).partition(0)
        self.sent: list[tuple[int, int]] = []
        """When it is due, and how many calls had changed the disk when it was written."""

    @property
    def log(self) -> PartitionLog:
        return self.partition.log

    def send(self, count: int) -> None:
        for _ in range(count):
            number = len(self.sent)
            due_ms = NOW_MS + LATER_MS + number * 7 % 10
            asked = due_ms if self.partition.log.delayed else None
            assert number == self.store.send("t", b"%d" % number, deliver_after=asked).offset
            self.sent.append((due_ms, len(self.disk.operations)))

    def expected(self, count: int) -> list[bytes]:
        """The values of the first so many, in delivery order."""
        rows = ((due_ms if self.partition.log.delayed else 0, number) for number, (due_ms, _) in enumerate(self.sent))
        return [b"%d" % number for _, number in sorted([*rows][:count])]

    def check_reopened(self, disk: SimulatedFiles, least: int) -> None:
        """At least so many are there, in order."""
        store = open_small(disk, ManualClock(NOW_MS + 2 * LATER_MS))
        store.check()
        values = drained(store.topic("t").partition(0))
        assert least <= len(values)
        assert self.expected(len(values)) == values


@pytest.mark.parametrize("delayed", [True, False])
def test_appends_between_any_two_of_its_calls(delayed: bool) -> None:
    at, seen = 0, 0
    while seen == at:
        at += 1
        setting = Setting(delayed=delayed)
        setting.send(5)
        begun = len(setting.disk.operations)
        setting.files.at, setting.files.between = at, lambda setting=setting: setting.send(2)
        setting.log.checkpoint()
        ended, setting.files.at = len(setting.disk.operations), 0
        seen += len(setting.sent) == 7
        setting.send(1)
        setting.store.check()
        setting.check_reopened(killed(setting.disk), len(setting.sent))
        with campaigns.quiet():
            for upto in campaigns.share(range(begun, len(setting.disk.operations) + 1), 144):
                written = sum(operation <= upto for _, operation in setting.sent)
                setting.check_reopened(kill_state(setting.disk.operations, upto).files(), written)
                for state in crash_states(setting.disk.operations, upto, model=CrashModel(every_byte_max=0)):
                    setting.check_reopened(state.files(), 5 if upto > ended else 0)
                    campaigns.count("crash states")
        setting.clock.advance(2 * LATER_MS)
        assert setting.expected(len(setting.sent)) == drained(setting.partition)
        setting.store.close()
    assert at > (6 if delayed else 4)


@pytest.fixture
def files() -> HeldFiles:
    return HeldFiles(SimulatedFiles(), Calls())


@pytest.fixture
def store(files: HeldFiles) -> Iterator[Store]:
    with open_small(files, ManualClock(NOW_MS), min_index_count_per_bucket=1_000) as store:
        store.create_topic("t")
        yield store


def log_of(store: Store) -> PartitionLog:
    return store.topic("t").partition(0).log


def send(store: Store, count: int) -> None:
    for number in range(count):
        store.send("t", b"v", deliver_after=NOW_MS + LATER_MS - number)


def test_readers_see_what_came_meanwhile_once(store: Store, files: HeldFiles) -> None:
    send(store, 5)
    gate = files.hold("create", CHECKPOINTS + TEMPORARY_SUFFIX)
    checkpoint = Background(log_of(store).checkpoint)
    gate.came()
    send(store, 3)
    before = log_of(store).pin()
    gate.open()
    checkpoint.answer()
    after = log_of(store).pin()
    assert (0, 8) == (len(before.delayed_index.runs), before.delayed_index.bucket.count)
    assert (1, 3) == (len(after.delayed_index.runs), after.delayed_index.bucket.count)
    assert (8, 8) == (before.delayed_index.records, after.delayed_index.records)
    assert 5 == after.delayed_index.bucket.start.offset == log_of(store).checkpoints.current.recovery.offset


def test_a_roll_waits_for_the_files_and_comes_first(store: Store, files: HeldFiles) -> None:
    log = log_of(store)
    send(store, 5)
    gate = files.hold("sync", OFFSET_INDEX)
    checkpoint = Background(log.checkpoint)
    gate.came()
    rolling = Background(log.roll)
    eventually(log._append_lock.locked)
    gate.open()
    checkpoint.answer()
    rolling.answer()
    assert (1, 0) == (len(log.sealed), log.index.bucket.count)
    assert [] == files.names(log.path / BUCKETS)
    store.check()


def test_another_that_comes_between_is_enough(store: Store, files: HeldFiles) -> None:
    """The moment of the first has gone when it gets to the files."""
    log = log_of(store)
    send(store, 5)
    point = log._maintenance.recovery_point
    moment = point.begin()
    send(store, 1)
    log.checkpoint()
    assert moment is not None
    assert point.store(moment) is None
    assert 6 == log.checkpoints.current.recovery.offset
    store.check()


def test_another_that_comes_behind_its_files_is_enough(store: Store) -> None:
    log = log_of(store)
    send(store, 5)
    point = log._maintenance.recovery_point
    moment = point.begin()
    assert moment is not None
    stored = point.store(moment)
    assert stored is not None
    send(store, 1)
    log._maintenance.checkpoint()
    assert (1, 6) == (len(log.index.runs), log.index.runs[0].count)
    point.finish(stored)
    store.check()
    assert [log.index.runs[0].key] == [f"{BUCKETS}/{name}" for name in store._files.names(log.path / BUCKETS)]


def test_what_was_interrupted_behind_its_files_is_made_good(store: Store, files: HeldFiles) -> None:
    """In memory nothing has changed; on disk the recovery point has moved, and the run is there."""
    log = log_of(store)
    send(store, 5)
    point = log._maintenance.recovery_point
    moment = point.begin()
    assert moment is not None
    assert point.store(moment) is not None
    assert (5, 5) == (log.checkpoints.current.recovery.offset, log.index.bucket.count)
    store.check()
    send(store, 2)
    log.checkpoint()
    assert (7, 0) == (log.checkpoints.current.recovery.offset, log.index.bucket.count)
    store.check()


@pytest.mark.parametrize("records", [5, 10])
def test_a_log_that_begins_anew_behind_its_files_keeps_the_run(files: HeldFiles, records: int) -> None:
    """As one of its runs, or, where it is small, as what the bucket has again until it is sealed."""
    store = open_small(files, ManualClock(NOW_MS), min_index_count_per_bucket=8)
    store.create_topic("t")
    log = log_of(store)
    object.__setattr__(log.context, "checkpoint_queue", lambda path, due: None)
    send(store, records)
    point = log._maintenance.recovery_point
    moment = point.begin()
    assert moment is not None
    stored = point.store(moment)
    assert stored is not None
    assert stored.run is not None
    log._dirty.is_set = True
    send(store, 1)
    point.finish(stored)
    assert (records == 10, records == 5) == (len(log.index.runs), len(log.index.bucket.stale))
    assert [stored.run.key] == [f"{BUCKETS}/{name}" for name in store._files.names(log.path / BUCKETS)]
    store.check()


def test_nothing_is_written_into_the_folder_of_a_closed_store(files: HeldFiles) -> None:
    store = open_small(files, ManualClock(NOW_MS))
    store.create_topic("t")
    log = log_of(store)
    send(store, 5)
    moment = log._maintenance.recovery_point.begin()
    assert moment is not None
    store.close()
    calls = files.calls
    with pytest.raises(StoreClosed):
        log._maintenance.recovery_point.store(moment)
    with pytest.raises(StoreClosed):
        log.checkpoint()
    assert calls == files.calls


def test_nothing_is_written_of_a_poisoned_log(store: Store) -> None:
    send(store, 5)
    moment = log_of(store)._maintenance.recovery_point.begin()
    assert moment is not None
    log_of(store).commit.poison(RuntimeError("found in a test"))
    with pytest.raises(PartitionPoisoned):
        log_of(store)._maintenance.recovery_point.store(moment)


class TestThread:
    @pytest.fixture
    def store(self, files: HeldFiles) -> Iterator[Store]:
        with open_store(PATH, small(), ManualClock(NOW_MS), files) as store:
            store.create_topic("t")
            yield store

    def test_a_bucket_that_is_full_is_sealed_by_it(self, store: Store, files: HeldFiles) -> None:
        log, gate = log_of(store), files.hold("create", CHECKPOINTS + TEMPORARY_SUFFIX)
        send(store, 8)
        gate.came()
        send(store, 4)
        assert 12 == log.index.bucket.count
        gate.open()
        eventually(lambda: log.index.bucket.count == 4)
        assert (8, 0) == (log.checkpoints.current.recovery.offset, log.late_checkpoints)
        store.check()

    def test_where_it_is_behind_an_append_does_it(self, store: Store) -> None:
        asked: list[DueCheckpoint] = []
        object.__setattr__(log_of(store).context, "checkpoint_queue", lambda path, due: asked.append(due))
        send(store, 8 * BEHIND - 1)
        assert (1, 8 * BEHIND - 1) == (len(asked), log_of(store).index.bucket.count)
        assert 0 == log_of(store).late_checkpoints
        send(store, 1)
        assert (0, 1) == (log_of(store).index.bucket.count, log_of(store).late_checkpoints)
        send(store, 8)
        assert 2 == len(asked)

    def test_nothing_is_begun_behind_its_end(self) -> None:
        made, checkpoints = DueCheckpoints(), list[str]()
        made.end()
        made.add(PATH, lambda: lambda: checkpoints.append("made"))
        made.stop()
        assert [] == checkpoints

    def test_what_fails_or_has_gone_is_left_out(self, caplog: pytest.LogCaptureFixture) -> None:
        made, checkpoints = DueCheckpoints(), list[str]()

        def fails() -> None:
            raise StorageFull("no room", path=PATH)

        for due in (lambda: None, lambda: fails, lambda: lambda: checkpoints.append("made")):
            made.add(PATH, due)
        eventually(lambda: checkpoints == ["made"])
        made.stop()
        assert "no room for a checkpoint" in caplog.text
