"""What replication costs: records copied from one store to another, against the same appended; acks out of order, told.

    python -m bench.replication FOLDER 500000 1000000     so many records, so many acks, as JSON; FOLDER must be empty
    python -m bench.replication FOLDER 40                 so many records, one a second: when acks are known elsewhere

Records are 100 bytes, sent 1,000 at a time, durability `os`. The append and the copy take turns, 50,000 records each,
so that both have the same minute; a copy is a slice given, checked, appended, synced. Every second record is acked, in
a random order, by the columns that a reader has; what is measured is what replication adds: the look at what was acked,
the markers, and taking them in at the other store. One a second: a replicator in threads, two clusters and three; from
the ack to when all others would not hand the record out, looked at every 5 ms, and what that leaves in each log.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import afterlog
from afterlog.base.clock import ManualClock
from afterlog.replication.link import Link
from afterlog.replication.replicator import Replicator
from afterlog.replication.store_cluster import StoreCluster
from bench.harness import Pair, Times, machine
from bench.workloads import START_MS, TOPIC, new_store

VALUE = b"v" * 100
CALL = 1_000
TURN = 50_000
NAME = "worker"


def measure(folder: Path, records: int, acks: int) -> dict[str, Any]:
    """All figures."""
    return {"machine": machine(), "copy": _copied(folder / "copy", records)} | {"acks": _acked(folder / "acks", acks)}


def _stores(folder: Path) -> tuple[afterlog.Store, afterlog.Store]:
    here, there = new_store(folder / "here", afterlog.OS), new_store(folder / "there", afterlog.OS)
    return here, there


def _fill(store: afterlog.Store, records: int, due_ms: int) -> None:
    values = [VALUE] * CALL
    for first in range(0, records, CALL):
        due = due_ms + np.arange(first, first + CALL) // 10
        store.send_many(TOPIC, values, deliver_after=due, partition=0, check_instants=False)


def _copied(folder: Path, records: int) -> dict[str, Any]:
    here, there = _stores(folder)
    with here, there:
        link, pair = Link(StoreCluster(here, "here"), StoreCluster(there, "there"), here.clock), Pair(TURN)
        link.step()
        for turn in range(records // TURN):
            with pair.floor.measured():
                _fill(here, TURN, START_MS + turn * TURN)
                here.sync()
            with pair.ours.measured():
                while link.step():
                    pass
        assert link.records == records == there.topic(TOPIC).partition(0).log_end_offset
        return {"records": records, **pair.figures()}


def _acked(folder: Path, acks: int) -> dict[str, Any]:
    here, there = _stores(folder)
    clusters = StoreCluster(here, "here"), StoreCluster(there, "there")
    with here, there:
        _fill(here, 2 * acks, START_MS)
        link = Link(*clusters, here.clock)
        while link.step():
            pass
        for store in (here, there):
            assert isinstance(store.clock, ManualClock)
            store.clock.advance(10 * acks)
        clusters[0].tick()
        log = here.topic(TOPIC).partition(0).log
        begun = log.version.written.position
        told, heard = Times(), Times()
        with here.subscribe(TOPIC, NAME, replicated=True) as reader:
            chance = np.random.default_rng(1)
            while received := reader.receive(65_536, timeout=0):
                rows = chance.permutation(len(received))
                for part in np.array_split(rows[: len(rows) // 2], 16):
                    reader.ack_many(received.receipts.at(part))
                with told.measured():
                    clusters[0].tick()
                with heard.measured():
                    while link.step():
                        pass
        [subscription] = there.open_subscriptions()
        assert acks == sum(map(len, subscription._state.elsewhere.values()))
        return {
            "acks": acks,
            "told_cpu_us": round(1e6 * sum(told.cpu_s) / acks, 3),
            "heard_cpu_us": round(1e6 * sum(heard.cpu_s) / acks, 3),
            "marker_bytes": round((log.version.written.position - begun) / acks, 2),
        }


def heard(folder: Path, clusters: int, records: int) -> dict[str, Any]:
    """From an ack to when all other clusters know, and entries in each log for a record."""
    chance = np.random.default_rng(1)
    with contextlib.ExitStack() as stack:
        stores = [stack.enter_context(afterlog.open(folder / f"c{number}")) for number in range(clusters)]
        origin = stores[0].create_topic(TOPIC).origin
        stack.enter_context(Replicator([StoreCluster(store) for store in stores]))
        reader = stack.enter_context(stores[0].subscribe(TOPIC, NAME, replicated=True))
        while not all(store.topics() for store in stores):
            time.sleep(0.1)
        logs, waits = [store.topic(TOPIC).log(0) for store in stores], list[float]()
        begun = [log.written for log in logs]
        for _ in range(records):
            stores[0].send(TOPIC, VALUE)
            [message] = reader.receive(1, timeout=10)
            time.sleep(chance.uniform(0.1, 0.9))
            started = time.monotonic()
            reader.ack(message)
            while not _known(stores[1:], clusters - 1, origin, message.offset):
                time.sleep(0.005)
            waits.append(time.monotonic() - started)
            time.sleep(max(1 - (time.monotonic() - started), 0))
        p50, p99 = np.quantile(waits, [0.5, 0.99]) * 1_000
        entries = [round((log.written - first) / records, 1) for log, first in zip(logs, begun, strict=True)]
        return {"p50_ms": round(p50), "p99_ms": round(p99), "entries_per_record": entries}


def _known(others: list[afterlog.Store], count: int, origin: str, offset: int) -> bool:
    parts = [part for store in others for part in store.open_subscriptions()]
    return len(parts) == count and all(offset in part.acks().elsewhere.get(origin, ()) for part in parts)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        found = {number: heard(Path(sys.argv[1]) / str(number), number, int(sys.argv[2])) for number in (2, 3)}
        print(json.dumps({"machine": machine(), "clusters": found}, indent=1))
    else:
        print(json.dumps(measure(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])), indent=1))
