"""A file that is opened at its first use, so that a store of many idle partitions holds few descriptors.

resting ──first use──> open ──rest──> resting
   └───────────────────close──────────────────> closed
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from afterlog.base.errors import StoreClosed
from afterlog.base.files import Bytes, Data, File, Files


class LazyFile:
    """`File` over one that is opened at its first use. Any thread may use it, but while it is told to `rest`.

    A use that has to open it raises what opening does; nothing is written then. It is synced before it rests.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self.path = path
        self._files = files
        self._lock = threading.Lock()
        self._file: File | None = None
        self._closed = False

    @property
    def resting(self) -> bool:
        """Whether nothing was asked of it since it was made, or rests."""
        return self._file is None

    def size(self) -> int:
        return self._used().size()

    def append(self, data: Sequence[Data]) -> None:
        self._used().append(data)

    def pread(self, size: int, position: int) -> bytes:
        return self._used().pread(size, position)

    def sync(self) -> None:
        """Of one that rests everything was synced before."""
        if self._file is not None or self._closed:
            self._used().sync()

    def truncate(self, size: int) -> None:
        self._used().truncate(size)

    def map(self, size: int) -> Bytes:
        return self._used().map(size)

    def rest(self) -> None:
        """Let the descriptor go until the next use."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def close(self) -> None:
        self._closed = True
        self.rest()

    def _used(self) -> File:
        return self._file or self._opened()

    def _opened(self) -> File:
        with self._lock:
            if self._file is None:
                if self._closed:
                    raise StoreClosed(f"{self.path} is closed: its store, or its topic was deleted")
                self._file = self._files.open(self.path)
            return self._file
