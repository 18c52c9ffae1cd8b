from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import afterlog
from afterlog.base.clock import ManualClock
from afterlog.base.errors import CorruptFile, InvalidTopic, StoreClosed
from afterlog.fetch.partition import Partition
from afterlog.log import broker_time, segment
from afterlog.records.batch import Record, encode_batch
from afterlog.records.columns import EXTRA_BYTES_MAX
from afterlog.records.entry import AppendBrokerTimestamp
from afterlog.store.store import Store
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, content, flipped, open_small, with_file

STAMPED = {
    "segment_bytes": EXTRA_BYTES_MAX + 4_096,  # what interceptors may add is kept free
    "broker_entry_metadata_interceptors": (AppendBrokerTimestamp(),),
}


def made(steps_ms: list[int], *, delayed: bool = True, disk: SimulatedFiles | None = None) -> tuple[Store, list[int]]:
    """A store whose records were appended so far apart, in batches of 1 to 3 records; the stamp of each record."""
    clock = ManualClock(NOW_MS)
    store = open_small(disk or SimulatedFiles(), clock, index_interval_bytes=300, **({} if delayed else STAMPED))
    partition = store.create_topic("t", delayed=delayed).partition(0)
    stamps: list[int] = []
    for number, step_ms in enumerate(steps_ms):
        clock.advance(step_ms)
        records = number % 3 + 1
        batch = encode_batch([Record(value=bytes(40), timestamp=NOW_MS)] * records)
        partition.append(batch, deliver_after=NOW_MS + number * 7 % 50 if delayed else None)
        stamps += [clock.now_ms()] * records
    return store, stamps


def expected(stamps: list[int], ms: int) -> int:
    return next((offset for offset, stamp in enumerate(stamps) if stamp >= ms), len(stamps))


@pytest.mark.parametrize("delayed", [True, False])
def test_the_first_offset_at_or_after_an_instant(delayed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "REMAP_BYTES", 700)
    store, stamps = made([number % 4 for number in range(120)], delayed=delayed)
    partition = store.topic("t").partition(0)
    segments = partition.log.version.segments
    assert 3 <= len(segments) < len(stamps) / 10
    for ms in range(NOW_MS - 2, stamps[-1] + 3):
        assert expected(stamps, ms) == partition.offset_at_broker_time(ms)


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(-1, 130))
def test_any_gaps(steps_ms: list[int], after_ms: int) -> None:
    store, stamps = made(steps_ms)
    assert expected(stamps, NOW_MS + after_ms) == partition_of(store).offset_at_broker_time(NOW_MS + after_ms)


def test_an_interval_of_many_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_time, "WALK_ENTRIES", 2)
    store, stamps = made([1] * 30)
    for ms in range(NOW_MS, stamps[-1] + 2):
        assert expected(stamps, ms) == partition_of(store).offset_at_broker_time(ms)


def test_between_the_last_of_one_segment_and_the_first_of_the_next() -> None:
    store, stamps = made([1] * 20)
    store.topic("t").partition(0).log.roll()
    clock = store.clock
    assert isinstance(clock, ManualClock)
    assert len(stamps) == partition_of(store).offset_at_broker_time(stamps[-1] + 1)
    clock.advance(100)
    store.send("t", b"")
    for ms, offset in (
        (stamps[-1] + 1, len(stamps)),
        (stamps[-1] + 100, len(stamps)),
        (stamps[-1] + 101, len(stamps) + 1),
    ):
        assert offset == partition_of(store).offset_at_broker_time(ms)


def test_an_offset_index_that_points_too_far_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = made([1] * 5)
    active = partition_of(store).log.version.active
    monkeypatch.setattr(active.sparse.offsets, "floor", lambda offset: active.size)
    with pytest.raises(CorruptFile, match="beyond the end"):
        partition_of(store).offset_at_broker_time(NOW_MS + 3)


def test_an_empty_log() -> None:
    store, _ = made([])
    assert 0 == partition_of(store).offset_at_broker_time(NOW_MS)
    store.close()
    with pytest.raises(StoreClosed):
        partition_of_closed(store).offset_at_broker_time(NOW_MS)


