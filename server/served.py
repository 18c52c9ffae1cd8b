"""What the handlers of one server share: the open store, what is kept between requests, and the requests that wait.

    found = await waits.until(subscription.receive(100, timeout=20), request.exchange)

A request that waits for a record is a task and no thread; its wait ends when its client goes or the server stops. What
was taken for a client that is gone goes back, since the wait is cancelled (`aio_calls`). A server that stops answers
all who wait with nothing, at once: they come back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from afterlog.server.counts import ServerCounts, exposed, one, replicated
from afterlog.server.exchange import ClientGone, HttpExchange
from afterlog.server.fetches import Fetches
from afterlog.server.group_claims import Claims
from afterlog.server.open_readers import OpenReaders
from afterlog.server.overview import Overview
from afterlog.server.sends import Sends
from afterlog.store.aio_calls import Calls, Waiters
from afterlog.store.store import Store

if TYPE_CHECKING:
    from afterlog.replication.store_cluster import StoreCluster


Waited = TypeVar("Waited")


class Waits:
    """The waiting requests of one server, in its event loop."""

    def __init__(self) -> None:
        self._waiting: set[_Wait] = set()
        self._over = False

    def __len__(self) -> int:
        return len(self._waiting)

    async def until(self, found: Coroutine[Any, Any, Waited], exchange: HttpExchange) -> Waited | None:
        """What is found; None where the server stops meanwhile. Raises ClientGone."""
        if self._over:
            found.close()
            return None
        task = asyncio.current_task()
        assert task is not None, "requests are tasks"
        wait = _Wait(task)
        exchange.when_gone(wait.leave)
        self._waiting.add(wait)
        try:
            return await found
        except asyncio.CancelledError:
            if not wait.ended:  # by somebody else
                raise
            task.uncancel()
            if wait.gone:
                raise ClientGone from None
            return None
        finally:
            self._waiting.discard(wait)
            wait.ended = True
            exchange.when_gone(None)

    def end(self) -> None:
        """Nobody waits any more, from now on."""
        self._over = True
        for wait in list(self._waiting):
            wait.end()


class _Wait:
    """Of one request, and its end."""

    __slots__ = ("_task", "ended", "gone")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task
        self.ended = False
        self.gone = False

    def leave(self) -> None:
        """Its client is gone."""
        if not self.ended:
            self.gone = True
            self.end()

    def end(self) -> None:
        if not self.ended:
            self.ended = True
            self._task.cancel()


Answered = TypeVar("Answered")


class Served:
    """Of one server, in its event loop. backups: where backups may be made; None: nowhere."""

    def __init__(self, store: Store, *, backups: Path | None = None) -> None:
        self.store = store
        self.backups = backups
        self.calls = Calls()
        waiters = Waiters(self.calls, store.clock, store.now_ms)
        self.sends = Sends(self.calls)
        self.readers = OpenReaders(store, self.calls, waiters)
        self.fetches = Fetches(store, self.calls, waiters)
        self.claims = Claims(store, self.calls)
        self.waits = Waits()
        self.counts = ServerCounts()
        self.under_way: Callable[[], int] = lambda: 0
        """How many requests are; the application tells."""
        self.overview = Overview(store)
        self.cluster: StoreCluster | None = None
        """Where somebody replicates it."""

    async def run(self, call: Callable[[], Answered]) -> Answered:
        """A blocking call, in a thread."""
        return await self.calls.run(call)

    async def aside(self, is_long: bool, call: Callable[[], Answered]) -> Answered:
        """A call that does not block, in a thread where it is long: so nobody else waits for all of it."""
        return await self.calls.run(call) if is_long else call()

    def counted(self) -> str:
        """What is counted here, in Prometheus' text format."""
        appends, parts, records = self.sends.counts
        return exposed(
            [
                *self.counts.samples(),
                one("afterlog_server_in_flight", "gauge", "Requests under way", self.under_way()),
                one("afterlog_server_waiting", "gauge", "Of these, those that wait for a record", len(self.waits)),
                one("afterlog_server_readers", "gauge", "Readers of subscriptions that are open", len(self.readers)),
                one("afterlog_server_claims", "gauge", "Claims of consumer groups", len(self.claims)),
                one("afterlog_server_appends_total", "counter", "Appends that sends have shared", appends),
                one("afterlog_server_append_requests_total", "counter", "Requests that shared them", parts),
                one("afterlog_server_append_records_total", "counter", "Records of these", records),
                *([] if self.cluster is None else replicated(self.cluster, self.store.clock.monotonic_s())),
            ]
        )

    async def tidy(self) -> None:
        """To be called every few seconds: what nobody uses any more goes."""
        await self.readers.close_idle()
        await self.claims.close_ended()

    async def close(self) -> None:
        """Let go of everything but the store, which stays open."""
        self.waits.end()
        await self.readers.close()
        await self.claims.close()
        self.calls.close()
