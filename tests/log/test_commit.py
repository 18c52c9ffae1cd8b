from __future__ import annotations

import contextlib
import errno
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.config import ALWAYS, OS, Durability
from afterlog.base.errors import PartitionPoisoned, StorageFull, StoreClosed, StoreForked
from afterlog.base.files import PROCESS
from afterlog.base.names import LOG
from afterlog.fetch.partition import Partition
from afterlog.log.commit import Commit, Round
from afterlog.log.partition_log import PartitionLog
from afterlog.store.store import Store
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import (
    NOW_MS,
    PATIENCE_S,
    Background,
    Calls,
    HeldFiles,
    drained,
    eventually,
    killed,
    open_small,
    power_cut,
)

RARELY = Durability.interval(3_600_000)


class Setting:
    """A store with one topic, on a disk whose calls are counted."""

    def __init__(self, durability: Durability, clock: ManualClock | None = None) -> None:
        self.calls = Calls()
        self.disk = SimulatedFiles()
        self.clock = clock or ManualClock(NOW_MS)
        self.files = HeldFiles(self.disk, self.calls)
        self.store = open_small(self.files, self.clock, durability=durability)
        self.partition = self.store.create_topic("t").partition(0)
        self.calls.made.clear()

    @property
    def log(self) -> PartitionLog:
        return self.partition.log

    @property
    def commit(self) -> Commit:
        return self.log.commit

    def send(self, value: bytes, deliver_after: int | None = None) -> int:
        return self.store.send("t", value, deliver_after=deliver_after).offset


@pytest.fixture
def always() -> Iterator[Setting]:
    setting = Setting(ALWAYS)
    yield setting
    setting.store.close()


class SlowDiskClock(ManualClock):
    """By which every sync takes a thousand seconds: then the leader of a round waits until all have come back."""

    _s = 0.0

    def monotonic_s(self) -> float:
        self._s += 1_000
        return self._s


@pytest.fixture
def patient() -> Iterator[Setting]:
    setting = Setting(ALWAYS, SlowDiskClock(NOW_MS))
    yield setting
    setting.store.close()


def reopened(disk: SimulatedFiles) -> tuple[Store, Partition]:
    store = open_small(disk, ManualClock(NOW_MS))
    store.check()
    return store, store.topic("t").partition(0)


def test_always_is_durable_when_it_returns(always: Setting) -> None:
    always.send(b"a")
    assert 1 == always.calls.count("sync", LOG)
    assert 1 == always.partition.log_end_offset
    assert [b"a"] == drained(reopened(power_cut(always.disk))[1])


def test_nothing_is_visible_before_its_sync(always: Setting) -> None:
    gate = always.files.hold("sync", LOG)
    sending = Background(lambda: always.send(b"a"))
    gate.came()
    assert (1, 0) == (always.log.written, always.partition.log_end_offset)
    assert ([], 0) == (drained(always.partition), always.partition.high_watermark())
    always.log.check()
    gate.open()
    assert 0 == sending.answer()
    assert [b"a"] == drained(always.partition)


def test_threads_that_wait_share_a_sync(always: Setting) -> None:
    gate = always.files.hold("sync", LOG)
    first = Background(lambda: always.send(b"0"))
    gate.came()
    others = [Background(lambda: always.send(b"more")) for _ in range(5)]
    eventually(lambda: always.log.written == 6)
    gate.open()
    assert list(range(6)) == sorted(sending.answer() for sending in [first, *others])
    assert 2 == always.calls.count("sync", LOG)
    assert 6 == always.partition.log_end_offset


def test_who_comes_back_at_once_shares_the_next_sync(patient: Setting) -> None:
    gate = patient.files.hold("sync", LOG)
    first = Background(lambda: [patient.send(b"first"), patient.send(b"first again")])
    gate.came()
    others = [Background(lambda: patient.send(b"other")) for _ in range(3)]
    eventually(lambda: patient.log.written == 4)
    gate.open()
    assert [0, 4] == first.answer()
    assert [1, 2, 3] == sorted(other.answer() for other in others)
    assert 2 == patient.calls.count("sync", LOG)


def test_who_went_to_another_partition_is_not_waited_for(patient: Setting) -> None:
    patient.store.create_topic("elsewhere")
    gate = patient.files.hold("sync", LOG)
    first = Background(lambda: [patient.send(b"first"), patient.store.send("elsewhere", b"")])
    gate.came()
    other = Background(lambda: patient.send(b"other"))
    eventually(lambda: patient.log.written == 2)
    gate.open()
    first.answer()
    assert 1 == other.answer()


