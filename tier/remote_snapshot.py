"""A run in object storage, read in parts: both ends of it, its directory, then the chunks that are needed.

Each part has a checksum (`afterlog.index.run_format`). One that fails it may have rotted in the cache or on the way, so
it is fetched once more; what comes then is handed on as it is, and refused by who asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from afterlog.base.checksum import crc32c
from afterlog.base.errors import CorruptFile
from afterlog.base.files import Bytes
from afterlog.index.run_format import FilePart, Metadata, read_metadata
from afterlog.tier.page_cache import PageCache
from afterlog.tier.remote_store import RemoteStore


class RemoteSnapshot:
    """`BucketSnapshot` over an object. Thread-safe: who has no metadata yet reads them."""

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
