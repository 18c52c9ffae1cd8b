"""A store that is looked at, and mended, without being opened: topics, positions, the lock."""

from __future__ import annotations

from pathlib import Path

import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.errors import ClockBehind, CorruptFile, StoreLocked, UnknownTopic
from afterlog.base.names import position_file, position_files
from afterlog.fetch.group import GroupPosition
from afterlog.fetch.positions import EARLIEST
from afterlog.log.store_frontier import frontier_path, read_frontier
from afterlog.log.topics_document import read_topics
from afterlog.offline.locked_store import OfflineStore
from tests.campaigns.simulated_disk import Image, SimulatedFiles
from tests.offline.broken import (
    DELAYED,
    FIFO,
    LATER_MS,
    RECORDS,
    STORE,
    drained,
    findings,
    flip,
    paths,
    reopened,
    repaired,
    rewrite,
    small_store,
)
from tests.support import killed


def test_needs_the_lock() -> None:
    files = small_store()
    with reopened(files), pytest.raises(StoreLocked):
        OfflineStore(STORE, files, ManualClock(LATER_MS))
    OfflineStore(STORE, files, ManualClock(LATER_MS)).close()


def test_makes_no_store() -> None:
    with pytest.raises(FileNotFoundError):
        OfflineStore(Path("/nowhere"), SimulatedFiles(), ManualClock(LATER_MS))


def test_one_topic() -> None:
    files = small_store()
    flip(files, paths(files, FIFO, ".log")[0], 9)
    with OfflineStore(STORE, files, ManualClock(LATER_MS)) as store:
        assert [] == list(store.verify("mail"))
        assert 1 == len(list(store.verify("ticks")))
        assert store.log_bytes("mail") + store.log_bytes("ticks") == store.log_bytes()
        with pytest.raises(UnknownTopic):
            list(store.verify("post"))


class TestFrontier:
    """That of the store, which a crash leaves."""

    AHEAD_MS = LATER_MS + 2 * 3_600_000

    def crashed(self) -> SimulatedFiles:
        """By a clock that was two hours ahead; one topic had delivered by it, and nothing was stamped by it."""
        files = small_store()
        store = reopened(files, self.AHEAD_MS)
        assert RECORDS == store.topic("mail").partition(0).high_watermark()
        return killed(files)

    def test_is_found_far_ahead_and_put_back_where_asked(self) -> None:
        files = self.crashed()
        [finding] = findings(files)
        assert finding.startswith(str(frontier_path(STORE)))
        with reopened(killed(files)) as store, pytest.raises(ClockBehind):
            store.topic("mail").partition(0).fetch(EARLIEST)
        assert [] == repaired(files)
        [step] = repaired(files, put_clock_back=True)
        assert "7201000 ms ahead of the wall clock, is put back to it. Given up: promise D2" in step
        assert [] == findings(files)
        assert RECORDS == len(drained(files, "mail", "new"))
        assert not files.exists(frontier_path(STORE))

    def test_is_made_anew_where_it_cannot_be_read(self) -> None:
        files = self.crashed()
        flip(files, frontier_path(STORE), 50)
        with pytest.raises(CorruptFile):
            reopened(files)
        [finding] = findings(files)
        assert finding.startswith(str(frontier_path(STORE)))
        [step] = repaired(files)
        assert "becomes the wall clock. Given up: promise D2" in step
        assert [] == findings(files)
        assert RECORDS == len(drained(files, "mail", "new"))

    def test_is_left_alone(self) -> None:
        files = small_store(closed=False)
        before = read_frontier(files, STORE)
        assert 0 < before.lease_ms
        repaired(files, put_clock_back=True)
        assert before == read_frontier(files, STORE)


def test_verify_changes_nothing() -> None:
    files = small_store(closed=False)
    flip(files, paths(files, DELAYED, ".log")[0], 9)
    before = len(files.operations)
    assert findings(files)
    assert before == len(files.operations)


