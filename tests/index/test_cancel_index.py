from __future__ import annotations

import numpy as np
import pytest

from afterlog.index.cancel_index import Cancelled
from tests.index.support import int64

EXAMPLE = bytes.fromhex("0000000000000029 0000000000000007 0000018BCFE65260")


def rows(*each: tuple[int, int, int]) -> Cancelled:
    return Cancelled(*(int64(*column) for column in zip(*each, strict=True)))


def test_the_example() -> None:
    assert EXAMPLE == rows((41, 7, 1_700_000_060_000)).to_bytes()
    assert EXAMPLE == Cancelled.from_bytes(EXAMPLE).to_bytes()
    assert b"" == Cancelled.from_bytes(b"").to_bytes()


@pytest.mark.parametrize(
    "data",
    [
        EXAMPLE[:-1],
        EXAMPLE + b"\0",
        rows((7, 8, 1)).to_bytes(),
        rows((7, -1, 1)).to_bytes(),
        rows((7, 1, -1)).to_bytes(),
        rows((7, 1, 1), (6, 1, 1)).to_bytes(),
    ],
)
def test_what_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"rows|target|deliver_after|order"):
        Cancelled.from_bytes(data)


def test_a_note_is_its_own_target() -> None:
    cancelled = Cancelled.from_bytes(rows((7, 1, 50), (8, 8, 60)).to_bytes())
    assert [1] == cancelled.of_records().target.tolist()
    assert [7, 8] == cancelled.controls()[1].tolist()


def test_a_control_is_due_with_its_last_target() -> None:
    cancelled = rows((3, 0, 50), (3, 1, 90), (3, 2, 70), (9, 5, 20))
    due, offset = cancelled.controls()
    assert ([90, 20], [3, 9]) == (due.tolist(), offset.tolist())
    assert [[], []] == [column.tolist() for column in Cancelled.empty().controls()]


def test_parts() -> None:
    cancelled = rows((3, 0, 50), (3, 1, 90), (9, 5, 20))
    parts = [cancelled.before(end) for end in (0, 4, 10)]
    assert [0, 2, 3] == [len(part) for part in parts]
    joined = Cancelled.concatenate([Cancelled.empty(), *parts])
    assert np.array_equal([3, 3, 3, 3, 9], joined.control)
    assert Cancelled.empty() is Cancelled.concatenate([])
