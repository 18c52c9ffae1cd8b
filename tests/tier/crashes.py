"""Workloads over a store with object storage, and what a crash of the local disk at any point must have left of them.

The storage is durable: whatever was done to it is marked on the local disk, between the operations of the offload, so
that a crash point has the storage as it was just then. After the crash the store holds what `tests.campaigns.crashes`
says, and

- every segment that is not in the folder is listed, whole, and due by the frontier before any clock is read (D13);
- a scrub finds nothing but what a broken upload or removal left, and that is gone after the next pass;
- a machine with nothing but the storage opens, and has of the log what had been uploaded, under the same offsets.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from afterlog import Config, ManualClock, Store
from afterlog.base.files import Files
from afterlog.store.store import open_store
from afterlog.tier import offload
from afterlog.tier.manifest import Manifest
from afterlog.tier.scrub import FindingKind, scrub
from afterlog.tier.tiered_segment import TieredSegment
from tests.campaigns.crash_states import CrashState
from tests.campaigns.crashes import PATH, TOPIC, Observed, Scenario, Session, Verifier, contents, small, stop
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import drained
from tests.tier.memory_store import MarkedStore, MemoryStore, storage_of
from tests.tier.support import faults

FOLDER = f"{TOPIC}-0"


class TieredSession(Session):
    """A workload's hands, with a storage that outlives the disk."""

    sound = True
    """Whether nothing is planted."""

    def opened(self) -> Store:
        held = getattr(self, "remote", None)
        self.remote = MarkedStore(self.disk, held)
        return open_store(PATH, self.config, self.clock, self.files, self.remote, background=False)

    def offload(self, **expected: int) -> None:
        """One pass; what it did is so, as far as it is told here, unless a bug is planted."""
        done = self.store.offload()[FOLDER]
        if self.sound:
            assert expected == {name: getattr(done, name) for name in expected}, done
            assert faults(Manifest(self.remote, FOLDER)) == []

    def clean(self, segments: int) -> None:
        """So many are written anew."""
        self.partition.log.weigh()
        self.partition.log.enforce_retention()
        self.partition.log.begin_cleaning(thorough=True)
        done = self.partition.log.clean(thorough=True)
        assert not self.sound or segments == done.segments, done

    def holds(self, *values: bytes) -> None:
        """All of this is due, in this order."""
        assert not self.sound or drained(self.partition) == [*values]


@dataclass(frozen=True, slots=True)
class TieredScenario(Scenario):
    def __call__(self, files: Files, disk: SimulatedFiles) -> None:
        with patch.object(offload, "unused_name", names()):
            session = TieredSession(files, disk, self.config, **self.topic)
            self.work(session)  # type: ignore[arg-type]
            session.close()


def names() -> Callable[[], str]:
    """`unused_name`, the same in every run."""
    numbers = itertools.count(1)
    return lambda: f"{next(numbers):032x}"


def goes(session: TieredSession) -> None:
    """A segment goes up, and its local files go when the last of it is due; another, with one for years, stays."""
    session.send((b"a", 1), (b"b", 2), (b"c", 30))
    session.partition.log.roll()
    session.send((b"d", 5), (b"e", 10**6))
    session.offload(uploaded=1, freed=0)
    session.advance(9)
    session.poll()
    session.partition.log.roll()
    session.advance(30)
    session.offload(uploaded=1, freed=1)
    session.holds(b"a", b"b", b"d", b"c")
    session.send((b"f", 0))
    session.poll()
    session.commit()


def cancelled_goes(session: TieredSession) -> None:
    """The cancel index stays here, and what it says holds."""
    session.send((b"a", 5), (b"b", 30), (b"c", 30))
    session.cancel(2)
    session.partition.log.roll()
    session.send((b"d", 9))
    session.partition.log.roll()
    session.advance(40)
    session.offload(uploaded=2, freed=2)
    session.poll()
    session.holds(b"a", b"d", b"b")
    session.reopen()
    session.send((b"e", 0))