class TestTopics:
    @pytest.mark.parametrize("gone", [True, False])
    def test_are_made_anew_from_the_folders(self, gone: bool) -> None:
        files = small_store()
        before = read_topics(files, STORE)
        if gone:
            files.unlink(STORE / "topics")
        else:
            flip(files, STORE / "topics", 50)
        assert [str(STORE / "topics")] == [finding.partition(":")[0] for finding in findings(files)]
        [step] = repaired(files)
        assert "Given up: max_delay_ms and retention settings" in step
        assert [] == findings(files)
        assert before == read_topics(files, STORE)
        assert RECORDS == len(drained(files, "mail", "new"))

    def test_one_that_cannot_be_read_costs_the_settings_of_no_other(self) -> None:
        files = small_store()
        with reopened(files) as store:
            store.create_topic("other", retention_ms=7)
            store.create_topic("empty", max_delay_ms=7)
        before = read_topics(files, STORE)
        for name in (FIFO.name, "empty-0"):
            flip(files, STORE / "later-topics" / name, 50)
        [finding] = findings(files)
        assert finding.startswith(str(STORE / "later-topics"))
        [step] = repaired(files)
        assert ("ticks (1 partition, FIFO)" in step, "mail" in step, "other" in step) == (True, False, False)
        assert [] == findings(files)
        del before["empty"]  # it held no records: nothing tells that it was there
        assert before == read_topics(files, STORE)

    def test_of_a_new_store(self) -> None:
        files = SimulatedFiles()
        reopened(files).close()
        assert [] == findings(files)
        assert [] == repaired(files)

    def test_a_partition_that_is_gone(self) -> None:
        files = small_store()
        whole = files.image()
        gone = Image(
            [folder for folder in whole.folders if not folder.startswith(str(FIFO))],
            {path: data for path, data in whole.contents.items() if not path.startswith(str(FIFO))},
        )
        files = SimulatedFiles(gone)
        assert [f"{FIFO}: the partition is gone"] == findings(files)
        with OfflineStore(STORE, files, ManualClock(LATER_MS)) as store:
            [error] = store.plan().beyond_repair
        assert FIFO == error.path


class TestPositions:
    PATH = position_file(DELAYED, "reader")

    COPY = position_files(DELAYED, "reader")[1]

    def test_rot_of_one_file(self) -> None:
        files = small_store()
        expected = GroupPosition(files, DELAYED, "reader").committed
        assert expected is not None
        flip(files, self.PATH, -3)
        assert [f"{self.PATH}: not an intact afterlog-position document of version 1"] == findings(files)
        copy = SimulatedFiles(files.image())
        [step] = repaired(copy)
        assert f"written anew, delivery offset {expected}" in step
        assert [] == findings(copy)
        assert expected == GroupPosition(files, DELAYED, "reader").committed
        assert RECORDS - expected == len(drained(files, "mail", "reader"))
        GroupPosition(files, DELAYED, "reader").commit(RECORDS)
        assert [] == findings(files)
        flip(files, self.COPY, -3)
        assert [f"{self.COPY}: not an intact afterlog-position document of version 1"] == findings(files)

    def test_rot_of_both(self) -> None:
        files = small_store()
        for path in (self.PATH, self.COPY):
            flip(files, path, -3)
        assert [f"{self.PATH}: an unreadable position"] == findings(files)
        [step] = repaired(files)
        assert "put aside as position.corrupt" in step
        assert [] == findings(files)
        assert RECORDS == len(drained(files, "mail", "reader"))

    def test_beyond_the_end(self) -> None:
        files = small_store()
        GroupPosition(files, DELAYED, "reader").commit(RECORDS + 1)
        assert [f"{self.PATH}: a position beyond the log end, {RECORDS}"] == findings(files)
        assert [f"{self.PATH}: outside the log: set to delivery offset {RECORDS}"] == repaired(files)
        assert [] == drained(files, "mail", "reader")

    def test_below_the_start_after_a_loss(self) -> None:
        """Retention's work stays as it is: the group is told. A loss moves the start, and with it the group."""
        files = small_store()
        GroupPosition(files, DELAYED, "reader").commit(0)
        rewrite(files, paths(files, DELAYED, ".log")[0], lambda data: b"")
        steps = repaired(files)
        assert any("outside the log: set to delivery offset" in step for step in steps)
        assert len(drained(files, "mail", "new")) == len(drained(files, "mail", "reader")) > 0
