"""Cleaning: what is still to come stays, byte for byte, in its order and at its delivery offsets; the rest goes."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.errors import OffsetOutOfRange, StorageFull, StoreClosed
from afterlog.base.names import BUCKETS, CHECKPOINTS, DELIVER_AFTER_INDEX, LOG
from afterlog.fetch.partition import Partition
from afterlog.fetch.record_id import RecordId
from afterlog.index.entries import Key
from afterlog.log.cancel_result import CancelResult
from afterlog.log.cleaning import Cleaned
from afterlog.log.lookup import find_entries
from afterlog.log.partition_log import PartitionLog
from afterlog.log.segment import ActiveSegment
from afterlog.offline.locked_store import OfflineStore
from afterlog.store.store import Store
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
    open_small,
    with_file,
)

FOLDER = PATH / "t-0"
FAR_MS = 10**9


class Setting:
    """A topic of which segments are rolled by hand, and what was sent to it."""

    def __init__(self, **topic: Any) -> None:
        self.calls = Calls()
        self.disk = SimulatedFiles()
        self.files = HeldFiles(self.disk, self.calls)
        self.clock = ManualClock(NOW_MS)
        self.sent: dict[int, tuple[bytes, int]] = {}
        """Value and due time by offset."""
        self.store: Store = open_small(self.files, self.clock, segment_bytes=1 << 20)
        self.partition: Partition = self.store.create_topic("t", **(topic or {"retention_ms": 10})).partition(0)

    @property
    def log(self) -> PartitionLog:
        return self.partition.log

    def segment(self, *delays_ms: int, roll: bool = True) -> None:
        """A sealed segment with a record for each delay."""
        for delay_ms in delays_ms:
            due_ms = self.clock.now_ms() + delay_ms
            value = b"%d" % (delay_ms % 7) * 40
            self.sent[self.store.send("t", value, deliver_after=due_ms).offset] = value, due_ms
        if roll:
            self.log.roll()

    def clean(self, after_ms: int = 0, *, thorough: bool = False, checked: bool = True) -> Cleaned:
        """What a pass does."""
        self.clock.advance(after_ms)
        self.partition.high_watermark()
        self.log.weigh()
        self.log.enforce_retention()
        self.log.begin_cleaning(thorough=thorough)
        done = self.log.clean(thorough=thorough)
        if checked:
            self.check()
        return done

    def check(self) -> None:
        """All that lies after the log start is there, is delivered in its order; and so it is behind a kill."""
        self.store.check()
        assert self.files_in_use() == self.logs()
        start = self.log.log_start
        order = sorted(self.sent, key=lambda offset: (self.sent[offset][1], offset))
        expected = [(rank, offset, *self.sent[offset]) for rank, offset in enumerate(order)][start.delivery_offset :]
        assert expected == self.delivered(self.store)
        with open_small(killed(self.disk), ManualClock(self.clock.now_ms()), segment_bytes=1 << 20) as again:
            again.check()
            assert self.shape() == shape(again.topic("t").log(0))
            assert expected == self.delivered(again)

    def delivered(self, store: Store) -> list[tuple[int, int, bytes, int]]:
        partition = store.topic("t").partition(0)
        due, position = [], partition.log_start
        while len(columns := partition.columns(position, 1_000, 1 << 20)[0]):
            due += columns.to_messages()
            position = due[-1].delivery_offset + 1
        pending = partition.scheduled(1_000).to_messages()
        return [
            (rank, each.offset, each.value or b"", each.due)
            for rank, each in enumerate([*due, *pending], partition.log_start)
        ]

    def logs(self) -> list[str]:
        return sorted(name for name in self.disk.names(FOLDER) if name.endswith(LOG))

    def files_in_use(self) -> list[str]:
        return [segment.path.name for segment in self.log.version.segments]

    def shape(self) -> list[tuple[int, int, int]]:
        return shape(self.log)

    def stored(self) -> list[str]:
        return [name for name in self.disk.names(FOLDER) if name.endswith(DELIVER_AFTER_INDEX)] + [
            f"{BUCKETS}/{name}" for name in self.disk.names(FOLDER / BUCKETS)
        ]


def shape(log: PartitionLog) -> list[tuple[int, int, int]]:
    """Base, end and records of each sealed segment."""
    return [(mark.base_offset, mark.end_offset, mark.records) for mark in log.checkpoints.current.sealed]


@pytest.fixture
def setting() -> Iterator[Setting]:
    made = Setting()
    yield made
    made.store.close()


@pytest.fixture
def anew(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing is made anew from the log."""
    caplog.set_level(logging.WARNING)
    yield
    assert "made anew" not in caplog.text


