"""D15 for every kind of reader: what is due is delivered within a tick, whatever happens between looking and waiting.

The clock goes on with the looks at it, at random, and a wait ends in the millisecond that was asked for: so records
become due between any two steps of a reader. Who would wait for a notification that nobody sends fails.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable

import pytest

from afterlog import aio
from afterlog.base.clock import ManualClock
from afterlog.base.locks import Condition
from afterlog.store.store import open_store
from tests.campaigns import SEED, examples
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, PATH, small

RECORDS = examples(300, whole=3_000)
TICK_MS = 10
PARTITIONS = 3


class RushingClock(ManualClock):
    """Goes on by a millisecond at one in five looks at it."""

    def __init__(self, ms: int) -> None:
        super().__init__(ms)
        self._random = random.Random(SEED)
        self.waits = 0

    def now_ms(self) -> int:
        if self._random.random() < 0.2:
            self._now_ms += 1
        return self._now_ms

    def wait(self, condition: Condition, until_ms: int | None, timeout_s: float | None) -> None:
        assert until_ms is not None, "nobody would end this"
        self.waits += 1
        self._now_ms = max(self._now_ms, until_ms)

    def seconds_until(self, ms: int) -> float:
        self.waits += 1
        self._now_ms = max(self._now_ms, ms)
        return 0.0


class Given:
    """A topic with records due at random, on average every other millisecond."""

    def __init__(self, partitions: int = PARTITIONS) -> None:
        self.clock = RushingClock(NOW_MS)
        self.store = open_store(PATH, small(), self.clock, SimulatedFiles(), background=False)
        self.store.create_topic("t", partitions=partitions)
        chance = random.Random(SEED)
        first_ms = self.clock._now_ms + 50_000  # `send` looks at the clock, too
        self.due = [first_ms + chance.randrange(RECORDS * 2) for _ in range(RECORDS)]
        for ms in self.due:
            self.store.send("t", b"", deliver_after=ms)
        self.due.sort()
        self.late_ms: list[int] = []

    def came(self, due: Iterable[int]) -> bool:
        """Note these; whether all are there."""
        self.late_ms += [self.clock._now_ms - ms for ms in due]
        return len(self.late_ms) == RECORDS

    def check(self) -> None:
        assert RECORDS == len(self.late_ms)
        late_ms = sorted(self.late_ms)
        assert 0 <= late_ms[0]
        assert TICK_MS >= late_ms[RECORDS * 99 // 100]
        assert 2 * TICK_MS >= late_ms[-1]  # each look may take a millisecond, and somebody is the last of a few
        assert RECORDS // 10 < self.clock.waits < RECORDS * PARTITIONS


def fetching(given: Given) -> None:
    partition, position, done = given.store.topic("t").partition(0), 0, False
    while not done:
        result = partition.fetch(position, max_wait_ms=10**9)
        position = result.next_position
        done = given.came(given.due[delivery_offset] for delivery_offset in result.delivery_offsets.tolist())


def polling(given: Given) -> None:
    with given.store.consumer("t", group="g") as consumer:
        while not given.came(message.deliver_after for message in consumer.poll(2, None)):
            pass


def iterating(given: Given) -> None:
    with given.store.consumer("t", group="g") as consumer:
        for message in consumer:
            if given.came([message.deliver_after]):
                return


def receiving(given: Given) -> None:
    with given.store.subscribe("t", "s") as subscription:
        while not given.came(message.deliver_after for message in subscription.receive(2, None)):
            pass


def working(given: Given) -> None:
    with given.store.subscribe("t", "s") as subscription:
        for message in subscription:
            with message:
                if given.came([message.deliver_after]):
                    return


@pytest.mark.parametrize("reading", [fetching, polling, iterating, receiving, working])
def test_threads(reading: Callable[[Given], None]) -> None:
    given = Given(1 if reading is fetching else PARTITIONS)
    reading(given)
    given.check()
    given.store.close()


async def consuming_tasks(given: Given, store: aio.Store) -> None:
    async with store.consumer("t", group="g") as consumer:
        async for message in consumer:
            if given.came([message.deliver_after]):
                return


async def working_tasks(given: Given, store: aio.Store) -> None:
    async with store.subscribe("t", "s") as subscription:
        while not given.came(message.deliver_after for message in await subscription.receive(2, None)):
            pass


@pytest.mark.parametrize("reading", [consuming_tasks, working_tasks])
def test_tasks(reading: Callable[[Given, aio.Store], Awaitable[None]]) -> None:
    given = Given()

    async def main() -> None:
        async with aio.Opening(aio.opened(lambda: given.store)) as store:
            await reading(given, store)

    asyncio.run(main())
    given.check()
