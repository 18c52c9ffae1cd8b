from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.config import ALWAYS, Durability
from afterlog.base.errors import PartitionPoisoned, StorageFull
from afterlog.base.files import read_file
from afterlog.base.names import CANCEL_INDEX, CHECKPOINTS, LOG, segment_file
from afterlog.index.cancel_index import Cancelled
from afterlog.index.entries import Entries, Key
from afterlog.log.cancel_result import CancelResult
from afterlog.log.cancellation import Cancellations
from afterlog.log.checkpoints import BEFORE_ALL
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.index.support import int64
from tests.support import NOW_MS, PATH, Background, Calls, HeldFiles, drained, killed, open_small, with_file

FOLDER = PATH / "t-0"
CANCELLED, ALREADY_DELIVERED, ALREADY_CANCELLED, UNKNOWN = CancelResult


class Setting:
    def __init__(self, **settings: object) -> None:
        self.calls = Calls()
        self.disk = SimulatedFiles()
        self.clock = ManualClock(NOW_MS)
        self.files = HeldFiles(self.disk, self.calls)
        self.store = open_small(self.files, self.clock, **settings)
        self.partition = self.store.create_topic("t", retention_ms=50).partition(0)

    def send(self, *after_ms: int) -> None:
        for after in after_ms:
            self.store.send("t", b"%d" % after, deliver_after=NOW_MS + after)

    def cancel(self, *offsets: int) -> list[CancelResult]:
        answers = self.cancel_unchecked(*offsets)
        self.store.check()
        return answers

    def cancel_unchecked(self, *offsets: int) -> list[CancelResult]:
        return [CancelResult(answer) for answer in self.store.cancel_many("t", 0, offsets).tolist()]

    def reopened(self, disk: SimulatedFiles | None = None) -> Setting:
        again = object.__new__(Setting)
        again.disk, again.clock, again.calls = disk or killed(self.disk), self.clock, Calls()
        again.files = HeldFiles(again.disk, again.calls)
        again.store = open_small(again.files, again.clock)
        again.partition = again.store.topic("t").partition(0)
        again.store.check()
        return again


@pytest.fixture
def setting() -> Iterator[Setting]:
    setting = Setting()
    yield setting
    setting.store.close()


# --- What is known of them


def rows(*each: tuple[int, int, int]) -> Cancelled:
    return Cancelled(*(int64(*column) for column in zip(*each, strict=True)))


def test_hidden_is_what_belongs_to_the_visible_end() -> None:
    before = Cancellations.of(rows((3, 0, 90)), BEFORE_ALL)
    written = before.wrote(rows((7, 5, 80), (7, 6, 95))).wrote(rows((8, 4, 85)))
    assert before.hidden is written.hidden is written.landed(7).hidden
    assert [0, 3] == before.hidden.offsets().tolist()
    assert [0, 3, 5, 6, 7] == written.landed(8).hidden.offsets().tolist()
    landed = written.landed(9)
    assert [0, 3, 4, 5, 6, 7, 8] == landed.hidden.offsets().tolist()
    assert landed.hidden.offsets().tolist() == written.landed(8).landed(9).hidden.offsets().tolist()
    assert 6 == landed.hidden.rank(Key(95, 6))  # and the control after its last target
    for each in (before, written, written.landed(8), landed):
        each.check(BEFORE_ALL)
    behind = landed.behind(Key(85, 8))
    assert [0, 3, 6, 7] == behind.hidden.offsets().tolist()
    behind.check(Key(85, 8))
    opened = Cancellations.of(rows((3, 0, 90), (7, 5, 80), (7, 6, 95)), Key(85, 8))
    assert [0, 3, 6, 7] == opened.hidden.offsets().tolist()


def test_answers_that_need_no_stamp() -> None:
    cancellations = Cancellations.of(rows((3, 0, 90)), BEFORE_ALL)
    cancellations = cancellations.wrote(rows((7, 5, 80)))  # not landed, and yet known
    offsets = int64(0, 3, 5, 7, 1, 2, 99, 4)
    dues = int64(90, 90, 80, 80, 50, 51, 0, 10)
    found = Entries(dues, offsets, int64(*[0] * 8), int64(1, 1, 1, 1, 1, 1, 0, 1))
    expected = [ALREADY_CANCELLED, UNKNOWN, ALREADY_CANCELLED, UNKNOWN, ALREADY_DELIVERED, CANCELLED, UNKNOWN, UNKNOWN]
    assert expected == cancellations.answers(found, offsets, Key(10, 4), now_ms=50).tolist()


# --- Cancelling


