"""Objects from columns: one for each row, of a class with slots, without calling `__init__`.

The `__init__` of a frozen dataclass with eleven fields takes 3 us a record, ten times what all else about it does. So
a column goes into its slot for all rows, and then the next: compiled 0.02 us a slot, in plain Python three times that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import pairwise, repeat
from types import MemberDescriptorType
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from afterlog.base.files import Bytes
from afterlog.index.growing_columns import Int64Array
from afterlog.records.batch import decode_own_headers
from afterlog.records.columns import Bools

Made = TypeVar("Made")


class Strings(NamedTuple):
    """int64[n+1], uint8[m], bool[n]: row i is data[offsets[i]:offsets[i + 1]], or None where that is not valid."""

    offsets: Int64Array
    data: Bytes
    valid: Bools

    def to_list(self) -> list[bytes | None]:
        start = int(self.offsets[0])
        text, places = self.data[start : int(self.offsets[-1])].tobytes(), (self.offsets - start).tolist()
        rows = zip(pairwise(places), self.valid.tolist(), strict=True)
        return [text[begin:end] if is_valid else None for (begin, end), is_valid in rows]


class Sections(NamedTuple):
    """int64[n+1], uint8[m]: the header section of row i; what comes of it are the headers that were sent."""

    offsets: Int64Array
    data: Bytes

    def to_list(self) -> list[OwnHeaders]:
        """InvalidBatch."""
        return plain_sections_of(self.offsets, self.data)


class Same(NamedTuple):
    """One object for all rows."""

    value: Any


Column: TypeAlias = Int64Array | Strings | Sections | list[Any] | Same
OwnHeaders: TypeAlias = tuple[tuple[str, bytes | None], ...]


def plainly_made(cls: type[Made], count: int, columns: Mapping[str, Column]) -> list[Made]:
    """`count` objects, whose slots are filled from the columns, n = count: int64[n], strings, any objects.

    `columns` names every slot that anybody will ask for. Raises TypeError where the class has no such slot, ValueError
    where a column is of another length.
    """
    rows = [object.__new__(cls) for _ in range(count)]
    for name, column in columns.items():
        slot = getattr(cls, name)
        if type(slot) is not MemberDescriptorType:
            raise TypeError(f"{cls.__name__}.{name} is no slot")
        values: Iterable[Any]
        if isinstance(column, Same):
            values = repeat(column.value, count)
        else:
            values = column if isinstance(column, list) else _listed(column)
            if len(values) != count:
                raise ValueError(f"a column of {len(values)} for {count} rows")
        deque(map(slot.__set__, rows, values), maxlen=0)
    return rows


def plain_sections_of(offsets: Int64Array, data: Bytes) -> list[OwnHeaders]:
    """What each of some header sections holds that was sent. InvalidBatch."""
    texts = Strings(offsets, data, np.ones(max(len(offsets) - 1, 0), np.bool_)).to_list()
    return [plain_section_of(text or b"") for text in texts]


def plain_section_of(section: bytes) -> OwnHeaders:
    """The same of one. InvalidBatch."""
    return decode_own_headers(section) if section else ()


def _listed(column: Int64Array | Strings | Sections) -> list[Any]:
    found: list[Any] = column.tolist() if isinstance(column, np.ndarray) else column.to_list()
    return found


try:
    from afterlog.fetch._objects import made as made
    from afterlog.fetch._objects import section_of as section_of
    from afterlog.fetch._objects import sections_of as sections_of
except ImportError:
    made, section_of, sections_of = plainly_made, plain_section_of, plain_sections_of
