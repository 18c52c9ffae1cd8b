"""A remote store that can be told to stop: whoever goes on with it gets an error, between two requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from afterlog.base.files import Bytes, Data
from afterlog.tier.remote_store import GAP_BYTES, RemoteObject, RemoteStore


class InterruptibleStore:
    """`RemoteStore` over another. `proceed` is called before every request, and raises where there should be none."""

    def __init__(self, remote: RemoteStore, proceed: Callable[[], object]) -> None:
        self._remote = remote
        self._proceed = proceed

    def put(self, key: str, data: Data) -> None:
        self._proceed()
        self._remote.put(key, data)

    def put_if(self, key: str, data: Data, version: str | None) -> str:
        self._proceed()
        return self._remote.put_if(key, data, version)

    def get(self, key: str, size_max: int) -> tuple[bytes, str]:
        self._proceed()
        return self._remote.get(key, size_max)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]], gap: int = GAP_BYTES) -> list[Bytes]:
        self._proceed()
        return self._remote.get_ranges(key, ranges, gap)

    def head(self, key: str) -> RemoteObject:
        self._proceed()
        return self._remote.head(key)

    def list_objects(self, folder: str = "") -> Iterator[RemoteObject]:
        self._proceed()
        return self._remote.list_objects(folder)

    def delete(self, key: str) -> None:
        self._proceed()
        self._remote.delete(key)
