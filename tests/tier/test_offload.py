from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.errors import (
    CorruptFile,
    CorruptRemote,
    OffsetOutOfRange,
    RemoteConflict,
    RemoteError,
    RemoteMissing,
    RemoteUnavailable,
    StoreClosed,
)
from afterlog.base.names import CANCEL_INDEX, DELIVER_AFTER_INDEX, LOG, MANIFEST, segment_file
from afterlog.fetch.message import Message
from afterlog.log import cleaning, cleaning_plan
from afterlog.log.partition_log import PartitionLog
from afterlog.tier import offload, segment_files
from afterlog.tier.offload import LEFTOVER_MS, Offloader
from afterlog.tier.remote_segment import SegmentState
from afterlog.tier.remote_store import RemoteStore
from afterlog.tier.remove import remove
from afterlog.tier.scrub import FindingKind, scrub
from tests import campaigns
from tests.support import PATH, Background, Gate, content, durable_frontier, flipped, with_file
from tests.tier.faulty_remote_store import Crashed, Fault, FaultyRemoteStore, HeldLogs, fault_at, hold
from tests.tier.memory_store import Unreachable
from tests.tier.small_store import SmallStore, opened
from tests.tier.support import PARTITION, faults, row

FOLDER = PATH / PARTITION


def at_call(operation: str, number: int, do: Callable[[], object]) -> Callable[[str, int], None]:
    """A plan that does something right before the `number`-th call of an operation."""
    made = []

    def plan(made_operation: str, call: int) -> None:
        made.extend([call] * (made_operation == operation))
        if made_operation == operation and len(made) == number:
            do()

    return plan


Asked = Callable[[Callable[[], object]], dict[str, int]]
"""The requests that something makes: how many of each kind."""


class Counting:
    """A remote store that counts."""

    def __init__(self, remote: RemoteStore) -> None:
        self._remote = remote
        self.seen: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        def request(key: str, *how: Any, **more: Any) -> Any:
            self.seen[name + " manifest" * key.endswith(MANIFEST)] += 1
            return getattr(self._remote, name)(key, *how, **more)

        return request


def counted(**settings: Any) -> tuple[SmallStore, Asked]:
    """A store whose requests are counted."""
    setting = opened(**settings)
    setting.store.close()
    return setting, counting(setting, setting.storage)


def counting(setting: SmallStore, remote: RemoteStore) -> Asked:
    """Open it with that, counted."""
    store = Counting(remote)
    setting.open(store)  # type: ignore[arg-type]

    def asked(do: Callable[[], object]) -> dict[str, int]:
        store.seen.clear()
        do()
        return dict(store.seen)

    return asked


