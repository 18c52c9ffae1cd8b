"""What a process really did to a folder: recorded at its calls to libc, replayed on a simulated disk.

`tests/campaigns/recorder.c`, compiled by the tests and loaded by LD_PRELOAD, writes down the calls that change what is
below one folder, and their bytes. `replay` does the same to a `SimulatedFiles`, so that `tests/campaigns/explorer.py`
finds what a crash of the *real* calls may leave: with `base/files.py`, and all around it, instead of what its
simulation says.

LD_PRELOAD and not strace, which needs a package, and ptrace, which containers refuse; and which stops the process twice
for each of its calls. What neither the recorder nor its trace knows makes another folder than `replay` does, so
`check_complete` is asked first.
"""

from __future__ import annotations

import ctypes
import pickle
import struct
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tests.campaigns.simulated_disk import Image, SimulatedFile, SimulatedFiles

SOURCE = Path(__file__).with_suffix(".c")
_HEAD = struct.Struct(
    "="
    "B"  # call: its letter
    "i"  # descriptor
    "q"  # position, size or flag
    "I"  # bytes of the data or the path
    "I"  # bytes of the other path
)
assert _HEAD.size == 21


def compiled(folder: Path) -> Path:
    """The library to preload."""
    library = folder / "recorder.so"
    command = ["gcc", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
    subprocess.run(command, check=True)
    return library


class Recorder:
    """In the process that is recorded: begin, mark, end."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)

    def begin(self, folder: Path, trace: Path) -> None:
        self._library.recorder_begin(bytes(folder), bytes(trace))

    def mark(self, event: object) -> None:
        """As `SimulatedFiles.mark`."""
        data = pickle.dumps(event)
        self._library.recorder_mark(data, ctypes.c_size_t(len(data)))

    def end(self) -> None:
        self._library.recorder_end()


class Call(NamedTuple):
    """One record of a trace."""

    call: str
    descriptor: int
    number: int
    data: bytes
    other: bytes


@dataclass(frozen=True, slots=True)
class Recording:
    """What was done below `folder`, which is the root of the disk that it is replayed on."""

    folder: Path
    calls: Sequence[Call]

    @staticmethod
    def read(folder: Path, trace: Path) -> Recording:
        return Recording(folder, [*_calls(trace.read_bytes())])

    def replay(self, disk: SimulatedFiles, *, without: Sequence[str] = ()) -> None:
        """Do it again on an empty disk. without: names of files of which no byte is written."""
        opened: dict[int, SimulatedFile | Path] = {}
        for call in self.calls:
            if call.call == "M":
                disk.mark(pickle.loads(call.data))
            elif call.call == "o":
                opened[call.descriptor] = _open(disk, self._path(call.data), is_cut=bool(call.number))
            elif call.descriptor < 0:
                self._name(disk, call)
            elif call.call == "c":
                del opened[call.descriptor]
            elif isinstance(place := opened[call.descriptor], Path):
                assert call.call == "s", f"{call.call} of a folder"
                disk.sync_folder(place)
            elif place.path.name not in without:
                _do(place, call)

    def check_complete(self) -> None:
        """The trace makes the folder as it is: nothing was missed."""
        disk = SimulatedFiles()
        self.replay(disk)
        replayed, real = disk.image(), image_of(self.folder)
        assert sorted(real.folders) == sorted(replayed.folders), "the recorder missed a folder"
        assert {*real.contents} == {*replayed.contents}, "the recorder missed a name"
        other = [path for path, data in real.contents.items() if data != replayed.contents[path]]
        assert not other, f"the recorder missed what was written to {other}"

    def _path(self, path: bytes) -> Path:
        return Path("/") / Path(path.decode()).relative_to(self.folder)

    def _name(self, disk: SimulatedFiles, call: Call) -> None:
        path = self._path(call.data)
        match call.call:
            case "m":
                disk.make_folder(path)
            case "u":
                try:
                    disk.unlink(path)
                except IsADirectoryError:  # by rmdir
                    disk.remove_folder(path)
            case "r":
                disk.rename(path, self._path(call.other))
            case "l":
                disk.link(path, self._path(call.other))
            case _:
                raise AssertionError(f"no replay of {call.other.decode()} of {path}")


def image_of(folder: Path) -> Image:
    """What is really there: the folder is the root."""
    found = {str(Path("/") / path.relative_to(folder)): path for path in folder.rglob("*")}
    folders = [name for name, path in found.items() if path.is_dir()]
    return Image(folders, {name: path.read_bytes() for name, path in found.items() if path.is_file()})


def _open(disk: SimulatedFiles, path: Path, *, is_cut: bool) -> SimulatedFile | Path:
    if not disk.exists(path):
        return disk.create(path)
    try:
        file = disk.open(path)
    except IsADirectoryError:
        return path
    if is_cut and file.size():
        file.truncate(0)
    return file


def _do(file: SimulatedFile, call: Call) -> None:
    match call.call:
        case "s":
            file.sync()
        case "t":
            file.truncate(call.number)
        case "w" if call.number == file.size():
            file.append([call.data])
        case "w" if call.data == file.pread(len(call.data), call.number):
            pass  # a lock's pid, once more
        case _:
            raise AssertionError(f"no replay of {call.call!r} {call.other.decode()} at {call.number} of {file.path}")


def _calls(data: bytes) -> Iterator[Call]:
    position = 0
    while position < len(data):
        call, descriptor, number, *sizes = _HEAD.unpack_from(data, position)
        parts: list[Any] = []
        position += _HEAD.size
        for size in sizes:
            parts.append(data[position : position + size])
            position += size
        yield Call(chr(call), descriptor, number, *parts)
