from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.base.errors import InvalidBatch
from afterlog.index.origin_rows import OriginRows
from afterlog.records import kernels
from afterlog.records.batch import Record, encode_batch
from afterlog.records.columns import OK, Scan
from afterlog.records.entry import protobuf_field
from afterlog.records.entry_origin import NO_ORIGINS, Origins, origin_fields, origins_in, read_origin
from tests.support import NOW_MS

Written = list[tuple[str | None, int, int, bytes]]
"""(origin, its offset there, records, what an interceptor adds)"""


def batch(records: int) -> bytes:
    return encode_batch([Record(value=b"x", timestamp=NOW_MS)] * records)


def log_of(written: Written) -> tuple[np.ndarray[tuple[int], np.dtype[np.uint8]], Scan]:
    """Entries from offset 7 on, as the kernels write and find them."""
    parts, offset = [], 7
    for origin, origin_offset, records, extra in written:
        data = np.frombuffer(batch(records), np.uint8)
        fields = b"" if origin is None else origin_fields(origin, origin_offset - offset)
        asked = np.array([NOW_MS + 5])
        parts.append(kernels.stamp_entries(data, np.array([0, len(data)]), offset, NOW_MS, asked, extra + fields)[0])
        offset += records
    data = np.concatenate(parts)
    found = kernels.scan_entries(data, 0, len(data), 7, True)
    assert found.fault == OK
    return data, found


def test_the_example() -> None:
    assert origin_fields("eu/3f2a9c", 33).hex(" ").upper() == (
        "9A 01 09 65 75 2F 33 66 32 61 39 63 A1 01 21 00 00 00 00 00 00 00"
    )
    data, found = log_of([("eu/3f2a9c", 40, 3, b"")])
    assert ("eu/3f2a9c", 33) == read_origin(data, 0, int(found.batch_position[0]))
    assert origins_in(data, found) == Origins(("eu/3f2a9c",), OriginRows(*map(np.atleast_1d, (0, 40, 7, 3))))


def test_what_follows_there_and_here_is_one_row() -> None:
    data, found = log_of(
        [("eu/1", 10, 2, b""), ("eu/1", 12, 1, b""), (None, 0, 1, b""), ("us/1", 5, 1, b""), ("eu/1", 20, 1, b"")]
    )
    names, rows, _ = origins_in(data, found)
    assert ("eu/1", "us/1") == names
    assert [(0, 10, 7, 3), (1, 5, 11, 1), (0, 20, 12, 1)] == list(zip(*(each.tolist() for each in rows), strict=True))


def test_a_log_of_its_own() -> None:
    data, found = log_of([(None, 0, 1, b""), (None, 0, 3, protobuf_field(40, b"abc"))])
    assert NO_ORIGINS == origins_in(data, found)


def test_bare_batches() -> None:
    data = np.frombuffer(batch(1), np.uint8)
    found = kernels.scan_entries(data, 0, len(data), 0, True)
    assert found.fault == OK
    assert NO_ORIGINS == origins_in(data, found)


def test_what_only_looks_like_one() -> None:
    """An interceptor's bytes end as the shift does."""
    looks = protobuf_field(40, b"12\xa1\x01" + bytes(8))
    data, found = log_of([(None, 0, 1, looks), ("eu/1", 3, 1, looks), (None, 0, 1, looks)])
    assert [8] == origins_in(data, found).rows.offset.tolist()


@pytest.mark.parametrize("name", ["", "eü/1", "e" * 200])
def test_no_name(name: str) -> None:
    fields = protobuf_field(19, name.encode()) + b"\xa1\x01" + bytes(8)
    data = np.frombuffer(batch(1), np.uint8)
    entry, _ = kernels.stamp_entries(data, np.array([0, len(data)]), 0, NOW_MS, None, fields)
    with pytest.raises(InvalidBatch, match="names no origin"):
        origins_in(entry, kernels.scan_entries(entry, 0, len(entry), 0, True))


ORIGINS = st.sampled_from([None, "eu/1", "us/1", "u/1"])
EXTRA = st.sampled_from([b"", protobuf_field(40, 7), protobuf_field(41, b"\xa1\x01" + bytes(8))])


@given(st.lists(st.tuples(ORIGINS, st.integers(0, 2), st.integers(1, 3), EXTRA), min_size=1, max_size=12))
def test_all_of_it_is_found(steps: Written) -> None:
    """The offsets of each origin rise, by a gap now and then."""
    upcoming = dict.fromkeys(("eu/1", "us/1", "u/1"), 0)
    written: Written = []
    for origin, gap, records, extra in steps:
        at = 0
        if origin is not None:
            at = upcoming[origin] + gap
            upcoming[origin] = at + records
        written.append((origin, at, records, extra))
    data, found = log_of(written)
    names, rows, _ = origins_in(data, found)
    rows.check()
    told = {
        offset + row: (names[origin], origin_offset + row)
        for origin, origin_offset, offset, records in zip(*(each.tolist() for each in rows), strict=True)
        for row in range(records)
    }
    expected, offset = {}, 7
    for origin, at, records, _ in written:
        if origin is not None:
            expected |= {offset + row: (origin, at + row) for row in range(records)}
        offset += records
    assert expected == told
    assert not any(
        before[1] + before[3] == after[1] and before[0] == after[0] and before[2] + before[3] == after[2]
        for before, after in pairwise(zip(*(each.tolist() for each in rows), strict=True))
    )
