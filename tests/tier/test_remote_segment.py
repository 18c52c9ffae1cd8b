from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from afterlog.base.errors import CorruptFile
from afterlog.base.files import publish
from afterlog.base.names import CANCEL_INDEX, DELIVER_AFTER_INDEX, LOG, OFFSET_INDEX, TIME_INDEX
from afterlog.log.facts import FileMark
from afterlog.tier.remote_segment import RemoteSegment, SegmentState
from tests.tier.support import SIZES, disk, row, segment_files, with_facts

STARTED, FINISHED, DELETING, DELETED = SegmentState

HOSTILE: list[dict[str, Any]] = [
    {"base_offset": -1}, {"base_offset": 100}, {"base_offset": True}, {"base_offset": 0.0}, {"base_offset": "0"},
    {"end_offset": 2**63}, {"end_offset": None}, {"attempt": ""}, {"attempt": "../" * 11}, {"attempt": "A" * 32},
    {"attempt": "0" * 33}, {"attempt": "0" * 31 + "\n"}, {"attempt": 7}, {"state": "GONE"}, {"state": []},
    {"started_ms": -2}, {"max_deliver_after": 2**63}, {"max_timestamp": 1e3}, {"files": {}}, {"files": []},
    {"files": {".log": [1, 1], ".index": [1, 1]}}, {"files": None}, {"more": 1},
    {"files": {".log": [1, 1], ".index": [1, 1], ".timeindex": [1, 1], "/../../etc/passwd": [1, 1]}},
    *({"files": {".log": mark, ".index": [1, 1], ".timeindex": [1, 1]}}
      for mark in ([], [1], [1, 2, 3], [-1, 1], [0, 1], [2**31, 1], [1, -1], [1, 2**32], ["1", 1], [1, 1.5], 3, None,
                   "ab")),
]  # fmt: skip


def test_a_row_goes_through_json() -> None:
    assert row(7) == RemoteSegment.of_json(row(7).to_json())


@pytest.mark.parametrize("change", HOSTILE, ids=str)
def test_a_row_that_cannot_be(change: dict[str, Any]) -> None:
    with pytest.raises((LookupError, TypeError, ValueError, AttributeError)):
        RemoteSegment.of_json({**row(7).to_json(), **change})


@pytest.mark.parametrize("name", list(row(7).to_json()))
def test_a_row_that_lacks_something(name: str) -> None:
    body = row(7).to_json()
    del body[name]
    with pytest.raises((LookupError, TypeError)):
        RemoteSegment.of_json(body)


def test_the_life_cycle_is_the_one_that_is_drawn() -> None:
    steps = set()
    for before, after in product(SegmentState, SegmentState):
        try:
            assert after == replace(row(1), state=before).moved_to(after).state
            steps.add((before, after))
        except ValueError:
            pass
    assert {(STARTED, FINISHED), (STARTED, DELETING), (FINISHED, DELETING), (DELETING, DELETED)} == steps


@pytest.mark.parametrize(("base", "overlaps"), [(0, False), (1, True), (100, True), (199, True), (200, False)])
def test_overlap(base: int, overlaps: bool) -> None:
    assert overlaps == row(1, 100).overlaps(row(2, base)) == row(2, base).overlaps(row(1, 100))


def test_a_segment_is_told_by_its_log() -> None:
    one = row(1)
    assert one.has_the_log_of(replace(row(2), log_crc=1, index=FileMark(0, 0)))
    for other in (row(2), replace(one, end_offset=99), replace(one, log_bytes=11), replace(one, log_crc=2)):
        assert not one.has_the_log_of(other)


def test_files_are_measured_and_held_against_what_is_known() -> None:
    segment = segment_files(disk())
    marks = segment.measured()
    assert {**SIZES} == {suffix: mark.size for suffix, mark in marks.items()}
    publish(segment.files, segment.paths[CANCEL_INDEX], [b"rotten"])
    assert 6 == with_facts(segment, cancel_index=FileMark.of(b"rotten")).measured()[CANCEL_INDEX].size
    for suffix, content in ((CANCEL_INDEX, b"rotten"), (LOG, b"shorter"), (OFFSET_INDEX, b"")):
        broken = segment_files(disk())
        publish(broken.files, broken.paths[suffix], [content])
        with pytest.raises(CorruptFile, match="as it was sealed") as caught:
            broken.measured()
        assert segment.paths[suffix] == caught.value.path


def test_the_order_of_files_is_that_of_the_format() -> None:
    """A manifest is the same bytes whoever writes it."""
    files = [*replace(row(1), cancel_index=FileMark(24, 1), run=FileMark(448, 2)).to_json()["files"]]
    assert [LOG, OFFSET_INDEX, TIME_INDEX, CANCEL_INDEX, DELIVER_AFTER_INDEX] == files
