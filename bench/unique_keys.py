"""What a unique key costs: a send by itself, records in bulk, and a look-up among many that are pending.

python -m bench.unique_keys FOLDER 1000000      sends, and figures among so many pending, as JSON; FOLDER must be empty

Every key is another one, `order-<number>`, every record 100 bytes, durability `os`, so that no sync is counted. What is
pending was sent in calls of 50,000, each due in another millisecond; times are CPU, of one call or of one record.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

import afterlog
from bench.harness import Times, machine, resident_bytes
from bench.workloads import START_MS, TOPIC, new_store

VALUE = b"v" * 100
CALL_RECORDS = 50_000
FAR_MS = 86_400_000
TIMES = 2_000


def keys(first: int, records: int) -> list[bytes]:
    return [b"order-%d" % number for number in range(first, first + records)]


def measure(folder: Path, pending: int, times: int = TIMES, call_records: int = CALL_RECORDS) -> dict[str, Any]:
    """All figures, among so many pending."""
    figures: dict[str, Any] = {"pending": pending}
    with new_store(folder / "plain", afterlog.OS) as store:
        figures["send"] = _each(times, lambda number: store.send(TOPIC, VALUE, deliver_after=START_MS + FAR_MS))
        moved = [store.send(TOPIC, VALUE, deliver_after=START_MS + FAR_MS) for _ in range(times)]
        figures["reschedule"] = _each(times, lambda row: store.reschedule(moved[row], delay=90_000))
        figures["record_of_send_many"] = _bulk(store, call_records, None, "raise")
    before = resident_bytes()["anonymous"]
    store = new_store(folder / "keyed", afterlog.OS)
    filled = Times()
    for first in range(0, pending, call_records):
        held = keys(first, min(call_records, pending - first))
        with filled.measured():
            store.send_many(TOPIC, [VALUE] * len(held), deliver_after=_dues(len(held)), unique_keys=held)
    figures["record_while_filling"] = filled.summary(min(call_records, pending))
    log = store.topic(TOPIC).partition(0).log
    log.checkpoint()
    log.merge_buckets()
    del held
    figures["anonymous_bytes"] = resident_bytes()["anonymous"] - before
    files = sorted((folder / "keyed" / f"{TOPIC}-0").glob("*.uniquekeys"))
    figures |= {"files": len(files), "file_bytes": sum(path.stat().st_size for path in files)}
    store.close()
    began_s = time.perf_counter()
    store = afterlog.open(folder / "keyed", config=store.config, clock=store.clock)
    log = store.topic(TOPIC).partition(0).log
    figures["open_ms"] = round((time.perf_counter() - began_s) * 1000, 1)
    began_s = time.perf_counter()
    store.send(TOPIC, VALUE, deliver_after=START_MS + FAR_MS, unique_key=b"the first")
    figures["first_send_ms"] = round((time.perf_counter() - began_s) * 1000, 1)
    number, far = count(pending), START_MS + FAR_MS

    def send(way: Any, numbers: Callable[[int], int]) -> dict[str, float]:
        return _each(
            times,
            lambda row: store.send(
                TOPIC, VALUE, deliver_after=far, unique_key=b"order-%d" % numbers(row), on_conflict=way
            ),
        )

    chance = np.random.default_rng(1).permutation(pending)
    figures["send_new"] = send("raise", lambda _: next(number))
    figures["send_kept"] = send("keep", lambda row: int(chance[row % pending]))
    figures["send_replacing"] = send("replace", lambda row: int(chance[row % pending]))
    figures["send_replacing_one_key"] = send("replace", lambda _: 0)
    figures["record_new"] = _bulk(store, call_records, keys(next(number) + 10_000_000, call_records), "raise")
    figures["record_kept"] = _bulk(store, call_records, keys(0, call_records), "keep")
    store.close()
    return figures


def _each(times: int, call: Callable[[int], object]) -> dict[str, float]:
    measured = Times()
    for row in range(times):
        with measured.measured():
            call(row)
    return measured.summary(1)


def _bulk(store: afterlog.Store, records: int, held: list[bytes] | None, way: Any) -> dict[str, float]:
    measured, values, dues = Times(), [VALUE] * records, _dues(records)
    with measured.measured():
        store.send_many(TOPIC, values, deliver_after=dues, unique_keys=held, on_conflict=way)
    return measured.summary(records)


def _dues(records: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return START_MS + FAR_MS + np.arange(records)


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), int(sys.argv[2])) | {"machine": machine()}, indent=2))
