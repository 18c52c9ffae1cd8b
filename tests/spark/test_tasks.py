from __future__ import annotations

from pathlib import Path

import pytest

from afterlog.log.build import SegmentToIndex
from afterlog.spark.tasks import TASK_BYTES, TASKS_MIN, balanced, contiguous, task_count


def sized(*sizes: int) -> list[SegmentToIndex]:
    return [
        SegmentToIndex(topic="t", partition=0, base_offset=number, path=Path("/"), log_bytes=size)
        for number, size in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    ("sizes", "count", "expected"),
    [
        ((), 4, []),
        ((5,), 4, [[5]]),
        ((1, 2, 3), 3, [[3], [2], [1]]),
        ((9, 1, 1, 1, 8), 2, [[9, 1], [8, 1, 1]]),
        ((0, 0, 0), 2, [[0, 0, 0], []]),
    ],
)
def test_groups_are_balanced(sizes: tuple[int, ...], count: int, expected: list[list[int]]) -> None:
    groups = balanced(sized(*sizes), count)
    assert expected == [[segment.log_bytes for segment in group] for group in groups]


@pytest.mark.parametrize(
    ("sizes", "count", "expected"),
    [
        ((), 4, []),
        ((5,), 4, [[5]]),
        ((1, 2, 3), 2, [[1, 2], [3]]),
        ((9, 1, 1, 1, 8), 2, [[9, 1], [1, 1, 8]]),
        ((0, 0, 0), 2, [[0, 0, 0]]),
        ((4,) * 64, 3, [[4] * 21, [4] * 22, [4] * 21]),
    ],
)
def test_neighbours_stay_together(sizes: tuple[int, ...], count: int, expected: list[list[int]]) -> None:
    groups = contiguous(sized(*sizes), count)
    assert expected == [[segment.log_bytes for segment in group] for group in groups]


def test_how_many_tasks() -> None:
    assert [3, TASKS_MIN, 20] == [
        task_count(sized(5), 3), task_count(sized(5), None), task_count(sized(*[TASK_BYTES] * 20), None),
    ]  # fmt: skip
