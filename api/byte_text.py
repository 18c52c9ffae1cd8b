"""Bytes in JSON: a string where they are UTF-8, else `{"base64": "…"}`; null for none. Both are read everywhere.

b"hello"      "hello"
b"\\xff\\x00"   {"base64": "/wA="}
None          null
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any, TypeAlias

ByteText: TypeAlias = str | dict[str, str] | None


def text_or_base64(data: bytes | None) -> ByteText:
    """Bytes for JSON."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def bytes_of(value: Any) -> bytes | None:
    """The bytes again. ValueError where it is neither."""
    match value:
        case None:
            return None
        case str():
            return value.encode()
        case {"base64": str(text)} if len(value) == 1:
            try:
                return base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError) as error:
                raise ValueError(f"no base64: {error}") from None
    raise ValueError(f'write a string, null or {{"base64": "..."}}, not {json.dumps(value, default=repr)[:60]}')


def headers_of(value: Any) -> tuple[tuple[str, bytes | None], ...]:
    """Headers: an object, or a list of pairs where a name is there twice. ValueError where they are neither."""
    pairs: Any = list(value.items()) if isinstance(value, Mapping) else value
    if not isinstance(pairs, list):
        raise ValueError(f"headers are an object or a list of pairs, not {json.dumps(value, default=repr)[:60]}")
    found = []
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise ValueError(f"a header is a pair of a name and a value, not {json.dumps(pair, default=repr)[:60]}")
        found.append((pair[0], bytes_of(pair[1])))
    return tuple(found)
