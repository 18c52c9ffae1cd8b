"""A disk in memory that loses power: what the crash tests and the fault tests of the store run on.

    SimulatedFiles   `afterlog.files.Files` in memory; writes down every operation that changes something
    CrashPoints      replays the operations one by one and enumerates what a crash may leave at each point
    explore          runs a workload once and checks what is left after every crash point and state
    FailingFiles     wraps any Files and makes chosen calls fail, write short, or lie

What a *power cut* may leave is the weakest disk that POSIX allows:

- The bytes of a file are durable by sync of that file only; its name by sync_folder of its folder only.
- Of the unsynced appends and truncates of a file a prefix survives. The last append of the prefix may be torn: cut
  short at any byte, or at full length with zeros, garbage or stale bytes behind the cut; or it survives whole behind
  a hole of zeros where the append before it should be.
- Of the unsynced name operations (create, make_folder, rename, unlink) of a folder a prefix survives.

Each file and each folder is free to choose. Not the cross product is enumerated, but every choice of one file or
folder with all the others lost, and again with all the others kept; and besides: nothing unsynced survives, all of it,
all names without the data, all data without the names.

A *kill* of the process loses nothing that was written, but may cut the write in flight short. What was not durable
before the kill is still not durable after it, so that a power cut after the restart may take it.

The lock file stays empty here: its pid is for people, and would only multiply the states.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from afterlog.errors import StorageFull, StoreLocked
from afterlog.files import Bytes, Data, File, Files, Lock

Numbers = dict[int, dict[str, int]]
"""The names in each folder, by number of the folder; 0 is the root. A number that is no folder's is a file's."""

_DIGEST_BYTES = 16
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


NameOperation = MakeFolder | Create | Rename | Unlink
Operation = NameOperation | SyncFolder | Append | Truncate | Sync | Mark


def _rename(names: dict[str, int], operation: NameOperation) -> None:
    match operation:
        case MakeFolder() | Create():
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
            folders, files = _walk(self._folders)
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
                _rename(self._folders[operation.folder], operation)
            self.operations.append(operation)

    def create(self, path: Path) -> SimulatedFile:
        with self._lock:
            folder, name = self._free_place(path)
            self.do(Create(str(path), folder, name, number := self._next_number()))
            return SimulatedFile(self, path, number)

    def open(self, path: Path) -> SimulatedFile:
        with self._lock:
            return SimulatedFile(self, path, self._file(path))

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

    def make_folder(self, path: Path) -> None:
        with self._lock:
            folder, name = self._free_place(path)
            self.do(MakeFolder(str(path), folder, name, self._next_number()))

    def rename(self, source: Path, target: Path) -> None:
        with self._lock:
            number = self._number(source)
            (folder, name), (target_folder, target_name) = self._place(source), self._place(target)
            if folder != target_folder:  # would be two operations, of which a crash may keep one: nobody should want it
                raise _error(errno.EXDEV, target)
            replaced = self._folders[folder].get(target_name, number)
            if replaced != number and replaced in self._folders:
                if number in self._files:
                    raise _error(errno.EISDIR, target)
                if self._folders[replaced]:
                    raise _error(errno.ENOTEMPTY, target)
            elif replaced != number and number in self._folders:
                raise _error(errno.ENOTDIR, target)
            self.do(Rename(str(source), folder, name, target_name))

    def unlink(self, path: Path) -> None:
        with self._lock:
            self._file(path)
            self.do(Unlink(str(path), *self._place(path)))

    def sync_folder(self, folder: Path) -> None:
        with self._lock:
            self.do(SyncFolder(str(folder), self._folder(folder)))

    def lock(self, path: Path) -> SimulatedLock:
        with self._lock:
            file = self._file(path) if self.exists(path) else self.create(path).number
            if file in self._held:
                raise StoreLocked(f"the store is open in process {os.getpid()}; close it there first", path=path)
            self._held.add(file)
            return SimulatedLock(self._held, file)

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
        number, asked = _ROOT, asked or path
        for name in path.parts[1:]:
            if number not in self._folders:
                raise _error(errno.ENOTDIR, asked)
            if name not in self._folders[number]:
                raise _no_entry(name, asked)
            number = self._folders[number][name]
        return number

    def _folder(self, path: Path, asked: Path | None = None) -> int:
        number = self._number(path, asked)
        if number not in self._folders:
            raise _error(errno.ENOTDIR, asked or path)
        return number

    def _file(self, path: Path) -> int:
        number = self._number(path)
        if number not in self._files:
            raise _error(errno.EISDIR, path)
        return number

    def _place(self, path: Path) -> tuple[int, str]:
        return self._folder(path.parent, path), path.name

    def _free_place(self, path: Path) -> tuple[int, str]:
        if self.exists(path):
            raise _error(errno.EEXIST, path)
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
        if joined := _joined(data):
            self._open().do(Append(str(self.path), self.number, joined))

    def pread(self, size: int, position: int) -> bytes:
        if size < 0 or position < 0:
            raise _error(errno.EINVAL, self.path)
        return self._open().bytes_of(self.number, position, position + size)

    def sync(self) -> None:
        self._open().do(Sync(str(self.path), self.number))

    def truncate(self, size: int) -> None:
        if size < 0:
            raise _error(errno.EINVAL, self.path)
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
            raise _error(errno.EBADF, self.path)
        return self._files


class SimulatedLock:
    """`Lock` on a SimulatedFiles."""

    def __init__(self, held: set[int], file: int) -> None:
        self._held = held
        self._file = file

    def release(self) -> None:
        self._held.discard(self._file)


# --- What a crash may leave ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CrashModel:
    """Where an unsynced append is cut. More places: more states, roughly three for each."""

    every_byte_max: int = 128
    """Appends up to this size are cut at every byte; larger ones at 0, 1, half, n - 1, and at sector borders."""
    sector_bytes: int = 512
    """Cuts of a larger append lie at multiples of this position in the file."""
    sector_cuts_max: int = 16
    """No more sector borders than this, evenly spread."""

    def cuts(self, position: int, size: int) -> list[int]:
        """The places 0 <= cut < size at which an append of `size` bytes at `position` is cut."""
        if size <= self.every_byte_max:
            return list(range(size))
        borders = range(-position % self.sector_bytes, size, self.sector_bytes)
        step = -(-len(borders) // self.sector_cuts_max) or 1
        return sorted({0, 1, size // 2, size - 1, *borders[::step]})


@dataclass(frozen=True, slots=True)
class Version:
    """One possible content of a file: bytes shared with other versions, and its own behind them."""

    choice: str
    shared: bytes
    own: bytes
    digest: bytes

    def data(self) -> bytes:
        return self.shared + self.own


class CrashState:
    """One disk that a crash may leave. `describe` names it, the same in every run of the same workload."""

    def __init__(self, point: int, choice: str, digest: bytes) -> None:
        self.point = point
        self.choice = choice
        self.digest = digest

    def describe(self) -> str:
        """Such as ``17: /log/0 keeps 2 unsynced, cut at 5 + zeros; others lost``: crash before operation 17."""
        return f"{self.point}: {self.choice}"

    def files(self) -> SimulatedFiles:
        """A disk in this state, each time a fresh one."""
        raise NotImplementedError


class PowerCut(CrashState):
    """After a power cut; all that is there is durable."""

    def __init__(self, point: int, choice: str, folders: Sequence[str], versions: Mapping[str, Version]) -> None:
        parts = [*folders, *(f"{path}\0{version.digest.hex()}" for path, version in versions.items())]
        super().__init__(point, choice, _digest("\0\0".join(parts).encode()))
        self._folders = folders
        self._versions = versions

    def files(self) -> SimulatedFiles:
        return SimulatedFiles(Image(self._folders, {path: each.data() for path, each in self._versions.items()}))


class Kill(CrashState):
    """After a kill of the process; what was not durable is there and still not durable."""

    def __init__(self, point: int, choice: str, start: Image, operations: Sequence[Operation]) -> None:
        super().__init__(point, choice, _digest(f"{point} {choice}".encode()))
        self._start = start
        self._operations = operations

    def files(self) -> SimulatedFiles:
        return SimulatedFiles(self._start, self._operations)


class _FileHistory:
    """The possible contents of one file: what is durable, and each version that its unsynced operations allow."""

    def __init__(self, data: bytes) -> None:
        self.durable = self.kept = Version("", data, b"", _digest(data))
        self.versions: list[Version] = []
        self._unsynced = 0
        self._hole: tuple[bytes, int] | None = None

    def append(self, data: bytes, model: CrashModel) -> None:
        before = self.kept.data()
        hashed = hashlib.blake2b(before, digest_size=_DIGEST_BYTES)
        self._unsynced += 1
        size = len(data)
        zeros, garbage = bytes(size), hashlib.shake_128(b"%d" % len(before)).digest(size)
        for cut in model.cuts(len(before), size):
            if cut:  # cut at 0 is the version before
                self._add(f"cut at {cut}", before, data[:cut], hashed)
            self._add(f"cut at {cut} + zeros", before, data[:cut] + zeros[cut:], hashed)
            self._add(f"cut at {cut} + garbage", before, data[:cut] + garbage[cut:], hashed)
        if 0 < size <= len(before):
            self._add("stale bytes", before, before[-size:], hashed)
        if self._hole:
            holed = self._hole[0] + bytes(self._hole[1])
            self._add("whole behind a hole", holed, data, hashlib.blake2b(holed, digest_size=_DIGEST_BYTES))
        self._add("whole", before, data, hashed)
        self._hole = (before, size)

    def truncate(self, size: int) -> None:
        data = self.kept.data()[:size].ljust(size, b"\0")
        self._unsynced += 1
        self._add("whole", data, b"", hashlib.blake2b(data, digest_size=_DIGEST_BYTES))
        self._hole = None

    def sync(self) -> None:
        self.durable = self.kept
        self.versions = []
        self._unsynced = 0
        self._hole = None

    def _add(self, choice: str, shared: bytes, own: bytes, hashed: hashlib.blake2b) -> None:
        hashed = hashed.copy()
        hashed.update(own)
        self.kept = Version(f"keeps {self._unsynced} unsynced, {choice}", shared, own, hashed.digest())
        self.versions.append(self.kept)


class _FolderHistory:
    """The possible names in one folder."""

    def __init__(self, names: dict[str, int]) -> None:
        self.durable = dict(names)
        self.kept = dict(names)
        self.unsynced: list[NameOperation] = []

    def rename(self, operation: NameOperation) -> None:
        _rename(self.kept, operation)
        self.unsynced.append(operation)

    def sync(self) -> None:
        self.durable = dict(self.kept)
        self.unsynced = []

    def after(self, count: int) -> dict[str, int]:
        """The names where `count` of the unsynced operations survive."""
        names = dict(self.durable)
        for operation in self.unsynced[:count]:
            _rename(names, operation)
        return names


class CrashPoints:
    """Takes the operations of a disk one by one, and says after each what a crash here may leave.

    Only what an operation touched is worked out again: a version of a file is made once, and shares its bytes.
    """

    def __init__(self, start: Image, model: CrashModel) -> None:
        self.operations: list[Operation] = []
        self._start = start
        self._model = model
        folders, files = start.planted()
        self._folders = {number: _FolderHistory(names) for number, names in folders.items()}
        self._files = {number: _FileHistory(data) for number, data in files.items()}

    def apply(self, operation: Operation) -> None:
        """Move the crash point behind `operation`."""
        self.operations.append(operation)
        match operation:
            case Create():
                self._files[operation.number] = _FileHistory(b"")
            case MakeFolder():
                self._folders[operation.number] = _FolderHistory({})
            case SyncFolder():
                self._folders[operation.folder].sync()
            case Append():
                self._files[operation.file].append(operation.data, self._model)
            case Truncate():
                self._files[operation.file].truncate(operation.size)
            case Sync():
                self._files[operation.file].sync()
        if isinstance(operation, NameOperation):
            self._folders[operation.folder].rename(operation)

    def power_cuts(self) -> Iterator[PowerCut]:
        """The states that a power cut may leave here. Two of them may be equal."""
        names_lost = {number: folder.durable for number, folder in self._folders.items()}
        names_kept = {number: folder.kept for number, folder in self._folders.items()}
        data_lost = {number: file.durable for number, file in self._files.items()}
        data_kept = {number: file.kept for number, file in self._files.items()}
        yield self._state("nothing unsynced survives", names_lost, data_lost)
        files = {number: file for number, file in self._files.items() if file.versions}
        folders = {number: folder for number, folder in self._folders.items() if folder.unsynced}
        if not files and not folders:
            return
        yield self._state("everything survives", names_kept, data_kept)
        yield self._state("names survive, data does not", names_kept, data_lost)
        yield self._state("data survives, names do not", names_lost, data_kept)
        for others, names, data in (("lost", names_lost, data_lost), ("kept", names_kept, data_kept)):
            found, places = _walk(names)
            versions = {path: data[number] for path, number in places.items()}
            for path, number in places.items():
                for version in files[number].versions if number in files else ():
                    if version is not data[number]:
                        choice = f"{path} {version.choice}; others {others}"
                        yield PowerCut(len(self.operations), choice, found, {**versions, path: version})
            for number, folder in folders.items():
                path = str(Path(folder.unsynced[0].path).parent)
                for count in range(1, len(folder.unsynced)):
                    choice = f"{path} keeps {count} unsynced names; others {others}"
                    yield self._state(choice, {**names, number: folder.after(count)}, data)
                other = names_kept if others == "lost" else names_lost
                choice = f"{path} keeps {'all' if others == 'lost' else 'no'} unsynced names; others {others}"
                yield self._state(choice, {**names, number: other[number]}, data)

    def kills(self) -> Iterator[Kill]:
        """The states that a kill of the process may leave here: all that was written, the last write maybe in part."""
        point = len(self.operations)
        yield Kill(point, "everything written survives", self._start, tuple(self.operations))
        if self.operations and isinstance(last := self.operations[-1], Append):
            before = tuple(self.operations[:-1])
            for cut in self._model.cuts(0, len(last.data))[1:]:  # cut at 0 is the point before
                torn = Append(last.path, last.file, last.data[:cut])
                yield Kill(point, f"{last.path} cut at {cut}", self._start, (*before, torn))

    def _state(self, choice: str, names: Numbers, data: Mapping[int, Version]) -> PowerCut:
        folders, places = _walk(names)
        return PowerCut(len(self.operations), choice, folders, {path: data[number] for path, number in places.items()})


def crash_states(
    operations: Sequence[Operation], upto: int, *, start: Image | None = None, model: CrashModel | None = None
) -> Iterator[PowerCut]:
    """What a power cut may leave behind the first `upto` operations."""
    return _points(operations[:upto], start, model).power_cuts()


def kill_state(operations: Sequence[Operation], upto: int, *, start: Image | None = None) -> Kill:
    """What a kill of the process leaves behind the first `upto` operations."""
    return next(_points(operations[:upto], start, None).kills())


def _points(operations: Sequence[Operation], start: Image | None, model: CrashModel | None) -> CrashPoints:
    points = CrashPoints(start or Image(), model or CrashModel())
    for operation in operations:
        points.apply(operation)
    return points


# --- Every crash of a workload ------------------------------------------------------------------------------------

Workload = Callable[[Files, SimulatedFiles], object]
"""Works on the files, and marks on the disk what it promised."""
Verify = Callable[[SimulatedFiles, Sequence[object], CrashState], object]
"""Recovers on a crashed disk and raises if what it finds breaks a promise. Gets the marks before the crash."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A state in which `verify` raised. `explore(..., only=state)` runs just this one again."""

    state: str
    error: str


