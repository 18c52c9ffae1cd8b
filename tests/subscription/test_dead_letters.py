from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.config import ALWAYS, OS, Durability
from afterlog.base.errors import RecordTooLarge, StorageFull
from afterlog.base.files import Files
from afterlog.log.commit import Commit
from afterlog.records.batch import Headers
from afterlog.store.store import Store
from afterlog.subscription import dead_letters
from afterlog.subscription.partition_subscription import PartitionSubscription
from afterlog.subscription.policy import RetryPolicy
from tests.campaigns.crash_states import CrashModel, CrashState
from tests.campaigns.explorer import Explored, explore, first_failure
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.subscription.support import Setting, values
from tests.support import NOW_MS, drained, killed, open_small

ONCE = RetryPolicy(first_ms=0, max_ms=0, attempts=1)


@pytest.fixture
def setting() -> Iterator[Setting]:
    setting = Setting()
    yield setting
    setting.store.check()
    setting.store.close()


def test_what_always_fails_goes_there_once_and_the_others_flow_on(setting: Setting) -> None:
    sent = setting.store.send("mail", b"poison", key=b"k", headers=[("h", b"1"), ("n", None)])
    setting.send(b"a", b"b")
    with setting.subscribe(dead_letter="mail.dead") as sub:
        for _ in range(5):
            for message in sub.receive():
                with message:
                    if message.value == b"poison":
                        raise ValueError("nö")
            setting.clock.advance(4_010)
        stats = sub.stats()
        assert (2, 1, 2, 0, 0) == (stats.acked, stats.dead, stats.nacked, stats.retrying, stats.leased)
    with setting.store.consumer("mail.dead", group="g") as consumer:
        [letter] = consumer.poll()
    assert (b"k", b"poison", NOW_MS) == (letter.key, letter.value, letter.timestamp)
    assert [
        ("h", b"1"),
        ("n", None),
        ("afterlog-dead-letter-topic", b"mail"),
        ("afterlog-dead-letter-partition", b"0"),
        ("afterlog-dead-letter-offset", b"%d" % sent.offset),
        ("afterlog-dead-letter-subscription", b"sender"),
        ("afterlog-dead-letter-reason", b"ValueError: n\\xf6"),
        ("afterlog-dead-letter-redelivery-count", b"3"),
    ] == [*letter.headers]


def test_leases_that_end_count_too(setting: Setting) -> None:
    setting.send(b"a", b"b")
    with setting.subscribe(dead_letter="mail.dead") as sub, setting.subscribe() as patient:
        for failures in range(3):
            received = sub.receive()
            assert [failures] * 2 == [message.redelivery_count for message in received]
            setting.clock.advance(20_000)
        assert 2 == len(patient.receive()), "without dead letters for ever"
        setting.clock.advance(20_000)
        setting.send(b"c")
        assert [b"c"] == values(sub.receive(1)), "after those that were given up"
        reason = "given up after 4 deliveries, of which the last ended without an answer"
        assert [(b"a", reason, 4), (b"b", reason, 4)] == setting.dead()


def test_stale_receipts_kill_nobody(setting: Setting) -> None:
    setting.send(b"a")
    with setting.subscribe(retry=ONCE, dead_letter="mail.dead") as sub, setting.subscribe() as other:
        [late] = sub.receive()
        setting.clock.advance(20_000)
        [message] = other.receive()
        assert (0, 1) == ((answer := sub.nack(late)).done, answer.stale)
        other.ack(message)
        assert (0, 1) == (sub.stats().dead, sub.stats().acked)
        assert [] == setting.dead()


def test_many_in_one_go_and_the_partitions_of_the_dead() -> None:
    setting = Setting(partitions=3)
    setting.store.create_topic("dead", partitions=2)
    for partition in range(3):
        setting.send(b"%d" % partition, b"%d" % partition, partition=partition)
    with setting.subscribe(retry=ONCE, dead_letter="dead") as sub:
        received = sub.receive()
        assert (6, 0) == ((answer := sub.nack(received, reason="all bad")).done, answer.stale)
        assert 6 == sub.stats().dead
    dead = setting.store.topic("dead")
    assert [4, 2] == [partition.log_end_offset for partition in dead.partitions]
    assert {"all bad"} == {reason for _, reason, _ in setting.dead("dead")}
    setting.store.close()


def test_one_as_large_as_can_be_lands_with_all_its_headers(setting: Setting) -> None:
    headers = [("own", b"h" * 100)]
    room = next(size for size in range(2_048, 0, -1) if sent(setting, b"x" * size, headers))
    large = b"x" * room
    setting.send(b"a")
    reason = "because " * 50
    with setting.subscribe(retry=ONCE, dead_letter="mail.dead") as sub:
        received = sub.receive()
        assert (2, 0) == ((answer := sub.nack(received, reason=reason)).done, answer.stale)
        assert (0, 2) == (sub.stats().retrying, sub.stats().dead)
        setting.clock.advance(10_000)
        assert 0 == len(sub.receive())
    assert [(large, reason, 1), (b"a", reason, 1)] == setting.dead()
    with setting.store.subscribe("mail.dead", "of-the-dead", retry=ONCE, dead_letter="mail.dead.dead") as sub:
        assert 2 == sub.nack(sub.receive(), reason=reason).done  # now with two origins
    assert [2, 2] == [
        setting.store.redrive("mail.dead.dead").redriven,
        setting.store.redrive("mail.dead", limit=2).redriven,
    ]
    assert [large, b"a"] * 2 == drained(setting.store.topic("mail").partition(0))


