"""The seam to object storage: everything that afterlog asks of it, and nothing else.

An object is bytes under a key such as ``mail-0/manifest``. Its key is of one of two kinds for ever:

    put       written once, under a key that nobody else uses; the same bytes may be put again
    put_if    written by many: each write names the version that it replaces, or says that it creates

What callers rely on; `RemoteStoreTests` (tests/tier/remote_store_suite.py) holds every implementation to it:

- A write that returned is durable, and whoever looks afterwards sees it. An object is there whole or not at all.
- Of `put_if` calls that race to replace one version, in any process on any machine, exactly one is done.
- A write that raised RemoteUnavailable was done, or was not, or is done later. The client under an implementation
  repeats requests, so that even a `put_if` that raised RemoteConflict may be the one that was done: where that matters
  the caller reads again, and knows its own write (`Manifest.update` does).
- Transient failures were retried before RemoteUnavailable is raised.

What comes from there is untrusted: `get` is bounded by its caller, `get_ranges` returns exactly what was asked for
or raises, and the keys that `list_objects` yields may be any text. Nothing but a check of the bytes says that they are
those that were put.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from afterlog.base.files import TEMPORARY_SUFFIX, Bytes, Data

GAP_BYTES = 64 << 10
"""Ranges no further apart are read as one: on a near network a request costs about as much as this many bytes."""
VERSIONS_SUFFIX = ".versions"
_KEY_SIZE_MAX = 1024
_PART = re.compile(r"[a-zA-Z0-9._-]{1,255}\Z")
_RESERVED = (TEMPORARY_SUFFIX, VERSIONS_SUFFIX)


class RemoteObject(NamedTuple):
    """What a listing tells of an object. The key is untrusted."""

    key: str
    size: int


@runtime_checkable
class RemoteStore(Protocol):
    """Thread-safe. Every method may raise RemoteUnavailable and RemoteRefused; keys are checked with `check_key`."""

    def put(self, key: str, data: Data) -> None:
        """Write an object. `data` may be a mapped file: it is not copied as a whole. StorageFull."""

    def put_if(self, key: str, data: Data, version: str | None) -> str:
        """Replace the object if its version is still `version`; None: create it if it is not there. The new version.

        RemoteConflict: it is not so. `data` is small, and not empty.
        """

    def get(self, key: str, size_max: int) -> tuple[bytes, str]:
        """All of an object, and its version for `put_if`. RemoteMissing; CorruptRemote if it is larger."""

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]], gap: int = GAP_BYTES) -> list[Bytes]:
        """The bytes [start, end) of each range; those no more than `gap` apart are read in one request.

        RemoteMissing; CorruptRemote where the object ends before a range does.
        """

    def head(self, key: str) -> RemoteObject:
        """Its size, without its bytes. RemoteMissing."""

    def list_objects(self, folder: str = "") -> Iterator[RemoteObject]:
        """The objects whose keys begin with `folder` and a slash, all of them if it is empty. In no order."""

    def delete(self, key: str) -> None:
        """Remove an object; that it is missing is no error."""


def check_key(key: str) -> str:
    """`key` itself, or ValueError: it is made by us, so that a bad one is our mistake.

    >>> check_key("mail-0/manifest")
    'mail-0/manifest'
    """
    parts = key.split("/")
    if len(key) > _KEY_SIZE_MAX or not all(
        _PART.match(part) and part not in (".", "..") and not part.endswith(_RESERVED) for part in parts
    ):
        raise ValueError(f"{key[:80]!r} cannot be a key")
    return key