@dataclass(slots=True)
class Explored:
    """What `explore` went through."""

    points: int = 0
    states: int = 0
    distinct: int = 0
    """States that differ in content or in the marks before them: those that were verified."""
    seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list)

    def __str__(self) -> str:
        rate = self.distinct / self.seconds if self.seconds else 0.0
        text = f"{self.points} crash points, {self.states} states, {self.distinct} distinct, {rate:.0f} states/s"
        return "\n".join([text, *(f"{failure.state}\n    {failure.error}" for failure in self.failures)])


def explore(
    workload: Workload,
    verify: Verify,
    *,
    wrap: Callable[[SimulatedFiles], Files] | None = None,
    model: CrashModel | None = None,
    kill: bool = False,
    again_every: int = 0,
    only: str | None = None,
    failures_max: int = 3,
) -> Explored:
    """Run `workload` once, then verify every state that a crash at any point of it may leave.

    `wrap` puts something between the workload and the disk, a FailingFiles for instance. `kill`: kills of the process
    instead of power cuts. `again_every`: every so many states, also cut the power at every point of what `verify` did
    to the crashed disk (it gets the marks of both lives). `only` takes the description of one state. Marks must have
    the same repr in every run. Stops after `failures_max` failing states.
    """
    disk = SimulatedFiles()
    workload(disk if wrap is None else wrap(disk), disk)
    explorer = _Explorer(verify, model or CrashModel(), again_every, only, failures_max)
    started = time.monotonic()
    explorer.explore(disk, 0, CrashPoints.kills if kill else CrashPoints.power_cuts, (), "")
    explorer.explored.seconds = time.monotonic() - started
    return explorer.explored


