"""A seam: the files of a sealed segment that lie in object storage, as the log reads them.

The log knows nothing of object storage. `tier/` implements these two protocols, and whoever opens a partition hands it
a `RemoteLog` with its `LogContext`; KIP-405 calls the like a RemoteStorageManager. What is read so was put there once
and never changes. Every call may raise RemoteUnavailable, RemoteRefused, RemoteMissing and CorruptRemote.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn, Protocol

from afterlog.base.errors import RemoteRefused
from afterlog.base.files import Bytes
from afterlog.base.names import run_key
from afterlog.index.growing_columns import Int64Array
from afterlog.index.run import Outline, Run
from afterlog.index.run_format import Metadata
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

    def records(self) -> int:
        """How many records the run holds, by the run itself."""

    def forget(self) -> None:
        """What was read fails its checks: keep nothing of it, so that it is fetched anew the next time."""


class RemoteLog(Protocol):
    """The segments of one partition. Thread-safe."""

    def copy(self, mark: SealedMark) -> RemoteCopy:
        """Of a segment that has been uploaded (`mark.remote`). Reads nothing."""


def outline(mark: SealedMark) -> Outline:
    """What the mark of a segment tells of its run."""
    return Outline(coverage=mark.coverage, records=mark.records, upto=mark.last_key)


class NoRemoteLog:
    """For who opens a log without object storage: what lies there is known, and reading it raises RemoteRefused."""

    def copy(self, mark: SealedMark) -> RemoteCopy:
        return _NoCopy(mark)


NO_REMOTE_LOG = NoRemoteLog()


class _NoCopy:
    """Remote copy and bucket snapshot in one, of which nothing can be read."""

    def __init__(self, mark: SealedMark) -> None:
        self._mark = mark
        self.key = run_key(mark.base_offset, mark.generation)
        self.path = Path(self.key)
        self.length = 0 if mark.remote is None else mark.remote.run.size

    def view(self, start: int, end: int) -> NoReturn:
        self._refuse()

    def gather(self, offsets: Int64Array, positions: Int64Array, size_max: int) -> NoReturn:
        self._refuse()

    def sparse(self) -> NoReturn:
        self._refuse()

    def cancel_index(self) -> NoReturn:
        self._refuse()

    def metadata(self) -> Metadata:
        self._refuse()

    def bitmap(self) -> Bytes:
        self._refuse()

    def segments(self, first: int, last: int) -> list[Bytes]:
        self._refuse()

    def forget(self) -> None:
        pass

    def run(self) -> Run:
        return Run(self, outline(self._mark))

    def records(self) -> int:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise RemoteRefused(
            f"offsets {self._mark.base_offset} to {self._mark.end_offset} lie in object storage: open the store with "
            "remote=…",
            path=self.path,
        )