def test_a_lone_thread_waits_for_nobody(patient: Setting) -> None:
    assert [0, 1, 2] == [patient.send(b"") for _ in range(3)]
    assert 3 == patient.calls.count("sync", LOG)


def test_threads_that_take_turns_wait_for_nobody(patient: Setting) -> None:
    """Each is away while the other sends, and comes back only when that has returned."""
    assert [*range(4)] == [Background(lambda: patient.send(b"")).answer() for _ in range(4)]
    assert 4 == patient.calls.count("sync", LOG)


def test_who_does_not_come_back_is_waited_for_once(always: Setting) -> None:
    gate = always.files.hold("sync", LOG)
    sending = [Background(lambda: always.send(b"once"))]
    gate.came()
    sending += [Background(lambda: always.send(b"once")) for _ in range(3)]
    eventually(lambda: always.log.written == 4)
    gate.open()
    assert [0, 1, 2, 3] == sorted(each.answer() for each in sending)
    assert [4, 5] == [always.send(b"") for _ in range(2)]


def test_another_leads_where_the_leader_was_interrupted(always: Setting) -> None:
    gate = always.files.hold("sync", LOG)
    left = [KeyboardInterrupt()]

    def striking(made: str, path: Path) -> None:
        if made == "sync" and left:
            raise left.pop()

    always.calls.failing = striking
    leader = Background(lambda: always.send(b"0"))
    gate.came()
    others = [Background(lambda: always.send(b"more")) for _ in range(5)]
    eventually(lambda: always.log.written == 6)
    gate.open()
    with pytest.raises(KeyboardInterrupt):
        leader.answer()
    assert list(range(1, 6)) == sorted(other.answer() for other in others)
    assert 2 == always.calls.count("sync", LOG)
    assert 6 == always.partition.log_end_offset


def test_all_who_wait_for_a_sync_that_fails_are_told(always: Setting) -> None:
    gate = always.files.hold("sync", LOG)
    always.calls.fail("sync", LOG, OSError(errno.EIO, "bad disk"))
    sending = [Background(lambda: always.send(b"0"))]
    gate.came()
    sending += [Background(lambda: always.send(b"more")) for _ in range(5)]
    eventually(lambda: always.log.written == 6)
    gate.open()
    for each in sending:
        with pytest.raises(PartitionPoisoned, match="bad disk"):
            each.answer()
    assert 1 == always.calls.count("sync", LOG)


def test_os_is_visible_at_once_and_survives_a_kill() -> None:
    setting = Setting(OS)
    setting.send(b"a")
    assert 0 == setting.calls.count("sync", LOG)
    assert [b"a"] == drained(setting.partition)
    assert [b"a"] == drained(reopened(killed(setting.disk))[1])
    assert [] == drained(reopened(power_cut(setting.disk))[1])


@pytest.mark.parametrize("durability", [OS, RARELY])
def test_sync_makes_durable_whatever_the_durability(durability: Durability) -> None:
    setting = Setting(durability)
    setting.send(b"a")
    setting.store.sync()
    assert [b"a"] == drained(reopened(power_cut(setting.disk))[1])
    setting.store.close()


def test_interval_is_visible_when_synced() -> None:
    setting = Setting(RARELY)
    setting.send(b"a")
    assert (1, 0) == (setting.log.written, setting.partition.log_end_offset)
    assert [] == drained(setting.partition)
    setting.commit.sync_if_behind()
    assert [b"a"] == drained(setting.partition)
    assert 1 == setting.calls.count("sync", LOG)
    setting.commit.sync_if_behind()
    assert 1 == setting.calls.count("sync", LOG)
    setting.store.close()


def test_an_append_in_flight_holds_due_back() -> None:
    """What is in flight was stamped before: its key may sort before those that become due meanwhile."""
    setting = Setting(RARELY)
    setting.send(b"pending", deliver_after=NOW_MS + 10)
    setting.store.sync()
    setting.send(b"in flight")
    setting.clock.advance(100)
    assert 0 == setting.partition.high_watermark()
    assert NOW_MS == setting.partition.fetch(0).clock_ms
    setting.store.sync()
    assert [b"in flight", b"pending"] == drained(setting.partition)
    setting.store.close()


def test_a_failed_sync_poisons(always: Setting) -> None:
    always.send(b"kept")
    always.calls.fail("sync", LOG, OSError(errno.EIO, "bad disk"))
    with pytest.raises(PartitionPoisoned, match="bad disk"):
        always.send(b"unknown")
    syncs = always.calls.count("sync", LOG)
    for call in (
        lambda: always.send(b"more"),
        always.partition.log.roll,
        always.partition.log.checkpoint,
        always.store.sync,
    ):
        with pytest.raises(PartitionPoisoned):
            call()
    always.commit.sync_if_behind()
    assert syncs == always.calls.count("sync", LOG)
    assert [b"kept"] == drained(always.partition)
    always.store.close()
    assert b"kept" == drained(reopened(power_cut(always.disk))[1])[0]


