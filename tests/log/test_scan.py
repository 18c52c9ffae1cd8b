"""Entries are found, checked and told of alike, whatever pieces they lie in and however many are scanned at a time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.errors import CorruptFile
from afterlog.base.files import Bytes
from afterlog.index.sparse import SparseIndexes
from afterlog.log import scan
from afterlog.log.scan import (
    GONE,
    Pieces,
    check_log,
    every_entry,
    more_faults,
    read,
    read_log,
    read_segment,
    steps,
    walk,
)
from afterlog.records import kernels
from afterlog.records.batch import Record, encode_batch
from afterlog.records.columns import BODY_CRC, FAULTS, INDEX, OFFSET, SHORT
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, content, flipped, open_small, with_file

BASE = 7


class Segment:
    """A log of single records and batches, cancels among them, and how many bytes of it a piece has."""

    foreign = False
    has_gaps = False

    def __init__(self, delayed: bool = True, pieces: int = 1) -> None:
        self.disk = SimulatedFiles()
        store = open_small(self.disk, ManualClock(NOW_MS), segment_bytes=1 << 20)
        partition = store.create_topic("t", delayed=delayed).partition(0)
        draw = random.Random(4)
        for number in range(60):
            records = [Record(value=bytes(draw.randrange(90)), timestamp=NOW_MS + number)] * draw.choice([1, 1, 2, 5])
            offset = partition.append(encode_batch(records), deliver_after=NOW_MS + 99 if delayed else None)
            if delayed and number % 7 == 2:
                partition.cancel(np.array([offset]))
        if delayed:
            partition.reschedule(offset, NOW_MS + 500)
        active = partition.log.version.active
        self.path, self.base_offset, self.sparse = active.path, 0, active.sparse
        self.data = np.frombuffer(content(self.disk, active.path), np.uint8)
        self.scan = kernels.scan_entries(self.data, 0, -1, 0, True)
        assert not self.scan.fault
        self._pieces = pieces

    @property
    def size(self) -> int:
        return len(self.data)

    def view(self, start: int, end: int) -> Iterator[tuple[int, Bytes]]:
        """A copy in pieces, as of a segment in object storage."""
        inside = self.scan.position[(self.scan.position > start) & (self.scan.position < end)]
        each = max(len(inside) // self._pieces, 1)
        bounds = [start, *inside[each::each].tolist(), end]
        for first, last in pairwise(bounds):
            yield first, self.data[first:last].copy()


def rows(found: list[kernels.Scan]) -> dict[str, list[int]]:
    names = kernels.Scan._fields[:9]
    return {name: [value for one in found for value in getattr(one, name).tolist()] for name in names}


@pytest.mark.parametrize("pieces", [1, 3, 20])
@pytest.mark.parametrize("limit", [None, 1, 4])
@pytest.mark.parametrize("delayed", [True, False])
def test_pieces_and_steps_make_no_difference(pieces: int, limit: int | None, delayed: bool) -> None:
    log, read_bytes = Segment(delayed, pieces), list[int]()
    for offset in (0, -1):
        found = [*steps(log.view(0, log.size), 0, log.size, offset, limit=limit, advance=read_bytes.append)]
        assert rows([log.scan]) == rows([step.found for step in found])
        assert {""} == {step.fault for step in found}
    assert 2 * log.size == sum(read_bytes)
    intact = read_segment(log, log.size)
    assert log.scan.position.tolist() == intact.entries.position.tolist()
    assert (log.size, log.scan.end_offset, "") == (intact.stop, intact.end_offset, intact.fault)
    assert [len(set(intact.cancelled.control.tolist())) > 5, False] == [delayed, bool(intact.fault)]


@pytest.mark.parametrize("row", [0, 1, 30, -1])
def test_from_any_entry_to_any(row: int) -> None:
    log = Segment(pieces=5)
    start, offset = int(log.scan.position[row]), int(log.scan.offset[row])
    found = [step.found for step in steps(log.view(start, log.size), start, log.size, offset)]
    assert rows([log.scan])["position"][row:] == rows(found)["position"]
    whole = [(0, log.data)]
    assert rows(found) == rows([step.found for step in steps(whole, start, log.size, offset)])
    assert [] == [*steps(whole, start, start)]
    intact = read_log(log.disk, log.path, offset, start=start)
    assert (offset, start, log.size) == (intact.base_offset, int(intact.entries.position[0]), intact.stop)


@pytest.mark.parametrize("limit", [None, 1, 7])
@pytest.mark.parametrize("pieces", [1, 6])
def test_the_first_fault_ends_it(limit: int | None, pieces: int) -> None:
    log, read_bytes = Segment(pieces=pieces), list[int]()
    log.data = np.frombuffer(flipped(log.data.tobytes(), int(log.scan.batch_position[41]) - 1), np.uint8)
    last = [*steps(log.view(0, log.size), 0, log.size, 0, limit=limit, advance=read_bytes.append)][-1]
    assert (int(log.scan.position[41]), log.size) == (last.found.stop, sum(read_bytes))
    assert last.fault in FAULTS
    with pytest.raises(CorruptFile, match=last.fault) as raised:
        read_segment(log, log.size)
    assert (log.path, last.found.stop) == (raised.value.path, raised.value.position)
    with pytest.raises(CorruptFile, match=last.fault):
        _ = [*walk(log, 0, log.size, limit=limit)]


def test_bodies_are_looked_at_where_that_is_wanted() -> None:
    log = Segment()
    log.data = np.frombuffer(flipped(log.data.tobytes(), int(log.scan.position[5]) - 1), np.uint8)
    assert FAULTS[BODY_CRC] == [*steps([(0, log.data)], 0, log.size)][-1].fault
    assert rows([log.scan]) == rows([step.found for step in steps([(0, log.data)], 0, log.size, bodies=False)])


@pytest.mark.parametrize("limit", [None, 1, 2, 3])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_bare_batches_must_follow_each_other(at: int, limit: int | None) -> None:
    """Whether the first offset is known or not: nothing but the order tells of an offset that rotted."""
    log = Segment(delayed=False)
    wrong = log.data.copy()
    wrong[int(log.scan.position[at]) + 7] ^= 128
    for offset in (0, -1):
        last = [*steps([(0, wrong)], 0, log.size, offset, limit=limit)][-1]
        assert (FAULTS[OFFSET], int(log.scan.position[at])) == (last.fault, last.found.stop)
    gaps = [*steps([(0, wrong)], 0, log.size, 0, limit=limit, foreign=True)]
    assert [int(log.scan.position[at + 1])] == [step.found.stop for step in gaps if step.fault]


def test_a_walk_holds_the_first_entry_against_the_index() -> None:
    log = Segment(pieces=4)
    offsets = log.sparse.offsets
    assert offsets.count > 5
    starts, last_offsets = (offsets._columns.column(number) for number in (1, 0))
    for row, start in enumerate(starts.tolist()):
        first = next(walk(log, start, log.size))
        assert (start, int(last_offsets[row]) + 1) == (int(first.position[0]), int(first.offset[0] + first.records[0]))
        last_offsets[row] += 1
        with pytest.raises(CorruptFile, match=FAULTS[INDEX]) as raised:
            _ = [*walk(log, start, log.size)]
        assert (log.path, start) == (raised.value.path, raised.value.position)
        last_offsets[row] -= 1
    found = walk(Segment(), int(starts[0]), log.size, bodies=False, first=1, limit=2)
    assert [1, 2, 2] == [len(one.offset) for one, _ in zip(found, range(3), strict=False)]


class TestReschedule:
    """Half of one is no part of a log."""

    @pytest.mark.parametrize("step_entries", [1 << 16, 1, 2, 3])
    def test_half(self, step_entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also where it ends a step, and its follower would begin the next."""
        monkeypatch.setattr(scan, "STEP_ENTRIES", step_entries)
        log = Segment(pieces=3)
        control, follower = (int(position) for position in log.scan.position[-2:])
        for end in (follower, follower + 1, follower + 40, log.size - 1):
            intact = read(log.path, 0, steps(log.view(0, end), 0, end, 0), start=0, size=end)
            assert (control, FAULTS[SHORT]) == (intact.stop, intact.fault)
            assert (len(log.scan.offset) - 2, int(log.scan.offset[-2])) == (len(intact.entries), intact.end_offset)
            assert int(log.scan.offset[-2]) not in intact.cancelled.control.tolist()

    def test_whole(self) -> None:
        log = Segment()
        intact = read_segment(log, log.size)
        assert int(log.scan.offset[-2]) == int(intact.cancelled.control[-1])

    def test_with_nothing_before_it(self) -> None:
        log = Segment()
        start, end, offset = int(log.scan.position[-2]), int(log.scan.position[-1]), int(log.scan.offset[-2])
        intact = read(log.path, offset, steps([(0, log.data)], start, end, offset), start=start, size=end)
        assert (0, start, offset, 0) == (len(intact.entries), intact.stop, intact.end_offset, len(intact.cancelled))


