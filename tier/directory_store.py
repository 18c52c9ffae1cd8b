"""A local directory, or a mounted one, as object storage.

    <folder>/mail-0/00000000000000000000-….log      put: a file, written aside and renamed
    <folder>/mail-0/manifest.versions/              put_if: a folder of numbered versions, of which the highest counts
        00000000000000000006
        00000000000000000007                        an empty one: deleted
        00000000000000000008.0.tmp                  somebody's next version, not yet linked

Invariants of a folder of versions:

- A version is written aside, synced, and then *linked* to the number after the one that its writer read. A link never
  replaces, so of those who read the same version exactly one gets the number, in whatever process.
- The highest number is never removed, hence never taken twice. The `_KEPT` - 1 below it stay too, for who is reading
  them; older ones are swept by whoever wrote last.
- A writer that slept while its number was taken and swept could link it again. It looks for the highest afterwards: a
  number that was swept lies `_KEPT` or more below that, so it withdraws. It has misled nobody: only the highest counts.
- An aside whose number is taken is dead: its link will fail. The sweep removes it, so that a crash leaves no litter.

A version counts when it is linked, and is durable when the folder is synced. `get` syncs the folder before it answers,
so that nobody acts on what a power cut could take back.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from afterlog.base.errors import (
    CorruptRemote,
    DiskFailed,
    OutOfResources,
    RemoteConflict,
    RemoteMissing,
    RemoteRefused,
    RemoteUnavailable,
    StorageError,
)
from afterlog.base.files import TEMPORARY_SUFFIX, Bytes, Data, File, Files, opened, publish
from afterlog.tier.remote_store import GAP_BYTES, VERSIONS_SUFFIX, RemoteObject, check_key

_KEPT = 16
_VERSION = re.compile(r"[0-9]{20}\Z")
_ASIDE = re.compile(r"(?P<number>[0-9]{20})\.[0-9]+\.tmp\Z")


class DirectoryStore:
    """`RemoteStore` in a folder that is there already: one that is not may be a mount that failed."""

    def __init__(self, files: Files, folder: Path) -> None:
        if not files.exists(folder):
            raise RemoteRefused("there is no such folder: make it, or mount it", path=folder)
        self._files = files
        self._folder = folder
        self._durable_folders: set[Path] = set()

    def put(self, key: str, data: Data) -> None:
        with _named(key):
            path = self._path(key)
            self._make_folders(path.parent)
            publish(self._files, path, [data])

    def put_if(self, key: str, data: Data, version: str | None) -> str:
        if not len(data):
            raise ValueError("an empty version means that the object was deleted")
        with _named(key):
            folder = self._versions(key)
            self._make_folders(folder)
            newest = self._newest(folder)
            if version is None and newest and self._size(key, newest):
                raise RemoteConflict("it is there already", path=key)
            if version is not None and version != str(newest):
                raise RemoteConflict(f"version {version} is not the newest", path=key)
            return self._add_version(key, newest + 1, data)

    def get(self, key: str, size_max: int) -> tuple[bytes, str]:
        with _named(key):
            folder = self._versions(key)
            if newest := self._newest(folder):
                self._files.sync_folder(folder)
                with self._opened_version(key, newest) as file:
                    data = _read(file, key, size_max)
                if not data:
                    raise RemoteMissing("it was deleted", path=key)
                return data, str(newest)
            with opened(self._files, self._path(key)) as file:
                return _read(file, key, size_max), "put"

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]], gap: int = GAP_BYTES) -> list[Bytes]:
        with _named(key), opened(self._files, self._path(key)) as file:
            return [_range(file, key, start, end) for start, end in ranges]

    def head(self, key: str) -> RemoteObject:
        with _named(key):
            if newest := self._newest(self._versions(key)):
                size = self._size(key, newest)
                if not size:
                    raise RemoteMissing("it was deleted", path=key)
                return RemoteObject(key, size)
            with opened(self._files, self._path(key)) as file:
                return RemoteObject(key, file.size())

    def list_objects(self, folder: str = "") -> Iterator[RemoteObject]:
        with _named(folder):
            yield from self._below(f"{check_key(folder)}/" if folder else "")

    def delete(self, key: str) -> None:
        with _named(key):
            path = self._path(key)
            for each in (path, path.with_name(path.name + TEMPORARY_SUFFIX)):
                with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                    self._files.unlink(each)
                    self._files.sync_folder(path.parent)
            newest = self._newest(self._versions(key))
            if newest and self._size(key, newest):
                self._add_version(key, newest + 1, b"")

    def _path(self, key: str) -> Path:
        return self._folder / check_key(key)

    def _versions(self, key: str) -> Path:
        path = self._path(key)
        return path.with_name(path.name + VERSIONS_SUFFIX)

    def _make_folders(self, folder: Path) -> None:
        """The folder and those above it, durably. One that is there may be another process's, not yet synced."""
        if folder == self._folder or folder in self._durable_folders:
            return
        self._make_folders(folder.parent)
        with contextlib.suppress(FileExistsError):
            self._files.make_folder(folder)
        self._files.sync_folder(folder.parent)
        self._durable_folders.add(folder)

    def _newest(self, folder: Path) -> int:
        """The highest version; 0: there is none."""
        try:
            names = self._files.names(folder)
        except FileNotFoundError:
            return 0
        return max((int(name) for name in names if _VERSION.match(name)), default=0)

    @contextlib.contextmanager
    def _opened_version(self, key: str, number: int) -> Iterator[File]:
        try:
            file = self._files.open(self._versions(key) / _name(number))
        except FileNotFoundError:
            raise RemoteUnavailable(f"{_KEPT} versions came while it was read", path=key) from None
        with contextlib.closing(file):
            yield file

    def _size(self, key: str, number: int) -> int:
        with self._opened_version(key, number) as file:
            return file.size()

    def _add_version(self, key: str, number: int, data: Data) -> str:
        folder = self._versions(key)
        aside = self._write_aside(folder, number, data)
        target = folder / _name(number)
        try:
            self._files.link(aside, target)
        except (FileExistsError, FileNotFoundError):  # the latter: swept, because the number is taken
            raise RemoteConflict(f"version {number} is another writer's", path=key) from None
        finally:
            with contextlib.suppress(FileNotFoundError):
                self._files.unlink(aside)
        newest = self._newest(folder)
        if newest - number >= _KEPT:
            with contextlib.suppress(FileNotFoundError):
                self._files.unlink(target)
            raise RemoteConflict(f"version {number} was another writer's", path=key)
        self._files.sync_folder(folder)
        self._sweep(folder, newest)
        return str(number)

    def _write_aside(self, folder: Path, number: int, data: Data) -> Path:
        file = self._create_aside(folder, number)
        try:
            file.append([data])
            file.sync()
        except BaseException:
            with contextlib.suppress(OSError):  # what did not fit must not keep the room
                self._files.unlink(file.path)
            raise
        finally:
            file.close()
        return file.path

    def _create_aside(self, folder: Path, number: int) -> File:
        attempt = 0
        while True:
            try:
                return self._files.create(folder / f"{_name(number)}.{attempt}{TEMPORARY_SUFFIX}")
            except FileExistsError:
                attempt += 1

    def _sweep(self, folder: Path, newest: int) -> None:
        for name in self._files.names(folder):
            aside = _ASIDE.match(name)
            if (aside and int(aside["number"]) <= newest) or (_VERSION.match(name) and int(name) <= newest - _KEPT):
                with contextlib.suppress(FileNotFoundError):
                    self._files.unlink(folder / name)

    def _below(self, prefix: str) -> Iterator[RemoteObject]:
        try:
            names = self._files.names(self._folder / prefix)
        except (FileNotFoundError, NotADirectoryError):
            return
        for name in names:
            if name.endswith(VERSIONS_SUFFIX):
                with contextlib.suppress(RemoteMissing):
                    yield self.head(prefix + name.removesuffix(VERSIONS_SUFFIX))
            elif not name.endswith(TEMPORARY_SUFFIX):
                yield from self._file_or_below(prefix + name)

    def _file_or_below(self, key: str) -> Iterator[RemoteObject]:
        try:
            with opened(self._files, self._folder / key) as file:
                found = RemoteObject(key, file.size())
        except FileNotFoundError:
            return  # deleted since it was listed
        except IsADirectoryError:
            yield from self._below(f"{key}/")
        else:
            yield found


def _name(number: int) -> str:
    return f"{number:020d}"


def _read(file: File, key: str, size_max: int) -> bytes:
    if file.size() > size_max:
        raise CorruptRemote(f"{file.size()} bytes, where at most {size_max} are expected", path=key)
    return file.pread(size_max, 0)


def _range(file: File, key: str, start: int, end: int) -> Bytes:
    data = file.pread(end - start, start) if 0 <= start < end <= file.size() else b""
    if len(data) != end - start:
        raise CorruptRemote(f"it ends before byte {end}", path=key, position=start)
    return np.frombuffer(data, np.uint8)


@contextlib.contextmanager
def _named(key: str) -> Iterator[None]:
    """Errors of the file system as those of a storage. StorageFull is one already."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StorageError) and not isinstance(error, DiskFailed | OutOfResources):
            raise
        if isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError):
            raise RemoteMissing("no such object", path=key) from None
        refused = error.errno in (errno.EACCES, errno.EPERM)
        raise (RemoteRefused if refused else RemoteUnavailable)(f"{error.strerror}", path=key) from error
