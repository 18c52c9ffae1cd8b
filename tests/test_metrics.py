"""Metrics: the documented names and no others, and their values after a scripted day."""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

import afterlog
from afterlog import metrics
from afterlog.base.errors import InvalidArgument, RemoteUnavailable, StorageFull
from afterlog.base.names import CHECKPOINTS
from afterlog.fetch.partition import Partition, PartitionCounts
from afterlog.log.recovery_point import BEHIND
from afterlog.store.store import open_store
from afterlog.subscription.policy import RetryPolicy
from afterlog.tier.directory_store import DirectoryStore
from tests.campaigns.simulated_disk import Image, SimulatedFiles
from tests.cli.test_main import run
from tests.support import NOW_MS, PATH, Calls, HeldFiles, SteppedClock, small
from tests.tier.faulty_remote_store import Fault, FaultyRemoteStore
from tests.tier.support import REMOTE

DOCUMENT = (Path(__file__).parent.parent / "docs" / "metrics.md").read_text("utf-8").partition("## A relay")[0]
ROW = re.compile(r"^\| `(afterlog_\w+)` \| (\w+) \| ([\w, ]+) \| ", re.MULTILINE)
INDEX = "afterlog_delayed_message_index_"
MAIL = {"topic": "mail", "partition": "0"}

Described = set[tuple[str, str, tuple[str, ...]]]


class Setting:
    def __init__(self) -> None:
        self.calls, self.clock = Calls(), SteppedClock(NOW_MS)
        disk = self.disk = SimulatedFiles(Image([str(REMOTE)]))
        self.remote = FaultyRemoteStore(DirectoryStore(disk, REMOTE), lambda operation, call: self.fault)
        self.fault: Fault | None = None
        files, config = HeldFiles(disk, self.calls), small(max_num_buckets=1)
        self.store = open_store(PATH, config, self.clock, files, self.remote, background=False)
        self.mail: Partition = self.store.create_topic("mail").partition(0)
        self.store.create_topic("ticks", delayed=False)
        self.store.create_topic("far", remote_storage_enable=True, local_retention_ms=0, retention_ms=10_000)
        self.registry = CollectorRegistry()
        metrics.register(self.store, self.registry, detail="partition")

    def send(self, *after_ms: int | None) -> None:
        for ms in after_ms:
            self.store.send("mail", b"v", deliver_after=None if ms is None else NOW_MS + ms)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, {**MAIL, **labels})

    def index(self, name: str, **labels: str) -> float | None:
        return self.value(INDEX + name, **labels)

    def operations(self, kind: str) -> list[float | None]:
        return [self.index("bucket_op_count_total", type=kind, state=state) for state in ("succeed", "failed", "all")]

    def remote_counts(self, *names: str, **labels: str) -> list[float | None]:
        return [self.registry.get_sample_value(f"afterlog_remote_{name}", labels) for name in names]

    def subscribed(self) -> list[float | None]:
        states = ("pending", "due", "leased", "retrying", "dead")
        return [self.value(f"afterlog_subscription_{state}", subscription="s") for state in states]


@pytest.fixture
def setting() -> Iterator[Setting]:
    setting = Setting()
    yield setting
    setting.store.close()


