"""The identity of a record, which `send` returns: apart, since who only sends needs nothing else of `fetch`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RecordId:
    """The identity of a record: what `send` returned. As text `mail-0@1042`."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}@{self.offset}"
