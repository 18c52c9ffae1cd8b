"""The workloads of subscriptions, as plain functions of a store or a folder; `tests/test_bench.py` runs them, tiny.

python -m bench.subscriptions retries FOLDER 1000000      runs one of those that want a process of their own
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path

import afterlog
from afterlog.subscription.partition_subscription import PartitionSubscription
from bench.harness import Times, read_bytes, resident_bytes
from bench.workloads import HOUR_MS, START_MS, TOPIC, drain, dues, make_due, new_store, values

RECORD_BYTES = 100
AT_ONCE = 1_000
"""Records of one `receive` in bulk."""
LONG_MS = 24 * HOUR_MS
"""A lease that does not end meanwhile."""


def filled(folder: Path, records: int, durability: afterlog.Durability = afterlog.OS) -> afterlog.Store:
    """A store with so many records, all due."""
    store = new_store(folder, durability)
    for start in range(0, records, 1_000_000):
        part = min(records - start, 1_000_000)
        store.send_many(TOPIC, values(part, RECORD_BYTES), deliver_after=dues("uniform", part))
    make_due(store)
    return store


def advance(store: afterlog.Store, ms: int) -> None:
    clock = store.clock
    assert isinstance(clock, afterlog.ManualClock)
    clock.advance(ms)


def receive_and_ack(store: afterlog.Store, name: str, at_once: int = AT_ONCE) -> int:
    """Receive and ack all that is due, in bulk; the number of records."""
    count = 0
    with store.subscribe(TOPIC, name) as subscription:
        while received := subscription.receive(at_once):
            count += subscription.ack_many(received).acked
    return count


def work_off_each(store: afterlog.Store, name: str, count: int) -> Times:
    """Iterate over `count` messages, each acked by its block; the times from one to the next."""
    times = Times()
    with store.subscribe(TOPIC, name) as subscription:
        messages = iter(subscription)
        for _ in range(count):
            with times.measured(), next(messages):
                pass
    return times


def nack_all(store: afterlog.Store, subscription: afterlog.Subscription, at_once: int = AT_ONCE) -> int:
    """Receive and nack, until each due record had its turn; they are due again after that. How many there were."""
    count = 0
    while received := subscription.receive(at_once):
        count += subscription.nack(received, delay=1).done
    advance(store, 2_000)
    return count


def journal_bytes(folder: Path) -> int:
    """What the journals of all subscriptions take."""
    return sum(path.stat().st_size for path in folder.glob(f"{TOPIC}-0/subscriptions/*/journal-*"))


def nack_rounds(folder: Path, records: int, rounds: int) -> dict[str, float]:
    """All records nacked so many times over, and drained once: times, and how large the journal was between rounds."""
    sizes, nacking = [], Times()
    with filled(folder, records) as store, store.subscribe(TOPIC, "rounds") as subscription:
        result = drained(store)
        for _ in range(rounds):
            with nacking.measured():
                assert records == nack_all(store, subscription)
            sizes.append(journal_bytes(folder))
    result |= {"nack_cpu_s": sum(nacking.cpu_s), "nack_wall_s": sum(nacking.wall_s)}
    return result | {"first_bytes": sizes[0], "last_bytes": sizes[-1], "most_bytes": max(sizes)}


def retries(folder: Path, records: int) -> dict[str, float]:
    """So many records nacked and waiting, then received again and acked: times, and memory that is no file mapping.

    `held_bytes` is what the structures say that they have allocated, `resident_bytes` what the process has grown by.
    """
    nacking, again = Times(), Times()
    with filled(folder, records) as store, store.subscribe(TOPIC, "retries", lease_ms=LONG_MS) as subscription:
        receive_and_ack(store, "warm")
        result = drained(store)
        base = resident_bytes()["anonymous"]
        with nacking.measured():
            while received := subscription.receive(AT_ONCE):
                subscription.nack(received)
        result["retrying"] = subscription.stats().retrying
        result |= {"resident_bytes": resident_bytes()["anonymous"] - base, "journal_bytes": journal_bytes(folder)}
        result["held_bytes"] = held_bytes(subscription.shared[0])
        advance(store, 2_000)
        with again.measured():
            while received := subscription.receive(AT_ONCE):
                subscription.ack_many(received)
        result["acked"] = subscription.stats().acked
    for name, times in (("nack", nacking), ("again", again)):
        result |= {f"{name}_cpu_s": times.cpu_s[0], f"{name}_wall_s": times.wall_s[0]}
    return result


def drained(store: afterlog.Store) -> dict[str, float]:
    """How long a consumer takes for all records."""
    times = Times()
    with times.measured():
        drain(store, f"g{next(names)}")
    return {"drain_cpu_s": times.cpu_s[0], "drain_wall_s": times.wall_s[0]}


def held_bytes(subscription: PartitionSubscription) -> int:
    """What is known of records that came back, and their times."""
    return subscription._state.redeliveries.memory_bytes() + subscription._timers.memory_bytes()


def holes(folder: Path, count: int) -> dict[str, float]:
    """So many records leased, and as many between them acked: what one ack costs then. The process dies like that."""
    more = min(count, 1_000)
    store, single = filled(folder, 2 * (count + more)), Times()
    subscription = store.subscribe(TOPIC, "holes", lease_ms=LONG_MS)
    [shared] = subscription.shared
    while received := subscription.receive(100_000):
        offsets = received.columns.delivery_offset
        shared.ack(offsets[offsets % 2 == 1])
    for offset in range(0, 2 * more, 2):
        with single.measured():
            shared.ack([offset])
    figures = {f"ack_{name}": value / 1e9 for name, value in single.summary(1).items()}
    return figures | {"leased": subscription.stats().leased, "journal_bytes": journal_bytes(folder)}


def reopen_holes(folder: Path, close: int = 0) -> dict[str, float]:
    """Open the subscription that was left with holes; the floor reads its journal once. Unless closed, it dies."""
    store = afterlog.open(folder, clock=afterlog.ManualClock(START_MS + 48 * HOUR_MS))
    opening, floor = Times(), Times()
    with floor.measured():
        for path in folder.glob(f"{TOPIC}-0/subscriptions/holes/journal-*"):
            read_bytes(path)
    with opening.measured():
        subscription = store.subscribe(TOPIC, "holes")
    retrying = subscription.stats().retrying
    if close:
        store.close()
    return {
        "retrying": retrying,
        "open_cpu_s": opening.cpu_s[0],
        "open_wall_s": opening.wall_s[0],
        "floor_cpu_s": floor.cpu_s[0],
        "floor_wall_s": floor.wall_s[0],
    }


names = itertools.count()
"""For subscriptions that begin anew."""

if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](Path(sys.argv[2]), *map(int, sys.argv[3:]))), flush=True)
    os._exit(0)
