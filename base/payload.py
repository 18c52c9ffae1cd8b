"""JSON values: bytes of an object, and the object of a record's bytes. To the log they are bytes."""

from __future__ import annotations

import json as json_text
from typing import Any

from afterlog.base.errors import InvalidRecord


def json(value: object) -> bytes:
    """A value to send: JSON, UTF-8, without spaces. `message.json()` gives it back.

    Raises InvalidRecord of what JSON has no form for: a datetime, bytes, NaN, a key that is no string, number or None.

    >>> json({"to": "ada", "n": 1})
    b'{"to":"ada","n":1}'
    """
    try:
        return json_text.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRecord(f"no JSON can be made of this {type(value).__name__}: {error}") from None


def object_of(value: bytes | None, record: object) -> Any:
    """What JSON bytes say; None of no bytes at all. record: for the message of InvalidRecord."""
    if value is None:
        return None
    try:
        return json_text.loads(value)
    except (ValueError, RecursionError) as error:
        raise InvalidRecord(f"the value of {record} is not JSON: {error}; it is {value[:60]!r}") from None
