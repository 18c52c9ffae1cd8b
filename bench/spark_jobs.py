"""Spark: what a session costs, the index job against one process, the data source against mapInArrow.

    python -m bench.spark_jobs [--mib 1024] [--codec none] [--records 4000000] [--rounds 3]

Each workload and what it is held against run in turn, on one session of two cores; times are medians of wall time.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

import afterlog
from afterlog.clock import ManualClock
from afterlog.config import Codec
from afterlog.files import OsFiles, unused_name
from afterlog.log import kernels
from afterlog.log.batch import compress_batches
from afterlog.log.batches import stamp_batches
from afterlog.log.segment_indexing import index_segment
from afterlog.names import LOG, segment_file
from afterlog.spark.location import find_segments
from bench.harness import RESULTS, machine

MIB = 1 << 20
VALUE_BYTES = 100
BATCH_RECORDS = 100
DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000
HEADER = bytes.fromhex("02 1A") + b"deliver-after" + b"\x10"
"""One header, its key, and the length of its value: eight bytes follow."""


class Spent(NamedTuple):
    """Seconds."""

    wall: float
    cpu: float
    """Of this process and all that it has started: Java, and its Python workers."""


def medians(rounds: int, calls: dict[str, Callable[[], object]]) -> dict[str, Spent]:
    """What each call takes, run in turn."""
    spent: dict[str, list[Spent]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start_s, start_cpu_s = time.perf_counter(), cpu_s()
            call()
            spent[name].append(Spent(time.perf_counter() - start_s, cpu_s() - start_cpu_s))
    return {name: Spent(*map(statistics.median, zip(*own, strict=True))) for name, own in spent.items()}


def cpu_s() -> float:
    """Of this process, its descendants, and those of them that are gone."""
    parents, ticks = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            pid = int(path.parent.name)
            parents[pid], ticks[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(ticks[pid] for pid in ours) / os.sysconf("SC_CLK_TCK")


def make_kafka_segments(folder: Path, total_bytes: int, count: int, codec: Codec) -> int:
    """Plain Kafka segments of records of 100 B, 100 to a batch, each due at a time of its own; the bytes in all.

    `total_bytes`: before compression.
    """
    partition = folder / "bench-0"
    partition.mkdir(parents=True)
    chance, offset, size = np.random.default_rng(1), 0, 0
    records = max(total_bytes // count // 150 // BATCH_RECORDS, 1) * BATCH_RECORDS
    sections = np.empty((records, len(HEADER) + 8), np.uint8)
    sections[:, : len(HEADER)] = np.frombuffer(HEADER, np.uint8)
    bounds = np.arange(0, records + 1, BATCH_RECORDS)
    values = np.arange(records + 1) * VALUE_BYTES, chance.integers(0, 16, records * VALUE_BYTES, np.uint8)
    for _ in range(count):
        due = NOW_MS + chance.integers(0, DAY_MS, records)
        sections[:, len(HEADER) :] = due.astype(">i8").view(np.uint8).reshape(-1, 8)
        headers = np.arange(records + 1) * sections.shape[1], sections.reshape(-1)
        stamps = np.full(records, NOW_MS)
        data, positions = kernels.encode_batches(values, None, None, None, headers, stamps, None, bounds)
        data, positions = compress_batches(data, positions, codec)
        log = stamp_batches(data, positions, np.full(len(bounds) - 1, BATCH_RECORDS), offset)
        (partition / segment_file(offset, LOG)).write_bytes(log.tobytes())
        offset, size = offset + records, size + len(log)
    return size


def bench_index(spark: Any, folder: Path, mib: int, codec: Codec, rounds: int, segments: int = 64) -> dict[str, Any]:
    """The index job with one task and with two, and the same function called by one process."""
    from afterlog.spark.index_job import build_indexes

    size = make_kafka_segments(folder, mib * MIB, segments, codec)
    config = afterlog.Config()

    def cleared(call: Callable[[], object]) -> Callable[[], object]:
        """Without what the call before has left; the removal is not timed to speak of."""

        def run() -> None:
            for path in (folder / "bench-0").iterdir():
                if path.suffix != LOG:
                    path.unlink()
            call()

        return run

    def alone() -> None:
        for segment in find_segments(OsFiles(), folder):
            done = index_segment(OsFiles(), segment, config, afterlog.SystemClock(), attempt=unused_name())
            assert done.action == "built"

    def job(tasks: int) -> None:
        counted = build_indexes(spark, folder, tasks=tasks).groupBy("action").count().collect()
        assert [("built", segments)] == [tuple(row) for row in counted]

    build_indexes(spark, folder, verify_only=True, tasks=2)  # workers are up, the page cache is warm
    calls = {
        "one process": cleared(alone),
        "index job, 1 task": cleared(lambda: job(1)),
        "index job, 2 tasks": cleared(lambda: job(2)),
    }
    return {"bytes": size, "segments": segments, "spent": medians(rounds, calls)}


def bench_read(spark: Any, folder: Path, records: int, rounds: int) -> dict[str, Any]:
    """A topic into a sink that drops it, against mapInArrow, which reads the same log, such rows in memory, or Parquet.

    `nothing` is the same read where nothing is due: what planning costs.
    """
    from afterlog.spark.source import AfterlogDataSource

    spark.dataSource.register(AfterlogDataSource)
    store = folder / "store"
    chance = np.random.default_rng(2)
    with afterlog.open(store, config=afterlog.Config(durability=afterlog.OS), clock=ManualClock(NOW_MS)) as opened:
        opened.create_topic("bench")
        for first in range(0, records, MIB):
            count = min(MIB, records - first)
            values = np.arange(count + 1) * VALUE_BYTES, np.zeros(count * VALUE_BYTES, np.uint8)
            opened.send_many("bench", values, deliver_after=np.sort(NOW_MS + chance.integers(0, DAY_MS, count)))
    log_bytes = sum(path.stat().st_size for path in (store / "bench-0").glob(f"*{LOG}"))

    options = {
        "topic": "bench",
        "columns": "offset,delivery_offset,value",
        "partitionBytes": str(log_bytes // 4),
        "path": str(store),
    }

    def frame(**more: str) -> Any:
        return spark.read.format("afterlog").options(**options, **more).load()

    schema, parquet, tasks = "offset LONG, delivery_offset LONG, value BINARY", str(folder / "parquet"), 4
    frame().write.parquet(parquet)
    numbers = spark.range(0, tasks, 1, tasks)

    def drop(rows: Any) -> None:
        rows.write.format("noop").mode("overwrite").save()

    calls: dict[str, Callable[[], object]] = {
        "afterlog": lambda: drop(frame()),
        "mapInArrow, the same log": lambda: drop(numbers.mapInArrow(_of_log(options), schema)),
        "mapInArrow, from memory": lambda: drop(numbers.mapInArrow(_of_memory(records // tasks), schema)),
        "mapInArrow, from Parquet": lambda: drop(spark.read.parquet(parquet).mapInArrow(_as_it_is, schema)),
        "nothing": lambda: drop(frame(startingPosition="latest")),
    }
    for call in calls.values():
        call()
    return {"records": records, "log_bytes": log_bytes, "spent": medians(rounds, calls)}


def _of_log(options: dict[str, str]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The data source without the data source."""

    def rows(numbers: Iterator[Any]) -> Iterator[Any]:
        from afterlog.clock import SystemClock
        from afterlog.files import ReadOnlyFiles
        from afterlog.spark.arrow import record_batch
        from afterlog.spark.options import ReadOptions
        from afterlog.spark.ranges import Planner, read_range

        files, clock, asked = ReadOnlyFiles(), SystemClock(), ReadOptions.parse(options)
        ranges = Planner(files, clock, asked).batch()
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for columns in read_range(files, clock, asked, ranges[number]):
                    yield record_batch(columns, asked.columns)

    return rows