@pytest.mark.usefixtures("anew")
class TestWhatStays:
    def test_a_far_record_holds_itself_alone(self, setting: Setting) -> None:
        setting.segment(1, 2, FAR_MS, 3, FAR_MS, 4)
        before = setting.log.version.sealed[0].size
        done = setting.clean(100)
        assert (1, before) == (done.segments, done.written_bytes + done.freed_bytes)
        assert [(2, 5, 2)] == setting.shape()
        assert ["00000000000000000002.1.log"] == setting.files_in_use()[:1]
        assert (4, 2) == (setting.partition.log_start, setting.log.log_start_offset)

    def test_neighbours_become_one(self, setting: Setting) -> None:
        for _ in range(4):
            setting.segment(1, FAR_MS, 2, 3)
        assert 4 == setting.clean(100, thorough=True).segments
        assert [(1, 14, 4)] == setting.shape()
        assert ["00000000000000000001.1.deliverafterindex"] == setting.stored()

    def test_again_and_again(self, setting: Setting) -> None:
        """A record that is left keeps its bytes and its place through every generation."""
        for number in range(12):
            setting.segment(1, 3_000, FAR_MS + number, 40, 41)
            setting.clean(500, thorough=number % 4 == 3)
        assert 4 > len(setting.shape())
        assert setting.log.checkpoints.current.cleanings > 2
        setting.clean(FAR_MS + 100_000)
        assert [] == setting.shape()

    def test_names_differ_where_the_first_record_stays(self, setting: Setting) -> None:
        """Who has the file of before open and not mapped finds it."""
        setting.segment(FAR_MS, 1, 2, 3)
        pinned = setting.log.pin()
        assert 1 == setting.clean(100, checked=False).segments
        assert ["00000000000000000000.1.log", "00000000000000000000.log"] == setting.logs()[:2]
        assert [0, 1, 2, 3] == find_entries(pinned.all_written(), np.arange(4)).offset.tolist()
        del pinned
        setting.log.enforce_retention()
        assert ["00000000000000000000.1.log"] == setting.logs()[:1]
        setting.check()

    def test_what_readers_hold_stays(self) -> None:
        setting = Setting(retention_by_subscriptions=True)
        setting.segment(1, 2, FAR_MS, 3, 4)
        with setting.store.subscribe("t", "slow") as slow, setting.store.subscribe("t", "quick") as quick:
            setting.clock.advance(100)
            quick.ack_many(quick.receive(9))
            assert 0 == setting.store.enforce_retention()
            assert [(0, 5, 5)] == setting.shape()
            slow.ack_many(slow.receive(3))
            setting.clock.advance(1)
            setting.store.enforce_retention()
            setting.check()
            assert [(2, 5, 2)] == setting.shape()
            slow.ack_many(slow.receive(9))
            setting.store.enforce_retention()
            assert [(2, 5, 2)] == setting.shape(), "no more is held than twice what is alive"
        setting.check()
        setting.store.close()

    def test_by_bytes(self) -> None:
        setting = Setting(retention_bytes=1_000)
        setting.segment(*range(20), *[FAR_MS] * 2)
        setting.log.weigh()
        assert 1 == setting.clean(1_000).segments
        assert 1_000 <= setting.log.version.sealed[0].size < 1_400
        assert 0 < setting.partition.log_start < 20
        setting.store.close()

    def test_a_purge_is_enough(self) -> None:
        setting = Setting(segment_ms=10**9)
        setting.segment(1, 2, FAR_MS, 3)
        setting.clock.advance(100)
        assert Cleaned() == setting.clean(thorough=True)
        setting.store.purge("t")
        assert 1 == setting.clean(thorough=True).segments
        assert [(2, 3, 1)] == setting.shape()
        setting.store.close()

    def test_what_comes_at_the_very_instant(self) -> None:
        """It is due at the instant up to which all is out of reach, and was not there then."""
        setting = Setting(retention_ms=0)
        setting.segment(1, 2, FAR_MS, 3)
        assert 1 == setting.clean(100, thorough=True).segments
        assert setting.clock.now_ms() == setting.log.log_start.deliver_after
        setting.segment(0, roll=False)
        assert setting.log.log_start.deliver_after == setting.sent[4][1]
        setting.check()
        assert 1 == setting.partition.high_watermark() - setting.partition.log_start
        setting.store.close()

    def test_a_part_of_an_instant(self, setting: Setting) -> None:
        """A log start within it counts none of it as dead, and takes what lies before it all the same."""
        setting.segment(1, 1, 1, 1, 5, 5, 5, FAR_MS)
        setting.clock.advance(9)
        with setting.log._append_lock, setting.log._writing():
            setting.log._maintenance.move_log_start(Key(NOW_MS + 5, 5))
        setting.partition.high_watermark()
        setting.log.weigh()
        assert 1 == setting.log.clean(thorough=True).segments
        assert [(6, 8, 2)] == setting.shape()
        setting.check()

    def test_cancels_go_with_their_targets(self, setting: Setting) -> None:
        setting.segment(1, 500, FAR_MS, FAR_MS + 1, 2, 3, 4, 5, roll=False)
        for offset in (1, 3):
            assert CancelResult.CANCELLED == setting.store.cancel(RecordId("t", 0, offset))
        setting.log.roll()
        hidden = {*setting.log.version.hidden.offsets().tolist()}
        assert 1 == setting.clean(100, thorough=True, checked=False).segments
        assert hidden == {*setting.log.version.hidden.offsets().tolist()}
        for store in (setting.store, open_small(killed(setting.disk), setting.clock, segment_bytes=1 << 20)):
            store.check()
            assert [2] == [each.offset for each in store.pending("t")]
        setting.clean(1_000, thorough=True, checked=False)
        assert [2, 3, 9] == sorted(setting.log.index.runs[0].entries().offset.tolist())

    def test_what_was_cancelled_is_blank(self) -> None:
        """Its bytes go, without any retention; its offset, its rank and that it was cancelled stay."""
        setting = Setting(segment_ms=10**9)
        for number in range(40):
            setting.store.send("t", b"secret %02d" % number * 40, delay=3_600 + number)
        setting.store.cancel_many("t", 0, np.arange(30))
        setting.log.roll()
        setting.segment(FAR_MS)
        before = sum(segment.size for segment in setting.log.version.sealed)
        setting.log.weigh()
        assert 1 == setting.log.clean().segments
        assert before / 2 > sum(segment.size for segment in setting.log.version.sealed)
        assert 2 == setting.log.clean(thorough=True).segments
        for _ in range(2):
            setting.log.weigh()
            assert Cleaned() == setting.log.clean(thorough=True)
        later = ManualClock(setting.clock.now_ms())
        for store in (setting.store, open_small(killed(setting.disk), later, segment_bytes=1 << 20)):
            store.check()
            log = store.topic("t").log(0)
            [(_, mapped)] = log.version.sealed[0].view(0, 0)
            data = mapped.tobytes()
            assert [b"secret %02d" % number in data for number in range(40)] == [False] * 30 + [True] * 10
            assert [*range(30, 40), 41] == [each.offset for each in store.pending("t")]
            assert {CancelResult.ALREADY_CANCELLED} == {*store.cancel_many("t", 0, np.arange(30)).tolist()}
            store.clock.set(NOW_MS + 4_000_000)  # type: ignore[attr-defined]
            found = drained(store.topic("t").partition(0))
            assert [b"secret %02d" % number * 40 for number in range(30, 40)] == found
            assert 42 == store.topic("t").partition(0).high_watermark() + 1
            store.close()

    def test_a_cancel_that_is_not_durable_takes_nothing(self) -> None:
        """A power cut may take it back: then the record is delivered as it was."""
        setting = Setting(retention_ms=10**9)
        for _ in range(9):
            setting.segment(60_000, roll=False)
        setting.log.roll()
        setting.store.sync()
        setting.store.cancel_many("t", 0, np.arange(9))
        synced = list[int]()
        with patch.object(ActiveSegment, "sync", lambda active: synced.append(active.size)):
            setting.log.weigh()
            setting.log.clean(thorough=True)
        assert [setting.log.version.active.size] == synced
        setting.store.close()

    def test_a_reschedule_parts_from_its_follower(self, setting: Setting) -> None:
        setting.segment(500, FAR_MS, 1, 2, 3, 4, roll=False)
        setting.store.reschedule(RecordId("t", 0, 0), delay=0.005)
        setting.log.roll()
        assert 1 == setting.clean(100, thorough=True, checked=False).segments
        for store in (setting.store, open_small(killed(setting.disk), setting.clock, segment_bytes=1 << 20)):
            store.check()
            assert [1] == [each.offset for each in store.pending("t")]

    def test_positions_before_the_log_start_are_gone(self, setting: Setting) -> None:
        setting.segment(1, 2, FAR_MS, 3)
        setting.clean(100)
        with pytest.raises(OffsetOutOfRange):
            setting.partition.fetch(1)