class TestOnePass:
    def test_uploads_frees_and_tells(self) -> None:
        setting = opened()
        setting.segments(2)
        setting.segment((b"far", 1_000))
        setting.store.send("mail", b"active")
        done = setting.offload()
        assert (3, 1, 0, 0) == (done.uploaded, done.freed, done.expired, done.removed)
        setting.clock.advance(1)
        assert (0, 1) == ((done := setting.offload()).uploaded, done.freed)
        assert [False, False, True] == setting.local
        assert [b"0", b"0'", b"1", b"active", b"1'"] == setting.drained()
        assert [] == scrub(setting.manifest, deep=True)
        facts = setting.manifest.content().log
        assert facts is not None
        assert (5, 0) == (facts.end_offset, facts.removed_records)
        setting.offload()
        facts = setting.manifest.content().log
        assert facts is not None
        assert setting.clock.now_ms() == facts.frontier_ms
        setting.store.check()

    def test_nothing_to_do_changes_nothing(self) -> None:
        setting = opened()
        setting.segments(2)
        setting.clock.advance(5)
        setting.offload()
        setting.offload()
        before, written = setting.storage.copy(), len(setting.disk.operations)
        setting.offload()
        assert (before.objects, before.versions) == (setting.storage.objects, setting.storage.versions)
        assert written == len(setting.disk.operations)

    def test_lag(self) -> None:
        setting = opened()
        setting.segments(3)
        assert setting.store.tiering is not None
        offloader = setting.store.tiering.offloader("mail", 0)
        assert offloader is not None
        assert (3, sum(segment.size for segment in setting.partition.log.sealed)) == offloader.lag
        setting.offload()
        assert (0, 0) == offloader.lag

    def test_the_files_that_stay(self) -> None:
        setting = opened()
        setting.segment((b"a", 0), (b"b", 5))
        gone = setting.store.send("mail", b"c", delay=9)
        setting.store.cancel(gone)
        setting.partition.log.roll()
        setting.clock.advance(10_000)
        assert 2 == setting.offload().freed
        left = [name for name in setting.disk.names(FOLDER) if name[:20].isdigit() and int(name[:20]) < 4]
        assert [segment_file(2, CANCEL_INDEX)] == left
        assert all(run.remote for run in setting.partition.log.index.runs)
        assert [b"a", b"b"] == setting.drained()
        setting.reopened(Unreachable())
        assert setting.partition.look().hidden.count == 2

    def test_local_retention_by_bytes(self) -> None:
        setting = opened(local_retention_ms=None, local_retention_bytes=0)
        setting.segment((b"a", 50))
        setting.segment((b"b", 0))
        assert 1 == setting.offload().freed
        assert [True, False] == setting.local

    def test_without_local_retention_everything_stays_here_too(self) -> None:
        setting = opened(local_retention_ms=None)
        setting.segments(2)
        setting.clock.advance(10**6)
        assert (2, 0) == ((done := setting.offload()).uploaded, done.freed)

    def test_what_retention_takes_goes_in_the_storage(self) -> None:
        setting = opened(retention_ms=100)
        setting.segments(3)
        setting.segment((b"far", 10**6))
        setting.clock.advance(10)
        setting.offload()
        setting.clock.advance(1_000)
        done = setting.offload()
        assert (3, 3) == (done.expired, done.removed)
        assert [6] == [row.base_offset for row in setting.manifest.read()]
        assert [] == scrub(setting.manifest, deep=True)
        with pytest.raises(OffsetOutOfRange):
            setting.partition.fetch(0)
        setting.clock.advance(10**6)
        assert [b"far"] == setting.drained()


class TestRequests:
    """How many requests of each kind a pass makes. Each costs money, and is there for a reason."""

    def test_idle(self) -> None:
        setting, asked = counted()
        setting.segments(2)
        setting.clock.advance(5)
        setting.offload()
        assert {"get manifest": 1} == asked(setting.offload)

    def test_one_upload(self) -> None:
        setting, asked = counted()
        setting.segment((b"a", 1_000))
        manifest, objects = {"get manifest": 2, "put_if manifest": 2}, {"put": 4, "head": 4, "get_ranges": 3}
        assert {**manifest, **objects} == asked(setting.offload)
        assert {"get manifest": 1} == asked(setting.offload)

    def test_each_further_upload(self) -> None:
        setting, asked = counted()
        for number in range(3):
            setting.segment((b"%d" % number, 1_000))
        manifest, objects = {"get manifest": 1 + 3, "put_if manifest": 6}, {"put": 12, "head": 12, "get_ranges": 9}
        assert {**manifest, **objects} == asked(setting.offload)

    def test_local_files_that_go(self) -> None:
        """That it is due is told; that it is listed is asked."""
        setting, asked = counted()
        setting.segment((b"a", 1_000))
        setting.offload()
        setting.clock.advance(2_000)
        assert {"get manifest": 2, "put_if manifest": 1} == asked(setting.offload)
        assert [False] == setting.local

    @pytest.mark.parametrize("count", [1, 3])
    def test_removals(self, count: int) -> None:
        setting, asked = counted(retention_ms=100, local_retention_ms=None)
        setting.segments(count)
        setting.segment((b"stays", 10**6))
        setting.offload()
        setting.clock.advance(1_000)
        assert {"get manifest": 1, "put_if manifest": 2, "delete": 4 * count} == asked(setting.offload)
        assert [2 * count] == [row.base_offset for row in setting.manifest.read()]
        assert {"get manifest": 1} == asked(setting.offload)

    def test_somebody_else_was_first(self) -> None:
        setting = opened()
        setting.segment((b"a", 1_000))
        setting.store.close()
        others = at_call("put", 1, lambda: setting.manifest.update(lambda rows: (*rows, row(7, 100))))
        asked = counting(setting, FaultyRemoteStore(setting.storage, others))
        manifest, objects = {"get manifest": 3, "put_if manifest": 3}, {"put": 4, "head": 4, "get_ranges": 3}
        assert {**manifest, **objects} == asked(setting.offload)


