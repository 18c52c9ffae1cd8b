"""Workloads against the store, and the oracle that judges what a crash left of them: for test_crashes, planted_bugs.

A workload marks on the disk what it is about to do and what it was promised; a crash cuts the marks off with the rest.

    Tried(records)      an append begins: from now on they may be in the log, as a whole
    Acked(offset, …)    it returned: the records are there, under these offsets and due times
    Controls(offset, …) a control batch that was tried there cancels these; or reschedules, with the record behind it
    Shown(…)            a fetch delivered these: (delivery offset, offset, value, due)
    Commits, Committed  a commit begins, and has returned
    Clock(ms)           the wall clock's time
    Made(topic)         create_topic returned
    Recovered(dues)     a crashed log was opened with so many records: what is not among them never will be
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import struct
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from afterlog import (
    ALWAYS,
    EARLIEST,
    OS,
    CancelResult,
    Config,
    Durability,
    ManualClock,
    Message,
    ProducerSequence,
    RecordId,
    Store,
)
from afterlog.base.errors import InvalidBatch, OffsetOutOfRange, StorageFull
from afterlog.base.files import Files
from afterlog.base.names import SUBSCRIPTIONS
from afterlog.fetch.group import GroupPosition
from afterlog.fetch.partition import Partition
from afterlog.index.entries import Entries, Key
from afterlog.log import origin_files, producer_files, recovery, unique_key_files
from afterlog.log.commit import Commit
from afterlog.log.origin_files import origins_of_log
from afterlog.log.replicated_appends import ReplicatedAppends
from afterlog.log.segment import ActiveSegment
from afterlog.records.awaited import Awaited
from afterlog.records.batch import Record, decode_batch, encode_batch
from afterlog.records.columns import FAULTS
from afterlog.records.encode import Batches, parse
from afterlog.records.entry import decode_entry
from afterlog.records.kernels import scan_entries
from afterlog.records.times import AS_SOON_AS_POSSIBLE
from afterlog.store.store import open_store
from afterlog.subscription.ack_set import AckSet
from afterlog.subscription.replay import replay
from afterlog.subscription.state import Owner
from tests.campaigns.crash_states import CrashState
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import due_of, ranges_of_one

PATH = Path("/store")
TOPIC = "mail"
START_MS = 1_700_000_000_000
STEP_BACK_MS = 30
"""The wall clock after the crash is this much after the one before."""
FAR_MS = 10_000_000
BLANK = b"blank"
"""What is left of a cancelled record that a cleaning wrote anew."""


@dataclass(frozen=True, slots=True)
class Tried:
    records: tuple[tuple[bytes, int], ...]
    """(value, deliver_after as asked)"""


@dataclass(frozen=True, slots=True)
class Acked:
    offset: int
    dues: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Controls:
    offset: int
    targets: tuple[int, ...]
    followed: bool


@dataclass(frozen=True, slots=True)
class Shown:
    records: tuple[tuple[int, int, bytes, int], ...]


@dataclass(frozen=True, slots=True)
class Commits:
    position: int


@dataclass(frozen=True, slots=True)
class Committed:
    position: int


@dataclass(frozen=True, slots=True)
class Clock:
    ms: int


@dataclass(frozen=True, slots=True)
class Made:
    topic: str


@dataclass(frozen=True, slots=True)
class Recovered:
    dues: tuple[int, ...]


def small(durability: Durability = ALWAYS, **settings: Any) -> Config:
    """A store in which everything happens soon."""
    return Config(
        **{
            "durability": durability,
            "segment_bytes": 4_096,
            "batch_bytes_max": 2_048,
            "index_interval_bytes": 128,
            "min_index_count_per_bucket": 4,
            "max_indexes_per_bucket_snapshot_segment": 2,
            "frontier_lease_ms": 20,
            "cleaning_slack_bytes": 0,
        }
        | settings
    )


class Session:
    """A workload's hands: the store, and a mark for everything that it does."""

    def __init__(self, files: Files, disk: SimulatedFiles, config: Config, **topic: Any) -> None:
        self.disk = disk
        self.files = files
        self.config = config
        self.clock = ManualClock(START_MS)
        self.topic = topic
        self.open()

    def open(self) -> None:
        self.disk.mark(Clock(self.clock.now_ms()))
        self.store = self.opened()
        self.partition = self.store.create_topic(TOPIC, **self.topic).partition(0)
        self.disk.mark(Made(TOPIC))
        self.consumer = self.store.consumer(TOPIC, group="g", auto_commit=False)

    def opened(self) -> Store:
        return open_store(PATH, self.config, self.clock, self.files, background=False)

    def send(self, *records: tuple[bytes, int | None]) -> None:
        """One append of (value, ms from now)."""
        now_ms = self.clock.now_ms()
        asked = [AS_SOON_AS_POSSIBLE if after is None else now_ms + after for _, after in records]
        self.disk.mark(Tried(tuple((value, at) for (value, _), at in zip(records, asked, strict=True))))
        if len(records) == 1:
            at = None if asked[0] < 0 else asked[0]
            offset = self.store.send(TOPIC, records[0][0], deliver_after=at).offset
        else:
            column = asked if self.partition.log.delayed else None
            values = [value for value, _ in records]
            offset = int(self.store.send_many(TOPIC, values, deliver_after=column)[0])
        self.returned(offset, len(records))

    def cancel(self, *offsets: int) -> None:
        """Pending records that no other cancel named."""
        control = self.control(offsets)
        answers = self.store.cancel_many(TOPIC, 0, np.array(offsets))
        assert [CancelResult.CANCELLED] * len(offsets) == answers.tolist()
        self.returned(control, 1)

    def reschedule(self, offset: int, value: bytes, after: int) -> None:
        """The same of one, whose value is this, for some ms from now."""
        asked = self.clock.now_ms() + after
        control = self.control((offset,), (value, asked))
        assert control + 1 == self.store.reschedule(RecordId(TOPIC, 0, offset), deliver_after=asked).offset
        self.returned(control, 2)

    def unique(self, value: bytes, key: bytes, after: int, *, instead: int | None = None) -> None:
        """One append with a unique key, which nobody holds, or the record of an offset, which it replaces."""
        asked = self.clock.now_ms() + after
        if instead is None:
            self.disk.mark(Tried(((value, asked),)))
            record = self.store.send(TOPIC, value, deliver_after=asked, unique_key=key)
            self.returned(record.offset, 1)
        else:
            control = self.control((instead,), (value, asked))
            record = self.store.send(TOPIC, value, deliver_after=asked, unique_key=key, on_conflict="replace")
            assert control + 1 == record.offset
            self.returned(control, 2)
        assert record == self.store.send(TOPIC, b"not sent", unique_key=key, on_conflict="keep", delay=1)

    def unique_many(self, *records: tuple[bytes, bytes, int]) -> None:
        """One append of (value, key, ms from now), whose keys nobody holds."""
        values, keys, after = zip(*records, strict=True)
        asked = [self.clock.now_ms() + each for each in after]
        self.disk.mark(Tried(tuple(zip(values, asked, strict=True))))
        offsets = self.store.send_many(TOPIC, values, deliver_after=asked, unique_keys=keys)
        self.returned(int(offsets[0]), len(records))

    def numbered(self, sequence: int, *records: tuple[bytes, int], producer: int = 7, there: int = 0) -> None:
        """One append of (value, ms from now) that a producer numbers, of which the first ones are there already."""
        asked = self.asked_numbered(records, there)
        due = asked if self.partition.log.delayed else None
        sent = ProducerSequence(producer, 0, sequence)
        if len(records) == 1:
            at = due and due[0]
            offset = self.store.send(TOPIC, records[0][0], deliver_after=at, partition=0, sequence=sent).offset
        else:
            values = [value for value, _ in records]
            offsets = self.store.send_many(TOPIC, values, deliver_after=due, partition=0, sequence=sent)
            offset = int(offsets[there % len(values)])
        self.returned(offset, max(len(records) - there, 1))

    def numbered_in_vain(self, sequence: int, record: tuple[bytes, int], *, written: bool) -> None:
        """One that fails: when it is written, and nobody waits for the sync; or for lack of room."""
        [asked] = self.asked_numbered((record,), 0 if written else 1)
        failing: Any = patch.object(Commit, "committed", side_effect=KeyboardInterrupt)
        if not written:
            failing = patch.object(ActiveSegment, "append", side_effect=StorageFull("no room", path=PATH))
        with failing, contextlib.suppress(KeyboardInterrupt, StorageFull):
            sent = ProducerSequence(7, 0, sequence)
            self.store.send(TOPIC, record[0], deliver_after=asked, partition=0, sequence=sent)

    def replicated(self, origin: str, first: int, *records: tuple[bytes, int]) -> None:
        """One append of (value, ms from now), a batch each, that have these offsets in another log from `first` on."""
        asked = [self.clock.now_ms() + after for _, after in records]
        before = self.partition.log.written
        self.disk.mark(Tried(tuple((value, at) for (value, _), at in zip(records, asked, strict=True))))
        batches = replicated_batches([value for value, _ in records], asked, self.config)
        places = np.arange(first, first + len(records))
        self.partition.log.replicate(lambda appends: appends.append(batches, origin, places))
        self.partition.log.commit.committed(self.partition.log.written)
        self.returned(before, len(records))

    def awaited(self, origin: str, *offsets: int) -> None:
        """Note that these of another log are cancelled, and not here yet."""
        note, control = Awaited(origin, np.array(offsets)), self.partition.log.written
        self.disk.mark(Tried(((note.to_bytes(), AS_SOON_AS_POSSIBLE),)))
        self.disk.mark(Controls(control, (), False))
        self.partition.log.replicate(lambda appends: appends.cancel_awaited(*note))
        self.partition.log.commit.committed(self.partition.log.written)
        self.returned(control, 1)

    def asked_numbered(self, records: Sequence[tuple[bytes, int]], there: int) -> list[int]:
        """When they are to be delivered. Those that are not there yet are tried from now on."""
        is_delayed = self.partition.log.delayed
        asked = [self.clock.now_ms() + after if is_delayed else AS_SOON_AS_POSSIBLE for _, after in records]
        if there < len(records):
            tried = zip(records[there:], asked[there:], strict=True)
            self.disk.mark(Tried(tuple((value, at) for (value, _), at in tried)))
        return asked

    def control(self, targets: tuple[int, ...], *followers: tuple[bytes, int]) -> int:
        """Mark what is about to be written; the offset of the control record."""
        rows = [(target, due_of(self.partition, target) or 0) for target in sorted(targets)]
        control = self.partition.log.written
        value = b"".join(struct.pack(">qq", *row) for row in rows)
        self.disk.mark(Tried(((value, max(due for _, due in rows)), *followers)))
        self.disk.mark(Controls(control, targets, bool(followers)))
        return control

    def returned(self, offset: int, count: int) -> None:
        """An append of so many records did: they are there, if it waited for a sync, or a power cut is not covered."""
        if self.config.durability.kind != "interval":
            self.acked(offset, count)

    def acked(self, offset: int, count: int) -> None:
        dues = tuple(due_of(self.partition, offset + row) or 0 for row in range(count))
        self.disk.mark(Acked(offset, dues))

    def sync(self) -> None:
        self.store.sync()
        self.acked(0, self.partition.log_end_offset)

    def merge(self, *, room: bool = True) -> None:
        full = patch.object(type(self.files), "rename", side_effect=StorageFull("no room", path=PATH))
        with contextlib.nullcontext() if room else full, contextlib.suppress(StorageFull):
            self.partition.log.merge_buckets()

    def advance(self, ms: int) -> None:
        self.clock.advance(ms)
        self.disk.mark(Clock(self.clock.now_ms()))

    def poll(self, count: int = 100) -> None:
        messages = self.consumer.poll(count)
        self.disk.mark(Shown(tuple(map(row, messages))))

    def commit(self) -> None:
        position = self.consumer.positions()[0]
        self.disk.mark(Commits(position))
        self.consumer.commit()
        self.disk.mark(Committed(position))

    def ack(self, name: str, count: int, *, but: Collection[int] = ()) -> None:
        """By a subscription that is closed behind it; but for some delivery offsets."""
        with self.store.subscribe(TOPIC, name) as subscription:
            received = subscription.receive(count)
            subscription.ack_many([message for message in received if message.delivery_offset not in but])

    def close(self) -> None:
        self.consumer.close()
        self.store.close()

    def reopen(self) -> None:
        self.close()
        self.open()


