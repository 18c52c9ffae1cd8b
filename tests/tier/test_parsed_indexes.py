from __future__ import annotations

import numpy as np
import pytest

from afterlog.index.offset_index import OffsetIndex
from afterlog.tier.tiered_segment import ParsedIndexes

ENTRIES = 100
INDEX_BYTES = 2_048 + 16 * ENTRIES


def index() -> OffsetIndex:
    made = OffsetIndex(0, 10)
    numbers = np.arange(1, ENTRIES + 1)
    made.add(numbers * 10, numbers)
    return made


def refuse() -> OffsetIndex:
    raise AssertionError("it is held")


def test_those_used_last_are_held() -> None:
    indexes = ParsedIndexes(3 * INDEX_BYTES)
    held = {key: indexes.get(key, index) for key in "abc"}
    assert held["a"] is indexes.get("a", refuse)
    indexes.get("d", index)
    assert 3 * INDEX_BYTES == indexes.held_bytes
    for key in "ac":
        assert held[key] is indexes.get(key, refuse)
    assert held["b"] is not indexes.get("b", index)


def test_one_larger_than_the_budget_is_not_held() -> None:
    indexes = ParsedIndexes(INDEX_BYTES - 1)
    assert ENTRIES == indexes.get("a", index).count
    assert 0 == indexes.held_bytes


def test_what_is_forgotten_is_loaded_anew() -> None:
    indexes = ParsedIndexes()
    indexes.get("a", index)
    indexes.forget("a")
    indexes.forget("a")
    assert 0 == indexes.held_bytes
    with pytest.raises(AssertionError, match="it is held"):
        indexes.get("a", refuse)