class TestD13:
    def test_far_future_holds_its_own_segment_only(self) -> None:
        setting = opened(retention_ms=0)
        setting.segment((b"a", 0), (b"for years", 10**12))
        setting.segment((b"b", 0))
        setting.clock.advance(10**9)
        done = setting.offload()
        assert (0, 1) == (done.freed, done.expired)
        assert [True] == setting.local

    def test_nothing_goes_that_is_not_listed_when_it_goes(self) -> None:
        """Somebody takes it out of the manifest between the upload and the removal of the local files."""
        setting = opened()
        setting.segments(2)
        setting.clock.advance(5)
        enforce = PartitionLog.enforce_retention

        def taken_out(log: PartitionLog) -> int:
            remove(setting.manifest, setting.manifest.listed()[0])
            return enforce(log)

        with patch.object(PartitionLog, "enforce_retention", taken_out):
            assert 1 == setting.offload().freed
        assert [True, False] == setting.local
        done = setting.offload()
        assert (1, 1) == (done.uploaded, done.freed)
        assert [b"0", b"0'", b"1", b"1'"] == setting.drained()

    def test_what_was_there_and_is_listed_no_more_is_told(self, caplog: pytest.LogCaptureFixture) -> None:
        setting = opened()
        setting.segments(1)
        setting.clock.advance(5)
        setting.offload()
        remove(setting.manifest, setting.manifest.listed()[0])
        setting.store.close()
        setting.open()
        setting.offload()
        assert "cannot be read" in caplog.text
        with pytest.raises(RemoteMissing):
            setting.partition.fetch(0)

    def test_the_clock_steps_back_after_a_crash(self) -> None:
        """What is only in the storage stays due: it can be counted without the storage."""
        setting = opened()
        setting.segments(2, delay_ms=50)
        setting.clock.advance(60)
        assert 2 == setting.offload().freed
        setting.clock.advance(-40)
        setting.reopened(Unreachable())
        assert (4, 0) == (setting.partition.high_watermark(), setting.partition.pending())
        sent = setting.store.send("mail", b"later")
        setting.store.close()
        setting.reopened()
        setting.clock.advance(2_000)
        assert [b"0", b"0'", b"1", b"1'", b"later"] == setting.drained()
        assert 4 == sent.offset

    def test_a_lease_that_is_taken_meanwhile_is_not_put_back(self) -> None:
        """A fetch delivers by a later reading while local files go: a crash must not stamp below it."""
        setting = opened()
        setting.segment((b"a", 0))
        setting.store.send("mail", b"b", delay=5)
        mark = type(setting.partition.log._maintenance)._mark

        def delivered_meanwhile(maintenance: object, marks: object, **frontier: int) -> None:
            if frontier:
                setting.clock.advance(5_000)
                assert 2 == setting.partition.high_watermark()
            mark(maintenance, marks, **frontier)  # type: ignore[arg-type]

        with patch.object(type(setting.partition.log._maintenance), "_mark", delivered_meanwhile):
            assert 1 == setting.offload().freed
        read_at = setting.clock.now_ms()
        frontier = durable_frontier(setting.partition.log.context.files, setting.partition.log)
        assert read_at <= frontier.used_ms <= frontier.lease_ms
        setting.clock.advance(-4_000)
        setting.reopened()
        setting.store.send("mail", b"c")
        setting.clock.advance(9_000)
        assert [b"a", b"b", b"c"] == setting.drained()


