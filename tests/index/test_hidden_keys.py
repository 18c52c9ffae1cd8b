from __future__ import annotations

from itertools import pairwise
from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from afterlog.index import hidden_keys
from afterlog.index.entries import Key
from afterlog.index.growing_columns import Int64Array
from afterlog.index.hidden_keys import NOTHING_HIDDEN, HiddenKeys
from afterlog.index.merge import Block
from tests.index.support import INT64_MAX, int64

dues = st.integers(0, 9) | st.sampled_from([INT64_MAX])


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[tuple[int, int, int]], list[list[int]]]:
    """Entries in delivery order, (due, offset, records), and offsets to hide, some at a time."""
    entries, offset = [], draw(st.integers(0, 5))
    for due, records in draw(st.lists(st.tuples(dues, st.integers(1, 3)), max_size=30)):
        entries.append((due, offset, records))
        offset += records
    chosen = draw(st.lists(st.integers(0, max(offset - 1, 0)), unique=True, max_size=40)) if entries else []
    held = [each for each in chosen if each >= entries[0][1]]
    cuts = sorted(draw(st.lists(st.integers(0, len(held)), max_size=6)))
    bounds = [0, *cuts, len(held)]
    return sorted(entries), [held[start:end] for start, end in pairwise(bounds)]


def hidden_of(entries: list[tuple[int, int, int]], parts: list[list[int]]) -> tuple[HiddenKeys, list[Key]]:
    due_of = {offset + row: due for due, offset, records in entries for row in range(records)}
    hidden, keys = NOTHING_HIDDEN, []
    for part in filter(None, parts):
        hidden = hidden.including(int64(*(due_of[offset] for offset in part)), int64(*part))
        hidden.check()
        keys += [Key(due_of[offset], offset) for offset in part]
    return hidden, sorted(keys)


def block_of(entries: list[tuple[int, int, int]]) -> Block:
    due, offset, records = (int64(*(entry[column] for entry in entries)) for column in range(3))
    behind = np.cumsum(records)
    return Block(behind - records, due, offset, offset * 100, records, int(records.sum()))


@given(cases(), dues, st.integers(-1, 100), dues, st.integers(-1, 100))
def test_against_a_list(
    case: tuple[list[tuple[int, int, int]], list[list[int]]], due: int, offset: int, due_2: int, offset_2: int
) -> None:
    entries, parts = case
    hidden, keys = hidden_of(entries, parts)
    low, high = sorted([Key(due, offset), Key(due_2, offset_2)])
    assert len(keys) == hidden.count
    assert sum(key <= low for key in keys) == hidden.rank(low)
    assert sorted(key.offset for key in keys if low < key <= high) == hidden.between(low, high).tolist()
    edges = [0, 3, 7, INT64_MAX]
    assert [sum(key.deliver_after < edge for key in keys) for edge in edges] == hidden.counts(int64(*edges)).tolist()
    behind = hidden.behind(low)
    behind.check()
    assert sorted(key.offset for key in keys if key > low) == behind.offsets().tolist()


@given(cases(), st.data())
def test_what_is_shown_of_a_stretch(
    case: tuple[list[tuple[int, int, int]], list[list[int]]], data: st.DataObject
) -> None:
    entries, parts = case
    hidden, keys = hidden_of(entries, parts)
    start = data.draw(st.integers(0, len(entries)))
    stop = data.draw(st.integers(start, len(entries)))
    block = block_of(entries)[start:stop]
    gone = {key.offset for key in keys}
    inside = [offset + row for _, offset, records in entries[start:stop] for row in range(records)]
    assert sorted(gone & set(inside)) == hidden.within(block).tolist()
    shown = hidden.shown(block)
    kept = [entry for entry in entries[start:stop] if not set(range(entry[1], entry[1] + entry[2])) <= gone]
    assert [entry[1] for entry in kept] == shown.offset.tolist()
    assert block.end_delivery_offset == shown.end_delivery_offset
    assert set(zip(shown.delivery_offset.tolist(), shown.position.tolist(), strict=True)) <= set(
        zip(block.delivery_offset.tolist(), block.position.tolist(), strict=True)
    )


@given(st.lists(st.tuples(dues, st.integers(0, 40)), unique_by=lambda key: key[1], max_size=40), st.data())
def test_one_after_the_other_and_branches(keys: list[tuple[int, int]], data: st.DataObject) -> None:
    """Each version has what it was given, also where several are made of one, and whoever looks at it when."""
    versions = [(NOTHING_HIDDEN, set[tuple[int, int]]())]
    with patch.object(hidden_keys, "FRESH_MAX", data.draw(st.integers(1, 9))):
        for key in keys:
            hidden, there = versions[data.draw(st.integers(max(len(versions) - 2, 0), len(versions) - 1))]
            others = data.draw(st.lists(st.integers(50, 90), unique=True, max_size=12))
            added = [key, *((key[0], each) for each in others if each not in {offset for _, offset in there})]
            versions.append((hidden.including(*int64_columns(added)), there | {*added}))
            if data.draw(st.booleans()):
                asked, known = data.draw(st.sampled_from(versions))
                wanted = [*known][:3] + [(due, offset + 100) for due, offset in [*known][:3]]
                assert [each in known for each in wanted] == asked.holds(*int64_columns(wanted)).tolist()
    for hidden, there in versions:
        hidden.check()
        assert sorted(offset for _, offset in there) == hidden.offsets().tolist()
        for due, offset in [*there, (3, 7), (0, -1)]:
            assert [(due, offset) in there] == hidden.holds(*int64_columns([(due, offset)])).tolist()
        upto = Key(data.draw(dues), data.draw(st.integers(0, 90)))
        behind = hidden.behind(upto)
        behind.check()
        assert {offset for due, offset in there if Key(due, offset) > upto} == {*behind.offsets().tolist()}


def int64_columns(keys: list[tuple[int, int]]) -> tuple[Int64Array, Int64Array]:
    return int64(*(due for due, _ in keys)), int64(*(offset for _, offset in keys))


def test_few_blocks_however_keys_come() -> None:
    hidden = NOTHING_HIDDEN
    for offset in range(1_000):
        hidden = hidden.including(int64(offset * 7 % 13), int64(offset))
    hidden.check()
    assert len(hidden._keys.parts()) <= 10