def test_a_file_that_is_gone_or_short() -> None:
    log = Segment()
    gone = read_log(with_file(log.disk, log.path, None), log.path, BASE)
    assert (GONE, 0, BASE, 0) == (gone.fault, gone.stop, gone.end_offset, len(gone.entries))
    cut = int(log.scan.position[9])
    short = read_log(with_file(log.disk, log.path, log.data[:cut].tobytes()), log.path, 0, end=log.size)
    assert (f"{log.size} bytes were durable, {cut} are left", cut, 9) == (short.fault, short.stop, len(short.entries))
    beyond = read_log(log.disk, log.path, BASE, start=log.size + 5)
    assert (log.size, BASE, "") == (beyond.stop, beyond.end_offset, beyond.fault)


@pytest.mark.parametrize("limit", [1 << 16, 3])
def test_a_sealed_log(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "STEP_ENTRIES", limit)
    log = Segment()
    sparse, expected = (SparseIndexes(0, 256) for _ in range(2))
    check_log(log.disk, log.path, 0, size=log.size, end_offset=log.scan.end_offset, sparse=sparse)
    assert read_segment(log, log.size).index(expected).to_bytes() == sparse.to_bytes()
    checks: list[tuple[Callable[[bytes], bytes], dict[str, Any], str]] = [
        (bytes, {"size": log.size + 1}, "sealed at"),
        (bytes, {"end_offset": log.scan.end_offset + 1}, "sealed at offset"),
        (lambda data: flipped(data, 700), {}, "CRC"),
    ]
    for change, settings, message in checks:
        disk = with_file(log.disk, log.path, change(log.data.tobytes()))
        with pytest.raises(CorruptFile, match=message):
            check_log(disk, log.path, 0, **{"size": log.size, "end_offset": log.scan.end_offset, **settings})


