"""A look into a partition that somebody else has open: what it shows is final, whatever happens afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afterlog.base.clock import ManualClock
from afterlog.base.config import Config
from afterlog.base.errors import CorruptFile
from afterlog.base.files import Files, OsFiles, ReadOnlyFiles
from afterlog.base.names import DELIVER_AFTER_INDEX, LOG, OFFSET_INDEX
from afterlog.fetch.partition import Partition
from afterlog.log import snapshot
from afterlog.log.context import LogContext
from afterlog.log.snapshot import ALL_MS, open_snapshot
from afterlog.log.topic_settings import TopicSettings
from afterlog.store.store import Store, open_store
from tests import campaigns
from tests.campaigns.failing_files import FailingFiles
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, PATH, Calls, drained, open_small, small

Row = tuple[int, int, bytes | None]


@contextmanager
def opened_store(disk: Files, clock: ManualClock, **topic: bool) -> Iterator[tuple[Store, Partition]]:
    with open_small(disk, clock) as store:
        yield store, store.create_topic("t", **topic).partition(0)  # type: ignore[arg-type]


def look(
    files: Files,
    clock: ManualClock,
    *,
    at_ms: int | None = None,
    settle_ms: int | None = 0,
    delayed: bool = True,
    store: Path = PATH,
) -> Partition:
    context = LogContext(
        files=files,
        folder=store / "t-0",
        config=Config(),
        settings=TopicSettings(delayed=delayed),
        clock=clock,
        now_ms=clock.now_ms,
    )
    return Partition("t", 0, open_snapshot(context, at_ms=at_ms, settle_ms=settle_ms))


def rows_of(partition: Partition) -> list[Row]:
    """(delivery offset, offset, value) of all that is due."""
    rows: list[Row] = []
    position = partition.log_start
    while position < partition.high_watermark():
        columns, position = partition.columns(position, 5, 1 << 20)
        rows += [(each.delivery_offset, each.offset, each.value) for each in columns.to_messages()]
    return rows


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 60)),
        st.tuples(st.just("send many"), st.integers(0, 60)),
        st.tuples(st.just("advance"), st.integers(0, 40)),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.sampled_from(["drain", "checkpoint", "roll", "merge", "reopen"]), st.just(0)),
        st.tuples(st.just("look"), st.sampled_from([0, 7, None])),
    ),
    min_size=5,
    max_size=30,
)


def run(steps: list[tuple[str, int | None]]) -> None:
    """Every look shows the beginning of what is delivered in the end."""
    disk, clock = SimulatedFiles(), ManualClock(NOW_MS)
    store = open_small(disk, clock)
    partition = store.create_topic("t").partition(0)
    seen: list[list[Row]] = []
    for step, number in [*steps, ("look", 0)]:
        match step:
            case "send":
                store.send("t", b"%d" % len(seen), deliver_after=clock.now_ms() + (number or 0) - 10)
            case "send many":
                times = [clock.now_ms() + (number or 0) * row % 50 for row in range(7)]
                store.send_many("t", [b"v"] * 7, deliver_after=times)
            case "advance":
                clock.advance(number or 0)
            case "cancel" if number is not None and number < partition.log_end_offset:
                partition.log.cancel(np.arange(number, min(number + 2, partition.log_end_offset)))
            case "drain":
                drained(partition)
            case "checkpoint":
                partition.log.checkpoint()
            case "roll":
                partition.log.roll()
            case "merge":
                partition.log.merge_buckets()
            case "reopen":
                store.close()
                store = open_small(disk, clock)
                partition = store.topic("t").partition(0)
            case "look":
                done = len(disk.operations)
                seen.append(rows_of(look(disk, clock, settle_ms=number)))
                assert done == len(disk.operations)
    clock.advance(1_000)
    final = rows_of(partition)
    store.close()
    for rows in seen:
        assert final[: len(rows)] == rows


@given(STEPS)
@settings(max_examples=campaigns.examples(20))
def test_what_a_look_shows_is_final(steps: list[tuple[str, int | None]]) -> None:
    run(steps)


@pytest.mark.parametrize(
    "steps",
    [
        # Two wait after the recovery point: the first is due before what is in view.
        [("send", 50), ("checkpoint", 0), ("send", 30), ("advance", 45), ("look", 0)],
        [("send", 40), ("checkpoint", 0), ("cancel", 0), ("advance", 45), ("look", 0)],
    ],
)
def test_the_property_sees_what_is_left_out(
    steps: list[tuple[str, int | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(steps)
    monkeypatch.setattr(snapshot, "_earliest_behind", lambda context, known: ALL_MS)
    with pytest.raises(AssertionError):
        run(steps)


def test_only_what_was_checkpointed_is_in_view() -> None:
    disk, clock = SimulatedFiles(), ManualClock(NOW_MS)
    with opened_store(disk, clock) as (store, partition):
        store.send("t", b"a")
        assert [] == rows_of(look(disk, clock))
        partition.log.checkpoint()
        store.send("t", b"b")
        assert [(0, 0, b"a")] == rows_of(look(disk, clock))
    assert [(0, 0, b"a"), (1, 1, b"b")] == rows_of(look(disk, clock))


def test_the_frontier_alone_moves_with_who_consumes() -> None:
    disk, clock = SimulatedFiles(), ManualClock(NOW_MS)
    with opened_store(disk, clock) as (store, partition):
        store.send_many("t", [b"a", b"b"], deliver_after=[NOW_MS + 5, NOW_MS + 5_000])
        partition.log.checkpoint()
        clock.advance(2_000)
        assert [] == rows_of(look(disk, clock, settle_ms=None))
        assert [] == rows_of(look(disk, clock, settle_ms=1_996))
        assert [(0, 0, b"a")] == rows_of(look(disk, clock, settle_ms=1_995))
        assert [b"a"] == drained(partition)
        assert [(0, 0, b"a")] == rows_of(look(disk, clock, settle_ms=None))


def test_pending_records_come_where_all_are_wanted() -> None:
    disk, clock = SimulatedFiles(), ManualClock(NOW_MS)
    with opened_store(disk, clock) as (store, _):
        due = [NOW_MS + 9, 2**63 - 2, NOW_MS + 5]
        store.send_many("t", [b"a", b"b", b"c"], deliver_after=due, check_instants=False)
    assert [(0, 2, b"c"), (1, 0, b"a"), (2, 1, b"b")] == rows_of(look(disk, clock, at_ms=ALL_MS))


def test_a_fifo_topic() -> None:
    disk, clock = SimulatedFiles(), ManualClock(NOW_MS)
    with opened_store(disk, clock, delayed=False) as (store, partition):
        store.send_many("t", [b"%d" % number * 100 for number in range(100)])
        partition.log.checkpoint()
        assert [(number, number, b"%d" % number * 100) for number in range(100)] == rows_of(
            look(disk, clock, delayed=False)
        )


def test_files_that_go_while_it_opens() -> None:
    """A roll replaces the runs between the look at the checkpoints and the opening of the runs: it begins anew."""
    disk, clock, calls = SimulatedFiles(), ManualClock(NOW_MS), Calls()
    with opened_store(disk, clock) as (store, partition):
        store.send_many("t", [b"v"] * 20, deliver_after=[NOW_MS + number for number in range(20)])
        partition.log.checkpoint()
        clock.advance(100)
        rolled = []

        def roll(operation: str, path: Path) -> None:
            if operation == "open" and path.suffix == DELIVER_AFTER_INDEX and not rolled:
                rolled.append(path)
                partition.log.roll()

        calls.failing = roll
        assert list(range(20)) == [offset for _, offset, _ in rows_of(look(FailingFiles(disk, calls), clock))]
        assert 1 == len(rolled)


@pytest.mark.parametrize("suffix", [LOG, OFFSET_INDEX, DELIVER_AFTER_INDEX])
def test_what_is_not_there_is_named(suffix: str) -> None:
    disk, clock = SimulatedFiles(), ManualClock(NOW_MS)
    with opened_store(disk, clock) as (store, partition):
        store.send_many("t", [b"v"] * 20)
        partition.log.roll()
        store.send_many("t", [b"v"] * 20)
    names = [path for path in disk.image().contents if path.endswith(suffix)]
    assert names
    for name in names:
        disk.unlink(Path(name))
    with pytest.raises(CorruptFile):
        rows_of(look(disk, clock))


def test_files_that_cannot_write_do(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    with open_store(tmp_path, small(), clock, OsFiles()) as store:
        partition = store.create_topic("t").partition(0)
        store.send_many("t", [b"v"] * 100)
        partition.log.checkpoint()
        found = look(ReadOnlyFiles(), clock, store=tmp_path)
        assert list(range(100)) == [offset for _, offset, _ in rows_of(found)]