def test_every_answer(setting: Setting) -> None:
    setting.send(0, 10, 20, 30)
    setting.clock.advance(10)
    assert [ALREADY_DELIVERED, ALREADY_DELIVERED, CANCELLED, UNKNOWN, UNKNOWN] == setting.cancel(0, 1, 2, 4, -1)
    assert [ALREADY_CANCELLED, UNKNOWN] == setting.cancel(2, 4)  # 4 is the control record now
    assert [CANCELLED, ALREADY_CANCELLED] == setting.cancel(3, 3)
    setting.clock.advance(100)
    assert [ALREADY_CANCELLED, ALREADY_DELIVERED] == setting.cancel(3, 0)
    assert [b"0", b"10"] == drained(setting.partition)
    assert [] == setting.cancel()
    assert [[UNKNOWN], [UNKNOWN]] == [setting.cancel(-1), setting.cancel(2**63 - 1)]


@pytest.mark.parametrize(("stamp", "answer"), [(9, CANCELLED), (10, ALREADY_DELIVERED), (11, ALREADY_DELIVERED)])
def test_the_stamp_decides(setting: Setting, stamp: int, answer: CancelResult) -> None:
    """Also where the clock goes on between the first look and the stamp."""
    setting.send(10)
    end = setting.partition.log_end_offset
    log = setting.partition.log
    log.context = replace(log.context, now_ms=lambda: NOW_MS)
    setting.clock.advance(stamp)
    assert [answer] == [CancelResult(code) for code in log.cancel(np.array([0])).tolist()]
    assert end + (answer is CANCELLED) == setting.partition.log_end_offset
    assert not log._clock._in_flight


def test_no_fetch_decides_above_the_stamp_while_the_control_batch_is_in_flight() -> None:
    setting = Setting(durability=ALWAYS)
    setting.send(10, 30)
    gate = setting.files.hold("sync", LOG)
    cancelling = Background(lambda: setting.cancel_unchecked(0))
    gate.came()
    setting.clock.advance(20)
    assert ([], NOW_MS) == (setting.partition.fetch(0).batches, setting.partition.fetch(0).clock_ms)
    assert (2, 10) == (setting.partition.pending(), (setting.partition.next_due() or 0) - NOW_MS)
    gate.open()
    assert [CANCELLED] == cancelling.answer()
    assert [] == setting.partition.fetch(0).batches
    assert (1, 30) == (setting.partition.pending(), (setting.partition.next_due() or 0) - NOW_MS)
    setting.store.close()


def test_a_failed_write_leaves_nothing(setting: Setting) -> None:
    setting.send(10, 20)
    before = setting.partition.log.version.written
    setting.calls.fail("append", LOG, StorageFull("no room", path=PATH))
    with pytest.raises(StorageFull):
        setting.cancel(0)
    setting.store.check()
    assert before == setting.partition.log.version.written
    assert 2 == setting.partition.pending()
    assert [CANCELLED] == setting.cancel(0)


def test_a_failed_sync_poisons_and_hides_nothing() -> None:
    setting = Setting(durability=ALWAYS)
    setting.send(10, 20)
    setting.calls.fail("sync", LOG, OSError(errno.EIO, "rot"))
    for _ in range(2):
        with pytest.raises(PartitionPoisoned):
            setting.cancel_unchecked(0)
    assert 2 == setting.partition.pending()
    setting.store.close()


def test_what_is_not_visible_yet_can_be_cancelled() -> None:
    setting = Setting(durability=Durability.interval(3_600_000))
    setting.send(10, 20)
    assert [CANCELLED] == setting.cancel(1)
    assert [ALREADY_CANCELLED] == setting.cancel(1)
    assert (0, 0) == (setting.partition.pending(), setting.partition.log_end_offset)
    setting.store.sync()
    assert (1, 3) == (setting.partition.pending(), setting.partition.log_end_offset)
    setting.store.close()


def test_many_at_once_take_several_control_batches_and_segments(setting: Setting) -> None:
    count = 1_000
    setting.store.send_many("t", [b""] * count, deliver_after=np.full(count, NOW_MS + 10))
    answers = setting.store.cancel_many("t", 0, np.arange(0, count, 2))
    assert [CANCELLED] * 500 == answers.tolist()
    segments = setting.partition.log.version.segments
    setting.store.check()
    assert setting.partition.log_end_offset > count + 4
    assert sum(bool(segment.mark.cancel_index[0]) for segment in segments) > 1
    assert 500 == setting.partition.pending()
    setting.clock.advance(10)
    assert 500 == len(drained(setting.partition))
    assert 500 == len(drained(setting.reopened().partition))


