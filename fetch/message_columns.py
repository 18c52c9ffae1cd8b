"""Records as columns: what `poll_columns` returns, with no Python object per record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from afterlog.fetch.message import Message, ScheduledRecord
from afterlog.records.batch import decode_own_headers
from afterlog.records.columns import Bools, Int64Array, Ragged
from afterlog.records.encode import RecordColumns, join_ragged, same_headers, take_ragged

if TYPE_CHECKING:
    import pyarrow as pa

Made = TypeVar("Made")


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
    def concatenate(parts: Sequence[Columns]) -> Columns:
        """The parts, of one topic, one behind another."""
        if len(parts) == 1:
            return parts[0]
        columns: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _FLAT}
        columns |= {name: join_ragged([getattr(part, name) for part in parts]) for name in _RAGGED}
        return Columns(topic=parts[0].topic, **columns)

    def to_arrow(self) -> pa.RecordBatch:
        """A pyarrow RecordBatch over the same memory where Arrow's layout allows. Needs ``afterlog[arrow]``."""
        import pyarrow as pa

        def binary(column: Ragged, valid: Bools) -> pa.Array:
            offsets, data = column
            mask = None if bool(valid.all()) else pa.py_buffer(np.packbits(valid, bitorder="little"))
            buffers = [mask, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(data)]
            return pa.Array.from_buffers(pa.large_binary(), len(valid), buffers)

        names = [*_NUMBERS, "key", "value"]
        arrays = [pa.array(getattr(self, name)) for name in _NUMBERS]
        arrays += [binary(self.key, self.key_valid), binary(self.value, self.value_valid)]
        return pa.RecordBatch.from_arrays(arrays, names=names)

    def to_messages(self) -> list[Message]:
        """One `Message` per record: convenient, and some hundred times slower than the columns."""
        return self.each(Message)

    def to_scheduled(self) -> list[ScheduledRecord]:
        """The same of pending records, which have no rank yet."""
        names = [field.name for field in fields(ScheduledRecord)]
        return [ScheduledRecord(**{name: getattr(each, name) for name in names}) for each in self.to_messages()]

    def each(self, make: Callable[..., Made], **more: list[Any]) -> list[Made]:
        """What `make` makes of each record, by the fields of `Message`, and of its row in `more`."""
        if not more:
            return list(self._each(make, [{}] * len(self)))
        rows = zip(*more.values(), strict=True)
        return list(self._each(make, [dict(zip(more, row, strict=True)) for row in rows]))

    def _each(self, make: Callable[..., Made], more: list[dict[str, Any]]) -> Iterator[Made]:
        keys, values, headers = _strings(self.key), _strings(self.value), _strings(self.headers)
        rows = zip(
            self.partition.tolist(), self.offset.tolist(), self.delivery_offset.tolist(), self.timestamp.tolist(),
            self.broker_timestamp.tolist(), self.deliver_after.tolist(), self.due.tolist(), self.key_valid.tolist(),
            self.value_valid.tolist(), keys, values, headers, more, strict=True,
        )  # fmt: skip
        for number, offset, rank, *times, has_key, has_value, key, value, header, other in rows:
            timestamp, appended, asked, due = times
            yield make(
                topic=self.topic,
                partition=number,
                offset=offset,
                delivery_offset=rank,
                key=key if has_key else None,
                value=value if has_value else None,
                headers=decode_own_headers(header) if header else (),
                timestamp=timestamp,
                broker_timestamp=appended,
                deliver_after=asked,
                due=due,
                **other,
            )


_NUMBERS = ("partition", "offset", "delivery_offset", "due", "deliver_after", "timestamp", "broker_timestamp")
_FLAT = (*_NUMBERS, "key_valid", "value_valid")
_RAGGED = ("key", "value", "headers")


def _strings(column: Ragged) -> Iterator[bytes]:
    offsets, data = column
    start = int(offsets[0])
    text = data[start : int(offsets[-1])].tobytes()
    places = (offsets - start).tolist()
    return (text[begin:end] for begin, end in pairwise(places))