def row(message: Message) -> tuple[int, int, bytes, int]:
    assert message.value is not None
    return message.delivery_offset, message.offset, message.value, message.due


Work = Callable[[Files, SimulatedFiles], object]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A workload with its settings. `survives_power_cut`: what its durability promises."""

    name: str
    work: Callable[[Session], None]
    config: Config = field(default_factory=small)
    topic: dict[str, Any] = field(default_factory=dict)
    survives_power_cut: bool = True

    def __call__(self, files: Files, disk: SimulatedFiles) -> None:
        session = Session(files, disk, self.config, **self.topic)
        try:
            with ranges_of_one():
                self.work(session)
            session.close()
        finally:
            if session.store._sync is not None:
                session.store._sync.stop()


def singles(session: Session) -> None:
    """Appends of one record: at once, late, past; polls and commits in between."""
    session.send((b"at once", None))
    session.send((b"later", 40))
    session.poll()
    session.send((b"past", -50))
    session.advance(10)
    session.poll()
    session.commit()
    session.send((b"soon", 5))
    session.advance(40)
    session.poll(2)
    session.commit()


def many(session: Session) -> None:
    """Appends of many records, which seal the mutable bucket again and again."""
    session.send((b"a", 1), (b"b", 1), (b"c", 30), (b"d", 0))
    session.advance(5)
    session.poll()
    session.send((b"e", 20), (b"f", 10), (b"g", 10**6))
    session.commit()
    session.send((b"h", 3), (b"i", 2), (b"j", 1), (b"k", 0), (b"l", -9))
    session.advance(10)
    session.poll()
    session.commit()


def rolls(session: Session) -> None:
    """Segments are sealed, their runs merged."""
    session.send((b"a", 9), (b"b", 1), (b"c", 30))
    session.partition.log.roll()
    session.send((b"d", 5))
    session.advance(9)
    session.poll()
    session.partition.log.roll()
    session.send((b"e" * 1_500, 1))
    session.send((b"f" * 1_500, 1))
    session.send((b"g" * 1_500, 1))
    session.advance(9)
    session.poll()
    session.commit()


def merges(session: Session) -> None:
    """Runs of the active segment are merged, then those of sealed ones, some of which retention takes; once in vain."""
    session.send((b"a", 1), (b"b", 2), (b"c", 3), (b"d", 2))
    session.send((b"e", 4), (b"f", 1), (b"g", 10**6), (b"h", 3))
    session.merge(room=False)
    session.merge()
    session.partition.log.roll()
    session.send((b"i", 7), (b"j", 1))
    session.partition.log.roll()
    session.merge()
    session.advance(30)
    session.poll()
    session.send((b"k", 2), (b"l", 40))
    session.partition.log.roll()
    session.merge()
    session.advance(9)
    session.poll()


def rolls_in_parts(session: Session) -> None:
    """As where a thread merges runs: sealed segments keep theirs, which are merged later, or when it is closed."""
    object.__setattr__(session.partition.log.context, "checkpoint_queue", lambda *_: None)
    session.send((b"a", 1), (b"b", 9), (b"c", 3))
    session.partition.log.checkpoint()
    session.send((b"d", 4), (b"e", 10**6))
    session.partition.log.checkpoint()
    session.send((b"f", 2))
    session.partition.log.roll()
    session.send((b"g", 7), (b"h", 1))
    session.partition.log.checkpoint()
    session.partition.log.roll()
    session.merge()
    session.send((b"i", 7), (b"j", 1))
    session.partition.log.checkpoint()
    session.send((b"k", 2))
    session.partition.log.roll()
    session.advance(40)
    session.poll()
    session.partition.log.enforce_retention()
    session.send((b"l", 2))


def cancels(session: Session) -> None:
    """Before and after a seal and a roll; one that was rescheduled is cancelled, too."""
    session.send((b"a", 5), (b"b", 30), (b"c", 30))
    session.cancel(2)
    session.reschedule(1, b"b", 20)
    session.partition.log.roll()
    session.cancel(5)
    session.advance(30)
    session.poll()


def unique_keys(session: Session) -> None:
    """In memory, in files and in merged ones; replaced, cancelled, rescheduled, due, and taken again."""
    session.unique(b"a", b"k", 10**6)
    session.partition.log.checkpoint()
    session.unique(b"b", b"k", 10**6 + 1, instead=0)
    session.unique_many((b"c", b"l", 10**6), (b"d", b"m", 10**6), (b"e", b"n", 20), (b"f", b"o", 10**6))
    session.partition.log.roll()
    session.cancel(3)
    session.unique(b"g", b"l", 10**6)
    session.reschedule(4, b"d", 10**6 + 9)
    session.unique_many((b"p", b"p", 10**6), (b"q", b"q", 10**6), (b"r", b"r", 10**6))
    session.partition.log.checkpoint()
    session.merge(room=False)
    session.merge()
    session.advance(60)
    session.unique(b"h", b"n", 10**6)
    session.unique(b"i", b"k", 10**6, instead=2)


def numbered(session: Session) -> None:
    """In memory and in files; sent again: as a whole, with more behind it, after a roll and a reopen."""
    session.numbered(0, (b"a", 10**6))
    session.numbered(0, (b"a", 10**6), there=1)
    session.numbered(0, (b"b", 5), (b"c", 5), (b"d", 10**6), producer=8)
    session.partition.log.checkpoint()
    session.numbered(1, (b"e", 9))
    session.numbered(2, (b"f", 9))
    session.send((b"plain", 3))
    session.numbered(1, (b"c", 5), (b"d", 10**6), (b"g", 2), (b"h", 2), producer=8, there=2)
    session.partition.log.roll()
    session.numbered(3, (b"i", 4))
    session.reopen()
    session.numbered(3, (b"i", 4), there=1)
    session.numbered(4, (b"j", 4))


def replicated(session: Session) -> None:
    """Of two other logs, with one's own between; what is not to come; after a checkpoint, a roll and a reopen."""
    session.replicated("eu", 4, (b"a", 10**6), (b"b", 5))
    session.send((b"own", 7))
    session.replicated("us", 0, (b"c", 9))
    session.awaited("us", 5)
    session.partition.log.checkpoint()
    session.replicated("eu", 6, (b"d", 9))
    session.partition.log.roll()
    session.replicated("eu", 9, (b"e", 4))
    session.reopen()
    session.awaited("us", 7)
    session.replicated("us", 1, (b"f", 4))


