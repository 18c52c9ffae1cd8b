"""One record as a reader of a subscription has it: a message with a receipt, and a block to work it off in."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Literal, Protocol, TypeAlias

from afterlog.errors import StoreClosed, StoreForked
from afterlog.fetch.message import Message

logger = logging.getLogger("afterlog.subscription")


AwaitedCall: TypeAlias = Callable[[Callable[[], object]], Awaitable[object]]
"""Makes a call without blocking the event loop."""


class Settling(Protocol):
    """What a message asks of the subscription that leased it."""

    topic: str
    name: str
    background: AwaitedCall | None
    """Of `afterlog.aio`: how its messages are settled. None elsewhere."""

    def ack(self, message: LeasedMessage, /) -> object: ...
    def nack(self, messages: LeasedMessage, /, *, reason: str) -> object: ...
    def release(self, messages: LeasedMessage, /) -> object: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedMessage(Message):
    """A record leased to one reader until `deadline_ms`, by the log's clock.

    redelivery_count: earlier deliveries of it that failed, by a nack, an expired lease, or the end of the process.

        with message:
            deliver(message.value)

    acks the message when the block ends well. Where the block raises an Exception, it is logged with its traceback
    (logger ``afterlog.subscription``), the message is nacked with it as the reason, and the exception does not leave
    the block: a worker goes on, and a record that always fails stops nobody. KeyboardInterrupt, SystemExit and their
    like give the message back, which counts as no failure, and go on their way. Whoever acks, nacks or releases the
    message in the block has settled it: the block's end does nothing then.

    Received in `afterlog.aio` it is `async with message:`, and the cancelling of the task gives the message back.
    """

    redelivery_count: int
    deadline_ms: int
    subscription: Settling = field(repr=False, compare=False)
    settled: bool = field(default=False, init=False, repr=False, compare=False)
    """Acked, nacked or released by this reader."""

    def settle(self) -> None:
        """Note that it was acked, nacked or released: the subscription does."""
        object.__setattr__(self, "settled", True)  # the one thing that changes

    def __enter__(self) -> LeasedMessage:
        if self.subscription.background is not None:
            raise TypeError("received in afterlog.aio, where the end of a block must be awaited: `async with message:`")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[True] | None:
        if error is None and not self.settled:
            self.subscription.ack(self)
        elif error is not None and (ending := self._ending(error)) is not None:
            ending()
        return True if isinstance(error, Exception) else None

    async def __aenter__(self) -> LeasedMessage:
        if self.subscription.background is None:
            raise TypeError("received by blocking calls: `with message:`, or subscribe in afterlog.aio")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[True] | None:
        ending = self._ending(error)
        if ending is not None:
            assert self.subscription.background is not None
            await self.subscription.background(ending)
        return True if isinstance(error, Exception) else None

    def _ending(self, error: BaseException | None) -> Callable[[], object] | None:
        """What is to be done at the end of the block; None where the message is settled."""
        if isinstance(error, Exception):
            count = self.redelivery_count
            logger.error("%s failed in %s (%d before)", self.id, self.subscription.name, count, exc_info=error)
        if self.settled:
            return None
        if error is None:
            return partial(self.subscription.ack, self)
        if isinstance(error, Exception):
            return partial(self.subscription.nack, self, reason=f"{type(error).__name__}: {error}")
        return self._release

    def _release(self) -> None:
        with contextlib.suppress(StoreClosed, StoreForked):
            self.subscription.release(self)


def complete(message: LeasedMessage, subscription: Settling, redelivery_count: int, deadline_ms: int) -> None:
    """Fill in what a lease adds to a message that was just made, and that nobody has yet."""
    put = object.__setattr__
    put(message, "subscription", subscription)
    put(message, "redelivery_count", redelivery_count)
    put(message, "deadline_ms", deadline_ms)
    put(message, "settled", False)
