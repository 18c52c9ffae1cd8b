"""What a power cut or a kill may leave of a simulated disk: every legal state at every point of what was done.

A *power cut* leaves the weakest disk that POSIX allows:

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
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.campaigns import share
from tests.campaigns.simulated_disk import (
    DIGEST_BYTES,
    Append,
    Create,
    Image,
    MakeFolder,
    NameOperation,
    Numbers,
    Operation,
    SimulatedFiles,
    Sync,
    SyncFolder,
    Truncate,
    digest_of,
    rename_in,
    walk_names,
)


@dataclass(frozen=True, slots=True)
class CrashModel:
    """Where an unsynced append is cut. More places: more states, roughly three for each."""

    every_byte_max: int = 128
    """Appends up to this size are cut at every byte; larger ones at 0, 1, half, n - 1, and at sector borders."""
    of: int = 1
    """Every byte: in a run that takes a share, of the bytes one in so many, and 0, 1, half and n - 1."""
    sector_bytes: int = 512
    """Cuts of a larger append lie at multiples of this position in the file."""
    sector_cuts_max: int = 16
    """No more sector borders than this, evenly spread."""

    def cuts(self, position: int, size: int) -> list[int]:
        """The places 0 <= cut < size at which an append of `size` bytes at `position` is cut."""
        edges = {0, min(1, size - 1), size // 2, size - 1}
        if size <= self.every_byte_max:
            return sorted({*edges, *share(range(size), self.of)})
        borders = range(-position % self.sector_bytes, size, self.sector_bytes)
        step = -(-len(borders) // self.sector_cuts_max) or 1
        return sorted({*edges, *borders[::step]})


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

    def __init__(self, point: int, choice: str) -> None:
        self.point = point
        self.choice = choice
        self.explored = False
        """What is done to the crashed disk is explored, too: it takes what is done to every other."""

    def describe(self) -> str:
        """Such as ``17: /log/0 keeps 2 unsynced, cut at 5 + zeros; others lost``: crash before operation 17."""
        return f"{self.point}: {self.choice}"

    @property
    def digest(self) -> bytes:
        """Of all that is there: worked out by who asks."""
        raise NotImplementedError

    def files(self) -> SimulatedFiles:
        """A disk in this state, each time a fresh one."""
        raise NotImplementedError


class PowerCut(CrashState):
    """After a power cut; all that is there is durable."""

    def __init__(
        self, point: int, choice: str, found: Callable[[], tuple[Sequence[str], Mapping[str, Version]]]
    ) -> None:
        """found: folders, and files with what they hold; asked before the next operation."""
        super().__init__(point, choice)
        self._found = found

    @cached_property
    def _content(self) -> tuple[Sequence[str], Mapping[str, Version]]:
        return self._found()

    @property
    def digest(self) -> bytes:
        folders, versions = self._content
        parts = [*folders, *(f"{path}\0{version.digest.hex()}" for path, version in versions.items())]
        return digest_of("\0\0".join(parts).encode())

    def files(self) -> SimulatedFiles:
        folders, versions = self._content
        return SimulatedFiles(Image(folders, {path: each.data() for path, each in versions.items()}))


class Kill(CrashState):
    """After a kill of the process; what was not durable is there and still not durable."""

    def __init__(self, point: int, choice: str, start: Image, operations: Sequence[Operation]) -> None:
        super().__init__(point, choice)
        self._start = start
        self._operations = operations

    @property
    def digest(self) -> bytes:
        return digest_of(self.describe().encode())

    def files(self) -> SimulatedFiles:
        return SimulatedFiles(self._start, self._operations)


class _FileHistory:
    """The possible contents of one file: what is durable, and each version that its unsynced operations allow."""

    def __init__(self, data: bytes) -> None:
        self.durable = self.kept = Version("", data, b"", digest_of(data))
        self.versions: list[Version] = []
        self._unsynced = 0
        self._hole: tuple[bytes, int] | None = None

    def append(self, data: bytes, model: CrashModel) -> None:
        before = self.kept.data()
        hashed = hashlib.blake2b(before, digest_size=DIGEST_BYTES)
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
            self._add("whole behind a hole", holed, data, hashlib.blake2b(holed, digest_size=DIGEST_BYTES))
        self._add("whole", before, data, hashed)
        self._hole = (before, size)

    def truncate(self, size: int) -> None:
        data = self.kept.data()[:size].ljust(size, b"\0")
        self._unsynced += 1
        self._add("whole", data, b"", hashlib.blake2b(data, digest_size=DIGEST_BYTES))
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
        rename_in(self.kept, operation)
        self.unsynced.append(operation)

    def sync(self) -> None:
        self.durable = dict(self.kept)
        self.unsynced = []

    def after(self, count: int) -> dict[str, int]:
        """The names where `count` of the unsynced operations survive."""
        names = dict(self.durable)
        for operation in self.unsynced[:count]:
            rename_in(names, operation)
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
            found, places = walk_names(names)
            versions = {path: data[number] for path, number in places.items()}
            for path, number in places.items():
                for version in files[number].versions if number in files else ():
                    if version is not data[number]:
                        choice = f"{path} {version.choice}; others {others}"
                        content = found, {**versions, path: version}
                        yield PowerCut(len(self.operations), choice, lambda content=content: content)
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
        def content() -> tuple[Sequence[str], Mapping[str, Version]]:
            folders, places = walk_names(names)
            return folders, {path: data[number] for path, number in places.items()}

        return PowerCut(len(self.operations), choice, content)


def crash_states(
    operations: Sequence[Operation], upto: int, *, start: Image | None = None, model: CrashModel | None = None
) -> Iterator[PowerCut]:
    """What a power cut may leave after the first `upto` operations."""
    return _points(operations[:upto], start, model).power_cuts()


def kill_state(operations: Sequence[Operation], upto: int, *, start: Image | None = None) -> Kill:
    """What a kill of the process leaves after the first `upto` operations."""
    return next(_points(operations[:upto], start, None).kills())


def _points(operations: Sequence[Operation], start: Image | None, model: CrashModel | None) -> CrashPoints:
    points = CrashPoints(start or Image(), model or CrashModel())
    for operation in operations:
        points.apply(operation)
    return points