def bucket_goes(session: TieredSession) -> None:
    """One run holds three segments; when all of them have gone it is let go, and theirs are read from far away."""
    for first, after in ((b"a", 1), (b"c", 2), (b"e", 40)):
        session.send((first, after), (b"%d" % after, 5))
        session.partition.log.roll()
    session.merge()
    session.offload(uploaded=3, freed=0)
    session.advance(12)
    session.offload(uploaded=0, freed=2)
    session.poll()
    session.send((b"g", 3))
    session.partition.log.roll()
    session.merge()
    session.advance(40)
    session.offload(uploaded=1, freed=2)
    assert all(run.remote for run in session.partition.log.index.runs)
    session.poll()
    session.holds(b"a", b"c", b"1", b"2", b"40", b"g", b"e")


def expires(session: TieredSession) -> None:
    """Retention takes segments here and in the storage, one of them still local; one that is pending stays."""
    session.send((b"a", 1), (b"b", 2))
    session.partition.log.roll()
    session.send((b"c", 10**6))
    session.partition.log.roll()
    session.advance(9)
    session.offload(uploaded=2, freed=1)
    session.poll()
    session.send((b"d", 2))
    session.partition.log.roll()
    session.advance(60)
    session.poll()
    session.offload(uploaded=1, expired=2, removed=2)
    session.send((b"e", 0))
    session.poll()


def cleaned_there(session: TieredSession) -> None:
    """What is listed is written anew here, and then listed in its place; of one segment all goes, and its row with it.

    Twice, so that what was written anew is replaced, too.
    """
    for first, after in ((b"a", 10**6), (b"c", 2), (b"e", 10**6 + 1)):
        session.send((first, after), (b"gone", 1))
        session.partition.log.roll()
    session.offload(uploaded=3, freed=0)
    session.advance(40)
    session.poll()
    session.clean(2)
    session.send((b"g", 1), (b"h", 10**6))
    session.partition.log.roll()
    session.offload(uploaded=2, expired=0)
    session.advance(60)
    session.poll()
    session.clean(2)
    session.offload(uploaded=1, expired=0)
    session.send((b"i", 0))
    session.poll()


def in_order(session: TieredSession) -> None:
    """A FIFO topic."""
    for value in (b"a", b"b", b"c"):
        session.send((value, None), (value + value, None))
        session.partition.log.roll()
        session.advance(15)
    session.poll(3)
    session.offload(uploaded=3, freed=2, expired=0)
    session.commit()
    session.send((b"d", None))
    session.poll()
    session.holds(b"a", b"aa", b"b", b"bb", b"c", b"cc", b"d")
    session.advance(20)
    session.offload(expired=2, removed=2)


TIERED: dict[str, Any] = {"remote_storage_enable": True, "local_retention_ms": 5}
PAGES: dict[str, Any] = {"remote_cache_bytes": 16 << 10, "remote_page_bytes": 512}
SCENARIOS = (
    TieredScenario("goes", goes, small(**PAGES), TIERED),  # type: ignore[arg-type]
    TieredScenario("cancelled goes", cancelled_goes, small(**PAGES), TIERED),  # type: ignore[arg-type]
    TieredScenario("bucket goes", bucket_goes, small(max_num_buckets=1, **PAGES), TIERED),  # type: ignore[arg-type]
    TieredScenario("expires", expires, small(**PAGES), {**TIERED, "retention_ms": 20}),  # type: ignore[arg-type]
    TieredScenario("cleaned there", cleaned_there, small(**PAGES),  # type: ignore[arg-type]
                   {"remote_storage_enable": True, "retention_ms": 20}),
    TieredScenario("fifo", in_order, small(**PAGES), {  # type: ignore[arg-type]
        **TIERED, "delayed": False, "retention_ms": 50, "local_retention_ms": 20
    }),
)  # fmt: skip


# --- The oracle ---------------------------------------------------------------------------------------------------


