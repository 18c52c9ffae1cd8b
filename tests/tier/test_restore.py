from __future__ import annotations

import contextlib
import errno
import struct
from dataclasses import replace
from typing import Any

import pytest

from afterlog import CancelResult, RecordId
from afterlog.base.errors import (
    AfterlogError,
    ClockBehind,
    CorruptFile,
    CorruptRemote,
    OffsetOutOfRange,
    RemoteError,
    RemoteMissing,
    RemoteUnavailable,
)
from afterlog.base.names import CANCEL_INDEX, DELIVER_AFTER_INDEX, LOG, OFFSET_INDEX, TOPICS, segment_file
from afterlog.log.checkpoints import LogStart
from afterlog.log.facts import FileMark
from afterlog.store.store import open_store
from afterlog.tier.log_facts import LogFacts
from afterlog.tier.manifest import encode
from afterlog.tier.remote_segment import RemoteSegment
from afterlog.tier.remove import remove
from afterlog.tier.scrub import scrub
from tests.campaigns.failing_files import FailingFiles, fail_at
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import PATH, drained, flipped, killed, small
from tests.tier.faulty_remote_store import Fault, FaultyRemoteStore, fault_at
from tests.tier.memory_store import Unreachable
from tests.tier.small_store import SmallStore, opened
from tests.tier.support import PARTITION


def offloaded(**settings: Any) -> SmallStore:
    """Three segments, of which all but the last are due; and a record that is nowhere else."""
    setting = opened(**settings)
    setting.segments(2)
    setting.segment((b"later", 1_000), (b"much later", 10**6))
    setting.store.send("mail", b"not sealed")
    setting.clock.advance(10)
    setting.offload()
    return setting