def sent(setting: Setting, value: bytes, headers: Headers) -> bool:
    try:
        setting.store.send("mail", value, headers=headers)
    except RecordTooLarge:
        return False
    return True


def test_a_full_disk_is_waited_for(setting: Setting) -> None:
    setting.send(b"a")
    with setting.subscribe(retry=ONCE, dead_letter="mail.dead") as sub:
        [message] = sub.receive()
        setting.calls.fail("append", ".log", StorageFull("no room", path="log"), times=2)
        with pytest.raises(StorageFull), message:
            raise ValueError("bad")
        assert (1, 0) == (sub.stats().leased, sub.stats().dead)
        with pytest.raises(StorageFull):
            sub.receive()
        assert 0 == len(sub.receive())
        assert [(b"a", "ValueError: bad", 1)] == setting.dead()
        assert 1 == sub.stats().dead


def test_what_was_appended_is_found_after_reopening(setting: Setting) -> None:
    setting.send(b"a", b"b")
    sub = setting.subscribe(retry=ONCE, dead_letter="mail.dead")
    received = sub.receive()
    full = patch.object(PartitionSubscription, "finish_dead_letters", side_effect=StorageFull("no room", path="j"))
    with full, pytest.raises(StorageFull):
        sub.nack(received, reason="bad")
    setting.open(killed(setting.disk))
    with setting.subscribe() as sub:
        assert 2 == sub.stats().leased
        sub.receive()
        assert (2, 0) == (sub.stats().dead, sub.stats().leased)
    assert [(b"a", "bad", 1), (b"b", "bad", 1)] == setting.dead()


def test_the_dead_may_die_again(setting: Setting) -> None:
    setting.send(b"a")
    with setting.subscribe(retry=ONCE, dead_letter="dead") as sub:
        sub.nack(sub.receive(), reason="first")
    with setting.store.subscribe("dead", "undertaker", retry=ONCE, dead_letter="dead.dead") as sub:
        sub.nack(sub.receive(), reason="second")
    assert [(b"a", "second", 1)] == setting.dead("dead.dead")
    assert 1 == setting.store.redrive("dead.dead").redriven
    assert [(b"a", "first", 1)] * 2 == setting.dead("dead")


# --- Crashes


class Life:
    """One record fails, another does not, on a disk that marks what was done."""

    def __init__(self, durability: Durability) -> None:
        self.durability = durability

    def __call__(self, files: Files, disk: SimulatedFiles) -> None:
        store = open_small(files, ManualClock(NOW_MS), durability=self.durability)
        try:
            store.create_topic("dead")
            store.create_topic("mail")
            store.send_many("mail", [b"bad", b"good"])
            store.sync()
            sub = store.subscribe("mail", "sender", retry=ONCE, dead_letter="dead")
            bad, good = sub.receive()
            store.send("mail", b"good")  # under `os` a power cut may take it
            disk.mark("received")
            sub.nack(bad)
            disk.mark("dead")
            sub.ack(good)
        finally:
            stop(store)

    def verify(self, disk: SimulatedFiles, marks: Sequence[object], state: CrashState) -> None:
        if "received" not in marks:
            return
        clock = ManualClock(NOW_MS)
        store = open_small(disk, clock, durability=self.durability)
        try:
            dead = store.topic("dead").partition(0)
            assert drained(dead).count(b"bad") == 1 or "dead" not in marks
            with store.subscribe("mail", "sender", retry=ONCE, dead_letter="dead") as sub:
                for message in [*sub.receive(), *sub.receive()]:
                    sub.ack(message) if message.value == b"good" else sub.nack(message)
                assert sub.stats().leased == sub.stats().due == sub.stats().retrying == 0
            store.sync()
            clock.advance(store.config.frontier_lease_ms)  # what is sent after a crash is stamped above the lease
            assert drained(dead).count(b"bad") == 1, "lost, or twice"
        finally:
            stop(store)


def stop(store: Store) -> None:
    if store._sync is not None:
        store._sync.stop()


def explored(life: Life, kill: bool = False, **share: int) -> Explored:
    model = CrashModel(every_byte_max=1, sector_cuts_max=1)
    return explore(life, life.verify, kill=kill, model=model, **share)


@pytest.mark.parametrize(
    ("durability", "kill"), [(ALWAYS, False), (OS, False), (OS, True)], ids=["always", "os", "os, killed"]
)
def test_once_whatever_crashes(durability: Durability, kill: bool) -> None:
    result = explored(Life(durability), kill, of=1 if kill else 4)
    print(result)
    assert not result.failures, str(result)
    assert result.distinct > 20


def without_protocol() -> Any:
    """Append, then ack."""
    return patch.multiple(
        PartitionSubscription,
        intend_dead_letters=lambda subscription, letters, _: tuple(letters),
        finish_dead_letters=lambda subscription, offsets: subscription.ack(offsets).acked,
    )


def not_synced(name: str) -> Any:
    """What has this in its name is not synced, where it should be."""
    sync = Commit.sync
    return patch.object(Commit, "sync", lambda commit: None if name in commit.path.name else sync(commit))


BUGS = {
    "intent not durable": lambda: not_synced("journal-"),
    "log not durable at the intent": lambda: patch.object(Commit, "make_delivered_durable", lambda state: None),
    "append not durable": lambda: not_synced("dead-0"),
    "not looked for": lambda: patch.object(dead_letters, "_origins", lambda *_: iter(())),
    "without the protocol": without_protocol,
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_seen(bug: str) -> None:
    with BUGS[bug]():
        result = first_failure(partial(explored, Life(OS)))
    print(result)
    assert result.failures, f"not seen: {bug}"
