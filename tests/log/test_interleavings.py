"""Two operations on one log, every pair: while one stands at a line, what the other wrote becomes visible.

Whatever they are, the version in memory is what a restart makes of the disk: each cancel, log start, unique key,
producer and origin that was written is in it, and at no place does a reader see what was cancelled, or a marker.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import afterlog
from afterlog.base.clock import ManualClock
from afterlog.base.config import ALWAYS
from afterlog.base.errors import NotPending, OffsetOutOfRange, UniqueKeyConflict
from afterlog.fetch.partition import Partition
from afterlog.fetch.record_id import RecordId
from afterlog.index.cancel_index import Cancelled
from afterlog.log.partition_log import PartitionLog
from afterlog.log.segment import ActiveSegment
from afterlog.log.version import End, Version, VersionSet
from afterlog.produce.received_slices import receive_slice
from afterlog.records.control import ControlType
from afterlog.records.producer_sequence import ProducerSequence
from tests import campaigns
from tests.campaigns.life import CANCELLED, slices
from tests.campaigns.simulated_disk import Image, SimulatedFiles
from tests.log.turns import DONE, HELD, Actor, OwnLock, Turns
from tests.support import NOW_MS, killed, open_small

pytestmark = pytest.mark.usefixtures("quiet")

SOON_MS = 100
"""What is cancelled and replaced is due so soon: before the other operation begins, and behind the cancel's stamp."""
LOG_FILES = f"{Path(afterlog.__file__).parent}/log/"


class Scene:
    """A log with something of everything: sealed segments that retention takes, runs to merge, what is pending."""

    def __init__(self, image: Image | None, now_ms: int) -> None:
        self.turns = Turns()
        self.disk = SimulatedFiles(image)
        self.clock = ManualClock(now_ms)
        with self.turns.locks():
            self.store = open_small(self.disk, self.clock, durability=ALWAYS, max_num_buckets=1)
            if image is None:
                self.store.create_topic("t", retention_ms=10)
            self.partition = self.store.topic("t").partition(0)
        self.log: PartitionLog = self.partition.log
        self.gone = set[int]()
        """Offsets of what was said to be cancelled."""
        self.seen: Version | None = None

    def begin(self) -> None:
        for number in range(6):
            self.store.send("t", b"due %d" % number)
        self.numbered(0)
        receive_slice(self.log, "here", slices()[0][0])
        self.log.roll()
        for number in range(6):
            self.store.send("t", b"later %d" % number, delay=number / 100)
        self.log.checkpoint()
        self.store.send("t", b"holder", delay=SOON_MS / 1000, unique_key=b"k")
        self.clock.advance(60)
        for number in range(4):
            self.store.send("t", b"pending %d" % number, deliver_after=NOW_MS + 60 + SOON_MS + number)
            self.log.checkpoint()
        self.store.close()

    def known(self, value: bytes) -> RecordId:
        return RecordId("t", 0, offsets()[value])

    def numbered(self, call: int) -> None:
        sent = ProducerSequence(7, 0, call)
        self.store.send("t", b"numbered %d" % call, partition=0, sequence=sent)

    # What is tried, pair by pair.

    def cancel(self, value: bytes = b"pending 0") -> None:
        record = self.known(value)
        if self.store.cancel(record).name == "CANCELLED":
            self.gone.add(record.offset)

    def reschedule(self) -> None:
        record = self.known(b"pending 1")
        self.store.reschedule(record, delay=60)
        self.gone.add(record.offset)

    def replace(self) -> None:
        holder = self.known(b"holder")
        self.store.send("t", b"instead", delay=60, unique_key=b"k", on_conflict="replace")
        if holder.offset in self.log.version.cancellations.targets.offsets():  # else it fell due, and is delivered
            self.gone.add(holder.offset)

    def cancelled_elsewhere(self) -> None:
        receive_slice(self.log, "here", slices()[1][0])
        self.gone.add(self.known(b"copied %d" % CANCELLED).offset)

    def marker(self) -> None:
        offset = self.log.append_note(ControlType.ACKED, b"marker")
        self.log.commit.committed(offset + 1)

    def clean(self) -> None:
        self.log.weigh()
        self.log.begin_cleaning(thorough=True)
        self.log.clean(thorough=True)

    def look(self) -> None:
        """At any line: is the version that somebody has just put there as it should be?"""
        versions = self.log.versions
        if versions.current is not self.seen:
            with suppress(OwnLock):
                versions.check()
                self.nothing_gone_is_seen()
                self.seen = versions.current

    def nothing_gone_is_seen(self) -> None:
        partition = Partition("t", 0, self.log)  # with a cache and locks of its own
        seen, values, position = set[int](), set[bytes | None](), partition.log_start
        with suppress(OffsetOutOfRange):  # retention took where it began meanwhile
            while len(columns := partition.columns(position, 1_000, 1 << 20)[0]):
                seen |= {*columns.offset.tolist()}
                values |= {message.value for message in columns.to_messages()}
                position = int(columns.delivery_offset[-1]) + 1
        assert not seen & self.gone, seen & self.gone
        assert values <= SENT, values - SENT

    def verify(self) -> None:
        """Behind both: it is what a restart makes of the disk."""
        self.store.check()
        live = facts(self.log)
        self.clock.advance(100_000)
        self.nothing_gone_is_seen()
        with open_small(killed(self.disk), ManualClock(self.clock.now_ms()), durability=ALWAYS) as restarted:
            assert live == facts(restarted.topic("t").log(0))