class TestFaults:
    @pytest.mark.parametrize("fault", list(Fault))
    def test_at_every_step(self, fault: Fault) -> None:
        """Of uploads, local retention, retention: nothing is lost, and the next pass does the rest."""
        call = 0
        while True:
            call += 3
            setting = opened(retention_ms=1_000)
            setting.segments(1)
            setting.clock.advance(10)
            setting.offload()
            setting.clock.advance(995)
            setting.segments(1)
            setting.segment((b"far", 10**7))
            setting.clock.advance(10)
            setting.store.close()
            breaking = FaultyRemoteStore(setting.storage, fault_at(call, fault))
            setting.open(breaking)
            with contextlib.suppress(RemoteError, Crashed):
                setting.offload()
            done = breaking.calls < call
            held = [segment.base_offset for segment in setting.partition.log.sealed]
            with contextlib.suppress(Crashed):
                setting.store.close()
            if fault == Fault.TRUNCATED and not done and scrub(setting.manifest) and not readable(setting):
                continue  # the manifest itself was cut, and nobody said so
            assert {each.kind for each in scrub(setting.manifest, deep=True)} <= {FindingKind.UNFINISHED}
            assert held in ([0, 2, 4], [2, 4])
            setting.open()
            assert setting.drained() in ([b"0", b"0'", b"0", b"0'"], [b"0", b"0'"])
            setting.clock.advance(LEFTOVER_MS + 1)
            setting.offload()
            assert [] == scrub(setting.manifest, deep=True)
            assert [4] == [row.base_offset for row in setting.manifest.listed()]
            setting.clock.advance(10**7)
            assert [b"far"] == setting.drained()
            setting.store.check()
            if done:
                assert call > 30
                return

    def test_the_storage_is_down(self) -> None:
        setting = opened()
        setting.segments(2)
        setting.store.close()
        setting.open(Unreachable())
        with pytest.raises(RemoteUnavailable):
            setting.offload()
        setting.segments(1)
        setting.clock.advance(5)
        assert 6 == len(setting.drained())
        setting.store.close()
        setting.open()
        assert (3, 3) == ((done := setting.offload()).uploaded, done.freed)

    def test_a_rotten_log_is_not_uploaded_and_holds_up_no_other(self) -> None:
        setting = opened()
        setting.segments(3)
        path = FOLDER / segment_file(0, LOG)
        data = setting.disk.image().contents[str(path)]
        setting.disk = with_file(setting.disk, path, flipped(data, 90))
        setting.open()
        setting.clock.advance(5)
        for _ in range(2):
            with pytest.raises(CorruptFile, match=LOG):
                setting.offload()
        assert [2, 4] == [row.base_offset for row in setting.manifest.listed()]
        assert [True, False, False] == setting.local


def readable(setting: SmallStore) -> bool:
    with contextlib.suppress(RemoteError):
        setting.manifest.read()
        return True
    return False


