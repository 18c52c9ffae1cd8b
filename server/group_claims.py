"""Claims of consumer groups: which client reads which partitions of a group, for as long as it says so.

    PUT claim ──> held for ttl_ms ──PUT again, commit──> for ttl_ms more ──> ended: by itself, or by DELETE

A claim is an open consumer of the store, which reads nothing: so a partition is one reader's, whether that is a client
or a program that has the store open itself. Claims are in memory. After a restart of the server a client claims again,
and goes on where the group committed, as behind one of its own. A name is claimed until it is let go, and not again: a
client may say once more that it claims while it lets go, and the later one may be here first.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from afterlog.base.errors import AfterlogError, GroupBusy
from afterlog.fetch.consumer import Consumer
from afterlog.store.aio_calls import Calls
from afterlog.store.store import Store

ClaimKey = tuple[str, str, str]
"""(topic, group, claim)"""
LET_GO_S = 60.0
"""How late a claim may be said again that was let go. Larger: more of them are remembered."""


@dataclass(slots=True)
class Claim:
    """One of them. until_s: by the store's clock of patience."""

    consumer: Consumer
    partitions: tuple[int, ...]
    ttl_ms: int
    until_s: float = 0.0

    def renew(self, now_s: float) -> None:
        self.until_s = now_s + self.ttl_ms / 1_000


class Claims:
    """Of one server, in its event loop."""

    def __init__(self, store: Store, calls: Calls) -> None:
        self._store = store
        self._calls = calls
        self._claims: dict[ClaimKey, Claim] = {}
        self._let_go: dict[ClaimKey, float] = {}
        """Those that were let go, and until when that is remembered: what still claims under such a name is late."""
        self._lock = asyncio.Lock()
        """Held while one is made or ended, so that equal ones come one after the other."""

    def __len__(self) -> int:
        return len(self._claims)

    async def claim(
        self, topic: str, group: str, name: str, partitions: list[int] | None, ttl_ms: int
    ) -> dict[int, int | None]:
        """Hold these partitions, or all, for so long: what the group has committed in each.

        Raises GroupBusy where another has one of them, NameTaken, UnknownTopic, UnknownPartition, CorruptFile.
        """
        async with self._lock:
            await self._end_ended()
            key = (topic, group, name)
            if key in self._let_go:
                raise GroupBusy(f"the claim {name!r} of group {group!r} was let go: claim under another name")
            held = self._claims.get(key)
            target = self._store.topic(topic)
            numbers = tuple(sorted(set(range(target.partition_count) if partitions is None else partitions)))
            if held is not None and (held.partitions != numbers or held.consumer.closed):
                await self._end(key)
                held = None
            if held is None:
                consumer = await self._calls.run(
                    lambda: self._store.consumer(topic, group=group, partitions=numbers, auto_commit=False),
                    Consumer.close,
                )
                held = self._claims[key] = Claim(consumer, numbers, ttl_ms)
            held.ttl_ms = ttl_ms
            held.renew(self._store.clock.monotonic_s())
            return held.consumer.committed()

    async def commit(self, topic: str, group: str, name: str, positions: Mapping[int, int]) -> None:
        """Make these positions durable. Raises GroupBusy where the claim has ended, and as `Consumer.commit_at`."""
        await self._end_ended()
        claim = self._claims.get((topic, group, name))
        if claim is None or claim.consumer.closed:
            raise GroupBusy(f"the claim {name!r} of group {group!r} has ended, or was never made: claim again")
        claim.renew(self._store.clock.monotonic_s())
        await self._calls.run(lambda: claim.consumer.commit_at(positions))

    async def release(self, topic: str, group: str, name: str) -> None:
        """End it, if it is there."""
        async with self._lock:
            key = (topic, group, name)
            if key in self._claims:
                self._let_go[key] = self._store.clock.monotonic_s() + LET_GO_S
            await self._end(key)

    async def close_ended(self) -> None:
        """To be called now and then."""
        async with self._lock:
            await self._end_ended()

    async def close(self) -> None:
        """All: the server ends."""
        for key in list(self._claims):
            await self._end(key)

    async def _end_ended(self) -> None:
        now_s = self._store.clock.monotonic_s()
        self._let_go = {key: until_s for key, until_s in self._let_go.items() if until_s > now_s}
        for key, claim in list(self._claims.items()):
            if claim.until_s <= now_s:
                await self._end(key)

    async def _end(self, key: ClaimKey) -> None:
        claim = self._claims.pop(key, None)
        if claim is not None:
            with contextlib.suppress(AfterlogError):
                await self._calls.run(claim.consumer.close)
