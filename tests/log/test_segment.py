from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from afterlog.base.errors import CorruptFile, RemoteRefused
from afterlog.base.files import Bytes
from afterlog.base.names import CANCEL_INDEX, LOG, OFFSET_INDEX, TIME_INDEX, segment_file
from afterlog.index.cancel_index import Cancelled
from afterlog.index.sparse import SparseIndexes
from afterlog.log import segment
from afterlog.log.checkpoints import ActiveMark, RemoteMark
from afterlog.log.segment import ActiveSegment, SealedSegment, load_sparse
from afterlog.records import kernels
from afterlog.records.columns import Int64Array
from afterlog.records.header import BatchHeader, with_crc
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import content, flipped, with_file

FOLDER = Path("/")
BASE = 100
INTERVAL = 200


def entries(first: int, count: int) -> tuple[Bytes, Int64Array]:
    """Bare batches of one record and their positions; timestamps are ten times the offsets."""
    bodies = [
        with_crc(
            BatchHeader(
                base_offset=first + number, length=69 - 12, partition_leader_epoch=0, magic=2, crc=0, attributes=0,
                last_offset_delta=0, base_timestamp=(first + number) * 10, max_timestamp=(first + number) * 10,
                producer_id=-1, producer_epoch=-1, base_sequence=-1, records=1,
            ),
            b"\x0e\0\0\0\1\2v\0",
        )
        for number in range(count)
    ]  # fmt: skip
    positions = np.arange(count, dtype=np.int64) * 69
    return np.frombuffer(b"".join(bodies), np.uint8), positions


def fill(active: ActiveSegment, first: int, count: int) -> None:
    data, positions = entries(first, count)
    offsets = first + np.arange(count)
    active.sparse.add(positions + active.size, offsets, offsets * 10)
    active.append(data)


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles()


@pytest.fixture
def active(files: SimulatedFiles) -> ActiveSegment:
    active = ActiveSegment.create(files, FOLDER, BASE, INTERVAL)
    fill(active, BASE, 10)
    return active


def joined(pieces: list[tuple[int, Bytes]], start: int, end: int) -> bytes:
    """The bytes from start to end; the pieces must lie one after another and hold them."""
    at, found = start, b""
    for position, piece in pieces:
        assert position <= at <= position + len(piece)
        found += piece[at - position : end - position].tobytes()
        at = min(position + len(piece), end)
    assert end - start == len(found)
    return found


def test_create_makes_three_durable_names_over_leftovers(files: SimulatedFiles) -> None:
    files.create(FOLDER / segment_file(BASE, LOG)).append([b"leftover"])
    active = ActiveSegment.create(files, FOLDER, BASE, INTERVAL)
    assert 0 == active.size
    assert sorted(segment_file(BASE, suffix) for suffix in (LOG, OFFSET_INDEX, TIME_INDEX)) == files.names(FOLDER)
    assert "SyncFolder" == type(files.operations[-1]).__name__