def cancels_go(session: Session) -> None:
    """Retention takes the segment of the control record, and leaves that of the cancelled one, where another waits.

    The cancelled one must not come back."""
    session.send((b"a", 5), (b"b", 7), (b"c", 10**6))
    session.partition.log.roll()
    session.cancel(1)
    session.advance(30)
    session.poll()
    session.partition.log.roll()
    session.send((b"d", 0))


def retention(session: Session) -> None:
    """Segments go, one that is pending stays."""
    session.send((b"a", 1), (b"b", 2))
    session.partition.log.roll()
    session.send((b"c", 10**6))
    session.partition.log.roll()
    session.send((b"d", 2))
    session.advance(5)
    session.poll()
    session.commit()
    session.partition.log.roll()
    session.send((b"e", 3))
    session.advance(60)
    session.poll()
    session.store.enforce_retention()
    session.send((b"f", 0))


def cleans(session: Session) -> None:
    """Segments with something far away, under a bucket and beside it, are written anew, once more, and become one.

    One that is cancelled is far away, too, and its control batch; others are cancelled last, and become blank.
    """
    session.send((b"a", 1), (b"b", 10**6), (b"c", 2))
    session.partition.log.roll()
    session.send((b"d", 3), (b"e" * 90, 2))
    session.send((b"f", 10**6 + 1))
    session.partition.log.roll()
    session.send((b"g", 10**6), (b"h", 10**6))
    session.partition.log.roll()
    session.merge()
    session.send((b"i" * 90, 5), (b"j", 90), (b"k", 10**6))
    session.cancel(1)
    session.partition.log.roll()
    session.advance(30)
    session.poll()
    session.commit()
    session.store.enforce_retention()
    session.send((b"l", 1), (b"m" * 400, 10**6 - 1))
    session.merge()
    session.advance(120)
    session.poll()
    session.partition.log.roll()
    session.store.enforce_retention()
    session.partition.log.clean(thorough=True)
    session.cancel(7, 13)
    session.partition.log.weigh()
    session.partition.log.clean(thorough=True)
    session.send((b"n", 0))


