from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.index.time_index import TimeIndex
from tests.index.support import int64

BASE = 1_000
batches = st.lists(st.tuples(st.integers(-1, 12), st.booleans()), max_size=40)


def model(timestamps: list[int], points: list[bool]) -> list[tuple[int, int]]:
    """Entry by entry, as Kafka's MaybeAppend does it; batches of one record."""
    entries, last, largest, holder = [], -1, -1, -1
    for row, (timestamp, point) in enumerate(zip(timestamps, points, strict=True)):
        if timestamp > largest:
            largest, holder = timestamp, row
        if point and largest > last:
            entries.append((largest, holder))
            last = largest
    if largest > last:
        entries.append((largest, holder))
    return entries


def test_the_example_of_the_module() -> None:
    index = TimeIndex(BASE)
    index.add(int64(1_700_000_000_123, 5), int64(1_041, 1_050), int64(1))
    assert bytes.fromhex("0000018bcfe5687b 00000029") == index.to_bytes()


@given(batches, st.lists(st.integers(0, 40)))
def test_entries_are_those_of_the_model_however_appends_were_cut(
    noted: list[tuple[int, bool]], cuts: list[int]
) -> None:
    timestamps, points = [timestamp for timestamp, _ in noted], [point for _, point in noted]
    index, written = TimeIndex(BASE), b""
    bounds = [0, *sorted(cut for cut in cuts if cut <= len(noted)), len(noted)]
    for start, end in pairwise(bounds):
        count = index.count
        rows = np.flatnonzero(np.array(points[start:end], np.bool_))
        index.add(np.array(timestamps[start:end], np.int64), BASE + np.arange(start, end), rows)
        written += index.since(count)
        latest, index = index.latest, TimeIndex.from_bytes(index.to_bytes(), BASE)
        index.latest = latest
    count = index.count
    index.finish()
    index.finish()
    index.check()
    expected = np.array(model(timestamps, points), [("timestamp", ">i8"), ("relative_offset", ">i4")])
    assert expected.tobytes() == index.to_bytes() == written + index.since(count)


@given(batches, st.integers(-2, 14))
def test_everything_before_the_floor_is_earlier(noted: list[tuple[int, bool]], timestamp: int) -> None:
    timestamps = np.array([one for one, _ in noted], np.int64)
    index = TimeIndex(BASE)
    index.add(timestamps, BASE + np.arange(len(noted)), np.flatnonzero([point for _, point in noted]))
    index.finish()
    before = timestamps[: index.floor(timestamp) - BASE]
    assert (before < timestamp).all()
    assert index.floor(-1) == BASE


@pytest.mark.parametrize("data", [b"\0" * 11, b"\0" * 24, b"\xff" * 12])
def test_refuses_what_was_not_written(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"whole number|not above|negative"):
        TimeIndex.from_bytes(data, BASE)
