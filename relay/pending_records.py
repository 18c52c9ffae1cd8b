"""What waits of one input partition, on disk: a store of afterlog, whose clock stands at the frontier.

A log gives a record the time max(due, its clock), and delivers in order of (time, offset). No record that is due before
the frontier comes in, and none while some of what is due is left, so the time is what the record says, and the order
that of (due, input offset): the key is taken as given.

Memory does not grow with what waits but for its offsets, a bit or some bytes each (`pyroaring`).

    FOLDER/log          the store: one topic, `pending`, each record packed into a value
    FOLDER/cached       a document: of which topic and rectangle the store has what is pending, and the offsets

A cache: nothing is synced, and whatever is wrong with it, it is made anew from Kafka. `cached` is written by `save`,
and removed by what opens it: behind a crash there is none.

A record in the log, big endian:

    int64 offset | int64 due_ms | int64 timestamp_ms | int64 origin
    int32 x 5: bytes of target, key, value, id, headers; -1: None
    target | key | value | id | headers, as a Kafka record has them
"""

from __future__ import annotations

import itertools
import struct
from base64 import b64decode, b64encode
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
from pyroaring import BitMap64

from afterlog.base import document
from afterlog.base.clock import INT64_MAX, ManualClock
from afterlog.base.config import OS, Config
from afterlog.base.errors import AfterlogError
from afterlog.base.files import Files, OsFiles, remove_tree
from afterlog.fetch.message_columns import Columns
from afterlog.fetch.record_id import RecordId
from afterlog.records.batch import decode_headers, encode_headers
from afterlog.relay.instruction import ScheduledDelivery
from afterlog.relay.rectangle import ENDLESS, DueKey, Rectangle
from afterlog.store.store import Store, open_store

TOPIC: Final = "pending"
GROUP: Final = "relay"
DOCUMENT: Final = "afterlog-relay-cache"
DOCUMENT_VERSION: Final = 1
BUFFERED: Final = 1_000
"""Records that are appended together."""
FRONTIER_LEASE_MS: Final = 3_600_000
"""A store that was not closed is not opened again: how far its clock may have come need hardly be written."""
SEGMENT_BYTES: Final = 64 << 20
"""Of the log: what is delivered goes by whole segments."""
_FIXED: Final = struct.Struct(
    ">"
    "q"  # offset
    "q"  # due_ms
    "q"  # timestamp_ms
    "q"  # origin; -1: it is where it was sent
    "i"  # bytes of target
    "i"  # of key; -1: None
    "i"  # of value; -1: None
    "i"  # of id
    "i"  # of headers
)
assert _FIXED.size == 52


def packed(record: ScheduledDelivery) -> bytes:
    """As the log has it."""
    target, headers = record.target.encode(), encode_headers([*record.headers])
    key, value = record.key, record.value
    return b"".join(
        (
            _FIXED.pack(
                record.offset, record.due_ms, record.timestamp_ms, record.origin, len(target),
                -1 if key is None else len(key), -1 if value is None else len(value), len(record.id), len(headers),
            ),
            target, key or b"", value or b"", record.id, headers,
        )
    )  # fmt: skip


def unpacked(data: bytes) -> ScheduledDelivery:
    """What `packed` was given."""
    offset, due_ms, timestamp_ms, origin, *sizes = _FIXED.unpack_from(data)
    parts: list[bytes | None] = []
    at = _FIXED.size
    for size in sizes:
        parts.append(data[at : at + size] if size >= 0 else None)
        at += max(size, 0)
    target, key, value, schedule_id, headers = parts
    assert target is not None
    return ScheduledDelivery(
        offset, due_ms, target.decode(), key, value, tuple(decode_headers(headers or b"")), timestamp_ms,
        schedule_id or b"", origin,
    )  # fmt: skip


