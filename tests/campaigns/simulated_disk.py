"""A disk in memory that writes down what is done to it: what the crash tests and the fault tests of the store run on.

`SimulatedFiles` is `afterlog.base.files.Files` in memory. `tests/campaigns/crash_states.py` replays its operations and
enumerates what a crash may leave, `tests/campaigns/explorer.py` checks a store on every such state,
`tests/campaigns/failing_files.py` makes calls fail.

The lock file stays empty here: its pid is for people, and would only multiply the states.
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from afterlog.base.files import Bytes, Data, FileStamp, failed_call, replaced, store_locked

Numbers = dict[int, dict[str, int]]
"""The names in each folder, by number of the folder; 0 is the root. A number that is no folder's is a file's."""

DIGEST_BYTES = 16
_NAME_BYTES_MAX = 255
_ROOT = 0

# What changes a disk. `path` is for people: the name at the time of the call. The numbers are what counts.


@dataclass(frozen=True, slots=True)
class MakeFolder:
    path: str
    folder: int
    name: str
    number: int


@dataclass(frozen=True, slots=True)
class Create:
    path: str
    folder: int
    name: str
    number: int


@dataclass(frozen=True, slots=True)
class Rename:
    path: str
    folder: int
    name: str
    target: str


@dataclass(frozen=True, slots=True)
class Link:
    path: str
    folder: int
    name: str
    number: int


@dataclass(frozen=True, slots=True)
class Unlink:
    path: str
    folder: int
    name: str


@dataclass(frozen=True, slots=True)
class SyncFolder:
    path: str
    folder: int


@dataclass(frozen=True, slots=True)
class Append:
    path: str
    file: int
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Truncate:
    path: str
    file: int
    size: int


@dataclass(frozen=True, slots=True)
class Sync:
    path: str
    file: int


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that the application did or promised here, for the oracle. `event` is a plain value."""

    event: object


NameOperation = MakeFolder | Create | Rename | Link | Unlink
Operation = NameOperation | SyncFolder | Append | Truncate | Sync | Mark


def rename_in(names: dict[str, int], operation: NameOperation) -> None:
    match operation:
        case MakeFolder() | Create() | Link():
            names[operation.name] = operation.number
        case Rename():
            names[operation.target] = names.pop(operation.name)
        case Unlink():
            del names[operation.name]


@dataclass(frozen=True, slots=True)
class Image:
    """What a durable disk holds: absolute paths of its folders, and of its files with their bytes."""

    folders: Sequence[str] = ()
    contents: Mapping[str, bytes] = field(default_factory=dict)

    def planted(self) -> tuple[Numbers, dict[int, bytes]]:
        """Folders and files by number; the numbers depend on the image alone."""
        folders: Numbers = {_ROOT: {}}
        numbers = {"": _ROOT}
        files: dict[int, bytes] = {}
        for path in sorted(self.folders):
            parent, _, name = path.rpartition("/")
            numbers[path] = folders[numbers[parent]][name] = len(folders)
            folders[numbers[path]] = {}
        for path, data in sorted(self.contents.items()):
            parent, _, name = path.rpartition("/")
            number = folders[numbers[parent]][name] = len(folders) + len(files)
            files[number] = data
        return folders, files


