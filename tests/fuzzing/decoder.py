"""What a decoder is to the fuzzer: bytes to begin with, a hand that mends their checksums, and a reading that judges.

    seeds ──mutator──> bytes ──mend, mostly──> read ──> an outcome, as a short text    or it raises: a finding

`read` holds the decoder to its promise: a value that all implementations agree on and that encodes to itself again, or
one of the errors that the decoder says it raises. Whatever else it raises is a finding. The outcome names the way that
the decoder went; inputs that took a new one are kept and mutated further.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from afterlog.base.errors import CorruptFile
from afterlog.base.files import Bytes, Files
from tests.campaigns.simulated_disk import SimulatedFiles

FOLDER: Final = Path("/store/mail-0")
_OUTCOME_LENGTH: Final = 90
_PARTICULARS: Final = re.compile(r"b?'(?:[^'\\]|\\.)*'|b?\"(?:[^\"\\]|\\.)*\"|\(/.*|\[.*|\{.*|\d[\d.e+]*")
"""What differs from input to input in an error: quoted texts, paths, lists, numbers."""


@dataclass(frozen=True)
class Decoder:
    """One of those that are fuzzed.

    read: the outcome for some bytes. mend: makes checksums right in place, as far as the form can still be seen.
    """

    name: str
    seeds: Callable[[], Sequence[bytes]]
    read: Callable[[bytes], str]
    mend: Callable[[bytearray], object] | None = None


@dataclass(frozen=True)
class Finding:
    """An input that a decoder did not take as it promises."""

    decoder: str
    data: bytes
    told: str

    def __str__(self) -> str:
        return f"{self.decoder}: {self.told}\n    bytes.fromhex({self.data.hex()!r})"


def refused(error: Exception) -> str:
    """The outcome of an error that was promised."""
    return f"{type(error).__name__}: {_PARTICULARS.sub('#', str(error))}"[:_OUTCOME_LENGTH]


def accepted(*ways: object) -> str:
    """The outcome of a value; of numbers only the size counts."""
    return " ".join(str(way.bit_length()) if type(way) is int else str(way) for way in ways)[:_OUTCOME_LENGTH]


def agreed(kinds: tuple[type[Exception], ...], *readings: Callable[[], Any]) -> Any:
    """What all of them return, or the error of one of the kinds that all of them raise."""
    outcomes: list[Any] = []
    for reading in readings:
        try:
            outcomes.append(reading())
        except kinds as error:
            outcomes.append(error)
    for other in outcomes[1:]:
        assert same(outcomes[0], other), f"they differ: {outcomes[0]!r:.500} and {other!r:.500}"
    return outcomes[0]


def same(one: Any, other: Any) -> bool:
    """Equal, arrays in it as well, to their types; of errors type and text."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        alike = isinstance(one, np.ndarray) and isinstance(other, np.ndarray) and one.dtype == other.dtype
        return alike and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Exception):
        return type(one) is type(other) and str(one) == str(other)
    return bool(one == other)


def array(data: bytes) -> Bytes:
    """Bytes of their own, with nothing behind them: whoever reads on is seen by the address sanitizer."""
    return np.frombuffer(data, np.uint8).copy()


class HeldFile:
    """A file that can be read."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def size(self) -> int:
        return len(self._data)

    def pread(self, size: int, position: int) -> bytes:
        return self._data[position : position + size]

    def map(self, size: int) -> Bytes:
        return array(self._data[:size])

    def close(self) -> None:
        pass


class HeldFiles:
    """The files of one folder that can be read, and no more: a hundredth of the cost of the simulated disk."""

    def __init__(self, contents: dict[Path, bytes]) -> None:
        self._contents = contents

    def open(self, path: Path) -> HeldFile:
        try:
            return HeldFile(self._contents[path])
        except KeyError:
            raise FileNotFoundError(path) from None

    def exists(self, path: Path) -> bool:
        return any(path in (held, *held.parents) for held in self._contents)

    def names(self, folder: Path) -> list[str]:
        return [path.name for path in self._contents if path.parent == folder]


def held(contents: dict[Path, bytes]) -> Files:
    return HeldFiles(contents)  # type: ignore[return-value]


def empty_disk(*folders: Path) -> SimulatedFiles:
    """A disk to write on, with these folders and those above them."""
    disk = SimulatedFiles()
    for folder in folders:
        for each in (*reversed(folder.parents), folder):
            if not disk.exists(each):
                disk.make_folder(each)
    return disk


CORRUPT: Final = (CorruptFile,)
