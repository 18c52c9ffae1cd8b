"""The whole engine in lockstep with `tests.campaigns.model`: appends, fetches, crashes, clocks and retention in any
order.

After every step every promise holds that the model knows, and `store.check()` proves the engine's own invariants. A
failing run prints how to run it again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import TestCase

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from afterlog import (
    ALWAYS,
    EARLIEST,
    LATEST,
    OS,
    AfterOffset,
    AtTime,
    CancelResult,
    Config,
    Consumer,
    Durability,
    ManualClock,
    Message,
    NotPending,
    OffsetOutOfRange,
    OutOfOrderSequence,
    ProducerSequence,
    Record,
    RecordId,
    Store,
    UniqueKeyConflict,
    decode_batch,
    encode_batch,
)
from afterlog.base.files import remove_tree
from afterlog.base.names import LOG, is_producer_file, segment_file
from afterlog.fetch.partition import Partition
from afterlog.index.producer_file import RANGES_MAX
from afterlog.log.scan import walk
from afterlog.log.segment import SealedSegment, Segment
from afterlog.records.entry import decode_entry
from afterlog.records.kernels import FAULTS, scan_entries
from afterlog.records.times import AS_SOON_AS_POSSIBLE
from afterlog.store.store import open_store
from tests import campaigns
from tests.campaigns.crash_states import CrashModel, CrashPoints
from tests.campaigns.model import Expected, Model
from tests.campaigns.simulated_disk import Append, Create, SimulatedFiles, Truncate, Unlink
from tests.support import due_of, restored

pytestmark = pytest.mark.usefixtures("quiet")

PATH = Path("/store")
BACKUPS = Path("/backups")
START_MS = 1_700_000_000_000
LEASE_MS = 50
LIMIT_BYTES = 1 << 20
COARSE = CrashModel(every_byte_max=4, sector_cuts_max=2)

asked_after = st.one_of(st.none(), st.integers(-200, 400), st.integers(0, 20), st.sampled_from([10**6, 10**12]))
values = st.binary(max_size=12) | st.integers(0, 700).map(bytes)
keys = st.sampled_from([b"a", b"b", b"c"])
ways = st.sampled_from(["raise", "keep", "replace"])
records = st.lists(st.tuples(values, asked_after), min_size=1, max_size=12)


def drain(partition: Partition, position: int) -> list[Message]:
    """Every due record from a position on."""
    messages: list[Message] = []
    while True:
        columns, position = partition.columns(position, 7, 500)
        if not len(columns):
            return messages
        messages += columns.to_messages()


BLANK = b"\0blank"
"""What is left of a cancelled record that a cleaning wrote anew."""


def contents(partition: Partition) -> list[Expected | None]:
    """What the log holds in append order, read from the bytes of its segments and nothing else."""
    found: list[Expected | None] = []
    visible = partition.log.version.readable()
    for segment in visible.segments:
        end = visible.end.position if segment is visible.segments[-1] else segment.size
        data = b"".join(piece[:end].tobytes() for _, piece in segment.view(0, end))
        for offset, record in records_in(data, -1 if segment.has_gaps else segment.base_offset):
            found += [None] * (offset - len(found))
            found.append(record)
    return found + [None] * (visible.end.offset - len(found))


def records_in(data: bytes, base_offset: int) -> list[tuple[int, Expected]]:
    """The records of a segment, by its bytes; -1: with gaps between offsets."""
    found: list[tuple[int, Expected]] = []
    scan = scan_entries(np.frombuffer(data, np.uint8), 0, -1, base_offset, True)
    assert scan.fault == 0, FAULTS[scan.fault]
    for position in scan.position.tolist():
        entry = decode_entry(data, position)
        batch = data[entry.batch_position : entry.position + entry.size]
        due = entry.metadata.deliver_after if entry.metadata else 0
        asked = entry.metadata.deliver_after_asked if entry.metadata else AS_SOON_AS_POSSIBLE
        for offset, record in enumerate(decode_batch(batch, limit_bytes=LIMIT_BYTES), entry.header.base_offset):
            value = BLANK if record.value is None else record.value
            found.append((offset, Expected(value=value, asked=asked, due=due)))
    return found


def is_log(path: str) -> bool:
    """Of a segment as it was sealed, and none of a backup."""
    return path.startswith(f"{PATH}/") and path.endswith(LOG) and Path(path).stem.isdigit()


def offsets_in(segment: Segment) -> list[int]:
    """Of a segment that was cleaned."""
    found = list[int]()
    if isinstance(segment, SealedSegment) and segment.has_gaps:
        for scan in walk(segment, 0, segment.size):
            for offset, count in zip(scan.offset.tolist(), scan.records.tolist(), strict=True):
                found += range(offset, offset + count)
    return found


def removed_logs(disk: SimulatedFiles) -> dict[int, bytes]:
    """What the logs held that were removed in the life of this disk, by base offset: as they were in the end."""
    held = {path: data for path, data in disk.start.contents.items() if is_log(path)}
    removed: dict[int, bytes] = {}
    for operation in disk.operations:
        match operation:
            case Create(path) if is_log(path):
                held[path] = b""
            case Append(path, _, data) if path in held:
                held[path] += data
            case Truncate(path, _, size) if path in held:
                held[path] = held[path][:size]
            case Unlink(path) if path in held:
                removed[int(Path(path).stem)] = held.pop(path)
    return removed


SETTINGS = {
    "durability": st.sampled_from([ALWAYS, ALWAYS, OS, Durability.interval(3_600_000)]),
    "delayed": st.sampled_from([True, True, True, False]),
    "compression": st.sampled_from(["none", "none", "gzip", "zstd"]),
    "segment_bytes": st.sampled_from([4_096, 6_000, 20_000]),
    "recovery_bytes": st.sampled_from([600, 1 << 20]),
    "retention_ms": st.sampled_from([None, 0, 300]),
    "retention_bytes": st.sampled_from([None, None, 6_000]),
    "max_num_buckets": st.sampled_from([1, 1, 2, 3, -1]),
}
"""Of every history another choice."""


@dataclass
class Numbered:
    """What a producer has appended under its epoch: the offset of each record, by its sequence."""

    epoch: int = 0
    offsets: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    """Where each call began that appended anything."""

    @property
    def remembered(self) -> int:
        """From which sequence on every retry is known."""
        return self.calls[-RANGES_MAX] if len(self.calls) >= RANGES_MAX else 0

    def crashed(self, end: int) -> None:
        """The log has so many records left."""
        self.offsets = [offset for offset in self.offsets if offset < end]
        self.calls = [call for call in self.calls if call < len(self.offsets)]


class LogMachine(RuleBasedStateMachine):
    """One topic of one partition, whatever its settings."""

    store: Store
    consumer: Consumer | None = None
    lease_ms = LEASE_MS
    takes_unique_keys = True
    forgetful = False
    """What the log says of producers is not all that they appended: retention took some, and the file was lost."""
    halted: Any = False
    """Nothing is delivered, because the clock cannot be right."""

    @initialize(**SETTINGS)
    def begin(
        self, durability: Durability, delayed: bool, retention_ms: Any, retention_bytes: Any, **config: Any
    ) -> None:
        self.config = Config(
            durability=durability,
            batch_bytes_max=4_000,
            batch_bytes=400,
            index_interval_bytes=200,
            min_index_count_per_bucket=8,
            max_indexes_per_bucket_snapshot_segment=4,
            max_time_step_per_bucket_snapshot_segment_s=1,
            frontier_lease_ms=self.lease_ms,
            cleaning_slack_bytes=0,
            **config,
        )
        self.settings = {"delayed": delayed, "retention_ms": retention_ms, "retention_bytes": retention_bytes}
        self.delayed = delayed
        self.clock = self.started()
        self.disk = SimulatedFiles()
        self.model = Model(delayed=delayed)
        self.sizes: dict[str, int] = {}
        self.cleanings = 0
        self.numbered: dict[int, Numbered] = {}
        self.open()

    def started(self) -> ManualClock:
        return ManualClock(START_MS)

    def now_ms(self) -> int:
        """The wall clock as the store takes it."""
        return self.store.now_ms()

    def open(self) -> None:
        self.store = open_store(PATH, self.config, self.clock, self.disk, background=False)
        self.store.create_topic("mail", **self.settings)
        self.partition = self.store.topic("mail").partition(0)
        self.model.reopened()

    # Appending.

    def sent(
        self, first_offset: int, batch: list[tuple[bytes, int]], of_batch: bool, keys: tuple[bytes | None, ...] = ()
    ) -> None:
        latest = max(asked for _, asked in batch)
        rows = []
        for offset, (value, asked) in enumerate(batch, first_offset):
            due = self.due_of(offset) if self.delayed else 0
            key = keys[offset - first_offset] if keys else None
            rows.append(Expected(value=value, asked=latest if of_batch else asked, due=due, told=asked, key=key))
        self.model.appended(first_offset, rows, self.now_ms(), self.lease_ms)
        self.durable(to_end=self.config.durability.kind != "interval")

    def due_of(self, offset: int) -> int:
        """Of a record that was just appended. The roll behind it may have let retention take it."""
        due = due_of(self.partition, offset)
        if due is None:
            removed = removed_logs(self.disk)
            base = max(base for base in removed if base <= offset)
            due = dict(records_in(removed[base], base))[offset].due
        return due

    def durable(self, to_end: bool) -> None:
        """The visible end moves, to the end of the log where the durability or a sync says so."""
        end = self.partition.log_end_offset
        assert self.model.visible_end <= end <= len(self.model.records)
        assert not to_end or len(self.model.records) == end
        self.model.visible_end = end

    def asked(self, after: int | None) -> int:
        return AS_SOON_AS_POSSIBLE if after is None or not self.delayed else self.now_ms() + after

    @rule(value=values, after=asked_after)
    def send(self, value: bytes, after: int | None) -> None:
        asked = self.asked(after)
        record = self.store.send("mail", value, deliver_after=None if asked < 0 else asked)
        self.sent(record.offset, [(value, asked)], of_batch=True)

    @rule(rows=records)
    def send_many(self, rows: list[tuple[bytes, int | None]]) -> None:
        batch = [(value, self.asked(0 if after is None else after)) for value, after in rows]
        column = [asked for _, asked in batch] if self.delayed else None
        offsets = self.store.send_many("mail", [value for value, _ in batch], deliver_after=column)
        assert [*range(offsets[0], offsets[0] + len(batch))] == offsets.tolist()
        self.sent(int(offsets[0]), batch, of_batch=False)

    @rule(rows=records, codec=st.sampled_from(["none", "gzip"]))
    def append_batch(self, rows: list[tuple[bytes, int | None]], codec: Any) -> None:
        batch = [(value, self.asked(after)) for value, after in rows]
        now_ms = self.now_ms()
        data = encode_batch(
            [
                Record(value=value, timestamp=now_ms, deliver_after=None if asked < 0 else asked)
                for value, asked in batch
            ],
            codec,
        )
        if len(data) > self.config.batch_bytes_max:
            return
        if not self.delayed:
            self.sent(self.partition.append(data), batch, of_batch=True)
            return
        # A time of the batch as a whole travels outside of it: here it is the latest of its records.
        latest = max(asked for _, asked in batch)
        first = self.partition.append(data, deliver_after=None if latest < 0 else latest)
        self.sent(first, batch, of_batch=True)

    # Cancelling.

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        offsets = data.draw(st.lists(st.integers(-1, len(self.model.records)), min_size=1, max_size=5, unique=True))
        if len(offsets) == 1:
            answers = [self.store.cancel(RecordId("mail", 0, offsets[0]))]
        else:
            answers = [CancelResult(code) for code in self.store.cancel_many("mail", 0, np.array(offsets)).tolist()]
        targets = self.answered(offsets, answers)
        if targets:
            self.control(sorted(targets))
        self.durable(to_end=self.config.durability.kind != "interval")

    @rule(data=st.data(), after=asked_after)
    def reschedule(self, data: st.DataObject, after: int | None) -> None:
        offset = data.draw(st.integers(-1, len(self.model.records)), "offset")
        asked = self.asked(after)
        answer, again = CancelResult.CANCELLED, None
        try:
            again = self.store.reschedule(RecordId("mail", 0, offset), deliver_after=None if asked < 0 else asked)
        except NotPending as error:
            answer = CancelResult(error.answer)
        assert [offset] * (again is not None) == self.answered([offset], [answer])
        if again is not None:
            self.control([offset])
            moved = self.model.records[offset]
            self.sent(again.offset, [(moved.value, asked)], of_batch=True, keys=(moved.key,))

    # Unique keys.

    @precondition(lambda self: self.delayed and self.takes_unique_keys)
    @rule(value=values, after=asked_after, key=keys, way=ways)
    def send_unique(self, value: bytes, after: int | None, key: bytes, way: Any) -> None:
        asked, end = self.asked(after), len(self.model.records)
        deliver_after = None if asked < 0 else asked
        conflict, record = None, None
        try:
            record = self.store.send("mail", value, deliver_after=deliver_after, unique_key=key, on_conflict=way)
        except UniqueKeyConflict as error:
            conflict = error.record
        sure, perhaps = self.holders(key)
        assert not sure or sure == perhaps
        if conflict is not None:
            assert way == "raise"
            assert conflict.offset in perhaps  # type: ignore[attr-defined]
        elif record is not None and record.offset < end:
            assert way == "keep"
            assert record.offset in perhaps
        elif record is not None:
            if record.offset > end:
                assert way == "replace"
                assert sure or perhaps
                self.control(sure or perhaps)
            assert record.offset > end or not sure
            self.sent(record.offset, [(value, asked)], of_batch=True, keys=(key,))
        self.model.check_stamps([], self.now_ms(), self.lease_ms)
        self.durable(to_end=self.config.durability.kind != "interval")

    def holders(self, key: bytes) -> tuple[list[int], list[int]]:
        """Who surely holds it, by any clock that the log may have; and who may: no other once it has been sent anew."""
        now_ms = self.now_ms()
        most = self.model.holders(key, self.model.stamp_most(now_ms, self.lease_ms))
        return most, self.model.holders(key, self.model.stamp_least(now_ms))[-1:]

    @precondition(lambda self: self.delayed and self.takes_unique_keys)
    @rule(rows=st.lists(st.tuples(values, asked_after, st.none() | keys), min_size=1, max_size=8))
    def send_many_unique(self, rows: list[tuple[bytes, int | None, bytes | None]]) -> None:
        """Keeping: of what is not appended another record holds the key."""
        batch = [(value, self.asked(0 if after is None else after)) for value, after, _ in rows]
        end, asked = len(self.model.records), [key for *_, key in rows]
        sent = self.store.send_many(
            "mail", [value for value, _ in batch], deliver_after=[at for _, at in batch], unique_keys=asked,
            on_conflict="keep",
        ).tolist()  # fmt: skip
        appended = [row for row, offset in enumerate(sent) if offset >= end and offset not in sent[:row]]
        assert [*range(end, end + len(appended))] == [sent[row] for row in appended]
        for row, (key, offset) in enumerate(zip(asked, sent, strict=True)):
            if offset < end:
                assert key is not None
                assert offset in self.holders(key)[1]
            elif row not in appended:
                assert key == asked[sent.index(offset)]
            else:
                assert key is None or not self.holders(key)[0]
        if appended:
            self.sent(end, [batch[row] for row in appended], of_batch=False, keys=tuple(asked[row] for row in appended))
        self.model.check_stamps([], self.now_ms(), self.lease_ms)
        self.durable(to_end=self.config.durability.kind != "interval")

    # What producers number.

    @rule(producer_id=st.integers(1, 2), rows=records, back=st.sampled_from([0, 0, 0, 1, 2, 5, 12, -1]))
    def send_numbered(self, producer_id: int, rows: list[tuple[bytes, int | None]], back: int) -> None:
        """From so many records before the next: those are there already, and the rest is appended."""
        batch = [(value, self.asked(0 if after is None else after)) for value, after in rows]
        known = self.numbered.setdefault(producer_id, Numbered())
        start, end = max(len(known.offsets) - back, 0), len(self.model.records)
        offsets, refused = [], False
        try:
            offsets = self.store.send_many(
                "mail", [value for value, _ in batch], deliver_after=[at for _, at in batch] if self.delayed else None,
                partition=0, sequence=ProducerSequence(producer_id, known.epoch, start),
            ).tolist()  # fmt: skip
        except OutOfOrderSequence:
            refused = True
        if refused:
            assert back < 0 or start < known.remembered or self.forgetful
            assert end == self.partition.log.written
            if self.forgetful:
                self.numbered[producer_id] = Numbered(known.epoch + 1)
            return
        held, fresh = [each for each in offsets if each < end], [each for each in offsets if each >= end]
        assert held == known.offsets[start : start + len(held)]
        assert self.forgetful or len(held) == min(len(known.offsets) - start, len(batch))
        assert [*held, *range(end, end + len(fresh))] == offsets
        if fresh:
            if start + len(held) == len(known.offsets):
                known.calls.append(len(known.offsets))
                known.offsets += fresh
            else:
                self.numbered[producer_id] = Numbered(known.epoch + 1)
            self.sent(end, batch[len(held) :], of_batch=False)
        self.durable(to_end=False)
        assert len(self.model.records) == self.partition.log.written

    def answered(self, offsets: list[int], answers: list[CancelResult]) -> list[int]:
        now_ms = self.now_ms()
        targets = self.model.asked_to_cancel(offsets, answers, now_ms, self.lease_ms)
        self.model.check_stamps([], now_ms, self.lease_ms)
        return targets

    def control(self, targets: list[int]) -> None:
        first = len(self.model.records)
        self.model.appended(first, [self.model.control(targets)], self.now_ms(), self.lease_ms)
        self.model.cancelled |= dict.fromkeys(targets, first)

    @rule()
    def sync(self) -> None:
        self.store.sync()
        self.durable(to_end=True)

    @rule()
    def roll(self) -> None:
        self.partition.log.roll()
        self.durable(to_end=False)

    @rule()
    def checkpoint(self) -> None:
        self.partition.log.checkpoint()
        self.durable(to_end=True)

    @rule(parts=st.lists(records, max_size=3), sealing=st.sampled_from(["checkpoint", "roll"]))
    def merge_buckets(self, parts: list[list[tuple[bytes, int | None]]], sealing: str) -> None:
        """With some runs made for it, so that there is something to merge."""
        for part in parts:
            self.send_many(part)
            getattr(self, sealing)()
        self.partition.log.merge_buckets()
        assert not self.partition.log.merge_buckets()

    @rule()
    def enforce_retention(self) -> None:
        self.partition.high_watermark()
        self.store.enforce_retention()

    @rule()
    def clean(self) -> None:
        self.partition.high_watermark()
        if not self.halted:
            self.store.clean("mail")

    @precondition(lambda self: not self.halted)
    @rule(data=st.data())
    def purge(self, data: st.DataObject) -> None:
        """All that is due before a position, but for a batch that goes on behind it."""
        self.model.read(self.partition.fetch(LATEST).clock_ms, self.now_ms())
        start, end = self.partition.log_start, self.partition.high_watermark()
        position = data.draw(st.integers(start, max(start, end)), "position")
        self.consumer = None
        count = self.store.purge("mail", position, force=True)
        log_start = self.partition.log_start
        assert start + count == log_start <= max(position, start)
        if log_start > start:
            self.model.purged = log_start
        if self.model.committed is not None:  # also over what retention had taken before
            self.model.committed = max(self.model.committed, log_start)
        self.durable(to_end=False)

    # The clock.

    @rule(ms=st.integers(1, 500))
    def advance(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule(ms=st.integers(1, 300))
    def step_back(self, ms: int) -> None:
        self.clock.set(self.clock.now_ms() - ms)

    # Reading.

    @precondition(lambda self: not self.halted)
    @rule(data=st.data())
    def fetch(self, data: st.DataObject) -> None:
        """Raw batches from anywhere: the stretch that they hold is that of delivery order."""
        position = data.draw(st.integers(0, self.model.visible_end + 1), "position")
        if not self.model.log_start <= position <= self.model.visible_end:
            with contextlib.suppress(OffsetOutOfRange):
                self.partition.fetch(position)
                raise AssertionError(f"{position} is outside [{self.model.log_start}, {self.model.visible_end}]")
            return
        result = self.partition.fetch(position, max_bytes=data.draw(st.integers(0, 3_000), "max_bytes"))
        self.model.read(result.clock_ms, self.now_ms())
        high_watermark = self.model.high_watermark(result.clock_ms)
        assert (high_watermark, self.model.visible_end) == (result.high_watermark, result.log_end_offset)
        decoded = [decode_batch(batch, limit_bytes=LIMIT_BYTES) for batch in result.batches]
        expected = self.model.shown(position, result.next_position)
        order, delivered = self.model.order(), {}
        for start, batch in zip(result.delivery_offsets.tolist(), decoded, strict=True):
            delivered |= {rank: (order[rank], record.value) for rank, record in enumerate(batch, start)}
        hidden = {offset for offset, _ in delivered.values()} & self.model.hidden()
        assert sorted(hidden) == result.cancelled.tolist()
        found = [(rank, offset) for rank, (offset, _) in sorted(delivered.items()) if offset not in hidden]
        assert expected == [pair for pair in found if pair[0] >= position]
        assert all(self.model.records[offset].value == value for offset, value in delivered.values())
        if self.model.shown(position, high_watermark):
            assert result.batches
            assert position < result.next_position <= high_watermark
        else:
            assert len(result.batches) <= 1  # that in which the position lies, of which the rest is cancelled
            assert max(position, high_watermark) == result.next_position

    @rule(back=st.integers(0, 600))
    def seek_time(self, back: int) -> None:
        if self.delayed:
            ms = self.now_ms() + 200 - back
            assert self.model.position_at(ms) == self.partition.position(AtTime(ms))

    @precondition(lambda self: self.model.visible_end and not self.halted)
    @rule(data=st.data())
    def seek_offset(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.model.visible_end - 1), "offset")
        try:
            position = self.partition.position(AfterOffset(offset))
        except OffsetOutOfRange:
            assert offset in self.model.order()[: self.model.log_start]
        else:
            expected = self.model.position_after(offset)
            assert expected == position or max(expected, position) < self.model.log_start
        if self.delayed and offset not in self.model.removed:
            pending = self.partition.is_pending(offset)
            self.model.read(self.partition.fetch(LATEST).clock_ms, self.now_ms())
            coming = self.model.records[offset].due > self.model.life_reading_ms
            assert (coming and offset not in self.model.hidden()) == pending

    @precondition(lambda self: not self.halted)
    @precondition(lambda self: not self.halted)
    @rule(data=st.data())
    def look_up(self, data: st.DataObject) -> None:
        """Records by their offsets: what is to come, what can be had, what is neither."""
        offset = data.draw(st.integers(0, len(self.model.records)))
        found = self.store.get(RecordId("mail", 0, offset))
        pending = {record.offset for record in self.store.pending("mail", limit=10**6)}
        delivered = {message.offset for message in drain(self.partition, self.model.log_start)}
        is_visible = offset < self.partition.log.version.visible.offset
        if offset in pending | delivered:
            assert found is not None
        if found is None:
            assert offset not in pending | delivered
            return
        known = self.model.records[offset]
        assert known is not None
        assert known.due == found.due
        if found.state == "cancelled":
            assert offset not in delivered
            assert offset in self.model.cancelled
            # Until its control batch is synced it is listed still, and no fetch passes the stamp of that.
            assert (offset in pending) == (is_visible and offset not in self.model.hidden())
            assert found.value in (known.value, None), "a cleaning leaves none"
            return
        assert known.value == found.value
        if is_visible:  # else it may be due, and is counted as pending until it is synced
            assert found.state == ("pending" if offset in pending else "due")
            assert offset in pending | delivered

    @precondition(lambda self: self.delayed and self.takes_unique_keys)
    @rule(key=keys)
    def look_up_unique(self, key: bytes) -> None:
        found = self.store.get_unique("mail", key)
        sure, perhaps = self.holders(key)
        assert [] == sure if found is None else found.offset in perhaps

    @rule(count=st.integers(0, 20), commit=st.booleans())
    def consume(self, count: int, commit: bool) -> None:
        consumer = self.consumer or self.store.consumer("mail", group="group", auto_commit=False)
        self.consumer = consumer
        self.model.check_d9_committed(consumer.committed()[0], self.partition.log_end_offset)
        position = consumer.positions()[0]
        if position < self.model.log_start:
            consumer.seek(EARLIEST)
            position = self.model.log_start
        messages = consumer.poll(count) if count else []
        self.model.check_d6_order(messages, position)
        self.model.check_d8_never_changes(messages)
        shown = self.model.shown(position, self.model.visible_end)[: len(messages)]
        assert [offset for _, offset in shown] == [message.offset for message in messages]
        if commit:
            consumer.commit()
            self.model.committed = consumer.positions()[0]

    # Life and death.

    @rule()
    def reopen(self) -> None:
        self.consumer = None
        self.store.close()
        self.model.closed()
        self.model.visible_end = len(self.model.records)
        self.open()
        assert not self.store.cut_bytes
        self.check_contents()

    @rule()
    def reopen_without_indexes(self) -> None:
        """The log is the only truth."""
        self.consumer = None
        self.store.close()
        self.model.closed()
        self.model.visible_end = len(self.model.records)
        folder = PATH / "mail-0"
        for place in (folder, folder / "buckets"):
            for name in self.disk.names(place):
                if name.endswith(("index",)):
                    self.disk.unlink(place / name)
                if is_producer_file(name):
                    self.disk.unlink(place / name)
                    away = any(not segment.is_local() for segment in self.partition.log.version.sealed)
                    self.forgetful = self.forgetful or away or bool(self.model.removed)
        self.open()
        self.check_contents()

    @rule(data=st.data())
    def power_cut(self, data: st.DataObject) -> None:
        self.cut_power(lambda states: data.draw(st.integers(0, states - 1), "state"))

    def cut_power(self, choose: Callable[[int], int]) -> None:
        """`choose`: which of so many states the disk is left in."""
        self.abandon()
        points = CrashPoints(self.disk.start, COARSE)
        for operation in self.disk.operations:
            points.apply(operation)
        states = list(points.power_cuts())
        state = states[choose(len(states))]
        self.disk = state.files()
        self.recover(covered=self.config.durability.kind != "os")

    @rule()
    def kill(self) -> None:
        """Of the process: all that was written stays, and what was not durable stays not durable."""
        self.abandon()
        self.disk = SimulatedFiles(self.disk.start, self.disk.operations)
        self.model.visible_end = len(self.model.records)
        self.recover(covered=True)

    @rule()
    def backup(self) -> None:
        """A copy of it holds what is visible now, and knows as much of its reader."""
        made = self.store.backup(BACKUPS)
        self.model.visible_end = len(self.model.records)  # it syncs first
        assert self.model.visible_end == self.partition.log_end_offset
        copy = SimulatedFiles(restored(self.disk, made).image())
        with self.opened(copy) as store:
            assert not store.cut_bytes
            assert contents(self.partition) == contents(store.topic("mail").partition(0))
            # Of a frontier the copy has the lease alone; and it does not know of a clock that was set back.
            is_behind = self.clock.now_ms() < max(self.partition.log.frontier_ms, self.store.now_ms())
            if self.delayed and not is_behind:
                assert self.partition.next_due() == store.topic("mail").partition(0).next_due()
            with store.consumer("mail", group="group", auto_commit=False) as consumer:
                assert self.model.committed == consumer.committed()[0]
            store.check()
        remove_tree(self.disk, BACKUPS)

    def opened(self, copy: SimulatedFiles) -> Store:
        """A store that was restored from a backup."""
        return open_store(PATH, self.config, self.clock, copy, background=False)

    def abandon(self) -> None:
        self.consumer = None
        if self.store._sync is not None:
            self.store._sync.stop()

    def recover(self, covered: bool) -> None:
        self.open()
        self.model.crashed(self.partition.log_end_offset, covered)
        for known in self.numbered.values():
            known.crashed(self.partition.log.written)
        self.check_contents()

    def check_contents(self) -> None:
        self.observe_retention()
        found = contents(self.partition)
        known, hidden = self.model.records, self.model.cancelled
        assert len(known) == len(found)
        found = [
            replace(row, value=known[offset].value) if row and row.value == BLANK and offset in hidden else row
            for offset, row in enumerate(found)
        ]
        self.model.check_d8_prefix(
            [row and replace(known[offset], value=row.value, due=row.due) for offset, row in enumerate(found)]
        )

    # After every step.

    def observe_retention(self) -> None:
        segments = self.partition.log.version.segments
        behind = [*(segment.base_offset for segment in segments[1:]), len(self.model.records)]
        spans = [
            offsets_in(segment) or range(segment.base_offset, getattr(segment, "end_offset", end))
            for segment, end in zip(segments, behind, strict=True)
        ]
        sizes = {segment.path.name: segment.size for segment in segments}
        known = self.sizes
        if known.keys() != sizes.keys():  # a segment may have grown, or have come, in the very step that took it away
            removed = removed_logs(self.disk)
            names = {segment_file(base, LOG): len(data) for base, data in removed.items()}
            known = known | {name: size for name, size in names.items() if name >= max(known, default="")}
        gone = [size for name, size in known.items() if name not in sizes]
        limit_bytes, limit_ms = self.settings["retention_bytes"], self.settings["retention_ms"]
        cleanings = self.partition.log.checkpoints.current.cleanings
        was_bytes = sum(sizes.values()) + max(gone, default=0)
        if cleanings != self.cleanings:  # what stays of a segment was written anew behind what retention took
            was_bytes = max(was_bytes, sum(known.values()))
        oversized = limit_bytes is not None and was_bytes > limit_bytes
        clock_ms = self.model.reading_ms if self.delayed else self.model.wall_most(self.now_ms())
        expired_ms = None if limit_ms is None else clock_ms - limit_ms
        self.model.check_d13_retention(spans, self.partition.log_start, expired_ms, oversized)
        self.sizes, self.cleanings = sizes, cleanings

    @precondition(lambda self: not self.halted)
    @invariant()
    def promises(self) -> None:
        campaigns.count("steps of a model")
        self.store.check()
        self.durable(to_end=False)
        result = self.partition.fetch(LATEST)
        self.model.read(result.clock_ms, self.now_ms())
        self.observe_retention()
        now_ms = self.now_ms()
        edges = [0, now_ms - 300, now_ms, now_ms + 1, now_ms + 300, now_ms + 10**13]
        high_watermark = self.model.high_watermark(result.clock_ms)
        self.model.check_schedule(
            result.clock_ms,
            self.partition.high_watermark(),
            self.partition.pending(),
            [(record.due, record.offset) for record in self.store.pending("mail", limit=10**6)],
            self.partition.next_due(),
            edges,
            self.partition.due_histogram(np.array(edges, np.int64)).tolist(),
        )
        assert max(high_watermark, self.model.log_start) == self.partition.position(LATEST)
        messages = drain(self.partition, self.model.log_start)
        self.model.check_delivery(messages, self.model.log_start, result.clock_ms, high_watermark)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.consumer = None
            self.store.close()


def drawn(value: Any) -> Any:
    """The data of a step that is told by hand."""
    return SimpleNamespace(draw=lambda strategy, label=None: value)


def begun(durability: Durability = ALWAYS) -> LogMachine:
    """A history to be told by hand, of segments of five records of 700 bytes, of which one and a half may stay."""
    machine = LogMachine()
    machine.begin(  # type: ignore[call-arg]
        durability=durability,
        delayed=True,
        compression="none",
        segment_bytes=4_096,
        recovery_bytes=600,
        retention_ms=None,
        retention_bytes=6_000,
        max_num_buckets=-1,
    )
    machine.promises()
    return machine


def test_retention_takes_a_segment_in_the_step_that_filled_it() -> None:
    """It was too large together with what it got in this step, not before."""
    machine = begun()
    machine.send_many([(bytes(700), None)])
    machine.promises()
    machine.send_many([(bytes(700), None)] * 10)
    machine.promises()
    assert machine.model.removed
    machine.teardown()


def test_retention_takes_a_record_before_the_step_that_sent_it_ends() -> None:
    machine = begun()
    machine.send_many([(bytes(700), None)] * 12)
    machine.promises()
    assert machine.model.removed
    machine.teardown()


def test_a_purge_amid_a_batch_that_is_cancelled() -> None:
    machine = begun()
    machine.send_many([(b"a", 10), (b"b", 10), (b"c", 10)])
    machine.store.cancel_many("mail", 0, np.arange(3))
    machine.clock.advance(10)
    assert 0 == machine.store.purge("mail", 1)
    assert 3 == machine.store.purge("mail", 3)
    machine.store.close()


def test_what_was_due_when_it_was_opened_was_made_so_by_no_reading() -> None:
    """Visible since the close before, and due by the frontier: no later reading need be kept over a kill."""
    machine = begun(Durability.interval(3_600_000))
    machine.advance(1)
    machine.promises()
    machine.step_back(318)
    machine.send(after=0, value=b"a")
    machine.advance(471)
    machine.reopen()
    machine.promises()
    machine.step_back(502)
    machine.kill()
    machine.promises()
    machine.advance(297)
    machine.send_many([(b"", 0)])
    machine.promises()
    machine.teardown()


def test_what_was_cancelled_is_listed_until_that_is_synced() -> None:
    machine = begun(Durability.interval(3_600_000))
    machine.send_many_unique(rows=[(bytes(300), 1, None), (b"", None, None), (b"", None, None), (b"", 1, None)])
    machine.promises()  # more than `recovery_bytes`: a checkpoint has synced it
    machine.cancel(data=drawn([0]))
    machine.promises()
    machine.look_up(data=drawn(0))
    machine.store.sync()
    machine.promises()
    machine.look_up(data=drawn(0))
    machine.teardown()


def test_a_backup_while_a_clock_that_was_set_back_is_being_caught_up_with() -> None:
    """The store goes by a reading ahead of the wall clock, which a copy that is opened does not know."""
    machine = begun(Durability.interval(3_600_000))
    machine.send(value=b"a", after=None)
    machine.step_back(ms=127)
    machine.advance(ms=130)
    assert machine.clock.now_ms() < machine.store.now_ms()
    machine.send(value=b"b", after=None)
    machine.send(value=b"c", after=20)
    machine.backup()
    machine.teardown()


def test_a_key_that_was_free_once_is_not_held_again_by_a_clock_that_stepped_back() -> None:
    machine = begun(Durability.interval(3_600_000))
    machine.send_unique(value=b"a", after=11, key=b"k", way="raise")
    machine.advance(11)
    machine.send_unique(value=b"b", after=1_000_000_000_000, key=b"k", way="raise")
    machine.kill()
    machine.step_back(300)
    machine.promises()
    machine.send_unique(value=b"c", after=None, key=b"k", way="replace")
    machine.promises()
    machine.teardown()


def histories(part: int) -> type[TestCase]:
    """An eighth of them, so that no process is left with all of them at the end."""
    machine = type(f"LogMachine{part}", (LogMachine,), {})
    machine.TestCase.settings = settings(max_examples=campaigns.examples(2, whole=80), stateful_step_count=60)
    return machine.TestCase


TestLog0, TestLog1, TestLog2, TestLog3, TestLog4, TestLog5, TestLog6, TestLog7 = map(histories, range(8))
