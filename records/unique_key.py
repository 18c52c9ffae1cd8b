"""The unique key of a record: the value of its first header, where that is called `unique-key`.

    02 | 14 unique-key | 0E order-7        one header; the name's length 10; the value's length 7 (zig-zag varints)

It travels with the record, so the log tells of it whatever is lost beside the log. It is the first header, and not any,
so that it is found in a column of header sections without looking through them.

An index has the hash of a key: BLAKE2b of 8 bytes, as a little-endian int64. It does not depend on the process, and
nobody makes keys of the same hash on purpose without trying for years; where two have it, the log tells them apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from itertools import compress, repeat
from operator import methodcaller
from typing import Any, Final, Literal, get_args

import numpy as np

from afterlog.base.errors import InvalidArgument, InvalidRecord, WrongType
from afterlog.records import kernels
from afterlog.records.columns import Int64Array, Ragged, view_of
from afterlog.records.encode import join_ragged, ragged
from afterlog.records.varint import read_zigzag, zigzag

UNIQUE_KEY: Final = "unique-key"
KEY_BYTES_MAX: Final = 1_024
"""Of a unique key. Larger ones belong into the value; a hash of them will do as the key."""
HEADERS_MAX: Final = 8_191
"""That a record with a unique key may have: their number takes two bytes then."""
OnConflict = Literal["raise", "keep", "replace"]
_WAYS: Final = get_args(OnConflict)
_NAME: Final = zigzag(len(UNIQUE_KEY)) + UNIQUE_KEY.encode()
_PATTERN: Final = np.frombuffer(_NAME, np.uint8)
_SIZES: Final = tuple(map(zigzag, range(KEY_BYTES_MAX + 1)))
_SECTION_BYTES_MIN: Final = 1 + len(_NAME) + 2
_digest = partial(blake2b, digest_size=8)


def on_conflict_of(asked: Any) -> OnConflict:
    """What a call says of conflicts. Raises InvalidArgument."""
    if not isinstance(asked, str):
        raise WrongType(f'on_conflict is "raise", "keep" or "replace", not {asked!r:.100}')
    if asked not in _WAYS:
        raise InvalidArgument(f'on_conflict is "raise", "keep" or "replace", not {asked!r:.100}')
    return asked  # type: ignore[return-value]


def check_sizes(sizes: Int64Array) -> None:
    """Raises InvalidRecord where unique keys cannot be so long, bytes."""
    if not 1 <= int(sizes.min(initial=1)) <= int(sizes.max(initial=1)) <= KEY_BYTES_MAX:
        raise InvalidRecord(f"a unique key has 1 to {KEY_BYTES_MAX} bytes; take a hash of what is longer")


def checked_keys(column: Any) -> list[bytes | None]:
    """A column of unique keys, of anything that `ragged` takes. Raises InvalidRecord."""
    (offsets, data), valid = ragged(column, "unique_keys")
    sizes = np.diff(offsets)
    check_sizes(sizes if valid is None else sizes[valid])
    view = data.tobytes()
    keys: list[bytes | None] = list(map(view.__getitem__, map(slice, offsets[:-1].tolist(), offsets[1:].tolist())))
    if valid is not None:
        for row in np.flatnonzero(~valid).tolist():
            keys[row] = None
    return keys


def checked_key(key: Any) -> bytes:
    """One unique key, of anything bytes-like. Raises InvalidRecord."""
    if type(key) is bytes and 1 <= len(key) <= KEY_BYTES_MAX:
        return key
    [checked] = checked_keys([key])
    assert checked is not None, "the caller has one"
    return checked


def with_unique_key(section: bytes, key: bytes) -> bytes:
    """An encoded header section with the key in front. Raises InvalidRecord."""
    front, rest = _around(section)
    return b"".join((front, _SIZES[len(key)], key, rest))


def sections(section: bytes, keys: Sequence[bytes | None]) -> Ragged:
    """Header sections of many records that have the same headers, and each its key, or none."""
    front, rest = _around(section)
    held = [*filter(None, keys)]  # a key has a byte at least
    made = map(b"".join, zip(repeat(front), map(_SIZES.__getitem__, map(len, held)), held, repeat(rest)))
    column, _ = ragged([*made])
    if len(held) == len(keys):
        return column
    plain, _ = ragged([section])
    has = np.fromiter(map(bool, keys), np.bool_, len(keys))
    return kernels.take_items(join_ragged([column, plain]), np.where(has, np.cumsum(has) - 1, len(held)))


def _around(section: bytes) -> tuple[bytes, bytes]:
    """What stands before the key's length, and after the key."""
    count, position = read_zigzag(view_of(section), 0, len(section)) if section else (0, 0)
    if count >= HEADERS_MAX:
        raise InvalidRecord(f"a record with a unique key has fewer than {HEADERS_MAX} headers, not {count}")
    return zigzag(count + 1) + _NAME, section[position:]