class TieredVerifier(Verifier):
    """Recovers on a crashed disk beside the storage of then, once that holds so many objects: what was before the first
    upload, tests/campaigns/test_crashes.py looks at."""

    def __init__(self, scenario: Scenario, objects_min: int = 2) -> None:
        super().__init__(scenario, covered=True)
        self._objects_min = objects_min
        self._names = names()
        self._storage = MemoryStore()
        self._of_storages: dict[int, tuple[dict[tuple[bytes, int], Observed], dict[int, Observed]]] = {}
        self._restored: set[int] = set()

    def __call__(self, disk: SimulatedFiles, marks: Sequence[object], state: CrashState) -> None:
        self._storage = storage_of(marks)
        if len(self._storage.objects) >= self._objects_min:
            self._of_disk, self._of_recovered = self._of_storages.setdefault(self._storage.fingerprint(), ({}, {}))
            with patch.object(offload, "unused_name", lambda: f"f{self._names()[1:]}"):
                super().__call__(disk, marks, state)

    def _open(self, disk: SimulatedFiles, clock: ManualClock) -> Store:
        config, remote = self._scenario.config, MarkedStore(disk, self._storage)
        with patch.object(TieredSegment, "cancel_index", _lost):
            return open_store(PATH, config, clock, disk, remote, background=False)

    def _observe(self, store: Store, clock: ManualClock, disk: SimulatedFiles, there: bool) -> Observed:
        check_d13(store)
        found = contents(store.topic(TOPIC).partition(0))
        restored = hash((self._storage.fingerprint(), tuple(found)))
        if restored not in self._restored:
            check_restored(self._storage, self._scenario.config, clock, found)
            self._restored.add(restored)
        observed = super()._observe(store, clock, disk, there)
        self._check_swept(store)
        return observed

    def _check_swept(self, store: Store) -> None:
        """The next pass does what is left to do."""
        partition = store.topic(TOPIC).partition(0)
        partition.log.roll()
        before = drained(partition)
        store.offload()
        assert store.tiering is not None
        manifest = Manifest(store.tiering.remote, FOLDER)
        assert [] == scrub(manifest, deep=True)
        noted = [segment.mark.remote and segment.mark.remote.attempt for segment in partition.log.sealed]
        assert noted == [row.attempt for row in manifest.listed()], "listed, and not in the log"
        after = drained(partition)
        assert after == before[len(before) - len(after) :]
        store.check()
        check_d13(store)


def check_d13(store: Store) -> None:
    """What is not in the folder is listed, whole, and was due before any clock was read."""
    assert store.tiering is not None
    log, manifest = store.topic(TOPIC).partition(0).log, Manifest(store.tiering.remote, FOLDER)
    findings = scrub(manifest, deep=True)
    assert {finding.kind for finding in findings} <= {FindingKind.UNFINISHED}, findings
    listed = {row.attempt: row for row in manifest.listed()}
    frontier_ms = log.checkpoints.current.frontier.used_ms
    for segment in log.sealed:
        mark = segment.mark
        if mark.remote is not None:
            assert mark.remote.attempt in listed, f"segment {mark.base_offset} is not listed"
            assert listed[mark.remote.attempt].end_offset == mark.end_offset
            assert mark.local or not log.delayed or mark.max_deliver_after <= frontier_ms, "pending again"
        elif mark.has_gaps and log.checkpoints.current.replaced:
            spans = [range(row.base_offset, row.end_offset) for row in listed.values()]
            for offset in (mark.base_offset, mark.end_offset - 1):
                assert any(offset in span for span in spans), f"{offset} was listed, and is in no row now"
    for attempt in log.checkpoints.current.removals:
        assert attempt not in {mark.remote.attempt for mark in log.checkpoints.current.sealed if mark.remote}


def check_restored(storage: MemoryStore, config: Config, clock: ManualClock, found: Sequence[object]) -> None:
    """A machine that has nothing but the storage has what was uploaded, and nothing else, under the same offsets."""
    store = open_store(PATH, config, clock, SimulatedFiles(), storage.copy(), background=False)
    if TOPIC in {topic.name for topic in store.topics()}:
        partition = store.topic(TOPIC).partition(0)
        listed = Manifest(storage, FOLDER).listed()
        uploaded = {offset for row in listed for offset in range(row.base_offset, row.end_offset)}
        restored = contents(partition)
        for offset, record in enumerate(restored):
            assert record is None or (offset in uploaded and found[offset] in (record, None))
        gone = {offset for offset in uploaded if offset >= len(restored) or restored[offset] is None}
        assert all(found[offset] is None for offset in gone), f"{gone} are in the storage, and were not removed"
        store.check()
        drained(partition)
    stop(store)


def _lost(segment: TieredSegment) -> bytes:
    raise AssertionError(f"the cancel index of {segment._mark.base_offset} has gone with the rest")