def acked(session: Session) -> None:
    """Passes between acks: of one that stays open, and one that is closed with some left. One record is pending."""
    session.send((b"a", 1), (b"b", 2))
    session.partition.log.roll()
    session.send((b"c", 10**6))
    session.partition.log.roll()
    session.send((b"d", 2))
    session.sync()
    session.advance(5)
    session.ack("slow", 1)
    with session.store.subscribe(TOPIC, "quick") as quick:
        quick.ack_many(quick.receive(9))
        session.store.enforce_retention()
        session.ack("slow", 9)
        session.store.enforce_retention()
        session.send((b"e", 0))
        session.sync()
        quick.ack_many(quick.receive(9))
    session.ack("slow", 9)
    session.store.enforce_retention()


def acked_beyond(session: Session) -> None:
    """What all have acked goes from behind what one of them has not, of several segments, again, and in the end all."""
    session.send((b"a", 1), (b"b" * 90, 2), (b"c" * 90, 3), (b"d", 4))
    session.partition.log.roll()
    session.send((b"e" * 90, 2), (b"f" * 90, 5), (b"g", 9), (b"h", 10**6))
    session.cancel(6)
    session.partition.log.roll()
    session.advance(30)
    session.ack("slow", 9, but={1})
    session.ack("quick", 9, but={4})
    session.merge()
    session.store.enforce_retention()
    session.send((b"i" * 90, 0), (b"j" * 90, 1))
    session.advance(9)
    session.ack("slow", 9, but={1})
    session.ack("quick", 9)
    session.partition.log.roll()
    session.store.clean(TOPIC)
    session.send((b"k", 0))
    session.ack("slow", 9)
    session.store.enforce_retention()


def evicted(session: Session) -> None:
    """A reader that acks nothing of what is due for long; what is pending beside it stays."""
    session.send((b"a", 1), (b"b", 2))
    session.partition.log.roll()
    session.send((b"c", 10**6), (b"d", 3))
    session.partition.log.roll()
    session.send((b"e", 4))
    session.advance(5)
    session.ack("s", 1)
    session.advance(60)
    session.store.enforce_retention()
    session.send((b"f", 0))


def reopened(session: Session) -> None:
    """Clean closes, with something pending, and more after them."""
    session.send((b"a", 1), (b"b", 50), (b"c", 2))
    session.reopen()
    session.send((b"d", None))
    session.advance(5)
    session.poll()
    session.commit()
    session.reopen()
    session.send((b"e", 7), (b"f", 1))
    session.advance(3)
    session.poll()


def frontier(session: Session) -> None:
    """Deliveries only, for which nothing but the lease is written; then the clock steps back."""
    session.send((b"a", 5), (b"b", 15), (b"c", 45), (b"e", 100))
    for ms in (5, 10, 30, 20, 35):
        session.advance(ms)
        session.poll()
    session.advance(-90)
    session.send((b"d", None))
    session.poll()
    session.advance(30)
    session.poll()


def at_rest(session: Session) -> None:
    """Deliveries of what lies after a checkpoint, the clock back behind each, over a clean close: nothing but the
    frontier tells of them."""
    session.send((b"a", 5), (b"b", 15), (b"c", 45))
    session.partition.log.checkpoint()
    for ms in (5, 15):
        session.advance(ms)
        session.poll()
    session.advance(-15)
    session.reopen()
    session.advance(45)
    session.poll()
    session.advance(-40)


