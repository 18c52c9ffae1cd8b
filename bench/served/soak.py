"""A server under mixed load for minutes, and whether its memory stays where it is.

    sender      sends one by one with delays of up to two seconds, and every tenth into a minute, which it cancels
    workers     two that receive ten at a time, ack most of it, and nack one of fifty once
                first some as fast as it can: only then are the caches as full as they get
    waiters     fifty connections a second begin to wait in a topic where nothing comes, and hang up a second later

What is looked at, once a second, is the private memory of the server and its resident memory, which has mapped pages of
the log besides: those grow with the log, and the system takes them back. Told are the medians of the first minute
behind the warm-up (a tenth of the time) and of the last, and the slope of a line through everything behind the warm-up.
"""

from __future__ import annotations

import multiprocessing
import random
import time
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import afterlog
from bench.rivals.ours import TOPIC
from bench.rivals.usage import used_s
from bench.served.clients import Figures
from bench.served.contestants import Contestant, metric
from bench.served.waiting import asking

WORKERS = 2
SUBSCRIPTION = "soak"
QUIET = "quiet"
_NACKED = 50
_CANCELLED = 10
_WAITERS = 50
"""Connections that wait at a time."""
_VALUE = b"v" * 100
FIRST = 60_000
"""Sent before the time begins. In process, where nothing else is, memory grows by 15 MB so long, and stays then."""


def soak(contestant: Contestant, minutes: float, rate: int, every_s: float = 1.0, first: int = FIRST) -> Figures:
    """So many sends a second, after the first ones. Raises RuntimeError where a client fails."""
    contestant.open()
    with afterlog.connect(contestant.folder) as store:
        store.create_topic(QUIET)
    context = multiprocessing.get_context("fork")
    stop, warm, counts = context.Event(), context.Event(), context.Queue()

    def started(life: Callable[..., dict[str, int]], *arguments: object) -> Any:
        target = (life, counts, contestant.folder, stop, *arguments)
        process = context.Process(target=_life, args=target, daemon=True)
        process.start()
        return process

    lives = [started(_sender, warm, first, rate), *(started(_worker) for _ in range(WORKERS)), started(_waiters)]
    while not warm.wait(1):
        _check_alive(lives)
    before_s = used_s(contestant.processes())
    samples, cpu_s = _watched(contestant, minutes * 60, every_s, lives), used_s(contestant.processes()) - before_s
    stop.set()
    done = dict[str, int]()
    for _ in lives:
        for name, count in counts.get(timeout=60).items():
            done[name] = done.get(name, 0) + count
    for each in lives:
        each.join()
    waits_left = metric(contestant.folder, "afterlog_server_waiting")
    contestant.close()
    return {"minutes": minutes, "rate": rate, "server_cpu_s": cpu_s, "wall_s": minutes * 60,
            **done, "waits_left": waits_left, **_flatness(samples)}  # fmt: skip


def _watched(contestant: Contestant, seconds: float, every_s: float, lives: list[Any]) -> np.ndarray:
    """float64[n, 3]: seconds since the start, private bytes, resident bytes."""
    rows, begun_s = list[tuple[float, int, int]](), time.monotonic()
    pid = contestant.processes()[0]
    while (now_s := time.monotonic() - begun_s) < seconds:
        rows.append((now_s, *_resident(pid)))
        _check_alive(lives)
        time.sleep(max(len(rows) * every_s - (time.monotonic() - begun_s), 0))
    return np.array(rows)


def _check_alive(lives: list[Any]) -> None:
    if not all(each.is_alive() for each in lives):
        raise RuntimeError("a client has ended; the reason stands above")


def _resident(pid: int) -> tuple[int, int]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = {line.split(":")[0]: line.split() for line in lines}
    return int(fields["RssAnon"][1]) * 1024, int(fields["VmRSS"][1]) * 1024


def _flatness(samples: np.ndarray) -> Figures:
    """Of the samples behind the warm-up. A minute, or a third of what there is."""
    seconds = float(samples[-1, 0])
    kept = samples[samples[:, 0] >= seconds / 10]
    part_s = min(60.0, (seconds - kept[0, 0]) / 3)
    first, last = kept[kept[:, 0] <= kept[0, 0] + part_s], kept[kept[:, 0] >= seconds - part_s]
    told: Figures = {"samples": len(samples)}
    for column, name in ((1, "private"), (2, "resident")):
        told[f"{name}_first_bytes"] = float(np.median(first[:, column]))
        told[f"{name}_last_bytes"] = float(np.median(last[:, column]))
        told[f"{name}_bytes_a_minute"] = 60 * float(np.polyfit(kept[:, 0], kept[:, column], 1)[0])
    return told


# The clients, each in a process of its own until it is told to stop.


def _life(life: Callable[..., dict[str, int]], counts: Any, *arguments: object) -> None:
    try:
        counts.put(life(*arguments))
    except BaseException:
        traceback.print_exc()
        raise


def _sender(folder: Path, stop: Any, warm: Any, first: int, rate: int) -> dict[str, int]:
    chance, sent, cancelled, begun_s = random.Random(1), 0, 0, time.monotonic()
    with afterlog.connect(folder) as store:
        while not stop.is_set():
            record = store.send(TOPIC, _VALUE, delay=60 if sent % _CANCELLED == 0 else chance.random() * 2)
            if sent % _CANCELLED == 0:
                cancelled += store.cancel(record).name == "CANCELLED"
            sent += 1
            if sent == first:
                begun_s = time.monotonic()
                warm.set()
            time.sleep(max((sent - first) / rate - (time.monotonic() - begun_s), 0))
    return {"sent": sent, "cancelled": cancelled}


def _worker(folder: Path, stop: Any) -> dict[str, int]:
    acked = nacked = 0
    with afterlog.connect(folder) as store, store.subscribe(TOPIC, SUBSCRIPTION) as subscription:
        while not stop.is_set():
            for message in subscription.receive(10, timeout=0.5):
                if message.offset % _NACKED or message.redelivery_count:
                    subscription.ack(message)
                    acked += 1
                else:
                    subscription.nack(message, delay=1)
                    nacked += 1
    return {"acked": acked, "nacked": nacked}


def _waiters(folder: Path, stop: Any) -> dict[str, int]:
    waits, open_now = 0, deque[Any]()
    while not stop.is_set():
        open_now.append(asking(folder, QUIET))
        waits += 1
        if len(open_now) > _WAITERS:
            open_now.popleft().close()
        time.sleep(1 / _WAITERS)
    for each in open_now:
        each.close()
    return {"waits": waits}
