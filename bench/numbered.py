"""What it costs that producers number what they send: a send by itself, records in bulk, and what is remembered.

python -m bench.numbered FOLDER 100000      sends, and figures with so many producers, as JSON; FOLDER must be empty

Every record is 100 bytes, durability `os`, so that no sync is counted. Ordinary and numbered sends take turns, a
hundred at a time, so that both have the same minute; times are CPU, of one call or of one record.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import afterlog
from afterlog.produce.numbered import AppendRequest
from afterlog.records.single import SingleRecord
from bench.harness import Times, machine, resident_bytes
from bench.workloads import START_MS, TOPIC, new_store

VALUE = b"v" * 100
DUE_MS = START_MS + 86_400_000
TURN = 100
GROUP = 100
"""Requests that come together."""


def measure(folder: Path, producers: int, turns: int = 200, call_records: int = 50_000) -> dict[str, Any]:
    """All figures."""
    figures: dict[str, Any] = {"producers": producers}
    with new_store(folder / "few", afterlog.OS) as store:
        figures |= _sends(store, turns)
        figures |= _bulk(store, call_records)
    return figures | _remembered(folder / "many", producers)


def _sends(store: afterlog.Store, turns: int) -> dict[str, Any]:
    """An ordinary send, a numbered one, one that is there already, and a request among GROUP in one append."""
    times = {name: Times() for name in ("send", "send_numbered", "send_again", "request_together")}
    topic, sequence = store.topic(TOPIC), 0
    for turn in range(turns):
        for _ in range(TURN):
            with times["send"].measured():
                store.send(TOPIC, VALUE, deliver_after=DUE_MS, partition=0)
        for _ in range(TURN):
            sent = afterlog.ProducerSequence(7, 0, sequence)
            for name in ("send_numbered", "send_again"):
                with times[name].measured():
                    store.send(TOPIC, VALUE, deliver_after=DUE_MS, partition=0, sequence=sent)
            sequence += 1
        record = SingleRecord(VALUE, None, b"", START_MS, DUE_MS)
        requests = [AppendRequest(record, afterlog.ProducerSequence(100 + row, 0, turn)) for row in range(GROUP)]
        with times["request_together"].measured():
            topic.append_together(0, requests)
    return {name: each.summary(GROUP if name == "request_together" else 1) for name, each in times.items()}


def _bulk(store: afterlog.Store, records: int) -> dict[str, Any]:
    """A record of a call of many, each due in another millisecond: a batch each."""
    due, values = DUE_MS + np.arange(records), [VALUE] * records
    times = {name: Times() for name in ("record", "record_numbered")}
    for turn in range(7):
        with times["record"].measured():
            store.send_many(TOPIC, values, deliver_after=due, partition=0)
        with times["record_numbered"].measured():
            sent = afterlog.ProducerSequence(8, 0, turn * records)
            store.send_many(TOPIC, values, deliver_after=due, partition=0, sequence=sent)
    return {name: each.summary(records) for name, each in times.items()}


def _remembered(folder: Path, producers: int) -> dict[str, Any]:
    """Memory, file and times with so many producers of six records each, none of them next to the one before."""
    store = new_store(folder, afterlog.OS)
    topic, record = store.topic(TOPIC), SingleRecord(VALUE, None, b"", START_MS, DUE_MS)
    for first in range(0, producers, 1_000):  # memory that is given back and taken again is not counted
        topic.append_together(0, [AppendRequest(record) for _ in range(min(1_000, producers - first))])
    before = resident_bytes()["anonymous"]
    after_one = 0
    for sequence in range(6):
        for first in range(0, producers, 1_000):
            numbers = range(first, min(first + 1_000, producers))
            sent = [afterlog.ProducerSequence(2**60 + number, 0, sequence) for number in numbers]
            topic.append_together(0, [AppendRequest(record, each) for each in sent])
        after_one = after_one or resident_bytes()["anonymous"]
    log = topic.log(0)
    states = log.version.producers
    assert states is not None
    held = states.copy()
    figures: dict[str, Any] = {
        "resident_bytes_a_producer": (resident_bytes()["anonymous"] - before) / producers,
        "bytes_a_producer": sum(map(sys.getsizeof, (*held, *held.values()))) / producers
        + sys.getsizeof(held) / producers,
    }
    figures["checkpoint_s"] = _wall_s(log.checkpoint)
    [file] = (folder / f"{TOPIC}-0").glob("producers-*")
    figures["file_bytes"] = file.stat().st_size
    store.close()
    figures["reopen_s"] = _wall_s(
        lambda: afterlog.open(folder, config=store.config, clock=store.clock).topic(TOPIC).log(0)
    )
    return figures


def _wall_s(call: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    call()
    return time.perf_counter() - began_s


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), int(sys.argv[2])) | {"machine": machine()}, indent=2))