@pytest.mark.usefixtures("anew")
class TestRuns:
    def test_a_bucket_over_a_segment_that_goes(self, setting: Setting) -> None:
        """Its other segments have runs of their own again, neighbours together; later it is merged anew."""
        setting.segment(FAR_MS, FAR_MS)
        setting.segment(FAR_MS, FAR_MS)
        setting.segment(*[1] * 9, FAR_MS)
        setting.segment(FAR_MS, FAR_MS)
        setting.log._maintenance._buckets.max_num_buckets = 1
        setting.log.merge_buckets()
        assert 1 == len(setting.stored())
        setting.log._maintenance._buckets.max_num_buckets = 9
        assert 1 == setting.clean(100).segments
        assert [
            f"00000000000000000013.1{DELIVER_AFTER_INDEX}",
            f"00000000000000000014{DELIVER_AFTER_INDEX}",
            f"{BUCKETS}/00000000000000000000-00000000000000000004{DELIVER_AFTER_INDEX}",
        ] == setting.stored()
        setting.log._maintenance._buckets.max_num_buckets = 1
        setting.log.merge_buckets()
        assert [f"{BUCKETS}/00000000000000000000-00000000000000000016.1{DELIVER_AFTER_INDEX}"] == setting.stored()
        setting.check()

    def test_two_groups_under_one_bucket(self, setting: Setting) -> None:
        """The first takes the bucket away that the second one was planned with."""
        setting.segment(*[1] * 9, FAR_MS)
        setting.segment(FAR_MS, FAR_MS)
        setting.segment(*[1] * 9, FAR_MS)
        setting.log._maintenance._buckets.max_num_buckets = 1
        setting.log.merge_buckets()
        setting.log._maintenance._buckets.max_num_buckets = 9
        assert 2 == setting.clean(100).segments
        assert [(9, 10, 1), (10, 12, 2), (21, 22, 1)] == setting.shape()

    def test_segments_of_several_runs_wait(self, setting: Setting) -> None:
        object.__setattr__(setting.log.context, "checkpoint_queue", lambda *_: None)
        setting.segment(1, 2, FAR_MS, roll=False)
        setting.log.checkpoint()
        setting.segment(1, 2)
        assert Cleaned() == setting.clean(100)
        setting.log.merge_buckets()
        assert 1 == setting.clean().segments

    def test_a_merge_meanwhile_is_not_waited_for(self, setting: Setting) -> None:
        for _ in range(3):
            setting.segment(1, FAR_MS)
        setting.log._maintenance._buckets.max_num_buckets = 1
        gate = setting.files.hold("sync", DELIVER_AFTER_INDEX + ".tmp")
        merging = Background(setting.log.merge_buckets)
        gate.came()
        setting.clock.advance(100)
        setting.store.enforce_retention()
        gate.open()
        assert merging.answer()
        assert 3 == setting.clean(thorough=True).segments