class TestFreshMachine:
    @pytest.mark.parametrize("delayed", [True, False])
    def test_what_was_uploaded_is_there_and_nothing_else(self, delayed: bool) -> None:
        setting = offloaded(delayed=delayed)
        before = [value for value in setting.drained() if value != b"not sealed"]
        new = setting.fresh()
        assert before == new.drained()
        assert (0, 6) == (new.partition.log_start_offset, new.partition.log_end_offset)
        assert setting.store.topic("mail").settings == new.store.topic("mail").settings
        new.store.check()
        assert 6 == new.store.send("mail", b"first").offset
        new.clock.advance(10**6)
        assert {b"later", b"much later", b"first"} <= {*new.drained()}

    def test_it_goes_on_as_any_other(self) -> None:
        setting = offloaded()
        expected = [record.value for record in setting.store.pending("mail")]
        new = setting.fresh()
        assert expected == [b"later", b"much later"] == [record.value for record in new.store.pending("mail")]
        assert new.partition.is_pending(4)
        assert CancelResult.CANCELLED == new.store.cancel(RecordId("mail", 0, 4))
        new.segments(1)
        new.clock.advance(10**6)
        done = new.offload()
        assert (1, 1) == (done.uploaded, done.freed)
        newer = new.fresh()
        assert [b"0", b"0'", b"1", b"1'"] == newer.drained()[:4]
        assert b"later" not in newer.drained()
        newer.store.check()

    def test_delivery_offsets_stay(self) -> None:
        setting = offloaded(retention_ms=500)
        setting.partition.log.roll()
        setting.clock.advance(1_600)
        assert 3 == setting.offload().expired
        old, new = setting.partition, setting.fresh().partition
        assert (5, 4) == (old.log_start, old.log_start_offset) == (new.log_start, new.log_start_offset)
        with pytest.raises(OffsetOutOfRange):
            new.fetch(4)
        assert [5] == old.fetch(5).delivery_offsets.tolist() == new.fetch(5).delivery_offsets.tolist()

    @pytest.mark.parametrize("delayed", [True, False])
    def test_delivery_offsets_stay_where_the_first_pass_was_cut_short(self, delayed: bool) -> None:
        """What is lost lies after what is there: it is not taken for removed before that."""
        for call in range(1, 60, 2):
            setting = opened(delayed=delayed)
            setting.segments(3)
            setting.clock.advance(10)
            setting.store.close()
            setting.open(FaultyRemoteStore(setting.storage, fault_at(call, Fault.AFTER)))
            with contextlib.suppress(RemoteError):
                setting.offload()
            new = setting.fresh()
            assert 0 == new.partition.log_start
            assert len(new.drained()) == new.partition.log_end_offset

    def test_nothing_was_ever_uploaded(self) -> None:
        setting = opened()
        setting.store.send("mail", b"lost")
        new = setting.fresh()
        assert (0, []) == (new.partition.log_end_offset, new.drained())
        assert 0 == new.store.send("mail", b"first").offset

    def test_everything_was_removed(self) -> None:
        setting = offloaded(retention_ms=0)
        setting.partition.log.roll()
        setting.clock.advance(10**7)
        setting.offload()
        new = setting.fresh()
        assert ([], 7, 7) == (new.drained(), new.partition.log_start, new.partition.log_end_offset)
        assert 7 == new.store.send("mail", b"first").offset
        new.store.check()

    def test_nothing_is_delivered_early(self) -> None:
        """Neither by a clock that is behind nor by what the old machine had read."""
        setting = offloaded()
        setting.clock.advance(-500)
        new = setting.fresh()
        assert [b"0", b"0'", b"1", b"1'"] == new.drained()
        assert (2, 4) == (new.partition.pending(), new.partition.high_watermark())
        new.store.send("mail", b"now")
        new.clock.advance(1_520)
        assert [b"0", b"0'", b"1", b"1'", b"now", b"later"] == new.drained()

    def test_its_clock_is_far_behind(self) -> None:
        setting = offloaded()
        setting.clock.advance(-7_200_000)
        new = setting.fresh()
        new.store.send("mail", b"taken")
        with pytest.raises(ClockBehind):
            new.partition.fetch(0)

    def test_the_manifest_was_not_told_of_the_last_segments(self) -> None:
        """Killed behind an upload."""
        setting = offloaded()
        content = setting.manifest.content()
        assert content.log is not None
        told = replace(content.log, end_offset=2, frontier_ms=0, stamp_ms=0)
        for log in (told, None):
            forge(setting, *content.segments, log=log)
            new = setting.fresh()
            assert 6 == new.partition.log_end_offset
            assert [b"0", b"0'", b"1", b"1'"] == new.drained()
            new.store.check()

    def test_a_segment_between_others_is_missing(self) -> None:
        setting = offloaded()
        remove(setting.manifest, setting.manifest.listed()[1])
        with pytest.raises(CorruptRemote, match="2 records below offset 6"):
            setting.fresh()

    def test_what_retention_had_begun_to_remove_is_removed(self) -> None:
        setting = offloaded()
        first, *others = setting.manifest.content().segments
        log = setting.manifest.content().log
        assert log is not None
        start = LogStart(delivery_offset=2, deliver_after=first.max_deliver_after, offset=first.end_offset - 1)
        forge(setting, first, *others, log=replace(log, removed_records=2, log_start=start))
        new = setting.fresh()
        assert (2, [b"1", b"1'"]) == (new.partition.log_start, new.drained())
        assert 1 == new.offload().removed
        assert others == [*setting.manifest.listed()]
        assert [] == scrub(setting.manifest, deep=True)

    def test_what_is_missing_can_be_given_up(self) -> None:
        setting = offloaded()
        remove(setting.manifest, setting.manifest.listed()[1])
        with open_store(
            PATH, small(), setting.clock, SimulatedFiles(), setting.storage, background=False, partial=True
        ) as store:
            partition = store.topic("mail").partition(0)
            assert (6, 2) == (partition.log_end_offset, partition.log.checkpoints.current.removed_records)
            setting.clock.advance(2_000)
            assert [b"0", b"0'", b"later"] == drained(partition)
            assert 6 == store.send("mail", b"new").offset
            store.check()

    def test_a_fifo_topic_twice(self) -> None:
        """What the first machine lost is no reason for the second one to leave out what is there."""
        setting = offloaded(delayed=False)
        content = setting.manifest.content()
        assert content.log is not None
        forge(setting, *content.segments, log=replace(content.log, end_offset=9))  # sealed, and never uploaded
        new = setting.fresh()
        assert 9 == new.partition.log_end_offset
        new.segments(1)
        new.offload()
        newer = new.fresh()
        assert [b"0", b"0'", b"1", b"1'", b"later", b"much later", b"0", b"0'"] == newer.drained()
        assert 0 == newer.partition.log_start

    def test_a_fifo_topic_that_lost_its_beginning(self) -> None:
        setting = opened(delayed=False, retention_ms=100)
        setting.segments(1)
        setting.clock.advance(200)
        setting.segments(2)
        setting.offload()
        assert 2 == setting.fresh().partition.log_start


