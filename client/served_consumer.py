"""Readers of a served store, whose calls block: the names of `fetch/consumer.py` and `subscription/subscription.py`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from afterlog.client.call import Steps, blocking
from afterlog.client.consumer_steps import ConsumerSteps
from afterlog.client.subscription_steps import SubscriptionSteps
from afterlog.fetch.message import Message
from afterlog.subscription.draining import Draining
from afterlog.subscription.flow_control import FlowControl
from afterlog.subscription.leased_message import AwaitedCall, LeasedMessage
from afterlog.surface import ConsumerSurface, SubscriptionSurface, presents

if TYPE_CHECKING:
    from afterlog.client.pool import Pool
    from afterlog.fetch.message_columns import Columns


@presents(ConsumerSurface)
class ServedConsumer:
    """Made by `store.consumer`. Not thread-safe, but for `close`."""

    def __init__(self, steps: ConsumerSteps, pool: Pool) -> None:
        self._steps = steps
        self._drive: Callable[[Steps[Any]], Any] = pool.drive
        self.topic = steps.topic
        steps.reader = threading.get_ident()

    def __enter__(self) -> ServedConsumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(processed=kind is None and self._steps.reader == threading.get_ident())

    def __iter__(self) -> Iterator[Message]:
        while not self.closed:
            self._steps.reader = threading.get_ident()
            message = self._steps.next()
            if message is not None:
                yield message
            else:
                self._drive(self._steps.fill())

    @property
    def closed(self) -> bool:
        return self._steps.closed

    def poll(self, max_records: int = 500, timeout: float | None = 0.0) -> list[Message]:
        self._steps.reader = threading.get_ident()
        found: list[Message] = self._drive(self._steps.poll(max_records, timeout))
        return found

    def poll_columns(self, max_records: int = 65_536, timeout: float | None = 0.0) -> Columns:
        self._steps.reader = threading.get_ident()
        found: Columns = self._drive(self._steps.poll_columns(max_records, timeout))
        return found

    seek = blocking(ConsumerSteps.seek)
    commit = blocking(ConsumerSteps.commit)
    positions = blocking(ConsumerSteps.positions)
    committed = blocking(ConsumerSteps.committed)
    lag = blocking(ConsumerSteps.lag)
    _end = blocking(ConsumerSteps.end)

    def close(self) -> None:
        """Commit what is processed and let the partitions go. From another thread it ends the iteration.

        What was handed out last is processed if the thread that took it closes; another thread cannot know.
        """
        self._end(processed=self._steps.reader == threading.get_ident())


@presents(SubscriptionSurface)
class ServedSubscription:
    """Made by `store.subscribe`. Thread-safe; each iteration is for one thread."""

    background: AwaitedCall | None = None

    def __init__(self, steps: SubscriptionSteps, pool: Pool, clock: Any) -> None:
        self._steps = steps
        self._drive: Callable[[Steps[Any]], Any] = pool.drive
        self._clock = clock
        self.topic = steps.topic
        self.name = steps.name
        self.blocks = steps.blocks
        self.flow: FlowControl | None = steps.leased
        self.group = steps.group
        steps.owner = self

    def __enter__(self) -> ServedSubscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._steps)

    def __iter__(self) -> Iterator[LeasedMessage]:
        steps = self._steps
        ahead = steps.begin()
        try:
            while not steps.ended:
                message = steps.pop(ahead)
                if message is not None:
                    yield message
                else:
                    self._drive(steps.fill(ahead))
        finally:
            self._drive(steps.end(ahead))

    receive = blocking(SubscriptionSteps.receive)
    ack = blocking(SubscriptionSteps.ack)
    ack_many = blocking(SubscriptionSteps.ack_many)
    nack = blocking(SubscriptionSteps.nack)
    reject = blocking(SubscriptionSteps.reject)
    release = blocking(SubscriptionSteps.release)
    extend = blocking(SubscriptionSteps.extend)
    seek = blocking(SubscriptionSteps.seek)
    stats = blocking(SubscriptionSteps.stats)
    stop_taking = blocking(SubscriptionSteps.stop_taking)
    close = blocking(SubscriptionSteps.close)

    def halt(self) -> None:
        """Take nothing more. No lock is taken: for a signal's handler. Somebody has to `stop_taking` behind it."""
        self._steps.halt()

    def drain(self, timeout: float | None = None) -> bool:
        timeout = self._steps.check_drainable(timeout)
        self.stop_taking()
        is_over = self.blocks.wait(self._steps.is_idle, self._clock, timeout)
        self._drive(self._steps.flush())
        return is_over

    def draining_on(self, signal: int, *, timeout: float | None = None) -> Draining:
        return Draining(self, signal, timeout)