def described(registry: Collector) -> Described:
    """(name, type, labels) of what is there, from the text that Prometheus reads."""
    found: dict[str, tuple[str, set[str]]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        _, labels = found[name] = family.type, set()
        for sample in family.samples:
            labels |= set(sample.labels) - {"le"}
    return {(name, kind, tuple(sorted(labels))) for name, (kind, labels) in found.items()}


class TestNames:
    def test_every_documented_metric_is_told_and_no_other(self, setting: Setting) -> None:
        setting.send(1_000)
        with setting.store.subscribe("mail", "s"):
            documented = {
                (name, kind, () if labels == "none" else tuple(sorted(labels.split(", "))))
                for name, kind, labels in ROW.findall(DOCUMENT)
            }
            assert len(documented) == DOCUMENT.count("| `afterlog_") > 15
            assert documented == described(setting.registry)

    def test_those_of_the_proposal(self) -> None:
        names = {name.removeprefix("afterlog_").removesuffix("_total") for name, _, _ in ROW.findall(DOCUMENT)}
        assert {
            "delayed_message_index_bucket", "delayed_message_index_loaded", "delayed_message_index_bucket_op_count",
            "delayed_message_index_bucket_snapshot_size_bytes", "delayed_message_index_bucket_op_latency_ms",
        } == {name for name in names if name.startswith("delayed_message_index")}  # fmt: skip

    def test_openmetrics(self, setting: Setting) -> None:
        setting.send(-1, 1_000)
        text = openmetrics.generate_latest(setting.registry).decode()
        families = [*openmetrics_parser.text_string_to_metric_families(text)]
        assert len(ROW.findall(DOCUMENT)) == len(families)


class TestValues:
    def test_the_schedule(self, setting: Setting) -> None:
        setting.send(None, 10, 20, 3_000, 4_000)
        setting.mail.cancel(np.array([4]))
        setting.clock.advance(25)
        names = ("pending", "due", "high_watermark", "next_due_ms", "log_end_offset")
        assert [1, 3, 3, NOW_MS + 3_000, 6] == [setting.value(f"afterlog_{name}") for name in names]
        setting.clock.advance(5_000)
        assert [0, 4, 6, None, 6] == [setting.value(f"afterlog_{name}") for name in names]

    def test_a_fifo_topic_has_the_schedule_of_a_log(self, setting: Setting) -> None:
        setting.store.send("ticks", b"v")
        ticks = {"topic": "ticks"}
        assert [0, 1, 1] == [
            setting.value(f"afterlog_{each}", **ticks) for each in ("pending", "due", "log_end_offset")
        ]
        assert [None, None] == [
            setting.index("bucket_total", **ticks),
            setting.value("afterlog_clamped_records_total", **ticks),
        ]

    def test_clamped_records_asked_for_an_instant_that_had_passed(self, setting: Setting) -> None:
        setting.send(None, -1, 0, 5)
        assert 1 == setting.value("afterlog_clamped_records_total")
        asked = NOW_MS + np.array([-3, -2, 0, 4, -1])
        setting.store.send_many("mail", [b"v"] * 5, deliver_after=asked)
        assert 4 == setting.value("afterlog_clamped_records_total")
        setting.store.send_many("mail", [b"v" * 1_000] * 5)
        batch = afterlog.encode_batch([afterlog.Record(value=b"v", timestamp=NOW_MS)] * 3)
        setting.mail.append(batch, deliver_after=NOW_MS - 10)
        assert 7 == setting.value("afterlog_clamped_records_total")

    def test_late_checkpoints_of_appends_that_nobody_relieved(self, setting: Setting) -> None:
        setting.send(*range(8))  # without a thread each append makes its own
        assert 0 == setting.value("afterlog_late_checkpoints_total")
        object.__setattr__(setting.mail.log.context, "checkpoint_queue", lambda path, due: None)
        setting.send(*range(8 * BEHIND))
        assert 1 == setting.value("afterlog_late_checkpoints_total")

    def test_what_holds_the_disk(self, setting: Setting) -> None:
        setting.store.create_topic(
            "work",
            retention_by_subscriptions=True,
            backlog_quota_ms=5_000,
            backlog_quota_policy="consumer_backlog_eviction",
        )

        def held(by: str) -> float | None:
            return setting.value("afterlog_held_bytes", topic="work", by=by)

        work = setting.store.topic("work").partition(0).log
        setting.store.send("work", b"v")
        assert (0, work.version.written.position) == (held("backlog"), held("active"))
        work.roll()
        assert (work.sealed[0].size, 0) == (held("backlog"), held("active"))
        with setting.store.consumer("work", group="g") as consumer:
            assert 1 == len(consumer.poll())
        assert (0, work.sealed[0].size) == (held("backlog"), held("removable"))
        setting.store.send_many("work", [b"v"] * 3)
        setting.clock.advance(10_000)
        assert 0 == setting.value("afterlog_evicted_records_total", topic="work")
        setting.store.enforce_retention()
        assert 3 == setting.value("afterlog_evicted_records_total", topic="work")

    def test_lateness(self, setting: Setting) -> None:
        setting.send(10, 20)
        setting.clock.advance(25)
        with setting.store.consumer("mail", group="g") as consumer:
            assert 2 == len(consumer.poll())
        edges = ("2.0", "5.0", "10.0", "20.0", "+Inf")
        assert [0, 1, 1, 2, 2] == [setting.value("afterlog_lateness_ms_bucket", le=edge) for edge in edges]
        assert setting.value("afterlog_lateness_ms_sum") is None

    def test_buckets(self, setting: Setting) -> None:
        assert [1, 0, 0] == [setting.index(each) for each in ("bucket_total", "bucket_snapshot_size_bytes", "loaded")]
        setting.send(*range(1_000, 1_017))
        assert [3, 1] == [setting.index("bucket_total"), setting.index("loaded")]
        size = sum(run.identity.size for run in setting.mail.log.index.runs)
        assert [size, size] == [setting.index("bucket_snapshot_size_bytes"), setting.mail.index_bytes]
        assert [[2, 0, 2], [0, 0, 0], [0, 0, 0]] == [setting.operations(kind) for kind in ("create", "load", "merge")]
        assert 1 == setting.mail.log.merge_buckets()
        assert [2, 1] == [setting.index("bucket_total"), setting.index("loaded")]
        assert [[3, 0, 3], [4, 0, 4], [1, 0, 1], [2, 0, 2]] == [
            setting.operations(kind) for kind in ("create", "load", "merge", "delete")
        ]
        assert [3, 4, 1, 2] == [
            setting.index("bucket_op_latency_ms_count", type=kind) for kind in ("create", "load", "merge", "delete")
        ]
        assert 0 == setting.index("bucket_op_latency_ms_sum", type="create"), "the clock of patience stands still"

    def test_what_readers_hold_is_loaded(self, setting: Setting) -> None:
        setting.send(*range(1_000, 1_017))
        setting.clock.advance(2_000)
        with setting.store.consumer("mail", group="g") as consumer:
            assert 17 == len(consumer.poll())
        assert 17 + 16 + 1 == setting.index("loaded"), "a block, what it was merged from, and the mutable bucket"

    def test_a_merge_that_fails(self, setting: Setting) -> None:
        setting.send(*range(1_000, 1_017))
        setting.calls.fail("append", ".tmp", OSError(errno.ENOSPC, "full"))
        with pytest.raises(StorageFull):
            setting.mail.log.merge_buckets()
        assert [[2, 1, 3], [0, 1, 1]] == [setting.operations(kind) for kind in ("create", "merge")]

    def test_subscriptions(self, setting: Setting) -> None:
        setting.send(None, None, None, 1_000)
        assert [None] * 5 == setting.subscribed()
        once = RetryPolicy(attempts=1)
        with setting.store.subscribe("mail", "s", retry=once, dead_letter="dead") as subscription:
            first, *_ = subscription.receive(2)
            subscription.nack(first)
            assert [1, 1, 1, 0, 1] == setting.subscribed()
        assert [None] * 5 == setting.subscribed(), "nobody has it open"
        metrics.register(setting.store, idle_registry := CollectorRegistry(), idle=True, detail="partition")
        setting.registry = idle_registry
        assert [1, 1, 0, 1, 1] == setting.subscribed()
        with setting.store.subscribe("mail", "s") as subscription:
            subscription.receive(1)
            assert [1, 1, 1, 0, 1] == setting.subscribed()

    def test_what_retention_took_from_a_subscription(self, setting: Setting) -> None:
        with setting.store.subscribe("mail", "s") as subscription:
            setting.send(*[None] * 300)
            setting.clock.advance(10_000)
            setting.store.create_topic("brief", retention_ms=1_000)
            brief = setting.store.topic("brief").partition(0)
            assert 0 == setting.value("afterlog_subscription_removed", subscription="s")
            with setting.store.subscribe("brief", "s") as losing:
                setting.store.send_many("brief", [b"v" * 100] * 900)
                setting.clock.advance(10_000)
                assert setting.store.enforce_retention() > 0
                losing.receive(1)
                removed = setting.value("afterlog_subscription_removed", subscription="s", topic="brief")
                assert brief.log_start == removed
            subscription.receive(1)
            assert 0 == setting.value("afterlog_subscription_removed", subscription="s")


class TestObjectStorage:
    FAR: ClassVar = {"topic": "far", "partition": "0"}
    COPY = ("copy_lag_segments", "copy_lag_bytes", "copy_segments_total", "copy_errors_total", "delete_segments_total")

    def test_up_and_away(self, setting: Setting) -> None:
        setting.store.send_many("far", [b"v" * 1_000] * 10)
        sealed = setting.store.topic("far").partition(0).log.sealed
        assert len(sealed) > 1
        size = sum(segment.size for segment in sealed)
        assert [len(sealed), size, 0, 0, 0] == setting.remote_counts(*self.COPY, **self.FAR)
        setting.store.offload()
        assert [0, 0, len(sealed), 0, 0] == setting.remote_counts(*self.COPY, **self.FAR)
        [copied] = setting.remote_counts("copy_bytes_total", **self.FAR)
        objects = setting.remote.list_objects("far-0")
        assert copied == sum(each.size for each in objects if not each.key.endswith("manifest"))
        setting.clock.advance(20_000)
        setting.store.offload()
        assert [0, 0, len(sealed), 0, len(sealed)] == setting.remote_counts(*self.COPY, **self.FAR)

    def test_reading_through(self, setting: Setting) -> None:
        names = ("fetch_requests_total", "fetch_bytes_total", "cache_read_bytes_total", "cache_hits_total")
        setting.store.send_many("far", [b"v" * 1_000] * 10)
        setting.clock.advance(1)
        assert setting.store.offload()["far-0"].freed
        assert [0, 0, 0, 0, 0] == setting.remote_counts(*names, "cache_held_bytes")
        with setting.store.consumer("far", group="g") as consumer:
            assert 10 == len(consumer.poll())
        requests, fetched, read, _, held = setting.remote_counts(*names, "cache_held_bytes")
        assert all((requests, fetched, read, held))
        with setting.store.consumer("far", group="h") as consumer:
            assert 10 == len(consumer.poll())
        assert [requests, fetched] == setting.remote_counts(*names[:2])
        assert [0] != setting.remote_counts("cache_hits_total")

    def test_errors(self, setting: Setting) -> None:
        setting.store.send_many("far", [b"v" * 1_000] * 10)
        setting.clock.advance(1)
        assert setting.store.offload()["far-0"].freed
        setting.fault = Fault.BEFORE
        with pytest.raises(RemoteUnavailable):
            setting.store.offload()
        with setting.store.consumer("far", group="g") as consumer, pytest.raises(RemoteUnavailable):
            consumer.poll()
        assert [1] == setting.remote_counts("copy_errors_total", **self.FAR)
        assert [0] != setting.remote_counts("fetch_errors_total")


class TestRegistering:
    def test_asks_the_store_nothing(self, setting: Setting) -> None:
        setting.store.close()
        registry = CollectorRegistry(auto_describe=True)
        collector = metrics.register(setting.store, registry)
        with pytest.raises(ValueError, match="Duplicated"):
            metrics.register(setting.store, registry)
        registry.unregister(collector)
        metrics.register(setting.store, registry)

    def test_the_registry_of_the_process(self, setting: Setting) -> None:
        from prometheus_client import REGISTRY

        collector = metrics.register(setting.store)
        try:
            assert 0 == REGISTRY.get_sample_value("afterlog_pending", {"topic": "mail"})
        finally:
            REGISTRY.unregister(collector)

    def test_without_prometheus_client(self, setting: Setting, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setitem(sys.modules, "prometheus_client", None)
        for call in (metrics.register, metrics.exposition, metrics.StoreCollector):
            with pytest.raises(ImportError, match=r"pip install 'afterlog\[metrics\]'"):
                call(setting.store)
        run("create", tmp_path / "data", "mail")
        assert "afterlog[metrics]" in run("metrics", tmp_path / "data", code=2).stderr


class TestOfTopics:
    """What is told where no more detail is asked for."""

    def test_few_series_of_a_topic_and_the_rest_summed(self, setting: Setting) -> None:
        setting.store.create_topic("news", partitions=3)
        setting.send(None, 1_000, 2_000)
        for number in range(3):
            setting.store.send("news", b"v", partition=number, deliver_after=NOW_MS + 500 * number)
        with setting.store.subscribe("news", "s", retry=RetryPolicy(attempts=1), dead_letter="dead") as reader:
            reader.nack(reader.receive())
            metrics.register(setting.store, registry := CollectorRegistry())
            value = registry.get_sample_value
            assert [2, 2, 0] == [value("afterlog_pending", {"topic": name}) for name in ("mail", "news", "ticks")]
            assert [1, 1] == [value("afterlog_due", {"topic": name}) for name in ("mail", "news")]
            assert 1 == value("afterlog_subscription_dead", {"topic": "news", "subscription": "s"})
            assert 2 == value("afterlog_subscription_pending")
            assert [3, 7, NOW_MS + 500] == [
                value(f"afterlog_{name}") for name in ("high_watermark", "log_end_offset", "next_due_ms")
            ]
            assert 1 == value("afterlog_lateness_ms_bucket", {"le": "+Inf"})
            assert 0 == value(f"{INDEX}bucket_op_count_total", {"type": "merge", "state": "all"})
            assert 0 == value("afterlog_unreadable")
            for family in registry.collect():
                for sample in family.samples:
                    assert "partition" not in sample.labels
                    told = metrics.OF_TOPICS.get(sample.name, ())
                    assert set(told) == set(sample.labels) & {"topic", "subscription"}

    def test_as_much_of_each_topic_whatever_happened(self, setting: Setting) -> None:
        """80 bytes, and 230 for a subscription: ten thousand topics are 0.8 MB, or 3 with a subscription each."""
        before = len(metrics.exposition(setting.store))
        setting.store.create_topics([f"topic-{number:05}" for number in range(50)])
        for number in range(50):
            setting.store.send(f"topic-{number:05}", b"v")
            with setting.store.subscribe(f"topic-{number:05}", "sender") as reader:
                reader.ack_many(reader.receive())
        assert len(metrics.exposition(setting.store)) - before < 50 * 330

    def test_another_detail_is_refused(self, setting: Setting) -> None:
        with pytest.raises(InvalidArgument):
            metrics.register(setting.store, CollectorRegistry(), detail="all")  # type: ignore[arg-type]


class TestTrouble:
    def test_a_closed_store_tells_nothing(self, setting: Setting) -> None:
        setting.send(1_000)
        setting.store.close()
        assert not [sample for family in setting.registry.collect() for sample in family.samples]

    def test_a_partition_that_cannot_answer_is_left_out(
        self, setting: Setting, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        counts = Partition.counts

        def broken(partition: Partition) -> PartitionCounts:
            if partition is setting.mail:
                raise OSError(errno.EIO, "broken")
            return counts(partition)

        monkeypatch.setattr(Partition, "counts", broken)
        for name in ("afterlog_pending", "afterlog_high_watermark"):
            assert [None, 0] == [setting.value(name, topic=topic) for topic in ("mail", "ticks")]

    def test_a_partition_that_cannot_be_opened_is_told(self, setting: Setting) -> None:
        setting.store.create_topic("rest")
        assert [0, 0] == [setting.value("afterlog_unreadable", topic=topic) for topic in ("mail", "rest")]
        setting.store.create_topic("rotten")
        setting.disk.unlink(PATH / "rotten-0" / CHECKPOINTS)
        assert [0, 1] == [setting.value("afterlog_unreadable", topic=topic) for topic in ("rest", "rotten")]
        assert [0, None] == [setting.value("afterlog_log_end_offset", topic=topic) for topic in ("rest", "rotten")]

    def test_a_clock_that_is_far_behind_is_no_trouble(self, setting: Setting) -> None:
        setting.send(1, 2)
        setting.clock.advance(5)
        assert 2 == setting.value("afterlog_high_watermark")
        setting.clock.set(NOW_MS - 10 * 3_600_000)
        assert 2 == setting.value("afterlog_high_watermark")


def test_the_command(tmp_path: Path) -> None:
    run("create", tmp_path / "data", "mail")
    run("send", tmp_path / "data", "mail", "x", "--delay", "1h")
    run("receive", tmp_path / "data", "mail", "--subscription", "s")
    lines = run("metrics", tmp_path / "data").stdout.splitlines()
    assert 'afterlog_pending{topic="mail"} 1.0' in lines
    assert "afterlog_log_end_offset 1.0" in lines
    lines = run("metrics", tmp_path / "data", "--detail", "partition").stdout.splitlines()
    assert 'afterlog_pending{partition="0",topic="mail"} 1.0' in lines
    assert 'afterlog_subscription_pending{partition="0",subscription="s",topic="mail"} 1.0' in lines