class _Explorer:
    def __init__(
        self, verify: Verify, model: CrashModel, again_every: int, only: str | None, failures_max: int
    ) -> None:
        self.explored = Explored()
        self._verify = verify
        self._model = model
        self._again_every = again_every
        self._only = only
        self._failures_max = failures_max
        self._seen: set[tuple[bytes, bytes]] = set()

    def explore(
        self,
        disk: SimulatedFiles,
        first: int,
        states: Callable[[CrashPoints], Iterator[CrashState]],
        marks: tuple[object, ...],
        prefix: str,
    ) -> None:
        """The crash points of `disk` from operation `first` on. A `prefix` names the crash that `disk` comes from."""
        points = CrashPoints(disk.start, self._model)
        oracle = list(marks)
        for operation in itertools.chain([None], tuple(disk.operations)):
            if operation is not None:
                points.apply(operation)
            if isinstance(operation, Mark) and len(points.operations) > first:
                oracle.append(operation.event)
            if len(points.operations) < first:
                continue
            self.explored.points += 1
            told = _digest(repr(oracle).encode())
            for state in states(points):
                self._one(state, tuple(oracle), told, prefix)
                if len(self.explored.failures) >= self._failures_max:
                    return

    def _one(self, state: CrashState, marks: tuple[object, ...], told: bytes, prefix: str) -> None:
        self.explored.states += 1
        description = prefix + state.describe()
        if (state.digest, told) in self._seen or not (self._only or description).startswith(description):
            return
        self._seen.add((state.digest, told))
        self.explored.distinct += 1
        disk = state.files()
        first = len(disk.operations)
        try:
            self._verify(disk, marks, state)
        except Exception as error:
            if self._only in (None, description):
                self.explored.failures.append(Failure(description, f"{type(error).__name__}: {error}"))
            return
        again = self._again_every and (self._only or not self.explored.distinct % self._again_every)
        if again and not prefix and len(disk.operations) > first:
            self.explore(disk, first, CrashPoints.power_cuts, marks, f"{description}, then ")


