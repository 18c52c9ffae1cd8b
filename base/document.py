"""Small durable documents: one checksummed JSON object to a file, readable by eye and replaced as a whole.

    afterlog-position 1 8f3ab01c\\n      format name, version, CRC-32C (hex) of everything behind this line
    {"position":1024}\\n                 JSON, one object

The checksum covers the body; a change of the first line is a mismatch of name, version or checksum by itself. A file is
written aside, synced, renamed, and its folder synced, so a crash leaves the old document or the new one.

Procedure for a change of a format: a new optional key keeps the version; anything else raises it, and the reader learns
to convert the old one; tests/golden keeps a folder of every version.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from afterlog.base.checksum import crc32c
from afterlog.base.errors import CorruptFile
from afterlog.base.files import Files, publish, read_file

Parsed = TypeVar("Parsed")
_KINDS = {"int": int, "bool": bool, "str": str}


def json_text(value: Any) -> bytes:
    """JSON as documents have it."""
    return json.dumps(value, separators=(",", ":")).encode()


def encode(name: str, version: int, body: dict[str, Any]) -> bytes:
    """The bytes of a document."""
    return b"".join(_pieces(name, version, [json_text(body)]))


def _pieces(name: str, version: int, body: Sequence[bytes]) -> list[bytes]:
    """A document whose body lies in pieces, without a copy of them."""
    text, checksum = [*body, b"\n"], 0
    for piece in text:
        checksum = crc32c(piece, checksum)
    return [b"%s %d %08x\n" % (name.encode(), version, checksum), *text]


def decode(name: str, version: int, data: bytes, path: Path) -> dict[str, Any]:
    """The object in `data`. Raises CorruptFile where it is not what `encode` made."""
    line, newline, text = data.partition(b"\n")
    if not newline or line != b"%s %d %08x" % (name.encode(), version, crc32c(text)):
        raise CorruptFile(f"not an intact {name} document of version {version}", path=path, position=0)
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:  # the latter: a million brackets
        raise CorruptFile(f"not JSON: {error}", path=path) from error
    if not isinstance(body, dict):
        raise CorruptFile("not a JSON object", path=path)
    return body


def write(files: Files, path: Path, name: str, version: int, body: dict[str, Any] | Sequence[bytes]) -> None:
    """Put the document under `path`, durably and atomically. body: an object, or the pieces of its `json_text`."""
    publish(files, path, _pieces(name, version, [json_text(body)] if isinstance(body, dict) else body))


def read(files: Files, path: Path, name: str, version: int) -> dict[str, Any]:
    """Raises FileNotFoundError, CorruptFile."""
    return decode(name, version, read_file(files, path), path)


def whole(value: object) -> int:
    """`value` itself, which JSON must have given as an int: no bool, no float, no text. TypeError."""
    if type(value) is not int:
        raise TypeError(f"{str(value)[:40]!r} is no whole number")
    return value


def well_typed(value: Parsed) -> Parsed:
    """A dataclass itself. TypeError where a field that is an int, a bool or a str holds something else."""
    for field in fields(value):  # type: ignore[arg-type]
        held = getattr(value, field.name)
        if type(held) is not _KINDS.get(str(field.type), type(held)):
            raise TypeError(f"{field.name} cannot be {str(held)[:40]!r}")
    return value
