"""The state machine of the engine (`tests.campaigns.test_state_machine`) over a store whose segments move to object
storage.

What a reader finds must not depend on where a segment lies: every promise is held after every step as it is without
object storage. Besides, that fails and is down, and machines are lost: who has nothing else has what is listed there.
"""

from __future__ import annotations

import contextlib
import gc
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from afterlog import ALWAYS, OS, Durability
from afterlog.base.errors import RemoteError
from afterlog.store.store import Store, open_store
from afterlog.tier.manifest import Manifest
from afterlog.tier.scrub import FindingKind, scrub
from tests import campaigns
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.campaigns.test_state_machine import PATH, LogMachine, Numbered, contents, values
from tests.tier.faulty_remote_store import Fault, FaultyRemoteStore
from tests.tier.memory_store import MemoryStore
from tests.tier.support import faults

pytestmark = pytest.mark.usefixtures("quiet")

FOLDER = "mail-0"


class TieredMachine(LogMachine):
    takes_unique_keys = False

    @initialize(
        durability=st.sampled_from([ALWAYS, ALWAYS, OS, Durability.interval(3_600_000)]),
        delayed=st.sampled_from([True, True, True, False]),
        compression=st.sampled_from(["none", "none", "gzip"]),
        segment_bytes=st.sampled_from([4_096, 20_000]),
        recovery_bytes=st.sampled_from([600, 1 << 20]),
        retention_ms=st.sampled_from([None, None, 0, 300]),
        retention_bytes=st.sampled_from([None, None, 6_000]),
        max_num_buckets=st.sampled_from([1, 1, 2, -1]),
        remote_cache_bytes=st.sampled_from([2_048, 1 << 20]),
        local_retention_ms=st.sampled_from([0, 0, 0, 200, None]),
        local_retention_bytes=st.sampled_from([None, None, 0, 3_000]),
    )
    def begin(
        self,
        durability: Durability,
        delayed: bool,
        retention_ms: Any,
        retention_bytes: Any,
        local_retention_ms: int | None = None,
        local_retention_bytes: int | None = None,
        **config: Any,
    ) -> None:
        self.storage = MemoryStore()
        self.down = False
        self.fails_at: dict[int, Fault] = {}
        self.restored_end = 0
        self.tiered = {
            "remote_storage_enable": True,
            "local_retention_ms": local_retention_ms,
            "local_retention_bytes": local_retention_bytes,
        }
        LogMachine.begin(  # type: ignore[call-arg]
            self, durability, delayed, retention_ms, retention_bytes, remote_page_bytes=512, **config
        )

    def open(self) -> None:
        self.calls = 0
        self.store = open_store(
            PATH, self.config, self.clock, self.disk, FaultyRemoteStore(self.storage, self.plan), background=False
        )
        self.store.create_topic("mail", **self.settings, **self.tiered)
        self.partition = self.store.topic("mail").partition(0)
        self.model.reopened()

    def opened(self, copy: SimulatedFiles) -> Store:
        return open_store(PATH, self.config, self.clock, copy, self.storage, background=False)

    def plan(self, operation: str, call: int) -> Fault | None:
        self.calls += 1
        return Fault.BEFORE if self.down else self.fails_at.get(self.calls)

    # The storage.

    @rule()
    def offload(self) -> None:
        gc.collect()  # the traceback of an error before may hold a version, and that what retention removed
        done = self.store.offload()[FOLDER]
        remote = [segment.mark.remote for segment in self.partition.log.sealed]
        manifest = Manifest(self.storage, FOLDER)
        assert [each and each.attempt for each in remote] == [row.attempt for row in manifest.listed()]
        assert done.expired <= done.removed
        assert not self.partition.log.checkpoints.current.removals
        assert faults(manifest) == []

    @rule(ms=st.sampled_from([50, 400, 2_000]))
    def time_passes_and_much_goes(self, ms: int) -> None:
        self.partition.log.roll()
        self.durable(to_end=False)
        self.clock.advance(ms)
        self.offload()

    @rule(call=st.integers(1, 40), fault=st.sampled_from([Fault.BEFORE, Fault.AFTER, Fault.TWICE]))
    def offload_breaks(self, call: int, fault: Fault) -> None:
        self.calls, self.fails_at = 0, {call: fault}
        with contextlib.suppress(RemoteError):
            self.store.offload()
        self.fails_at = {}
        kinds = {finding.kind for finding in scrub(Manifest(self.storage, FOLDER), deep=True)}
        assert kinds <= {FindingKind.UNFINISHED}

    @rule(value=values, reopening=st.booleans())
    def outage(self, value: bytes, reopening: bool) -> None:
        """Appends go on, also of a store that is opened meanwhile; what is read is there, or is said not to be."""
        self.down = True
        if reopening:
            self.consumer = None
            self.store.close()
            self.model.visible_end = len(self.model.records)
            self.open()
        self.send(value, None)
        self.partition.log.roll()
        self.durable(to_end=False)
        with contextlib.suppress(RemoteError):
            self.store.offload()
            raise AssertionError("offloaded to nowhere")
        with contextlib.suppress(RemoteError):
            self.partition.fetch(self.model.log_start)
        self.down = False

    @rule()
    def machine_is_lost(self) -> None:
        """The storage is not. What had been uploaded is there, and nothing else."""
        self.abandon()
        before, listed = list(self.model.records), Manifest(self.storage, FOLDER).listed()
        self.disk = SimulatedFiles()
        self.open()
        self.restored_end = end = self.partition.log_end_offset
        self.numbered = {each: Numbered(known.epoch + 1) for each, known in self.numbered.items()}  # nobody knows them
        assert max((row.end_offset for row in listed), default=0) <= end <= len(before)
        self.model.forget_behind(end)
        found = contents(self.partition)
        found += [None] * (end - len(found))
        there = {offset for offset, record in enumerate(found) if record is not None}
        assert there <= {offset for row in listed for offset in range(row.base_offset, row.end_offset)}
        assert all(
            (found[offset].value, found[offset].due) == (before[offset].value, before[offset].due)  # type: ignore[union-attr]
            for offset in there
        )
        self.model.removed = set(range(end)) - there
        self.model.log_start = self.partition.log_start
        for row in listed:
            keys = {(before[offset].due, offset) for offset in range(row.base_offset, row.end_offset)}
            gone = row.base_offset not in there
            assert not gone or not self.delayed or max(keys) <= self.partition.log.log_start.key
        self.sizes = {segment.base_offset: segment.size for segment in self.partition.log.version.segments}

    @invariant()
    def what_is_far_away_is_due_and_listed(self) -> None:
        log = self.partition.log
        listed = {row.attempt for row in Manifest(self.storage, FOLDER).listed()}
        for segment in log.sealed:
            mark = segment.mark
            assert mark.remote is None or mark.remote.attempt in listed
            if not mark.local and mark.base_offset >= self.restored_end and self.delayed:
                assert mark.max_deliver_after <= log.checkpoints.current.frontier.used_ms


TieredMachine.TestCase.settings = settings(max_examples=campaigns.examples(3, whole=50), stateful_step_count=30)
TestTieredLog = TieredMachine.TestCase