class PendingRecords:
    """See the head, and `relay_partition.PendingSeam`. For one thread."""

    def __init__(self, folder: Path, files: Files | None = None) -> None:
        """Empty: what is in the folder goes."""
        self._folder = folder
        self._files = OsFiles() if files is None else files
        self._offsets = BitMap64()
        self._buffer: dict[int, ScheduledDelivery] = {}
        """By offset, ascending: not appended yet."""
        self._by_id: dict[bytes, int] = {}
        """Of what is in the buffer."""
        self._buffer_ms = self._next_ms = INT64_MAX
        """No later than the first is due, of what is in the buffer and of all."""
        self._count = 0
        self.is_cached = False
        """Whether it is what `save` has left."""
        with suppress(FileNotFoundError):
            remove_tree(self._files, folder)
        self._begin(DueKey(0, 0))

    @classmethod
    def cached(cls, folder: Path, topic_id: str, committed: Rectangle, files: Files | None = None) -> PendingRecords:
        """What `save` has left, where it was that of this topic and rectangle (`is_cached`); else empty."""
        made = cls.__new__(cls)
        files = OsFiles() if files is None else files
        path = folder / "cached"
        try:
            told = document.read(files, path, DOCUMENT, DOCUMENT_VERSION)
            files.unlink(path)
            if told["metadata"] != committed.metadata(topic_id) or told["next_offset"] != committed.next_offset:
                return cls(folder, files)
            made._folder, made._files, made._buffer, made._by_id = folder, files, {}, {}
            made._offsets = BitMap64.deserialize(b64decode(told["offsets"]))
            made._count = len(made._offsets)
            made._buffer_ms, made.is_cached = INT64_MAX, True
            made._begin(committed.frontier)
            made._next_ms = made._found_next_ms()
        except (AfterlogError, OSError, LookupError, ValueError, TypeError):
            return cls(folder, files)
        return made

    def _begin(self, frontier: DueKey) -> None:
        self._clock = ManualClock(max(frontier.due_ms, 0))
        config = Config(
            durability=OS, segment_bytes=SEGMENT_BYTES, min_free_bytes=0, checkpoint_ms=None,
            frontier_lease_ms=FRONTIER_LEASE_MS, batch_bytes_max=SEGMENT_BYTES, decompressed_bytes_max=SEGMENT_BYTES,
        )  # fmt: skip
        self._store: Store = open_store(self._folder / "log", config, self._clock, self._files)
        try:
            self._store.create_topic(TOPIC, check_instants=False, retention_ms=0)
            self._partition = self._store.topic(TOPIC).partition(0)
            self._reader = self._store.consumer(TOPIC, group=GROUP, auto_commit=False)
        except BaseException:  # else its lock would stay, where another is made in its place
            self._store.close()
            raise

    # See `PendingSeam`.

    def add(self, record: ScheduledDelivery) -> None:
        if record.id:
            self._by_id[record.id] = record.offset
        self._buffer[record.offset] = record
        self._count += 1
        self._buffer_ms = min(self._buffer_ms, record.due_ms)
        self._next_ms = min(self._next_ms, record.due_ms)
        if len(self._buffer) >= BUFFERED:
            self._flush()

    def cancel(self, schedule_id: bytes, order: int) -> bool | None:
        offset = self._by_id.get(schedule_id)
        if offset is not None:
            if self._buffer[offset].order >= order:
                return False
            del self._buffer[offset], self._by_id[schedule_id]
            self._count -= 1
            return True
        found = self._store.get_unique(TOPIC, schedule_id)
        if found is None:
            return None
        record = unpacked(found.value or b"")
        if record.order >= order:
            return False
        self._store.cancel(found.id)
        self._forget(record)
        return True

    def take(self, upto_ms: int, most: int) -> list[ScheduledDelivery]:
        taken: list[ScheduledDelivery] = []
        if self._count == 0 or self._next_ms > upto_ms:
            return taken
        if self._buffer_ms <= upto_ms:
            self._flush()
        self._clock.set(max(upto_ms, self._clock.now_ms()))
        while len(taken) < most:
            found = self._reader.poll_columns(most - len(taken), 0.0)
            if not len(found):
                break
            taken += _records(found)
        for each in taken:
            self._forget(each)
        self._next_ms = upto_ms if len(taken) == most else self._found_next_ms()
        return taken

    def take_oldest(self, before: int, most: int) -> list[ScheduledDelivery]:
        lowest = self.lowest()
        if lowest is None or lowest >= before:
            return []
        self._flush()
        wanted = [*itertools.islice(itertools.takewhile(before.__gt__, self._offsets), most)]
        place, taken = self._partition.log_start_offset, list[ScheduledDelivery]()
        for offset in wanted:
            place, record = self._found_at(offset, place)
            self._store.cancel(RecordId(TOPIC, 0, place))
            self._forget(record)
            taken.append(record)
        return taken

    def lowest(self) -> int | None:
        offsets = [next(iter(self._buffer))] if self._buffer else []
        if self._offsets:
            offsets.append(self._offsets.min())
        return min(offsets, default=None)

    def next_due_ms(self) -> int | None:
        return self._next_ms if self._count else None

    def __len__(self) -> int:
        return self._count

    # Of the cache.

    def save(self, topic_id: str, committed: Rectangle) -> None:
        """Close, and keep it for who has the partition next; committed: what is pending is that of this rectangle."""
        self._flush()
        self._reader.commit()
        self.close()
        told = {
            "metadata": committed.metadata(topic_id),
            "next_offset": committed.next_offset,
            "offsets": b64encode(self._offsets.serialize()).decode(),
        }
        document.write(self._files, self._folder / "cached", DOCUMENT, DOCUMENT_VERSION, told)

    def close(self) -> None:
        self._reader.close()
        self._store.close()

    # Inside.

    def _flush(self) -> None:
        """Append what is in the buffer."""
        records = [*self._buffer.values()]
        if not records:
            return
        self._buffer, self._by_id, self._buffer_ms = {}, {}, INT64_MAX
        ids = [each.id or None for each in records]
        self._store.send_many(
            TOPIC,
            [packed(each) for each in records],
            deliver_after=np.fromiter((each.due_ms for each in records), np.int64, len(records)),
            unique_keys=ids if any(ids) else None,
            partition=0,
        )
        self._offsets.update(each.offset for each in records)

    def _forget(self, record: ScheduledDelivery) -> None:
        self._offsets.discard(record.offset)
        self._count -= 1

    def _found_next_ms(self) -> int:
        next_ms = self._partition.next_due()
        return min(self._buffer_ms, INT64_MAX if next_ms is None else next_ms)

    def _found_at(self, offset: int, low: int) -> tuple[int, ScheduledDelivery]:
        """Where in the log, from `low` on, is what waits with this offset: both kinds of offsets grow together."""
        end, step = self._partition.log_end_offset, 1
        while low + step < end and self._offset_from(low + step) <= offset:
            low, step = low + step, step * 2
        high = min(low + step, end)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._offset_from(middle) <= offset else (low, middle)
        while True:  # behind markers of what was cancelled
            found = self._store.get(RecordId(TOPIC, 0, low))
            record = None if found is None or found.value is None else unpacked(found.value)
            if record is not None and record.offset == offset:
                return low, record
            assert low < end, "what waits is in the log"
            low += 1

    def _offset_from(self, place: int) -> int:
        """Of the first record at this place of the log or behind it; ENDLESS where there is none."""
        for each in range(place, self._partition.log_end_offset):
            found = self._store.get(RecordId(TOPIC, 0, each))
            if found is not None and found.value is not None:
                return unpacked(found.value).offset
        return ENDLESS


def _records(found: Columns) -> list[ScheduledDelivery]:
    bounds, data = found.value
    text, ends = data.tobytes(), bounds.tolist()
    records = [unpacked(text[start:end]) for start, end in itertools.pairwise(ends)]
    assert [each.due_ms for each in records] == found.due.tolist(), "the clock of the log is not behind what comes in"
    return records
