"""What there is to do: records with random bodies, and times at which they are due.

A body names its record twice, so that a drain can tell whether it got what was filled: the number of the record stands
in its first 8 bytes, and in its last 8 with all bits turned over. What is between is random.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Spread = Literal["uniform", "near", "equal"]
SPREADS: tuple[Spread, ...] = get_args(Spread)
"""Uniform over an hour; nine of ten within a minute and the tenth within 30 days; all in one millisecond."""

START_MS = 1_700_000_000_000
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
END_MS = START_MS + 31 * DAY_MS
"""Everything is due."""
SEED = 1
_WORD = 8


@dataclass(frozen=True)
class Batch:
    """Records of one append. due: int64[n] ms; numbers: int64[n]; data: uint8[n, size]."""

    due: Int64Array
    numbers: Int64Array
    data: Bytes

    def __len__(self) -> int:
        return len(self.due)

    @cached_property
    def bodies(self) -> list[bytes]:
        """The bodies as objects, for who cannot take a column."""
        size, text = self.data.shape[1], self.data.tobytes()
        return [text[start : start + size] for start in range(0, len(text), size)]


@dataclass(frozen=True)
class Load:
    """So many records of `size` bytes, in batches of `batch`, due by `spread`."""

    records: int
    size: int
    spread: Spread
    batch: int

    @property
    def name(self) -> str:
        return f"{self.spread}-{self.size}B-{self.batch}"

    @cached_property
    def due(self) -> Int64Array:
        """int64[records], by number."""
        random = np.random.default_rng(SEED)
        if self.spread == "equal":
            return np.full(self.records, START_MS + HOUR_MS, np.int64)
        if self.spread == "uniform":
            return START_MS + random.integers(1, HOUR_MS, self.records)
        near = random.integers(1, MINUTE_MS, self.records)
        far = random.integers(MINUTE_MS, 30 * DAY_MS, self.records)
        return START_MS + np.where(random.random(self.records) < 0.9, near, far)

    def batches(self) -> Iterator[Batch]:
        """In append order; made as they are asked for."""
        for start in range(0, self.records, self.batch):
            yield made(self.due[start : start + self.batch], start, self.size)

    @property
    def at_once(self) -> int:
        """Batches between which nothing is done but the calls: looking at a clock costs as much as a small call."""
        return max(1, 1_000 // self.batch)

    def told(self) -> dict[str, Any]:
        return asdict(self)


def made(due: Int64Array, first: int, size: int) -> Batch:
    """A batch of the records from number `first` on."""
    numbers = np.arange(first, first + len(due), dtype=np.int64)
    data = np.random.Generator(np.random.SFC64(SEED + first)).integers(0, 256, (len(due), size), np.uint8)
    data[:, :_WORD] = numbers[:, None].view(np.uint8)
    data[:, -_WORD:] = ~numbers[:, None].view(np.uint8)
    return Batch(due, numbers, data)


def numbers_in(bodies: list[bytes] | Bytes, size: int) -> Int64Array:
    """The numbers of the records with these bodies: objects, or a column. AssertionError where one was never filled."""
    data = np.frombuffer(b"".join(bodies), np.uint8) if isinstance(bodies, list) else bodies
    data = data.reshape(-1, size)
    numbers = np.ascontiguousarray(data[:, :_WORD]).view(np.int64)[:, 0]
    again = ~np.ascontiguousarray(data[:, -_WORD:]).view(np.int64)[:, 0]
    assert bool((numbers == again).all()), "a body is not the one that was filled in"
    return numbers


class Checked:
    """Looks at what a drain hands out: in due order, each record once, and in the end all of them."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.seen = np.zeros(load.records, np.bool_)
        self._last_due = 0

    def see(self, leases: Sequence[list[bytes] | Bytes]) -> None:
        """The bodies of some leases, in the order of the leases."""
        for bodies in leases:
            self._see(numbers_in(bodies, self.load.size))

    def _see(self, numbers: Int64Array) -> None:
        due = self.load.due[numbers]
        assert int(due[0]) >= self._last_due, "an earlier record after a later one"
        assert bool((np.diff(due) >= 0).all()), "not in due order"
        assert not bool(self.seen[numbers].any()), "handed out twice"
        self.seen[numbers] = True
        self._last_due = int(due[-1])

    def all_seen(self) -> None:
        assert bool(self.seen.all()), f"{int((~self.seen).sum())} records are lost"