def synced(session: Session) -> None:
    """Between two syncs nothing is promised."""
    session.send((b"a", None))
    session.send((b"b", 1), (b"c", 2), (b"d", 3))
    session.sync()
    session.advance(5)
    session.poll()
    session.send((b"e", None))
    session.poll()
    session.commit()
    session.send((b"f", None))
    session.sync()
    session.poll()


def in_order(session: Session) -> None:
    """A FIFO topic."""
    session.send((b"a", None))
    session.send((b"b", None), (b"c", None))
    session.poll(2)
    session.commit()
    session.partition.log.roll()
    session.send((b"d", None))
    session.poll()
    session.poll()
    session.commit()
    session.advance(60)
    session.partition.log.roll()
    session.send((b"e", None))
    session.poll()


def numbered_in_vain(session: Session) -> None:
    """Sent again since it failed: when it was written and not synced, and when there was no room."""
    session.numbered(0, (b"a", 10**6))
    session.numbered_in_vain(1, (b"b", 9), written=True)
    session.numbered(1, (b"b", 9), there=1)
    session.partition.log.checkpoint()
    session.numbered(2, (b"c", 9))
    session.numbered_in_vain(3, (b"d", 9), written=False)
    session.numbered(3, (b"d", 9))
    session.partition.log.checkpoint()


def numbered_in_order(session: Session) -> None:
    """The same in a FIFO topic, whose entries do not say when they came."""
    session.numbered(0, (b"a", 0))
    session.partition.log.checkpoint()
    session.numbered(1, (b"b", 0), (b"c", 0))
    session.numbered(1, (b"b", 0), (b"c", 0), (b"d", 0), there=2)
    session.partition.log.roll()
    session.reopen()
    session.numbered(3, (b"d", 0), there=1)
    session.numbered(4, (b"e", 0))


def acked_in_order(session: Session) -> None:
    """A FIFO topic, whose segments go as they are acked."""
    session.send((b"a", None))
    session.partition.log.roll()
    session.send((b"b", None), (b"c", None))
    session.ack("s", 1)
    session.poll()
    session.commit()
    session.store.enforce_retention()
    session.send((b"d", None))
    session.ack("s", 9)
    session.store.enforce_retention()
    session.poll()
    session.commit()
    session.store.enforce_retention()


def random_life(seed: int, steps: int = 9) -> Scenario:
    """Whatever a partition does, in an order that nobody thought of."""
    chance = random.Random(seed)
    durability = chance.choice([ALWAYS, ALWAYS, INTERVAL, OS])
    config = small(durability, max_num_buckets=chance.choice([1, 8]), compression=chance.choice(["none", "gzip"]))
    topic: dict[str, Any] = chance.choice([{"retention_ms": 20}, {"retention_by_subscriptions": True}, {}, {}])
    survives = durability.kind != "os"
    return Scenario(
        f"random {seed}", lambda session: lived(session, random.Random(seed), steps), config, topic, survives
    )


def lived(session: Session, chance: random.Random, steps: int) -> None:
    named = set[int]()
    """What was cancelled or rescheduled. Under `interval` it is pending for readers until that is durable, too."""

    def send() -> None:
        count = chance.choice([1, 1, 3, 5])
        after = [0, 1, 5, 20, 50, 200, 10**6] if count > 1 else [None, -9, 1, 20, 200, 10**6]
        session.send(*((b"%d" % number * chance.randrange(1, 9), chance.choice(after)) for number in range(count)))

    def far() -> list[Message]:
        """One that is due long after any clock reading so far, and that no cancel named."""
        pending = [record for record in session.store.pending(TOPIC) if record.offset not in named]
        found = [record for record in pending if record.due > START_MS + 10**5][:1]
        named.update(record.offset for record in found)
        return found

    def cancel() -> None:
        for record in far():
            session.cancel(record.offset)

    def reschedule() -> None:
        for record in far():
            session.reschedule(record.offset, record.value or b"", chance.choice([1, 30]))

    def poll() -> None:
        try:
            session.poll()
        except OffsetOutOfRange:  # retention was quicker
            session.consumer.seek(EARLIEST)

    def retain() -> None:
        session.store.enforce_retention()

    by_acks = int("retention_by_subscriptions" in session.topic)
    does = [
        (send, 6),
        (poll, 3),
        (lambda: session.advance(chance.choice([1, 9, 30, 60, -40])), 4),
        (session.commit, 2),
        (lambda: session.partition.log.roll(), 2),
        (session.merge, 1),
        (cancel, 2),
        (reschedule, 2),
        (retain, 1),
        (lambda: session.ack("s", chance.randrange(1, 4)), by_acks),
        (lambda: session.ack("s", 9, but={chance.randrange(9) for _ in range(2)}), by_acks),
        (lambda: session.store.clean(TOPIC), by_acks),
        (session.reopen, 1),
        (session.sync, 1),
    ]
    send()
    for do in chance.choices([do for do, _ in does], [weight for _, weight in does], k=steps):
        do()


INTERVAL = Durability.interval(3_600_000)
EVICTING: dict[str, Any] = {
    "retention_by_subscriptions": True,
    "backlog_quota_ms": 20,
    "backlog_quota_policy": "consumer_backlog_eviction",
}
SCENARIOS = (
    Scenario("singles", singles),
    Scenario("many", many),
    Scenario("rolls", rolls),
    Scenario("merges", merges, small(max_num_buckets=1), topic={"retention_ms": 20}),
    Scenario("rolls in parts", rolls_in_parts, topic={"retention_ms": 20}),
    Scenario("cancels", cancels),
    Scenario("unique keys", unique_keys),
    Scenario("unique keys written", unique_keys, small(OS), survives_power_cut=False),
    Scenario("numbered", numbered),
    Scenario("numbered in vain", numbered_in_vain),
    Scenario("numbered fifo", numbered_in_order, topic={"delayed": False}),
    Scenario("replicated", replicated),
    Scenario("cancels go", cancels_go, topic={"retention_ms": 20}),
    Scenario("retention", retention, topic={"retention_ms": 20}),
    Scenario("cleans", cleans, small(max_num_buckets=1), topic={"retention_ms": 20}),
    Scenario(
        "cleans written", cleans, small(OS, max_num_buckets=1), topic={"retention_ms": 20}, survives_power_cut=False
    ),
    Scenario("acked", acked, topic={"retention_by_subscriptions": True}),
    Scenario("acked later", acked, small(INTERVAL), topic={"retention_by_subscriptions": True}),
    Scenario("acked fifo", acked_in_order, topic={"retention_by_subscriptions": True, "delayed": False}),
    Scenario("acked beyond", acked_beyond, small(max_num_buckets=1), topic={"retention_by_subscriptions": True}),
    Scenario("evicted", evicted, topic=EVICTING),
    Scenario("reopened", reopened),
    Scenario("frontier", frontier),
    Scenario("at rest", at_rest),
    Scenario("synced", synced, small(INTERVAL)),
    Scenario("written", singles, small(OS), survives_power_cut=False),
    Scenario("compressed", many, small(compression="gzip")),
    Scenario("fifo", in_order, topic={"delayed": False, "retention_ms": 20}),
)