def key_of(section: bytes) -> bytes | None:
    """The unique key in an encoded header section, where there is one: as `keys_in` finds it."""
    at = 1 if section[:1] < b"\x80" else 2
    if not section.startswith(_NAME, at):  # as a rule
        return None
    at += len(_NAME)
    size = section[at] if at < len(section) else 1  # of a null the number is odd
    if size >= 0x80 and at + 1 < len(section):
        at += 1
        size = size & 0x7F | section[at] << 7
    key = section[at + 1 : at + 1 + (size >> 1)]
    return key if size & 1 == 0 and 1 <= size >> 1 == len(key) <= KEY_BYTES_MAX else None


def keys_in(headers: Ragged) -> tuple[Int64Array, Int64Array, Int64Array]:
    """The unique keys in a column of header sections: the row of each, and where in the data it begins and ends."""
    offsets, data = headers
    rows = np.flatnonzero(offsets[1:] - offsets[:-1] >= _SECTION_BYTES_MIN)
    at, end = offsets[:-1][rows], offsets[1:][rows]
    at = at + 1 + (data[at] >= 0x80)
    whole = at + len(_PATTERN) < end
    rows, at, end = rows[whole], at[whole], end[whole]
    named = np.ones(len(at), np.bool_)
    for place, byte in enumerate(_PATTERN.tolist()):
        named &= data[at + place] == byte
    rows, at, end = rows[named], at[named] + len(_PATTERN), end[named]
    low = data[at].astype(np.int64)
    is_long = (low >= 0x80) & (at + 1 < end)
    high = np.where(is_long, data[np.where(is_long, at + 1, at)], 0).astype(np.int64)
    size = ((low & 0x7F) | high << 7) >> 1
    at = at + 1 + is_long
    is_key = ((low & 1) == 0) & (high < 0x80) & (size >= 1) & (size <= KEY_BYTES_MAX) & (at + size <= end)
    is_key &= (low < 0x80) | is_long
    return rows[is_key], at[is_key], (at + size)[is_key]


def hash_of(key: bytes) -> int:
    return int.from_bytes(_digest(key).digest(), "little", signed=True)


def hashes_of(keys: Sequence[bytes | memoryview]) -> Int64Array:
    """`hash_of` each, int64[n]."""
    return np.frombuffer(b"".join(map(methodcaller("digest"), map(_digest, keys))), "<i8").astype(np.int64)


def hashes_in(data: Any, start: Int64Array, end: Int64Array) -> Int64Array:
    """`hash_of` each of the keys that lie in `data` from `start` to `end`."""
    return hashes_of([*map(memoryview(data).__getitem__, map(slice, start.tolist(), end.tolist()))])


def numbered(keys: Sequence[bytes | None]) -> tuple[Int64Array, list[bytes], Int64Array]:
    """Equal keys of a call: the rows that have one, all different keys, and which of these each of the rows has."""
    rows = np.flatnonzero(np.fromiter(map(bool, keys), np.bool_, len(keys)))
    held: list[bytes] = [*compress(keys, keys)]  # type: ignore[list-item]
    different = dict.fromkeys(held)
    if len(different) == len(held):
        return rows, held, np.arange(len(held))
    number = dict(zip(different, range(len(different)), strict=True))
    return rows, [*different], np.fromiter(map(number.__getitem__, held), np.int64, len(held))