def test_a_failed_write_is_rolled_back(always: Setting) -> None:
    always.send(b"kept")
    size = always.disk.image().contents["/store/t-0/" + "0" * 20 + ".log"]
    for written in (0, 1, 70, -1):
        always.calls.fail("append", LOG, written)
        with pytest.raises(StorageFull) as raised:
            always.send(b"no room")
        assert raised.value.retriable
        assert size == always.disk.image().contents["/store/t-0/" + "0" * 20 + ".log"]
    always.store.check()
    assert 1 == always.send(b"room again")
    assert [b"kept", b"room again"] == drained(always.partition)


@pytest.mark.parametrize("operation", ["truncate", "sync"])
def test_a_failed_rollback_poisons(always: Setting, operation: str) -> None:
    always.send(b"kept")

    def failing(made: str, path: Path) -> OSError | int | None:
        return {"append": 30, operation: OSError(errno.EIO, "bad disk")}.get(made) if path.suffix == LOG else None

    always.calls.failing = failing
    with pytest.raises(PartitionPoisoned, match="bad disk"):
        always.send(b"half")
    with pytest.raises(PartitionPoisoned):
        always.send(b"more")
    assert [b"kept"] == drained(always.partition)
    always.calls.failing = Calls().failing
    always.store.close()
    store, partition = reopened(killed(always.disk))
    assert [b"kept"] == drained(partition)
    assert ({("t", 0): 30} if operation == "truncate" else {}) == store.cut_bytes


def test_withdrawing_wakes_whoever_it_held_back(always: Setting) -> None:
    always.send(b"pending", deliver_after=NOW_MS + 10)
    gate = always.files.hold("append", LOG)
    always.calls.fail("append", LOG, OSError(errno.ENOSPC, "full"))
    sending = Background(lambda: always.send(b"no room"))
    gate.came()
    always.clock.advance(100)
    fetching = Background(lambda: always.partition.fetch(0, max_wait_ms=5_000))
    gate.open()
    with pytest.raises(StorageFull):
        sending.answer()
    assert 1 == fetching.answer().next_position


def test_closed(always: Setting) -> None:
    always.store.close()
    assert always.commit.closed
    for call in (
        lambda: always.send(b"more"),
        lambda: always.partition.append(b""),
        lambda: always.partition.fetch(0),
        always.partition.high_watermark,
        always.commit.usable,
        always.log.pin,
        always.log.due_reading,
        always.partition.log.roll,
        always.partition.log.enforce_retention,
        always.store.sync,
    ):
        with pytest.raises((StoreClosed, ValueError)):
            call()
    always.commit.sync_if_behind()


def test_forked(always: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PROCESS, "id", PROCESS.id + 1)
    for call in (always.commit.usable, always.log.pin, always.log.due_reading, always.commit.sync):
        with pytest.raises(StoreForked):
            call()


def test_check_sees_a_visible_end_ahead_of_what_is_written(always: Setting) -> None:
    always.send(b"a")
    always.log.versions.swap(always.log.version, visible=always.log.version.written._replace(offset=2))
    with pytest.raises(AssertionError):
        always.log.check()


def test_a_signal_at_the_end_of_its_patience_holds_up_no_leader() -> None:
    """CPython's SimpleQueue.get(timeout) waits for ever where a signal strikes its thread as the time is over: a leader
    hung so, and with it all who committed. A lock's wait does not.
    """
    away, over = Round(), threading.Event()
    joining = threading.Thread(target=away.join)  # and never comes back
    joining.start()
    joining.join()
    before = signal.signal(signal.SIGUSR1, lambda *_: None)

    def lead() -> None:
        for _ in range(2_000):
            away.gather(0.0002)
        over.set()

    leading = threading.Thread(target=lead, daemon=True)
    leading.start()
    try:
        started_s = time.monotonic()
        while not over.is_set() and time.monotonic() - started_s < PATIENCE_S:
            with contextlib.suppress(ProcessLookupError):
                signal.pthread_kill(leading.ident or 0, signal.SIGUSR1)
        assert over.is_set(), "it waits for ever"
    finally:
        leading.join(PATIENCE_S if over.is_set() else 0.0)
        signal.signal(signal.SIGUSR1, before)
