"""Object storage through the library obstore (extra `tiered`): S3, Google Cloud Storage, Azure, and memory.

Tried on moto, on a Ceph RADOS gateway and in memory. What differs among them, and is evened out here:

- A version is the storage's e-tag, its generation number, or both: a JSON object of what the storage gave.
- RADOS gateway compares an e-tag only without its quotes. Where a quoted one is refused it is tried again without;
  where it really is not the newest, that is refused too.
- No S3 server tried here checks a CRC-32C that it is sent. Who must know reads back (`afterlog.tier.verify_upload`).
- A large object goes up in parts. Parts of an upload that broke off stay there, where listings do not show
  them: give the bucket a rule that removes incomplete multipart uploads.

Retries and time limits are the library's: `open_remote(url, retry_config=…, client_options=…)`.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from afterlog.base.errors import (
    CorruptRemote,
    RemoteConflict,
    RemoteError,
    RemoteMissing,
    RemoteRefused,
    RemoteUnavailable,
)
from afterlog.base.files import Bytes, Data
from afterlog.tier.remote_store import GAP_BYTES, RemoteObject, check_key

if TYPE_CHECKING:
    from obstore import UpdateVersion
    from obstore.store import ObjectStore as Backend

SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl", "memory")
_PART_BYTES = 16 << 20
_PARTS_AT_ONCE = 4
_RETRIES = {"max_retries": 5, "retry_timeout": timedelta(seconds=60)}
_MESSAGE_SIZE_MAX = 300
_LEAVES: Mapping[str, type[RemoteError]] = {
    "NotFoundError": RemoteMissing,
    "FileNotFoundError": RemoteMissing,
    "AlreadyExistsError": RemoteConflict,
    "PreconditionError": RemoteConflict,
    "PermissionDeniedError": RemoteRefused,
    "UnauthenticatedError": RemoteRefused,
    "InvalidPathError": RemoteRefused,
    "NotSupportedError": RemoteRefused,
    "UnknownConfigurationKeyError": RemoteRefused,
    "PermissionError": RemoteRefused,
    "NotImplementedError": RemoteRefused,
}
_REFUSED = re.compile("NoSuchBucket|bucket does not exist|ContainerNotFound|status code: 40[13]")
_QUERY = re.compile(r"(?<=[^\s?])\?\S*")


class ObjectStore:
    """`RemoteStore` over a store of obstore. Pickles where that does."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @staticmethod
    def open(url: str, **options: Any) -> ObjectStore:
        """`options` as `obstore.store.from_url` takes them. Nothing is asked of the storage yet."""
        try:
            from obstore.store import from_url
        except ImportError as error:
            raise ImportError("object storage needs obstore: pip install 'afterlog[tiered]'") from error
        if not url.startswith("memory:"):
            options = {"retry_config": _RETRIES, **options}
        place = url.rpartition("@")[2]  # without what may be a password
        try:
            with _named(place):
                return ObjectStore(from_url(url, **options))
        except RemoteUnavailable as error:  # nobody was asked yet
            raise RemoteRefused(error.message, path=place) from None

    def put(self, key: str, data: Data) -> None:
        with _named(key):
            self._backend.put(check_key(key), data, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE)

    def put_if(self, key: str, data: Data, version: str | None) -> str:
        if not len(data):
            raise ValueError("an empty object cannot be told from a deleted one everywhere")
        if version is None:
            return self._put_mode(key, data, "create")
        expected = json.loads(version)
        try:
            return self._put_mode(key, data, expected)
        except RemoteConflict:
            tag = expected.get("e_tag", "")
            if not tag.startswith('"'):
                raise
        return self._put_mode(key, data, {**expected, "e_tag": tag.strip('"')})

    def get(self, key: str, size_max: int) -> tuple[bytes, str]:
        with _named(key):
            found = self._backend.get(check_key(key))
            size = found.meta["size"]
            if size > size_max:
                raise CorruptRemote(f"{size} bytes, where at most {size_max} are expected", path=key)
            data = bytes(found.bytes())
            if len(data) != size:
                raise RemoteUnavailable(f"{len(data)} bytes came of {size}", path=key)
            return data, _version(found.meta, key)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]], gap: int = GAP_BYTES) -> list[Bytes]:
        if not ranges:
            return []
        starts, ends = zip(*ranges, strict=True)
        try:
            with _named(key):
                parts = self._backend.get_ranges(check_key(key), starts=starts, ends=ends, coalesce=gap)
        except RemoteUnavailable:
            if self.head(key).size < max(ends):  # how a range after the end is refused is a matter of taste
                raise CorruptRemote(f"it ends before byte {max(ends)}", path=key, position=max(ends)) from None
            raise
        found = [np.frombuffer(part, np.uint8) for part in parts]
        for part, (start, end) in zip(found, ranges, strict=True):
            if len(part) != end - start:
                raise CorruptRemote(f"it ends before byte {end}", path=key, position=start)
        return found

    def head(self, key: str) -> RemoteObject:
        with _named(key):
            return RemoteObject(key, self._backend.head(check_key(key))["size"])

    def list_objects(self, folder: str = "") -> Iterator[RemoteObject]:
        with _named(folder):
            for rows in self._backend.list(check_key(folder) if folder else None, chunk_size=1_000):
                for row in rows:
                    yield RemoteObject(row["path"], row["size"])

    def delete(self, key: str) -> None:
        with contextlib.suppress(RemoteMissing), _named(key):
            self._backend.delete(check_key(key))

    def _put_mode(self, key: str, data: Data, mode: Any) -> str:
        with _named(key):
            return _version(self._backend.put(check_key(key), data, mode=mode), key)


def _version(given: Mapping[str, Any], key: str) -> str:
    version: UpdateVersion = {}
    if given.get("e_tag") is not None:
        version["e_tag"] = given["e_tag"]
    if given.get("version") is not None:
        version["version"] = given["version"]
    if not version:
        raise RemoteRefused("the storage gives objects no versions, so that nobody could tell who was first", path=key)
    return json.dumps(version)


@contextlib.contextmanager
def _named(key: str) -> Iterator[None]:
    """Errors of the library as ours."""
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, FileNotFoundError, PermissionError, NotImplementedError) as error:
        raise _leaf(error)(_text(error), path=key) from None  # its own text may hold a signed address


def _leaf(error: Exception) -> type[RemoteError]:
    if _REFUSED.search(str(error)):
        return RemoteRefused
    return _LEAVES.get(type(error).__name__, RemoteUnavailable)


def _text(error: Exception) -> str:
    """The first line, without what may be a signature behind an address and without the answer's body."""
    line = str(error).partition("\n")[0].partition("<")[0]
    return _QUERY.sub("?…", line)[:_MESSAGE_SIZE_MAX].rstrip(": ")
