"""dump tells of each kind of file what is in it, and goes on after what is broken."""

from __future__ import annotations

import itertools
import json
import struct
import zlib
from pathlib import Path

import pytest

from afterlog.base.errors import CorruptFile
from afterlog.base.files import ReadOnlyFiles
from afterlog.base.names import CHECKPOINTS
from afterlog.log.store_frontier import frontier_path
from afterlog.offline.dump import dump
from afterlog.records.header import BatchHeader, with_crc
from tests.log.kafka_log import batch, compacted
from tests.offline.broken import DELAYED, FIFO, NOW_MS, RECORDS, STORE, flip, paths, rewrite, small_store, value_of


@pytest.mark.parametrize("folder", [DELAYED, FIFO])
def test_logs(folder: Path) -> None:
    files = small_store()
    rows = [row for path in paths(files, folder, ".log") for row in dump(files, path)]
    assert {"ok"} == {row["crc"] for row in rows}
    assert {"none"} == {row["codec"] for row in rows}
    assert RECORDS == sum(row["records"] for row in rows)
    assert {NOW_MS if folder == DELAYED else -1} == {row["broker_timestamp"] for row in rows}
    for row, behind in itertools.pairwise(rows):
        assert row["offset"] + row["records"] == behind["offset"]
        assert row["position"] + row["size"] == behind["position"] or behind["position"] == 0


def test_records() -> None:
    files = small_store()
    path = paths(files, DELAYED, ".log")[0]
    rows = [row for row in dump(files, path, records=True) if "value" in row]
    assert [value_of(row["offset"]) for row in rows] == [row["value"] for row in rows]


@pytest.mark.parametrize(("position", "reason"), [(2_000, "CRC"), (-1, "body's CRC"), (0, "neither")])
def test_broken_entries(position: int, reason: str) -> None:
    files = small_store()
    path = paths(files, DELAYED, ".log")[0]
    whole = list(dump(files, path))
    flip(files, path, position)
    rows = list(dump(files, path, records=True))
    [broken] = [row for row in rows if row.get("crc", "ok") != "ok"]
    assert reason in broken["crc"]
    assert len(whole) - 1 == sum(row.get("crc") == "ok" for row in rows)


def test_a_log_that_ends_inside_an_entry() -> None:
    files = small_store()
    path = paths(files, FIFO, ".log")[0]
    rewrite(files, path, lambda data: data[:-1])
    assert "the bytes end before the entry does" == list(dump(files, path))[-1]["crc"]


def test_a_log_of_a_kafka_broker(tmp_path: Path) -> None:
    """Any leader epoch, transactions and their markers, and what compaction left."""
    rows = [(NOW_MS, b"v", [])]
    control = struct.pack(">hh", 0, 1)
    batches = [
        batch(0, rows * 2, 0, epoch=0),
        batch(1, rows, 2, epoch=7),
        with_attributes(batch(0, rows, 3, epoch=7), 0x10),
        with_attributes(batch(0, [(NOW_MS, control, [])], 4, epoch=8), 0x30),
        compacted(4, [(1, NOW_MS, b"left", []), (3, NOW_MS, b"too", [])], 5, 5),
        with_attributes(compacted(0, [], 1, 11), 0x40),
        batch(0, rows, 13, epoch=2**31 - 1),
    ]
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(b"".join(batches))
    dumped = list(dump(ReadOnlyFiles(), path, records=True))
    headers = [row for row in dumped if "crc" in row]
    assert ["ok"] * 7 == [row["crc"] for row in headers]
    assert [0, 7, 7, 8, 0, 0, 2**31 - 1] == [row["leader_epoch"] for row in headers]
    flags = [[], [], ["transactional"], ["transactional", "control"], [], ["delete horizon"], []]
    assert flags == [row["flags"] for row in headers]
    assert [2, 1, 1, 1, 2, 0, 1] == [row["records"] for row in headers]
    assert [0, 1, 2, 3, 4, 6, 8, 13] == [row["offset"] for row in dumped if "value" in row]
    path.write_bytes(b"".join(batches)[:-1])
    assert "the bytes end before the entry does" == list(dump(ReadOnlyFiles(), path))[-1]["crc"]


