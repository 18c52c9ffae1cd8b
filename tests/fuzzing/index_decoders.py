"""The decoders of indexes: runs and what they consist of, the sparse indexes, the cancel index."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from crc32c import crc32c

from afterlog.base.errors import CorruptFile
from afterlog.index import _packing, packed_chunk, producer_file, unique_key_file
from afterlog.index.bucket_snapshot import MappedSnapshot
from afterlog.index.cancel_index import Cancelled
from afterlog.index.entries import Key
from afterlog.index.key_rows import KeyRows
from afterlog.index.offset_index import OffsetIndex
from afterlog.index.packed_chunk import BLOCK, HEAD
from afterlog.index.producer_states import ProducerStates, facts
from afterlog.index.run import Run
from afterlog.index.run_format import HEADER, Directory
from afterlog.index.run_writer import write_run
from afterlog.index.time_index import TimeIndex
from tests.fuzzing.decoder import FOLDER, Decoder, accepted, agreed, array, empty_disk, refused, same
from tests.index.support import Row, coverage_of, entries_of

RUN: Final = FOLDER / "00000000000000001000.deliverafterindex"
BASE_OFFSET: Final = 1000
_FOOTER: Final = struct.Struct("<13qI8x")
_EDGES: Final = np.array([0, 5_000, 6_000, 9_001, 1 << 62], np.int64)


def rows(count: int, *, size: int | None = None, unit: int = 1) -> list[Row]:
    """Entries as a log has them."""
    source, offset, position, found = random.Random(count), BASE_OFFSET, 0, list[Row]()
    for _ in range(count):
        records = source.randrange(1, 4)
        found.append((5_000 + unit * source.randrange(9_000), offset, position, records))
        offset += records + source.choice((0, 0, 1, 9))
        position += size or source.randrange(80, 300)
    return found


# ---- runs


def run_file(entries: list[Row], max_entries: int) -> bytes:
    disk = empty_disk(FOLDER)
    write_run(
        disk, RUN, [entries_of(sorted(entries))], coverage_of(entries), max_entries=max_entries, max_step_ms=10**6
    )
    return disk.image().contents[str(RUN)]


def read_run(data: bytes) -> str:
    """All that can be asked of a run: answers, or CorruptFile. Where its invariants hold the answers fit together."""
    try:
        run = Run(MappedSnapshot(RUN, array(data)))
    except CorruptFile as error:
        return refused(error)
    questions: tuple[Callable[[], Any], ...] = (
        run.check,
        run.entries,
        run.offsets,
        lambda: run.contains(run.coverage.first_offset),
        lambda: run.due_counts(_EDGES),
        lambda: run.due_bounds(_EDGES),
        lambda: run.next_due(Key(6_000, BASE_OFFSET)),
        lambda: run.records_up_to(Key(6_000, BASE_OFFSET)),
    )
    answers: list[Any] = []
    for question in questions:
        try:
            answers.append(question())
        except CorruptFile as error:
            answers.append(error)
    if isinstance(answers[0], CorruptFile):
        return refused(answers[0])
    assert not any(isinstance(answer, CorruptFile) for answer in answers), answers
    entries = answers[1]
    assert (run.count, run.records) == (len(entries), int(entries.records.sum()))
    assert run.records == len(answers[2])
    for edge, counted in zip(_EDGES, answers[4], strict=True):
        assert int(entries.records[entries.deliver_after < edge].sum()) == counted
    return accepted(run.chunks, run.count, str(run.directory.codec[0]))


def mend_run(data: bytearray) -> None:
    """Magic, size, and the checksums of footer, bitmap and chunks."""
    start = len(data) - 128
    if start < len(HEADER):
        return
    data[:9], data[-8:] = HEADER[:9], HEADER[:8]
    fields = list(_FOOTER.unpack_from(data, start))
    chunks, directory, bitmap_position, bitmap_size = fields[8], fields[9], fields[11], fields[12]
    fields[10] = len(data)
    end = directory + 8 * Directory.WIDTH * chunks
    if not (1 <= chunks <= 64 and 64 <= directory and end <= start):
        return
    columns = np.frombuffer(data[directory:end], "<i8").reshape(Directory.WIDTH, chunks).copy()
    for chunk in range(chunks):
        position, size = (int(number) for number in columns[6:8, chunk])
        if 0 <= position <= len(data) and 0 <= size <= len(data):
            columns[9, chunk] = crc32c(data[position : position + size])
    if 0 <= bitmap_position <= len(data) and 0 <= bitmap_size <= len(data):
        fields[13] = crc32c(data[bitmap_position : bitmap_position + bitmap_size])
    data[directory:end] = columns.tobytes()
    data[start : start + _FOOTER.size] = _FOOTER.pack(*fields)
    covered = crc32c(data[start : start + _FOOTER.size], crc32c(data[directory:end], crc32c(data[:64])))
    data[-12:-8] = covered.to_bytes(4, "little")


# ---- packed chunks


def read_packed_chunk(data: bytes) -> str:
    """The first four bytes: how many entries; then the chunk. Columns that pack and unpack to themselves again."""
    entries, chunk = int.from_bytes(data[:4], "little"), array(data[4:])
    found = agreed((ValueError,), lambda: packed_chunk.unpack(chunk, entries), lambda: _packing.unpack(chunk, entries))
    if isinstance(found, ValueError):
        return refused(found)
    deliver_after, details = found
    assert (deliver_after[1:] >= deliver_after[:-1]).all()
    columns = np.ascontiguousarray(deliver_after), np.ascontiguousarray(details)
    packed = agreed((), lambda: packed_chunk.pack(*columns), lambda: _packing.pack(*columns))
    if packed is not None:
        again = _packing.unpack(packed, entries)
        assert same(again, agreed((), lambda: packed_chunk.unpack(packed, entries), lambda: again))
        assert same(columns, again), "it packs to another chunk"
    return accepted(entries, packed is None, HEAD.unpack_from(chunk)[1])


def _chunk_seeds() -> Sequence[bytes]:
    seeds = []
    for count, size, unit in ((1, 100, 1), (4, 100, 1_000), (BLOCK, None, 1), (BLOCK + 5, 80, 60_000), (300, None, 7)):
        columns = np.array(sorted(rows(count, size=size, unit=unit)), np.int64)
        columns[:, 1] -= BASE_OFFSET
        packed = _packing.pack(columns[:, 0].copy(), np.ascontiguousarray(columns[:, 1:].T.astype(np.uint32)))
        seeds.append(count.to_bytes(4, "little") + bytes(packed))
    return seeds


# ---- flat indexes


def read_offset_index(data: bytes) -> str:
    try:
        index = OffsetIndex.from_bytes(data, BASE_OFFSET, 256)
    except ValueError as error:
        return refused(error)
    assert data == index.to_bytes()
    positions = [index.floor(BASE_OFFSET + offset) for offset in (0, 5, 40, 1 << 31)]
    assert sorted(positions) == positions
    start, stop = index.spans(np.array([BASE_OFFSET, BASE_OFFSET + 40], np.int64), 1 << 31)
    assert (start <= stop).all()
    index.next_indexed(np.array([0, 300], np.int64), 1 << 31)
    index.last_offset_at(300)
    return accepted(index.count, positions[-1])


def read_time_index(data: bytes) -> str:
    try:
        index = TimeIndex.from_bytes(data, BASE_OFFSET)
    except ValueError as error:
        return refused(error)
    assert data == index.to_bytes()
    offsets = [index.floor(timestamp) for timestamp in (0, 5_000, 1 << 62)]
    assert sorted(offsets) == offsets
    return accepted(index.count, index.latest[0])


def read_cancel_index(data: bytes) -> str:
    try:
        found = Cancelled.from_bytes(data)
    except ValueError as error:
        return refused(error)
    assert data == found.to_bytes()
    controls = found.controls()
    assert len(controls[0]) == len({*found.control.tolist()})
    assert len(found.before(BASE_OFFSET)) == int((found.control < BASE_OFFSET).sum())
    return accepted(len(found), len(controls[0]))


def read_unique_keys(data: bytes) -> str:
    try:
        mark, found = unique_key_file.decoded(np.frombuffer(data, np.uint8))
    except ValueError as error:
        return refused(error)
    content = list(map(bytes, unique_key_file.content(mark.first, mark.end, lambda: [found])))
    assert (mark, data) == (unique_key_file.mark_of(content[0], content[-1]), b"".join(content))
    which, at = found.matching(np.unique(found.hashed))
    assert len(at) == len(which) == len(found) == mark.rows
    assert all(found.matching_one(hashed) for hashed in found.hashed[:3].tolist())
    return accepted(len(found), len(content))


def mend_last_checksum(data: bytearray) -> None:
    """The one at the end."""
    if len(data) > 4:
        data[-4:] = struct.pack("<I", crc32c(bytes(data[:-4])))


def _unique_key_seeds() -> Sequence[bytes]:
    seeds = []
    for count in (1, 9, 60):
        column = np.arange(count)
        rows = KeyRows(column * 7919 % 97 - 40, column + 3, column * 1_000).sorted()
        seeds.append(b"".join(map(bytes, unique_key_file.content(2, count + 5, partial(list, [rows])))))
    return seeds


def read_producers(data: bytes) -> str:
    """The states of a file: each judges a retry of its last record as one, and what comes next as fresh."""
    try:
        mark, found = producer_file.decoded(data)
    except ValueError as error:
        return refused(error)
    assert data == producer_file.content(mark.offset, found)
    assert mark == producer_file.mark_of(data)
    states = ProducerStates(found)
    states.check(mark.offset)
    for producer_id, state in [*found.items()][:5]:
        epoch, upcoming, end = facts(state)
        [last] = states.judge(producer_id, epoch, (upcoming - 1) % (1 << 31), 1)
        assert (end - 1, 1) == last
        assert () == states.judge(producer_id, epoch, upcoming, 9)
        states.appended(producer_id, epoch, upcoming, 9, mark.offset, 0)
        assert (mark.offset, 5) == states.judge(producer_id, epoch, upcoming, 5)[0]
        states.check(mark.offset + 9)
    return accepted(len(found), max(map(len, found.values()), default=0))


def _producer_seeds() -> Sequence[bytes]:
    seeds, source = [], random.Random(7)
    for count in (0, 1, 12):
        states, end = ProducerStates(), 5
        for _ in range(3 * count):
            producer_id, records = source.randrange(count), source.randrange(1, 5)
            states.appended(producer_id, 0, states.next_sequence(producer_id, 0), records, end, 1_000)
            end += records
        seeds.append(producer_file.content(end, states.copy()))
    return seeds


def _flat(form: str, *numbers: tuple[int, ...]) -> bytes:
    return b"".join(struct.pack(form, *each) for each in numbers)


def _run_seeds() -> Sequence[bytes]:
    raw = [(5_000 + (row * 7919 % 97) * (1 << 33), BASE_OFFSET + row, row * 100, 1) for row in range(5)]  # far apart
    return [run_file(rows(1), 4), run_file(rows(9), 4), run_file(rows(150), 100), run_file(raw, 3)]


INDEX_DECODERS: Final = (
    Decoder("run", _run_seeds, read_run, mend_run),
    Decoder("packed-chunk", _chunk_seeds, read_packed_chunk),
    Decoder(
        "offset-index",
        lambda: [_flat(">ii", *((n, n * 100) for n in range(1, k, 9))) for k in (2, 9, 99)],
        read_offset_index,
    ),
    Decoder(
        "time-index",
        lambda: [_flat(">qi", *((n * 777, n) for n in range(1, k, 9))) for k in (2, 9, 99)],
        read_time_index,
    ),
    Decoder(
        "cancel-index",
        lambda: [_flat(">qqq", *((9 + n // 3, n, n * 99) for n in range(k))) for k in (1, 9, 60)],
        read_cancel_index,
    ),
    Decoder("unique-keys", _unique_key_seeds, read_unique_keys, mend_last_checksum),
    Decoder("producers", _producer_seeds, read_producers, mend_last_checksum),
)
