"""A sealed segment in object storage, read in parts: what `afterlog.log` asks of a `RemoteCopy`, by way of the cache.

    gather(positions) ─ offset index ─> a byte range for each, up to where the next indexed batch starts
                      ─ sorted, merged where they meet ─> one read of the cache ─> the bytes, and where each entry is

    view(start, end)  ─ offset index ─> pieces of a MiB between indexed batches ─> a read each, when it is asked for

An index tells where some entries begin and none of the sizes, so a range is about half a page of the index too long;
neighbours share it. What is known of the segment before anything is read, its sizes and checksums, is the row of the
checkpoints. Bytes of the log are handed on as they are: who reads entries verifies each.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from afterlog.base.checksum import crc32c
from afterlog.base.errors import CorruptFile, CorruptRemote
from afterlog.base.files import Bytes
from afterlog.base.names import (
    CANCEL_INDEX,
    DELIVER_AFTER_INDEX,
    LOG,
    OFFSET_INDEX,
    TIME_INDEX,
    remote_segment_key,
    run_key,
)
from afterlog.index.entries import sort_by_due
from afterlog.index.growing_columns import Int64Array
from afterlog.index.offset_index import OffsetIndex
from afterlog.index.run import Run
from afterlog.index.run_format import FilePart, Metadata, read_metadata
from afterlog.index.sparse import SparseIndexes
from afterlog.index.time_index import TimeIndex
from afterlog.log.checkpoints import SealedMark
from afterlog.log.facts import FileMark
from afterlog.log.remote_copy import outline
from afterlog.tier.page_cache import PageCache
from afterlog.tier.remote_store import RemoteStore

Index = TypeVar("Index", OffsetIndex, TimeIndex)

_ENTRY_BYTES = 16
_INDEX_BYTES = 2_048
"""Of one without entries, with its key."""

PIECE_BYTES = 1 << 20
"""What a view reads at a time, about. Larger: fewer reads, more memory."""
BRIDGE_BYTES = 16 << 10
"""Ranges no further apart are read from the cache as one, which costs less than another read, where there is room."""


class ParsedIndexes:
    """Sparse indexes of tiered segments, parsed and in memory: those used last, within a budget.

    A page of a segment is looked for by its offset index, again and again; to read and to parse that of a segment of
    1 GiB takes milliseconds, and what comes of it is 4 MiB.

    By the keys of their objects. Thread-safe: two that miss the same index at the same time both load it.
    """

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


class RemoteSnapshot:
    """A run in object storage (`BucketSnapshot`), read in parts: both ends, the directory, the chunks that are needed.

    Each part has a checksum (`afterlog.index.run_format`). One that fails it may have rotted in the cache or on the
    way, so it is fetched once more; what comes then is handed on as it is, and refused by who asked.
    Thread-safe: who has no metadata yet reads them.
    """

    def __init__(self, remote: RemoteStore, cache: PageCache, object_key: str, length: int, key: str) -> None:
        """Reads nothing. `length`: the object's, which has been put and listed; `key`: what the run is known by."""
        self.key = key
        self.path = Path(object_key)
        self.length = length
        self._remote = remote
        self._cache = cache
        self._object_key = object_key
        self._metadata: Metadata | None = None

    def metadata(self) -> Metadata:
        """Two reads. CorruptFile, or what the storage raises."""
        if self._metadata is None:
            try:
                self._metadata = read_metadata(self.path, self.length, self._read)
            except CorruptFile:
                self._cache.forget(self._object_key)
                self._metadata = read_metadata(self.path, self.length, self._read)
        return self._metadata

    def bitmap(self) -> Bytes:
        return self._part(self.metadata().bitmap)

    def segments(self, first: int, last: int) -> list[Bytes]:
        directory = self.metadata().directory
        columns = (directory.position, directory.size, directory.crc32c)
        return [self._part(FilePart(*(int(column[chunk]) for column in columns))) for chunk in range(first, last + 1)]

    def _part(self, part: FilePart) -> Bytes:
        place = [(part.position, part.position + part.size)]
        [stored] = self._read(place)
        if crc32c(stored) != part.crc32c:
            self._cache.forget(self._object_key)
            [stored] = self._read(place)
        return stored

    def _read(self, ranges: Sequence[tuple[int, int]]) -> list[Bytes]:
        starts, stops = np.array(ranges, np.int64).T
        data = self._cache.read(self._remote, self._object_key, self.length, starts, stops)
        return np.split(data, (stops - starts).cumsum()[:-1])


class TieredLog:
    """`RemoteLog`: the segments of one partition in a storage. All partitions share cache and parsed indexes."""

    def __init__(
        self, partition: str, remote: RemoteStore, cache: PageCache, indexes: ParsedIndexes, interval_bytes: int
    ) -> None:
        self.partition = partition
        self.remote = remote
        self.cache = cache
        self.indexes = indexes
        self.interval_bytes = interval_bytes

    def copy(self, mark: SealedMark) -> TieredSegment:
        return TieredSegment(self, mark)


