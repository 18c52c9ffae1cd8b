"""What is held on disk over simulated weeks, and what keeping it small costs: ours, and RocksDB doing the same.

    python -m bench.cleaning [--records 5000] [--days 28] [--only "mix 1 %"] [--folder FOLDER]
    python -m bench.cleaning --tiered --only "mix 1 %"         the same in a folder as object storage, without RocksDB
    python -m bench.cleaning --tiny 200 [--records 60] [--days 28]    so many topics of that, mix 1 %, together
    python -m bench.cleaning --stalls [--folder FOLDER]

Each hour so many records of 100 bytes are sent, all that is due is taken, and a pass goes over the store; records are
kept for an hour behind their due time. *held* are the bytes of sealed logs, *alive* those of records that are to come
or within their hour. Bytes written are those that the process gave to the kernel (/proc/self/io), a byte of body.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import afterlog
from afterlog.log.partition_log import PartitionLog
from afterlog.tier.manifest import Manifest
from bench.harness import Times, machine
from bench.workloads import START_MS

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
BODY_BYTES = 100
Delays = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Workload:
    """delays: of so many records that are sent in an hour, the n-th; none: nothing is sent any more."""

    delays: Callable[[np.random.Generator, int, int], Delays]
    cancelled: float = 0.0
    """Of what is pending, as a share of what is sent, an hour later."""


def mix(far: float) -> Callable[[np.random.Generator, int, int], Delays]:
    """Most within a minute, some within a day, a few within a year."""

    def delays(draw: np.random.Generator, count: int, hour: int) -> Delays:
        which = draw.random(count)
        near, later, last = (draw.integers(1, most, count) for most in (60_000, DAY_MS, 365 * DAY_MS))
        return np.where(which < 0.9, near, np.where(which < 1 - far, later, last))

    return delays


def within(days: float) -> Callable[[np.random.Generator, int, int], Delays]:
    return lambda draw, count, hour: draw.integers(1, int(days * DAY_MS), count)


def burst(draw: np.random.Generator, count: int, hour: int) -> Delays:
    """All of what comes within the month on its first day, and nothing behind it."""
    return draw.integers(1, 30 * DAY_MS, 30 * count if hour < 24 else 0)


def lognormal(draw: np.random.Generator, count: int, hour: int) -> Delays:
    """Half an hour, as a rule; some for weeks."""
    return np.minimum(draw.lognormal(np.log(HOUR_MS / 2), 3.0, count), 365 * DAY_MS).astype(np.int64) + 1


WORKLOADS = {
    "mix 1 %": Workload(mix(0.01)),
    "mix 0.1 %": Workload(mix(0.001)),
    "mix 0.01 %": Workload(mix(0.0001)),
    "burst": Workload(burst),
    "within a year": Workload(within(365)),
    "within a month": Workload(within(30)),
    "within an hour": Workload(within(1 / 24)),
    "lognormal": Workload(lognormal),
    "half cancelled": Workload(within(30), cancelled=0.5),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=5_000)
    parser.add_argument("--days", type=int, default=28)
    parser.add_argument("--only", choices=WORKLOADS)
    parser.add_argument("--tiered", action="store_true", help="a pass of object storage behind each of retention")
    parser.add_argument("--tiny", type=int, metavar="TOPICS", help="many topics with few records each")
    parser.add_argument("--late", type=float, metavar="SHARE", help="a queue of which so many are acked a day later")
    parser.add_argument("--stalls", action="store_true", help="how long an append waits beside a cleaning")
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    print(json.dumps(machine()))
    if arguments.stalls:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            print(json.dumps(stalls(Path(folder))))
        return
    if arguments.tiny:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            print(json.dumps(tiny(Path(folder), arguments.tiny, min(arguments.records, 60), arguments.days)))
        return
    if arguments.late is not None:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            print(json.dumps(late(Path(folder), arguments.late, arguments.records, arguments.days)))
        return
    for name in [arguments.only] if arguments.only else WORKLOADS:
        for kept in (tiered,) if arguments.tiered else (ours, rocksdb):
            with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
                print(json.dumps(kept(Path(folder), name, arguments.records, arguments.days)), flush=True)


def tiered(folder: Path, name: str, records: int, days: int) -> dict[str, Any]:
    """Of a topic that is in object storage, too."""
    (folder / "remote").mkdir(parents=True)
    return ours(folder / "store", name, records, days, remote=f"file://{folder}/remote")


def ours(folder: Path, name: str, records: int, days: int, remote: str | None = None) -> dict[str, Any]:
    """A topic that keeps each record for an hour behind its due time."""
    clock, workload, draw = afterlog.ManualClock(START_MS), WORKLOADS[name], np.random.default_rng(1)
    config = afterlog.Config(durability=afterlog.OS, retention_check_interval_ms=None, checkpoint_ms=None)
    store = afterlog.open(folder, config=config, clock=clock, remote=remote)
    store.create_topic("t", retention_ms=HOUR_MS, remote_storage_enable=remote is not None)
    log: PartitionLog = store.topic("t").partition(0).log
    slack = config.cleaning_slack_bytes
    due, sent, bodies = np.empty(0, np.int64), 0, 0
    sending, passing, written_before = Times(), Times(), written_bytes()
    worst, most_held, most_segments, drained = 0.0, 0, 0, store.consumer("t", group="g")
    record_bytes, listed_mb, most_listed_mb = 0.0, 0.0, 0.0
    for hour in range(24 * days):
        at = clock.now_ms() + workload.delays(draw, records, hour)
        if len(at):
            with sending.measured():
                offsets = store.send_many("t", bodies_of(draw, len(at)), deliver_after=at)
            sent, bodies, due = sent + len(at), bodies + len(at) * BODY_BYTES, np.append(due, at)
            record_bytes = record_bytes or sum(segment.size for segment in log.version.segments) / sent
        clock.advance(HOUR_MS)
        if workload.cancelled and len(at):
            store.cancel_many("t", 0, offsets[draw.random(len(at)) < workload.cancelled])
        while len(drained.poll_columns(100_000)):
            pass
        with passing.measured():
            store.enforce_retention()
            log.merge_buckets()  # what a thread does between two passes
            store.enforce_retention()
            if remote is not None:
                store.offload()
        if store.tiering is not None:
            rows = Manifest(store.tiering.remote, "t-0").read()
            listed_mb = sum(row.log_bytes for row in rows) / 1e6
            most_listed_mb = max(most_listed_mb, listed_mb)
        due = due[due > clock.now_ms() - HOUR_MS]
        held = sum(segment.size for segment in log.version.sealed)
        alive = len(due) * record_bytes
        worst = max(worst, (held - slack) / max(alive, 1))
        most_held, most_segments = max(most_held, held), max(most_segments, len(log.version.sealed))
    done = log.cleaned
    store.close()
    return {
        "workload": name,
        "engine": "afterlog",
        "sent": sent,
        "alive_mb": round(alive / 1e6, 1),
        "held_mb": round(held / 1e6, 1),
        "most_held_mb": round(most_held / 1e6, 1),
        "worst_beyond_slack": round(worst, 2),
        "most_segments": most_segments,
        "listed_mb": round(listed_mb, 1),
        "most_listed_mb": round(most_listed_mb, 1),
        "cleaned_segments": done.segments,
        "log_bytes_written_per_byte": round(1 + done.written_bytes / (sent * record_bytes), 3),
        "written_per_body_byte": round((written_bytes() - written_before) / max(bodies, 1), 2),
        "send_us": round(1e6 * sum(sending.cpu_s) / max(sent, 1), 2),
        "pass_us": round(1e6 * sum(passing.cpu_s) / max(sent, 1), 2),
    }


def tiny(folder: Path, topics: int, records: int, days: int) -> dict[str, Any]:
    """Topics that get a record a minute, of which one in a hundred is due within a year.

    *beyond*: the most that any of them held beyond twice what is alive there, KiB; *cpu_s*: of a topic and a day, all
    seals and passes; the rest as of `ours`.
    """
    clock, draw, delays = afterlog.ManualClock(START_MS), np.random.default_rng(1), mix(0.01)
    config = afterlog.Config(durability=afterlog.OS, retention_check_interval_ms=None, checkpoint_ms=None)
    store = afterlog.open(folder, config=config, clock=clock)
    names = [f"t{number}" for number in range(topics)]
    store.create_topics(names, retention_ms=HOUR_MS)
    logs: list[PartitionLog] = [store.topic(name).partition(0).log for name in names]
    due, passing, record_bytes = [np.empty(0, np.int64)] * topics, Times(), 0.0
    beyond, most_segments, held, alive = 0.0, 0, 0, 0.0
    for hour in range(24 * days):
        for number, name in enumerate(names):
            at = clock.now_ms() + delays(draw, records, hour)
            store.send_many(name, bodies_of(draw, records), deliver_after=at)
            due[number] = np.append(due[number], at)
        record_bytes = record_bytes or logs[0].version.written.position / records
        clock.advance(HOUR_MS)
        with passing.measured():
            store.enforce_retention()
            for log in logs:
                log.merge_buckets()
        held, alive = 0, 0.0
        for number, log in enumerate(logs):
            due[number] = due[number][due[number] > clock.now_ms() - HOUR_MS]
            size, lives = sum(segment.size for segment in log.version.sealed), len(due[number]) * record_bytes
            held, alive = held + size, alive + lives
            beyond, most_segments = max(beyond, size - 2 * lives), max(most_segments, len(log.version.sealed))
    done = [log.cleaned for log in logs]
    store.close()
    return {
        "workload": "tiny",
        "topics": topics,
        "sent": topics * records * 24 * days,
        "alive_mb": round(alive / 1e6, 1),
        "held_mb": round(held / 1e6, 1),
        "beyond_kib": round(beyond / 1024, 1),
        "most_segments": most_segments,
        "cleaned_a_topic_and_day": round(sum(each.segments for each in done) / topics / days, 2),
        "log_bytes_written_per_byte": round(
            1 + sum(each.written_bytes for each in done) / (topics * records * 24 * days * record_bytes), 3
        ),
        "cpu_s": round(sum(passing.cpu_s) / topics / days, 4),
    }


def late(folder: Path, share: float, records: int, days: int) -> dict[str, Any]:
    """A queue (`retention_by_subscriptions`) of work that is due within an hour: some of it is acked a day later.

    As a retry with a long delay, or a handler that takes so long. *left_mb*: what is not acked.
    """
    clock, draw, delays = afterlog.ManualClock(START_MS), np.random.default_rng(1), within(1 / 24)
    config = afterlog.Config(durability=afterlog.OS, retention_check_interval_ms=None, checkpoint_ms=None)
    store = afterlog.open(folder, config=config, clock=clock)
    store.create_topic("t", retention_by_subscriptions=True)
    log: PartitionLog = store.topic("t").partition(0).log
    reader = store.subscribe("t", "s", lease_ms=10 * DAY_MS)
    held_back = list[tuple[int, Any]]()
    passing, acking, written_before = Times(), Times(), written_bytes()
    sent, record_bytes, most_held, most_ranges, held, left = 0, 0.0, 0, 0, 0, 0.0
    for hour in range(24 * days):
        at = clock.now_ms() + delays(draw, records, hour)
        store.send_many("t", bodies_of(draw, records), deliver_after=at)
        sent += records
        record_bytes = record_bytes or log.version.written.position / records
        clock.advance(HOUR_MS)
        with acking.measured():
            while received := reader.receive(10_000):
                is_late = (draw.random(len(received)) < share).tolist()
                reader.ack_many([each for each, waits in zip(received, is_late, strict=True) if not waits])
                held_back.append((hour, [each for each, waits in zip(received, is_late, strict=True) if waits]))
            while held_back and held_back[0][0] <= hour - 24:
                reader.ack_many(held_back.pop(0)[1])
        with passing.measured():
            store.enforce_retention()
            log.merge_buckets()
            store.enforce_retention()
        held = sum(segment.size for segment in log.version.sealed)
        left = sum(len(each) for _, each in held_back) * record_bytes
        most_held, most_ranges = max(most_held, held), max(most_ranges, len(log.index.acked.rows))
    done = log.cleaned
    store.close()
    return {
        "workload": "acked a day later",
        "share": share,
        "sent": sent,
        "left_mb": round(left / 1e6, 2),
        "held_mb": round(held / 1e6, 2),
        "most_held_mb": round(most_held / 1e6, 2),
        "most_ranges": most_ranges,
        "cleaned_segments": done.segments,
        "log_bytes_written_per_byte": round(1 + done.written_bytes / (sent * record_bytes), 3),
        "written_per_body_byte": round((written_bytes() - written_before) / max(sent * BODY_BYTES, 1), 2),
        "ack_us": round(1e6 * sum(acking.cpu_s) / sent, 2),
        "pass_us": round(1e6 * sum(passing.cpu_s) / sent, 2),
    }


def rocksdb(folder: Path, name: str, records: int, days: int) -> dict[str, Any]:
    """Keys by due time and number; what is an hour behind goes by a range each hour, what is cancelled by its key."""
    import rocksdict

    workload, draw = WORKLOADS[name], np.random.default_rng(1)
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_compression_type(rocksdict.DBCompressionType.none())
    options.set_write_buffer_size(4 << 20)
    options.set_max_background_jobs(2)
    db, now_ms = rocksdict.Rdict(str(folder / "db"), options), START_MS
    due, sent, written_before, sending, most_held = np.empty(0, np.int64), 0, written_bytes(), Times(), 0
    for hour in range(24 * days):
        at = now_ms + workload.delays(draw, records, hour)
        data, keys = bodies_of(draw, len(at)) if len(at) else (), []
        with sending.measured():
            writes = rocksdict.WriteBatch(raw_mode=True)
            for number, body in enumerate(_each(data), sent):
                keys.append(int(at[number - sent]).to_bytes(8, "big") + number.to_bytes(8, "big"))
                writes.put(keys[-1], body)
            db.write(writes)
        sent, due, now_ms = sent + len(at), np.append(due, at), now_ms + HOUR_MS
        with sending.measured():
            if workload.cancelled:
                writes = rocksdict.WriteBatch(raw_mode=True)
                for key, is_cancelled in zip(keys, draw.random(len(keys)) < workload.cancelled, strict=True):
                    if is_cancelled:
                        writes.delete(key)
                db.write(writes)
            db.delete_range(bytes(16), max(now_ms - HOUR_MS, 0).to_bytes(8, "big") + b"\xff" * 8)
        due = due[due > now_ms - HOUR_MS]
        held = _size(folder / "db")
        most_held = max(most_held, held)
    db.close()
    return {
        "workload": name,
        "engine": "RocksDB",
        "sent": sent,
        "alive_mb": round(len(due) * (BODY_BYTES + 16) / 1e6, 1),
        "held_mb": round(held / 1e6, 1),
        "most_held_mb": round(most_held / 1e6, 1),
        "written_per_body_byte": round((written_bytes() - written_before) / max(sent * BODY_BYTES, 1), 2),
        "send_us": round(1e6 * sum(sending.cpu_s) / max(sent, 1), 2),
    }


def stalls(folder: Path, megabytes: int = 64, appends: int = 2_000) -> dict[str, Any]:
    """Appends of 100 records every 2 ms, by themselves, and while a thread writes segments anew of which half is alive.

    ms; the cleaning as the thread of retention does it, at its pace, and without.
    """
    clock = afterlog.ManualClock(START_MS)
    config = afterlog.Config(durability=afterlog.OS, segment_bytes=16 << 20, retention_check_interval_ms=None)
    found: dict[str, Any] = {}
    for pace in ("alone", "paced", "unpaced"):
        store = afterlog.open(folder / pace, config=config, clock=clock)
        store.create_topics(["t", "beside"], retention_ms=0)
        log = store.topic("t").partition(0).log
        draw = np.random.default_rng(1)
        for _ in range(megabytes * (1 << 20) // (205 * 10_000)):
            due = clock.now_ms() + np.where(draw.random(10_000) < 0.55, 1, 10**9)
            store.send_many("t", bodies_of(draw, 10_000), deliver_after=due)
        log.roll()
        log.merge_buckets()
        clock.advance(10)
        store.topic("t").partition(0).high_watermark()
        cleanup = store._cleaning_up()
        if pace != "alone":
            cleaning = threading.Thread(target=cleanup.run, kwargs={"raising": pace == "unpaced"})
            cleaning.start()
        data, took, number = bodies_of(draw, 100), list[float](), 0
        while number < appends or (pace != "alone" and cleaning.is_alive()):
            begun = time.perf_counter()
            store.send_many("t" if number % 2 else "beside", data, delay=3_600)
            took.append(1000 * (time.perf_counter() - begun))
            time.sleep(0.002)
            number += 1
        took.sort()
        marks = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
        found[pace] = {name: round(took[int(len(took) * share)], 2) for name, share in marks.items()}
        found[pace] |= {"longest": round(took[-1], 2), "written_mb": round(log.cleaned.written_bytes / 1e6, 1)}
        store.close()
    return found


def bodies_of(draw: np.random.Generator, count: int) -> tuple[Delays, npt.NDArray[np.uint8]]:
    """Random bytes, as columns."""
    return np.arange(count + 1) * BODY_BYTES, draw.integers(0, 256, count * BODY_BYTES, np.uint8)


def _each(data: Any) -> Iterator[bytes]:
    if data:
        offsets, content = data
        whole = content.tobytes()
        for first in offsets[:-1].tolist():
            yield whole[first : first + BODY_BYTES]


def _size(folder: Path) -> int:
    """Of its files; some go meanwhile."""
    total = 0
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def written_bytes() -> int:
    """That this process gave to the kernel so far."""
    with open("/proc/self/io") as file:
        return int(next(line for line in file if line.startswith("wchar")).split()[1])


if __name__ == "__main__":
    main()
