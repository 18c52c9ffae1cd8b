"""Stores that older versions wrote: read as they are, for ever. A format that changes gets a folder of its own.

Each folder was made once, by `python -m tests.test_golden tests/golden/v2` or as its version is, and is never
edited: the program writes a new folder only, and the test opens a copy. What must come out of it stands in
`expected.json` beside it.

    v1   the first
    v2   runs of version 2: packed chunks, one bitmap for each run
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from afterlog import EARLIEST, AtTime, Config, ManualClock, Record, Store, encode_batch
from afterlog.names import LOCK
from afterlog.store import open_store

GOLDEN = Path(__file__).parent / "golden"
VERSIONS = ["v1", "v2"]
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
    with open_store(path, CONFIG, clock, None) as store:
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
        store.enforce_retention()
        store.send("mail", b"far", deliver_after=START_MS + 10**9, partition=1)
    (path / LOCK).unlink()


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
    return topics


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
    plain = [name for name in golden if name.startswith(("topics", "mail-1/"))]
    assert len(plain) > 8
    assert [] == [name for name in plain if golden[name] != fresh[name]]


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir()
    make(target / "store")
    shutil.copytree(target / "store", target / "copy")
    (target / "expected.json").write_text(json.dumps(opened(target / "copy"), indent=1) + "\n")
    shutil.rmtree(target / "copy")
