"""A reader of a subscription of a served store, whose calls block. The names of `subscription/subscription.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from afterlog.client.call import Steps, blocking
from afterlog.client.subscription_steps import SubscriptionSteps
from afterlog.subscription.draining import Draining
from afterlog.subscription.intake import Intake
from afterlog.subscription.leased_message import AwaitedCall, LeasedMessage
from afterlog.surface import SubscriptionSurface, presents

if TYPE_CHECKING:
    from typing import Any

    from afterlog.client.pool import Pool


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
        self.intake: Intake | None = steps.leased
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
        return self.blocks.wait(self._steps.is_idle, self._clock, timeout)

    def draining_on(self, signal: int, *, timeout: float | None = None) -> Draining:
        return Draining(self, signal, timeout)
