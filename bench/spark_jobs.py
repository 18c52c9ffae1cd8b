"""Spark: what a session costs, the index job and the upload job against one process, the data source against
mapInArrow, the bucket job against numpy on one core.

    python -m bench.spark_jobs [--only index] [--mib 1024] [--codec none] [--records 4000000] [--entries 20000000]
                               [--rounds 3]

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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

import afterlog
from afterlog.base.clock import ManualClock
from afterlog.base.config import Codec
from afterlog.base.files import OsFiles, unused_name
from afterlog.base.names import BUCKETS, CHECKPOINTS, LOG, bucket_key, run_key, segment_file
from afterlog.index.entries import Entries
from afterlog.index.merge import merged
from afterlog.index.run import Coverage, Run
from afterlog.index.run_writer import write_run
from afterlog.log.build import SegmentToIndex, index_segment
from afterlog.log.checkpoints import CheckpointFile, Checkpoints, SealedMark
from afterlog.log.facts import NO_FILE
from afterlog.log.topic_settings import TopicSettings
from afterlog.log.topics_document import write_topics
from afterlog.records import kernels
from afterlog.records.batch import compress_batches
from afterlog.records.encode import stamp_batches
from afterlog.spark.location import find_segments
from bench.harness import RESULTS, machine

MIB = 1 << 20
VALUE_BYTES = 100
BATCH_RECORDS = 100
DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000
_CHUNKS = {"max_entries": 5_000, "max_step_ms": 300_000}
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
    """Kafka segments of records of 100 B, 100 to a batch, each due at a time of its own; the bytes in all.

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
    """The index job with one task and with two; the same function called by one process, and by two side by side."""
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
        done = build_indexes(spark, folder, tasks=tasks).collect()
        assert ["built"] * segments == [row.action for row in done]

    def side_by_side() -> None:
        every = find_segments(OsFiles(), folder)
        assert [segments // 2] * 2 == list(processes.map(_index_all, (every[::2], every[1::2])))

    build_indexes(spark, folder, verify_only=True, tasks=2)  # workers are up, the page cache is warm
    with ProcessPoolExecutor(2, get_context("spawn")) as processes:
        list(processes.map(_index_all, ((), ())))
        calls = {
            "one process": cleared(alone),
            "two processes": cleared(side_by_side),
            "index job, 1 task": cleared(lambda: job(1)),
            "index job, 2 tasks": cleared(lambda: job(2)),
        }
        return {"bytes": size, "segments": segments, "spent": medians(rounds, calls)}


def _index_all(segments: Sequence[SegmentToIndex]) -> int:
    """The segments that were built."""
    config, clock = afterlog.Config(), afterlog.SystemClock()
    done = [index_segment(OsFiles(), each, config, clock, attempt=unused_name()) for each in segments]
    return sum(each.action == "built" for each in done)


def bench_upload(spark: Any, folder: Path, mib: int, rounds: int, segments: int = 16) -> dict[str, Any]:
    """The upload job to a directory with one task and with two, and what a task does called by one process."""
    from afterlog.spark.index_job import build_indexes
    from afterlog.spark.upload_job import upload_group, upload_segments

    size, storage = make_kafka_segments(folder, mib * MIB, segments, "none"), folder / "storage"
    build_indexes(spark, folder, tasks=2)

    def alone() -> None:
        done = upload_group(find_segments(OsFiles(), folder, ["bench"]), str(storage), {}, afterlog.Config())
        assert {"uploaded"} == {row.action for row in done}

    def job(tasks: int) -> None:
        done = upload_segments(spark, folder, str(storage), ["bench"], tasks=tasks).collect()
        assert ["uploaded"] * segments == [row.action for row in done]

    def emptied(call: Callable[[], object]) -> Callable[[], object]:
        def run() -> None:
            shutil.rmtree(storage, ignore_errors=True)
            storage.mkdir()
            call()

        return run

    calls = {
        "one process": emptied(alone),
        "upload job, 1 task": emptied(lambda: job(1)),
        "upload job, 2 tasks": emptied(lambda: job(2)),
    }
    return {"bytes": size, "segments": segments, "spent": medians(rounds, calls)}


def tell_rates(name: str, done: dict[str, Any]) -> None:
    alone = done["spent"]["one process"]
    print(f"{name}: {done['bytes'] / MIB:,.0f} MiB in {done['segments']} segments")
    for call, each in done["spent"].items():
        rate = done["bytes"] / MIB / each.wall
        faster = f"{alone.wall / each.wall:5.2f} x"
        print(f"  {call:26} {each.wall:7.2f} s, cpu {each.cpu:7.2f} s {rate:9,.0f} MiB/s {faster}")


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
        from afterlog.base.clock import SystemClock
        from afterlog.base.files import ReadOnlyFiles
        from afterlog.spark.arrow import record_batch
        from afterlog.spark.options import ReadOptions
        from afterlog.spark.ranges import RangePlanner, read_range
        from afterlog.spark.readable import readable

        asked = ReadOptions.parse(options)
        with readable(ReadOnlyFiles(), SystemClock(), asked) as source:
            ranges = RangePlanner(source, asked).batch()
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    for columns in read_range(source, asked.topic, ranges[number]):
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


def bench_write(spark: Any, folder: Path, records: int, rounds: int) -> dict[str, Any]:
    """A frame of 100 B values, due over a day, into a topic of two partitions, against the same frame into Parquet.

    Due by the minute many records share a batch; by the millisecond hardly any two do. `adopt` is what a commit does in
    the process that has the store open, of the former; `nothing` what planning, a commit and its processes cost.
    """
    from afterlog.spark.source import AfterlogDataSource

    spark.dataSource.register(AfterlogDataSource)
    store = folder / "written"
    with afterlog.open(store) as opened:
        opened.create_topic("bench", 2)

    def frame(step_ms: int, count: int = records) -> Any:
        due = f"{4 * NOW_MS} + pmod(hash(id), {DAY_MS}) div {step_ms} * {step_ms} AS deliver_after"
        return spark.range(0, count, 1, 4).selectExpr(
            f"CAST(rpad(CAST(id AS STRING), {VALUE_BYTES}, 'x') AS BINARY) AS value", due
        )

    def write(rows: Any, **options: str) -> None:
        rows.write.format("afterlog").option("topic", "bench").options(**options).mode("append").save(str(store))

    def parquet(rows: Any) -> None:
        rows.write.mode("overwrite").parquet(str(folder / "rows"))

    adopted: list[float] = []

    def prepare_and_adopt() -> None:
        """Each in its own process, as where a server has the store open; only the latter counts here."""
        write(frame(60_000), adopt="false")
        with afterlog.open(store) as opened:
            start_s = time.perf_counter()
            [done] = opened.adopt()
            adopted.append(time.perf_counter() - start_s)
        assert records == done.records

    calls: dict[str, Callable[[], object]] = {
        "afterlog, by the minute": lambda: write(frame(60_000)),
        "afterlog, by the ms": lambda: write(frame(1)),
        "Parquet, by the minute": lambda: parquet(frame(60_000)),
        "Parquet, by the ms": lambda: parquet(frame(1)),
        "prepared for store.adopt": prepare_and_adopt,
        "nothing": lambda: write(frame(1, 1)),
    }
    for call in calls.values():
        call()
    adopted.clear()
    return {"records": records, "spent": medians(rounds, calls), "adopt_s": statistics.median(adopted)}


def _as_it_is(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def make_runs(store: Path, entries: int, segments: int) -> None:
    """A store of one partition that has runs of sealed segments, and no log: nobody here reads one.

    Records of 100 B, an entry each, due at some millisecond of a day.
    """
    files, chance, folder = OsFiles(), np.random.default_rng(3), store / "bench-0"
    (folder / BUCKETS).mkdir(parents=True)
    write_topics(files, store, {"bench": TopicSettings()})
    count, marks = entries // segments, []
    for base in range(0, count * segments, count):
        due = NOW_MS + chance.integers(0, DAY_MS, count)
        position = np.cumsum(chance.integers(190, 210, count)) - 190
        behind, size = base + count, int(position[-1]) + 210
        columns = Entries(due, np.arange(base, behind), position, np.ones(count, np.int64)).sorted()
        coverage = Coverage(base, behind, base, 0, base, size)
        write_run(files, folder / run_key(base), [columns], coverage, **_CHUNKS)
        mark = {"base_offset": base, "end_offset": behind, "log_bytes": size, "max_deliver_after": int(due.max())}
        marks.append(SealedMark(**mark, max_timestamp=NOW_MS, index=NO_FILE, time_index=NO_FILE))
    known = replace(Checkpoints.of_new_log(count * segments), sealed=tuple(marks))
    CheckpointFile.create(files, folder / CHECKPOINTS, known)


def bench_buckets(spark: Any, store: Path, entries: int, rounds: int, segments: int = 64) -> dict[str, Any]:
    """The bucket job against one process: the engine's own merge, and a sort of all in memory."""
    from afterlog.spark.bucket_job import merge_buckets
    from afterlog.spark.bucket_plan import coverage_of, find_runs

    make_runs(store, entries, segments)
    files, group = OsFiles(), find_runs(OsFiles(), store)
    path = store / "bench-0" / bucket_key(0, group[-1].coverage.end_offset)

    def runs() -> list[Run]:
        return [Run.open(files, source.path) for source in group]

    def merge() -> None:
        write_run(files, path, merged(runs()), coverage_of(group), **_CHUNKS)

    def lexsort() -> None:
        every = Entries.concatenate([run.entries() for run in runs()])
        rows = np.lexsort((every.offset, every.deliver_after))
        write_run(files, path, [every.take(rows)], coverage_of(group), **_CHUNKS)

    def job(**how: Any) -> None:
        [row] = merge_buckets(spark, store, **how).collect()
        assert ("merged", group[-1].coverage.end_offset) == (row.action, row.entries)

    calls: dict[str, Callable[[], object]] = {
        "merge, one process": merge,
        "lexsort, one process": lexsort,
        "bucket job, 2 slices": lambda: job(tasks=2),
        "bucket job": job,
    }

    def cleared(call: Callable[[], object]) -> Callable[[], object]:
        def run() -> None:
            path.unlink(missing_ok=True)
            call()

        return run

    cleared(lambda: job(tasks=2))()  # workers are up
    spent = medians(rounds, {name: cleared(call) for name, call in calls.items()})
    return {"entries": entries, "run_bytes": sum(source.path.stat().st_size for source in group), "spent": spent}


def tell_buckets(done: dict[str, Any]) -> None:
    alone = done["spent"]["merge, one process"]
    print(f"bucket job: {done['entries']:,} entries in 64 runs of {done['run_bytes'] / MIB:,.0f} MiB")
    for name, each in done["spent"].items():
        rate = done["entries"] / each.wall / 1e6
        faster = f"{alone.wall / each.wall:5.2f} x; by CPU {each.cpu / alone.cpu:5.1f} cores are one merge"
        print(f"  {name:26} {each.wall:7.2f} s, cpu {each.cpu:7.2f} s {rate:7.2f} M entries/s {faster}")


def tell_read(read: dict[str, Any]) -> None:
    ours = read["spent"]["afterlog"]
    print(f"read: {read['records']:,} records, {read['log_bytes'] / MIB:,.0f} MiB of log")
    for name, each in read["spent"].items():
        rate = read["records"] / each.wall / 1e6
        of_it = f"afterlog has {each.wall / ours.wall:5.2f} of it, by CPU {each.cpu / ours.cpu:5.2f}"
        print(f"  {name:26} {each.wall:7.2f} s, cpu {each.cpu:7.2f} s {rate:7.2f} M records/s; {of_it}")


def tell_write(written: dict[str, Any]) -> None:
    ours = written["spent"]["afterlog, by the minute"]
    print(f"write: {written['records']:,} records")
    for name, each in written["spent"].items():
        rate = written["records"] / each.wall / 1e6
        of_it = f"afterlog has {each.wall / ours.wall:5.2f} of it, by CPU {each.cpu / ours.cpu:5.2f}"
        print(f"  {name:26} {each.wall:7.2f} s, cpu {each.cpu:7.2f} s {rate:7.2f} M records/s; {of_it}")
    rate = written["records"] / written["adopt_s"] / 1e6
    print(f"  {'store.adopt alone':26} {written['adopt_s']:7.2f} s {rate:26.2f} M records/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1_024, help="size of the segments to index")
    parser.add_argument("--codec", choices=get_args(Codec), default="none", help="how their batches are compressed")
    parser.add_argument("--records", type=int, default=4_000_000, help="records to read")
    parser.add_argument("--entries", type=int, default=20_000_000, help="entries to merge into a bucket")
    parser.add_argument("--only", choices=("index", "upload", "read", "write", "buckets"), help="one workload")
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
        if asked.only in (None, "index"):
            indexed = bench_index(spark, folder / "kafka", asked.mib, asked.codec, asked.rounds)
            tell_rates(f"index job ({asked.codec})", indexed)
        if asked.only in (None, "upload"):
            tell_rates("upload job", bench_upload(spark, folder / "upload", asked.mib // 4, asked.rounds))
        if asked.only in (None, "read"):
            tell_read(bench_read(spark, folder, asked.records, asked.rounds))
        if asked.only in (None, "write"):
            tell_write(bench_write(spark, folder, asked.records, asked.rounds))
        if asked.only in (None, "buckets"):
            tell_buckets(bench_buckets(spark, folder / "backlog", asked.entries, asked.rounds))
    finally:
        spark.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
