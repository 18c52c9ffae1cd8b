"""Clusters are alike in the end: two or three of them, with one away, made anew, put back, or of another kind."""

from __future__ import annotations

from typing import Any

import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.config import ALWAYS
from afterlog.base.errors import InvalidArgument, InvalidTopic, ReplicationDiverged, ServerUnavailable
from afterlog.records.origin_slice import OriginSlice
from afterlog.replication.link import Lag, Link
from afterlog.replication.replicator import Replicator
from afterlog.replication.store_cluster import StoreCluster
from afterlog.store.store import Store
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, killed, open_small

pytestmark = pytest.mark.usefixtures("quiet")


class SteadyClock(ManualClock):
    """What is measured goes on with it, too."""

    def monotonic_s(self) -> float:
        return self.now_ms() / 1_000


class Away(StoreCluster):
    """A cluster that may not answer."""

    away = False
    asked = 0

    def topics(self) -> Any:
        self.asked += 1
        if self.away:
            raise ServerUnavailable("nobody answers")
        return super().topics()

    def receive(self, topic: str, partition: int, given: OriginSlice) -> int:
        if self.away:
            raise ServerUnavailable("nobody answers")
        return super().receive(topic, partition, given)


class Clusters:
    def __init__(self, count: int) -> None:
        self.clock = SteadyClock(NOW_MS)
        self.disks = [SimulatedFiles() for _ in range(count)]
        self.stores = [self._opened(disk) for disk in self.disks]
        self.clusters = [Away(store, f"c{number}") for number, store in enumerate(self.stores)]
        self.replicator = Replicator(self.clusters, clock=self.clock, share=lambda: 0.0)

    def _opened(self, disk: SimulatedFiles) -> Store:
        return open_small(disk, self.clock, durability=ALWAYS)

    def settle(self) -> None:
        while self.replicator.step():
            pass

    def values(self, number: int, topic: str = "t") -> list[list[bytes]]:
        """By partition, what is due."""
        found = list[list[bytes]]()
        for partition in self.stores[number].topic(topic).partitions:
            columns, *_ = partition.columns(0, 10_000, 1 << 30)
            found.append([message.value or b"" for message in columns.to_messages()])
        return found

    def reopen(self, number: int, disk: SimulatedFiles | None = None) -> None:
        self.disks[number] = disk or killed(self.disks[number])
        self.stores[number] = self.clusters[number].store = self._opened(self.disks[number])


@pytest.mark.parametrize("count", [2, 3])
def test_all_have_what_anybody_sent(count: int) -> None:
    each = Clusters(count)
    each.stores[0].create_topic("t", partitions=2, retention_ms=86_400_000)
    each.settle()
    for number, store in enumerate(each.stores):
        assert (2, 86_400_000) == (store.topic("t").partition_count, store.topic("t").settings.retention_ms)
        for row in range(10):
            store.send("t", f"{number}-{row}".encode(), partition=row % 2)
    each.settle()
    expected = [sorted(f"{n}-{row}".encode() for n in range(count) for row in range(p, 10, 2)) for p in range(2)]
    for number in range(count):
        assert expected == [sorted(values) for values in each.values(number)]
    moved = [link.records for link in each.replicator.links]
    assert [10] * count * (count - 1) == moved
    each.settle()
    assert moved == [link.records for link in each.replicator.links], "nothing goes round"


def test_partitions_that_were_added() -> None:
    each = Clusters(2)
    each.stores[0].create_topic("t")
    each.settle()
    each.stores[1].alter_topic("t", partitions=3)
    each.stores[1].send("t", b"there", partition=2)
    each.settle()
    each.settle()
    assert [[], [], [b"there"]] == each.values(0)


def test_fifo_topics_too() -> None:
    each = Clusters(2)
    each.stores[0].create_topic("t", delayed=False)
    each.stores[0].send_many("t", [b"a", b"b"])
    each.settle()
    each.stores[1].send("t", b"c")
    each.settle()
    assert [[b"a", b"b", b"c"]] == each.values(0) == each.values(1)