class SimulatedFiles:
    """`Files` in memory, from a durable image and operations done to it since. Thread-safe.

    The bytes of a file are shared with the image, and other disks of it, until the first write.
    """

    def __init__(self, image: Image | None = None, operations: Sequence[Operation] = ()) -> None:
        self.start = Image() if image is None else image
        self.capacity_bytes = 1 << 40
        """What does not fit is not written, and raises StorageFull."""
        self.operations: list[Operation] = []
        self._lock = threading.RLock()
        self._held: set[int] = set()
        self._folders, durable = self.start.planted()
        self._files: dict[int, bytes | bytearray] = {**durable}
        for operation in operations:
            self.do(operation)

    def mark(self, event: object) -> None:
        """Write down among the operations what the application did or promised at this point."""
        self.do(Mark(event))

    def image(self) -> Image:
        """What the disk holds now, durable or not."""
        with self._lock:
            folders, files = walk_names(self._folders)
            return Image(folders, {path: bytes(self._files[number]) for path, number in files.items()})

    def do(self, operation: Operation) -> None:
        """Apply an operation and write it down."""
        with self._lock:
            match operation:
                case Create():
                    self._files[operation.number] = b""
                case MakeFolder():
                    self._folders[operation.number] = {}
                case Append():
                    self._own(operation.file).extend(operation.data)
                case Truncate():
                    data = self._own(operation.file)
                    data.extend(bytes(max(operation.size - len(data), 0)))
                    del data[operation.size :]
            if isinstance(operation, NameOperation):
                rename_in(self._folders[operation.folder], operation)
            self.operations.append(operation)

    def create(self, path: Path) -> SimulatedFile:
        with self._lock:
            folder, name = self._free_place(path)
            self.do(Create(str(path), folder, name, number := self._next_number()))
            return SimulatedFile(self, path, number)

    def open(self, path: Path) -> SimulatedFile:
        with self._lock:
            return SimulatedFile(self, path, self._file(path))

    def scratch(self, path: Path) -> SimulatedScratchFile:
        """Not written down: no crash leaves anything of it."""
        with self._lock:
            if self.exists(path):
                self.unlink(path)
            self._free_place(path)
            return SimulatedScratchFile(path)

    def names(self, folder: Path) -> list[str]:
        with self._lock:
            return sorted(self._folders[self._folder(folder)])

    def exists(self, path: Path) -> bool:
        with self._lock:
            try:
                self._number(path)
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True

    def stamp(self, path: Path) -> FileStamp:
        """No time goes by here: the bytes themselves say whether they were changed."""
        with self._lock:
            number = self._file(path)
            names = sum([*folder.values()].count(number) for folder in self._folders.values())
            data = self._files[number]
            return FileStamp(len(data), number, zlib.crc32(data), names)

    def check_room(self, path: Path, size: int) -> None:
        if self.capacity_bytes < 1 << 40 and self.free_bytes(path) < size:
            raise failed_call("append", os_error(errno.ENOSPC, path), path)

    def free_bytes(self, folder: Path) -> int:
        with self._lock:
            named = {number for folder in self._folders.values() for number in folder.values()}
            return self.capacity_bytes - sum(len(self._files.get(number, b"")) for number in named)

    def make_folder(self, path: Path) -> None:
        with self._lock:
            folder, name = self._free_place(path)
            self.do(MakeFolder(str(path), folder, name, self._next_number()))

    def rename(self, source: Path, target: Path) -> None:
        with self._lock:
            number = self._number(source)
            (folder, name), (target_folder, target_name) = self._place(source), self._place(target)
            if folder != target_folder:  # would be two operations, of which a crash may keep one: nobody should want it
                raise _refused(errno.EXDEV, target)
            replaced = self._folders[folder].get(target_name, number)
            if replaced == number and name != target_name and target_name in self._folders[folder]:
                return  # two names of one file: POSIX leaves both
            if replaced != number and replaced in self._folders:
                if number in self._files:
                    raise _refused(errno.EISDIR, target)
                if self._folders[replaced]:
                    raise _refused(errno.ENOTEMPTY, target)
            elif replaced != number and number in self._folders:
                raise _refused(errno.ENOTDIR, target)
            self.do(Rename(str(source), folder, name, target_name))

    def link(self, source: Path, target: Path) -> None:
        with self._lock:
            number = self._number(source)
            folder, name = self._free_place(target)
            if number in self._folders:
                raise _refused(errno.EPERM, source)
            self.do(Link(str(target), folder, name, number))

    def unlink(self, path: Path) -> None:
        with self._lock:
            self._file(path)
            self.do(Unlink(str(path), *self._place(path)))

    def remove_folder(self, path: Path) -> None:
        with self._lock:
            if self._folders[self._folder(path)]:
                raise _refused(errno.ENOTEMPTY, path)
            self.do(Unlink(str(path), *self._place(path)))

    def sync_folder(self, folder: Path) -> None:
        with self._lock:
            self.do(SyncFolder(str(folder), self._folder(folder)))

    def lock(self, path: Path) -> SimulatedLock:
        with self._lock:
            file = self._file(path) if self.exists(path) else self.create(path).number
            if file in self._held:
                raise store_locked(os.getpid(), path)
            lock = SimulatedLock(self, path, self._held, file)
            self._held.add(file)
            return lock

    def size_of(self, file: int) -> int:
        return len(self._files[file])

    def bytes_of(self, file: int, start: int, end: int) -> bytes:
        with self._lock:
            return bytes(self._files[file][start:end])

    def _own(self, file: int) -> bytearray:
        data = self._files[file]
        if isinstance(data, bytes):
            data = self._files[file] = bytearray(data)
        return data

    def _next_number(self) -> int:
        return len(self._folders) + len(self._files)

    def _number(self, path: Path, asked: Path | None = None) -> int:
        """The number of what is at `path`; an error names what was `asked` for."""
        number = _ROOT
        for name in path.parts[1:]:
            try:
                number = self._folders[number][name]
            except KeyError:
                if number not in self._folders:
                    raise _refused(errno.ENOTDIR, asked or path) from None
                raise no_entry(name, asked or path) from None
        return number

    def _folder(self, path: Path, asked: Path | None = None) -> int:
        number = self._number(path, asked)
        if number not in self._folders:
            raise _refused(errno.ENOTDIR, asked or path)
        return number

    def _file(self, path: Path) -> int:
        number = self._number(path)
        if number not in self._files:
            raise _refused(errno.EISDIR, path)
        return number

    def _place(self, path: Path) -> tuple[int, str]:
        return self._folder(path.parent, path), path.name

    def _free_place(self, path: Path) -> tuple[int, str]:
        if self.exists(path):
            raise _refused(errno.EEXIST, path)
        return self._place(path)


