"""Many records on their way to a server: as JSON where they are few, else as Arrow columns, in parts that it takes.

Each part is of one partition, and is there once however often it is sent (`lanes.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from afterlog.api import operations
from afterlog.api.operation import ARROW
from afterlog.api.record_json import SentRecord
from afterlog.base.errors import InvalidRecord
from afterlog.client.call import (
    Call,
    HttpReply,
    HttpRequest,
    LaneSequence,
    Numbered,
    Sending,
    Steps,
    json_of,
    with_sequence,
)
from afterlog.client.lanes import SEQUENCES
from afterlog.client.sent import has_arrow, records_request, seconds_of
from afterlog.client.served_topic import ServedTopic
from afterlog.fetch.record_id import RecordId
from afterlog.records.batch import decode_own_headers, encode_headers
from afterlog.records.columns import Bools, Int64Array, Ragged
from afterlog.records.encode import RecordColumns, ragged, same_headers, take_ragged, timestamp_column
from afterlog.records.time_columns import asked_column
from afterlog.records.times import AS_SOON_AS_POSSIBLE

JSON_RECORDS = 256
JSON_BYTES = 512 << 10
"""So few go as JSON, which needs no pyarrow; a byte of theirs may be six there, and a server takes 4 MiB."""
PART_RECORDS = 1 << 16
PART_BYTES = 8 << 20
"""A part is no larger, but for one record. Larger: fewer requests, more memory at both ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columnar:
    """The columns of one call. deliver_after: as asked, ms; delay_ms: instead, counted by the server's clock."""

    values: Ragged
    value_valid: Bools | None
    keys: Ragged | None
    key_valid: Bools | None
    headers: Ragged | None
    """Sections, as records have them."""
    deliver_after: Int64Array | None
    delay_ms: Int64Array | None
    timestamps: Int64Array | None
    unique_keys: Any = None

    @staticmethod
    def of(
        values: Any,
        keys: Any,
        headers: tuple[tuple[str, bytes | None], ...],
        delay: Any,
        deliver_after: Any,
        timestamps: Any,
        unique_keys: Any,
        now_ms: int,
    ) -> Columnar:
        """Of what `send_many` takes. Raises InvalidRecord, InvalidDeliverAfter."""
        value_column, value_valid = ragged(values)
        count = len(value_column[0]) - 1
        key_column, key_valid = (None, None) if keys is None else ragged(keys, "keys")
        if key_column is not None and len(key_column[0]) - 1 != count:
            raise InvalidRecord(f"{count} values but {len(key_column[0]) - 1} keys")
        asked = asked_column(count, now_ms if deliver_after is not None else 0, delay, deliver_after)
        return Columnar(
            values=value_column,
            value_valid=value_valid,
            keys=key_column,
            key_valid=key_valid,
            headers=same_headers(headers, count) if headers else None,
            deliver_after=asked if deliver_after is not None else None,
            delay_ms=asked if delay is not None else None,
            timestamps=None if timestamps is None else timestamp_column(timestamps, count),
            unique_keys=unique_keys,
        )

    @staticmethod
    def of_records(columns: RecordColumns, unique_keys: list[bytes | None] | None = None) -> Columnar:
        """Of what a producer has buffered, its headers encoded, each unique key as the first of them."""
        headers = columns.headers
        if headers is not None and unique_keys is not None:
            headers = _without_keys(headers, unique_keys)
        return Columnar(
            values=columns.values,
            value_valid=columns.value_valid,
            keys=columns.keys,
            key_valid=columns.key_valid,
            headers=headers,
            deliver_after=columns.deliver_after,
            delay_ms=None,
            timestamps=columns.timestamps,
            unique_keys=unique_keys,
        )

    def __len__(self) -> int:
        return len(self.values[0]) - 1

    def no_offsets(self) -> Int64Array:
        return np.empty(0, np.int64)

    def take(self, rows: Int64Array) -> Columnar:
        def column(given: Ragged | None) -> Ragged | None:
            return None if given is None else take_ragged(given, rows)

        def flat(given: Any) -> Any:
            return None if given is None else given[rows]

        return Columnar(
            values=take_ragged(self.values, rows),
            value_valid=flat(self.value_valid),
            keys=column(self.keys),
            key_valid=flat(self.key_valid),
            headers=column(self.headers),
            deliver_after=flat(self.deliver_after),
            delay_ms=flat(self.delay_ms),
            timestamps=flat(self.timestamps),
        )

    def sends(
        self,
        target: ServedTopic,
        partition: int | None,
        check: bool | None,
        sequence: Numbered | None = None,
        priority: int | None = None,
    ) -> Steps[Int64Array]:
        """Send all, a part after the other; their offsets, int64[n]. priority: where no partition is named."""
        offsets = np.empty(len(self), np.int64)
        for number, rows in self._rows_of(target, partition, priority):
            whole = self if len(rows) == len(self) else self.take(rows)
            for start, stop in whole._parts():
                part = whole if stop - start == len(whole) else whole.take(np.arange(start, stop))
                asked = part._call(target.name, number, check)
                if sequence is not None:
                    at = (sequence.sequence + start) % SEQUENCES
                    asked = with_sequence(asked, LaneSequence(sequence.producer_id, sequence.epoch, at))
                offsets[rows[start:stop]] = yield asked
        return offsets

    def unique_call(
        self, topic: str, partition: int | None, check: bool | None, on_conflict: str, priority: int | None = None
    ) -> Call[Int64Array]:
        """All in one request, that is not made twice."""
        body = self._stream()
        query = {"partition": partition, "check_instants": check, "on_conflict": on_conflict, "priority": priority}
        return Call(request=_columns_request(topic, body, query), read=_offsets, again=False)

    def _rows_of(
        self, target: ServedTopic, partition: int | None, priority: int | None
    ) -> list[tuple[int, Int64Array]]:
        every = np.arange(len(self))
        if partition is not None:
            return [(partition, every)]
        if self.keys is None or target.partition_count == 1:
            return [(target.partition_of(None, priority), every)]
        if self.key_valid is not None and not bool(self.key_valid.all()):
            raise InvalidRecord("a record has no key: name the partition, or give every key")
        numbers = target.partitioner.partitions_of(self.keys, priority)
        return [(number, np.flatnonzero(numbers == number)) for number in np.unique(numbers).tolist()]

    def _parts(self) -> Iterator[tuple[int, int]]:
        """[start, stop) of each."""
        most_bytes, most = (PART_BYTES, PART_RECORDS) if self._in_columns() else (JSON_BYTES, JSON_RECORDS)
        ends, start = self.values[0], 0
        while start < len(self):
            full = int(np.searchsorted(ends, int(ends[start]) + most_bytes, "right")) - 1
            stop = min(max(full, start + 1), start + most, len(self))
            yield start, stop
            start = stop

    def _call(self, topic: str, number: int, check: bool | None) -> Call[Int64Array]:
        few = not self._in_columns()
        records = self._rows() if few else []
        body = b"" if few else self._stream()

        def request(by: Numbered) -> HttpRequest:
            if few:
                return records_request(topic, records, by, partition=number, check_instants=check)
            query = {
                "partition": number, "check_instants": check,
                "producer_id": by.producer_id, "producer_epoch": by.epoch, "sequence": by.sequence,
            }  # fmt: skip
            return _columns_request(topic, body, query)

        return Call(
            request=HttpRequest(operations.SEND.method, operations.SEND.path_of(topic=topic)),
            read=_offsets,
            sending=Sending(topic, number, len(self), request),
        )

    def _in_columns(self) -> bool:
        """Else as JSON: what is small, and where there is no Arrow all that JSON can say."""
        small = len(self) <= JSON_RECORDS and int(self.values[0][-1] - self.values[0][0]) <= JSON_BYTES
        return self.timestamps is not None or not (small or not has_arrow())

    def _rows(self) -> list[dict[str, Any]]:
        """As JSON has them."""
        nothing = [None] * len(self)
        sections = nothing if self.headers is None else _items(self.headers, None)
        columns = zip(
            sections,
            _items(self.values, self.value_valid),
            nothing if self.keys is None else _items(self.keys, self.key_valid),
            nothing if self.delay_ms is None else map(seconds_of, self.delay_ms.tolist()),
            nothing if self.deliver_after is None else self.deliver_after.tolist(),
            strict=True,
        )
        return [
            SentRecord(
                value,
                key,
                decode_own_headers(section) if section else (),
                delay,
                None if asked == AS_SOON_AS_POSSIBLE else asked,
            ).to_row()
            for section, value, key, delay, asked in columns
        ]

    def _stream(self) -> bytes:
        from afterlog.api.arrow_stream import sent_stream

        asked = self.deliver_after
        return sent_stream(
            _column(self.values, self.value_valid),
            keys=None if self.keys is None else _column(self.keys, self.key_valid),
            headers=self.headers,
            deliver_after=None if asked is None else np.ma.masked_equal(asked, AS_SOON_AS_POSSIBLE),
            delay_ms=self.delay_ms,
            timestamps=self.timestamps,
            unique_keys=self.unique_keys,
        )