def _of_memory(count: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def rows(numbers: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        size = 65_536
        offsets = pa.py_buffer(np.arange(size + 1, dtype=np.int32) * VALUE_BYTES)
        value = pa.Array.from_buffers(pa.binary(), size, [None, offsets, pa.py_buffer(bytes(size * VALUE_BYTES))])
        number = pa.array(np.arange(size))
        batch = pa.RecordBatch.from_arrays([number, number, value], names=["offset", "delivery_offset", "value"])
        for _ in numbers:
            for first in range(0, count, size):
                yield batch[: min(size, count - first)]

    return rows


def _as_it_is(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1_024, help="size of the segments to index")
    parser.add_argument("--codec", choices=get_args(Codec), default="none", help="how their batches are compressed")
    parser.add_argument("--records", type=int, default=4_000_000, help="records to read")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    for name, value in machine().items():
        print(f"{name}: {value}")
    print("load:", *os.getloadavg())
    from afterlog.spark.session import spark_session

    start_s = time.perf_counter()
    long_runs = {"spark.driver.extraJavaOptions": "-XX:+UseSerialGC"}
    spark = spark_session(settings=long_runs)
    up_s = time.perf_counter()
    spark.range(1).count()
    print(f"session {up_s - start_s:.1f} s, first job {time.perf_counter() - up_s:.1f} s")
    folder = Path(tempfile.mkdtemp(dir=RESULTS.parent))
    try:
        indexed = bench_index(spark, folder / "kafka", asked.mib, asked.codec, asked.rounds)
        alone = indexed["spent"]["one process"]
        print(f"index job: {indexed['bytes'] / MIB:,.0f} MiB ({asked.codec}) in {indexed['segments']} segments")
        for name, each in indexed["spent"].items():
            rate = indexed["bytes"] / MIB / each.wall
            faster = f"{alone.wall / each.wall:5.2f} x"
            print(f"  {name:26} {each.wall:7.2f} s, cpu {each.cpu:7.2f} s {rate:9,.0f} MiB/s {faster}")
        read = bench_read(spark, folder, asked.records, asked.rounds)
        ours = read["spent"]["afterlog"]
        print(f"read: {read['records']:,} records, {read['log_bytes'] / MIB:,.0f} MiB of log")
        for name, each in read["spent"].items():
            rate = read["records"] / each.wall / 1e6
            of_it = f"afterlog has {each.wall / ours.wall:5.2f} of it, by CPU {each.cpu / ours.cpu:5.2f}"
            print(f"  {name:26} {each.wall:7.2f} s, cpu {each.cpu:7.2f} s {rate:7.2f} M records/s; {of_it}")
    finally:
        spark.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
