"""afterlog itself, twice: with columns, and with an object for each body and message as the rivals have them."""

from __future__ import annotations

from typing import Any

import numpy as np

import afterlog
from bench.rivals.load import START_MS, Batch, Bytes
from bench.rivals.rival import Handed, Rival

TOPIC = "bench"
_LEASE_MS = 86_400_000


class AfterlogColumns(Rival):
    """A topic and a shared subscription; columns in, columns out."""

    name = "afterlog"
    objects = False
    setting = (
        "`send_many` of columns; `receive(1000)` and `ack_many` of a shared subscription, read as columns; "
        "durability `always`, relaxed `os`; all else by default"
    )

    def open(self) -> None:
        config = afterlog.Config(durability=afterlog.ALWAYS if self.fsync else afterlog.OS)
        self._clock = afterlog.ManualClock(START_MS)
        clock: Any = afterlog.SystemClock() if self.real_time else self._clock
        self._store = afterlog.open(self.folder, config=config, clock=clock)
        if not self._store.topics():
            self._store.create_topic(TOPIC)
        self._subscription: afterlog.Subscription | None = None

    def fill(self, batch: Batch) -> None:
        count, size = batch.data.shape
        columns = np.arange(count + 1, dtype=np.int64) * size, batch.data.reshape(-1)
        self._store.send_many(TOPIC, columns, deliver_after=batch.due)

    def lease(self, now_ms: int, limit: int) -> Handed:
        self._turn_clock(now_ms)
        return self._received(limit, 0.0)

    def first(self, now_ms: int) -> list[bytes] | Bytes:
        """By a consumer: a lease is remembered, and what crashed with its reader comes again later."""
        self._turn_clock(now_ms)
        with self._store.consumer(TOPIC, group="look", auto_commit=False) as consumer:
            _, data = consumer.poll_columns(1).value
            return data

    def _turn_clock(self, now_ms: int) -> None:
        if not self.real_time and now_ms > self._clock.now_ms():
            self._clock.set(now_ms)

    def lease_soon(self, limit: int) -> Handed:
        return self._received(limit, 0.1)

    def _received(self, limit: int, timeout_s: float) -> Handed:
        if self._subscription is None:
            self._subscription = self._store.subscribe(TOPIC, "bench", lease_ms=_LEASE_MS)
        return self._handed(self._subscription.receive(limit, timeout_s))

    def _handed(self, received: Any) -> Handed:
        offsets, data = received.columns.value
        return Handed(data[int(offsets[0]) : int(offsets[-1])], received, len(received))

    def ack(self, handed: Handed) -> None:
        assert self._subscription is not None
        self._subscription.ack_many(handed.token)

    def close(self) -> None:
        if self._subscription is not None:
            self._subscription.close()
        self._store.close()

    @classmethod
    def version(cls) -> str:
        return afterlog.__version__


class AfterlogObjects(AfterlogColumns):
    """The same store, used as most people would: bytes objects in, message objects out."""

    name = "afterlog, objects"
    objects = True
    setting = (
        "the same store; `send_many` of a list of bytes objects (`send` in batches of one), "
        "each message made as an object and its value read; `ack(message)` where it is leased alone"
    )

    def fill(self, batch: Batch) -> None:
        if len(batch) == 1:
            self._store.send(TOPIC, batch.bodies[0], deliver_after=int(batch.due[0]))
        else:
            self._store.send_many(TOPIC, batch.bodies, deliver_after=batch.due)

    def _handed(self, received: Any) -> Handed:
        return Handed([message.value for message in received], received, len(received))

    def ack(self, handed: Handed) -> None:
        if len(handed.token) == 1:
            assert self._subscription is not None
            self._subscription.ack(handed.token[0])
        else:
            super().ack(handed)
