"""How late records come to many clients that wait: served, and in process.

Each client is a task of asyncio with a subscription of its own: it waits for one record, acks it, and waits again. The
records are there before; they fall due at random instants, so many a second. Lateness is from the instant at which a
record is due until its client has it, by the one wall clock. That of the ack behind it does not count, its work does.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
import traceback
from typing import Any

import numpy as np

import afterlog
import afterlog.aio
from afterlog.store.aio_calls import Calls
from bench.rivals.load import SEED, made
from bench.rivals.ours import TOPIC
from bench.rivals.usage import used_s
from bench.served.clients import PATIENCE_S, Figures
from bench.served.contestants import AfterlogInProcess, AfterlogServed
from bench.served.work import SIZE, now_ms

PROCESSES = 2
"""Among which the clients of a server are. A store in process has its own alone."""
_LEAD_MS, _QUIET_MS = 2_000, 2_000
"""From the sends to the first that is due. It ends when nothing has come for so long and nothing is still to be due."""
_NAME = "late"


def lateness(contestant: AfterlogInProcess, clients: int, rate: int, seconds: float) -> Figures:
    """ms; the largest also by itself, since the clients wait behind each other where many are due at once."""
    contestant.open()
    total = int(rate * seconds)
    if isinstance(contestant, AfterlogServed):
        late, client_s, server_s = _served(contestant, clients, total, seconds)
    else:
        late, client_s, server_s = _in_process(contestant.store, clients, total, seconds)
    contestant.close()
    assert total == len(late), f"{total - len(late)} of {total} records did not come"
    p50, p99 = np.percentile(late, (50, 99))
    return {
        "records": total, "clients": clients, "rate": rate, "early": int((late < 0).sum()),
        "p50_ms": float(p50), "p99_ms": float(p99), "max_ms": float(late.max()),
        "client_cpu_s": client_s, "server_cpu_s": server_s, "wall_s": seconds,
    }  # fmt: skip


def _in_process(store: Any, clients: int, total: int, seconds: float) -> tuple[np.ndarray, float, float]:
    """The store that is open here, by asyncio."""

    async def run() -> tuple[np.ndarray, float]:
        calls = afterlog.aio.AsyncStore(store, Calls())
        waiting = await _Waiting.begun(calls, clients)
        cpu_s = time.process_time()
        last_ms = await asyncio.to_thread(_send, store, total, seconds)
        late = await waiting.until(last_ms)
        return late, time.process_time() - cpu_s

    late, cpu_s = asyncio.run(run())
    return late, cpu_s, 0.0


def _served(contestant: AfterlogServed, clients: int, total: int, seconds: float) -> tuple[np.ndarray, float, float]:
    context = multiprocessing.get_context("fork")
    ends = [context.Pipe() for _ in range(PROCESSES)]
    shares = [clients // PROCESSES + (number < clients % PROCESSES) for number in range(PROCESSES)]
    running = [
        context.Process(target=_client, args=(str(contestant.folder), share, end), daemon=True)
        for share, (_, end) in zip(shares, ends, strict=True)
    ]
    for each in running:
        each.start()
    for mine, _ in ends:
        _told(mine)  # all wait
    server_s = used_s(contestant.processes())
    with afterlog.connect(contestant.folder) as store:
        last_ms = _send(store, total, seconds)
    for mine, _ in ends:
        mine.send(last_ms)
    told = [_told(mine) for mine, _ in ends]
    server_s = used_s(contestant.processes()) - server_s
    for each in running:
        each.join()
    return np.concatenate([late for late, _ in told]), sum(cpu_s for _, cpu_s in told), server_s


def _told(end: Any) -> Any:
    """What a process says next. RuntimeError where that is why it failed, or where it says nothing."""
    told = end.recv() if end.poll(PATIENCE_S) else "the clients say nothing"
    if isinstance(told, str):
        raise RuntimeError(told)
    return told


def _client(folder: str, clients: int, end: Any) -> None:
    """In a process of its own."""

    async def run() -> None:
        async with afterlog.aio.connect(folder) as store:
            waiting = await _Waiting.begun(store, clients)
            end.send(None)
            cpu_s = time.process_time()
            last_ms = await asyncio.to_thread(end.recv)
            late = await waiting.until(last_ms)
            end.send((late, time.process_time() - cpu_s))

    try:
        asyncio.run(run())
    except BaseException:
        end.send(traceback.format_exc())


class _Waiting:
    """Tasks that each wait for a record, ack it, and wait again."""

    def __init__(self) -> None:
        self._late = list[float]()
        self._came_ms = 0.0
        self._tasks = list[asyncio.Task[None]]()

    @classmethod
    async def begun(cls, store: Any, clients: int) -> _Waiting:
        """When all of them wait."""
        made_now = cls()
        for _ in range(clients):
            subscription = await store.subscribe(TOPIC, _NAME)
            made_now._tasks.append(asyncio.create_task(made_now._wait(subscription)))
        await asyncio.sleep(1.0)  # the last ones ask
        return made_now

    async def _wait(self, subscription: Any) -> None:
        while True:
            for message in await subscription.receive(1, timeout=20.0):
                self._came_ms = time.time_ns() / 1e6
                self._late.append(self._came_ms - message.deliver_after)
                await subscription.ack(message)

    async def until(self, last_ms: int) -> np.ndarray:
        """How late each record was, ms, the last of which is due at `last_ms`. Raises what a task raised."""
        while (left_ms := max(self._came_ms, last_ms) + _QUIET_MS - now_ms()) > 0:
            done, _ = await asyncio.wait(self._tasks, timeout=left_ms / 1e3, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return np.array(self._late)


def _send(store: Any, total: int, seconds: float) -> int:
    """All of them, in one call; when the last is due, ms."""
    random = np.random.default_rng(SEED)
    due = now_ms() + _LEAD_MS + np.sort(random.integers(0, int(seconds * 1_000), total))
    values = np.arange(total + 1, dtype=np.int64) * SIZE, made(due, 0, SIZE).data.reshape(-1)
    store.send_many(TOPIC, values, deliver_after=due)
    return int(due[-1])