# --- Calls that fail ----------------------------------------------------------------------------------------------

Fail = Callable[[str, Path, int], OSError | int | None]
"""Asked before each call: (name of the method, path, number of the call from 1). None: go on. An OSError: raise it,
having done nothing. An int: of append, write this many bytes (negative: all but so many), then fail; of sync and
sync_folder, return as if done."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TRUTHFUL = ("sync", "sync_folder")


def fail_at(call: int, number: int, *, for_ever: bool = False) -> Fail:
    """The `call`-th call fails with errno `number`, and where `for_ever` all calls behind it too.

    To fail each call of some work once, count `call` up until the work runs through with `FailingFiles.calls < call`.
    """

    def fail(operation: str, path: Path, at: int) -> OSError | None:
        return _error(number, path) if at == call or (for_ever and at > call) else None

    return fail


def lying_syncs(operation: str, path: Path, call: int) -> int | None:
    """Every sync returns without doing anything."""
    return 0 if operation in _TRUTHFUL else None


class FailingFiles:
    """Any Files, with calls that fail as `fail` says. `exists`, `size` and `close` never do."""

    def __init__(self, files: Files, fail: Fail, *, short_write_error: int = errno.ENOSPC) -> None:
        self.calls = 0
        self.short_write_error = short_write_error
        self._files = files
        self._fail = fail
        self._lock = threading.Lock()

    def ask(self, operation: str, path: Path) -> int | None:
        """Count the call and raise what it is to raise."""
        with self._lock:
            self.calls += 1
            answer = self._fail(operation, path, self.calls)
        if isinstance(answer, OSError):
            raise _as_real_files_would(operation, answer, path)
        if answer is not None and operation not in ("append", *_TRUTHFUL):
            raise TypeError(f"{operation} cannot be done in part: fail with an OSError")
        return answer

    def create(self, path: Path) -> FailingFile:
        self.ask("create", path)
        return FailingFile(self._files.create(path), self)

    def open(self, path: Path) -> FailingFile:
        self.ask("open", path)
        return FailingFile(self._files.open(path), self)

    def names(self, folder: Path) -> list[str]:
        self.ask("names", folder)
        return self._files.names(folder)

    def exists(self, path: Path) -> bool:
        return self._files.exists(path)

    def make_folder(self, path: Path) -> None:
        self.ask("make_folder", path)
        self._files.make_folder(path)

    def rename(self, source: Path, target: Path) -> None:
        self.ask("rename", source)
        self._files.rename(source, target)

    def unlink(self, path: Path) -> None:
        self.ask("unlink", path)
        self._files.unlink(path)

    def sync_folder(self, folder: Path) -> None:
        if self.ask("sync_folder", folder) is None:
            self._files.sync_folder(folder)

    def lock(self, path: Path) -> Lock:
        self.ask("lock", path)
        return self._files.lock(path)


class FailingFile:
    """A file of FailingFiles."""

    def __init__(self, file: File, files: FailingFiles) -> None:
        self.path = file.path
        self._file = file
        self._files = files

    def size(self) -> int:
        return self._file.size()

    def append(self, data: Sequence[Data]) -> None:
        size = self._files.ask("append", self.path)
        if size is None:
            return self._file.append(data)
        self._file.append([_joined(data)[:size]])
        raise _as_real_files_would("append", _error(self._files.short_write_error, self.path), self.path)

    def pread(self, size: int, position: int) -> bytes:
        self._files.ask("pread", self.path)
        return self._file.pread(size, position)

    def sync(self) -> None:
        if self._files.ask("sync", self.path) is None:
            self._file.sync()

    def truncate(self, size: int) -> None:
        self._files.ask("truncate", self.path)
        self._file.truncate(size)

    def map(self, size: int) -> Bytes:
        self._files.ask("map", self.path)
        return self._file.map(size)

    def close(self) -> None:
        self._file.close()


def _as_real_files_would(operation: str, error: OSError, path: Path) -> OSError:
    """Of what OsFiles raises when the disk is full, StorageFull; else the error itself."""
    if operation in ("append", "create", "make_folder", "rename", "lock") and error.errno in _FULL:
        full = StorageFull("no room left to write", path=path)
        full.__cause__ = error
        return full
    return error


def _walk(names: Mapping[int, Mapping[str, int]]) -> tuple[list[str], dict[str, int]]:
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


def _joined(data: Sequence[Data]) -> bytes:
    return b"".join(bytes(part) for part in data)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


def _no_entry(name: str, path: Path) -> Exception:
    if "\0" in name:
        return ValueError("embedded null byte")
    return _error(errno.ENAMETOOLONG if len(os.fsencode(name)) > _NAME_BYTES_MAX else errno.ENOENT, path)


def _error(number: int, path: Path) -> OSError:
    """The builtin leaf (FileNotFoundError and so on) of an errno, as the kernel's errors come."""
    return OSError(number, os.strerror(number), str(path))
