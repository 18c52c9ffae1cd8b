"""A relay on real brokers: `make test-kafka`, never part of `make test`. See broker.py."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as kafka
import prometheus_client
import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import admin
from confluent_kafka.cimpl import NewTopic

from afterlog.base.clock import SystemClock
from afterlog.base.errors import RelayStopped
from afterlog.relay import relay_metrics, relay_session
from afterlog.relay.relay import PartitionStatus, Relay
from afterlog.relay.relay_group import group_status
from afterlog.relay.relay_settings import RelaySettings
from afterlog.relay.scheduler import Scheduler
from tests.campaigns import SEED, relayed
from tests.relay.broker import Brokers

WAIT_S = 40.0
LATER = Scheduler("later")


class Cluster:
    """Topics of their own for each test, on one broker."""

    def __init__(self, brokers: Brokers) -> None:
        self.brokers = brokers
        self.bootstrap = brokers.bootstrap
        self.admin = admin.AdminClient({"bootstrap.servers": self.bootstrap})
        self.producer = kafka.Producer({"bootstrap.servers": self.bootstrap, "partitioner": "murmur2_random"})

    def make(self, name: str, partitions: int = 1, **config: str) -> None:
        settings = {each.replace("_", "."): value for each, value in config.items()}
        for done in self.admin.create_topics([NewTopic(name, partitions, config=settings)]).values():
            done.result(30)
        until(lambda: name in self.admin.list_topics(timeout=10).topics)

    def delete(self, *names: str) -> None:
        for done in self.admin.delete_topics([*names]).values():
            done.result(30)
        until(lambda: not {*names} & self.admin.list_topics(timeout=10).topics.keys())

    def send(self, **message: Any) -> None:
        self.producer.produce(**message)

    def flush(self) -> None:
        assert self.producer.flush(30) == 0

    def read(self, topic: str, count: int, wait_s: float = WAIT_S) -> list[kafka.Message]:
        """The first `count`, or what comes in the time."""
        consumer = kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap, "group.id": "reader", "isolation.level": "read_committed",
                "auto.offset.reset": "earliest", "enable.auto.commit": False,
            }
        )  # fmt: skip
        until(lambda: topic in self.admin.list_topics(timeout=10).topics)
        partitions = len(self.admin.list_topics(topic, timeout=10).topics[topic].partitions)
        consumer.assign([kafka.TopicPartition(topic, each, 0) for each in range(partitions)])
        found, until_s = list[kafka.Message](), time.monotonic() + wait_s
        while len(found) < count and time.monotonic() < until_s:
            found += [each for each in consumer.consume(count - len(found), 0.2) if each.error() is None]
        consumer.close()
        return found


class Running:
    """A relay in a thread, for as long as the block."""

    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.relay.run()
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Relay:
        self._thread.start()
        return self.relay

    def __exit__(self, *error: object) -> None:
        self.relay.stop()
        self._thread.join(30)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


def until(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until_s, "it does not come"
        time.sleep(0.05)


@pytest.fixture(scope="session")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with Brokers(tmp_path_factory.mktemp("kafka")) as made:
        yield made


@pytest.fixture
def cluster(brokers: Brokers) -> Iterator[Cluster]:
    made = Cluster(brokers)
    made.make("later", 2)
    made.make("out", 2, message_timestamp_type="LogAppendTime")
    yield made
    made.delete(*(name for name in made.admin.list_topics(timeout=10).topics if not name.startswith("__")))
    for done in made.admin.delete_consumer_groups(["relays"]).values():
        if done.exception(30) is not None:  # still leaving, or never there
            continue


def settings_of(cluster: Cluster, tmp_path: Path, **more: Any) -> RelaySettings:
    given: dict[str, Any] = {
        "bootstrap": cluster.bootstrap, "inputs": ("later",), "group": "relays", "worker": "w0",
        "cache": tmp_path / "cache",
        "kafka": {"consumer.session.timeout.ms": "6000", "consumer.heartbeat.interval.ms": "1000"},
    }  # fmt: skip
    return RelaySettings(**{**given, **more})


def status_of(relay: Relay) -> dict[int, PartitionStatus]:
    return {each.partition: each for each in relay.status() if each.topic == "later"}


def is_live(relay: Relay) -> bool:
    rows = status_of(relay)
    return len(rows) == 2 and all(each.state in ("live", "draining") for each in rows.values())


def test_it_goes_along_as_it_was(cluster: Cluster, tmp_path: Path) -> None:
    with Running(Relay(settings_of(cluster, tmp_path))):
        due_ms = int(time.time() * 1_000) + 1_500
        for number in range(20):
            headers = [("a", b"1"), ("none", None)]
            key = None if number % 4 == 0 else b"k%d" % number
            value = None if number % 3 == 0 else b"%d" % number
            cluster.send(**LATER.send("out", value, key=key, headers=headers, deliver_after=due_ms))
        cluster.flush()
        found = cluster.read("out", 20)
    assert len(found) == 20
    assert all(each.timestamp()[1] >= due_ms for each in found)
    assert all(each.headers() == [("a", b"1"), ("none", None)] for each in found)
    assert {each.key() for each in found} == {None, *(b"k%d" % each for each in range(20) if each % 4)}
    assert sum(each.value() is None for each in found) == 7


def test_cancel_and_another_time(cluster: Cluster, tmp_path: Path) -> None:
    with Running(Relay(settings_of(cluster, tmp_path))) as relay:
        until(lambda: is_live(relay))
        for name in ("cancelled", "moved", "stays"):
            cluster.send(**LATER.send("out", name.encode(), delay=2, schedule_id=name))
        cluster.send(**LATER.send("out", b"moved later", delay=4, schedule_id="moved"))
        cluster.send(**LATER.cancel("cancelled"))
        cluster.send(**LATER.cancel("never there"))
        cluster.flush()
        found = cluster.read("out", 3, 8.0)
        rows = status_of(relay).values()
    assert [b"stays", b"moved later"] == [each.value() for each in found]
    assert (1, 1, 1) == tuple(
        sum(getattr(each, name) for each in rows) for name in ("cancelled", "replaced", "cancels_missed")
    )


def test_by_aiokafka(cluster: Cluster, tmp_path: Path) -> None:
    async def send() -> None:
        async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap) as producer:
            await producer.send_and_wait(**LATER.send("out", b"cancelled", delay=3, schedule_id="a"))
            await producer.send_and_wait(**LATER.send("out", b"stays", key=b"k", delay=1, schedule_id="b"))
            await producer.send_and_wait(**LATER.cancel("a"))

    with Running(Relay(settings_of(cluster, tmp_path))) as relay:
        until(lambda: is_live(relay))
        asyncio.run(send())
        assert [(b"k", b"stays")] == [(each.key(), each.value()) for each in cluster.read("out", 2, 6.0)]
        assert sum(each.cancelled for each in status_of(relay).values()) == 1


class TestDeadLetters:
    def test_with_the_reason(self, cluster: Cluster, tmp_path: Path) -> None:
        cluster.make("small", 1, max_message_bytes="2000")
        with Running(Relay(settings_of(cluster, tmp_path))) as relay:
            cluster.send(topic="later", value=b"no time", key=b"k", headers=[("a", b"1")])
            cluster.send(**LATER.send("nowhere", b"no topic"))
            cluster.send(**LATER.send("later", b"the input"))
            cluster.send(**LATER.send("relays.frontier", b"ours"))
            cluster.send(**LATER.send("small", random.Random(1).randbytes(5_000)))
            cluster.send(**LATER.send("small", b"fits"))
            cluster.send(**LATER.send("out", b"goes on"))
            cluster.flush()
            dead = cluster.read("relays.dead", 5)
            assert [b"goes on"] == [each.value() for each in cluster.read("out", 1)]
            assert [b"fits"] == [each.value() for each in cluster.read("small", 1)]
            assert relay.measures.dead_letters >= 5
        reasons = {
            (each.value() or b"")[:20]: dict(each.headers() or ())["afterlog-dead-letter-reason"].decode()
            for each in dead
        }
        assert "no header" in reasons[b"no time"]
        assert "there is no topic nowhere" in reasons[b"no topic"]
        assert "no topic that may" in reasons[b"the input"]
        assert "no topic that may" in reasons[b"ours"]
        assert len(reasons) == 5
        [first] = [each for each in dead if each.value() == b"no time"]
        assert first.key() == b"k"
        assert dict(first.headers() or ())["afterlog-dead-letter-topic"] == b"later"

    def test_a_target_that_was_deleted_holds_nothing_up(self, cluster: Cluster, tmp_path: Path) -> None:
        cluster.make("gone")
        with Running(Relay(settings_of(cluster, tmp_path))) as relay:
            cluster.send(**LATER.send("gone", b"first"))
            cluster.flush()
            assert len(cluster.read("gone", 1)) == 1
            cluster.delete("gone")
            cluster.send(**LATER.send("gone", b"second"))
            cluster.send(**LATER.send("out", b"goes on"))
            cluster.flush()
            assert [b"goes on"] == [each.value() for each in cluster.read("out", 1)]
            assert [b"second"] == [each.value() for each in cluster.read("relays.dead", 1)]
            assert relay.measures.delivered_total >= 2

    def test_dropped(self, cluster: Cluster, tmp_path: Path) -> None:
        with Running(Relay(settings_of(cluster, tmp_path, on_invalid="drop"))) as relay:
            cluster.send(topic="later", value=b"no time")
            cluster.send(**LATER.send("out", b"goes on"))
            cluster.flush()
            assert len(cluster.read("out", 1)) == 1
            until(lambda: relay.measures.dead_letters == 1)
        assert "relays.dead" not in cluster.admin.list_topics(timeout=10).topics

    def test_a_partition_stops_and_the_others_go_on(self, cluster: Cluster, tmp_path: Path) -> None:
        with Running(Relay(settings_of(cluster, tmp_path, on_invalid="stop"))) as relay:
            cluster.send(topic="later", value=b"no time", partition=0)
            cluster.send(**LATER.send("out", b"behind it"), partition=0)
            cluster.send(**LATER.send("out", b"beside it"), partition=1)
            cluster.flush()
            assert [b"beside it"] == [each.value() for each in cluster.read("out", 2, 5.0)]
            rows = status_of(relay)
            assert ("stopped", "live") == (rows[0].state, rows[1].state)
            assert "offset 0" in rows[0].error
        with Running(Relay(settings_of(cluster, tmp_path, on_invalid="drop"))):
            assert len(cluster.read("out", 2)) == 2


class TestWhatWasCommitted:
    def test_a_cache_is_used_where_it_is_that(self, cluster: Cluster, tmp_path: Path) -> None:
        with Running(Relay(settings_of(cluster, tmp_path))) as relay:
            until(lambda: is_live(relay))
            for number in range(100):
                cluster.send(**LATER.send("out", b"%d" % number, delay=8))
            cluster.flush()
            until(lambda: sum(each.pending for each in status_of(relay).values()) == 100)
        kept = [*(tmp_path / "cache").glob("later-*/cached")]
        assert len(kept) == 2
        with Running(Relay(settings_of(cluster, tmp_path))) as relay:
            until(lambda: is_live(relay))
            assert sum(each.pending for each in status_of(relay).values()) == 100
            assert all(each.rebuilt_s is None for each in status_of(relay).values())
            assert 100 == len({each.value() for each in cluster.read("out", 101, 15.0)})

    def test_without_a_cache_it_is_made_again(self, cluster: Cluster, tmp_path: Path) -> None:
        with Running(Relay(settings_of(cluster, tmp_path))) as relay:
            until(lambda: is_live(relay))
            for number in range(100):
                cluster.send(**LATER.send("out", b"%d" % number, delay=6))
            cluster.flush()
            until(lambda: sum(each.pending for each in status_of(relay).values()) == 100)
        with Running(Relay(settings_of(cluster, tmp_path, cache=tmp_path / "another", worker="w1"))) as relay:
            until(lambda: is_live(relay))
            assert all(each.rebuilt_s is not None for each in status_of(relay).values() if each.pending)
            found = cluster.read("out", 101, 15.0)
        assert (100, 100) == (len(found), len({each.value() for each in found}))

    def test_offsets_that_kafka_forgot_are_in_the_frontier_topic(self, cluster: Cluster, tmp_path: Path) -> None:
        with Running(Relay(settings_of(cluster, tmp_path))):
            for number in range(50):
                cluster.send(**LATER.send("out", b"%d" % number, delay=0 if number % 2 else 10))
            cluster.flush()
            assert len(cluster.read("out", 25)) == 25
        until(lambda: _deleted(cluster, "relays"))  # as Kafka forgets them after a week
        with Running(Relay(settings_of(cluster, tmp_path, cache=None))):
            found = cluster.read("out", 51, 16.0)
        assert (50, 50) == (len(found), len({each.value() for each in found}))

    def test_a_reset_by_a_tool_stops_the_partition(self, cluster: Cluster, tmp_path: Path) -> None:
        with Running(Relay(settings_of(cluster, tmp_path))):
            cluster.send(**LATER.send("out", b"1"), partition=0)
            cluster.flush()
            assert len(cluster.read("out", 1)) == 1
        consumer = kafka.Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "relays"})
        until(lambda: _committed(consumer, kafka.TopicPartition("later", 0, 0)))
        consumer.close()
        with Running(Relay(settings_of(cluster, tmp_path))) as relay:
            until(lambda: status_of(relay).get(0) is not None and status_of(relay)[0].state == "stopped")
            assert "without a frontier" in status_of(relay)[0].error
        [row, _] = group_status(settings_of(cluster, tmp_path), SystemClock())
        assert "without a frontier" in row.error

    def test_a_topic_that_was_made_anew_begins_anew(self, cluster: Cluster, tmp_path: Path) -> None:
        with Running(Relay(settings_of(cluster, tmp_path))):
            for number in range(10):
                cluster.send(**LATER.send("out", b"%d" % number, delay=0 if number % 2 else 3_600))
            cluster.flush()
            assert len(cluster.read("out", 5)) == 5
        cluster.delete("later")
        cluster.make("later", 2)
        cluster.producer = kafka.Producer({"bootstrap.servers": cluster.bootstrap})
        with Running(Relay(settings_of(cluster, tmp_path))):
            cluster.send(**LATER.send("out", b"of the new one"))
            cluster.flush()
            found = cluster.read("out", 7, 8.0)
        assert 6 == len(found)
        assert b"of the new one" in {each.value() for each in found}

    def test_what_kafka_removed_is_told(self, cluster: Cluster, tmp_path: Path) -> None:
        with Running(Relay(settings_of(cluster, tmp_path))) as relay:
            until(lambda: is_live(relay))
            cluster.send(**LATER.send("out", b"lost", delay=3_600), partition=0)
            cluster.send(**LATER.send("out", b"kept", delay=6), partition=0)
            cluster.flush()
            until(lambda: status_of(relay)[0].pending == 2)
        for done in cluster.admin.delete_records([kafka.TopicPartition("later", 0, 1)]).values():
            done.result(30)
        with Running(Relay(settings_of(cluster, tmp_path))) as relay:
            until(lambda: status_of(relay).get(0) is not None and status_of(relay)[0].state == "stopped")
            assert "raise its retention" in status_of(relay)[0].error
        with Running(Relay(settings_of(cluster, tmp_path, on_loss="continue"))):
            assert [b"kept"] == [each.value() for each in cluster.read("out", 1)]


def _deleted(cluster: Cluster, group: str) -> bool:
    [done] = cluster.admin.delete_consumer_groups([group]).values()
    return done.exception(30) is None


def _committed(consumer: kafka.Consumer, place: kafka.TopicPartition) -> bool:
    try:
        consumer.commit(offsets=[place], asynchronous=False)
    except kafka.KafkaException:  # the group has members for a moment yet
        return False
    return True


def test_what_waits_for_long_is_carried(cluster: Cluster, tmp_path: Path) -> None:
    """The front of the input is free; what was carried is delivered, cancelled and replaced from where it is."""
    settings = settings_of(cluster, tmp_path, carry_after_ms=1_500)
    with Running(Relay(settings)) as relay:
        until(lambda: is_live(relay))
        for number in range(30):
            cluster.send(**LATER.send("out", b"%d" % number, key=b"k", headers=[("a", b"1")], delay=12))
        for name in ("cancelled", "moved", "both"):
            cluster.send(**LATER.send("out", name.encode(), delay=12, schedule_id=name))
        cluster.flush()
        until(lambda: sum(each.carried for each in status_of(relay).values()) == 33)
        cluster.send(**LATER.cancel("cancelled"))
        cluster.send(**LATER.send("out", b"moved", delay=7, schedule_id="moved"))
        cluster.flush()
        until(lambda: all(each.lowest_offset == each.next_offset for each in status_of(relay).values()))
        found = cluster.read("out", 33, 25.0)
    values = [each.value() for each in found]
    assert sorted([b"moved", b"both", *(b"%d" % each for each in range(30))]) == sorted(values)
    numbered = [each for each in found if each.key() == b"k"]
    assert all(each.headers() == [("a", b"1")] for each in numbered)


def test_what_goes_soon_is_warned_of(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_session, "WARN_S", 0.5)
    cluster.make("brief", 1, retention_ms="60000")
    old_ms = int(time.time() * 1_000) - 55_000
    cluster.producer.produce(
        "brief", b"", timestamp=old_ms, headers=[("deliver-after", b"4000000000"), ("deliver-to", b"out")]
    )
    cluster.flush()
    with Running(Relay(settings_of(cluster, tmp_path, inputs=("brief",)))) as relay:
        until(lambda: any(each.goes_soon for each in relay.status()))
    assert "is older than four fifths" in caplog.text


def test_inputs_are_trimmed(cluster: Cluster, tmp_path: Path) -> None:
    with Running(Relay(settings_of(cluster, tmp_path, trim_inputs=True))):
        for _ in range(10):
            cluster.send(**LATER.send("out", b""), partition=0)
        cluster.send(**LATER.send("out", b"waits", delay=3_600), partition=0)
        cluster.flush()
        consumer = kafka.Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "x"})
        until(lambda: consumer.get_watermark_offsets(kafka.TopicPartition("later", 0))[0] == 10)
        consumer.close()


def test_two_workers_share_and_one_goes_on_alone(cluster: Cluster, tmp_path: Path) -> None:
    first, second = (Relay(settings_of(cluster, tmp_path / each, worker=each)) for each in ("w0", "w1"))
    with Running(first):
        until(lambda: len(first.status()) == 2)
        with Running(second):
            until(lambda: len(first.status()) == 1 and len(second.status()) == 1)
            for number in range(200):
                cluster.send(**LATER.send("out", b"%d" % number, delay=number % 4))
            cluster.flush()
        until(lambda: len(first.status()) == 2)
        found = cluster.read("out", 201, 12.0)
    assert (200, 200) == (len(found), len({each.value() for each in found}))


def test_the_group_protocol_of_kafka_4(cluster: Cluster, tmp_path: Path) -> None:
    settings = settings_of(cluster, tmp_path, kafka={"consumer.group.protocol": "consumer"})
    with Running(Relay(settings)) as relay:
        until(lambda: is_live(relay))
        cluster.send(**LATER.send("out", b"1", delay=1))
        cluster.flush()
        assert len(cluster.read("out", 1)) == 1


def test_an_input_that_is_not_there(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(RelayStopped, match="no topic nowhere"):
        Relay(settings_of(cluster, tmp_path, inputs=("nowhere",))).run()


def test_the_status_of_a_group_that_never_ran(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(RelayStopped, match="it has no relays"):
        group_status(settings_of(cluster, tmp_path), SystemClock())


def test_metrics_and_status(cluster: Cluster, tmp_path: Path) -> None:
    registry = prometheus_client.CollectorRegistry()
    with Running(Relay(settings_of(cluster, tmp_path))) as relay:
        relay_metrics.register(relay, registry)
        until(lambda: is_live(relay))
        cluster.send(**LATER.send("out", b"waits", delay=3_600), partition=0)
        cluster.send(**LATER.send("out", b"now"), partition=1)
        cluster.flush()
        until(lambda: registry.get_sample_value("afterlog_relay_pending", {"topic": "later", "partition": "0"}) == 1)
        until(lambda: relay.measures.delivered_total == 1)
        text = prometheus_client.generate_latest(registry).decode()
    assert 'afterlog_relay_state{partition="0",state="live",topic="later"} 1.0' in text
    assert "afterlog_relay_lateness_ms_count 1.0" in text
    told = subprocess.run(
        [sys.executable, "-m", "afterlog", "relay", "status", "--bootstrap", cluster.bootstrap, "--inputs", "later",
         "--group", "relays", "--json"], capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    rows = [json.loads(line) for line in told.stdout.splitlines()]
    assert [0, 1] == [each["partition"] for each in rows]
    assert (1, 0) == (rows[0]["span"], rows[1]["span"])
    assert rows[0]["lowest_ms"] is not None
    assert rows[0]["frontier_ms"] is not None


@pytest.mark.parametrize(
    ("brokers", "burst", "options"), [(1, 0, ()), (3, 0, ()), (1, 4_000, ()), (1, 0, ("--carry-after", "2s"))]
)
def test_nothing_is_lost_doubled_or_early_whatever_strikes(
    tmp_path: Path, brokers: int, burst: int, options: tuple[str, ...]
) -> None:
    told = relayed.run(
        tmp_path, seed=SEED, records=12_000, rate=1_000, faults=8, brokers=brokers, burst=burst, batch=1_000,
        options=options,
    )  # fmt: skip
    assert told["acknowledged"] >= 12_000
    assert told["lost"] == told["doubled"] == told["early"] == 0