# --- On disk


def test_the_cancel_index_is_saved_with_the_checkpoint(setting: Setting) -> None:
    path = FOLDER / segment_file(0, CANCEL_INDEX)
    setting.send(10, 20, 30)
    setting.partition.log.checkpoint()
    assert not setting.disk.exists(path)
    assert b"cancel_index" not in read_file(setting.disk, FOLDER / CHECKPOINTS)
    setting.cancel(1)
    assert not setting.disk.exists(path)
    setting.partition.log.checkpoint()
    assert 24 == len(read_file(setting.disk, path))
    setting.cancel(0)
    setting.partition.log.roll()
    assert 48 == len(read_file(setting.disk, path))
    setting.clock.advance(40)
    assert [b"30"] == drained(setting.partition)


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("content", [None, b"", bytes(48)])
def test_the_cancel_index_is_made_anew_from_the_log(setting: Setting, sealed: bool, content: bytes | None) -> None:
    path = FOLDER / segment_file(0, CANCEL_INDEX)
    setting.send(10, 20, 30)
    setting.cancel(0, 2)
    setting.partition.log.roll() if sealed else setting.partition.log.checkpoint()
    expected = read_file(setting.disk, path)
    setting.clock.advance(40)
    again = setting.reopened(with_file(setting.disk, path, content))
    assert [b"20"] == drained(again.partition)
    assert expected == read_file(again.disk, path)
    again.send(50)
    assert [CANCELLED] == again.cancel(4)
    again.partition.log.checkpoint()
    again.clock.advance(50)
    assert [b"20"] == drained(again.reopened().partition)


def test_an_index_longer_than_the_checkpoints_say(setting: Setting) -> None:
    """What a crash between the two leaves."""
    path = FOLDER / segment_file(0, CANCEL_INDEX)
    setting.send(10, 20, 30)
    setting.cancel(0)
    setting.partition.log.checkpoint()
    again = setting.reopened(with_file(setting.disk, path, read_file(setting.disk, path) + b"torn"))
    assert [CANCELLED] == again.cancel(1)
    again.partition.log.checkpoint()
    assert 48 == len(read_file(again.disk, path))
    again.clock.advance(40)
    assert [b"30"] == drained(again.reopened().partition)


def test_retention_of_the_control_batch_brings_nothing_back(setting: Setting) -> None:
    """Its target stays in a segment that another record keeps, and is out of reach."""
    setting.send(10, 10_000)
    setting.partition.log.roll()
    assert [CANCELLED] == setting.cancel(0)
    setting.clock.advance(100)
    assert [] == drained(setting.partition)
    setting.partition.log.roll()
    assert [0, 3] == [segment.base_offset for segment in setting.partition.log.version.segments]
    setting.store.check()
    edges = NOW_MS + np.array([0, 100, 100_000])
    for each in (setting, setting.reopened()):
        assert 0 == each.partition.log.version.hidden.count
        assert (1, [0, 1]) == (each.partition.pending(), each.partition.due_histogram(edges).tolist())
        assert [UNKNOWN, CANCELLED] == each.cancel(0, 1)
        assert [] == drained(each.partition)


def test_the_index_goes_with_its_segment(setting: Setting) -> None:
    setting.send(10, 20)
    setting.cancel(0)
    setting.partition.log.roll()
    setting.clock.advance(100)
    assert [b"20"] == drained(setting.partition)
    assert 1 == setting.store.enforce_retention()
    assert not setting.disk.exists(FOLDER / segment_file(0, CANCEL_INDEX))
    assert [UNKNOWN, UNKNOWN] == setting.cancel(0, 1)
    assert (0, 0) == (
        setting.partition.log.version.cancellations.targets.count,
        setting.partition.log.version.hidden.count,
    )


def test_retention_before_any_reader_asked_what_is_hidden() -> None:
    clock = ManualClock(NOW_MS)
    store = open_small(SimulatedFiles(), clock)
    partition = store.create_topic("t", retention_ms=0).partition(0)
    store.send("t", b"soon", deliver_after=NOW_MS + 3)
    assert [CancelResult.CANCELLED] == partition.cancel(np.array([0])).tolist()
    partition.log.roll()
    clock.advance(50)
    assert 1 == partition.log.enforce_retention()
    assert [0, 0] == partition.due_histogram(np.array([0, NOW_MS, NOW_MS + 100])).tolist()
    assert (2, 2, 0) == (partition.log_start, partition.high_watermark(), partition.pending())
    store.check()
