"""One durable frontier for all partitions of a store: a lease that they share, in one small document.

    afterlog-frontier 1 8f3ab01c\\n
    {"lease_ms":1700000001000,"used_ms":{"mail-0":1700000000000}}\\n

- `lease_ms`: no fetch of any delayed partition used a larger reading, but for what its own checkpoints say.
- `used_ms`: of partitions that delivered, a reading that decided "due" there: their own, and never another's.

What is true of a partition is the larger of this and its checkpoints, each for itself (docs/decisions/0043):

    open p       ──> joined(p): stamps above both leases, deliveries from the larger `used_ms` on
    deliver in p ──> lease(p, reading): within the lease a row in memory; above it the document, durable, first
    close        ──> each partition's own checkpoints ──> after the last one: what was found at the open, for those
                     that were at rest all the time; nothing, where nothing was found

The document is there while the store is open and has delivered, and after a crash. It lies among the documents of
topics made later, under a name that no topic's can have: versions that know nothing of it refuse a document there that
is no topic's, instead of stamping below what was delivered.

Invariants:

1. While the store is open the document goes on, never back: `lease_ms`, and the row of each partition.
2. A reading that delivered in p is at or below max(p's lease, the store's), durable before anything is handed out.
3. It is taken back only where the checkpoints of every partition that was open say what they used.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from afterlog.base import document
from afterlog.base.document import whole
from afterlog.base.errors import CorruptFile, StoreClosed
from afterlog.base.files import Files
from afterlog.base.names import FRONTIER, LATER_TOPICS
from afterlog.log.checkpoints import FrontierLease

FORMAT = "afterlog-frontier"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLease:
    """The content of the document; as it is here where there is none."""

    lease_ms: int = 0
    used_ms: Mapping[str, int] = field(default_factory=dict)
    """By the folder of the partition."""

    def joined(self, partition: str, own: FrontierLease) -> FrontierLease:
        """The frontier of a partition whose checkpoints say `own`."""
        return FrontierLease(
            used_ms=max(own.used_ms, self.used_ms.get(partition, 0)), lease_ms=max(own.lease_ms, self.lease_ms)
        )

    def put_back(self, now_ms: int) -> SharedLease:
        """With nothing above `now_ms`."""
        return SharedLease(
            lease_ms=min(self.lease_ms, now_ms), used_ms={name: min(ms, now_ms) for name, ms in self.used_ms.items()}
        )


def frontier_path(store: Path) -> Path:
    return store / LATER_TOPICS / FRONTIER


def read_frontier(files: Files, store: Path) -> SharedLease:
    """Of the store in the folder `store`. Raises CorruptFile."""
    path = frontier_path(store)
    try:
        body = document.read(files, path, FORMAT, VERSION)
    except FileNotFoundError:
        return SharedLease()
    try:
        return SharedLease(
            lease_ms=whole(body["lease_ms"]), used_ms={name: whole(ms) for name, ms in body["used_ms"].items()}
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CorruptFile(f"the store's frontier holds something unknown: {error}", path=path) from error


def write_frontier(files: Files, store: Path, content: SharedLease) -> None:
    """Durably. The folder of later topics is there."""
    body: dict[str, Any] = {"lease_ms": content.lease_ms, "used_ms": dict(content.used_ms)}
    document.write(files, frontier_path(store), FORMAT, VERSION, body)


class StoreFrontier:
    """That of an open store. Thread-safe."""

    def __init__(self, files: Files, store: Path, ahead_ms: int) -> None:
        """ahead_ms: how far ahead of a reading the lease is written."""
        self._files = files
        self._store = store
        self._ahead_ms = ahead_ms
        self._found = SharedLease()
        self.lease_ms = 0
        """Durable."""
        self._used_ms: dict[str, int] = {}
        """Of each partition that delivered by it in this life."""
        self._closed = False
        self._lock = threading.Lock()
        """Of who writes the document. No other is taken under it."""

    def recover(self) -> None:
        """Begin with what the life before has left. Raises CorruptFile."""
        self._found = read_frontier(self._files, self._store)
        self.lease_ms = self._found.lease_ms

    def joined(self, partition: str, own: FrontierLease) -> FrontierLease:
        """What a partition begins with that is opened now."""
        return self._found.joined(partition, own)

    def lease(self, partition: str, reading_ms: int) -> None:
        """Make durable that a partition delivers by a reading, one write for all that come until the lease ends.

        Where it raises OSError the document is the old one or the new one, and nothing may be delivered. StoreClosed.
        """
        if reading_ms > self.lease_ms:
            with self._lock:
                if self._closed:  # by then the store may be another's
                    raise StoreClosed("the store is closed; open it again with afterlog.open(path)")
                if reading_ms > self.lease_ms:  # who waited finds it done
                    lease_ms = reading_ms + self._ahead_ms
                    used_ms = {**self._found.used_ms, **self._used_ms, partition: reading_ms}
                    write_frontier(self._files, self._store, SharedLease(lease_ms=lease_ms, used_ms=used_ms))
                    self.lease_ms = lease_ms
        self._used_ms[partition] = reading_ms

    def forget(self, partitions: Collection[str]) -> None:
        """These are deleted: what they used binds nobody who is made in their place. Raises OSError."""
        with self._lock:
            for name in partitions:
                self._used_ms.pop(name, None)
            left = {name: ms for name, ms in self._found.used_ms.items() if name not in partitions}
            if len(left) < len(self._found.used_ms):
                used_ms = {**left, **self._used_ms}
                write_frontier(self._files, self._store, SharedLease(lease_ms=self.lease_ms, used_ms=used_ms))
                self._found = SharedLease(lease_ms=self._found.lease_ms, used_ms=left)

    def close(self) -> None:
        """No partition leases any more."""
        with self._lock:
            self._closed = True

    def end(self, at_rest: Collection[str]) -> None:
        """Take it back: all that were open have their own. at_rest: the delayed partitions that never were.

        Can be called again. Raises OSError, with the document as it was or as it should be.
        """
        with self._lock:
            left = SharedLease(
                lease_ms=self._found.lease_ms,
                used_ms={name: ms for name, ms in self._found.used_ms.items() if name in at_rest},
            )
            if not at_rest or not left.lease_ms:
                with contextlib.suppress(FileNotFoundError):
                    self._files.unlink(frontier_path(self._store))
                    self._files.sync_folder(frontier_path(self._store).parent)
            elif self.lease_ms > left.lease_ms or left != self._found:
                write_frontier(self._files, self._store, left)
