"""The identity of a record, which `send` returns: apart, since who only sends needs nothing else of `fetch`."""

from __future__ import annotations

from dataclasses import dataclass

from afterlog.base.errors import InvalidRecord, WrongType
from afterlog.base.names import parse_partition_folder

_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class RecordId:
    """The identity of a record: what `send` returned. As text `mail-0@1042`."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}@{self.offset}"

    @staticmethod
    def of(record: RecordId | str) -> RecordId:
        """What names a record: one of these, or its text. Raises WrongType, InvalidRecord."""
        if isinstance(record, RecordId):
            return record
        if isinstance(record, str):
            return RecordId.parse(record)
        raise WrongType(
            "a record is named by what send returned, by message.id, or as text ('mail-0@1042'), "
            f"not by {record!r:.100}"
        )

    @staticmethod
    def parse(text: str) -> RecordId:
        """Of what `str` made of one. Raises InvalidRecord.

        >>> RecordId.parse("mail-0@1042")
        RecordId(topic='mail', partition=0, offset=1042)
        """
        folder, _, offset = text.rpartition("@")
        partition = parse_partition_folder(folder)
        is_number = offset.isascii() and offset.isdigit() and len(offset) <= 19
        if partition is None or not is_number or int(offset) > _INT64_MAX:
            raise InvalidRecord(f"{text!r:.300} names no record: write <topic>-<partition>@<offset>, mail-0@1042")
        return RecordId(*partition, int(offset))