def test_no_record_is_looked_at() -> None:
    disk = SimulatedFiles()
    store, stamps = made([1] * 10, disk=disk)
    path = partition_of(store).log.version.active.path
    store.close()
    data = content(disk, path)
    with_rotten_body = with_file(disk, path, flipped(data, len(data) - 2))
    again = open_small(with_rotten_body, ManualClock(NOW_MS), **STAMPED)
    assert expected(stamps, NOW_MS + 10) == partition_of(again).offset_at_broker_time(NOW_MS + 10)


def test_a_rotten_header_is_seen() -> None:
    disk = SimulatedFiles()
    store, _ = made([1] * 10, disk=disk)
    path = partition_of(store).log.version.active.path
    store.close()
    data = content(disk, path)
    again = open_small(
        with_file(disk, path, flipped(data, data.rindex(b"\x0e\x02") + 8)), ManualClock(NOW_MS), **STAMPED
    )
    with pytest.raises(CorruptFile, match="CRC") as raised:
        partition_of(again).offset_at_broker_time(NOW_MS + 100)
    assert path == raised.value.path


def test_a_topic_without_broker_timestamps() -> None:
    store = open_small(SimulatedFiles(), ManualClock(NOW_MS))
    partition = store.create_topic("t", delayed=False).partition(0)
    assert 0 == partition.offset_at_broker_time(NOW_MS)
    store.send("t", b"bare")
    with pytest.raises(InvalidTopic, match="AppendBrokerTimestamp"):
        partition.offset_at_broker_time(NOW_MS)


def test_prefixes_that_began_later_or_ended() -> None:
    disk, clock = SimulatedFiles(), ManualClock(NOW_MS)
    for settings in (STAMPED, {}):
        with open_small(disk, clock, **settings) as store:
            store.create_topic("t", delayed=False)
            store.send("t", b"")
    store = open_small(disk, clock)
    with pytest.raises(InvalidTopic):
        partition_of(store).offset_at_broker_time(NOW_MS + 1)


def test_entries_from_before_it_was_stamped_count_by_their_own_time() -> None:
    """PIP-70: a topic that got the interceptor later can be sought by broker time, as far back as it goes."""
    disk, clock, stamps = SimulatedFiles(), ManualClock(NOW_MS), list[int]()
    for settings in ({"segment_bytes": STAMPED["segment_bytes"]}, STAMPED):
        with open_small(disk, clock, index_interval_bytes=300, **settings) as store:
            store.create_topic("t", delayed=False)
            for number in range(40):
                clock.advance(number % 3)
                store.send("t", bytes(60))
                stamps.append(clock.now_ms())
    store = open_small(disk, clock, index_interval_bytes=300, **STAMPED)
    partition = partition_of(store)
    for ms in range(NOW_MS - 1, stamps[-1] + 3):
        assert expected(stamps, ms) == partition.offset_at_broker_time(ms)
        assert expected(stamps, ms) == partition.position(afterlog.AtBrokerTime(ms))


def test_stamps_go_on_over_a_crash_behind_an_entry_without_one() -> None:
    disk, clock = SimulatedFiles(), ManualClock(NOW_MS)
    store = open_small(disk, clock, **STAMPED)
    store.create_topic("t", delayed=False)
    store.send("t", b"")
    bare_disk = SimulatedFiles(disk.image())
    bare = open_small(bare_disk, clock)
    bare.send("t", b"")
    clock.set(NOW_MS - 100)
    again = open_small(SimulatedFiles(bare_disk.image()), clock, **STAMPED)
    assert NOW_MS == partition_of(again).log._clock.last_stamp_ms


def partition_of(store: Store) -> Partition:
    return store.topic("t").partition(0)


def partition_of_closed(store: Store) -> Partition:
    return store.topic("t").partition(0)


def test_it_is_a_method_of_the_public_partition() -> None:
    assert hasattr(afterlog.Partition, "offset_at_broker_time")