class TestRaces:
    @pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
    def test_a_merge_takes_the_run_that_is_uploaded(self, number: int) -> None:
        setting = opened()
        setting.segments(3, delay_ms=10**6)
        setting.store.close()
        merged: list[int] = []
        plan = at_call("put", number, lambda: merged.append(setting.partition.log.merge_buckets()))
        setting.open(FaultyRemoteStore(setting.storage, plan), max_num_buckets=1)
        assert 3 == setting.offload().uploaded
        assert 1 <= merged[0]
        assert [0, 2, 4] == [row.base_offset for row in setting.manifest.read()]
        assert [] == scrub(setting.manifest, deep=True)

    @pytest.mark.parametrize(("operation", "number"), [("put", 1), ("put", 3), ("head", 1), ("put_if", 2), ("get", 2)])
    def test_retention_takes_the_segment_while_it_is_uploaded(self, operation: str, number: int) -> None:
        setting = opened(retention_ms=100)
        setting.segments(1)
        setting.segment((b"stays", 10**6))
        setting.clock.advance(1_000)
        setting.store.close()
        expired: list[int] = []
        plan = at_call(operation, number, lambda: expired.append(setting.store.enforce_retention()))
        setting.open(FaultyRemoteStore(setting.storage, plan))
        setting.offload()
        assert [1] == expired
        assert [2] == [row.base_offset for row in setting.manifest.read()]
        assert [] == scrub(setting.manifest, deep=True)

    def test_retention_takes_the_segment_while_it_is_looked_at(self) -> None:
        """Its cancel index has gone: that is not a rotten segment."""
        setting = opened(retention_ms=100)
        setting.store.cancel(setting.store.send("mail", b"a", delay=5))
        setting.partition.log.roll()
        setting.clock.advance(10_000)
        load = segment_files.load_cancelled

        def retained(*where: object) -> object:
            setting.store.enforce_retention()
            return load(*where)  # type: ignore[arg-type]

        with patch.object(segment_files, "load_cancelled", retained):
            assert 0 == setting.offload().uploaded
        assert () == setting.manifest.read()

    def test_a_reader_that_looked_before_the_local_files_went(self) -> None:
        setting = opened()
        setting.segments(3)
        setting.clock.advance(5)
        reading = setting.partition.reading()
        here = [name for name in setting.disk.names(PATH / PARTITION) if not name.endswith(DELIVER_AFTER_INDEX)]
        setting.offload()
        assert [False] * 3 == setting.local
        assert set(here) <= set(setting.disk.names(PATH / PARTITION))
        setting.storage.objects.clear()
        assert 6 == len(setting.partition.columns(0, 100, 1 << 20, reading)[0])
        del reading
        setting.partition.log.enforce_local_retention(list)
        assert [segment_file(6, LOG)] == [name for name in setting.disk.names(PATH / PARTITION) if name.endswith(LOG)]

    @pytest.mark.parametrize("delayed", [True, False])
    def test_a_reader_that_looked_before_the_storage_lost_them(self, delayed: bool) -> None:
        """What it has pinned stays until it is done; who comes later is told that the position is gone."""
        setting = opened(retention_ms=100, delayed=delayed)
        setting.segments(3)
        setting.clock.advance(50)
        setting.offload()
        setting.store.close()

        gate = Gate()
        setting.open(HeldLogs(setting.storage, gate))
        reading = Background(lambda: setting.partition.fetch(0))
        gate.came()
        setting.clock.advance(1_000)
        setting.offload()
        assert 3 == len(setting.manifest.listed())
        with pytest.raises(OffsetOutOfRange):
            setting.partition.fetch(0)
        gate.open()
        assert 2 <= reading.answer().next_position
        setting.offload()
        assert () == setting.manifest.listed()

    def test_a_record_that_is_looked_up_while_the_storage_loses_it(self) -> None:
        setting = opened(retention_ms=100)
        setting.segments(2)
        setting.clock.advance(50)
        setting.offload()
        setting.store.close()
        gate = Gate()
        setting.open(FaultyRemoteStore(setting.storage, hold("get_ranges", gate)))
        asking = Background(lambda: setting.partition.is_pending(1))
        gate.came()
        setting.clock.advance(1_000)
        setting.offload()
        gate.open()
        assert not asking.answer()

    def test_two_stores_in_one_storage(self) -> None:
        """An old machine and one that was made of the storage: one wins each segment, the other keeps its own."""
        old = opened()
        old.segments(2)
        old.clock.advance(5)
        old.offload()
        new = old.fresh()
        assert old.drained() == new.drained()
        old.segment((b"old", 0))
        new.segment((b"new", 0), (b"new", 0))
        old.clock.advance(5)
        assert (1, 1) == ((done := new.offload()).uploaded, done.freed)
        with pytest.raises(RemoteConflict, match="another log"):
            old.offload()
        assert [False, False, True] == old.local
        assert b"old" in old.drained()
        assert [b"new", b"new"] == new.drained()[-2:]
        assert [] == faults(old.manifest)
        assert 3 == len(old.manifest.listed())

    def test_closed_while_it_uploads(self) -> None:
        setting = opened()
        setting.segments(2)
        setting.store.close()
        gate = Gate()
        setting.open(FaultyRemoteStore(setting.storage, hold("put", gate, 3)))
        uploading = Background(setting.offload)
        gate.came()
        setting.store.close()
        gate.open()
        with pytest.raises(StoreClosed):
            uploading.answer()
        assert [SegmentState.COPY_STARTED] == [row.state for row in setting.manifest.read()]
        setting.open()
        setting.clock.advance(LEFTOVER_MS + 1)
        assert 2 == setting.offload().uploaded
        assert [] == scrub(setting.manifest, deep=True)


