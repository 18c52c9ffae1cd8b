"""Over a server all is as in one process; a token needs the scope, and who asks wrongly hears so."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from afterlog.api import operations
from afterlog.api.operation import Scope
from afterlog.api.operations import SLICE
from afterlog.base.clock import ManualClock
from afterlog.base.errors import (
    InvalidBatch,
    InvalidRequest,
    InvalidTopic,
    NotAllowed,
    ReplicationDiverged,
    ServerFailed,
    UnknownPartition,
    UnknownTopic,
)
from afterlog.base.files import OsFiles
from afterlog.cli.main import cli
from afterlog.cli.status import exposition
from afterlog.client.call import Call, HttpRequest, asking, nothing
from afterlog.client.served_store import ServedStore, connect
from afterlog.replication.cluster import Cluster, ReplicatedTopic
from afterlog.replication.replicator import Replicator
from afterlog.replication.served_cluster import ServedCluster
from afterlog.replication.store_cluster import StoreCluster
from afterlog.server.running import Options, Serving
from afterlog.server.tokens import TokenFile
from afterlog.store.store import Store, open_store
from tests.client.serving import serving
from tests.client.support import FakeServer, ok
from tests.support import NOW_MS, PATIENCE_S, small


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[list[Store]]:
    clock = ManualClock(NOW_MS)
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(open_store(tmp_path / name, small(), clock, None, background=False))
            for name in ("eu", "us")
        ]


@contextlib.contextmanager
def served(store: Store, name: str = "us") -> Iterator[ServedCluster]:
    with serving(store) as address, connected(address) as client:
        yield ServedCluster(client, name)


def connected(address: str, token: str | None = None) -> ServedStore:
    return connect(address, token=token, timeout=PATIENCE_S, ca=None, clock=None)


def settle(*clusters: Cluster) -> Replicator:
    replicator = Replicator(clusters)
    while replicator.step():
        pass
    return replicator


def values(store: Store) -> list[bytes]:
    columns, *_ = store.topic("t").partition(0).columns(0, 10_000, 1 << 30)
    return sorted(message.value or b"" for message in columns.to_messages())


def test_both_ways(stores: list[Store]) -> None:
    here, there = stores
    with served(there) as cluster:
        here.create_topic("t", retention_ms=86_400_000, max_delay_ms=3_600_000)
        here.send_many("t", [b"a", b"b"])
        later = here.send("t", b"later", delay=60)
        settle(StoreCluster(here), cluster)
        assert (86_400_000, 3_600_000) == (
            there.topic("t").settings.retention_ms, there.topic("t").settings.max_delay_ms
        )  # fmt: skip
        there.send("t", b"c")
        here.cancel(later)
        replicator = settle(StoreCluster(here), cluster)
        assert [b"a", b"b", b"c"] == values(here) == values(there)
        assert [] == there.pending("t")
        assert [1, 0] == [link.records for link in replicator.links][::-1]


def test_both_served(stores: list[Store]) -> None:
    here, there = stores
    with served(here, "eu") as eu, served(there) as us:
        there.create_topic("t", delayed=False, partitions=2)
        there.send("t", b"x" * 1_000, partition=1)
        settle(eu, us)
        assert 2 == here.topic("t").partition_count
        assert 1 == here.topic("t").partition(1).log_end_offset
        assert us.topics()["t"].ends == eu.topics()["t"].ends == (0, 1)
        assert us.topics()["t"].origin != eu.topics()["t"].origin


def test_errors_are_those_of_the_store(stores: list[Store]) -> None:
    here, there = stores
    there.create_topic("t")
    with served(there) as us:
        with pytest.raises(UnknownTopic):
            us.upcoming("none", "1f")
        with pytest.raises(UnknownPartition):
            us.slice("t", 3, 0, 1_000)
        with pytest.raises(InvalidTopic, match="another kind"):
            us.prepare("t", ReplicatedTopic(here.create_topic("f", delayed=False).settings, ()))
        here.create_topic("t")
        here.send_many("t", [b"a", b"b"])
        given = StoreCluster(here).slice("t", 0, 0, 1_000)
        assert 2 == us.receive("t", 0, given)
        with pytest.raises(ReplicationDiverged):
            us.receive("t", 0, given._replace(end=1, upto=1, first=0))
        path = operations.TAKE_SLICE.path_of({"partition": 0}, topic="t")
        for body, kind, error in (
            (b"{}", "application/json", InvalidRequest), (b"AFSL", SLICE, InvalidBatch), (b"", SLICE, InvalidRequest),
        ):  # fmt: skip
            with pytest.raises(error):
                us.store.ask(Call(HttpRequest("POST", path, body, kind), nothing))
        assert 2 == there.topic("t").partition(0).log_end_offset


def test_what_is_no_slice() -> None:
    server = FakeServer(ok({"no": "slice"}))
    with pytest.raises(ServerFailed, match="no slice"):
        ServedCluster(server.store()).slice("t", 0, 0, 1_000)


def test_a_token_has_the_scope(stores: list[Store], tmp_path: Path) -> None:
    here, there = stores
    file = TokenFile(OsFiles(), tmp_path / "tokens")
    other = file.add("other", [Scope.MANAGE, Scope.SEND, Scope.RECEIVE, Scope.LOOK], ())
    some = file.add("some", [Scope.REPLICATE], ("t",))
    server = Serving(there, Options(listen=("127.0.0.1", 0), tokens=tmp_path / "tokens"))
    server.start()
    try:
        address = next(each for each in server.addresses if each.startswith("http"))
        here.create_topic("t")
        here.create_topic("u")
        here.send("t", b"a")
        with connected(address, other) as client, pytest.raises(NotAllowed, match="replicate"):
            ServedCluster(client).topics()
        with connected(address, some) as client:
            cluster = ServedCluster(client, "us")
            with pytest.raises(NotAllowed):
                cluster.prepare("u", StoreCluster(here).topics()["u"])
            replicator = Replicator([StoreCluster(here), cluster], topics=["t"])
            while replicator.step():
                pass
            assert ["t"] == [topic.name for topic in there.topics()] == [*cluster.topics()]
            assert [b"a"] == values(there)
    finally:
        server.stop()
        assert server.join(PATIENCE_S)


def test_a_slice_of_many(stores: list[Store]) -> None:
    here, there = stores
    here.create_topic("t")
    here.send_many("t", [b"%06d" % number for number in range(20_000)])
    with served(there) as us:
        settle(StoreCluster(here), us)
    assert np.array_equal(np.array(values(here)), np.array(values(there)))


def test_how_it_stands(stores: list[Store]) -> None:
    here, there = stores
    here.create_topic("t")
    here.send_many("t", [b"a", b"b"])
    with served(there) as us:
        eu = StoreCluster(here, "eu")
        us.store.create_topic("t")
        given = eu.slice("t", 0, 0, 1)
        us.receive("t", 0, given)
        [row] = us.store.ask(asking(operations.REPLICATION_STANDING, dict))["behind"]
        origin = here.topic("t").origin
        assert ("t", 0, origin, 2 - given.upto) == (row["topic"], row["partition"], row["origin"], row["records"])
        with here.subscribe("t", "worker", replicated=True) as reader:
            reader.ack_many(reader.receive(2, timeout=0) or [])
        for _ in range(3):
            eu.tick()
            us.tick()
            settle(eu, us)
        said = exposition(us.store, "topic")
        assert f'afterlog_replication_behind_records{{topic="t",partition="0",origin="{origin}"}} 0' in said
        assert "afterlog_replicated_subscription_snapshots_completed_total" in said
        with us.store.subscribe("t", "worker", replicated=True) as served_reader:
            assert not served_reader.receive(2, timeout=0)
        shown = CliRunner().invoke(cli, ["stats", str(there.path), "t"])
        assert 0 == shown.exit_code, shown.output
        assert ["t-0", origin, "0"] in [line.split()[:3] for line in shown.output.splitlines()]
