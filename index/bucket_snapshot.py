"""A bucket snapshot: the stored bytes of one run, wherever they are kept. `Run` gives them a meaning.

The words are PIP-195's: a snapshot is stored as segments, here the chunks of the run; its metadata tell where each is
and what is in it. The bytes never change, so any thread may ask, and what is asked for twice is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from afterlog.base.files import Bytes, Files, lost, map_file
from afterlog.index.run_format import Metadata, parse


class BucketSnapshot(Protocol):
    """What a `Run` reads through. Bytes that cannot be had raise what the storage raises."""

    @property
    def key(self) -> str:
        """What the storage knows it by."""

    @property
    def path(self) -> Path:
        """What errors call it."""

    @property
    def length(self) -> int:
        """Bytes in all."""

    def metadata(self) -> Metadata:
        """Footer and directory, read and checked. CorruptFile."""

    def bitmap(self) -> Bytes:
        """The stored bytes of the bitmap: as they are, not checked."""

    def segments(self, first: int, last: int) -> list[Bytes]:
        """The stored bytes of the chunks from `first` to `last`, both included: as they are, not checked."""


class MappedSnapshot:
    """A snapshot over a run file that is mapped: nothing needs closing.

    What is asked for is copied, so that what passes its checksum stays, whatever the disk does.
    """

    def __init__(
        self, path: Path, data: Bytes, key: str | None = None, again: Callable[[], Bytes] | None = None
    ) -> None:
        """CorruptFile unless what `parse` looks at is as it was written. `again`: maps the file once more."""
        self.path = path
        self.key = path.name if key is None else key
        self.length = len(data)
        self._data = data
        self._again = again
        self._metadata = parse(path, data)

    @staticmethod
    def open(files: Files, path: Path, key: str | None = None) -> MappedSnapshot:
        """FileNotFoundError, CorruptFile."""
        again = partial(map_file, files, path)
        return MappedSnapshot(path, again(), key, again)

    def metadata(self) -> Metadata:
        return self._metadata

    def bitmap(self) -> Bytes:
        return self._part(self._metadata.bitmap.position, self._metadata.bitmap.size)

    def segments(self, first: int, last: int) -> list[Bytes]:
        directory = self._metadata.directory
        chunks = range(first, last + 1)
        return [self._part(int(directory.position[chunk]), int(directory.size[chunk])) for chunk in chunks]

    def _part(self, position: int, size: int) -> Bytes:
        if self._again is not None and lost(self._data).pages:  # perhaps it can be read again
            self._data = self._again()
        return np.frombuffer(self._data[position : position + size].tobytes(), np.uint8)