class TieredSegment:
    """`RemoteCopy`. What its methods raise names the object's key."""

    def __init__(self, log: TieredLog, mark: SealedMark) -> None:
        if mark.remote is None:
            raise ValueError(f"the segment of offset {mark.base_offset} was not uploaded")
        self._log = log
        self._mark = mark
        self._remote_mark = mark.remote

    def view(self, start: int, end: int) -> Iterator[tuple[int, Bytes]]:
        end = min(end, self._mark.log_bytes)
        while start < end:
            stop = end
            if end - start > PIECE_BYTES:
                stop = int(self._offset_index().next_indexed(np.array([start + PIECE_BYTES - 1]), end)[0])
            yield start, self._read_log(np.array([start]), np.array([stop]))
            start = stop

    def gather(self, offsets: Int64Array, positions: Int64Array, size_max: int) -> tuple[Bytes, Int64Array]:
        """Goes by `positions` alone."""
        self._check_places(positions)
        stops = self._offset_index().next_indexed(positions, self._mark.log_bytes)
        positions = positions[: _fitting(positions, stops, size_max)]
        starts, rows = sort_by_due(positions)
        stops = stops[rows]
        bounds = _joined(starts, stops, BRIDGE_BYTES)
        if int((stops[bounds[1:] - 1] - starts[bounds[:-1]]).sum()) > size_max:
            bounds = _joined(starts, stops, 0)
        first, last = bounds[:-1], bounds[1:] - 1
        sizes = stops[last] - starts[first]
        data = self._read_log(starts[first], stops[last])
        moved = starts - np.repeat(starts[first] - (sizes.cumsum() - sizes), bounds[1:] - first)
        places = np.empty_like(moved)
        places[rows] = moved
        return data, places

    def sparse(self) -> SparseIndexes:
        sparse = SparseIndexes(self._mark.base_offset, self._log.interval_bytes)
        sparse.offsets = self._offset_index()
        sparse.times = self._time_index()
        return sparse

    def cancel_index(self) -> bytes:
        return self._content(CANCEL_INDEX, self._mark.cancel_index)

    def run(self) -> Run:
        return Run(self._snapshot(), outline(self._mark))

    def records(self) -> int:
        run = Run(self._snapshot())
        if run.coverage != self._mark.coverage or run.last_key > self._mark.last_key:
            raise CorruptRemote("covers another part of the log than it should", path=run.path)
        return run.records

    def _snapshot(self) -> RemoteSnapshot:
        key, size = self._key(DELIVER_AFTER_INDEX), self._remote_mark.run.size
        return RemoteSnapshot(self._log.remote, self._log.cache, key, size, run_key(self._mark.base_offset))

    def forget(self) -> None:
        for suffix in (LOG, OFFSET_INDEX, TIME_INDEX, DELIVER_AFTER_INDEX, CANCEL_INDEX):
            self._log.cache.forget(self._key(suffix))
            self._log.indexes.forget(self._key(suffix))

    def _offset_index(self) -> OffsetIndex:
        return self._log.indexes.get(self._key(OFFSET_INDEX), self._load_offset_index)

    def _time_index(self) -> TimeIndex:
        return self._log.indexes.get(self._key(TIME_INDEX), self._load_time_index)

    def _load_offset_index(self) -> OffsetIndex:
        content = self._content(OFFSET_INDEX, self._mark.index)
        try:
            return OffsetIndex.from_bytes(content, self._mark.base_offset, self._log.interval_bytes)
        except ValueError as error:
            raise CorruptRemote(str(error), path=self._key(OFFSET_INDEX)) from error

    def _load_time_index(self) -> TimeIndex:
        content = self._content(TIME_INDEX, self._mark.time_index)
        try:
            return TimeIndex.from_bytes(content, self._mark.base_offset)
        except ValueError as error:
            raise CorruptRemote(str(error), path=self._key(TIME_INDEX)) from error

    def _content(self, suffix: str, known: FileMark) -> bytes:
        """All of a small object. CorruptRemote where it is not what was put, also when it is fetched once more."""
        size, crc = known
        key = self._key(suffix)
        if size > self._mark.log_bytes:
            raise CorruptRemote(f"{size} bytes, more than the log that it belongs to", path=key)
        for _ in range(2):
            data = self._log.cache.read(self._log.remote, key, size, np.array([0]), np.array([size]))
            found = crc32c(data)
            if found == crc:
                return data.tobytes()
            self._log.cache.forget(key)
        raise CorruptRemote(f"CRC-32C {found:08x}, where {crc:08x} was put", path=key)

    def _read_log(self, starts: Int64Array, stops: Int64Array) -> Bytes:
        return self._log.cache.read(self._log.remote, self._key(LOG), self._mark.log_bytes, starts, stops)

    def _check_places(self, positions: Int64Array) -> None:
        """They come from a run, which comes from the storage."""
        outside = (positions < 0) | (positions >= self._mark.log_bytes)
        if outside.any():
            position = int(positions[outside.argmax()])
            raise CorruptRemote("no entry begins there: the log is shorter", path=self._key(LOG), position=position)

    def _key(self, suffix: str) -> str:
        return remote_segment_key(self._log.partition, self._mark.base_offset, self._remote_mark.attempt, suffix)


def _joined(starts: Int64Array, stops: Int64Array, gap: int) -> Int64Array:
    """Where in ranges that ascend those begin that are more than `gap` after the one before, and the end of all."""
    return np.append(np.flatnonzero(starts > np.append(-gap - 1, stops[:-1]) + gap), len(starts))


def _fitting(positions: Int64Array, stops: Int64Array, size_max: int) -> int:
    """How many of the first ranges to take, which are no more than `size_max` bytes once they are merged.

    Ranges with one stop lie in each other: what they take is counted with the first of them, for all.
    """
    ends, firsts, which = np.unique(stops, return_index=True, return_inverse=True)
    starts = np.full_like(ends, np.iinfo(np.int64).max)
    np.minimum.at(starts, which, positions)
    sizes = np.zeros_like(positions)
    sizes[firsts] = ends - starts
    return max(int(sizes.cumsum().searchsorted(size_max, "right")), 1)
