"""Sparse indexes of tiered segments, parsed and in memory: those used last, within a budget.

A page of a segment is looked for by its offset index, again and again; to read and to parse that of a segment of 1 GiB
takes milliseconds, and what comes of it is 4 MiB.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar, cast

from afterlog.index.offset_index import OffsetIndex
from afterlog.index.time_index import TimeIndex

Index = TypeVar("Index", OffsetIndex, TimeIndex)

_ENTRY_BYTES = 16
_INDEX_BYTES = 2_048
"""Of one without entries, with its key."""


class ParsedIndexes:
    """By the keys of their objects. Thread-safe: two that miss the same index at the same time both load it."""

    def __init__(self, budget_bytes: int = 32 << 20) -> None:
        self.held_bytes = 0
        self._budget_bytes = budget_bytes
        self._indexes: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str, load: Callable[[], Index]) -> Index:
        """The index of the key; `load` gives it where it is not held."""
        with self._lock:
            if key in self._indexes:
                self._indexes.move_to_end(key)
                return cast(Index, self._indexes[key])
        index = load()
        with self._lock:
            if key not in self._indexes:
                self._indexes[key] = index
                self.held_bytes += _size(index)
            while self.held_bytes > self._budget_bytes:
                self.held_bytes -= _size(self._indexes.popitem(last=False)[1])
        return index

    def forget(self, key: str) -> None:
        """Load it anew the next time."""
        with self._lock:
            if key in self._indexes:
                self.held_bytes -= _size(self._indexes.pop(key))


def _size(index: OffsetIndex | TimeIndex) -> int:
    return _INDEX_BYTES + _ENTRY_BYTES * index.count