def facts(log: PartitionLog) -> dict[str, object]:
    version: Version = log.version
    found: dict[str, object] = {
        "sealed": [(segment.base_offset, segment.mark.generation, segment.mark.records) for segment in version.sealed],
        "active": version.active.base_offset,
        "log start": version.log_start,
        "ends": (version.written, version.visible),
        "entries": version.delayed_index.records,
        "hidden": {*version.hidden.offsets().tolist()},
        "targets": {*version.cancellations.targets.offsets().tolist()},
        "landing": version.cancellations.landing,
    }
    if version.producers is not None:
        found["producers"] = version.producers.next_sequence(7, 0)
    if version.origins is not None:
        found["origins"] = {origin: version.origins.upcoming(origin) for origin in version.origins.names}
    return found


OPERATIONS: dict[str, Callable[[Scene], object]] = {
    "send": lambda scene: scene.store.send("t", b"one"),
    "send many": lambda scene: scene.store.send_many("t", [b"many 0", b"many 1"], delay=[0, 60]),
    "send a unique key": lambda scene: scene.store.send("t", b"new", delay=60, unique_key=b"new"),
    "replace": Scene.replace,
    "send numbered": lambda scene: scene.numbered(1),
    "cancel": Scene.cancel,
    "reschedule": Scene.reschedule,
    "cancelled elsewhere": Scene.cancelled_elsewhere,
    "marker": Scene.marker,
    "roll": lambda scene: scene.log.roll(),
    "checkpoint": lambda scene: (scene.store.send("t", b"one"), scene.log.checkpoint()),
    "merge": lambda scene: scene.log.merge_buckets(),
    "retention": lambda scene: scene.store.enforce_retention(),
    "clean": lambda scene: scene.clean(),
    "purge": lambda scene: scene.store.purge("t"),
}
SENT: set[bytes | None] = {
    *(
        b"%s %d" % (what, n)
        for what in (b"due", b"later", b"pending", b"copied", b"many", b"numbered")
        for n in range(6)
    ),
    *(b"holder", b"instead", b"one", b"new"),
}


@functools.cache
def offsets() -> dict[bytes, int]:
    """What lies where when a scene begins."""
    with Scene(*begun()).store as store:
        return {each.value or b"": each.offset for each in store.pending("t", limit=100)}


@functools.cache
def begun() -> tuple[Image, int]:
    scene = Scene(None, NOW_MS)
    scene.begin()
    return scene.disk.image(), scene.clock.now_ms()