class TestFolder:
    def test_a_crash_at_every_call(self) -> None:
        """Of a restore: the next one makes all of it."""
        setting, call = offloaded(), 0
        expected = setting.fresh().drained()
        while True:
            call += 1
            disk = SimulatedFiles()
            breaking = FailingFiles(disk, fail_at(call, errno.EIO, for_ever=True))
            with contextlib.suppress(OSError):
                setting.opened(breaking, setting.storage).close()
            new = SmallStore(setting.storage, killed(disk), setting.clock)
            new.open()
            assert expected == new.drained()
            if breaking.calls < call:
                assert call > 10
                return

    def test_records_that_are_here_alone_are_not_overwritten(self) -> None:
        """The topics document was lost, and the records of the last segment were never uploaded."""
        setting = offloaded()
        setting.store.close()
        setting.disk.unlink(PATH / TOPICS)
        before = setting.disk.image().contents
        with pytest.raises(CorruptFile, match="holds records"):
            setting.open()
        assert before[f"{PATH}/{PARTITION}/{segment_file(6, LOG)}"] in setting.disk.image().contents.values()

    def test_the_storage_is_down(self) -> None:
        setting = SmallStore()
        with pytest.raises(RemoteUnavailable):
            setting.open(Unreachable())


class TestOpenedAgain:
    def test_without_the_storage(self) -> None:
        """What is pending is far away: nothing can be delivered, everything else goes on."""
        setting = offloaded().fresh()
        setting.reopened(Unreachable())
        assert 6 == setting.store.send("mail", b"here").offset
        setting.partition.log.roll()
        setting.partition.log.checkpoint()
        for call in (setting.partition.high_watermark, setting.partition.pending, lambda: setting.partition.fetch(0)):
            with pytest.raises(RemoteUnavailable):
                call()
        setting.store.close()
        setting.open()
        assert [b"0", b"0'", b"1", b"1'", b"here"] == setting.drained()
        assert setting.partition.lateness is not None

    def test_an_object_is_missing(self) -> None:
        """The store opens, and says at which reading what is missing."""
        setting = offloaded(retention_ms=500)
        setting.clock.advance(1_600)
        setting.offload()
        setting.segment((b"a", 0), (b"b", 50), (b"c", 1_000))
        setting.clock.advance(1_100)
        setting.offload()
        for row in setting.manifest.listed():
            setting.storage.delete(setting.manifest.object_key(row, DELIVER_AFTER_INDEX))
        setting.reopened()
        assert 10 == setting.store.send("mail", b"here").offset
        assert (4, 4) == (setting.partition.log_start_offset, setting.partition.log.log_start.delivery_offset - 1)
        with pytest.raises(RemoteMissing):
            setting.drained()


def forge(setting: SmallStore, *rows: RemoteSegment, log: LogFacts | None) -> None:
    """A manifest of these rows, whole, and right by its own checks."""
    setting.storage.objects[setting.manifest.key] = encode(PARTITION, tuple(rows), log)


def use(setting: SmallStore) -> None:
    """All that a fresh machine would do: either right, or a typed error."""
    new = setting.fresh()
    try:
        for call in (
            new.partition.pending, new.partition.next_due, new.drained, new.store.check, new.offload,
            lambda: new.store.send("mail", b"x", delay=5), new.partition.log.roll,
            lambda: new.partition.is_pending(3), lambda: new.partition.fetch(new.partition.log_start),
        ):  # fmt: skip
            with contextlib.suppress(AfterlogError, AssertionError):
                call()
    finally:
        with contextlib.suppress(AfterlogError):
            new.store.close()


def marked(row: RemoteSegment, suffix: str, mark: FileMark) -> RemoteSegment:
    """The row with another mark of one file."""
    body = row.to_json()
    return RemoteSegment.of_json({**body, "files": {**body["files"], suffix: [*mark]}})


