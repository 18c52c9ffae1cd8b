"""What the tests of subscriptions share: a small store on a simulated disk, with a clock that is turned by hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from afterlog.store.store import Store
from afterlog.subscription.leased_message import LeasedMessage
from afterlog.subscription.policy import RetryPolicy
from afterlog.subscription.subscription import Subscription
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, Calls, HeldFiles, SteppedClock, open_small

RETRY = RetryPolicy(first_ms=1_000, factor=2, max_ms=4_000, jitter=0, attempts=3)


class Setting:
    """A store with a topic `mail`, subscribed to by `sender`."""

    def __init__(self, partitions: int = 1, **settings: Any) -> None:
        self.settings = settings
        self.calls = Calls()
        self.clock = SteppedClock(NOW_MS)
        self.open(SimulatedFiles())
        self.store.create_topic("mail", partitions=partitions)

    def open(self, disk: SimulatedFiles) -> Store:
        self.disk = disk
        self.files = HeldFiles(disk, self.calls)
        self.store = open_small(self.files, self.clock, **self.settings)
        return self.store

    def send(self, *values: bytes, partition: int = 0, after_ms: int | None = None, topic: str = "mail") -> None:
        for value in values:
            deliver_after = None if after_ms is None else self.clock.now_ms() + after_ms
            self.store.send(topic, value, deliver_after=deliver_after, partition=partition)

    def subscribe(self, name: str = "sender", **settings: Any) -> Subscription:
        return self.store.subscribe("mail", name, **{"retry": RETRY, "lease_ms": 10_000, **settings})

    def dead(self, topic: str = "mail.dead") -> list[tuple[bytes | None, str, int]]:
        """(value, reason, count) of the dead letters."""
        found = [(each.message.value, each.origin) for each in self.store.dead_letters(topic)]
        return [(value, origin.reason, origin.redelivery_count) for value, origin in found]


@contextmanager
def handling(message: LeasedMessage) -> Iterator[LeasedMessage]:
    """The block of a message, which ends well: what a test asserts in it leaves it."""
    message.__enter__()
    try:
        yield message
    finally:
        message.__exit__(None, None, None)


def values(messages: Iterable[Any]) -> list[bytes | None]:
    return [message.value for message in messages]