class TestBehindWhatIsBroken:
    ROWS = (3, 20, 21, 50)

    @staticmethod
    def broken(log: Segment, *, headers: bool) -> bytes:
        data = log.data.tobytes()
        for row in TestBehindWhatIsBroken.ROWS:
            position = int(log.scan.position[row])
            data = flipped(data, position + 8 if headers else position + int(log.scan.size[row]) - 1)
        return data

    @pytest.mark.parametrize("headers", [True, False])
    def test_each_fault_is_told(self, headers: bool) -> None:
        log = Segment()
        data = np.frombuffer(self.broken(log, headers=headers), np.uint8)
        first = [*steps([(0, data)], 0, len(data), 0)][-1].found.stop
        expected = [int(log.scan.position[row]) for row in self.ROWS]
        if headers:  # what lies between two is one fault
            expected.remove(int(log.scan.position[21]))
        assert expected == [first, *(position for position, _ in more_faults(data, first))]

    @pytest.mark.parametrize("headers", [True, False])
    def test_every_entry_that_can_be_found(self, headers: bool) -> None:
        log = Segment()
        data = np.frombuffer(self.broken(log, headers=headers), np.uint8)
        found = [*every_entry(data)]
        assert [*range(len(log.scan.offset))] == sorted(
            {*self.ROWS} | {log.scan.position.tolist().index(position) for position, *_ in found}
        )
        assert len(data) == sum(size for _, size, *_ in found)
        faulty = [(position, entry is None) for position, _, entry, fault in found if fault]
        assert {headers} == {nothing for _, nothing in faulty}
        assert (3 if headers else 4) == len(faulty)

    def test_in_a_log_of_bare_batches_nothing_is_found(self) -> None:
        log = Segment(delayed=False)
        data = log.data.copy()
        data[int(log.scan.position[5]) + 16] ^= 1
        *whole, last = every_entry(data)
        assert (5, int(log.scan.position[5]), log.size) == (len(whole), last[0], last[0] + last[1])
        assert [] == [*more_faults(data, last[0])]


def test_pieces_are_read_when_they_are_asked_for() -> None:
    log, read_pieces = Segment(pieces=8), list[int]()

    def pieces() -> Pieces:
        for start, piece in log.view(0, log.size):
            read_pieces.append(start)
            yield start, piece

    for seen, _ in enumerate(steps(pieces(), 0, log.size, 0), 1):
        assert seen == len(read_pieces)
    assert 8 <= len(read_pieces)
