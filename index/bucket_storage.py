"""Where the runs of a partition are stored: a seam, with the local folder behind it. PIP-195: BucketSnapshotStorage.

A key names a snapshot within its partition: `buckets/<first>-<end>.deliverafterindex`, `<base>.deliverafterindex`. A
snapshot is written once, as a whole, and never changed; an implementation passes `BucketSnapshotStorageTests`. One
counts and times what is done with another; the kinds of operation are PIP-195's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from afterlog.base.clock import Clock
from afterlog.base.files import Files, opened
from afterlog.base.measures import Operation
from afterlog.index.bucket_snapshot import BucketSnapshot, MappedSnapshot
from afterlog.index.entries import Entries
from afterlog.index.run import Run
from afterlog.index.run_format import Coverage
from afterlog.index.run_writer import write_run

Mend = Callable[[Run], BucketSnapshot | None]


class BucketSnapshotStorage(Protocol):
    """Thread-safe, but for two calls at a time with one key."""

    def create(self, key: str, blocks: Iterable[Entries], coverage: Coverage) -> Run:
        """Store a run of the entries of all blocks, which follow each other in delivery order.

        When it returns, the run is durable and can be opened under the key; what was there before is gone, except for
        those who have it open. Where it raises, there is what was there before. ValueError where a run cannot hold the
        entries; StorageFull.
        """

    def open(self, key: str) -> Run:
        """Read its metadata; the rest when it is needed. FileNotFoundError, CorruptFile."""

    def length(self, key: str) -> int:
        """Bytes that are stored under the key. FileNotFoundError."""

    def delete(self, key: str) -> None:
        """Remove it, if it is there. Who has it open may go on reading. A crash may bring it back."""


class LocalBucketSnapshotStorage:
    """Runs as files in the folder of a partition, whose subfolders are there already."""

    def __init__(
        self, files: Files, folder: Path, *, max_entries: int, max_step_ms: int, mend: Mend | None = None
    ) -> None:
        """mend: as of `Run`."""
        self._mend = mend
        self._files = files
        self._folder = folder
        self._max_entries = max_entries
        self._max_step_ms = max_step_ms

    def create(self, key: str, blocks: Iterable[Entries], coverage: Coverage) -> Run:
        path = self._folder / key
        write_run(self._files, path, blocks, coverage, max_entries=self._max_entries, max_step_ms=self._max_step_ms)
        return self._mapped(key)

    def open(self, key: str) -> Run:
        return self._mapped(key)

    def length(self, key: str) -> int:
        with opened(self._files, self._folder / key) as file:
            return file.size()

    def delete(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.unlink(self._folder / key)

    def _mapped(self, key: str) -> Run:
        run = Run(MappedSnapshot.open(self._files, self._folder / key, key))
        run.mend = self._mend
        return run


@dataclass(frozen=True, slots=True)
class BucketOperations:
    """What is done with the runs of a partition. A merge creates and deletes, too, which counts with these as well."""

    create: Operation = field(default_factory=Operation)
    load: Operation = field(default_factory=Operation)
    """Of one chunk, whoever needs it."""
    merge: Operation = field(default_factory=Operation)
    delete: Operation = field(default_factory=Operation)
    mend: Operation = field(default_factory=Operation)
    """Of a run that rotted, from the log."""


class MeasuredBucketSnapshotStorage:
    """Any `BucketSnapshotStorage`, and its runs, measured. Merges are measured where they are made."""

    def __init__(self, storage: BucketSnapshotStorage, operations: BucketOperations, clock: Clock) -> None:
        self._storage = storage
        self._operations = operations
        self._clock = clock

    def create(self, key: str, blocks: Iterable[Entries], coverage: Coverage) -> Run:
        with self._operations.create.measured(self._clock):
            run = self._storage.create(key, blocks, coverage)
        return self._measured(run)

    def open(self, key: str) -> Run:
        return self._measured(self._storage.open(key))

    def length(self, key: str) -> int:
        return self._storage.length(key)

    def delete(self, key: str) -> None:
        with self._operations.delete.measured(self._clock):
            self._storage.delete(key)

    def _measured(self, run: Run) -> Run:
        run.loading = partial(self._operations.load.measured, self._clock)
        return run
