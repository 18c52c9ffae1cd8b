"""Every crash of a workload whose leases outlive the process: as `test_crashes.py`, and what is held stays so.

A kill takes nothing: nobody else gets a record before the deadline that its reader was told, extended or not. A power
cut may take a lease that was not synced (D5), and then the record comes again; it counts as no failure either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.config import ALWAYS, OS, Durability
from afterlog.base.files import Files
from afterlog.store.store import Store
from afterlog.subscription.answers import Lease
from afterlog.subscription.events import Extended
from afterlog.subscription.journaled_state import JournaledState
from afterlog.subscription.partition_subscription import PartitionSubscription
from afterlog.subscription.state import SubscriptionState
from tests.campaigns.crash_states import CrashModel, CrashState
from tests.campaigns.explorer import Explored, explore, first_failure
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.subscription.test_crashes import LEASE_MS, SPARSE, Did, Worker, drained, values
from tests.support import NOW_MS, open_small


@dataclass(frozen=True, slots=True)
class Told:
    """Until when these are leased, as their reader was told."""

    values: tuple[bytes, ...]
    until_ms: int


@dataclass(frozen=True, slots=True)
class Asked:
    """A lease was begun: a crash before its `Told` may have written it down without a word to the reader."""


class HoldingWorker(Worker):
    """All that it leases is held."""

    def receive(self, count: int) -> Lease:
        self.disk.mark(Asked())
        lease = self.sub.receive(count, LEASE_MS, held=True)
        self.disk.mark(Told(tuple(values(lease)), lease.deadline_ms))
        return lease

    def extend(self, lease: Lease, *rows: int) -> None:
        extended = tuple(values(lease)[row] for row in rows)
        ranks = [int(lease.columns.delivery_offset[row]) for row in rows]
        counts = [int(lease.lease_number[row]) for row in rows]
        self.disk.mark(Did("extend", extended, sure=False))
        self.disk.mark(Told(extended, self.sub.extend(ranks, counts, LEASE_MS).deadline_ms))


def work(worker: HoldingWorker) -> None:
    worker.send(b"a", b"b", b"c", b"d")
    first = worker.receive(3)
    worker.ack(first, 0)
    worker.clock.advance(LEASE_MS // 3)
    worker.extend(first, 1, 2)
    worker.begin_anew()
    second = worker.receive(1)
    worker.nack(second)
    worker.clock.advance(LEASE_MS // 3)
    worker.extend(first, 2)
    worker.receive(1)
    worker.begin_anew()
    worker.ack(first, 1)
    worker.close()


@dataclass(slots=True)
class Verifier:
    """killed: what was told is there."""

    durability: Durability
    killed: bool
    held: int = field(default=0)

    def __call__(self, disk: SimulatedFiles, marks: Sequence[object], state: CrashState) -> None:
        clock = ManualClock(NOW_MS)
        store = open_small(disk, clock, durability=self.durability)
        try:
            self._verify(store, clock, marks)
        finally:
            if store._sync is not None:
                store._sync.stop()

    def _verify(self, store: Store, clock: ManualClock, marks: Sequence[object]) -> None:
        partition = store.create_topic("mail").partition(0)
        there = {message.value for message in partition.columns(0, 100, 1 << 20)[0].to_messages()}
        sub = PartitionSubscription(partition, "sender")
        sub.check()
        did = [mark for mark in marks if isinstance(mark, Did)]
        freed = {value for each in did if each.what in ("ack", "nack") for value in each.values}
        until = {value: each.until_ms for each in marks if isinstance(each, Told) for value in each.values}
        found: dict[bytes, int] = {}
        for now_ms in [NOW_MS, *sorted(ms - 1 for ms in until.values()), NOW_MS + 10 * LEASE_MS]:
            clock.set(max(now_ms, clock.now_ms()))
            for value, count in drained(sub, 100 * LEASE_MS):
                assert value not in found, f"{value!r} is with somebody"
                found[value] = count
                if self.killed and value in until and value not in freed:
                    assert clock.now_ms() >= until[value], f"{value!r} is held until {until[value] - NOW_MS}"
                    self.held += 1
        assert 0 == sub.stats().crashed, "a restart is no failure"
        tried = {value for each in did if each.what == "ack" for value in each.values}
        assert there - tried <= found.keys(), "D4"
        acked = {value for each in did if each.what == "ack" and each.sure for value in each.values}
        assert not acked & found.keys(), "D9"
        untold = isinstance(next((mark for mark in reversed(marks) if isinstance(mark, Asked | Told)), None), Asked)
        for value, count in found.items():
            nacks = [each for each in did if each.what == "nack" and value in each.values]
            assert sum(each.sure for each in nacks) <= count <= len(nacks) + (value in until or untold), "D10"


def explored(
    durability: Durability, *, kill: bool = False, model: CrashModel = SPARSE, **share: int
) -> tuple[Explored, Verifier]:
    verifier = Verifier(durability, killed=kill)

    def run(files: Files, disk: SimulatedFiles) -> None:
        work(HoldingWorker(files, disk, durability))

    return explore(run, verifier, model=model, kill=kill, **share), verifier


@pytest.mark.parametrize(
    ("durability", "kill"),
    [(ALWAYS, False), (ALWAYS, True), (OS, True)],
    ids=["always", "always-kill", "os-kill"],
)
def test_every_crash(durability: Durability, kill: bool) -> None:
    model, of = CrashModel(every_byte_max=128, of=32), 8 if kill else 7
    found, verifier = explored(durability, kill=kill, model=model, of=of)
    print(found, verifier.held)
    assert not found.failures, str(found)
    assert found.distinct > 100
    assert bool(verifier.held) == kill


def in_memory_alone(ledger: JournaledState, event: Any) -> None:
    if isinstance(event, Extended):
        ledger.state.apply(event)
    else:
        RECORD(ledger, event)


def failed_by_a_restart(ledger: JournaledState) -> None:
    with patch.object(SubscriptionState, "held_among", lambda self, offsets: type(offsets)()):
        RETURN_CRASHED(ledger)


RECORD, RETURN_CRASHED = JournaledState.record, JournaledState._return_crashed


@pytest.mark.parametrize(
    ("owner", "name", "bug"),
    [
        (JournaledState, "record", in_memory_alone),
        (JournaledState, "_return_crashed", failed_by_a_restart),
        (SubscriptionState, "_held", lambda state: []),
    ],
    ids=["an extension that is not journaled", "a restart that counts", "a deadline lost in the snapshot"],
)
def test_planted_bug_is_caught(owner: type, name: str, bug: Callable[..., Any]) -> None:
    """Without what `check` proves of the journal at each opening."""
    with patch.object(owner, name, bug), patch.object(PartitionSubscription, "check", lambda self: None):
        found = first_failure(lambda **share: explored(OS, kill=True, **share)[0])
    assert found.failures
