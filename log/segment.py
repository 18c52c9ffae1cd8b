"""One segment: a `.log` file of entries with its offset index, time index and cancel index.

Life-cycle:  active --seal--> sealed --------------unlink--> gone
                                └──upload──> remote ──^

- The active segment grows at its end. Bytes below the visible end never change and are never cut, so they may be read
  through a mapping; what lies behind the mapping is read with pread (docs/decisions/0002).
- A sealed segment is immutable: mapped whole on first use, never truncated, only unlinked. One that was uploaded may be
  unlinked and still be there: then it is read from object storage, in parts.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from afterlog.base.checksum import crc32c
from afterlog.base.errors import CorruptFile
from afterlog.base.files import Bytes, Files, lost, map_file, opened, publish, read_file
from afterlog.base.lazy_file import LazyFile
from afterlog.base.names import CANCEL_INDEX, LOG, OFFSET_INDEX, TIME_INDEX, segment_file
from afterlog.index.cancel_index import Cancelled
from afterlog.index.sparse import SparseIndexes
from afterlog.log.checkpoints import ActiveMark, SealedMark
from afterlog.log.facts import FileMark
from afterlog.log.remote_copy import NO_REMOTE_LOG, RemoteCopy, RemoteLog
from afterlog.log.scan import read_segment

SMALL_BYTES = 4_096
"""Read at once where one entry is wanted. Larger ones are read by their columns."""
REMAP_BYTES = 1 << 20
"""Unmapped bytes up to this are read; beyond it the mapping is made anew, which costs more the larger it is."""


class Loaded:
    """What of a sealed segment's files is mapped and parsed; as long as it is held, somebody may still read these.

    It is the segment's from when that is begun, so a version that knows it as the active one holds it, too.
    """

    __slots__ = ("__weakref__", "data", "sparse")

    def __init__(self) -> None:
        self.data: Bytes | None = None
        self.sparse: SparseIndexes | None = None


class SealedSegment:
    """A sealed segment, opened when first touched. When it is uploaded, or its files go, another takes its place."""

    def __init__(
        self,
        files: Files,
        folder: Path,
        mark: SealedMark,
        interval_bytes: int,
        remote: RemoteLog = NO_REMOTE_LOG,
        loaded: Loaded | None = None,
        *,
        foreign_bytes_max: int | None = None,
    ) -> None:
        """foreign_bytes_max: a Kafka broker wrote it; a batch of it may be so large once it is decompressed."""
        self.base_offset = mark.base_offset
        self.end_offset = mark.end_offset
        self.mark = mark
        self.path = folder / mark.file(LOG)
        self.foreign_bytes_max = foreign_bytes_max
        self._files = files
        self._interval_bytes = interval_bytes
        self._remote = remote
        self.loaded = loaded or Loaded()

    @property
    def size(self) -> int:
        return self.mark.log_bytes

    @property
    def foreign(self) -> bool:
        """Whether a Kafka broker wrote it: when its batches are due they say themselves (`kafka_segment`)."""
        return self.foreign_bytes_max is not None

    @property
    def has_gaps(self) -> bool:
        """Whether a cleaning may have left gaps between its offsets."""
        return self.mark.has_gaps

    def mapped(self) -> Bytes | None:
        """The whole log, if it is in the folder."""
        data = self.loaded.data
        if (data is None or lost(data).pages) and self.is_local():  # what is lost can perhaps be read again
            try:
                data = map_file(self._files, self.path)
            except FileNotFoundError:
                raise CorruptFile("the segment is gone; restore it from a copy", path=self.path) from None
            if len(data) != self.mark.log_bytes:
                raise CorruptFile(f"sealed at {self.mark.log_bytes} bytes, now {len(data)}", path=self.path)
            self.loaded.data = data
        return data

    def pread(self, position: int, end: int, size: int = SMALL_BYTES) -> bytes:
        """Up to so many bytes of what lies there; nothing, where it is not in the folder."""
        data = self.mapped()
        return b"" if data is None else data[position : min(end, position + size)].tobytes()

    def view(self, start: int, end: int) -> Iterable[tuple[int, Bytes]]:
        """Pieces (position of the first byte, bytes) that hold the entries between `start` and `end`, none of them cut.

        `start` is where one begins. Here it is one mapping; of a segment in object storage as many as it takes, each
        read when it is asked for.
        """
        data = self.mapped()
        return [(0, data)] if data is not None else self.remote_copy().view(start, end)

    @property
    def sparse(self) -> SparseIndexes:
        """The two sparse indexes; made anew from the log where their files are missing or fail their checks."""
        if not self.is_local():
            return self.remote_copy().sparse()
        sparse = self.loaded.sparse
        if sparse is None:
            sparse = load_sparse(
                self._files, self.path, self.base_offset, self._interval_bytes, self.mark.index, self.mark.time_index
            )
            sparse = self.loaded.sparse = sparse or self._rebuild_sparse()
        return sparse

    def is_local(self) -> bool:
        """Whether its files are in the folder."""
        return self.mark.local

    def remote_copy(self) -> RemoteCopy:
        """The segment in object storage, where it was uploaded to."""
        return self._remote.copy(self.mark)

    def marked(self, mark: SealedMark) -> SealedSegment:
        """The segment as another mark tells: it was uploaded, or its files are about to go."""
        loaded = self.loaded if mark.local == self.mark.local else None
        return SealedSegment(
            self._files,
            self.path.parent,
            mark,
            self._interval_bytes,
            self._remote,
            loaded,
            foreign_bytes_max=self.foreign_bytes_max,
        )

    def _rebuild_sparse(self) -> SparseIndexes:
        sparse = read_segment(self, self.size).index(SparseIndexes(self.base_offset, self._interval_bytes))
        sparse.finish()
        for suffix, content in zip((OFFSET_INDEX, TIME_INDEX), sparse.to_bytes(), strict=True):
            publish(self._files, self.path.with_suffix(suffix), [content])
        return sparse


class Saved(NamedTuple):
    """How far the indexes of the active segment are durable."""

    mark: ActiveMark
    rows: tuple[int, int] = (0, 0)
    """Of the two sparse indexes."""
    end_offset: int = 0
    """Of the control batches below it the cancel index has the rows."""


class Unsaved(NamedTuple):
    """What the indexes of the active segment have, as of one end of the log, and their files do not."""

    since: Saved
    then: Saved
    """When they have it; the marks are still those of before."""
    contents: tuple[bytes, bytes, bytes]
    """For `.index`, `.timeindex`, `.cancelindex`."""


class ActiveSegment:
    """The segment that grows. The log calls everything but `view` and `save` under its append lock."""

    foreign_bytes_max = None
    foreign = False
    has_gaps = False

    def __init__(
        self, files: Files, folder: Path, base_offset: int, interval_bytes: int, size: int | None = None
    ) -> None:
        """`size`: for who only looks, and only at so much of it; the rest is another process's."""
        self.base_offset = base_offset
        self.path = folder / segment_file(base_offset, LOG)
        self.sparse = SparseIndexes(base_offset, interval_bytes)
        self._files = files
        self._file = LazyFile(files, self.path)
        weakref.finalize(self, self._file.close).atexit = False  # readers may hold the segment long after its roll
        self.size = self._file.size() if size is None else size
        """Bytes that were written, believed or not."""
        self._mapped: Bytes = np.empty(0, np.uint8)
        self._map_lock = threading.Lock()
        self.loaded = Loaded()
        self._cancelled: list[Cancelled] = []
        self.saved = Saved(ActiveMark(base_offset=base_offset))

    @staticmethod
    def create(
        files: Files, folder: Path, base_offset: int, interval_bytes: int, *, sync_names: bool = True
    ) -> ActiveSegment:
        """New, empty files with durable names. Leftovers of an unfinished roll, which hold nothing, are removed.

        There are no bytes to sync yet. Who syncs the folder anyway leaves out `sync_names`.
        """
        for suffix in (LOG, OFFSET_INDEX, TIME_INDEX, CANCEL_INDEX):
            path = folder / segment_file(base_offset, suffix)
            if files.exists(path):
                files.unlink(path)
            if suffix == CANCEL_INDEX:  # made when there is something to put into it
                continue
            files.create(path).close()
        if sync_names:
            files.sync_folder(folder)
        return ActiveSegment(files, folder, base_offset, interval_bytes)

    @property
    def mark(self) -> ActiveMark:
        """What was made durable of the indexes so far."""
        return self.saved.mark

    def append(self, data: Bytes | bytes) -> None:
        """Write entries at the end. Where it raises, part of them may be there: `rollback`."""
        self._file.append([data])
        self.size += len(data)

    def rollback(self, size: int) -> None:
        """Cut what a failed append left behind `size`, durably."""
        if self._file.resting:
            return  # it could not be opened: nothing was written
        self._file.truncate(size)
        self.size = size
        self._file.sync()

    def cut(self, size: int) -> None:
        """Cut a torn tail: recovery only, before anything is read."""
        self._file.truncate(size)
        self.size = size

    def sync(self) -> None:
        self._file.sync()

    def tail(self, position: int) -> Bytes:
        """A copy of everything behind `position`, whatever it is: for recovery."""
        return np.frombuffer(self._file.pread(self.size - position, position), np.uint8)

    def pread(self, position: int, end: int, size: int = SMALL_BYTES) -> bytes:
        """Up to so many bytes of what lies there, no further than the visible `end`."""
        return self._file.pread(min(end - position, size), position)

    def view(self, start: int, end: int) -> list[tuple[int, Bytes]]:
        """Pieces (position of the first byte, bytes) that hold entries between `start` and the visible `end`."""
        with self._map_lock:
            mapped = self._mapped
            if end - len(mapped) > REMAP_BYTES or lost(mapped).pages:
                if end > self._file.size():
                    raise CorruptFile(f"{end} bytes were written, fewer are left", path=self.path)
                mapped = self._mapped = self._file.map(end)
        if end <= len(mapped):
            return [(0, mapped)]
        tail_start = max(start, len(mapped))
        tail = np.frombuffer(self._file.pread(end - tail_start, tail_start), np.uint8)
        if len(tail) != end - tail_start:
            raise CorruptFile(f"{end} bytes were written, fewer can be read", path=self.path, position=tail_start)
        return [(0, mapped), (tail_start, tail)] if start < len(mapped) else [(tail_start, tail)]

    def load_sparse(self, marks: ActiveMark) -> bool:
        """Take the sparse indexes as far as they were made durable. False: missing or rotten, scan from the start."""
        sparse = load_sparse(
            self._files, self.path, self.base_offset, self.sparse.interval_bytes, marks.index, marks.time_index
        )
        self.saved = Saved(ActiveMark(base_offset=self.base_offset, cancel_index=marks.cancel_index))
        if sparse is None:
            return False
        sparse.latest = marks.latest
        self.sparse = sparse
        self.saved = Saved(marks, (sparse.offsets.count, sparse.times.count))
        return True

    def create_sparse(self) -> None:
        """Files for the sparse indexes, empty again: for recovery, where what is there cannot be trusted."""
        for suffix in (OFFSET_INDEX, TIME_INDEX):
            publish(self._files, self.path.with_suffix(suffix), [])

    def add_cancelled(self, cancelled: Cancelled) -> None:
        """Note what control batches that were appended have cancelled.

        Parts that are no larger than what comes behind them are joined with it: a few are left, and a cancel of one
        record takes its 24 bytes, not three arrays.
        """
        parts = [*self._cancelled, cancelled]
        while len(parts) > 1 and len(parts[-2]) <= len(parts[-1]):
            parts[-2:] = [Cancelled.concatenate(parts[-2:])]
        self._cancelled = parts

    def unsaved(self, end_offset: int) -> Unsaved:
        """What is to be made durable of the indexes. end_offset: of the log."""
        saved, sparse = self.saved, self.sparse
        cancelled = Cancelled.concatenate(self._cancelled).since(saved.end_offset)
        self._cancelled = [cancelled]
        return Unsaved(
            saved,
            Saved(replace(saved.mark, latest=sparse.latest), (sparse.offsets.count, sparse.times.count), end_offset),
            (*sparse.since(*saved.rows), cancelled.to_bytes()),
        )

    def save(self, unsaved: Unsaved) -> ActiveMark:
        """Make it durable, and say what may be trusted of the indexes; `saved` is `unsaved.since` so far.

        Where it is interrupted `saved` stays, and what the files have beyond that is cut the next time.
        """
        then = unsaved.then
        offsets, times, cancelled = unsaved.contents
        mark = replace(
            then.mark,
            index=self._extend(OFFSET_INDEX, offsets, then.mark.index),
            time_index=self._extend(TIME_INDEX, times, then.mark.time_index),
            cancel_index=self._extend(CANCEL_INDEX, cancelled, then.mark.cancel_index),
        )
        self.saved = then._replace(mark=mark)
        return mark

    def save_indexes(self, end_offset: int) -> ActiveMark:
        """Make the indexes durable as they are, and say what may be trusted of them."""
        return self.save(self.unsaved(end_offset))

    def _extend(self, suffix: str, data: bytes, saved: FileMark) -> FileMark:
        """Append to an index file, of which `saved` says what is durable; what is durable then."""
        size, crc = saved
        path = self.path.with_suffix(suffix)
        if data and suffix == CANCEL_INDEX and size == 0:
            publish(self._files, path, [data])
        elif data:
            with opened(self._files, path) as file:
                if file.size() != size:
                    file.truncate(size)
                file.append([data])
                file.sync()
        return FileMark(size + len(data), crc32c(data, crc))

    def seal(self, end_offset: int, max_deliver_after: int, last_stamp_ms: int = -1) -> SealedMark:
        """Finish the indexes and make everything durable; the row for the checkpoints, which has these facts."""
        self.sparse.finish()
        marks = self.save_indexes(end_offset)
        return SealedMark(
            base_offset=self.base_offset,
            end_offset=end_offset,
            log_bytes=self.size,
            max_deliver_after=max_deliver_after,
            max_timestamp=marks.latest[0],
            index=marks.index,
            time_index=marks.time_index,
            cancel_index=marks.cancel_index,
            last_stamp_ms=last_stamp_ms,
        )

    def rest(self) -> None:
        """Hold no descriptor until it is written or read: of what recovery has read nobody may ever want more."""
        self._file.rest()

    def close(self) -> None:
        self._file.close()


def load_sparse(
    files: Files,
    log_path: Path,
    base_offset: int,
    interval_bytes: int,
    index: tuple[int, int],
    time_index: tuple[int, int],
) -> SparseIndexes | None:
    """The sparse indexes of a segment where the files hold what the checkpoints say, else None."""
    content = []
    for suffix, (size, crc) in ((OFFSET_INDEX, index), (TIME_INDEX, time_index)):
        try:
            data = read_file(files, log_path.with_suffix(suffix))[:size]
        except FileNotFoundError:
            return None
        if len(data) != size or crc32c(data) != crc:
            return None
        content.append(data)
    return SparseIndexes.from_bytes(content[0], content[1], base_offset, interval_bytes)


def load_cancelled(files: Files, log_path: Path, saved: tuple[int, int]) -> Cancelled | None:
    """The cancel index of a segment where the file holds what the checkpoints say, else None."""
    size, crc = saved
    if not size:
        return Cancelled.empty()
    try:
        data = read_file(files, log_path.with_suffix(CANCEL_INDEX))[:size]
    except FileNotFoundError:
        return None
    if len(data) != size or crc32c(data) != crc:
        return None
    return Cancelled.from_bytes(data)


Segment = SealedSegment | ActiveSegment
