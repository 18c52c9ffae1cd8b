"""Sends one by one, sends in bulk, receives and acks: what every contestant can do."""

from __future__ import annotations

import time

import numpy as np

from bench.rivals.load import HOUR_MS, SEED, Batch, made, numbers_in
from bench.rivals.rival import Handed
from bench.served.clients import Alone, Figures, at_once
from bench.served.contestants import Contestant

SIZE = 100
WARM = 20
"""Sends of each client before it is measured."""
_WARM_CALLS = 3
"""Receives with their acks, before."""
_TELL_S = 0.3
"""Within that a server has counted what a client did that is gone."""


def sends(contestant: Contestant, clients: int, records: int) -> Figures:
    """So many clients send `records` together, one by one, each durable when its call returns; due within hours."""
    contestant.open()
    each = records // clients
    bodies = _batch(clients * (each + WARM)).bodies
    due_ms = now_ms() + HOUR_MS

    def send(mine: Contestant, rows: range) -> list[float]:
        calls = list[float]()
        for row in rows:
            begun_s = time.perf_counter()
            mine.send(due_ms + row * 1_000_003 % HOUR_MS, bodies[row])
            calls.append(time.perf_counter() - begun_s)
        return calls

    def warm(mine: Contestant, number: int) -> list[float]:
        return send(mine, range(number * WARM, (number + 1) * WARM))

    def work(mine: Contestant, number: int) -> list[float]:
        first = clients * WARM + number * each
        return send(mine, range(first, first + each))

    before = contestant.syncs()
    used = at_once(contestant, clients, warm, work)
    time.sleep(_TELL_S)
    after = contestant.syncs()
    shared = {} if before is None or after is None else {"records_per_sync": len(bodies) / max(after - before, 1)}
    contestant.close()
    p50, p99 = np.percentile(used.calls_s, (50, 99)) * 1e3
    return {"records": clients * each, **used.figures(), "p50_ms": float(p50), "p99_ms": float(p99), **shared}


def bulk(contestant: Contestant, batch: int, records: int) -> Figures:
    """One client sends `batch` at a time: columns, where the contestant takes them."""
    contestant.open()
    mine = contestant.beside()
    mine.fill(_batch(batch, records))
    alone = Alone(contestant)
    for first in range(0, records, batch):
        with alone.meter.paused():
            made_now = _batch(min(batch, records - first), first)
            _ = contestant.objects and made_now.bodies
        mine.fill(made_now)
    used = alone.used()
    mine.settled()
    contestant.close()
    return {"records": records, **used.figures()}


def drain(contestant: Contestant, limit: int, records: int) -> Figures:
    """One client receives up to `limit` at a time and acks them, until nothing is left. AssertionError where a record
    does not come, or comes twice."""
    contestant.open()
    filler, total = contestant.beside(), records + _WARM_CALLS * limit
    due, end_ms = np.full(total, now_ms(), np.int64), now_ms() + HOUR_MS
    for first in range(0, total, 1_000):
        filler.fill(made(due[first : first + 1_000], first, SIZE))
    mine, seen = contestant.beside(), np.zeros(total, np.int64)

    def received() -> Handed:
        handed = mine.lease(end_ms, limit)
        if len(handed):
            mine.ack(handed)
        return handed

    def see(handed: Handed) -> None:
        np.add.at(seen, numbers_in(handed.bodies, SIZE), 1)

    for _ in range(_WARM_CALLS):
        see(received())
    alone = Alone(contestant)
    while handed := received():
        with alone.meter.paused():
            see(handed)
    used = alone.used()
    assert bool((seen == 1).all()), f"{int((seen == 0).sum())} records are lost, {int((seen > 1).sum())} came twice"
    filler.settled()
    mine.settled()
    contestant.close()
    return {"records": records, **used.figures()}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _batch(count: int, first: int = 0) -> Batch:
    """Records due uniformly over the hour behind the next one, all of their own."""
    random = np.random.default_rng(SEED + first)
    return made(now_ms() + HOUR_MS + random.integers(0, HOUR_MS, count), first, SIZE)