class TestFaults:
    @pytest.mark.parametrize("operation", ["create", "append", "sync", "rename", "sync_folder"])
    @pytest.mark.parametrize("where", [".1.log", ".1.index", ".1.deliverafterindex"])
    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
    def test_a_cleaning_that_fails_leaves_nothing(
        self, setting: Setting, operation: str, where: str, code: int
    ) -> None:
        setting.segment(1, 2, FAR_MS, 3)
        setting.clock.advance(100)
        setting.partition.high_watermark()
        setting.log.weigh()
        setting.log.begin_cleaning()
        setting.calls.fail(operation, "t-0" if operation == "sync_folder" else f"{where}.tmp", OSError(code, "failed"))
        with pytest.raises((StorageFull, OSError)):
            setting.log.clean()
        setting.calls.failing = lambda *_: None
        assert ["00000000000000000000.log"] == setting.logs()[:1]
        setting.check()
        assert 1 == setting.clean().segments

    def test_a_segment_that_rots_stays_and_is_left_alone(
        self, setting: Setting, caplog: pytest.LogCaptureFixture
    ) -> None:
        setting.segment(1, 2, FAR_MS, 3)
        setting.segment(1, FAR_MS, 2, 3)
        setting.clock.advance(100)
        setting.partition.high_watermark()
        setting.log.weigh()
        setting.log.begin_cleaning()
        path = setting.log.version.sealed[0].path
        setting.store.close()
        rotten = with_file(setting.disk, path, flipped(content(setting.disk, path), 50))
        with open_small(rotten, setting.clock, segment_bytes=1 << 20) as store:
            log = store.topic("t").log(0)
            store.topic("t").partition(0).high_watermark()
            for _ in range(2):
                log.weigh()
                log.begin_cleaning(thorough=True)
                log.clean(thorough=True)
            assert [(0, 4, 4), (5, 6, 1)] == shape(log)
        assert 1 == caplog.text.count("it stays as it is, and is not cleaned")

    def test_while_it_is_closed(self, setting: Setting) -> None:
        setting.segment(1, 2, FAR_MS, 3)
        setting.clock.advance(100)
        setting.partition.high_watermark()
        setting.log.weigh()
        setting.log.begin_cleaning()
        setting.log._closing = True
        with pytest.raises(StoreClosed):
            setting.log.clean()
        setting.log._closing = False
        setting.check()

    def test_what_changed_meanwhile_is_not_undone(self, setting: Setting) -> None:
        """Retention takes a segment while it is written anew: what was written goes."""
        setting.segment(1, 2, 50, 3)
        setting.segment(FAR_MS)
        setting.clock.advance(30)
        setting.partition.high_watermark()
        setting.log.weigh()
        setting.log.begin_cleaning()
        gate = setting.files.hold("sync", ".1.log.tmp")
        cleaned = Background(setting.log.clean)
        gate.came()
        setting.clock.advance(100)
        setting.partition.high_watermark()
        assert 1 == setting.log.enforce_retention()
        gate.open()
        assert Cleaned() == cleaned.answer()
        assert [(4, 5, 1)] == setting.shape()
        setting.check()

    def test_checks_of_a_store_that_was_cleaned(self, setting: Setting) -> None:
        """`verify` finds nothing, and sees what rots; a repair without checkpoints takes what was written last."""
        for _ in range(3):
            setting.segment(1, FAR_MS, 2, FAR_MS)
        setting.clean(100)
        path = setting.log.version.sealed[0].path
        setting.store.close()
        with OfflineStore(PATH, setting.disk, setting.clock) as offline:
            assert [] == [*offline.verify()]
        rotten = with_file(setting.disk, path, flipped(content(setting.disk, path), 50))
        with OfflineStore(PATH, rotten, setting.clock) as offline:
            assert path in [finding.path for finding in offline.verify()]

    def test_repair_without_checkpoints(self, setting: Setting) -> None:
        """What a cleaning wrote counts, where files of before are there still."""
        setting.segment(FAR_MS, 1, 2, FAR_MS)
        setting.segment(1, 2, 3, FAR_MS)
        pinned = setting.log.pin()
        setting.clean(100, thorough=True, checked=False)
        assert {"00000000000000000000.1.log", "00000000000000000000.log"} <= {*setting.logs()}
        lost = with_file(setting.disk, FOLDER / CHECKPOINTS, None)
        del pinned
        with OfflineStore(PATH, lost, setting.clock) as offline:
            offline.apply(offline.plan())
            assert [] == [*offline.verify()]
        with open_small(lost, setting.clock, segment_bytes=1 << 20) as store:
            store.check()
            assert [0, 3, 7] == [each.offset for each in store.pending("t")]


def test_what_is_worn_is_told(setting: Setting) -> None:
    """Of what is held by something pending, what is not: by the weights, so within a tenth, from below."""
    setting.segment(*[1] * 9, FAR_MS)
    size = setting.log.version.sealed[0].size
    assert (size, 0) == ((held := setting.store.held_bytes("t")).pending, held.worn)
    setting.clock.advance(100)
    setting.partition.high_watermark()
    setting.log.weigh()
    held = setting.store.held_bytes("t")
    assert (size, True) == (held.pending + held.worn, size * 0.8 < held.worn <= size * 0.9)
    assert held.worn <= setting.store.clean("t") <= size
    held = setting.store.held_bytes("t")
    assert (setting.log.version.sealed[0].size, 0) == (held.pending, held.worn)
