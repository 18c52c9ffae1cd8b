"""A bucket snapshot storage that counts and times what is done with it. The kinds of operation are PIP-195's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from afterlog.base.clock import Clock
from afterlog.base.measures import Operation
from afterlog.index.bucket_storage import BucketSnapshotStorage
from afterlog.index.entries import Entries
from afterlog.index.run import Run
from afterlog.index.run_format import Coverage


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