# --- The oracle ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Told:
    """The marks before a crash, put together."""

    tried: list[tuple[bytes, int]] = field(default_factory=list)
    """Every record that may be in the log: (value, deliver_after as asked)."""
    dues: dict[int, int] = field(default_factory=dict)
    """Of every acknowledged record."""
    controls: dict[int, Controls] = field(default_factory=dict)
    """By the offset of the control record."""
    shown: dict[int, tuple[int, bytes, int]] = field(default_factory=dict)
    commits: set[int | None] = field(default_factory=lambda: {None})
    """What may be committed."""
    now_ms: int = START_MS
    made: bool = False

    @staticmethod
    def of(marks: Sequence[object]) -> Told:
        told = Told()
        for mark in marks:
            match mark:
                case Tried(records):
                    told.tried += records
                case Acked(offset, dues):
                    told.dues |= dict(enumerate(dues, offset))
                case Controls(offset):
                    told.controls[offset] = mark
                case Shown(records):
                    told.shown |= {rank: record for rank, *record in map(tuple, records)}
                case Commits(position):
                    told.commits.add(position)
                case Committed(position):
                    told.commits = {position}
                case Clock(ms):
                    told.now_ms = ms
                case Made():
                    told.made = True
                case Recovered(dues):
                    del told.tried[len(dues) :]
                    told.controls = {offset: one for offset, one in told.controls.items() if offset < len(dues)}
                    told.dues |= dict(enumerate(dues))
        return told

    def hidden(self, end: int) -> set[int]:
        """What a log of `end` records hides."""
        return {each for one in self.controls.values() if one.offset < end for each in (one.offset, *one.targets)}


@dataclass(frozen=True, slots=True)
class Observed:
    """What a recovered store holds, says and does, whatever it had promised."""

    there: bool
    """The topic, which is made where it is not."""
    found: list[tuple[bytes, int] | None]
    committed: int | None
    start: int
    """Delivery offset of the first record of a drain a long time later, behind one more append; of all: `rows`."""
    rows: list[tuple[int, int, bytes, int]]
    reachable: set[int]
    gone: set[int]
    """Delivery offsets behind the first one that all have acked, and that are out of reach."""
    lost: list[str]
    """Readers that have not acked all that has gone, by what is on the disk; behind a pass over what was recovered."""


