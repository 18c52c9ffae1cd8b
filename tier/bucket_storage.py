"""Runs in object storage instead of the partition's folder: a `BucketSnapshotStorage`.

    create   1  write the run on the local disk, as a local storage does
             2  put it under a key of its own, which no run ever had
             3  put_if what names it, over what named the one before          published
    open     read what names it, then the run in parts, through the cache

What names a run is a document (`afterlog.document`) of its attempt and its size:

    {"attempt":"0123456789abcdef0123456789abcdef","size":448}

A run that was replaced or deleted stays until nobody here reads it, and goes with the next `create` or `delete`. Who
reads it in another process gets RemoteMissing, and opens the key again. A crash or an error may leave one that nothing
names.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from weakref import WeakValueDictionary

from afterlog import document
from afterlog.errors import CorruptFile, RemoteConflict, RemoteMissing
from afterlog.files import Files, map_file, unused_name
from afterlog.index.entries import Entries
from afterlog.index.run import Run
from afterlog.index.run_format import Coverage
from afterlog.index.run_writer import write_run
from afterlog.names import DELIVER_AFTER_INDEX, is_attempt, remote_run_key, remote_run_pointer
from afterlog.tier.page_cache import PageCache
from afterlog.tier.remote_snapshot import RemoteSnapshot
from afterlog.tier.remote_store import RemoteStore

FORMAT = "afterlog-remote-run"
VERSION = 1
_POINTER_BYTES_MAX = 1_024
_RUN_BYTES_MAX = 1 << 40


class _Stored(NamedTuple):
    """What names a run."""

    attempt: str
    size: int


class RemoteBucketSnapshotStorage:
    """The runs of a partition. `folder`: on the local disk, for the run that is being written."""

    def __init__(
        self,
        remote: RemoteStore,
        partition: str,
        cache: PageCache,
        files: Files,
        folder: Path,
        *,
        max_entries: int,
        max_step_ms: int,
    ) -> None:
        self._remote = remote
        self._partition = partition
        self._cache = cache
        self._files = files
        self._folder = folder
        self._max_entries = max_entries
        self._max_step_ms = max_step_ms
        self._read: WeakValueDictionary[str, RemoteSnapshot] = WeakValueDictionary()
        """What may be read here, by the key of its object."""
        self._replaced: set[str] = set()
        """Objects that nothing names any more."""

    def create(self, key: str, blocks: Iterable[Entries], coverage: Coverage) -> Run:
        stored = self._put(key, blocks, coverage)
        try:
            before, version = self._pointer(key)
        except RemoteMissing:
            before, version = None, None
        body = document.encode(FORMAT, VERSION, stored._asdict())
        try:
            self._remote.put_if(remote_run_pointer(self._partition, key), body, version)
        except RemoteConflict:
            if self._pointer(key)[0] != stored:  # else it was this call that was first
                raise
        self._remove(key, before)
        return self._opened(key, stored)

    def open(self, key: str) -> Run:
        return self._opened(key, self._pointer(key)[0])

    def length(self, key: str) -> int:
        return self._pointer(key)[0].size

    def delete(self, key: str) -> None:
        try:
            before, _ = self._pointer(key)
        except RemoteMissing:
            return
        self._remote.delete(remote_run_pointer(self._partition, key))
        self._remove(key, before)

    def _put(self, key: str, blocks: Iterable[Entries], coverage: Coverage) -> _Stored:
        attempt = unused_name()
        path = self._folder / f"{attempt}{DELIVER_AFTER_INDEX}"
        write_run(self._files, path, blocks, coverage, max_entries=self._max_entries, max_step_ms=self._max_step_ms)
        try:
            data = map_file(self._files, path)
            self._remote.put(remote_run_key(self._partition, key, attempt), data)
            return _Stored(attempt, len(data))
        finally:
            self._files.unlink(path)

    def _opened(self, key: str, stored: _Stored) -> Run:
        object_key = remote_run_key(self._partition, key, stored.attempt)
        snapshot = self._read.get(object_key)
        if snapshot is None:
            snapshot = RemoteSnapshot(self._remote, self._cache, object_key, stored.size, key)
            self._read[object_key] = snapshot
        return Run(snapshot)

    def _pointer(self, key: str) -> tuple[_Stored, str]:
        """What names the run, and its version. RemoteMissing, which is a FileNotFoundError; CorruptFile."""
        pointer = remote_run_pointer(self._partition, key)
        data, version = self._remote.get(pointer, _POINTER_BYTES_MAX)
        body = document.decode(FORMAT, VERSION, data, Path(pointer))
        attempt, size = body.get("attempt"), body.get("size")
        if not (isinstance(attempt, str) and is_attempt(attempt) and type(size) is int and 0 < size < _RUN_BYTES_MAX):
            raise CorruptFile("names no run", path=pointer)
        return _Stored(attempt, size), version

    def _remove(self, key: str, stored: _Stored | None) -> None:
        """Delete what is not named any more, once nobody reads it."""
        if stored is not None:
            self._replaced.add(remote_run_key(self._partition, key, stored.attempt))
        for object_key in [*self._replaced]:
            if object_key not in self._read:
                self._remote.delete(object_key)
                self._replaced.discard(object_key)
