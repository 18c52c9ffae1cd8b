"""One record as a reader of a subscription has it: a message with a receipt, and a block to work it off in."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, fields
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from afterlog.base.errors import StoreClosed, StoreForked
from afterlog.fetch.message import Message
from afterlog.subscription.ack_group import AckGroup
from afterlog.subscription.active_handlers import ActiveHandlers
from afterlog.subscription.flow_control import FlowControl, Place
from afterlog.subscription.lease_number import deliveries, failures

if TYPE_CHECKING:
    from afterlog.records.times import Delay
    from afterlog.subscription.answers import ReceiptResult

logger = logging.getLogger("afterlog.subscription")

AwaitedCall: TypeAlias = Callable[[Callable[[], object]], Awaitable[object]]
"""Makes a call without blocking the event loop."""


class Settling(Protocol):
    """What a message asks of the subscription that leased it."""

    topic: str
    name: str
    background: AwaitedCall | None
    """Of `afterlog.aio`: how its messages are settled. None elsewhere."""
    blocks: ActiveHandlers[LeasedMessage]
    flow: FlowControl | None
    """None: it takes what there is."""
    group: AckGroup[LeasedMessage] | None
    """None: the end of each block acks."""

    def ack(self, message: LeasedMessage, /) -> object: ...
    def nack(self, messages: LeasedMessage, /, *, delay: Delay | None = None, reason: str) -> ReceiptResult: ...
    def reject(self, messages: LeasedMessage, /, reason: str) -> ReceiptResult: ...
    def release(self, messages: LeasedMessage, /) -> object: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedMessage(Message):
    """A record leased to one reader until `deadline_ms`, by the log's clock.

        with message:
            deliver(message.value)

    acks the message when the block ends well, or soon after with others (`ack_group_ms`). Where the block raises an
    Exception, it is logged with its traceback (logger ``afterlog.subscription``), the message is nacked with it as the
    reason, and the exception does not leave the block: a worker goes on, and a record that always fails stops nobody.
    KeyboardInterrupt, SystemExit and their like give the message back, which counts as no failure, and go on their
    way. Whoever acks, nacks, rejects or releases the message in the block has settled it: the block's end does nothing
    then.

    While the block is open its lease is extended, up to the subscription's `max_lease_ms`, so that a slow handler is
    not run twice (`lease_keeper.py`). `deadline_ms` is that of the delivery. Its end still acks where the subscription
    was closed meanwhile, as long as the store is open.

    Received in `afterlog.aio` it is `async with message:`, and the cancelling of the task gives the message back.
    """

    lease_number: int
    """Which lease of the record this is: with partition and delivery offset the receipt (`Receipts`)."""
    deadline_ms: int
    subscription: Settling = field(repr=False, compare=False)
    settled: bool = field(default=False, init=False, repr=False, compare=False)
    """Acked, nacked, rejected or released by this reader."""

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled, it is a `Message`: what it says, and not whose it is."""
        return _message, ({each.name: getattr(self, each.name) for each in fields(Message)},)

    def settle(self) -> None:
        """Note that it was acked, nacked or released: the subscription does."""
        object.__setattr__(self, "settled", True)  # the one thing that changes
        flow = self.subscription.flow
        if flow is not None:
            flow.settled(self._place())

    def extended(self, deadline_ms: int) -> None:
        """Note that it is leased until then, in so far as it is leased."""
        flow = self.subscription.flow
        if flow is not None:
            flow.extended([self._place()], deadline_ms)

    def _place(self) -> Place:
        return self.partition, self.delivery_offset, self.lease_number

    @property
    def redelivery_count(self) -> int:
        """Earlier deliveries of it that failed, by a nack, an expired lease, or the end of the process where the lease
        was not to outlive it (`durable_leases`)."""
        return failures(self.lease_number)

    @property
    def delivery_count(self) -> int:
        """How often it was handed out since the last seek, this time included: those that were given back, too."""
        return deliveries(self.lease_number)

    def reject(self, reason: str = "") -> ReceiptResult:
        """It can never be worked off: to the dead letters at once, with the reason, whatever the policy says.

        Raises NoDeadLetterTopic where the reader has none; then it stays leased. In `afterlog.aio`:
        ``await subscription.reject(message, reason)``.
        """
        self._check_blocking("reject(message, reason)")
        return self.subscription.reject(self, reason)

    def retry(self, delay: Delay | None = None, reason: str = "") -> ReceiptResult:
        """It failed, and comes again after `delay` (seconds, timedelta), by default the policy's: a nack.

        In `afterlog.aio`: ``await subscription.nack(message, delay=delay)``.
        """
        self._check_blocking("nack(message, delay=delay)")
        return self.subscription.nack(self, delay=delay, reason=reason)

    def __enter__(self) -> LeasedMessage:
        subscription = self.subscription
        if subscription.background is not None:
            raise TypeError("received in afterlog.aio, where the end of a block must be awaited: `async with message:`")
        blocks = subscription.blocks
        try:
            blocks[id(self)] = self
            if blocks.asleep:
                blocks.wake()
        except BaseException:  # an exception in here: the block does not begin, and nobody ends it
            blocks.pop(id(self), None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[True] | None:
        blocks, identity = self.subscription.blocks, id(self)
        try:
            if error is None and not self.settled:
                group = self.subscription.group
                if group is None or not group.add(self):
                    self.subscription.ack(self)
            elif error is not None and (ending := self._ending(error)) is not None:
                ending()
        finally:
            blocks.pop(identity, None)
            if blocks.watched and not blocks:
                blocks.ended()
        return True if isinstance(error, Exception) else None

    async def __aenter__(self) -> LeasedMessage:
        if self.subscription.background is None:
            raise TypeError("received by blocking calls: `with message:`, or subscribe in afterlog.aio")
        blocks = self.subscription.blocks
        try:
            blocks[id(self)] = self
            if blocks.asleep:
                blocks.wake()
        except BaseException:
            blocks.pop(id(self), None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[True] | None:
        background, blocks = self.subscription.background, self.subscription.blocks
        assert background is not None
        try:
            ending = self._ending(error)
            if ending is not None:
                await background(ending)
        finally:
            blocks.pop(id(self), None)
            if blocks.watched and not blocks:
                await background(blocks.ended)  # which may close what was waiting for it
        return True if isinstance(error, Exception) else None

    def _check_blocking(self, call: str) -> None:
        if self.subscription.background is not None:
            raise TypeError(f"received in afterlog.aio: `await subscription.{call}`")

    def _ending(self, error: BaseException | None) -> Callable[[], object] | None:
        """What is to be done at the end of the block; None where the message is settled."""
        if isinstance(error, Exception):
            count = self.redelivery_count
            logger.error("%s failed in %s (%d before)", self.id, self.subscription.name, count, exc_info=error)
        if self.settled:
            return None
        if error is None:
            group = self.subscription.group
            return partial(self.subscription.ack, self) if group is None or not group.add(self) else None
        if isinstance(error, Exception):
            return partial(self.subscription.nack, self, reason=f"{type(error).__name__}: {error}")
        return self._release

    def _release(self) -> object:
        """Where what is to be awaited does it, that."""
        with contextlib.suppress(StoreClosed, StoreForked):
            return self.subscription.release(self)
        return None


def _message(values: dict[str, Any]) -> Message:
    return Message(**values)


def complete(message: LeasedMessage, subscription: Settling, lease_number: int, deadline_ms: int) -> None:
    """Fill in what a lease adds to a message that was just made, and that nobody has yet."""
    put = object.__setattr__
    put(message, "subscription", subscription)
    put(message, "lease_number", lease_number)
    put(message, "deadline_ms", deadline_ms)
    put(message, "settled", False)