class Verifier:
    """Recovers on a crashed disk and holds what it finds against the marks.

    A disk is recovered once for each time of the wall clock, and what recovered to the same, on the disk and in
    memory, is observed once: the marks are held against it each time.
    """

    def __init__(self, scenario: Scenario, covered: bool) -> None:
        self._scenario = scenario
        self._covered = covered
        self._of_disk: dict[tuple[bytes, int], Observed] = {}
        self._of_recovered: dict[int, Observed] = {}

    def __call__(self, disk: SimulatedFiles, marks: Sequence[object], state: CrashState) -> None:
        told = Told.of(marks)
        crashed = (state.digest, told.now_ms)
        if state.explored or crashed not in self._of_disk:
            self._of_disk[crashed] = self._recover(disk, told.now_ms - STEP_BACK_MS, state.explored)
        self._check(self._of_disk[crashed], told)

    # What is there, and what comes of it.

    def _recover(self, disk: SimulatedFiles, now_ms: int, explored: bool) -> Observed:
        clock = ManualClock(now_ms)
        with (
            patch.object(recovery, "_rebuilt", _lost),
            patch.object(unique_key_files, "made_anew", _lost),
            patch.object(producer_files, "_made_anew", _lost),
            patch.object(origin_files, "_made_anew", _lost),
        ):
            store = self._open(disk, clock)
        try:
            there = TOPIC in {topic.name for topic in store.topics()}
            if not there:
                store.create_topic(TOPIC, **self._scenario.topic)
            recovered = hash((there, now_ms, fingerprint(store, disk)))
            if explored or recovered not in self._of_recovered:
                self._of_recovered[recovered] = self._observe(store, clock, disk, there)
            return self._of_recovered[recovered]
        finally:
            stop(store)

    def _open(self, disk: SimulatedFiles, clock: ManualClock) -> Store:
        """Open, and every partition in it, too: each is recovered now, or at its first use."""
        store = open_store(PATH, self._scenario.config, clock, disk, background=False)
        assert all(topic.partitions for topic in store.topics())
        return store

    def _observe(self, store: Store, clock: ManualClock, disk: SimulatedFiles, there: bool) -> Observed:
        """All that is done here is marked, for a crash in this life."""
        partition = store.topic(TOPIC).partition(0)
        found = contents(partition)
        end = len(found)
        disk.mark(Recovered(tuple(record[1] if record else 0 for record in found)))
        self._check_fixed_point(disk, clock, found)
        lost = losers(disk, partition)
        if self._scenario.topic.get("retention_by_subscriptions"):
            with ranges_of_one():
                store.enforce_retention()  # by acks, too, that the first life had no time to make durable
        with patch.object(unique_key_files, "made_anew", _lost):
            check_unique_keys(store, partition)
        check_numbered(store, partition)
        check_replicated(store, partition)
        with store.consumer(TOPIC, group="g", auto_commit=False) as consumer:
            committed = consumer.committed()[0]
        disk.mark(Tried(((b"after", AS_SOON_AS_POSSIBLE),)))
        assert end == store.send(TOPIC, b"after").offset
        store.sync()
        disk.mark(Acked(end, (0,)))
        clock.advance(FAR_MS)
        disk.mark(Clock(clock.now_ms()))
        store.check()
        with store.consumer(TOPIC, group="other", start=EARLIEST, auto_commit=False) as consumer:
            start = consumer.positions()[0]
            rows = [row(message) for messages in iter(consumer.poll, []) for message in messages]
        disk.mark(Shown(tuple(rows)))
        return Observed(there, found, committed, start, rows, reachable(partition), gone(partition), lost)

    def _check_fixed_point(self, disk: SimulatedFiles, clock: ManualClock, found: object) -> None:
        """A second recovery finds what the first one left, and nothing to do."""
        store = self._open(SimulatedFiles(disk.image()), clock)
        assert not store.cut_bytes
        assert found == contents(store.topic(TOPIC).partition(0))
        stop(store)

    # What was promised.

    def _check(self, observed: Observed, told: Told) -> None:
        assert observed.there or not told.made, "the topic is gone"
        self._check_prefix(observed.found, told)
        self._check_committed(observed, told)
        assert not observed.lost or self._scenario.topic == EVICTING, f"gone, and not acked by {observed.lost}"
        self._check_goes_on(observed, told)

    def _check_prefix(self, found: Sequence[tuple[bytes, int] | None], told: Told) -> None:
        """D3, D8: what was acknowledged is there, and the log is a prefix of what was appended."""
        assert len(found) <= len(told.tried), "more than was ever appended"
        hidden = told.hidden(len(found))
        if self._covered:
            assert len(found) > max(told.dues, default=-1), (
                f"lost acknowledged records: {len(found)} of {len(told.dues)}"
            )
        for one in told.controls.values():
            assert not one.followed or len(found) != one.offset + 1, "half of a reschedule"
        for offset, (record, (value, asked)) in enumerate(zip(found, told.tried, strict=False)):
            if record is None:
                # One that nobody was told is safe may have been delivered and acked all the same: since a sync.
                assert told.dues.get(offset, asked) <= told.now_ms, "retention took a pending record"
                assert {"retention_ms", "retention_by_subscriptions"} & self._scenario.topic.keys()
            else:
                is_blank = record[0] == BLANK and offset in hidden
                assert value == record[0] or is_blank, f"offset {offset} has other bytes"
                assert record[1] >= asked
                assert told.dues.get(offset, 0) in (record[1], 0), f"offset {offset} has another due time"

    def _check_committed(self, observed: Observed, told: Told) -> None:
        """D9: a commit that returned is not undone; a position names a place in the log."""
        committed = observed.committed
        assert committed in told.commits, f"committed {committed}, not one of {told.commits}"
        assert committed is None or committed <= len(observed.found)

    def _check_goes_on(self, observed: Observed, told: Told) -> None:
        """D6 and the frontier: nothing sorts in front of what was delivered, though the clock stepped back. And D2:
        all is delivered in the end."""
        start, rows, end = observed.start, observed.rows, len(observed.found)
        ranks, hidden = [rank for rank, *_ in rows], told.hidden(end)
        assert sorted(set(ranks)) == ranks
        assert not hidden & {offset for _, offset, *_ in rows}, "delivered although it is cancelled"
        out_of_reach = start + len(observed.gone) + len(hidden & observed.reachable)
        assert out_of_reach + len(rows) == end + 1, "not all is delivered"
        if self._scenario.topic.get("delayed", True):
            keys = [(due, offset) for _, offset, _, due in rows]
            assert sorted(keys) == keys
        if self._covered:
            delivered = {rank: record for rank, *record in rows}
            for rank, record in told.shown.items():
                is_gone = rank < start or rank in observed.gone
                assert is_gone or list(record) == list(delivered[rank]), f"delivery offset {rank} names another record"


def losers(disk: SimulatedFiles, partition: Partition) -> list[str]:
    """Who has not acked, by journals and positions as they are on the disk, all below the log start, or in a range."""
    log, found = partition.log, list[str]()
    if not log.context.settings.retention_by_subscriptions:
        return found
    for name in disk.names(log.path / SUBSCRIPTIONS) if disk.exists(log.path / SUBSCRIPTIONS) else ():
        replayed = replay(disk, log.path / SUBSCRIPTIONS / name, Owner(log.path.name, name), log.log_end_offset)
        mark = replayed.state.acks.mark_delete if replayed else GroupPosition(disk, log.path, name).committed
        acks = replayed.state.acks if replayed else AckSet(mark or 0)
        if mark is not None and (mark < partition.log_start or not all(rank in acks for rank in gone(partition))):
            found.append(name)
    return found


def gone(partition: Partition) -> set[int]:
    """Delivery offsets in ranges that all have acked."""
    return {rank for each in partition.log.index.acked.rows for rank in range(each.first, each.end)}


def check_unique_keys(store: Store, partition: Partition) -> None:
    """Each pending record has its unique key for itself, and who asks for that is told of it."""
    reading_ms, end = partition.log.versions.stamp_reading(), partition.log.written
    pending = [each for each in partition.scheduled(1_000).to_messages() if each.due > reading_ms]
    held = [(dict(each.headers)["unique-key"], each.offset) for each in pending if each.headers]
    assert len(held) == len({key for key, _ in held}), "two records have one key"
    for key, offset in held:
        kept = store.send(TOPIC, b"not sent", unique_key=key, on_conflict="keep", delay=1)
        assert offset == kept.offset, f"{key!r} is forgotten"
    assert end == partition.log.written


def check_numbered(store: Store, partition: Partition) -> None:
    """What each producer has numbered is there once, and who sends it again is told where."""
    end = partition.log.written
    for (producer_id, epoch), offsets in numbered_in(partition).items():
        assert [*range(len(offsets))] == sorted(offsets), f"producer {producer_id}: twice, or not at all"
        for sequence in sorted(offsets)[-5:]:
            sent = ProducerSequence(producer_id, epoch, sequence)
            again = store.send(TOPIC, b"not sent", partition=0, sequence=sent)
            assert offsets[sequence] == again.offset, f"{sent} is forgotten"
    assert end == partition.log.written