class SimulatedFile:
    """`File` on a SimulatedFiles. Stays usable after rename and unlink, as a descriptor does."""

    def __init__(self, files: SimulatedFiles, path: Path, number: int) -> None:
        self.path = path
        self.number = number
        self._files = files
        self._closed = False

    def size(self) -> int:
        return self._open().size_of(self.number)

    def append(self, data: Sequence[Data]) -> None:
        if joined := join_data(data):
            self._open().check_room(self.path, len(joined))
            self._open().do(Append(str(self.path), self.number, joined))

    def pread(self, size: int, position: int) -> bytes:
        if size < 0 or position < 0:
            raise _refused(errno.EINVAL, self.path)
        return self._open().bytes_of(self.number, position, position + size)

    def sync(self) -> None:
        self._open().do(Sync(str(self.path), self.number))

    def truncate(self, size: int) -> None:
        if size < 0:
            raise _refused(errno.EINVAL, self.path)
        self._open().do(Truncate(str(self.path), self.number, size))

    def map(self, size: int) -> Bytes:
        """The bytes as they are now: a copy that nothing changes. Looking beyond it is numpy's IndexError."""
        data = self._open().bytes_of(self.number, 0, size)
        if len(data) < size:
            raise ValueError("mmap length is greater than file size")
        return np.frombuffer(data, np.uint8)

    def close(self) -> None:
        self._closed = True

    def _open(self) -> SimulatedFiles:
        if self._closed:
            raise _refused(errno.EBADF, self.path)
        return self._files


class SimulatedScratchFile:
    """`ScratchFile` in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._data: bytearray | None = bytearray()

    def pread(self, parts: Sequence[tuple[memoryview, int]]) -> int:
        held = memoryview(self._open())
        for filled, (buffer, position) in enumerate(parts):
            if position + len(buffer) > len(held):
                return filled
            buffer[:] = held[position : position + len(buffer)]
        return len(parts)

    def pwrite(self, data: Data, position: int) -> None:
        held = self._open()
        held.extend(bytes(max(position - len(held), 0)))
        held[position : position + len(data)] = bytes(data)

    def close(self) -> None:
        self._data = None

    def _open(self) -> bytearray:
        if self._data is None:
            raise _refused(errno.EBADF, self._path)
        return self._data


class SimulatedLock:
    """`Lock` on a SimulatedFiles."""

    _file = -1

    def __init__(self, files: SimulatedFiles, path: Path, held: set[int], file: int) -> None:
        self._files = files
        self._path = path
        self._held = held
        self._file = file

    def serves(self) -> None:
        """Nobody looks into it."""

    def check(self) -> None:
        if self._file < 0:  # let go of
            return
        with self._files._lock:
            try:
                there = self._files._number(self._path)
            except OSError:
                there = -1
        if there != self._file:
            raise replaced(self._path, is_there=there >= 0)

    def release(self) -> None:
        if self._file >= 0:
            self._held.discard(self._file)
            self._file = -1

    __del__ = release


def walk_names(names: Mapping[int, Mapping[str, int]]) -> tuple[list[str], dict[str, int]]:
    """The folders and the files that can be reached from the root, by path, in an order that the names alone decide."""
    folders: list[str] = []
    files: dict[str, int] = {}
    left = [("", _ROOT)]
    while left:
        path, number = left.pop()
        for name, child in sorted(names[number].items()):
            if child in names:
                folders.append(f"{path}/{name}")
                left.append((f"{path}/{name}", child))
            else:
                files[f"{path}/{name}"] = child
    return folders, files


def join_data(data: Sequence[Data]) -> bytes:
    return b"".join(bytes(part) for part in data)


def digest_of(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def no_entry(name: str, path: Path) -> Exception:
    if "\0" in name:
        return ValueError("embedded null byte")
    return _refused(errno.ENAMETOOLONG if len(os.fsencode(name)) > _NAME_BYTES_MAX else errno.ENOENT, path)


def _refused(number: int, path: Path) -> OSError:
    """What the real files make of it."""
    return failed_call("the disk", os_error(number, path), path)


def os_error(number: int, path: Path) -> OSError:
    """The builtin leaf (FileNotFoundError and so on) of an errno, as the kernel's errors come."""
    return OSError(number, os.strerror(number), str(path))
