from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from crc32c import crc32c

from afterlog.base.errors import AfterlogError, CorruptFile, CorruptRemote, RemoteMissing, RemoteUnavailable
from afterlog.base.names import CANCEL_INDEX, DELIVER_AFTER_INDEX, LOG, OFFSET_INDEX, TIME_INDEX
from afterlog.index.run import Run
from afterlog.log.checkpoints import RemoteMark
from afterlog.log.facts import FileMark
from afterlog.records import kernels
from afterlog.tier import tiered_segment
from afterlog.tier.tiered_segment import TieredSegment
from tests.index.support import rows_of
from tests.support import flipped
from tests.tier.faulty_remote_store import Fault, FaultyRemoteStore, fault_at
from tests.tier.tiered import SUFFIXES, Tiered, tiered


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiered_segment, "PIECE_BYTES", 1_000)


@pytest.fixture(scope="module")
def whole() -> Tiered:
    """Not to be changed."""
    return tiered()


def all_entries(setting: Tiered, row: int) -> kernels.Scan:
    data = np.frombuffer(setting.bytes_of(LOG, row), np.uint8)
    return kernels.scan_entries(data, 0, len(data), setting.segments[row].base_offset, True)


class TestAgainstTheLocalFiles:
    def test_there_are_several_and_one_has_control_batches(self, whole: Tiered) -> None:
        assert len(whole.segments) >= 3
        assert any(segment.mark.cancel_index[0] for segment in whole.segments)

    def test_view(self, whole: Tiered) -> None:
        for row, segment in enumerate(whole.segments):
            log, scan = whole.bytes_of(LOG, row), all_entries(whole, row)
            begins = [*scan.position.tolist(), segment.size]
            for first in range(0, len(begins) - 1, 3):
                for last in (first + 1, (first + len(begins)) // 2, len(begins) - 1):
                    start, end, joined = begins[first], begins[last], b""
                    for position, piece in whole.copy(row).view(start, end):
                        assert position == start + len(joined)
                        assert {position, position + len(piece)} <= set(begins)
                        joined += piece.tobytes()
                    assert log[start:end] == joined

    def test_a_piece_is_read_when_it_is_asked_for(self) -> None:
        setting = tiered()
        pieces = setting.copy().view(0, setting.segments[0].size)
        assert 0 == setting.cache.counts().read_bytes
        next(pieces)
        assert setting.cache.counts().read_bytes < setting.segments[0].size
        assert len([*pieces]) >= 2
        assert [] == [*setting.copy().view(10, 10)]

    @pytest.mark.parametrize("size_max", [0, 1, 500, 2_000, 1 << 20])
    def test_gather(self, whole: Tiered, size_max: int) -> None:
        generator = random.Random(size_max)
        for row, segment in enumerate(whole.segments):
            log, scan = whole.bytes_of(LOG, row), all_entries(whole, row)
            ends = np.append(scan.position[1:], segment.size)
            for count in (1, 2, 5, len(scan.position)):
                rows = np.array(generator.sample(range(len(scan.position)), count))
                data, places = whole.copy(row).gather(scan.offset[rows], scan.position[rows], size_max)
                assert 1 <= len(places) <= count
                if size_max == 1 << 20:
                    assert count == len(places)
                assert len(places) == 1 or len(data) <= size_max
                for number, place in zip(rows.tolist(), places.tolist(), strict=False):
                    entry = log[scan.position[number] : ends[number]]
                    assert entry == data[place : place + len(entry)].tobytes()

    def test_gather_reads_what_is_dense_in_one_piece(self, whole: Tiered) -> None:
        scan = all_entries(whole, 0)
        rows = np.random.default_rng(1).permutation(len(scan.position))
        data, places = whole.copy().gather(scan.offset[rows], scan.position[rows], whole.segments[0].size)
        assert whole.bytes_of(LOG) == data.tobytes()
        assert scan.position[rows].tolist() == places.tolist()

    def test_gather_of_nothing(self, whole: Tiered) -> None:
        data, places = whole.copy().gather(np.empty(0, np.int64), np.empty(0, np.int64), 100)
        assert (0, 0) == (len(data), len(places))

    def test_indexes(self, whole: Tiered) -> None:
        for row, segment in enumerate(whole.segments):
            copy = whole.copy(row)
            assert segment.sparse.to_bytes() == copy.sparse().to_bytes()
            expected = whole.bytes_of(CANCEL_INDEX, row) if segment.mark.cancel_index[0] else b""
            assert expected == copy.cancel_index()

    def test_run(self, whole: Tiered) -> None:
        for row, segment in enumerate(whole.segments):
            local = Run.open(whole.files, segment.path.with_suffix(DELIVER_AFTER_INDEX))
            far = whole.copy(row).run()
            far.check()
            assert far.remote
            assert (local.key, local.coverage, local.records) == (far.key, far.coverage, far.records)
            assert rows_of(local.entries()) == rows_of(far.entries())
            assert local.identity == far.identity
            assert local.last_key <= far.last_key


class TestWhatIsRead:
    def test_nothing_before_it_is_needed(self) -> None:
        setting = tiered()
        copy = setting.copy()
        copy.run()
        copy.view(0, 1_000)
        assert 0 == setting.cache.counts().requests

    def test_a_sparse_gather_needs_the_offset_index_and_the_pages(self) -> None:
        setting = tiered(page_bytes=128)
        scan = all_entries(setting, 0)
        setting.copy().gather(scan.offset[20:21], scan.position[20:21], 1 << 20)
        fetched_bytes = setting.cache.counts().fetched_bytes
        assert fetched_bytes <= setting.segments[0].mark.index[0] + 5 * 128
        setting.copy().gather(scan.offset[20:21], scan.position[20:21], 1 << 20)
        assert fetched_bytes == setting.cache.counts().fetched_bytes

    def test_one_that_was_not_uploaded_is_a_mistake(self, whole: Tiered) -> None:
        with pytest.raises(ValueError, match="not uploaded"):
            whole.log.copy(replace(whole.segments[0].mark, remote=None))


def use(copy: TieredSegment) -> None:
    """Everything that can be read of a segment, and every check that its reader has."""
    sparse = copy.sparse()
    sparse.check()
    copy.cancel_index()
    run = copy.run()
    run.check()
    entries = run.entries()
    data, places = copy.gather(entries.offset, entries.position, 1 << 20)
    checked = kernels.check_entries(
        [data], np.zeros(len(places), np.int32), places, entries.offset, entries.records, entries.deliver_after
    )
    if checked.fault:
        raise CorruptFile(kernels.FAULTS[checked.fault], path="log")
    for _ in copy.view(0, 1 << 20):
        pass


class TestHostileObjects:
    def test_whole_ones_can_be_used(self, whole: Tiered) -> None:
        for row in range(len(whole.segments)):
            use(whole.copy(row))

    @pytest.mark.parametrize("suffix", [LOG, OFFSET_INDEX, TIME_INDEX, DELIVER_AFTER_INDEX, CANCEL_INDEX])
    def test_a_flipped_bit_is_seen(self, suffix: str) -> None:
        setting = tiered()
        row = next(row for row, each in enumerate(setting.segments) if each.mark.cancel_index[0])
        data = setting.bytes_of(suffix, row)
        for position in random.Random(1).sample(range(len(data)), min(len(data), 40)):
            setting.remote.put(setting.key(suffix, row), flipped(data, position))
            setting.renewed()
            try:
                use(setting.copy(row))
            except AfterlogError:
                continue
            assert (DELIVER_AFTER_INDEX, 0) == (suffix, data[position])  # between its parts, where nobody looks

    @pytest.mark.parametrize("suffix", SUFFIXES)
    @pytest.mark.parametrize("left", [0, 0.5, 1])
    def test_one_that_was_cut_is_seen(self, suffix: str, left: float) -> None:
        setting = tiered()
        row = next(row for row, each in enumerate(setting.segments) if each.mark.cancel_index[0])
        data = setting.bytes_of(suffix, row)
        setting.remote.put(setting.key(suffix, row), data[: min(int(left * len(data)), len(data) - 1)])
        with pytest.raises(CorruptRemote, match=setting.key(suffix, row)):
            use(setting.copy(row))

    @pytest.mark.parametrize("suffix", [LOG, OFFSET_INDEX, TIME_INDEX, DELIVER_AFTER_INDEX])
    def test_one_that_is_gone(self, suffix: str) -> None:
        setting = tiered()
        setting.remote.delete(setting.key(suffix))
        with pytest.raises(RemoteMissing, match=setting.key(suffix)):
            use(setting.copy())

    def test_another_segments_run(self) -> None:
        setting = tiered()
        data = setting.bytes_of(DELIVER_AFTER_INDEX, 1)
        setting.remote.put(setting.key(DELIVER_AFTER_INDEX), data)
        mark = replace(setting.segments[0].mark, remote=RemoteMark(attempt="0" * 32, run=FileMark(len(data), 0)))
        with pytest.raises(CorruptFile, match="another run"):
            setting.log.copy(mark).run().check()

    @pytest.mark.parametrize("position", [-1, 1 << 20, 2**62])
    def test_a_position_outside_of_the_log(self, whole: Tiered, position: int) -> None:
        with pytest.raises(CorruptRemote, match="no entry begins there") as caught:
            whole.copy().gather(np.array([0, 1]), np.array([0, position]), 100)
        assert position == caught.value.position

    def test_an_index_that_cannot_be_as_large(self) -> None:
        setting = tiered()
        mark = replace(setting.segments[0].mark, index=FileMark(2**31 - 8, 1))
        with pytest.raises(CorruptRemote, match="more than the log"):
            setting.log.copy(mark).sparse()

    @pytest.mark.parametrize(("suffix", "name"), [(OFFSET_INDEX, "index"), (TIME_INDEX, "time_index")])
    def test_an_index_that_is_none(self, suffix: str, name: str) -> None:
        setting, data = tiered(), b"\xff" * 24
        setting.remote.put(setting.key(suffix), data)
        mark = replace(setting.segments[0].mark, **{name: (len(data), crc32c(data))})
        with pytest.raises(CorruptRemote, match=f"{setting.key(suffix)}"):
            setting.log.copy(mark).sparse()


class TestFaults:
    def test_whatever_call_fails_the_next_try_goes_on(self) -> None:
        setting, call = tiered(), 0
        while True:
            call += 1
            faulty = FaultyRemoteStore(setting.remote, fault_at(call, [Fault.BEFORE, Fault.TRUNCATED][call % 2]))
            setting.renewed()
            setting.log.remote = faulty
            try:
                use(setting.copy())
            except (RemoteUnavailable, CorruptRemote):
                use(setting.copy())
            if faulty.calls < call:
                return

    @pytest.mark.parametrize("suffix", [OFFSET_INDEX, TIME_INDEX, DELIVER_AFTER_INDEX, LOG])
    def test_what_rotted_in_the_cache_is_fetched_anew(self, suffix: str) -> None:
        """By itself, but for the log, which its reader checks."""
        setting = tiered()
        whole = setting.bytes_of(suffix)
        rotten = bytearray(whole)
        rotten[::7] = bytes(len(rotten[::7]))
        setting.remote.put(setting.key(suffix), rotten)
        starts, stops = np.array([0]), np.array([len(whole)])
        setting.cache.read(setting.remote, setting.key(suffix), len(whole), starts, stops)
        setting.remote.put(setting.key(suffix), whole)
        if suffix == LOG:
            with pytest.raises(CorruptFile):
                use(setting.copy())
            setting.copy().forget()
        use(setting.copy())
