"""Stores that older versions wrote: read as they are, for ever. A format that changes gets a folder of its own.

Each folder was made once, by `python -m tests.test_golden tests/golden/v6` or as its version is, and is never
edited: the program writes a new folder only, and the test opens a copy. What must come out of it stands in
`expected.json` beside it.

    v1   the first
    v2   runs of version 2: packed chunks, one bitmap for each run; merged buckets; cancel indexes; subscriptions
    v3   topics that were made later have documents of their own
    v4   positions have a copy
    v5   the partitions share a frontier, which is there as a kill leaves it
    v6   topics have ids, in their documents and checkpoints
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from afterlog import EARLIEST, AtTime, Config, ManualClock, Record, RecordId, RetryPolicy, Store, encode_batch
from afterlog.base.files import OsFiles
from afterlog.base.names import LOCK
from afterlog.index.run_format import CODEC_PACKED
from afterlog.index.run_format import VERSION as RUN_VERSION
from afterlog.log.store_frontier import frontier_path
from afterlog.offline.locked_store import OfflineStore
from afterlog.store.store import open_store
from afterlog.subscription.answers import PartitionStats
from tests.support import numbered_ids

GOLDEN = Path(__file__).parent / "golden"
VERSIONS = ["v1", "v2", "v3", "v4", "v5", "v6"]
START_MS = 1_700_000_000_000
CONFIG = Config(
    segment_bytes=4_096,
    batch_bytes_max=2_048,
    index_interval_bytes=256,
    min_index_count_per_bucket=4,
    max_indexes_per_bucket_snapshot_segment=3,
    frontier_lease_ms=1_000,
)


def make(path: Path) -> None:
    """A store with something of everything: codecs, headers, nulls, seals, rolls, positions, retention, FIFO."""
    clock = ManualClock(START_MS)
    with numbered_ids(), open_store(path, CONFIG, clock, None, background=False) as store:
        mail = store.create_topic("mail", partitions=2, max_delay_ms=10**9, retention_ms=3_600_000)
        store.create_topic("plain", delayed=False)
        for step in range(4):
            for partition in range(2):
                values = [b"%d-%d-%d" % (partition, step, row) for row in range(3)]
                delays = [0.5 * row + step for row in range(3)]
                store.send_many("mail", values, keys=[b"k"] * 3, delay=delays, partition=partition)
                store.send("mail", None, headers=[("name", b"value"), ("null", None)], partition=partition)
            for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
                records = [
                    Record(value=codec.encode() * 20, timestamp=START_MS + row, deliver_after=START_MS + 900 * row)
                    for row in range(3)
                ]
                mail.partition(0).append(encode_batch(records, codec), deliver_after=START_MS + 1_800 + step)  # type: ignore[arg-type]
                plain = [Record(value=codec.encode(), timestamp=START_MS + step, headers=[("h", b"v")])]
                store.topic("plain").partition(0).append(encode_batch(plain, codec))  # type: ignore[arg-type]
            if step in (0, 2):
                mail.partition(0).log.roll()
                store.topic("plain").partition(0).log.roll()
            clock.advance(900)
            with store.consumer("mail", group="readers") as consumer:
                consumer.poll(5)
        clock.advance(3_599_400)
        mail.partition(0).high_watermark()
        for topic in store.topics():
            for log in topic.logs if topic.settings.has_retention else topic.opened_logs.values():
                log.enforce_retention()  # the store's seals what is old, too, which the first stores did not know
        store.send("mail", b"far", deliver_after=START_MS + 10**9, partition=1)
    make_queue(path, clock)
    (path / LOCK).unlink()


def make_queue(path: Path, clock: ManualClock) -> None:
    """Cancelled and rescheduled records, a bucket merged over segments; a subscription and the store's frontier as a
    kill leaves them."""
    config = replace(CONFIG, max_indexes_per_bucket_snapshot_segment=500, max_num_buckets=1)
    with numbered_ids(), open_store(path, config, clock, None, background=False) as store:
        log = store.create_topic("queue").partition(0).log
        for row in range(150):
            if row == 40:
                store.cancel_many("queue", 0, np.array([3, 6]))
                store.reschedule(RecordId("queue", 0, 7), delay=20)
            store.send("queue", b"%d" % row, delay=1_000_000 if row % 10 == 9 else row * 37 % 150 / 2)
        log.roll()
        assert log.merge_buckets()
        store.cancel(RecordId("queue", 0, 9))
        clock.advance(40_000)
        retry = RetryPolicy(attempts=2, jitter=0)
        worker = store.subscribe("queue", "worker", retry=retry, lease_ms=600_000, dead_letter="dead")
        first = worker.receive(20)
        worker.ack_many([*first[:4], *first[6:12]])
        worker.nack(first[4], delay=10)
        worker.nack(first[5], delay=1_000)
        clock.advance(10_000)
        [again] = [message for message in worker.receive(1_000) if message.offset == first[4].offset]
        worker.nack(again, reason="refused")
        written = [*path.glob("queue-0/subscriptions/worker/*"), frontier_path(path)]
        left = {file: file.read_bytes() for file in written}
    for file, data in left.items():
        file.write_bytes(data)


def seen(store: Store) -> dict[str, Any]:
    """What a reader gets of a store, as JSON."""
    topics: dict[str, Any] = {}
    for topic in store.topics():
        for partition in topic.partitions:
            with store.consumer(
                topic.name, group="readers", partitions=[partition.number], auto_commit=False
            ) as consumer:
                committed = consumer.committed()[partition.number]
            with store.consumer(topic.name, group="all", partitions=[partition.number], start=EARLIEST) as consumer:
                messages = [message for messages in iter(consumer.poll, []) for message in messages]
            topics[f"{topic.name}-{partition.number}"] = {
                "committed": committed,
                "log_start": partition.log_start,
                "log_end_offset": partition.log_end_offset,
                "pending": partition.pending(),
                "next_due": partition.next_due(),
                "at": partition.position(AtTime(START_MS + 1_000)),
                "messages": [
                    [
                        message.offset,
                        message.delivery_offset,
                        message.due,
                        message.deliver_after,
                        message.timestamp,
                        None if message.key is None else message.key.decode(),
                        None if message.value is None else message.value.decode(),
                        [[name, None if value is None else value.decode()] for name, value in message.headers],
                    ]
                    for message in messages
                ],
            }
    return topics | {
        str(folder.relative_to(store.path)): of_subscription(store, folder) for folder in subscribed(store)
    }


def subscribed(store: Store) -> list[Path]:
    """The folders of subscriptions."""
    return sorted({journal.parent for journal in store.path.glob("*/subscriptions/*/journal-*")})


def of_subscription(store: Store, folder: Path) -> dict[str, Any]:
    """What a reader of a subscription gets, and what is scheduled behind it."""
    topic, _, number = folder.parent.parent.name.rpartition("-")
    with store.subscribe(topic, folder.name, partitions=[int(number)]) as subscription:
        return {
            "stats": counted(subscription.stats().partitions[int(number)]),
            "received": sorted([each.offset, each.redelivery_count] for each in subscription.receive(1_000)),
            "scheduled": [[each.offset, each.due] for each in store.pending(topic, partition=int(number))],
        }


def counted(stats: PartitionStats) -> dict[str, int]:
    """As the stores of before have it, in which nothing expired, or was paused."""
    counts = asdict(stats)
    assert 0 == counts.pop("lapsed")
    assert counts.pop("paused") is False
    return counts


def opened(path: Path) -> dict[str, Any]:
    with open_store(path, CONFIG, ManualClock(START_MS + 3_700_000), None) as store:
        assert not store.cut_bytes
        topics = seen(store)
        store.check()
    return topics


@pytest.mark.parametrize("version", VERSIONS)
def test_old_store_reads_the_same(version: str, tmp_path: Path) -> None:
    folder = GOLDEN / version
    assert folder.is_dir(), "the golden folder is missing: restore it, do not make it anew"
    shutil.copytree(folder / "store", tmp_path / "store")
    assert json.loads((folder / "expected.json").read_text()) == opened(tmp_path / "store")


@pytest.mark.parametrize("version", VERSIONS)
def test_old_store_is_used_and_upgraded(version: str, tmp_path: Path) -> None:
    """As a new version goes about it: a backup first, then it is opened and used. What was there stays, and nothing is
    left that only the old version knew how to read."""
    shutil.copytree(GOLDEN / version / "store", tmp_path / "store")
    expected = json.loads((GOLDEN / version / "expected.json").read_text())
    clock = ManualClock(START_MS + 3_700_000)
    with open_store(tmp_path / "store", CONFIG, clock, None, background=False) as store:
        old = store.backup(tmp_path / "backups")
        names = [topic.name for topic in store.topics()]
        for name in names:
            for partition in store.topic(name).partitions:
                store.send(name, b"new", partition=partition.number)
            used(store, name)
        store.schedule("mail", name="weekly", every=timedelta(days=7), value=b"again")
        upgraded = messages_of(store)
        upgraded_copy = store.backup(tmp_path / "backups")
    for name, messages in upgraded.items():
        there = [message[:2] for message in expected[name]["messages"]]
        assert there == [message[:2] for message in messages[: len(there)]]
        assert "new" in {message[2] for message in messages[len(there) :]}
    with OfflineStore(tmp_path / "store", OsFiles(), clock) as offline:
        assert [] == list(offline.verify())
    for path in (tmp_path / "store", shutil.copytree(upgraded_copy.path, tmp_path / "copy")):
        with open_store(path, CONFIG, clock, None, background=False) as store:
            assert not store.cut_bytes
            assert upgraded == messages_of(store)
            for name in names:
                with store.subscribe(name, "upgraded") as subscription:
                    assert not subscription.receive(1_000)
            assert ["weekly"] == [each.name for each in store.schedules()]
            store.check()
        assert {RUN_VERSION} == {file.read_bytes()[8] for file in path.rglob("*.deliverafterindex")}
    assert expected == opened(shutil.copytree(old.path, tmp_path / "old"))


def used(store: Store, topic: str) -> None:
    """A new subscription takes all that is due; the group of old goes on from the start, and commits."""
    with store.subscribe(topic, "upgraded") as subscription:
        subscription.ack_many(subscription.receive(1_000))
        assert not subscription.receive(1_000)
    with store.consumer(topic, group="readers") as consumer:
        consumer.seek(EARLIEST)
        while consumer.poll():
            pass


def messages_of(store: Store) -> dict[str, list[list[Any]]]:
    """(offset, delivery offset, value) of what is due, by partition."""
    found = {}
    for topic in store.topics():
        for partition in topic.partitions:
            with store.consumer(topic.name, group="look", partitions=[partition.number], auto_commit=False) as consumer:
                rows = [message for messages in iter(consumer.poll, []) for message in messages]
            found[f"{topic.name}-{partition.number}"] = [
                [each.offset, each.delivery_offset, each.value and each.value.decode()] for each in rows
            ]
    return found


def test_every_folder_is_tested() -> None:
    assert VERSIONS == sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())


@pytest.mark.parametrize("version", VERSIONS[-1:])
def test_format_is_that_of_the_latest_folder(version: str, tmp_path: Path) -> None:
    """Red where a format changed without a new version: then make a folder for it. What codecs make may change."""
    make(tmp_path / "store")
    fresh, golden = (
        {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
        for folder in (tmp_path / "store", GOLDEN / version / "store")
    )
    assert list(golden) == list(fresh)
    plain = [name for name in golden if name.startswith(("topics", "later-topics/", "mail-1/", "queue-0/", "dead-0/"))]
    assert len(plain) > 30
    assert [] == [name for name in plain if golden[name] != fresh[name]]


def test_latest_folder_has_something_of_everything(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / VERSIONS[-1] / "store", tmp_path / "store")
    with open_store(tmp_path / "store", CONFIG, ManualClock(START_MS), None) as store:
        log = store.topic("queue").partition(0).log
        bases = [segment.base_offset for segment in log.version.segments]
        spans = [(run.coverage.first_offset, run.coverage.end_offset) for run in log.index.runs]
        assert any(sum(first <= base < end for base in bases) > 1 for first, end in spans), "merged over segments"
        codecs = {codec for run in log.index.runs for codec in run.directory.codec.tolist()}
        assert CODEC_PACKED in codecs
    names = {path.suffix or path.name for path in (GOLDEN / VERSIONS[-1] / "store" / "queue-0").rglob("*")}
    assert {".cancelindex", "journal-00000000000000000000"} <= names


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir()
    make(target / "store")
    shutil.copytree(target / "store", target / "copy")
    (target / "expected.json").write_text(json.dumps(opened(target / "copy"), indent=1) + "\n")
    shutil.rmtree(target / "copy")