def _offsets(reply: HttpReply) -> Int64Array:
    if reply.kind == ARROW:
        from afterlog.api.arrow_stream import placed_of

        return placed_of(reply.body)[1]
    return np.array([RecordId.parse(each).offset for each in json_of(reply)["ids"]], np.int64)


def _without_keys(headers: Ragged, unique_keys: list[bytes | None]) -> Ragged:
    """The sections with all but the unique keys, which go in a column of their own."""
    sections = [
        encode_headers(decode_own_headers(section or b"")[1:]) if key is not None else section
        for section, key in zip(_items(headers, None), unique_keys, strict=True)
    ]
    return ragged(sections)[0]


def _items(column: Ragged, valid: Bools | None) -> list[bytes | None]:
    offsets, data = column
    text = data.tobytes()
    items: list[bytes | None] = [text[start:stop] for start, stop in pairwise(offsets.tolist())]
    if valid is not None:
        for row in np.flatnonzero(~valid).tolist():
            items[row] = None
    return items


def _column(column: Ragged, valid: Bools | None) -> Any:
    """As Arrow has it, where an item is missing."""
    if valid is None:
        return column
    import pyarrow as pa

    offsets, data = column
    mask = pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [mask, pa.py_buffer(np.ascontiguousarray(offsets, np.int64)), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.large_binary(), len(valid), buffers)


def _columns_request(topic: str, body: bytes, query: dict[str, Any]) -> HttpRequest:
    return HttpRequest(operations.SEND.method, operations.SEND.path_of(query, topic=topic), body, ARROW, ARROW)