def check_replicated(store: Store, partition: Partition) -> None:
    """What came from another log is known, and not appended once more; nor is it forgotten what is not to come."""
    log, awaited = partition.log, dict[str, set[int]]()
    index, end = log.version.origins, log.written
    told = [each for each in origins_of_log(log.version.segments, log.version.written.position) if each.names]
    if index is None:
        assert not told, "where records come from is forgotten"
        return
    for origin, behind in index.highest().items():
        again = replicated_batches([b"not sent"], [0], store.config)
        known = partial(ReplicatedAppends.append, batches=again, origin=origin, origin_offset=np.array([behind - 1]))
        assert 0 == log.replicate(known)
    for value, _ in filter(None, contents(partition)):
        with contextlib.suppress(InvalidBatch, ValueError):
            note = Awaited.of_bytes(value)
            awaited.setdefault(note.origin, set()).update(note.origin_offset.tolist())
    for origin, offsets in awaited.items():
        late = {offset for offset in offsets if offset >= index.upcoming(origin)}
        assert late == {*index.awaited(origin).tolist()}, "what is not to come is forgotten"
    assert end == log.written


def replicated_batches(values: Sequence[bytes], asked: Sequence[int], config: Config) -> Batches:
    """A batch for each."""
    data = b"".join(encode_batch([Record(value=value, timestamp=START_MS)]) for value in values)
    return replace(parse(data, AS_SOON_AS_POSSIBLE, config), deliver_after=np.array(asked))


def numbered_in(partition: Partition) -> dict[tuple[int, int], dict[int, int]]:
    """The offsets of what producers numbered, by producer id and epoch, and sequence; by the bytes of the log."""
    found = dict[tuple[int, int], dict[int, int]]()
    visible = partition.log.version.readable()
    for segment in visible.segments:
        end = visible.end.position if segment is visible.segments[-1] else segment.size
        data = b"".join(piece[:end].tobytes() for _, piece in segment.view(0, end))
        for position in scan_entries(np.frombuffer(data, np.uint8), 0, -1, -1, True).position.tolist():
            header = decode_entry(data, position).header
            if header.producer_id >= 0:
                offsets = found.setdefault((header.producer_id, header.producer_epoch), {})
                for delta in range(header.records):
                    assert header.base_sequence + delta not in offsets, "appended twice"
                    offsets[header.base_sequence + delta] = header.base_offset + delta
    return found


def stop(store: Store) -> None:
    """Leave it as a crash does, but for its thread."""
    if store._sync is not None:
        store._sync.stop()


def _lost(storage: object, key: str, *_: object) -> None:
    raise AssertionError(f"{key} was sealed, and would have to be made anew from the log")


def fingerprint(store: Store, disk: SimulatedFiles) -> int:
    """Of all that recovery made: the disk, and what the engine has in memory."""
    image = disk.image()
    known: list[object] = [tuple(image.folders), *sorted(image.contents.items())]
    for topic in store.topics():
        log = topic.partition(0).log
        written, index = log.version.written, log.index
        entries = [*(run.entries() for run in index.runs), index.bucket.entries()]
        known += [column.tobytes() for column in _columns(Entries.concatenate(entries))]
        known += [topic.name, repr(topic.settings), repr(log.checkpoints.current), repr(log.log_start)]
        known += [written.offset, written.position, len(index.runs), index.removed_records, log.log_end_offset]
        known += [(segment.base_offset, segment.size) for segment in log.version.segments]
        known += [log._clock.used_ms, log._clock.last_stamp_ms, log.version.active.sparse.to_bytes()]
        known.append(log.version.hidden.offsets().tobytes())
        keys = log.version.unique_keys
        known += [] if keys is None else [each.tobytes() for rows in keys.recent.levels() for each in rows]
        producers = log.version.producers
        known += [] if producers is None else sorted(producers.copy().items())
    return hash(tuple(known))


def _columns(entries: Entries) -> list[np.ndarray[Any, Any]]:
    return [entries.deliver_after, entries.offset, entries.position, entries.records]


def reachable(partition: Partition) -> set[int]:
    """Offsets of the records after the log start, and in no range that all have acked, by the index."""
    acked = partition.log.index.acked
    entries = [*(run.entries() for run in partition.log.index.runs), partition.log.index.bucket.entries()]
    start = partition.log.log_start.key
    return {
        offset
        for entry in itertools.chain.from_iterable(entries)
        if Key(entry.deliver_after, entry.offset) > start
        and not acked.holds(np.array([entry.deliver_after]), np.array([entry.offset]), entry.records)[0]
        for offset in range(entry.offset, entry.offset + entry.records)
    }


def contents(partition: Partition) -> list[tuple[bytes, int] | None]:
    """(value, due) in append order, read from the bytes of the segments and nothing else; None where retention was."""
    found: list[tuple[bytes, int] | None] = []
    visible = partition.log.version.readable()
    for segment in visible.segments:
        end = visible.end.position if segment is visible.segments[-1] else segment.size
        data = b"".join(piece[:end].tobytes() for _, piece in segment.view(0, end))
        for offset, record in records_in(data, -1 if segment.has_gaps else segment.base_offset):
            found += [None] * (offset - len(found))
            found.append(record)
    return found + [None] * (visible.end.offset - len(found))


@functools.lru_cache(maxsize=256)
def records_in(data: bytes, base_offset: int) -> list[tuple[int, tuple[bytes, int]]]:
    """Offset, and (value, due), of the records of a segment, by its bytes; -1: with gaps between offsets."""
    found: list[tuple[int, tuple[bytes, int]]] = []
    scan = scan_entries(np.frombuffer(data, np.uint8), 0, -1, base_offset, True)
    assert scan.fault == 0, FAULTS[scan.fault]
    for position in scan.position.tolist():
        entry = decode_entry(data, position)
        due = entry.metadata.deliver_after if entry.metadata else 0
        records = decode_batch(data[entry.batch_position : entry.position + entry.size], limit_bytes=1 << 20)
        for offset, record in enumerate(records, entry.header.base_offset):
            found.append((offset, (BLANK if record.value is None else record.value, due)))
    return found
