from __future__ import annotations

import pytest

from afterlog.base.errors import CorruptFile
from afterlog.base.names import SUBSCRIPTIONS
from afterlog.subscription.ack_set import AckSet
from afterlog.subscription.policy import RetryPolicy
from afterlog.subscription.state import SubscriptionState
from afterlog.subscription.stats import Standings, standing, subscription_names
from tests.subscription.support import Setting
from tests.support import killed


def test_at_rest_it_stands_as_it_stood_open() -> None:
    setting = Setting()
    setting.send(*(b"%d" % number for number in range(9)))
    cancelled = setting.store.send("mail", b"x", delay=60)
    setting.send(b"later", after_ms=60_000)
    setting.store.cancel(cancelled)
    once = RetryPolicy(attempts=1)
    with setting.subscribe() as sub, setting.subscribe(retry=once, dead_letter="dead") as strict:
        received = sub.receive(6)
        sub.ack_many(received[:2])
        sub.nack(received[2], delay=5)
        strict.nack(strict.receive(1))
        sub.release(received[3:])
        expected = sub.shared[0].stats()
    partition = setting.store.topic("mail").partitions[0]
    setting.subscribe("other").close()
    assert ["other", "sender"] == subscription_names(partition.log.context)
    writes = len(setting.disk.operations)
    stats = Standings().closed(partition, "sender")
    assert expected == stats
    assert (1, 2, 0, 4, 2, 1) == (
        stats.pending, stats.due, stats.leased, stats.retrying, stats.acked, stats.dead,
    )  # fmt: skip
    assert 9 == Standings().closed(partition, "other").due
    assert writes == len(setting.disk.operations), "looking writes nothing"
    setting.store.close()


def test_those_that_are_read_and_the_rest() -> None:
    setting = Setting()
    setting.send(b"a", b"b", b"c")
    setting.subscribe("idle").close()
    partition, standings = setting.store.topic("mail").partitions[0], Standings()
    with setting.subscribe("sender") as sub:
        sub.ack(sub.receive(1)[0])
        assert ["idle", "sender"] == [name for name, _ in standings.of(partition)]
        standings.look(setting.store.open_subscriptions())
        found = dict(standings.of(partition))
        assert (3, 2, 1) == (found["idle"].due, found["sender"].due, found["sender"].acked)
        assert ["sender"] == [name for name, _ in standings.of(partition, closed=False)]
    standings.look(())
    assert [] == [*standings.of(partition, closed=False)]
    journal = partition.log.context.folder / SUBSCRIPTIONS / "idle"
    [name] = setting.disk.names(journal)
    setting.disk.unlink(journal / name)
    setting.disk.create(journal / name).append([b"no journal"])
    with pytest.raises(CorruptFile):
        [*Standings().of(partition)]
    assert ["sender"] == [name for name, _ in Standings().of(partition, passed_over=(CorruptFile,))]
    setting.store.close()


def test_what_a_crash_left_leased_is_still_leased() -> None:
    setting = Setting()
    setting.send(b"a", b"b")
    setting.subscribe().receive(1)
    setting.open(killed(setting.disk))
    stats = Standings().closed(setting.store.topic("mail").partitions[0], "sender")
    assert (1, 1, 0) == (stats.leased, stats.due, stats.crashed)
    setting.store.close()


def test_what_retention_removed_is_not_due() -> None:
    setting = Setting()
    setting.store.create_topic("short", retention_bytes=0)
    with setting.store.subscribe("short", "sender") as sub:
        setting.store.send_many("short", [b"x" * 100] * 10)
        sub.ack_many(sub.receive(1))
        setting.store.send_many("short", [b"x" * 100] * 100)
    setting.store.enforce_retention()
    partition = setting.store.topic("short").partitions[0]
    assert partition.log_start > 1
    stats = Standings().closed(partition, "sender")
    assert partition.high_watermark() - partition.log_start == stats.due
    assert partition.log_start - 1 == stats.removed
    setting.store.close()


def test_what_is_pending_behind_any_position_is_counted_without_what_is_cancelled() -> None:
    setting = Setting()
    setting.store.create_topic("mail")
    records = [setting.store.send("mail", b"x", delay=delay) for delay in (10, 20, 30, 40, 50)]
    setting.store.cancel(records[1])  # delivery order: 10, 20, its control record, 30, 40, 50, its control record
    setting.store.cancel(records[4])
    partition = setting.store.topic("mail").partition(0)
    reading, pending = partition.look(), []
    for position in range(8):
        state = SubscriptionState(AckSet(position))
        pending.append(standing(state, partition, reading, reading.high_watermark, reading.upto).pending)
    assert [3, 2, 2, 2, 1, 0, 0, 0] == pending
    setting.store.close()
