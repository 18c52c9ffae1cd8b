"""A subscription that several clusters have: what is acked in one is acked in all; the rounds of PIP-33."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from afterlog.base.config import ALWAYS
from afterlog.log.scan import steps
from afterlog.log.segment import SealedSegment
from afterlog.records.control import ControlType, read_controls
from afterlog.replication.link import Link
from afterlog.replication.store_cluster import StoreCluster
from afterlog.store.store import Store
from tests.campaigns.simulated_disk import SimulatedFiles, Sync
from tests.replication.simulation import SteadyClock
from tests.support import NOW_MS, killed, open_small

pytestmark = pytest.mark.usefixtures("quiet")


class Regions:
    """Clusters with one topic, and a worker in some of them."""

    def __init__(self, count: int = 2) -> None:
        self.clock = SteadyClock(NOW_MS)
        self.disks = [SimulatedFiles() for _ in range(count)]
        self.stores = [self._opened(disk) for disk in self.disks]
        self.stores[0].create_topic("t")
        self.clusters = [self._cluster(store, number) for number, store in enumerate(self.stores)]
        self.move()

    def _opened(self, disk: SimulatedFiles) -> Store:
        return open_small(disk, self.clock, durability=ALWAYS)

    def _cluster(self, store: Store, number: int) -> StoreCluster:
        made = iter(range(1_000_000))
        return StoreCluster(store, f"c{number}", lambda: f"s{number}-{next(made)}")

    def move(self) -> None:
        """All that is in the logs goes to all."""
        links = [Link(one, other, self.clock) for one in self.clusters for other in self.clusters if one is not other]
        while sum(link.step() for link in links):
            pass
        assert not any(link.failed for link in links), [link.failed for link in links]

    def second(self) -> None:
        """A tick, and what it brings about."""
        self.clock.advance(1_000)
        for cluster in self.clusters:
            cluster.tick()
        for _ in range(5):
            self.move()

    def reopen(self, number: int) -> None:
        self.disks[number] = killed(self.disks[number])
        self.stores[number] = self._opened(self.disks[number])
        self.clusters[number] = self._cluster(self.stores[number], number)

    def reader(self, number: int, **options: Any) -> Any:
        return self.stores[number].subscribe("t", "worker", replicated=True, **options)

    def got(self, number: int) -> list[bytes]:
        """What a reader there gets now, and gives back."""
        with self.reader(number) as reader:
            received = reader.receive(1_000, timeout=0) or []
            values = sorted(message.value for message in received)
            for message in received:
                reader.release(message)
            return values

    def work(self, number: int, *values: bytes) -> None:
        """Ack these there, alone."""
        with self.reader(number) as reader:
            for message in reader.receive(1_000, timeout=0) or ():
                reader.ack(message) if message.value in values else reader.release(message)

    def markers(self, number: int) -> list[str]:
        """What it has told, in order."""
        found, log = list[str](), self.stores[number].topic("t").log(0)
        for segment in log.version.segments:
            stop = segment.size if isinstance(segment, SealedSegment) else log.version.written.position
            for step in steps(segment.view(0, stop), 0, stop):
                controls = read_controls(step.piece, step.found.moved(-step.start))
                places = step.found.offset[controls.row]
                own = log.version.origins.origins(places)[0] < 0 if log.version.origins else np.ones(len(places), bool)
                found += [ControlType(kind).name for kind in controls.type[own].tolist()]
        return found


def test_what_is_acked_in_one_does_not_come_in_another() -> None:
    each = Regions()
    each.stores[0].send_many("t", [b"a", b"b", b"c"])
    each.stores[1].send("t", b"d")
    each.move()
    each.work(0, b"a", b"c", b"d")
    assert [b"a", b"b", b"c", b"d"] == each.got(1)
    each.second()
    assert [b"b"] == each.got(1)
    each.work(1, b"b")
    each.second()
    assert [] == each.got(0)
    for store in each.stores:
        store.check()


def test_where_nobody_has_subscribed_it_is_made() -> None:
    each = Regions()
    each.stores[0].send_many("t", [b"a", b"b"])
    each.work(0, b"a")
    each.second()
    assert ["worker"] == each.stores[1].subscriptions("t")
    each.reopen(1)
    assert ["worker"] == each.stores[1].replicated_subscriptions("t")
    assert [b"b"] == each.got(1)


def test_an_ack_that_is_there_before_its_record() -> None:
    each = Regions(3)
    each.stores[2].send("t", b"a")
    Link(each.clusters[2], each.clusters[0], each.clock).step()
    each.work(0, b"a")
    each.clock.advance(1_000)
    each.clusters[0].tick()
    Link(each.clusters[0], each.clusters[1], each.clock).step()
    each.reopen(1)
    Link(each.clusters[2], each.clusters[1], each.clock).step()
    assert [] == each.got(1)
    each.stores[1].check()


def test_what_is_not_due_here_yet() -> None:
    each = Regions()
    each.stores[0].send("t", b"a", delay=10)
    each.move()
    behind = SteadyClock(NOW_MS)
    each.clock.advance(10_000)
    each.work(0, b"a")
    each.clusters[0].tick()
    each.stores[1] = open_small(killed(each.disks[1]), behind, durability=ALWAYS)
    each.clusters[1] = StoreCluster(each.stores[1], "c1")
    each.move()
    behind.advance(20_000)
    assert [] == each.got(1)


def test_what_is_leased_elsewhere_is_done_with() -> None:
    each = Regions()
    each.stores[0].send_many("t", [b"a", b"b"])
    each.move()
    with each.reader(1) as reader:
        received = reader.receive(10, timeout=0)
        assert 2 == len(received)
        each.work(0, b"a")
        each.second()
        assert (1, 1) == (reader.ack(received[0]).already, reader.ack(received[1]).acked)


def test_what_is_acked_elsewhere_goes_where_nobody_receives() -> None:
    each = Regions()
    for store in each.stores:
        store.alter_topic("t", retention_by_subscriptions=True)
    each.stores[0].send_many("t", [b"a", b"b", b"c"])
    each.stores[0].cancel(each.stores[0].send("t", b"cancelled", delay=1))
    each.stores[0].send("t", b"d")
    each.work(0, b"a", b"b", b"d")
    each.second()
    each.second()
    [part] = each.stores[1].open_subscriptions()
    assert b"c" == part.partition.columns(part.mark_delete(), 1, 1_000)[0].to_messages()[0].value
    each.work(0, b"c")
    each.second()
    each.second()
    assert not len(part.partition.columns(part.mark_delete(), 100, 1_000)[0])
    each.stores[1].check()
    log = part.partition.log
    log.roll()
    each.clock.advance(1_000)
    each.clusters[1].tick()
    each.stores[1].enforce_retention()
    assert log.log_start_offset > 4


def test_behind_a_restart_all_is_told_again() -> None:
    each = Regions()
    each.stores[0].send_many("t", [b"a", b"b", b"c"])
    each.move()
    each.work(0, b"a", b"c")
    each.reopen(0)
    each.second()
    assert [b"b"] == each.got(1)


@pytest.mark.parametrize("count", [2, 3])
def test_the_markers_of_a_round(count: int) -> None:
    each = Regions(count)
    each.stores[0].send_many("t", [b"a", b"b"])
    each.work(0, b"a", b"b")
    each.second()
    each.second()
    each.second()
    said = [kind for kind in each.markers(0) if kind != "ACKED"]
    rounds = ["SNAPSHOT_REQUEST"] * (1 if count == 2 else 2)
    assert [*rounds, "SNAPSHOT", "SUBSCRIPTION_UPDATE"] == [kind for kind in said if kind != "SNAPSHOT_RESPONSE"]
    [(_, _, counts)] = each.clusters[0].subscriptions.counts()
    assert (1, 1, 0) == (counts.started, counts.completed, counts.timed_out)
    markers = [each.markers(number) for number in range(count)]
    each.second()
    assert markers == [each.markers(number) for number in range(count)], "nothing new: nothing is told"


def test_a_cluster_that_does_not_answer() -> None:
    each = Regions(3)
    each.stores[0].send("t", b"a")
    each.work(0, b"a")
    away = each.clusters.pop()
    for _ in range(35):
        each.second()
    [(_, _, counts)] = each.clusters[0].subscriptions.counts()
    assert (counts.completed, counts.timed_out) == (1, 1), "the next round does not wait for it"
    assert [] == each.got(1), "the acks themselves need no answer"
    each.stores[0].send("t", b"b")
    each.work(0, b"b")
    each.second()
    each.second()
    assert (counts.completed, counts.timed_out, counts.updates) == (2, 1, 2)
    assert ["SNAPSHOT_REQUEST", "SNAPSHOT", "SUBSCRIPTION_UPDATE"] == each.markers(0)[-3:], "a round of one request"
    each.clusters.append(away)
    for _ in range(3):
        each.second()
    each.stores[0].send("t", b"c")
    each.work(0, b"c")
    each.second()
    assert ["SNAPSHOT_REQUEST", "SNAPSHOT_REQUEST", "SNAPSHOT"] == each.markers(0)[-3:], "it is asked again"
    assert (counts.completed, counts.timed_out) == (3, 1)


def test_snapshots_are_nobody_elses() -> None:
    each = Regions()
    each.stores[0].send("t", b"a")
    each.work(0, b"a")
    each.second()
    assert 1 == each.markers(0).count("SNAPSHOT")
    log = each.stores[1].topic("t").log(0)
    [segment] = log.version.segments
    stop = log.version.written.position
    kinds = [
        ControlType(kind)
        for step in steps(segment.view(0, stop), 0, stop)
        for kind in read_controls(step.piece, step.found.moved(-step.start)).type.tolist()
    ]
    assert ControlType.SNAPSHOT_REQUEST in kinds
    assert ControlType.SNAPSHOT not in kinds


def test_snapshots_of_an_earlier_life() -> None:
    """Nobody acks behind the snapshot, whose position is told all the same once what came before it is acked."""
    each = Regions()
    each.stores[0].send_many("t", [b"a", b"b"])
    each.work(0, b"a")
    each.second()
    assert (1, 0) == (each.markers(0).count("SNAPSHOT"), each.markers(0).count("SUBSCRIPTION_UPDATE"))
    each.reopen(0)
    each.work(0, b"b")
    each.clusters[0].tick()
    assert ["ACKED", "SUBSCRIPTION_UPDATE", "SNAPSHOT_REQUEST"] == each.markers(0)[-3:]


def test_one_that_is_not_replicated_any_more() -> None:
    each = Regions()
    each.stores[0].send_many("t", [b"a", b"b", b"c"])
    each.work(0, b"a")
    each.second()
    assert [b"b", b"c"] == each.got(1)
    with each.stores[1].subscribe("t", "worker", replicated=False):
        pass
    each.work(0, b"b")
    each.second()
    with each.stores[1].subscribe("t", "worker") as reader:  # as it is
        assert [b"b", b"c"] == [message.value for message in reader.receive(9, timeout=0)]
    each.reopen(1)
    each.second()
    assert [] == each.stores[1].replicated_subscriptions("t")
    told = each.markers(1)
    with each.stores[1].subscribe("t", "worker") as reader:
        reader.ack_many(reader.receive(9, timeout=0))
    each.second()
    assert told == each.markers(1), "and tells nothing"
    assert [b"c"] == each.got(0)


def test_one_that_is_not_replicated_here() -> None:
    each = Regions()
    each.stores[1].subscribe("t", "worker", replicated=False).close()
    each.stores[0].send("t", b"a")
    each.work(0, b"a")
    each.second()
    assert [] == each.stores[1].replicated_subscriptions("t")
    assert [b"a"] == each.got(1), "which says that it is, from now on"
    each.reopen(0)
    each.second()
    assert [] == each.got(1)


def test_without_a_replicated_subscription_nothing_is_told() -> None:
    each = Regions()
    each.stores[0].send_many("t", [b"a", b"b"])
    with each.stores[0].subscribe("t", "other") as reader:
        reader.ack_many(reader.receive(1, timeout=0))
    each.second()
    assert ([], []) == (each.markers(0), each.markers(1))
    assert [] == each.stores[1].subscriptions("t")


def test_the_markers_of_a_tick_share_a_sync() -> None:
    """Twenty subscriptions that all have something to tell."""
    each = Regions()
    store, disk = each.stores[0], each.disks[0]
    store.send("t", b"a")
    readers = [store.subscribe("t", f"s{number}", replicated=True) for number in range(20)]
    for reader in readers:
        [message] = reader.receive()
        reader.ack(message)
    told, begin = len(each.markers(0)), len(disk.operations)
    each.clusters[0].tick()
    assert len(each.markers(0)) - told >= 20
    log = store.topic("t").log(0).version.active.path
    assert 1 == sum(isinstance(made, Sync) and made.path == str(log) for made in disk.operations[begin:])
    for reader in readers:
        reader.close()