class TestHostileManifest:
    @pytest.mark.parametrize("value", [-1, 0, 1, 5, 2**31, 2**62, 2**63 - 1])
    @pytest.mark.parametrize("name", ["base_offset", "end_offset", "max_deliver_after", "max_timestamp", LOG, OFFSET_INDEX, DELIVER_AFTER_INDEX])  # fmt: skip  # noqa: E501
    def test_wild_rows(self, name: str, value: int) -> None:
        setting = offloaded()
        content = setting.manifest.content()
        for number, row in enumerate(content.segments):
            with contextlib.suppress(ValueError):
                wild = replace(row, **{name: value}) if name[0] != "." else marked(
                    row, name, FileMark(value, row.files[name].crc)
                )  # fmt: skip
                rows = [*content.segments[:number], wild, *content.segments[number + 1 :]]
                forge(setting, *rows, log=content.log)
                with contextlib.suppress(AfterlogError):
                    use(setting)

    @pytest.mark.parametrize("value", [-1, 0, 5, 7, 2**40, 2**61, 2**62])
    def test_wild_facts(self, value: int) -> None:
        setting = offloaded()
        content = setting.manifest.content()
        assert content.log is not None
        for change in (
            {"end_offset": value}, {"removed_records": value}, {"frontier_ms": value}, {"stamp_ms": value},
            {"log_start": LogStart(offset=value)}, {"log_start": LogStart(delivery_offset=value)},
            {"log_start": LogStart(deliver_after=value), "frontier_ms": 2**62},
        ):  # fmt: skip
            with contextlib.suppress(ValueError, AfterlogError):
                forge(setting, *content.segments, log=replace(content.log, **change))
                use(setting)

    @pytest.mark.parametrize("data", [b"12345", b"\xff" * 24, struct.pack(">3q", 1, 2, 5), struct.pack(">3q", 9, 1, 5)])
    def test_a_cancel_index_that_is_none(self, data: bytes) -> None:
        setting = offloaded()
        content = setting.manifest.content()
        row = content.segments[0]
        setting.storage.objects[setting.manifest.object_key(row, CANCEL_INDEX)] = data
        forged = marked(row, CANCEL_INDEX, FileMark.of(data))
        forge(setting, forged, *content.segments[1:], log=content.log)
        with pytest.raises(CorruptRemote, match="cancelindex"):
            setting.fresh()

    def test_early_by_a_wrong_row(self) -> None:
        """The row says that all is due, the entries say otherwise: nothing of it is delivered."""
        setting = offloaded()
        content = setting.manifest.content()
        lying = [replace(row, max_deliver_after=0) for row in content.segments]
        forge(setting, *lying, log=content.log)
        new = setting.fresh()
        with pytest.raises(CorruptFile, match="another run"):
            new.drained()

    def test_another_segments_run(self) -> None:
        setting = offloaded()
        first, second = setting.manifest.listed()[:2]
        keys = [setting.manifest.object_key(row, DELIVER_AFTER_INDEX) for row in (first, second)]
        data = setting.storage.objects[keys[1]]
        setting.storage.objects[keys[0]] = data
        forged = marked(first, DELIVER_AFTER_INDEX, second.files[DELIVER_AFTER_INDEX])
        content = setting.manifest.content()
        forge(setting, forged, *content.segments[1:], log=content.log)
        new = setting.fresh()
        with pytest.raises(CorruptFile):
            new.drained()

    @pytest.mark.parametrize("suffix", [LOG, OFFSET_INDEX, DELIVER_AFTER_INDEX])
    def test_what_was_mended_is_read_right_afterwards(self, suffix: str) -> None:
        setting = opened()
        setting.segment(*((b"%03d" % number * 80, number) for number in range(8)))
        setting.clock.advance(10)
        setting.offload()
        expected = [b"%03d" % number * 80 for number in range(8)]
        key = setting.manifest.object_key(setting.manifest.listed()[0], suffix)
        whole = setting.storage.objects[key]
        setting.storage.objects[key] = flipped(whole, 90 if suffix == LOG else 4)
        setting.reopened()
        with pytest.raises((CorruptFile, CorruptRemote)):
            setting.drained()
        setting.storage.objects[key] = whole
        assert expected == setting.drained()

    def test_an_object_that_is_gone_is_told_of(self) -> None:
        setting = offloaded()
        setting.storage.delete(setting.manifest.object_key(setting.manifest.listed()[0], LOG))
        setting.reopened()
        with pytest.raises(RemoteMissing):
            setting.drained()
        assert setting.partition.fetch(2).batches


def test_a_segment_that_was_cleaned_before_its_topic_had_object_storage() -> None:
    """It goes up with its gaps, is read from there, and a fresh machine knows how many records it holds."""
    setting = opened(remote_storage_enable=False, local_retention_ms=None, retention_ms=0)
    for _ in range(2):
        setting.segment(*[(b"due %d" % number, number) for number in range(9)], (b"far", 10**6))
    setting.clock.advance(100)
    assert 0 < setting.store.clean("mail")
    setting.store.alter_topic("mail", remote_storage_enable=True, local_retention_ms=0)
    setting.offload()
    assert 0 == setting.store.clean("mail")
    [mark] = setting.partition.log.checkpoints.current.sealed
    assert (True, 2, (9, 20)) == (mark.remote is not None, mark.records, (mark.base_offset, mark.end_offset))
    setting.settings = {"retention_ms": 0}
    new = setting.fresh()
    assert [9, 19] == [record.offset for record in new.store.pending("mail")]
    new.store.check()
    new.clock.advance(10**6)
    assert [b"far", b"far"] == new.drained()
    for each in (setting, new):
        each.store.close()
