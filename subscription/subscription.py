"""A reader of a subscription: receives due records under leases, over all its partitions, and says what became of them.

    with store.subscribe("mail", "sender", retry=RetryPolicy(attempts=8), dead_letter="mail.dead") as subscription:
        for message in subscription:             # due order in each partition, leased to this reader
            with message:                        # acked when the block ends well; nacked when it raises
                deliver(message.value)           # leased for as long as that takes (`lease_keeper.py`)

Many readers share what is known of each partition (`open_subscriptions.py`); a reader has its own retry policy, lease
and dead letters. Partitions are served in turn, so that a busy one starves nobody.

A record whose delivery fails comes again after the policy's delay, or goes to the dead letters where it has failed as
often as the policy allows. Without a dead-letter topic it is retried for ever, at last every `max_ms`: nothing is ever
dropped.

    open ──drain, a signal──> draining ──> closed     draining: takes nothing more, and settles what it has
      └──────────────────────────────────────^        closed: only blocks that are open still settle their message
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from afterlog.base.arguments import seconds
from afterlog.base.clock import Clock
from afterlog.base.errors import (
    InvalidReceipt,
    NoDeadLetterTopic,
    StoreClosed,
    StoreForked,
    UnknownPartition,
)
from afterlog.fetch.positions import AtTime, Position
from afterlog.records.times import Delay
from afterlog.records.times import delay_ms as milliseconds
from afterlog.subscription.ack_group import AckGroup
from afterlog.subscription.answers import AckResult, ReceiptResult, SubscriptionStats
from afterlog.subscription.draining import Draining
from afterlog.subscription.flow_control import Place
from afterlog.subscription.lease_number import failures
from afterlog.subscription.leased_message import AwaitedCall, LeasedMessage
from afterlog.subscription.partition_subscription import PartitionSubscription
from afterlog.subscription.policy import check_span
from afterlog.subscription.reader_part import ReaderPart, summed
from afterlog.subscription.reader_settings import ReaderSettings
from afterlog.subscription.received import Receipts, Received, ReceivedOne
from afterlog.subscription.receiver import Receiver
from afterlog.surface import SubscriptionSurface

if TYPE_CHECKING:
    from afterlog.surface import MessagesToSettle


class Subscription(SubscriptionSurface):
    """Made by `store.subscribe`. Thread-safe; each iteration is for one thread."""

    def __init__(
        self,
        topic: str,
        name: str,
        parts: Sequence[ReaderPart],
        settings: ReaderSettings,
        *,
        clock: Clock,
        usable: Callable[[], None],
        on_close: Callable[[], None],
        grouped: bool = False,
    ) -> None:
        """usable: raises where the store is closed, or this process a forked child.

        grouped: the acks of blocks wait for each other, as the settings say: there is who sends them.
        """
        self.topic = topic
        self.name = name
        self._parts = {part.number: part for part in parts}
        self.shared = tuple(part.subscription for part in parts)
        """The partitions, as all readers of the subscription share them."""
        self._settings = settings
        self._policy = settings.policy
        self._clock = clock
        self._usable = usable
        self._on_close = on_close
        self.receiver = Receiver(self, parts, settings, clock)
        """The steps of receiving and iterating, none of which waits: for who must not block."""
        self.blocks = self.receiver.blocks
        self.flow = self.receiver.flow
        self.group = AckGroup(settings.ack_group_ms, self._ack_group, boot_ms=clock.boot_ms) if grouped else None
        """Of the acks of its blocks."""
        self.background: AwaitedCall | None = None
        """See `leased_message.Settling`."""

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Subscription {self.name!r} of {self.topic}, partitions {', '.join(map(str, self._parts))}>"

    # Receiving.

    def __iter__(self) -> Iterator[LeasedMessage]:
        receiver = self.receiver
        ahead = receiver.begin()
        try:
            while not receiver.ended:
                message = receiver.pop(ahead)
                if message is not None:
                    yield message
                elif not receiver.fill(ahead):
                    receiver.agenda.wait(None)
        finally:
            receiver.end(ahead)

    def receive(self, max_records: int = 100, timeout: float | None = 0.0) -> Received:
        self._check_open()
        timeout = seconds("timeout", timeout)
        alone = type(max_records) is int and max_records == 1 and self.flow is None and not self.receiver.draining
        one = self.receiver.one() if alone else None
        return self._take(max_records, timeout) if one is None else one

    def _take(self, max_records: int, timeout: float | None) -> Received:
        receiver, deadline_s = self.receiver, None if timeout is None else self._clock.monotonic_s() + timeout
        found = receiver.look(max_records)
        while found is None and not receiver.ended:
            left_s = None if deadline_s is None else deadline_s - self._clock.monotonic_s()
            if left_s is not None and left_s <= 0:
                break
            receiver.agenda.wait(left_s)
            found = receiver.take(max_records)
        return receiver.nothing() if found is None else found

    # What became of them. Each returns when it is safe under the durability of the store.

    def ack(self, message: LeasedMessage) -> AckResult:
        answer = self._part_of(message).subscription.ack_one(message.delivery_offset)
        message.settle()
        return answer

    def ack_many(self, messages: MessagesToSettle) -> AckResult:
        if type(messages) is ReceivedOne:
            return self.ack(messages.message)
        answers = [
            self._part(number).subscription.ack(receipts.delivery_offset)
            for number, receipts in self._receipts(messages).by_partition()
        ]
        self._settle(messages)
        return AckResult(
            acked=sum(answer.acked for answer in answers),
            already=sum(answer.already for answer in answers),
            unknown=sum(answer.unknown for answer in answers),
        )

    def parts(self) -> list[PartitionSubscription]:
        """Its partitions, for who is inside."""
        return [part.subscription for part in self._parts.values()]

    def ack_places(self, places: Sequence[Place]) -> list[AckResult]:
        """`ack_many` of a few receipts that somebody kept, by their numbers; what each of them did."""
        self._check_open()
        by_partition: dict[int, list[int]] = {}
        for partition, delivery_offset, _ in places:
            by_partition.setdefault(partition, []).append(delivery_offset)
        parts = {number: self._part(number).subscription for number in by_partition}
        answers = {number: iter(parts[number].ack_each(offsets)) for number, offsets in by_partition.items()}
        if self.flow is not None:
            self.flow.settled_many(places)
        return [next(answers[partition]) for partition, _, _ in places]

    def nack(self, messages: MessagesToSettle, *, delay: Delay | None = None, reason: str = "") -> ReceiptResult:
        delay_ms = None if delay is None else milliseconds(delay)
        if delay_ms is not None:
            check_span("delay_ms", delay_ms, 0)
        one = messages.message if type(messages) is ReceivedOne else messages
        if isinstance(one, LeasedMessage) and not self._policy.gives_up(one.redelivery_count + 1):
            return self._nack_one(one, delay_ms)
        answers = [
            self._part(number).nack(receipts, delay_ms, reason, self._settings)
            for number, receipts in self._receipts(messages).by_partition()
        ]
        self._settle(messages)
        return summed(answers)

    def reject(self, messages: MessagesToSettle, reason: str = "") -> ReceiptResult:
        receipts = self._receipts(messages)
        if self._settings.dead_letter is None:
            raise NoDeadLetterTopic(f"{self!r} has no dead letters: subscribe with dead_letter=, or nack with a delay")
        answers = [
            self._part(number).dead_letter(each, failures(each.lease_number) + 1, reason or "rejected", self._settings)
            for number, each in receipts.by_partition()
        ]
        self._settle(messages)
        return summed(answers)

    def release(self, messages: MessagesToSettle) -> ReceiptResult:
        every = self._receipts(messages).by_partition()
        answers = [self._part(number).release(receipts) for number, receipts in every]
        self._settle(messages)
        return summed(answers)

    def extend(self, messages: MessagesToSettle, *, lease_ms: int | None = None) -> ReceiptResult:
        lease_ms = self._settings.lease_ms if lease_ms is None else lease_ms
        answers = [
            self._part(number).subscription.extend(receipts.delivery_offset, receipts.lease_number, lease_ms)
            for number, receipts in self._receipts(messages).by_partition()
        ]
        answer = summed(answers)
        if not isinstance(messages, Receipts):
            for each in _each(messages):
                each.extended(answer.deadline_ms)
        elif self.flow is not None:
            self.flow.extended(messages.places(), answer.deadline_ms)
        return answer

    def _ack_group(self, messages: Sequence[LeasedMessage]) -> None:
        for number, receipts in Receipts.of(messages).by_partition():
            self._part(number).subscription.ack(receipts.delivery_offset)

    # The whole subscription.

    def flush_acks(self) -> None:
        """Ack what waits for others of its group. For who is inside, as `stats` and `drain`, which do it first."""
        if self.group is not None:
            self.group.flush()

    def seek(self, position: Position | datetime, partition: int | None = None) -> None:
        self._check_open()
        self.flush_acks()
        wanted = AtTime(position) if isinstance(position, datetime) else position
        parts = list(self._parts.values()) if partition is None else [self._part(partition)]
        for part in parts:
            part.subscription.sought(wanted)  # whether it can be, everywhere, before anything moves
        for part in parts:
            part.subscription.seek(wanted)

    def stats(self) -> SubscriptionStats:
        self._check_open()
        self.flush_acks()
        return SubscriptionStats.of({number: part.subscription.stats() for number, part in self._parts.items()})

    def drain(self, timeout: float | None = None) -> bool:
        timeout = seconds("timeout", timeout)
        self._check_open()
        self.stop_taking()
        is_over = self.blocks.wait(self.receiver.is_idle, self._clock, timeout)
        self.flush_acks()
        return is_over

    def draining_on(self, signal: int, *, timeout: float | None = None) -> Draining:
        return Draining(self, signal, timeout)

    def close(self) -> None:
        """End the iterations and give back what they have leased ahead; the last reader gives back all that is leased.

        From any thread. Messages cannot be acked any more, but for those whose block is open: they stay leased, and
        the block's end acks, as long as the store is open. Where it was interrupted, another call ends it.
        """
        with contextlib.suppress(StoreClosed):
            try:
                self._usable()
            except StoreForked:  # it is the parent's
                self.receiver.closed = True
                return
        with contextlib.ExitStack() as stack:
            stack.callback(self._end)
            stack.callback(self.blocks.listen, self._end)
            stack.callback(self.receiver.close)
            if self.group is not None:
                stack.callback(self.group.close)

    @property
    def ended(self) -> bool:
        """Whether it takes nothing more: draining, or closed."""
        return self.receiver.ended

    def halt(self) -> None:
        """See `Drainable`, as the next."""
        self.receiver.halt()

    def stop_taking(self) -> None:
        self.receiver.stop_taking()

    @property
    def cut_bytes(self) -> dict[int, int]:
        """What was lost of its journals when it was opened, bytes by partition: what they told comes again.

        The end of a journal that was torn, or, under the durability `os`, that spoke of records which are gone.
        """
        replayed = {part.number: part.subscription.replayed for part in self._parts.values()}
        lost = {number: each.cut_bytes + each.given_up_bytes for number, each in replayed.items() if each is not None}
        return {number: cut for number, cut in lost.items() if cut}

    def _end(self) -> None:
        """Let the partitions go, once no block is open."""
        if self.receiver.closed and not self.blocks:
            self._on_close()

    # Messages.

    def _nack_one(self, message: LeasedMessage, delay_ms: int | None) -> ReceiptResult:
        """`nack` of one that is tried again."""
        part = self._part_of(message)
        if delay_ms is None:
            delay_ms = self._policy.delay_ms(message.redelivery_count + 1, self._settings.random)
        answer = part.subscription.nack_one(message.delivery_offset, message.offset, message.lease_number, delay_ms)
        message.settle()
        return answer

    def _receipts(self, messages: MessagesToSettle) -> Receipts:
        """The receipts of messages of this subscription, or those that somebody kept.

        Raises InvalidReceipt, and of what was kept UnknownPartition.
        """
        self._check_open(messages)
        return self._kept(messages) if isinstance(messages, Receipts) else self._receipts_of(messages)

    def _receipts_of(self, messages: LeasedMessage | Sequence[LeasedMessage]) -> Receipts:
        if isinstance(messages, Received):
            self._check_mine(messages)
            return messages.receipts
        if isinstance(messages, LeasedMessage):
            messages = [messages]
        elif not isinstance(messages, Sequence):
            raise InvalidReceipt(f"give a message, a list of them, or what receive returned, not {messages!r}")
        for message in messages:
            self._check_mine(message)
        return Receipts.of(messages)

    def _kept(self, receipts: Receipts) -> Receipts:
        """As a caller hands them in. Raises InvalidReceipt, UnknownPartition."""
        kept = receipts.kept()
        for number in np.unique(kept.partition).tolist():
            self._part(number)
        return kept

    def _settle(self, messages: MessagesToSettle) -> None:
        """Note that they were acked, nacked, rejected or released."""
        if not isinstance(messages, Receipts):
            for each in _each(messages):
                each.settle()
        elif self.flow is not None:
            self.flow.settled_many(messages.places())

    def _check_mine(self, messages: LeasedMessage | Received) -> None:
        """Raises InvalidReceipt where it is no message, or another subscription's."""
        if not isinstance(messages, LeasedMessage | Received):
            raise InvalidReceipt(f"no message that was received: {messages!r}")
        leased_by = messages.subscription
        if leased_by is not self and (leased_by.topic, leased_by.name) != (self.topic, self.name):
            raise InvalidReceipt(f"a message of {leased_by.name!r} of {leased_by.topic}, not of {self!r}")

    def _part_of(self, message: LeasedMessage) -> ReaderPart:
        self._check_open(message)
        if type(message) is not LeasedMessage or message.subscription is not self:
            self._check_mine(message)
        return self._part(message.partition)

    def _part(self, number: int) -> ReaderPart:
        part = self._parts.get(number) if isinstance(number, int) else None
        if part is None:
            raise UnknownPartition(f"this reader does not have partition {number!r} of {self.topic}")
        return part

    def _check_open(self, messages: MessagesToSettle | None = None) -> None:
        """A message whose block is open is settled behind a close, too."""
        self._usable()
        if self.receiver.closed and self.blocks.get(id(messages)) is None:
            raise StoreClosed("the subscription is closed; make another with store.subscribe(topic, name)")


def _each(messages: LeasedMessage | Sequence[LeasedMessage]) -> Sequence[LeasedMessage | Received]:
    """What a reader has received at once is one."""
    return [messages] if isinstance(messages, LeasedMessage | Received) else messages
