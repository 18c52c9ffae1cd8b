"""Readers of subscriptions that clients use: kept open between requests, one for each topic, name and settings.

    request ──> lent ──> a reader that is open, or opened now ──> kept for IDLE_S behind its last use ──> closed

A client has no reader of its own here: it says with each request how it reads, and any number share one. Leases outlive
readers, and this process (`durable_leases`): a receipt is good until the deadline, whoever has which reader open. One
that somebody closed (a deletion, by force) is opened anew by the next request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from afterlog.aio_calls import Calls, Line, Waiters
from afterlog.errors import AfterlogError, UnknownSubscription
from afterlog.store import Store
from afterlog.subscription.policy import RetryPolicy
from afterlog.subscription.received import Received
from afterlog.subscription.subscription import Subscription
from afterlog.wire.position_text import position_of

IDLE_S = 60.0
"""A reader that nobody uses is closed after so long. Larger: it is there when its client comes again."""

ReaderKey = tuple[str, str, str]
"""(topic, subscription, how it is read, as JSON)"""


class OpenReader:
    """A reader, in an event loop."""

    def __init__(self, subscription: Subscription, calls: Calls, waiters: Waiters) -> None:
        self.subscription = subscription
        self._calls = calls
        self._line = Line(waiters, subscription.taking.agenda)

    async def receive(self, max_records: int, wait_s: float) -> Received | None:
        """Lease up to so many due records; None where nothing is due, nor was for so long.

        Where the await is cancelled, what was taken goes back, uncounted. Raises as `Subscription.receive`.
        """
        taking = self.subscription.taking

        def taken() -> Received | None:
            one = taking.one() if max_records == 1 and not taking.ended else None
            return taking.look(max_records) if one is None else one

        async def look() -> Received | None:
            if not (taking.agenda.due() or taking.ended):  # most look again and again, and a thread costs
                return None
            return await self._calls.run(taken, self._give_back)

        return await (self._line.found(look, wait_s) if wait_s > 0 else look())

    async def release(self, received: Received) -> None:
        """Nobody was there to take it; where it fails, the lease ends by itself."""
        with contextlib.suppress(AfterlogError):
            await self._calls.run(lambda: self.subscription.release(received))

    def _give_back(self, received: Received | None) -> None:
        if received is not None:
            self.subscription.release(received)


class _Kept:
    """An entry: the opening of a reader, and who uses it."""

    __slots__ = ("opening", "used", "used_s")

    def __init__(self, opening: asyncio.Task[OpenReader]) -> None:
        self.opening = opening
        self.used = 0
        """Requests that have it now."""
        self.used_s = 0.0

    @property
    def reader(self) -> OpenReader | None:
        """None while it is being opened, or where it could not be."""
        opened = self.opening.done() and not self.opening.cancelled() and self.opening.exception() is None
        return self.opening.result() if opened else None

    @property
    def is_over(self) -> bool:
        """Whether another has to be opened: it failed, or somebody closed it."""
        reader = self.reader
        return self.opening.done() and (reader is None or reader.subscription.ended)


class OpenReaders:
    """Of one server, in its event loop."""

    def __init__(self, store: Store, calls: Calls, waiters: Waiters) -> None:
        self._store = store
        self._calls = calls
        self._waiters = waiters
        self._kept: dict[ReaderKey, _Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    @asynccontextmanager
    async def lent(self, topic: str, name: str, how: Mapping[str, Any] | None) -> AsyncIterator[OpenReader]:
        """A reader for as long as the block. how: the JSON of `shapes.READER`. Raises as `store.subscribe` does."""
        key = (topic, name, json.dumps(how, sort_keys=True) if how else "")
        kept = self._kept.get(key)
        if kept is None or kept.is_over:
            opening = asyncio.ensure_future(self._open(topic, name, how or {}))
            kept = self._kept[key] = _Kept(opening)
        kept.used += 1
        try:
            reader = kept.reader
            if reader is None:
                reader = await asyncio.shield(kept.opening)
            yield reader
        finally:
            kept.used -= 1
            kept.used_s = self._store.clock.monotonic_s()
            if kept.is_over and self._kept.get(key) is kept:
                del self._kept[key]

    @asynccontextmanager
    async def lent_for_receipts(
        self, topic: str, name: str, how: Mapping[str, Any] | None
    ) -> AsyncIterator[OpenReader]:
        """The same where any reader of all partitions will do, and nothing begins by being asked for.

        Raises UnknownSubscription, and as `lent`.
        """
        if how is None:
            how = self._any(topic, name)
        if how is None and name not in await self._calls.run(lambda: self._store.subscriptions(topic)):
            raise UnknownSubscription(f"no {name!r} reads {topic}; receive makes one")
        async with self.lent(topic, name, how) as reader:
            yield reader

    async def let_go(self, topic: str, name: str | None = None) -> None:
        """Close those of a topic, or of one subscription, that nobody uses and that have nothing leased: who deletes it
        is not to find readers that are only kept.
        """
        for key, kept in list(self._kept.items()):
            if key[0] == topic and name in (None, key[1]):
                reader = kept.reader
                if reader is None or not await self._calls.run(lambda reader=reader: _leased(reader.subscription)):  # type: ignore[misc]
                    await self._close_unused(key, kept)

    async def close_idle(self) -> None:
        """To be called now and then."""
        now_s = self._store.clock.monotonic_s()
        for key, kept in list(self._kept.items()):
            if now_s - kept.used_s >= IDLE_S:
                await self._close_unused(key, kept)

    async def close(self) -> None:
        """All, whatever they have leased: the server ends."""
        entries, self._kept = self._kept, {}
        for kept in entries.values():
            with contextlib.suppress(AfterlogError):
                reader = await kept.opening
                await self._calls.run(reader.subscription.close)

    def _any(self, topic: str, name: str) -> Mapping[str, Any] | None:
        for (each, reading, how), kept in self._kept.items():
            if (each, reading) == (topic, name) and not kept.is_over:
                found: dict[str, Any] = json.loads(how or '{"partitions": null}')
                if found["partitions"] is None and how:
                    return found
        return None

    async def _open(self, topic: str, name: str, how: Mapping[str, Any]) -> OpenReader:
        settings = settings_of(how)

        def subscribe() -> Subscription:
            return self._store.subscribe(topic, name, auto_extend=False, durable_leases=True, **settings)

        subscription = await self._calls.run(subscribe, lambda opened: opened.close())
        return OpenReader(subscription, self._calls, self._waiters)

    async def _close_unused(self, key: ReaderKey, kept: _Kept) -> None:
        reader = kept.reader
        being_opened = reader is None and not kept.is_over
        if kept.used or being_opened or self._kept.get(key) is not kept:
            return
        del self._kept[key]
        if reader is not None:
            with contextlib.suppress(AfterlogError):
                await self._calls.run(reader.subscription.close)


def settings_of(how: Mapping[str, Any]) -> dict[str, Any]:
    """What `store.subscribe` takes, of the JSON of a reader. Raises InvalidArgument, InvalidSubscription."""
    settings = {name: value for name, value in how.items() if value is not None}
    if "retry" in settings:
        settings["retry"] = RetryPolicy(**how["retry"])
    if "start" in settings:
        settings["start"] = position_of(settings["start"])
    return settings


def _leased(subscription: Subscription) -> int:
    """How many records the readers of its partitions have; 0 where it is closed."""
    try:
        return subscription.stats().leased
    except AfterlogError:
        return 0
