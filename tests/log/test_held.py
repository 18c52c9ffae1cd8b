"""What holds the bytes of a partition: as retention judges it, and all of them in all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.base.clock import ManualClock
from afterlog.base.errors import InvalidTopic, RemoteUnavailable, UnknownPartition, UnknownTopic
from afterlog.log import retention
from afterlog.log.checkpoints import RemoteMark, SealedMark
from afterlog.log.facts import NO_FILE
from afterlog.log.held import HeldBytes, held_bytes
from afterlog.log.retention import Rule, by_rule_alone, judged, nothing_goes
from afterlog.log.segment import SealedSegment
from afterlog.log.topic_settings import TopicSettings
from afterlog.store.store import Store, open_store
from afterlog.tier.directory_store import DirectoryStore
from tests.campaigns.simulated_disk import Image, SimulatedFiles
from tests.support import NOW_MS, PATH, killed, small
from tests.tier.faulty_remote_store import Fault, FaultyRemoteStore
from tests.tier.support import REMOTE


class Setting:
    def __init__(self, **settings: Any) -> None:
        self.disk, self.clock = SimulatedFiles(Image([str(REMOTE)])), ManualClock(NOW_MS)
        self.fault: Fault | None = None
        self.remote = FaultyRemoteStore(DirectoryStore(self.disk, REMOTE), lambda operation, call: self.fault)
        self.settings = settings
        self.open(self.disk)

    def open(self, disk: SimulatedFiles) -> None:
        self.store: Store = open_store(PATH, small(), self.clock, disk, self.remote, background=False)
        self.log = self.store.create_topic("t", **self.settings).partition(0).log

    def segment(self, *delays_ms: int) -> int:
        """Its bytes."""
        for ms in delays_ms:
            self.store.send("t", b"v" * 100, deliver_after=self.clock.now_ms() + ms if self.log.delayed else None)
        self.log.roll()
        return self.log.sealed[-1].size

    def held(self) -> HeldBytes:
        held = self.store.held_bytes("t")
        local = sum(segment.size for segment in self.log.sealed if segment.is_local())
        assert local + self.log.version.written.position == held.total - held.pinned
        return held


def test_a_pending_record_holds_its_segment() -> None:
    setting = Setting(retention_ms=1_000)
    size = setting.segment(0, 60_000)
    assert HeldBytes(pending=size) == setting.held()
    setting.clock.advance(60_000)
    assert HeldBytes(retention=size) == setting.held()
    setting.clock.advance(1_000)
    assert HeldBytes(removable=size) == setting.held()
    setting.store.enforce_retention()
    assert HeldBytes() == setting.held()


def test_without_a_retention_all_that_is_due_is_held_by_it() -> None:
    setting = Setting()
    assert HeldBytes(retention=setting.segment(0)) == setting.held()


def test_by_bytes_the_newest_stay() -> None:
    setting = Setting(retention_bytes=200)
    pages = [setting.segment(5), setting.segment(6)]
    assert HeldBytes(pending=sum(pages)) == setting.held()
    setting.clock.advance(6)
    assert HeldBytes(removable=pages[0], retention=pages[1]) == setting.held()


def test_what_a_reader_still_reads_is_pinned() -> None:
    setting = Setting(retention_ms=0)
    size = setting.segment(5)
    setting.clock.advance(5)
    view = setting.log.pin()
    view.sealed[0].mapped()
    assert 1 == setting.store.enforce_retention()
    assert HeldBytes(pinned=size) == setting.held()
    del view
    setting.store.enforce_retention()
    assert HeldBytes() == setting.held()


def test_what_is_not_acked_is_the_backlog() -> None:
    setting = Setting(retention_by_subscriptions=True, retention_ms=1_000)
    size = setting.segment(0, 0)
    assert HeldBytes(retention=size) == setting.held(), "nobody has read it, but it would stay anyway"
    setting.clock.advance(1_000)
    assert HeldBytes(backlog=size) == setting.held()
    with setting.store.subscribe("t", "s") as subscription:
        subscription.ack_many(subscription.receive(1))
        assert HeldBytes(backlog=size) == setting.held()
        subscription.ack_many(subscription.receive(1))
        assert HeldBytes(removable=size) == setting.held()
    assert HeldBytes(removable=size) == setting.held(), "nobody has it open"


def test_what_a_quota_evicts_is_removable() -> None:
    quota: dict[str, Any] = {"backlog_quota_ms": 1_000, "backlog_quota_policy": "consumer_backlog_eviction"}
    setting = Setting(retention_by_subscriptions=True, **quota)
    size = setting.segment(0)
    setting.store.subscribe("t", "s").close()
    assert HeldBytes(backlog=size) == setting.held()
    setting.clock.advance(2_000)
    assert HeldBytes(removable=size) == setting.held()


def test_what_waits_for_object_storage() -> None:
    setting = Setting(remote_storage_enable=True, local_retention_ms=1_000)
    size = setting.segment(0)
    assert HeldBytes(retention=size) == setting.held()
    setting.clock.advance(1_000)
    assert HeldBytes(tier=size) == setting.held(), "there is no copy yet"
    setting.fault = Fault.BEFORE
    with pytest.raises(RemoteUnavailable):
        setting.store.offload()
    assert HeldBytes(tier=size) == setting.held()
    setting.fault = None
    setting.store.offload()
    assert HeldBytes() == setting.held()


def test_at_rest_nothing_is_opened() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"retention_ms": 1_000}, "retention"),
        ({"retention_ms": 1_000, "delayed": False}, "retention"),
        ({"retention_by_subscriptions": True}, "backlog"),
    ]
    for settings, expected in cases:
        setting = Setting(**settings)
        size = setting.segment(0)
        setting.store.send("t", b"v")
        setting.store.close()
        again = open_store(PATH, small(), setting.clock, killed(setting.disk), background=False)
        held = again.held_bytes("t")
        assert [] == [*again._topics.logs()]
        again.topic("t").partition(0)
        assert held == again.held_bytes("t")
        assert size == getattr(held, expected)


def test_what_is_not_there() -> None:
    store = Setting().store
    with pytest.raises(UnknownTopic):
        store.held_bytes("nowhere")
    with pytest.raises(UnknownPartition):
        store.held_bytes("t", 7)


segments = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 20), st.booleans(), st.booleans()), max_size=8)


@given(
    segments,
    st.booleans(),
    st.sampled_from([None, 0, 5]),
    st.sampled_from([None, 0, 60]),
    st.sampled_from([None, 0, 5]),
    st.booleans(),
    st.integers(0, 30),
)
def test_removable_is_what_retention_takes(
    rows: list[tuple[int, int, bool, bool]],
    delayed: bool,
    retention_ms: int | None,
    retention_bytes: int | None,
    local_ms: int | None,
    by_subscriptions: bool,
    now_ms: int,
) -> None:
    """No second opinion: by any settings, of any segments; and every local byte is told once."""
    marks = [
        SealedMark(
            base_offset=number,
            end_offset=number + 1,
            log_bytes=size,
            max_deliver_after=due if delayed else 0,
            max_timestamp=due,
            index=NO_FILE,
            time_index=NO_FILE,
            remote=RemoteMark(attempt="a", local=local) if uploaded else None,
        )
        for number, (size, due, uploaded, local) in enumerate(rows)
    ]
    try:
        settings = TopicSettings(
            delayed=delayed,
            retention_ms=retention_ms,
            retention_bytes=retention_bytes,
            remote_storage_enable=local_ms is not None,
            local_retention_ms=local_ms,
            retention_by_subscriptions=by_subscriptions,
        )
    except InvalidTopic:
        return
    lets_go = nothing_goes if by_subscriptions else by_rule_alone
    held = held_bytes(marks, 7, settings, now_ms, lets_go, pinned_bytes=3)
    disk = SimulatedFiles()
    sealed = [SealedSegment(disk, PATH, mark, 1) for mark in marks]
    rule = Rule(retention_ms, retention_bytes)
    taken = retention.removable(sealed, 7, rule, now_ms, delayed=delayed, lets_go=lets_go)
    assert sum(segment.size for segment in taken if segment.is_local()) == held.removable
    assert 3 + 7 + sum(mark.log_bytes for mark in marks if mark.local) == held.total
    assert len(marks) == len({mark for mark, _ in judged(marks, 7, rule, now_ms, delayed=delayed)})
    assert held.pending == sum(mark.log_bytes for mark in marks if mark.local and mark.max_deliver_after > now_ms)
