"""Records as columns: what `poll_columns` returns, with no Python object per record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from afterlog.fetch.message import Message, ScheduledRecord
from afterlog.fetch.objects import Column, Same, Sections, Strings, made
from afterlog.records.batch import decode_own_headers, encode_headers, own_headers
from afterlog.records.columns import Bools, Int64Array, Ragged
from afterlog.records.encode import RecordColumns, join_ragged, same_headers, take_ragged

if TYPE_CHECKING:
    import pyarrow as pa

MadeMessage = TypeVar("MadeMessage", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """n records of one topic.

    offset, delivery_offset, due (effective deliver_after, ms), deliver_after (as asked, ms), timestamp (the producer's,
    ms), broker_timestamp (of the append, ms; -1 where the log has none), partition: int64[n]. key, value: (int64
    offsets[n+1], uint8 data), record i is data[offsets[i]:offsets[i+1]]; key_valid, value_valid: bool[n], False where
    the record has none. headers: encoded as in the record, empty for none.
    """

    topic: str
    partition: Int64Array
    offset: Int64Array
    delivery_offset: Int64Array
    due: Int64Array
    deliver_after: Int64Array
    timestamp: Int64Array
    broker_timestamp: Int64Array
    key: Ragged
    key_valid: Bools
    value: Ragged
    value_valid: Bools
    headers: Ragged

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def value_bytes(self) -> int:
        """Bytes of all values."""
        offsets, _ = self.value
        return int(offsets[-1] - offsets[0])

    def __getitem__(self, rows: slice) -> Columns:
        """The records of a slice without a step, as views."""
        start, stop, step = rows.indices(len(self))
        if step != 1:
            raise ValueError("a slice of Columns takes no step")
        part, stop = slice(start, max(stop, start)), max(stop, start)
        columns: dict[str, Any] = {name: getattr(self, name)[part] for name in _FLAT}
        for name in _RAGGED:
            offsets, data = getattr(self, name)
            columns[name] = (offsets[start : stop + 1], data)
        return Columns(topic=self.topic, **columns)

    def take(self, rows: Int64Array) -> Columns:
        """The records at `rows`, in that order."""
        columns: dict[str, Any] = {name: getattr(self, name)[rows] for name in _FLAT}
        columns |= {name: take_ragged(getattr(self, name), rows) for name in _RAGGED}
        return Columns(topic=self.topic, **columns)

    def again(self, deliver_after: int) -> RecordColumns:
        """One record, to be sent again for another time."""
        return RecordColumns(
            values=self.value,
            value_valid=self.value_valid,
            keys=self.key,
            key_valid=self.key_valid,
            headers=same_headers(decode_own_headers(self.headers[1]), 1),
            timestamps=self.timestamp,
            deliver_after=np.array([deliver_after], np.int64),
        )

    def rows_of_key(self, key: bytes) -> Int64Array:
        """Which records have this key."""
        offsets, data = self.key
        rows = np.flatnonzero(self.key_valid & (offsets[1:] - offsets[:-1] == len(key)))
        same = data[offsets[rows][:, None] + np.arange(len(key))] == np.frombuffer(key, np.uint8)
        found: Int64Array = rows[same.all(axis=1)]
        return found

    @staticmethod
    def empty(topic: str) -> Columns:
        nothing, no_bools = np.empty(0, np.int64), np.empty(0, np.bool_)
        ragged = (np.zeros(1, np.int64), np.empty(0, np.uint8))
        return Columns(
            topic=topic, partition=nothing, offset=nothing, delivery_offset=nothing, due=nothing, deliver_after=nothing,
            timestamp=nothing, broker_timestamp=nothing,
            key=ragged, key_valid=no_bools, value=ragged, value_valid=no_bools, headers=ragged,
        )  # fmt: skip

    @staticmethod
    def of(message: Message) -> Columns:
        """The same of one record, copied."""

        def number(value: int) -> Int64Array:
            return np.array([value], np.int64)

        def item(value: bytes | None) -> tuple[Ragged, Bools]:
            text = value or b""
            return (np.array([0, len(text)], np.int64), np.frombuffer(text, np.uint8)), np.array([value is not None])

        (key, key_valid), (value, value_valid) = item(message.key), item(message.value)
        return Columns(
            topic=message.topic, partition=number(message.partition), offset=number(message.offset),
            delivery_offset=number(message.delivery_offset), due=number(message.due),
            deliver_after=number(message.deliver_after), timestamp=number(message.timestamp),
            broker_timestamp=number(message.broker_timestamp), key=key, key_valid=key_valid,
            value=value, value_valid=value_valid, headers=item(encode_headers(own_headers(message.headers)))[0],
        )  # fmt: skip

    @staticmethod
    def concatenate(parts: Sequence[Columns]) -> Columns:
        """The parts, of one topic, one after another."""
        if len(parts) == 1:
            return parts[0]
        columns: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _FLAT}
        columns |= {name: join_ragged([getattr(part, name) for part in parts]) for name in _RAGGED}
        return Columns(topic=parts[0].topic, **columns)

    def to_arrow(self) -> pa.RecordBatch:
        """A pyarrow RecordBatch over the same memory where Arrow's layout allows. Needs ``afterlog[arrow]``.

        headers: a list of struct<key, value>, a Python object for each while it is made; where no record has any, none.
        """
        import pyarrow as pa

        from afterlog.fetch.arrow_arrays import binary_array, headers_array

        arrays = {name: pa.array(getattr(self, name)) for name in _NUMBERS}
        arrays["key"] = binary_array(self.key, self.key_valid)
        arrays["value"] = binary_array(self.value, self.value_valid)
        arrays["headers"] = headers_array(self.headers)
        return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))

    def to_messages(self) -> list[Message]:
        """One `Message` per record: convenient, at about 0.3 us each."""
        return self.each(Message)

    def to_scheduled(self) -> list[ScheduledRecord]:
        """The same of pending records, which have no rank yet."""
        return made(ScheduledRecord, len(self), self._slots())

    def each(self, cls: type[MadeMessage], **more: Column) -> list[MadeMessage]:
        """The same of a class that has more fields, and the columns of these."""
        return made(cls, len(self), {**self._slots(), "delivery_offset": self.delivery_offset, **more})

    def _slots(self) -> dict[str, Column]:
        """The columns of the fields that a message and a pending record have."""
        ends, data = self.headers
        headers: Column = Same(())
        if len(ends) and ends[0] < ends[-1]:
            headers = Sections(ends, data)
        return {
            "topic": Same(self.topic),
            "partition": self.partition,
            "offset": self.offset,
            "key": Strings(*self.key, self.key_valid),
            "value": Strings(*self.value, self.value_valid),
            "headers": headers,
            "timestamp": self.timestamp,
            "broker_timestamp": self.broker_timestamp,
            "deliver_after": self.deliver_after,
            "due": self.due,
        }


_NUMBERS = ("partition", "offset", "delivery_offset", "due", "deliver_after", "timestamp", "broker_timestamp")
_FLAT = (*_NUMBERS, "key_valid", "value_valid")
_RAGGED = ("key", "value", "headers")
