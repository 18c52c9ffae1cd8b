"""Changes to bytes of a known form: small ones, at random places, of the kinds that decoders get wrong.

    flip        a bit of a byte                     integer   a number from the edge of a type, of any width, both ways
    byte        another byte                        cut       a stretch goes
    repeat      a byte, many times over: nesting    copy      a stretch of it comes in again, elsewhere
    splice      goes on as another seed does        scalar    another value where JSON has one

Everything comes from one `random.Random`, so a seed and a number make the same bytes again. Checksums are not the
mutator's: whoever knows the form mends them afterwards, so that what lies behind them is reached.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Final

SIZE_MAX: Final = 8 << 10
"""Bytes. Larger: slower executions, and hardly anything that is not found in fewer."""
_EDGES: Final = tuple(
    sorted(
        sign * (1 << bits) + step
        for bits in (1, 7, 8, 15, 16, 31, 32, 62, 63)
        for sign in (-1, 1)
        for step in (-1, 0, 1)
    )
)
_WIDTHS: Final = (1, 2, 4, 8)
_REPEATS: Final = (2, 9, 64, 300, 3000)
_SCALAR: Final = re.compile(rb'-?\d[\d.eE+-]*|"[^"]*"|null|true|false|\[\]|\{\}|NaN')
_SCALARS: Final = (
    b"null", b"true", b"false", b"0", b"-1", b"1", b"-0", b"1.5", b"1e400", b"-Infinity", b"NaN", b'""', b'"x"', b"[]",
    b"{}", b"[1]", b'{"a":1}', b"[[1,2]]", b"9223372036854775807", b"9223372036854775808", b"-9223372036854775809",
    b"4294967296", b"2147483648", b'"\\ud800"', b'"\\u0000"', b"1" + b"0" * 40, b"1" + b"0" * 5000, b"[" * 1500,
)  # fmt: skip


class Mutator:
    """One to four changes at a time."""

    def __init__(self, source: random.Random, pool: Sequence[bytes]) -> None:
        """pool: what to begin with, and to splice from; it may grow meanwhile."""
        self._random = source
        self._pool = pool
        self._changes: tuple[Callable[[bytearray], None], ...] = (
            self._flip, self._flip, self._byte, self._integer, self._integer, self._cut, self._copy, self._repeat,
            self._splice, self._scalar, self._scalar,
        )  # fmt: skip

    def next(self) -> bytearray:
        """A member of the pool, changed."""
        data = bytearray(self._random.choice(self._pool))
        for _ in range(self._random.choice((1, 1, 2, 4))):
            self._random.choice(self._changes)(data)
        del data[SIZE_MAX:]
        return data

    def _place(self, data: bytearray) -> int:
        return self._random.randrange(len(data)) if data else 0

    def _flip(self, data: bytearray) -> None:
        if data:
            data[self._place(data)] ^= 1 << self._random.randrange(8)

    def _byte(self, data: bytearray) -> None:
        if data:
            data[self._place(data)] = self._random.choice((0, 1, 0x7F, 0x80, 0xFF, self._random.randrange(256)))

    def _integer(self, data: bytearray) -> None:
        width = self._random.choice(_WIDTHS)
        number = self._random.choice((*_EDGES, len(data), self._random.randrange(-9, 9)))
        at = self._place(data)
        if self._random.random() < 0.5:
            at -= at % width
        order: Sequence[str] = ("big", "little")
        data[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, self._random.choice(order))  # type: ignore[arg-type]

    def _cut(self, data: bytearray) -> None:
        at = self._place(data)
        del data[at : at + self._random.choice((1, 2, 4, 8, 12, len(data)))]

    def _copy(self, data: bytearray) -> None:
        start, at = self._place(data), self._place(data)
        data[at:at] = data[start : start + self._random.choice((1, 2, 4, 8, 64, len(data)))]

    def _repeat(self, data: bytearray) -> None:
        at = self._place(data)
        data[at:at] = bytes(data[at : at + 1]) * self._random.choice(_REPEATS)

    def _splice(self, data: bytearray) -> None:
        other = self._random.choice(self._pool)
        at = self._place(data)
        data[at:] = other[at if self._random.random() < 0.7 else self._random.randrange(len(other) + 1) :]

    def _scalar(self, data: bytearray) -> None:
        """Of JSON; where there is none, a number that looks like it is as good as any."""
        start = self._place(data)
        found = _SCALAR.search(data, start) or _SCALAR.search(data)
        if found is not None:
            data[found.start() : found.end()] = self._random.choice(_SCALARS)
