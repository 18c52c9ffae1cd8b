"""A `RemoteStore` in memory that outlives every disk; one that marks on a disk what is done to it, one that is down.

Whoever has the marks before a crash has the storage as it was then: `storage_of`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from afterlog.base.errors import CorruptRemote, RemoteConflict, RemoteMissing, RemoteUnavailable
from afterlog.base.files import Bytes, Data
from afterlog.tier.remote_store import GAP_BYTES, RemoteObject, check_key
from tests.campaigns.simulated_disk import SimulatedFiles, digest_of


class MemoryStore:
    """Thread-safe, and strict where others may not be: what is put under a key stays what it is."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.versions: dict[str, int] = {}
        self._lock = threading.Lock()

    def copy(self) -> MemoryStore:
        other = MemoryStore()
        other.objects, other.versions = dict(self.objects), dict(self.versions)
        return other

    def fingerprint(self) -> int:
        """Of all that it holds."""
        return hash(tuple(sorted(self.objects.items())))

    def put(self, key: str, data: Data) -> None:
        with self._lock:
            assert self.objects.setdefault(check_key(key), bytes(data)) == bytes(data), f"{key} is put a second time"

    def put_if(self, key: str, data: Data, version: str | None) -> str:
        with self._lock:
            if self._version(check_key(key)) != version:
                raise RemoteConflict("another version", path=key)
            self.objects[key] = bytes(data)
            self.versions[key] = self.versions.get(key, 0) + 1
            return str(self.versions[key])

    def get(self, key: str, size_max: int) -> tuple[bytes, str]:
        with self._lock:
            data = self._held(key)
            if len(data) > size_max:
                raise CorruptRemote("larger than expected", path=key)
            return data, self._version(key) or ""

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]], gap: int = GAP_BYTES) -> list[Bytes]:
        data = self._held(key)
        if any(end > len(data) for _, end in ranges):
            raise CorruptRemote("it ends before that", path=key)
        return [np.frombuffer(data[start:end], np.uint8) for start, end in ranges]

    def head(self, key: str) -> RemoteObject:
        return RemoteObject(key, len(self._held(key)))

    def list_objects(self, folder: str = "") -> Iterator[RemoteObject]:
        prefix = f"{folder}/" if folder else ""
        return iter([RemoteObject(key, len(data)) for key, data in self.objects.items() if key.startswith(prefix)])

    def delete(self, key: str) -> None:
        with self._lock:
            self.objects.pop(check_key(key), None)

    def _held(self, key: str) -> bytes:
        try:
            return self.objects[check_key(key)]
        except KeyError:
            raise RemoteMissing("no such object", path=key) from None

    def _version(self, key: str) -> str | None:
        return str(self.versions.get(key, 0)) if key in self.objects else None


@dataclass(frozen=True, slots=True)
class Stored:
    """An object is in the storage from here on; without data it is not."""

    key: str
    digest: bytes
    data: bytes | None = field(repr=False)


class MarkedStore(MemoryStore):
    """Every change is durable at once, and marked on a disk between the operations of whoever made it."""

    def __init__(self, disk: SimulatedFiles, held: MemoryStore | None = None) -> None:
        super().__init__()
        if held is not None:
            self.objects, self.versions = dict(held.objects), dict(held.versions)
        self._disk = disk

    def put(self, key: str, data: Data) -> None:
        super().put(key, data)
        self._mark(key)

    def put_if(self, key: str, data: Data, version: str | None) -> str:
        changed = super().put_if(key, data, version)
        self._mark(key)
        return changed

    def delete(self, key: str) -> None:
        super().delete(key)
        self._mark(key)

    def _mark(self, key: str) -> None:
        data = self.objects.get(key)
        self._disk.mark(Stored(key, digest_of(data or b""), data))


def storage_of(marks: Iterable[object]) -> MemoryStore:
    """The storage behind all these marks."""
    storage = MemoryStore()
    for mark in marks:
        if isinstance(mark, Stored) and mark.data is None:
            storage.objects.pop(mark.key, None)
        elif isinstance(mark, Stored) and mark.data is not None:
            storage.objects[mark.key] = mark.data
            storage.versions[mark.key] = storage.versions.get(mark.key, 0) + 1
    return storage


class Unreachable:
    """A storage that is down: every call raises RemoteUnavailable."""

    def put(self, key: str, data: Data) -> None:
        self._down(key)

    def put_if(self, key: str, data: Data, version: str | None) -> str:
        self._down(key)

    def get(self, key: str, size_max: int) -> tuple[bytes, str]:
        self._down(key)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]], gap: int = GAP_BYTES) -> list[Bytes]:
        self._down(key)

    def head(self, key: str) -> RemoteObject:
        self._down(key)

    def list_objects(self, folder: str = "") -> Iterator[RemoteObject]:
        self._down(folder)

    def delete(self, key: str) -> None:
        self._down(key)

    def _down(self, key: str) -> NoReturn:
        raise RemoteUnavailable("the storage is down", path=key)