def test_chosen_topics_alone() -> None:
    each = Clusters(2)
    for name in ("t", "u"):
        each.stores[0].create_topic(name)
    link = Link(each.clusters[0], each.clusters[1], each.clock, topics=["u"])
    assert not link.step()
    assert ["u"] == [topic.name for topic in each.stores[1].topics()]


def test_one_that_is_away_holds_up_no_other() -> None:
    each = Clusters(3)
    each.stores[0].create_topic("t")
    each.settle()
    each.clusters[2].away = True
    each.stores[0].send("t", b"a")
    for run in each.replicator._runs:
        run.turn()
    assert [[b"a"]] == each.values(1)
    asked = each.clusters[2].asked
    for run in each.replicator._runs:
        run.turn()
    assert asked == each.clusters[2].asked, "it is left alone for a while"
    each.clusters[2].away = False
    each.clock.advance(200)
    for run in each.replicator._runs:
        run.turn()
    assert [[b"a"]] == each.values(2)


def test_lag() -> None:
    each = Clusters(2)
    each.stores[0].create_topic("t")
    link = Link(each.clusters[0], each.clusters[1], each.clock, slice_bytes=1)
    link.step()
    for _ in range(5):
        each.stores[0].send("t", b"x")
    assert link.step()
    assert [Lag("t", 0, 4, 0.0)] == link.lag()
    each.clock.advance(2_000)
    assert link.step()
    assert [Lag("t", 0, 3, 2.0)] == link.lag()
    while link.step():
        pass
    assert [Lag("t", 0, 0, 0.0)] == link.lag()


def test_a_topic_that_cannot_go_on_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    each = Clusters(2)
    each.stores[0].create_topic("other")
    each.stores[1].create_topic("other", delayed=False)
    each.stores[0].create_topic("t")
    each.stores[0].send("t", b"a")
    link = each.replicator.links[0]
    link.step()
    link.step()
    assert [InvalidTopic] == [type(error) for error in link.failed.values()]
    assert 1 == sum("another kind" in record.getMessage() for record in caplog.records)
    assert [[b"a"]] == each.values(1)


def test_a_store_that_was_put_back() -> None:
    each = Clusters(2)
    each.stores[0].create_topic("t")
    each.stores[0].send("t", b"a")
    earlier, again = killed(each.disks[0]), killed(each.disks[0])
    each.stores[0].send("t", b"b")
    each.settle()
    each.reopen(0, earlier)
    link = Link(each.clusters[0], each.clusters[1], each.clock)
    each.stores[0].send("t", b"other")
    link.step()
    assert {} == link.failed, "as far as it can be told: the ends agree"
    each.reopen(0, again)
    link = Link(each.clusters[0], each.clusters[1], each.clock)
    link.step()
    assert [ReplicationDiverged] == [type(error) for error in link.failed.values()]


def test_a_topic_made_anew_begins_anew() -> None:
    each = Clusters(2)
    each.stores[0].create_topic("t")
    each.stores[0].send("t", b"a")
    each.settle()
    each.stores[0].delete_topic("t")
    each.stores[0].create_topic("t")
    each.stores[0].send("t", b"b")
    each.settle()
    assert [[b"a", b"b"]] == each.values(1)
    assert [[b"b"]] == each.values(0)


def test_behind_a_crash_of_either() -> None:
    each = Clusters(2)
    each.stores[0].create_topic("t")
    for row in range(5):
        each.stores[0].send("t", b"%d" % row)
        each.settle()
        each.reopen(row % 2)
        each.replicator = Replicator(each.clusters, clock=each.clock)
    each.settle()
    assert [[b"%d" % row for row in range(5)]] == each.values(0) == each.values(1)


def test_threads() -> None:
    each = Clusters(2)
    each.stores[0].create_topic("t")
    each.stores[0].send("t", b"a")
    with each.replicator:
        while each.stores[1].topics() == [] or each.values(1) != [[b"a"]]:
            each.clock.advance(100)
    each.replicator.stop()


def test_clusters_that_are_none() -> None:
    each = Clusters(2)
    for clusters in ([], each.clusters[:1], [each.clusters[0]] * 2):
        with pytest.raises(InvalidArgument, match="two clusters"):
            Replicator(clusters)