def old_message(magic: int, offset: int, value: bytes) -> bytes:
    """As Kafka had them before its 0.11."""
    body = struct.pack(">bb", magic, 0) + (struct.pack(">q", NOW_MS) if magic else b"")
    body += struct.pack(">i", -1) + struct.pack(">i", len(value)) + value
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def test_a_log_that_is_older_than_batches(tmp_path: Path) -> None:
    """It says what they are, and goes on behind them; a header that names no time is told, too."""
    wrong = batch(0, [(NOW_MS, b"w", [("deliver-after", b"soon")])], 4)
    parts = [old_message(0, 0, b"a"), old_message(1, 1, b""), old_message(1, 2, b"c" * 100)]
    parts += [batch(0, [(NOW_MS, b"v", [])], 3), wrong, old_message(1, 5, b"d"), bytes(50)]
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(b"".join(parts))
    rows = list(dump(ReadOnlyFiles(), path, records=True))
    old = [row["crc"].partition(",")[0] for row in rows if "magic" in row.get("crc", "")]
    assert [f"a message of magic {magic}" for magic in (0, 1, 1, 1)] == old[:4]
    assert [3] == [row["offset"] for row in rows if "value" in row]
    assert [len(part) for part in parts] == [row["size"] for row in rows if "size" in row]
    assert ["cannot be decoded"] == [
        row["records"].partition(":")[0] for row in rows if "size" not in row and "records" in row
    ]
    broken = bytearray(b"".join(parts))
    broken[20] ^= 1
    path.write_bytes(broken)
    assert "neither an entry prefix nor a batch of magic 2" == next(iter(dump(ReadOnlyFiles(), path)))["crc"]


def with_attributes(data: bytes, attributes: int) -> bytes:
    header = BatchHeader.read(memoryview(data), 0)
    return with_crc(header._replace(attributes=header.attributes | attributes), data[61:])


def test_indexes() -> None:
    files = small_store()
    [log, *_] = paths(files, DELAYED, ".log")
    ends = {row["position"]: row["offset"] + row["records"] - 1 for row in dump(files, log)}
    index = list(dump(files, log.with_suffix(".index")))
    assert len(index) > 10
    assert all(ends[row["position"]] == row["offset"] for row in index)
    assert [{"timestamp": NOW_MS, "offset": index[0]["offset"]}] == [
        {**row, "offset": index[0]["offset"]} for row in dump(files, log.with_suffix(".timeindex"))
    ]
    rewrite(files, log.with_suffix(".index"), lambda data: data + b"abc")
    assert {"position": 8 * len(index), "size": 3, "crc": "no whole entry"} == list(
        dump(files, log.with_suffix(".index"))
    )[-1]


def test_runs() -> None:
    files = small_store()
    [log, *_] = paths(files, DELAYED, ".log")
    header, *rows = dump(files, log.with_suffix(".deliverafterindex"))
    chunks = [row for row in rows if "chunk" in row]
    entries = [row for row in rows if "due" in row]
    assert (header["chunks"], header["entries"]) == (len(chunks), len(entries))
    logged = {(row["due"], row["offset"], row["position"], row["records"]) for row in dump(files, log)}
    assert sorted(logged) == [tuple(row.values()) for row in entries]


def test_documents() -> None:
    files = small_store()
    [topics], [later] = dump(files, STORE / "topics"), dump(files, STORE / "later-topics" / FIFO.name)
    for each, topic in ((topics, "mail"), (later, "ticks")):
        assert ("afterlog-topics", 1, "ok") == (each["document"], each["version"], each["crc"])
        assert topic in each
    [frontier] = dump(small_store(closed=False), frontier_path(STORE))
    assert ("afterlog-frontier", {"mail-0": NOW_MS + 100_000}) == (frontier["document"], frontier["used_ms"])
    [checkpoints] = dump(files, DELAYED / CHECKPOINTS)
    assert {"recovery", "frontier", "sealed"} <= checkpoints.keys()
    [position] = dump(files, DELAYED / "subscriptions" / "reader" / "position")
    assert 50 == position["position"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"text\n",
        b"afterlog-position 1 00000000\n{}\n",
        b"afterlog-position x 0\n",
        b"afterlog-x " + b"9" * 5_000 + b" 0\n",
    ],
)
def test_what_is_no_file_of_a_store(content: bytes) -> None:
    files = small_store()
    rewrite(files, STORE / "topics", lambda data: content)
    with pytest.raises(CorruptFile):
        list(dump(files, STORE / "topics"))


def test_rows_are_json_but_for_bytes_and_a_file_that_may_only_be_read_will_do(tmp_path: Path) -> None:
    files = small_store()
    path = paths(files, DELAYED, ".log")[0]
    target = tmp_path / path.name
    target.write_bytes(files.open(path).pread(1 << 20, 0))
    target.chmod(0o400)
    rows = list(dump(ReadOnlyFiles(), target))
    assert rows == json.loads(json.dumps(rows)) == list(dump(files, path))