def interleaved(first: str, second: str, line: int, *, at_sync: bool) -> int:
    """`first` is held at a line of its own; `second` meanwhile comes to its end, from its fdatasync on or as a whole.

    How many lines `first` had.
    """
    scene = Scene(*begun())
    turns, sync = scene.turns, ActiveSegment.sync

    def told(active: ActiveSegment) -> None:
        turns.before_sync()
        sync(active)

    other = Actor(lambda: OPERATIONS[second](scene), at_sync=at_sync)
    one = Actor(
        lambda: OPERATIONS[first](scene),
        at_line=(LOG_FILES, line),
        behind=lambda: scene.look() if other.state == DONE else None,
    )
    turns.actors = [one, other]
    try:
        with patch.object(ActiveSegment, "sync", told), turns.locks():
            if at_sync:
                other.start()
                scene.clock.advance(SOON_MS + 50)
            one.start()
            if not at_sync:
                other.start()
            elif other.state == HELD:
                other.go_on()
            for actor in (one, other):
                with suppress(NotPending, UniqueKeyConflict):  # they want the same record, or the same key
                    actor.end()
        scene.verify()
    except Exception as failure:
        failure.add_note(f"{first} at {one.where}, line {line}; {second}, at_sync={at_sync}")
        raise
    return one.lines


@functools.cache
def lines(first: str, second: str, *, at_sync: bool) -> int:
    """How many `first` has, where nobody holds it."""
    return interleaved(first, second, -1, at_sync=at_sync)


@pytest.mark.parametrize("first", OPERATIONS)
def test_every_pair(first: str) -> None:
    row = list(OPERATIONS).index(first)
    for turn, (second, at_sync) in enumerate(itertools.product(OPERATIONS, (True, False)), 7 * row):
        if campaigns.is_chosen(turn, 24):
            for line in range(lines(first, second, at_sync=at_sync)):
                if campaigns.is_chosen(line + 7 * turn, 60, whole=8):
                    interleaved(first, second, line, at_sync=at_sync)
                    campaigns.count("interleavings")


def of_then(versions: VersionSet, end_offset: int) -> int:
    """Noted: the version that an append began with."""
    versions.began = versions.current  # type: ignore[attr-defined]
    return BEGIN(versions, end_offset)


def wrote_what_it_took(versions: Any, end: End, cancelled: Cancelled | None, due_ms: int, *, safe: bool) -> None:
    """An append puts back what was cancelled when it began."""
    before = versions.began.cancellations
    versions.current = versions.current._replace(cancellations=before)
    WROTE(versions, end, cancelled, due_ms, safe=safe)


def shown_as_it_was(versions: Any, version: Version) -> int:
    """A sync puts back the version that it began with."""
    versions.current = version._replace(active=versions.current.active, visible=versions.current.visible)
    return SHOW(versions, version)


BEGIN, WROTE, SHOW = VersionSet.begin, VersionSet.wrote, VersionSet._show
PLANTED: list[tuple[str, Any, str, str]] = [
    ("wrote", wrote_what_it_took, "send", "marker"),
    ("wrote", wrote_what_it_took, "send many", "cancel"),
    ("wrote", wrote_what_it_took, "send a unique key", "reschedule"),
    ("wrote", wrote_what_it_took, "send numbered", "replace"),
    ("wrote", wrote_what_it_took, "marker", "cancelled elsewhere"),
    ("_show", shown_as_it_was, "send", "cancel"),
]


@pytest.mark.parametrize(("method", "bug", "first", "second"), PLANTED)
def test_a_planted_bug_is_seen(method: str, bug: Any, first: str, second: str) -> None:
    count = lines(first, second, at_sync=True)
    with patch.object(VersionSet, "begin", of_then), patch.object(VersionSet, method, bug):
        for line in sorted(range(0, count, 3), key=lambda line: line * 37 % 101):
            try:
                interleaved(first, second, line, at_sync=True)
            except Exception:
                return
    raise AssertionError("nobody saw it")


def test_an_edit_of_an_older_version_is_refused() -> None:
    """It cannot be written otherwise: who made a part of another version than that of now loses nobody's."""
    scene = Scene(*begun())
    versions, before = scene.log.versions, scene.log.version
    scene.log.roll()
    now = scene.log.version
    with pytest.raises(RuntimeError, match="sealed, delayed_index of the version: changed by another"):
        versions.swap(before, sealed=before.sealed, delayed_index=before.delayed_index)
    assert versions.current is now
    scene.store.close()
