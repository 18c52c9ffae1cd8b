"""Record search for people: by key, time or id, a page at a time, each page bounded.

    pending    of all partitions, in the order of (due, partition, offset)     goes on behind "1700000000000.0.42"
    due        of one partition, in delivery order                             goes on at the delivery offset "1024"

No index knows keys, so records of a key are found by looking at those before them: at most LOOKED_AT in one call, which
then says where to go on. Values are cut in a list; the record itself is asked for by its id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from afterlog.api.byte_text import ByteText, text_or_base64
from afterlog.base.clock import INT64_MAX
from afterlog.base.errors import InvalidArgument
from afterlog.fetch.message import Message, ScheduledRecord
from afterlog.fetch.message_columns import Columns
from afterlog.fetch.partition import Partition
from afterlog.fetch.positions import EARLIEST, AtTime
from afterlog.index.entries import Key
from afterlog.produce.topic import Topic

LOOKED_AT: Final = 100_000
"""Records that a call looks at, at most, for those of a key."""
LOOKED_AT_ONCE: Final = 10_000
VALUE_BYTES: Final = 4 << 20
"""Of a partition, at once; the last record goes beyond."""
SHOWN_BYTES: Final = 256
"""Of a key and of a value, in a list."""


class ListPlace(NamedTuple):
    """Where a list of pending records goes on: after this one, over all partitions."""

    due: int
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.due}.{self.partition}.{self.offset}"

    @staticmethod
    def parse(text: str) -> ListPlace:
        """Raises InvalidArgument."""
        parts = text.split(".")
        if len(parts) != 3 or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
            raise InvalidArgument(f"after must be what the page before gave, not {text!r:.60}")
        return ListPlace(*(min(int(part), INT64_MAX) for part in parts))

    def key_in(self, partition: int) -> Key:
        """The key behind which the records of a partition come."""
        if partition == self.partition:
            return Key(self.due, self.offset)
        return Key(self.due, INT64_MAX if partition < self.partition else -1)


class RecordPage(NamedTuple):
    """Records of a list; after: where the next page begins, None where there is none."""

    records: list[ScheduledRecord] | list[Message]
    after: str | None
    looked_at: int

    def to_row(self) -> dict[str, Any]:
        """As JSON has it, with values cut."""
        rows = [listed(record) for record in self.records]
        return {"records": rows, "after": self.after, "looked_at": self.looked_at}


def pending_page(
    topic: Topic, numbers: Sequence[int], *, key: bytes | None, from_ms: int | None, after: str | None, limit: int
) -> RecordPage:
    """Pending records of these partitions, of one key where that is given, due at or after an instant.

    Raises InvalidArgument, UnknownPartition, CorruptFile.
    """
    place = ListPlace((from_ms or 0) - 1, INT64_MAX, INT64_MAX) if after is None else ListPlace.parse(after)
    partitions = [topic.partition(number) for number in numbers]
    found: list[ScheduledRecord] = []
    looked_at = 0
    while looked_at < LOOKED_AT:
        columns, ended = _scheduled(topic, partitions, place, limit if key is None else LOOKED_AT_ONCE)
        rows = np.arange(len(columns)) if key is None else columns.rows_of_key(key)
        if len(rows) > limit - len(found):
            rows, ended = rows[: limit - len(found)], False
            columns = columns[: int(rows[-1]) + 1] if len(rows) else columns[:0]
        found += columns.take(rows).to_scheduled()
        looked_at += len(columns)
        place = _last(columns) or place
        if ended or len(found) == limit:
            return RecordPage(found, None if ended else str(place), looked_at)
    return RecordPage(found, str(place), looked_at)


def due_page(
    partition: Partition, *, key: bytes | None, from_ms: int | None, after: str | None, limit: int
) -> RecordPage:
    """Records of a partition that are due, in delivery order, due at or after an instant.

    Without a key, an instant and a page before: the last ones. Raises InvalidArgument, OffsetOutOfRange, CorruptFile.
    """
    reading = partition.look()
    position = _position(partition, key, from_ms, after, max(reading.high_watermark - limit, reading.log_start))
    found: list[Message] = []
    looked_at = 0
    while position < reading.high_watermark and looked_at < LOOKED_AT and len(found) < limit:
        want = limit - len(found) if key is None else LOOKED_AT_ONCE
        columns, behind = partition.columns(position, want, VALUE_BYTES, reading)
        rows = np.arange(len(columns)) if key is None else columns.rows_of_key(key)
        if len(rows) > limit - len(found):
            rows = rows[: limit - len(found)]
            behind = int(columns.delivery_offset[rows[-1]]) + 1
        found += columns.take(rows).to_messages()
        looked_at += len(columns)
        position = behind
    return RecordPage(found, str(position) if position < reading.high_watermark else None, looked_at)


def listed(record: ScheduledRecord | Message) -> dict[str, Any]:
    """A record in a list: its key and value are cut, and `value_bytes` says how long the value is."""
    return {
        "id": str(record.id),
        "partition": record.partition,
        "offset": record.offset,
        "due": record.due,
        "key": shortened(record.key),
        "value": shortened(record.value),
        "value_bytes": None if record.value is None else len(record.value),
    }


def shortened(data: bytes | None) -> ByteText:
    """The first SHOWN_BYTES; of text no broken letter."""
    if data is None or len(data) <= SHOWN_BYTES:
        return text_or_base64(data)
    head = data[:SHOWN_BYTES]
    try:
        return head.decode()
    except UnicodeDecodeError as error:
        return head[: error.start].decode() + "…" if error.start > SHOWN_BYTES - 4 else text_or_base64(head)


def _scheduled(topic: Topic, partitions: Sequence[Partition], place: ListPlace, limit: int) -> tuple[Columns, bool]:
    """The next records behind a place, over all partitions, at least one where there is any; whether that is all."""
    parts = [Columns.empty(topic.name)]
    last, ended = None, True
    for partition in partitions:
        part = partition.scheduled(limit, behind=place.key_in(partition.number), max_bytes=VALUE_BYTES)
        parts.append(part)
        if len(part) == limit or part.value_bytes >= VALUE_BYTES:
            ended = False
            end = _last(part)
            last = end if last is None or (end is not None and end < last) else last
    columns = Columns.concatenate(parts)
    columns = columns.take(np.lexsort((columns.offset, columns.partition, columns.due)))
    if last is not None:  # of that partition there is more, which comes before what others have behind it
        columns = columns[: _rows_up_to(columns, last)]
    return columns, ended


def _last(columns: Columns) -> ListPlace | None:
    if not len(columns):
        return None
    return ListPlace(int(columns.due[-1]), int(columns.partition[-1]), int(columns.offset[-1]))


def _rows_up_to(columns: Columns, place: ListPlace) -> int:
    """How many rows, ordered as places are, do not come behind one."""
    due, partition, offset = columns.due, columns.partition, columns.offset
    before = (due < place.due) | ((due == place.due) & (partition < place.partition))
    same = (due == place.due) & (partition == place.partition) & (offset <= place.offset)
    return int(np.count_nonzero(before | same))


def _position(partition: Partition, key: bytes | None, from_ms: int | None, after: str | None, latest: int) -> int:
    if after is not None:
        if not (after.isascii() and after.isdigit() and len(after) < 20):
            raise InvalidArgument(f"after must be what the page before gave, not {after!r:.60}")
        return partition.position(int(after))
    if from_ms is not None:
        return max(partition.position(AtTime(from_ms)), partition.position(EARLIEST))
    return latest if key is None else partition.position(EARLIEST)