class TestCleanedBefore:
    """A topic of which segments were written anew before it came to be in object storage."""

    def setting(self) -> SmallStore:
        setting = opened(remote_storage_enable=False, local_retention_ms=None, retention_ms=5)
        for number in range(3):
            setting.segment((b"far %d" % number, 10**6 + number), (b"gone", 0), (b"gone", 1))
        setting.clock.advance(100)
        return setting

    def alter(self, setting: SmallStore) -> None:
        setting.settings = {"retention_ms": None}
        setting.store.alter_topic("mail", remote_storage_enable=True, local_retention_ms=0)

    def test_what_has_gaps_is_uploaded_freed_and_read(self) -> None:
        setting = self.setting()
        assert 0 < setting.store.clean("mail")
        assert all(segment.mark.generation for segment in setting.partition.log.sealed)
        self.alter(setting)
        uploaded = setting.offload().uploaded
        assert len(setting.local) == uploaded > 0
        setting.clock.advance(2 * 10**6)
        setting.segment((b"last", 0))
        setting.partition.high_watermark()
        setting.store.alter_topic("mail", **setting.settings)
        assert uploaded + 1 == setting.offload().freed
        assert not any(setting.local)
        setting.store.check()
        left = [b"far 0", b"far 1", b"far 2", b"last"]
        assert left == setting.drained() == setting.fresh().drained()
        setting.reopened()
        setting.store.check()
        assert left == setting.drained()

    def test_a_cleaning_that_runs_meanwhile_is_given_up(self) -> None:
        setting = self.setting()
        setting.partition.high_watermark()
        log = setting.partition.log
        before = [segment.mark for segment in log.sealed]
        log.weigh()
        log.begin_cleaning(thorough=True)

        def pause(size: int) -> None:
            if log.context.settings.remote_storage_enable:
                return
            self.alter(setting)

        assert 0 == log.clean(pause, thorough=True).segments
        assert before == [segment.mark for segment in log.sealed]
        setting.store.check()
        assert 3 == setting.offload().uploaded
        setting.store.check()


