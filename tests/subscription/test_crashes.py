"""Every crash of some small workloads with a subscription: D4, D5, D9, D10, and nothing skipped.

As `tests/campaigns/test_crashes.py` does for the log: the workload marks what it tries and what it was promised, a
crash cuts the marks off with the rest, and what is found must agree with both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.config import ALWAYS, OS, Durability
from afterlog.base.files import Files
from afterlog.log.commit import Commit
from afterlog.store.store import Store
from afterlog.subscription import journal as journal_module
from afterlog.subscription import replay as replay_module
from afterlog.subscription.answers import Lease
from afterlog.subscription.events import Kind
from afterlog.subscription.frames import Frame
from afterlog.subscription.journal import Journal
from afterlog.subscription.partition_subscription import PartitionSubscription
from tests.campaigns.crash_states import CrashModel, CrashState
from tests.campaigns.explorer import Explored, explore, first_failure
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, open_small

LEASE_MS = 60_000
DELAY_MS = 5_000


@dataclass(frozen=True, slots=True)
class Did:
    """Something done to values; `sure` once it has returned."""

    what: str
    values: tuple[bytes, ...]
    sure: bool


class Worker:
    """Sends, receives, acks and nacks, and marks all of it."""

    def __init__(self, files: Files, disk: SimulatedFiles, durability: Durability) -> None:
        self.disk = disk
        self.clock = ManualClock(NOW_MS)
        self.store = open_small(files, self.clock, durability=durability)
        self.partition = self.store.create_topic("mail").partition(0)
        self.sub = PartitionSubscription(self.partition, "sender")
        disk.mark("begun")

    def does(self, what: str, values: Sequence[bytes], call: Callable[[], object]) -> None:
        self.disk.mark(Did(what, tuple(values), sure=False))
        call()
        self.disk.mark(Did(what, tuple(values), sure=True))

    def send(self, *values: bytes) -> None:
        self.does("send", values, lambda: self.store.send_many("mail", list(values)))

    def receive(self, count: int) -> Lease:
        return self.sub.receive(count, LEASE_MS)

    def ack(self, lease: Lease, *rows: int) -> None:
        offsets = [int(lease.columns.delivery_offset[row]) for row in rows]
        self.does("ack", [values(lease)[row] for row in rows], lambda: self.sub.ack(offsets))

    def nack(self, lease: Lease) -> None:
        columns, counts = lease.columns, lease.lease_number
        arguments = (columns.delivery_offset, columns.offset, counts, DELAY_MS)
        self.does("nack", values(lease), lambda: self.sub.nack(*arguments))

    def begin_anew(self) -> None:
        self.sub._journaled._begin_anew(self.partition.log_end_offset)

    def close(self) -> None:
        self.sub.close()
        self.store.close()


def values(lease: Lease) -> list[bytes]:
    return [message.value or b"" for message in lease.columns.to_messages()]


def work(worker: Worker) -> None:
    worker.send(b"a", b"b", b"c")
    first = worker.receive(3)
    worker.ack(first, 0)
    worker.nack(_row(first, 1))
    worker.begin_anew()
    worker.send(b"d", b"e")
    second = worker.receive(1)
    worker.ack(second, 0)
    worker.ack(first, 2)
    worker.clock.advance(DELAY_MS)
    worker.nack(worker.receive(5))
    worker.begin_anew()
    worker.send(b"f")
    worker.ack(worker.receive(5), 0)
    worker.close()


def _row(lease: Lease, row: int) -> Lease:
    part = slice(row, row + 1)
    return Lease(
        columns=lease.columns[part],
        lease_number=lease.lease_number[part],
        exhausted=lease.exhausted,
        exhausted_number=lease.exhausted_number,
        lapsed=lease.lapsed,
        lapsed_number=lease.lapsed_number,
        deadline_ms=lease.deadline_ms,
    )


@dataclass(slots=True)
class Verifier:
    """What must be true of a crashed disk. covered: the durability promises to survive this crash."""

    durability: Durability
    covered: bool
    given_up: int = 0

    def __call__(self, disk: SimulatedFiles, marks: Sequence[object], state: CrashState) -> None:
        told = [mark for mark in marks if isinstance(mark, Did)]
        clock = ManualClock(NOW_MS + DELAY_MS)
        store = open_small(disk, clock, durability=self.durability)
        try:
            self._verify(store, clock, told)
        finally:
            if store._sync is not None:
                store._sync.stop()

    def _verify(self, store: Store, clock: ManualClock, told: list[Did]) -> None:
        partition = store.create_topic("mail").partition(0)
        there = {message.value for message in partition.columns(0, 100, 1 << 20)[0].to_messages()}
        sub = PartitionSubscription(partition, "sender")
        sub.check()
        self.given_up += bool(sub.replayed and sub.replayed.given_up_bytes)
        assert self.durability == OS or not (sub.replayed and sub.replayed.given_up_bytes)
        store.send("mail", b"after")
        store.sync()
        at_once = [*drained(sub)]
        clock.advance(10 * DELAY_MS)
        found = [*at_once, *drained(sub)]
        got = [value for value, _ in found]
        assert len(set(got)) == len(got), f"twice without a reason: {got}"
        assert b"after" in got, "an ack of what was lost took what was sent after it"
        tried = {value for did in told if did.what == "ack" for value in did.values}
        assert there - tried <= set(got), f"D4: {there - tried - set(got)} were not acked, and are gone"
        if not self.covered:
            return
        acked = {value for did in told if did.what == "ack" and did.sure for value in did.values}
        assert not acked & set(got), f"D9: {acked & set(got)} were acked"
        nacks = [value for did in told if did.what == "nack" and did.sure for value in did.values]
        for value, count in found:
            assert count >= nacks.count(value), f"D10: {value!r} failed {nacks.count(value)} times, not {count}"
        last = told[-1] if told else None
        if last and last.what == "nack" and last.sure and nacks.count(last.values[0]) == 2:
            assert not set(last.values) & {value for value, _ in at_once}, "D10: before its delay"


def drained(sub: PartitionSubscription, lease_ms: int = LEASE_MS) -> Iterator[tuple[bytes, int]]:
    while len(lease := sub.receive(10, lease_ms)):
        yield from zip(values(lease), lease.redelivery_count.tolist(), strict=True)


SPARSE = CrashModel(every_byte_max=0, sector_cuts_max=1)


def explored(
    durability: Durability, *, kill: bool = False, model: CrashModel = SPARSE, **share: int
) -> tuple[Explored, Verifier]:
    verifier = Verifier(durability, covered=kill or durability == ALWAYS)

    def run(files: Files, disk: SimulatedFiles) -> None:
        work(Worker(files, disk, durability))

    return explore(run, verifier, model=model, kill=kill, **share), verifier


CASES = pytest.mark.parametrize(
    ("durability", "kill"),
    [(ALWAYS, False), (ALWAYS, True), (OS, False), (OS, True)],
    ids=["always", "always-kill", "os", "os-kill"],
)


@CASES
def test_every_crash(durability: Durability, kill: bool) -> None:
    model, of = CrashModel(every_byte_max=128, of=32), 8 if kill else 7
    found, verifier = explored(durability, kill=kill, model=model, of=of)
    print(found, verifier.given_up)
    assert not found.failures, str(found)
    assert found.distinct > 100
    assert bool(verifier.given_up) == (durability == OS and not kill), "acks ahead of the log are given up, no others"


@contextmanager
def ack_without_sync(patch: pytest.MonkeyPatch) -> Iterator[Durability]:
    committed = Commit.committed
    patch.setattr(
        Commit, "committed", lambda self, end: None if isinstance(self._of, Journal) else committed(self, end)
    )
    yield ALWAYS


@contextmanager
def snapshot_ahead_of_the_log(patch: pytest.MonkeyPatch) -> Iterator[Durability]:
    patch.setattr(Commit, "make_delivered_durable", lambda self: None)
    yield OS


@contextmanager
def acks_ahead_of_the_log(patch: pytest.MonkeyPatch) -> Iterator[Durability]:
    frame_at = replay_module.frame_at

    def unaware(data: memoryview, number: int, position: int) -> Frame | None:
        frame = frame_at(data, number, position)
        return frame and frame._replace(log_end_offset=0 if frame.kind != Kind.SNAPSHOT else frame.log_end_offset)

    patch.setattr(replay_module, "frame_at", unaware)
    yield OS


@contextmanager
def old_journal_goes_first(patch: pytest.MonkeyPatch) -> Iterator[Durability]:
    begin = Journal._begin

    def hasty(self: Journal, number: int, snapshot: bytes, end: int) -> None:
        for old in journal_module.numbers(self._files, self._folder):
            self._unlink(old)
        begin(self, number, snapshot, end)

    patch.setattr(Journal, "_begin", hasty)
    yield ALWAYS


@contextmanager
def checksum_not_checked(patch: pytest.MonkeyPatch) -> Iterator[Durability]:
    frames = replay_module.frame_at.__globals__
    patch.setitem(frames, "crc32c", lambda data, value=0: 0)
    yield ALWAYS


@pytest.mark.parametrize(
    "bug",
    [
        ack_without_sync,
        snapshot_ahead_of_the_log,
        acks_ahead_of_the_log,
        old_journal_goes_first,
        checksum_not_checked,
    ],
    ids=lambda bug: bug.__name__,
)
def test_planted_bug_is_caught(bug: Callable[..., Iterator[Durability]], monkeypatch: pytest.MonkeyPatch) -> None:
    with bug(monkeypatch) as durability:  # type: ignore[attr-defined]
        found = first_failure(lambda **share: explored(durability, **share)[0])
    assert found.failures