@pytest.mark.parametrize("remap_bytes", [0, 100, 1 << 20])
def test_view_is_mapped_or_read_and_always_the_same_bytes(
    active: ActiveSegment, files: SimulatedFiles, monkeypatch: pytest.MonkeyPatch, remap_bytes: int
) -> None:
    monkeypatch.setattr(segment, "REMAP_BYTES", remap_bytes)
    for count in (0, 1, 5):
        fill(active, BASE + active.size // 69, count)
        whole = content(files, active.path)
        for start in range(0, active.size + 1, 69):
            for end in range(start, active.size + 1, 69):
                assert whole[start:end] == joined(active.view(start, end), start, end)


def test_pieces_begin_and_end_with_entries(active: ActiveSegment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "REMAP_BYTES", 500)
    active.view(0, active.size)
    fill(active, BASE + 10, 3)
    assert [0, 690] == [position for position, _ in active.view(69, active.size)]
    assert [690] == [position for position, _ in active.view(690, active.size)]


def test_a_view_behind_the_end_of_the_file_is_corruption(active: ActiveSegment) -> None:
    with pytest.raises(CorruptFile, match="fewer can be read"):
        active.view(0, active.size + 1)


def test_rollback_cuts_what_a_failed_append_left(active: ActiveSegment, files: SimulatedFiles) -> None:
    before, size = content(files, active.path), active.size
    active.append(np.zeros(30, np.uint8))
    active.rollback(size)
    assert (before, size) == (content(files, active.path), active.size)
    active.cut(69)
    assert 69 == active.size == len(content(files, active.path))
    assert b"" == active.tail(69).tobytes()
    assert before[9:69] == active.tail(9).tobytes()


def test_sparse_indexes_are_saved_by_what_is_new(active: ActiveSegment, files: SimulatedFiles) -> None:
    first = active.save_indexes(BASE + 10)
    assert active.mark == first
    assert first == active.save_indexes(BASE + 10)
    fill(active, BASE + 10, 10)
    second = active.save_indexes(BASE + 20)
    assert first.index[0] < second.index[0]
    index, times = active.sparse.to_bytes()
    assert index == content(files, FOLDER / segment_file(BASE, OFFSET_INDEX))
    assert times == content(files, FOLDER / segment_file(BASE, TIME_INDEX))
    assert (BASE + 19) * 10 == second.latest[0]


def test_saving_goes_on_over_what_a_crash_left(active: ActiveSegment, files: SimulatedFiles) -> None:
    mark = active.save_indexes(BASE + 10)
    files.open(FOLDER / segment_file(BASE, OFFSET_INDEX)).append([b"torn"])
    again = ActiveSegment(files, FOLDER, BASE, INTERVAL)
    assert again.load_sparse(mark)
    assert mark == again.mark
    fill(again, BASE + 10, 10)
    again.save_indexes(BASE + 20)
    assert again.sparse.to_bytes()[0] == content(files, FOLDER / segment_file(BASE, OFFSET_INDEX))


def test_loaded_indexes_go_on_as_if_never_saved(active: ActiveSegment, files: SimulatedFiles) -> None:
    mark = active.save_indexes(BASE + 10)
    again = ActiveSegment(files, FOLDER, BASE, INTERVAL)
    assert again.load_sparse(mark)
    for one in (active, again):
        offsets = BASE + 10 + np.arange(5)
        one.sparse.add(690 + np.arange(5) * 69, offsets, offsets)
        one.sparse.finish()
    assert active.sparse.to_bytes() == again.sparse.to_bytes()


@pytest.mark.parametrize("suffix", [OFFSET_INDEX, TIME_INDEX])
@pytest.mark.parametrize("harm", ["missing", "short", "rotten"])
def test_sparse_indexes_that_cannot_be_trusted_are_not_loaded(
    active: ActiveSegment, files: SimulatedFiles, suffix: str, harm: str
) -> None:
    mark = active.save_indexes(BASE + 10)
    path = FOLDER / segment_file(BASE, suffix)
    data = content(files, path)
    disk = with_file(files, path, {"missing": None, "short": data[:-1], "rotten": flipped(data, 2)}[harm])
    again = ActiveSegment(disk, FOLDER, BASE, INTERVAL)
    assert not again.load_sparse(mark)
    again.create_sparse()
    assert b"" == content(disk, path)
    assert again.load_sparse(ActiveMark(base_offset=BASE))


@pytest.fixture
def sealed(active: ActiveSegment, files: SimulatedFiles) -> SealedSegment:
    return SealedSegment(files, FOLDER, active.seal(BASE + 10, 77), INTERVAL)


def test_seal(sealed: SealedSegment, files: SimulatedFiles) -> None:
    mark = sealed.mark
    assert (BASE, BASE + 10, 690, 77, 1090) == (
        mark.base_offset, mark.end_offset, mark.log_bytes, mark.max_deliver_after, mark.max_timestamp
    )  # fmt: skip
    assert BASE + 10 == sealed.sparse.times.floor(1091)
    assert 0 == sealed.sparse.offsets.floor(BASE)
    assert content(files, sealed.path) == joined(sealed.view(69, 138), 0, 690)
    assert sealed.view(0, 1)[0][1] is sealed.view(5, 6)[0][1]


def test_a_sealed_segment_stays_readable_when_it_is_unlinked(sealed: SealedSegment, files: SimulatedFiles) -> None:
    sealed.view(0, 690)
    files.unlink(sealed.path)
    assert 690 == len(sealed.view(0, 690)[0][1])


def test_a_sealed_segment_that_is_gone_or_of_another_size(sealed: SealedSegment, files: SimulatedFiles) -> None:
    for data, reason in ((None, "gone"), (b"short", "sealed at 690 bytes, now 5")):
        harmed = SealedSegment(with_file(files, sealed.path, data), FOLDER, sealed.mark, INTERVAL)
        with pytest.raises(CorruptFile, match=reason) as raised:
            harmed.view(0, 690)
        assert sealed.path == raised.value.path


@pytest.mark.parametrize("suffix", [OFFSET_INDEX, TIME_INDEX])
def test_sparse_indexes_of_a_sealed_segment_are_made_anew(
    sealed: SealedSegment, files: SimulatedFiles, suffix: str
) -> None:
    path = FOLDER / segment_file(BASE, suffix)
    whole = content(files, path)
    for data in (None, whole[:-1], flipped(whole, 1)):
        disk = with_file(files, path, data)
        assert sealed.sparse.to_bytes() == SealedSegment(disk, FOLDER, sealed.mark, INTERVAL).sparse.to_bytes()
        assert whole == content(disk, path)


def test_sparse_indexes_are_not_made_anew_from_a_rotten_log(sealed: SealedSegment, files: SimulatedFiles) -> None:
    disk = with_file(files, FOLDER / segment_file(BASE, OFFSET_INDEX), None)
    disk = with_file(disk, sealed.path, flipped(content(files, sealed.path), 276 + 66))
    with pytest.raises(CorruptFile, match="CRC") as raised:
        _ = SealedSegment(disk, FOLDER, sealed.mark, INTERVAL).sparse
    assert 276 == raised.value.position


def test_load_sparse_takes_no_more_than_what_was_durable(active: ActiveSegment, files: SimulatedFiles) -> None:
    mark = active.save_indexes(BASE + 10)
    for suffix in (OFFSET_INDEX, TIME_INDEX):
        files.open(FOLDER / segment_file(BASE, suffix)).append([b"\1" * 24])
    sparse = load_sparse(files, active.path, BASE, INTERVAL, mark.index, mark.time_index)
    assert isinstance(sparse, SparseIndexes)
    assert active.sparse.to_bytes() == sparse.to_bytes()


def test_entries_of_this_test_are_entries() -> None:
    data, _ = entries(BASE, 3)
    scan = kernels.scan_entries(data, 0, len(data), BASE, True)
    assert (0, [100, 101, 102]) == (scan.fault, scan.offset.tolist())


class TestInObjectStorage:
    def test_who_holds_the_one_before_reads_on(self) -> None:
        disk = SimulatedFiles()
        active = ActiveSegment.create(disk, FOLDER, BASE, INTERVAL)
        data, positions = entries(BASE, 9)
        active.append(data)
        active.sparse.add(positions, BASE + np.arange(9), np.arange(9))
        mark = active.seal(BASE + 9, 0)
        sealed = SealedSegment(disk, FOLDER, mark, INTERVAL)
        uploaded = sealed.marked(replace(mark, remote=RemoteMark(attempt="0" * 32)))
        expected, mapped = sealed.sparse, sealed.mapped()
        assert (expected, mapped) == (uploaded.sparse, uploaded.mapped())  # the same files, the same mapping
        gone = uploaded.marked(replace(mark, remote=RemoteMark(attempt="0" * 32, local=False)))
        for path in disk.names(FOLDER):
            disk.unlink(FOLDER / path)
        assert (None, False) == (gone.mapped(), gone.is_local())
        for ask in (lambda: gone.sparse, lambda: gone.view(0, 69)):
            with pytest.raises(RemoteRefused):
                ask()
        assert (expected, mapped) == (sealed.sparse, sealed.mapped())


def test_cancels_one_by_one_are_kept_as_few_columns(active: ActiveSegment) -> None:
    """And written once each, whatever was joined before they were."""
    rows = [(200 + row, 100 + row, 7 * row) for row in range(500)]
    parts = [Cancelled(*np.array([row]).T.copy()) for row in rows]
    for part in parts[:333]:
        active.add_cancelled(part)
    assert len(active._cancelled) <= 9
    first = active.unsaved(200 + 333)
    for part in parts[333:]:
        active.add_cancelled(part)
    active.save(first)
    active.save_indexes(200 + 500)
    assert len(active._cancelled) <= 9
    assert [200 + 333] == active._cancelled[0].control[:1].tolist(), "what is saved is given up"
    saved = content(active._files, active.path.with_suffix(CANCEL_INDEX))  # type: ignore[arg-type]
    assert rows == [*zip(*(column.tolist() for column in Cancelled.from_bytes(saved)), strict=True)]
