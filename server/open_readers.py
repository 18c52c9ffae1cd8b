"""Readers of subscriptions that clients use: kept open between requests, one per topic, name and settings.

    request ──> lent ──> a reader that is open, or opened now ──> kept for IDLE_S after its last use ──> closed

A client has no reader of its own here: it says with each request how it reads, and any number share one. Leases outlive
readers, and this process (`durable_leases`): a receipt is good until the deadline, whoever has which reader open. One
that somebody closed (a deletion, by force) is opened anew by the next request.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from afterlog.api.reader_json import reader_options
from afterlog.base.errors import AfterlogError, UnknownSubscription
from afterlog.store.aio_calls import Calls, Waiters
from afterlog.store.awaited_receiver import AwaitedReceiver
from afterlog.store.store import Store
from afterlog.subscription.reader_settings import ReaderOptions
from afterlog.subscription.received import Received
from afterlog.subscription.subscription import Subscription

IDLE_S = 60.0
"""A reader that nobody uses is closed after so long. Larger: it is there when its client comes again."""

SubscriptionName = tuple[str, str]
"""(topic, subscription)"""


class OpenReader:
    """A reader, in an event loop."""

    def __init__(self, subscription: Subscription, calls: Calls, waiters: Waiters) -> None:
        self.subscription = subscription
        self._calls = calls
        self.receive = AwaitedReceiver(subscription, calls, waiters).receive

    async def release(self, received: Received) -> None:
        """Nobody was there to take it; where it fails, the lease ends by itself."""
        with contextlib.suppress(AfterlogError):
            await self._calls.run(lambda: self.subscription.release(received))


class _Kept:
    """An entry: the opening of a reader, and who uses it."""

    __slots__ = ("_reader", "is_partial", "opening", "used", "used_s")

    def __init__(self, opening: asyncio.Task[OpenReader], is_partial: bool) -> None:
        self.opening = opening
        self._reader: OpenReader | None = None
        self.is_partial = is_partial
        """Whether it reads some partitions only."""
        self.used = 0
        """Requests that have it now."""
        self.used_s = 0.0

    @property
    def reader(self) -> OpenReader | None:
        """None while it is being opened, or where it could not be."""
        if self._reader is None and self.opening.done() and not self.opening.cancelled():
            self._reader = None if self.opening.exception() is not None else self.opening.result()
        return self._reader

    @property
    def is_over(self) -> bool:
        """Whether another has to be opened: it failed, or somebody closed it."""
        reader = self.reader
        return self.opening.done() if reader is None else reader.subscription.ended


class OpenReaders:
    """Of one server, in its event loop."""

    def __init__(self, store: Store, calls: Calls, waiters: Waiters) -> None:
        self._store = store
        self._calls = calls
        self._waiters = waiters
        self._kept: dict[SubscriptionName, dict[str, _Kept]] = {}
        """By subscription, and then by how it is read, as text: it has all settings, in the order of its shape."""

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def lent(self, topic: str, name: str, how: Mapping[str, Any] | None) -> Lent:
        """A reader for as long as the block. how: JSON, as `READER` has it. Raises as `store.subscribe` does."""
        return Lent(self, topic, name, how, begins=True)

    def lent_for_receipts(self, topic: str, name: str, how: Mapping[str, Any] | None) -> Lent:
        """The same where any reader of all partitions will do, and nothing begins by being asked for.

        Raises UnknownSubscription, and as `lent`.
        """
        return Lent(self, topic, name, how, begins=False)

    async def kept(self, topic: str, name: str, how: Mapping[str, Any] | None, begins: bool) -> _Kept:
        """An entry that is good, made where there is none."""
        entries = self._kept.get((topic, name), {})
        if how is None and not begins:
            for each in entries.values():
                if not (each.is_partial or each.is_over):
                    return each
            if name not in await self._calls.run(lambda: self._store.subscriptions(topic)):
                raise UnknownSubscription(f"no {name!r} reads {topic}; receive makes one")
            entries = self._kept.get((topic, name), {})
        words = repr(how) if how else ""
        kept = entries.get(words)
        if kept is None or kept.is_over:
            opening = asyncio.ensure_future(self._open(topic, name, how or {}))
            kept = _Kept(opening, bool(how and how["partitions"]))
            self._kept.setdefault((topic, name), {})[words] = kept
        return kept

    def given_back(self, topic: str, name: str, kept: _Kept) -> None:
        """Somebody does not use it any more."""
        kept.used -= 1
        kept.used_s = self._store.clock.monotonic_s()
        if kept.is_over:
            self._forget(topic, name, kept)

    async def let_go(self, topic: str, name: str | None = None) -> None:
        """Close those of a topic, or of one subscription, that nobody uses and that have nothing leased: who deletes it
        is not to find readers that are only kept.
        """
        for (each_topic, each), kept in self._all():
            if each_topic == topic and name in (None, each):
                reader = kept.reader
                if reader is None or not await self._calls.run(lambda reader=reader: _leased(reader.subscription)):  # type: ignore[misc]
                    await self._close_unused(topic, each, kept)

    async def close_idle(self) -> None:
        """To be called now and then."""
        now_s = self._store.clock.monotonic_s()
        for (topic, name), kept in self._all():
            if now_s - kept.used_s >= IDLE_S:
                await self._close_unused(topic, name, kept)

    async def close(self) -> None:
        """All, whatever they have leased: the server ends."""
        every, self._kept = self._all(), {}
        for _, kept in every:
            with contextlib.suppress(AfterlogError):
                reader = await kept.opening
                await self._calls.run(reader.subscription.close)

    def _all(self) -> list[tuple[SubscriptionName, _Kept]]:
        return [(key, kept) for key, entries in self._kept.items() for kept in entries.values()]

    async def _open(self, topic: str, name: str, how: Mapping[str, Any]) -> OpenReader:
        options: ReaderOptions = {"durable_leases": True, **reader_options(how), "auto_extend": False}

        def subscribe() -> Subscription:
            return self._store.subscribe(topic, name, **options)

        subscription = await self._calls.run(subscribe, lambda opened: opened.close())
        return OpenReader(subscription, self._calls, self._waiters)

    async def _close_unused(self, topic: str, name: str, kept: _Kept) -> None:
        reader = kept.reader
        being_opened = reader is None and not kept.is_over
        if kept.used or being_opened or not self._forget(topic, name, kept):
            return
        if reader is not None:
            with contextlib.suppress(AfterlogError):
                await self._calls.run(reader.subscription.close)

    def _forget(self, topic: str, name: str, kept: _Kept) -> bool:
        """Whether it was among those that are kept, and is not any more."""
        entries = self._kept.get((topic, name), {})
        for words, each in entries.items():
            if each is kept:
                del entries[words]
                if not entries:
                    del self._kept[topic, name]
                return True
        return False


class Lent:
    """A block that has a reader: what `OpenReaders.lent` gives."""

    __slots__ = ("_begins", "_how", "_kept", "_name", "_readers", "_topic")

    def __init__(
        self, readers: OpenReaders, topic: str, name: str, how: Mapping[str, Any] | None, *, begins: bool
    ) -> None:
        self._readers = readers
        self._topic = topic
        self._name = name
        self._how = how
        self._begins = begins
        self._kept: _Kept | None = None

    async def __aenter__(self) -> OpenReader:
        kept = self._kept = await self._readers.kept(self._topic, self._name, self._how, self._begins)
        kept.used += 1
        try:
            reader = kept.reader
            return await asyncio.shield(kept.opening) if reader is None else reader
        except BaseException:
            self._readers.given_back(self._topic, self._name, kept)
            raise

    async def __aexit__(self, *_: object) -> None:
        assert self._kept is not None, "it was entered"
        self._readers.given_back(self._topic, self._name, self._kept)


def _leased(subscription: Subscription) -> int:
    """How many records the readers of its partitions have; 0 where it is closed."""
    try:
        return subscription.stats().leased
    except AfterlogError:
        return 0
