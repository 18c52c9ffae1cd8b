"""Kafka segments: batches of kafka-python's own encoder, stamped as a broker stamps them, and what is in them."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from afterlog.base.config import Config
from afterlog.base.files import OsFiles
from afterlog.index.bucket_storage import LocalBucketSnapshotStorage
from afterlog.index.entries import Entries
from afterlog.index.merge import merged
from afterlog.index.mutable_bucket import MutableBucket
from afterlog.index.run import Coverage
from afterlog.records.header import CONTROL, BatchHeader, with_crc
from tests.log import kafka_python
from tests.support import NOW_MS

CODECS = range(5)
"""none, gzip, snappy, lz4, zstd."""
ASKED = (None, lambda ms: ms.to_bytes(8, "big"), lambda ms: b"%d" % ms)


def batch(codec: int, rows: list[tuple[int, bytes, list[tuple[str, bytes]]]], offset: int = 0, epoch: int = 0) -> bytes:
    """Rows of (timestamp, value, headers)."""
    builder = kafka_python.records.DefaultRecordBatchBuilder(
        magic=2, compression_type=codec, is_transactional=False, producer_id=-1, producer_epoch=-1, base_sequence=-1,
        batch_size=1 << 20,
    )  # fmt: skip
    for delta, (timestamp, value, headers) in enumerate(rows):
        assert builder.append(delta, timestamp, b"k", value, headers) is not None
    return stamped(bytes(builder.build()), offset, epoch)


def compacted(
    codec: int, rows: list[tuple[int, int, bytes, list[tuple[str, bytes]]]], last_delta: int, offset: int = 0
) -> bytes:
    """What compaction leaves of a batch: rows of (offset delta, timestamp, value, headers); none is a batch, too."""
    builder = kafka_python.records.DefaultRecordBatchBuilder(
        magic=2, compression_type=codec, is_transactional=False, producer_id=7, producer_epoch=0, base_sequence=0,
        batch_size=1 << 20,
    )  # fmt: skip
    for delta, timestamp, value, headers in rows or [(0, NOW_MS, b"", [])]:
        assert builder.append(delta, timestamp, b"k", value, headers) is not None
    data = bytes(builder.build())
    header, body = BatchHeader.read(memoryview(data), 0), data[61:] if rows else b""
    kept = header._replace(last_offset_delta=last_delta, records=len(rows), length=49 + len(body))
    return stamped(with_crc(kept if rows else kept._replace(attributes=0), body), offset)


def transactional(rows: list[tuple[int, bytes, list[tuple[str, bytes]]]], producer: int, offset: int = 0) -> bytes:
    """A batch of a transaction."""
    builder = kafka_python.records.DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=True, producer_id=producer, producer_epoch=0, base_sequence=0,
        batch_size=1 << 20,
    )  # fmt: skip
    for delta, (timestamp, value, headers) in enumerate(rows):
        assert builder.append(delta, timestamp, b"k", value, headers) is not None
    return stamped(bytes(builder.build()), offset)


def marker(producer: int, *, commit: bool, offset: int = 0) -> bytes:
    """What ends a transaction, as the coordinator has it written (KIP-98): version 0, and 0 for ABORT, 1 for COMMIT."""
    builder = kafka_python.records.DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=True, producer_id=producer, producer_epoch=0, base_sequence=-1,
        batch_size=1 << 20,
    )  # fmt: skip
    key = struct.pack(">hh", 0, int(commit))
    assert builder.append(0, NOW_MS, key, struct.pack(">hi", 0, 5), []) is not None
    data = bytes(builder.build())
    header = BatchHeader.read(memoryview(data), 0)
    return stamped(with_crc(header._replace(attributes=header.attributes | CONTROL), data[61:]), offset)


def stamped(data: bytes, offset: int, epoch: int = 0) -> bytes:
    """As the broker leaves it: base offset and leader epoch are its own, and no checksum covers them."""
    return struct.pack(">q", offset) + data[8:12] + struct.pack(">i", epoch) + data[16:]


@dataclass
class KafkaSegment:
    """A segment in the making, and what its indexes must say, noted while it is made."""

    base_offset: int
    batches: list[bytes] = field(default_factory=list)
    entries: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(deliver_after, offset, position, records) of each batch."""
    end_offset: int = -1
    size: int = 0

    def __post_init__(self) -> None:
        self.end_offset = self.base_offset

    def add(self, codec: int, rows: list[tuple[int, bytes, list[tuple[str, bytes]]]], due: int, epoch: int = 0) -> None:
        data = batch(codec, rows, self.end_offset, epoch)
        self.batches.append(data)
        self.entries.append((due, self.end_offset, self.size, len(rows)))
        self.end_offset += len(rows)
        self.size += len(data)

    @property
    def log(self) -> bytes:
        return b"".join(self.batches)


def some_segment(number: int, base_offset: int, batches: int = 5) -> KafkaSegment:
    """Every codec, every way to say when, some batches that do not say."""
    chance = random.Random(number)
    segment = KafkaSegment(base_offset)
    for row in range(batches):
        rows, due = [], 0
        for _ in range(chance.randint(1, 6)):
            asked, header = NOW_MS + chance.randint(0, 600_000), chance.choice(ASKED)
            due = max(due, asked if header else 0)
            headers = [("deliver-after", header(asked))] if header else []
            rows.append((NOW_MS + chance.randint(-500, 500), b"v" * chance.randint(0, 300), headers))
        segment.add((number + row) % 5, rows, due, epoch=chance.choice([0, 3, 2**31 - 1]))
    return segment


def run_of(folder: Path, segment: KafkaSegment, config: Config) -> bytes:
    """The .deliverafterindex as a roll makes it: out of a mutable bucket."""
    bucket = MutableBucket()
    for entry in segment.entries:
        bucket.add(*entry)
    storage = LocalBucketSnapshotStorage(
        OsFiles(), folder,
        max_entries=config.max_indexes_per_bucket_snapshot_segment,
        max_step_ms=config.max_time_step_per_bucket_snapshot_segment_s * 1000,
    )  # fmt: skip
    base = segment.base_offset
    run = storage.create("run", merged((), bucket), Coverage(base, segment.end_offset, base, 0, base, segment.size))
    return run.path.read_bytes()


def entries_of(segment: KafkaSegment) -> Entries:
    return Entries(*np.array(segment.entries, np.int64).reshape(-1, 4).T.copy())
