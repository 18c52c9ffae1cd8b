from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from afterlog.index import unique_keys
from afterlog.index.key_rows import KeyRows
from afterlog.index.unique_key_file import KeyFileMark
from afterlog.index.unique_keys import RecentKeys, UniqueKeyIndex, to_merge
from tests.index.support import int64

steps = st.lists(st.one_of(st.integers(-2, 2), st.lists(st.integers(-2, 2), max_size=9)), max_size=30)


@given(steps, st.integers(0, 60))
def test_rows_are_found_however_they_came(adds: list[int | list[int]], since: int) -> None:
    recent, model = RecentKeys(), list[tuple[int, int]]()
    for add in adds:
        if isinstance(add, int):
            recent.add_one(add, len(model), 7)
            model.append((add, len(model)))
        else:
            at = np.arange(len(model), len(model) + len(add))
            recent.add(KeyRows(int64(*add), at, at))
            model += zip(add, at.tolist(), strict=True)
        assert len(model) == recent.count
    for behind, kept in ((recent, model), (recent.behind(since), [row for row in model if row[1] >= since])):
        index = UniqueKeyIndex((), behind, since if behind is not recent else 0)
        index.check(len(model))
        for hashed in range(-2, 3):
            expected = [offset for each, offset in kept if each == hashed]
            assert expected == sorted(offset for offset, _ in index.find_one(hashed))
        which, offset, _ = index.find(np.arange(-2, 3))
        assert sorted((row - 2, at) for row, at in zip(which.tolist(), offset.tolist(), strict=True)) == sorted(kept)


def test_what_is_not_pending_any_more_is_forgotten() -> None:
    recent = RecentKeys()
    for offset in range(3):
        recent.add_one(5, offset, 7)
    recent.forget(5, {0, 2})
    assert [(1, 7)] == recent.find_one(5)
    recent.forget(5, {1})
    recent.forget(6, {1})
    assert 0 == recent.count


def test_many_singles_become_columns() -> None:
    recent = RecentKeys()
    for offset in range(unique_keys.SINGLES_MAX + 1):
        recent.add_one(offset % 3, offset, 7)
    assert unique_keys.SINGLES_MAX + 1 == recent.count
    assert not recent._single_count - 1
    assert [2, 3] == sorted(offset for offset, _ in recent.find_one(2))[:1] + sorted(
        offset for offset, _ in recent.find_one(0)
    )[1:2]


def mark(row: int, rows: int) -> KeyFileMark:
    return KeyFileMark(row, row + 1, rows, 0, 0)


def test_there_are_few_files() -> None:
    files, written = list[KeyFileMark](), 0
    for row in range(1_000):
        files.append(mark(row, 10))
        while sources := to_merge(tuple(files)):
            rows = sum(each.rows for each in sources)
            files[-len(sources) :] = [mark(row, rows)]
            written += rows
        assert len(files) <= 10
    assert 10_000 == sum(each.rows for each in files)
    assert written < 10_000 * 10
    assert () == to_merge(()) == to_merge((mark(0, 1),)) == to_merge((mark(0, 20), mark(1, 10)))
