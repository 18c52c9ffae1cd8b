"""Values as objects: bytes of an object, and the object of a record's bytes. To the log they are bytes."""

from __future__ import annotations

import json as json_text
from collections.abc import Callable
from typing import Any

from afterlog.base.errors import InvalidRecord, WrongType


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


def decoder_of(codec: Any) -> Callable[[bytes], Any]:
    """What makes an object of bytes: `json`, a class of pydantic or msgspec, or a function. Raises WrongType."""
    if codec is json:
        return json_text.loads
    if hasattr(codec, "model_validate_json"):  # pydantic's
        validated: Callable[[bytes], Any] = codec.model_validate_json
        return validated
    if hasattr(codec, "__struct_fields__"):  # msgspec's
        from msgspec.json import Decoder

        decoded: Callable[[bytes], Any] = Decoder(codec).decode
        return decoded
    if not callable(codec):
        raise WrongType(f"a codec is afterlog.json, a class of pydantic or msgspec, or a function, not {codec!r:.100}")
    made: Callable[[bytes], Any] = codec
    return made
