"""What replication costs: records copied from one store to another, against the same appended; acks out of order, told.

    python -m bench.replication FOLDER 500000 1000000     so many records, so many acks, as JSON; FOLDER must be empty

Records are 100 bytes, sent 1,000 at a time, durability `os`. The append and the copy take turns, 50,000 records each,
so that both have the same minute; a copy is a slice given, checked, appended, synced. Every second record is acked, in
a random order, by the columns that a reader has; what is measured is what replication adds: the look at what was acked,
the markers, and taking them in at the other store.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import afterlog
from afterlog.clock import ManualClock
from afterlog.replication.link import Link
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


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])), indent=1))
