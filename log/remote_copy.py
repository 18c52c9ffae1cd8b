"""A seam: the files of a sealed segment that lie in object storage, as the log reads them.

The log knows nothing of object storage. `tier/` implements these two protocols, and whoever opens a partition hands it
a `RemoteLog` with its `Place`; KIP-405 calls the like a RemoteStorageManager. What is read so was put there once and
never changes. Every call may raise RemoteUnavailable, RemoteRefused, RemoteMissing and CorruptRemote.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from afterlog.files import Bytes
from afterlog.index.columns import Int64Array
from afterlog.index.run import Run
from afterlog.index.sparse import SparseIndexes
from afterlog.log.checkpoints import SealedMark


class RemoteCopy(Protocol):
    """One segment. Thread-safe; it holds nothing open and next to no memory."""

    def view(self, start: int, end: int) -> Iterable[tuple[int, Bytes]]:
        """Pieces (position of the first byte, bytes) that hold the entries between `start` and `end`.

        At `start` an entry begins. No entry lies in two pieces, and a piece is read when it is asked for.
        """

    def gather(self, offsets: Int64Array, positions: Int64Array, size_max: int) -> tuple[Bytes, Int64Array]:
        """The entries that hold `offsets` and begin at `positions`: bytes in which they lie, and where in these.

        int64[n] both, in any order. One row in any case, and of further ones as many of the first as fit into about
        `size_max` bytes.
        """

    def sparse(self) -> SparseIndexes:
        """The two sparse indexes, checked."""

    def cancel_index(self) -> bytes:
        """The content of the cancel index, checked; empty where the segment has none."""

    def run(self) -> Run:
        """The segment's run. Nothing is read before the run is."""


class RemoteLog(Protocol):
    """The segments of one partition. Thread-safe."""

    def copy(self, mark: SealedMark) -> RemoteCopy:
        """Of a segment that has been uploaded (`mark.remote`). Reads nothing."""