class TestCleaned:
    """What object storage lists is written anew here, and then replaced there."""

    ALIVE = tuple((8 + number, 3 * number, b"far %d" % number) for number in range(4))
    """By delivery offset and offset."""

    def setting(self, *, offloaded: bool = True) -> SmallStore:
        setting = opened(retention_ms=5)
        for number in range(4):
            setting.segment((b"far %d" % number, 10**6 + number), (b"gone", 0), (b"gone", number))
        if offloaded:
            assert 4 == setting.offload().uploaded
        setting.clock.advance(100)
        return setting

    def cleaned(self) -> SmallStore:
        setting = self.setting()
        assert 0 < setting.store.clean("mail")
        return setting

    def alive(self, setting: SmallStore) -> list[tuple[int, int, bytes | None]]:
        """The last four of a fresh machine, which may have been told of an earlier log start."""
        fresh = setting.fresh()
        fresh.store.check()
        return fresh.left_after()[-4:]

    def test_what_was_written_is_listed_in_its_place(self) -> None:
        setting = self.setting()
        before, log = {row.attempt for row in setting.manifest.listed()}, setting.partition.log
        setting.store.clean("mail")
        assert before == {*log.checkpoints.current.replaced} == {row.attempt for row in setting.manifest.listed()}
        done = setting.offload()
        rows = setting.manifest.listed()
        assert (len(log.sealed), 0) == (done.uploaded, done.removed)
        assert (True, 4) == (all(row.has_gaps for row in rows), sum(row.kept for row in rows))
        assert () == log.checkpoints.current.replaced
        assert [row.attempt for row in rows] == [each.mark.remote and each.mark.remote.attempt for each in log.sealed]
        assert rows == setting.manifest.read()
        assert [] == scrub(setting.manifest, deep=True)
        setting.store.check()
        assert [*self.ALIVE] == setting.fresh().left_after()
        setting.reopened()
        assert [*self.ALIVE] == setting.left_after()

    def test_what_is_being_uploaded_is_left_alone(self) -> None:
        setting = self.setting(offloaded=False)
        assert 0 == setting.store.clean("mail")
        assert 4 == setting.offload().uploaded
        assert 0 < setting.store.clean("mail")

    def test_a_fresh_machine_before_it_is_replaced(self) -> None:
        """It has what is listed, in the order that it had here, also where it was told of the log since."""
        setting = self.cleaned()
        assert [*self.ALIVE] == self.alive(setting)
        assert 8 == setting.partition.log.checkpoints.current.removed_records
        Offloader(setting.partition.log, setting.manifest)._tell(frozenset())
        assert [*self.ALIVE] == setting.fresh().left_after()
        assert 4 == len(setting.manifest.listed())
        told = setting.manifest.content().log
        assert told is not None
        assert (0, 8) == (told.removed_records, told.log_start.delivery_offset)
        remove(setting.manifest, setting.manifest.listed()[1])
        with pytest.raises(CorruptRemote, match="3 records below offset 12 are in no listed segment"):
            setting.fresh()

    @pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.BEFORE, Fault.AFTER, Fault.TWICE])
    def test_a_fault_at_each_request(self, fault: Fault) -> None:
        for call in campaigns.share(range(1, 60), 12):
            setting = self.cleaned()
            remote = FaultyRemoteStore(setting.storage, fault_at(call, fault))
            setting.reopened(remote)
            with contextlib.suppress(RemoteError, Crashed):
                setting.store.offload()
            clock = ManualClock(setting.clock.now_ms())
            fresh = SmallStore(setting.storage.copy(), clock=clock, settings=setting.settings)
            fresh.open()
            fresh.store.check()
            assert [*self.ALIVE] == fresh.left_after()[-4:], call
            setting.reopened()
            with patch.object(offload, "LEFTOVER_MS", -1):
                for _ in range(2):
                    setting.offload()
            assert setting.manifest.read() == setting.manifest.listed()
            assert 4 == sum(row.kept for row in setting.manifest.read())
            assert [] == scrub(setting.manifest, deep=True)
            assert () == setting.partition.log.checkpoints.current.replaced
            setting.store.check()
            assert [*self.ALIVE] == setting.left_after()
            if remote.calls < call:
                break
        assert remote.calls > 10

    def test_what_is_cancelled_stays_whole(self) -> None:
        """The machine may be lost with the segment that says so."""
        setting = self.setting()
        setting.store.cancel_many("mail", 0, [3, 6])
        setting.store.clean("mail")
        setting.offload()
        assert [*self.ALIVE] == setting.fresh().left_after()
        setting.store.check()
        assert [b"far 0", b"far 3"] == [value for *_, value in setting.left_after()]

    def test_retention_is_first(self) -> None:
        """The rows of what was written anew go by themselves."""
        setting = self.cleaned()
        setting.clock.advance(2 * 10**6)
        setting.segment((b"last", 0))
        assert setting.store.enforce_retention() > 0
        assert 1 == setting.offload().uploaded
        [row] = setting.manifest.listed()
        fresh = setting.fresh()
        fresh.store.check()
        assert [(12, 12, b"last")] == [(each.delivery_offset, each.offset, each.value) for each in fetched(fresh)]
        setting.offload()
        assert (row,) == setting.manifest.read()
        assert () == setting.partition.log.checkpoints.current.replaced
        assert [] == scrub(setting.manifest, deep=True)

    def test_one_between_them_was_removed_by_retention(self) -> None:
        """Its row is listed still, amid what was written anew over it."""
        setting = opened(retention_ms=5)
        for far in (b"far 0", b"gone", b"far 2"):
            setting.segment((far, 10**6 if far != b"gone" else 0), (b"gone", 1))
        setting.offload()
        setting.clock.advance(100)
        assert 0 < setting.store.clean("mail")
        [segment] = setting.partition.log.sealed
        assert (0, 5) == (segment.base_offset, segment.end_offset)
        assert 1 == len(setting.partition.log.checkpoints.current.removals)
        assert 1 == setting.offload().uploaded
        assert [2] == [row.kept for row in setting.manifest.read()]
        assert [(4, 0, b"far 0"), (5, 4, b"far 2")] == setting.fresh().left_after()
        setting.store.check()

    def test_several_that_replace_several(self) -> None:
        """They are listed in one change: no machine sees one without the other."""
        setting = self.setting()
        with patch.object(cleaning_plan, "OUTPUT_BYTES_MAX", 250), patch.object(cleaning, "OUTPUT_BYTES_MAX", 250):
            setting.store.clean("mail")
        count = len(setting.partition.log.sealed)
        assert 1 < count < 4
        seen: list[list[int]] = []
        plan = at_call("put_if", 2, lambda: seen.append([row.kept for row in setting.manifest.listed()]))
        setting.reopened(FaultyRemoteStore(setting.storage, plan))
        assert count == setting.offload().uploaded
        assert [[3] * 4] == seen
        assert 4 == sum(row.kept for row in setting.manifest.listed())
        assert [*self.ALIVE] == setting.fresh().left_after()

    def test_one_that_rots_keeps_what_is_listed(self) -> None:
        """It holds up no other segment."""
        setting = self.cleaned()
        segment = setting.partition.log.sealed[0]
        setting.segment((b"more", 10**6))
        setting.store.close()
        setting.disk = with_file(setting.disk, segment.path, flipped(content(setting.disk, segment.path), 90))
        setting.open()
        with pytest.raises(CorruptFile):
            setting.offload()
        assert [3, 3] == [row.kept for row in setting.manifest.listed()][:2]
        assert setting.partition.log.checkpoints.current.replaced
        fresh = setting.fresh()
        fresh.store.check()
        assert {b"far 0", b"more"} < {value for *_, value in fresh.left_after()}

    def test_cleaned_again_and_again(self) -> None:
        setting = self.setting()
        for number in range(4):
            setting.store.clean("mail")
            setting.offload()
            setting.segment((b"more %d" % number, 10**6), (b"gone", 0))
            setting.offload()
            setting.clock.advance(100)
        setting.store.clean("mail")
        for _ in range(2):
            setting.offload()
        setting.store.check()
        assert [] == scrub(setting.manifest, deep=True)
        fresh = setting.fresh()
        assert fresh.partition.log.checkpoints.current.cleanings > 2
        fresh.store.check()
        ours = setting.left_after()
        assert ours == fresh.left_after()
        assert 8 == len(ours)


def fetched(setting: SmallStore) -> list[Message]:
    partition = setting.partition
    partition.high_watermark()
    return partition.columns(partition.log_start, 10**6, 1 << 20)[0].to_messages()


def test_planted_it_does_not_ask_what_is_listed() -> None:
    """`test_nothing_goes_that_is_not_listed_when_it_goes` sees it."""

    def everything(log: PartitionLog, ask: object) -> int:
        return ENFORCE(log, lambda: {segment.mark.remote.attempt for segment in log.sealed if segment.mark.remote})

    with patch.object(PartitionLog, "enforce_local_retention", everything), pytest.raises(AssertionError):
        TestD13().test_nothing_goes_that_is_not_listed_when_it_goes()


ENFORCE = PartitionLog.enforce_local_retention
