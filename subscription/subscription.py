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
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from types import TracebackType
from typing import TypeAlias

import numpy as np

from afterlog.arguments import seconds, whole
from afterlog.clock import Clock
from afterlog.errors import (
    AfterlogError,
    InvalidReceipt,
    InvalidSubscription,
    NoDeadLetterTopic,
    StoreClosed,
    StoreForked,
    UnknownPartition,
)
from afterlog.fetch.agenda import in_turn
from afterlog.fetch.message_columns import Columns
from afterlog.fetch.partition import agenda_of
from afterlog.fetch.positions import AtTime, Position
from afterlog.index.growing_columns import Int64Array
from afterlog.records.deliver_after import Delay
from afterlog.records.deliver_after import delay_ms as milliseconds
from afterlog.subscription.answers import AckResult, Lease, PartitionStats, ReceiptResult
from afterlog.subscription.dead_letters import DeadLetters
from afterlog.subscription.draining import Draining
from afterlog.subscription.intake import Intake, check_limits
from afterlog.subscription.lease_keeper import KeptLeases
from afterlog.subscription.leased_message import AwaitedCall, LeasedMessage, complete
from afterlog.subscription.open_blocks import OpenBlocks
from afterlog.subscription.partition_subscription import PartitionSubscription, check_span
from afterlog.subscription.policy import Random, RetryPolicy
from afterlog.subscription.read_ahead import ReadAhead
from afterlog.subscription.received import Receipts, Received, ReceivedOne

logger = logging.getLogger("afterlog.subscription")

Messages: TypeAlias = LeasedMessage | Sequence[LeasedMessage]

LEASE_ENDED = "given up after {} deliveries, of which the last ended without an answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderSettings:
    """What one reader decides for itself. InvalidSubscription where it cannot be."""

    retry: RetryPolicy
    lease_ms: int
    dead_letter: str | None
    random: Random | None
    """For the jitter of retries; None: no jitter."""
    auto_extend: bool = True
    """Whether a message whose block is open stays leased."""
    max_lease_ms: int = 3_600_000
    """Since its delivery; then it is another reader's, and counts as failed."""
    rate: float | None = None
    max_in_flight: int | None = None
    """See `Intake`."""

    def __post_init__(self) -> None:
        check_span("lease_ms", self.lease_ms, 1)
        check_span("max_lease_ms", self.max_lease_ms, 1)
        check_limits(self.rate, self.max_in_flight)
        if not isinstance(self.retry, RetryPolicy):
            raise InvalidSubscription(f"retry must be a RetryPolicy, not {self.retry!r}")

    @property
    def policy(self) -> RetryPolicy:
        """When to give up: without dead letters never."""
        return self.retry if self.dead_letter is not None else replace(self.retry, attempts=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionStats:
    """A subscription over all partitions that a reader has, and each by itself; see `PartitionStats`. Exact."""

    pending: int
    due: int
    leased: int
    retrying: int
    acked: int
    dead: int
    nacked: int
    expired: int
    crashed: int
    released: int
    redelivered: int
    partitions: dict[int, PartitionStats]


@dataclass(frozen=True, slots=True)
class ReaderPart:
    """One partition of a subscription, as all its readers share it."""

    subscription: PartitionSubscription
    dead_letters: DeadLetters

    @property
    def number(self) -> int:
        return self.subscription.partition.number


class Subscription:
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
    ) -> None:
        """usable: raises where the store is closed, or this process a forked child."""
        self.topic = topic
        self.name = name
        self._rows = tuple(parts)
        self._parts = {part.number: part for part in parts}
        self._settings = settings
        self._policy = settings.policy
        self._now_ms = parts[0].subscription.partition.log.context.now_ms
        self._clock = clock
        self.shared = shared = tuple(part.subscription for part in parts)
        """The partitions, as all readers of the subscription share them."""
        self.agenda = agenda_of([each.partition for each in shared], clock, delay_ms=shared[0].delay_ms)
        """What it has to look at, and so how long there is nothing."""
        for row, each in enumerate(shared):
            self.agenda.follow(row, each.notifier)
        self._usable = usable
        self._on_close = on_close
        self._turn = 0
        self._aheads: list[ReadAhead] = []
        self.blocks = OpenBlocks[LeasedMessage]()
        """Of its messages, what is in handlers now."""
        self.kept = self._keeping() if settings.auto_extend else None
        self.intake = self._limits()
        self.background: AwaitedCall | None = None
        """See `leased_message.Settling`."""
        self._draining = False
        self._closed = False
        self._lock = threading.Lock()

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
        """Messages as they become due, each leased; waits for the next, and ends when the subscription is closed, or
        drained.

        A few are leased ahead (`read_ahead.py`). What was not handed out goes back, uncounted, when the iteration ends.
        """
        ahead = self.begin()
        try:
            while not self.ended:
                message = self.pop(ahead)
                if message is not None:
                    yield message
                elif not self.fill(ahead):
                    self.agenda.wait(None)
        finally:
            self.end(ahead)

    def receive(self, max_records: int = 100, timeout: float | None = 0.0) -> Received:
        """Lease up to `max_records` due records; waits up to `timeout` seconds for the first (None: for ever).

        None where it drains. With `rate` or `max_in_flight` no more than these have room for.
        Raises ClockBehind, CorruptFile, StorageFull, SubscriptionPoisoned, StoreClosed, StoreForked.
        """
        self._check_open()
        timeout = seconds("timeout", timeout)
        alone = type(max_records) is int and max_records == 1 and self.intake is None and not self._draining
        one = self._one() if alone else None
        return self._take(max_records, timeout) if one is None else one

    # What became of them. Each returns when it is safe under the durability of the store.

    def ack(self, message: LeasedMessage) -> AckResult:
        """It is done with; also where its lease has ended meanwhile, and whoever has it now."""
        part = self._part_of(message)
        answer = part.subscription.ack_one(message.delivery_offset)
        message.settle()
        return answer

    def ack_many(self, messages: Messages) -> AckResult:
        """The same of many. A `Received` is acked by its columns, with nothing done record by record."""
        answers = [
            self._part(number).subscription.ack(receipts.delivery_offset)
            for number, receipts in self._receipts(messages).by_partition()
        ]
        _settle(messages)
        return AckResult(
            acked=sum(answer.acked for answer in answers),
            already=sum(answer.already for answer in answers),
            unknown=sum(answer.unknown for answer in answers),
        )

    def nack(self, messages: Messages, *, delay: Delay | None = None, reason: str = "") -> ReceiptResult:
        """One or many failed. They go out again after `delay` (seconds, timedelta), by default the policy's.

        What has failed as often as the policy allows goes to the dead letters instead, with the reason. Stale receipts,
        of leases that have ended, do nothing.
        """
        delay_ms = None if delay is None else milliseconds(delay)
        if delay_ms is not None:
            check_span("delay_ms", delay_ms, 0)
        if isinstance(messages, LeasedMessage) and not self._policy.gives_up(messages.redelivery_count + 1):
            return self._nack_one(messages, delay_ms)
        answers = [
            self._nack(self._part(number), receipts, delay_ms, reason)
            for number, receipts in self._receipts(messages).by_partition()
        ]
        _settle(messages)
        return _sum(answers)

    def reject(self, messages: Messages, reason: str = "") -> ReceiptResult:
        """One or many can never be worked off: to the dead letters at once, whatever the policy says.

        Stale receipts do nothing. Raises NoDeadLetterTopic where this reader has none, and what a nack that gives up
        does; what was not moved then is still leased.
        """
        receipts = self._receipts(messages)
        if self._settings.dead_letter is None:
            raise NoDeadLetterTopic(f"{self!r} has no dead letters: subscribe with dead_letter=, or nack with a delay")
        answers = [
            self._bury(self._part(number), each, each.redelivery_count + 1, reason or "rejected")
            for number, each in receipts.by_partition()
        ]
        _settle(messages)
        return _sum(answers)

    def release(self, messages: Messages) -> ReceiptResult:
        """Give one or many back, to go out again at once; that counts as no failure."""
        answers = [
            self._part(number).subscription.release(
                receipts.delivery_offset, receipts.offset, receipts.redelivery_count
            )
            for number, receipts in self._receipts(messages).by_partition()
        ]
        _settle(messages)
        return _sum(answers)

    def extend(self, messages: Messages, *, lease_ms: int | None = None) -> ReceiptResult:
        """Lease one or many for `lease_ms` from now, by default as long as at first; `deadline_ms` says until when."""
        lease_ms = self._settings.lease_ms if lease_ms is None else lease_ms
        every = self._receipts(messages)
        answers = [
            self._part(number).subscription.extend(receipts.delivery_offset, receipts.redelivery_count, lease_ms)
            for number, receipts in every.by_partition()
        ]
        if self.intake is not None and answers:
            self.intake.extended(every.places(), min(answer.deadline_ms for answer in answers))
        return _sum(answers)

    # The whole subscription.

    def seek(self, position: Position | datetime, partition: int | None = None) -> None:
        """Read on from `position` in one partition, or in all: for all readers of the subscription.

        All before it counts as acked, all behind it as never delivered. A time (aware datetime, `AtTime`) is the time
        at which records become due to this subscription. Raises OffsetOutOfRange, of that PositionPending where
        a rank among what is pending is asked for; then nothing is moved.
        """
        self._check_open()
        wanted = AtTime(position) if isinstance(position, datetime) else position
        parts = list(self._parts.values()) if partition is None else [self._part(partition)]
        for part in parts:
            part.subscription.sought(wanted)  # whether it can be, everywhere, before anything moves
        for part in parts:
            part.subscription.seek(wanted)

    def stats(self) -> SubscriptionStats:
        """How things stand, for all readers together."""
        self._check_open()
        partitions = {number: part.subscription.stats() for number, part in self._parts.items()}
        names = [field.name for field in fields(SubscriptionStats) if field.name != "partitions"]
        total = {name: sum(getattr(each, name) for each in partitions.values()) for name in names}
        return SubscriptionStats(**total, partitions=partitions)

    def drain(self, timeout: float | None = None) -> bool:
        """Take nothing more, give back what was leased ahead, and wait up to `timeout` seconds for the handlers.

        Iterations end behind the message that they have handed out, `receive` comes back with nothing. A handler is
        a block that is open (`with message:`), or what an iteration has handed out and nobody has settled. What a
        `receive` gave is its caller's, to be settled before `close`. True where all have ended; else call it again, or
        `close`. From any thread but that of a handler, which would wait for itself.
        """
        timeout = seconds("timeout", timeout)
        self._check_open()
        self.stop_taking()
        return self.blocks.wait(self.is_idle, self._clock, timeout)

    def draining_on(self, signal: int, *, timeout: float | None = None) -> Draining:
        """A block in which the signal drains; its end waits up to `timeout` seconds for the handlers.

            with store.subscribe("mail", "sender") as subscription, subscription.draining_on(signal.SIGTERM):
                for message in subscription:
                    with message:
                        deliver(message.value)

        The second signal is the previous handler's, which is back at the end of the block. For the main thread alone
        (NotInMainThread); handlers may be in any. Raises InvalidArgument, WrongType.
        """
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
                self._closed = True
                return
        with self._lock:
            self._closed = True
            left = [message for ahead in self._aheads for message in ahead.drain()]
        try:
            self._give_back(left)
        finally:
            self.agenda.close()
            self.blocks.listen(self._end)
            self._end()

    @property
    def cut_bytes(self) -> dict[int, int]:
        """What was lost of its journals when it was opened, bytes by partition: what they told comes again.

        The end of a journal that was torn, or, under the durability `os`, that spoke of records which are gone.
        """
        replayed = {part.number: part.subscription.replayed for part in self._parts.values()}
        lost = {number: each.cut_bytes + each.given_up_bytes for number, each in replayed.items() if each is not None}
        return {number: cut for number, cut in lost.items() if cut}

    # The steps of receiving and iterating, none of which waits: for who must not block.

    @property
    def ended(self) -> bool:
        """Whether it takes nothing more: draining, or closed."""
        return self._draining or self._closed

    def halt(self) -> None:
        """Take nothing more. No lock is taken: for a signal's handler. Somebody has to `stop_taking` behind it."""
        self._draining = True

    def stop_taking(self) -> None:
        """The same; give back what was leased ahead, and wake who waits."""
        self.halt()
        with self._lock:
            left = [message for ahead in self._aheads for message in ahead.drain()]
        try:
            self._give_back(left)
        finally:
            self.agenda.resume()
            self.agenda.stir_all()

    def is_idle(self) -> bool:
        """Whether no handler is at work, as far as is known."""
        return not any(ahead.is_out for ahead in self._aheads) and not self.blocks

    def look(self, max_records: int) -> Received | None:
        """Lease what is due now; None where nothing is: the agenda tells how long. Empty where it has ended."""
        if self.ended:
            return self._received([])
        max_records = whole("max_records", max_records, least=-1)  # too few are an InvalidSubscription
        try:
            return self._sweep(max_records) if self.intake is None else self._limited(self.intake, max_records)
        except StoreClosed:
            if not self._closed:  # else by another thread
                raise
            return self._received([])

    def begin(self) -> ReadAhead:
        """What an iteration has leased ahead: nothing yet."""
        ahead = ReadAhead(self._settings.lease_ms)
        with self._lock:
            self._aheads.append(ahead)
        return ahead

    def pop(self, ahead: ReadAhead) -> LeasedMessage | None:
        """The next message that was leased ahead, with no I/O; None where it is time to `fill`."""
        return ahead.pop(self._now_ms()) if ahead.seeks == self._seeks() else None

    def fill(self, ahead: ReadAhead) -> bool:
        """Lease ahead what is due; False where nothing is: the agenda tells how long.

        What has waited for too long goes back.
        """
        ahead.out = None
        self._give_back(ahead.drain())
        seeks, wanted = self._seeks(), ahead.wanted(self._now_ms())
        share = None if self.intake is None else self.intake.share(len(self._aheads))
        found = self.look(wanted if share is None else min(wanted, share))
        if found is None:
            return False
        ahead.fill(found, self._now_ms(), seeks)
        return True

    def end(self, ahead: ReadAhead) -> None:
        """Give back what was not handed out."""
        with self._lock:
            self._aheads = [each for each in self._aheads if each is not ahead]
        try:
            self._give_back(ahead.drain())
        finally:
            if self.blocks.watched:
                self.blocks.ended()

    # Taking.

    def _take(self, max_records: int, timeout: float | None) -> Received:
        deadline_s = None if timeout is None else self._clock.monotonic_s() + timeout
        while not self.ended:
            found = self.look(max_records)
            if found is not None:
                return found
            left_s = None if deadline_s is None else deadline_s - self._clock.monotonic_s()
            if left_s is not None and left_s <= 0:
                break
            self.agenda.wait(left_s)
        return self._received([])

    def _limited(self, intake: Intake, max_records: int) -> Received | None:
        """`_sweep`, of what there is room for; where there is none the agenda pauses."""
        with intake.taking:
            room = intake.room()
            if room <= 0:
                self.agenda.pause(intake.until_ms())
                if intake.room() > 0:  # somebody settled one before that
                    self.agenda.resume()
                return None
            found = self._sweep(min(max_records, room))
            if found is not None:
                intake.took(found.receipts.places(), found.deadline_ms.tolist())
            return found

    def _sweep(self, max_records: int) -> Received | None:
        """Due records of the partitions on the agenda; None where there are none."""
        leases, left, turn = list[tuple[ReaderPart, Lease]](), max_records, self._turn
        self._turn = (turn + 1) % len(self._rows)
        try:
            for row in in_turn(self.agenda.rows(), turn):
                part, stirs = self._rows[row], self.agenda.stirs(row)
                lease = self._lease(part, left)
                if len(lease):
                    leases.append((part, lease))
                    left -= len(lease)
                    if left <= 0:
                        break
                else:
                    self.agenda.rest(row, stirs, part.subscription.rest_ms())
        except BaseException:
            for part, lease in leases:
                _release(part, lease.columns, lease.redelivery_count)
            raise
        return self._received([lease for _, lease in leases]) if leases else None

    def _one(self) -> ReceivedOne | None:
        """One record that was read ahead; None: `look` for it."""
        rows = self.agenda.rows()
        if not rows:
            return None
        row = in_turn(rows, self._turn)[0]
        found = self.shared[row].receive_one(self._settings.lease_ms, LeasedMessage)
        if found is None:
            return None
        self._turn = (self._turn + 1) % len(self.shared)
        message, until_ms = found
        complete(message, self, 0, until_ms)
        return ReceivedOne(message)

    def _lease(self, part: ReaderPart, max_records: int) -> Lease:
        """Lease due records of one partition; those that have failed too often go to the dead letters at once."""
        part.dead_letters.resume()
        while True:
            lease = part.subscription.receive(max_records, self._settings.lease_ms, policy=self._policy)
            if len(lease.exhausted):
                try:
                    self._give_up(part, lease)
                except BaseException:
                    _release(part, lease.columns, lease.redelivery_count)
                    _release(part, lease.exhausted, lease.exhausted_count)
                    raise
            if len(lease) or not len(lease.exhausted):
                return lease

    def _received(self, leases: Sequence[Lease]) -> Received:
        if not leases:
            nothing = np.empty(0, np.int64)
            return Received(self, Columns.empty(self.topic), nothing, nothing)
        if len(leases) == 1:
            [lease] = leases
            return Received(self, lease.columns, lease.redelivery_count, np.full(len(lease), lease.deadline_ms))
        return Received(
            self,
            Columns.concatenate([lease.columns for lease in leases]),
            np.concatenate([lease.redelivery_count for lease in leases]),
            np.repeat([lease.deadline_ms for lease in leases], [len(lease) for lease in leases]),
        )

    def _seeks(self) -> int:
        seeks = 0
        for each in self.shared:
            seeks += each.seeks
        return seeks

    def _give_back(self, messages: Sequence[LeasedMessage]) -> None:
        """Release what was leased ahead. What has been closed meanwhile, has released it itself."""
        if messages:
            for number, receipts in Receipts.of(messages).by_partition():
                with contextlib.suppress(StoreClosed, StoreForked):
                    self._parts[number].subscription.release(
                        receipts.delivery_offset, receipts.offset, receipts.redelivery_count
                    )
            if self.intake is not None:
                _settle(messages)

    # Failing.

    def _nack(self, part: ReaderPart, receipts: Receipts, delay_ms: int | None, reason: str) -> ReceiptResult:
        failures = receipts.redelivery_count + 1
        exhausted = self._policy.exhausted(failures)
        answers = []
        if bool(exhausted.any()):
            answers.append(self._bury(part, receipts.at(exhausted), failures[exhausted], reason or "nacked"))
            receipts, failures = receipts.at(~exhausted), failures[~exhausted]
        if len(failures):
            delays_ms = np.full(len(failures), delay_ms) if delay_ms is not None else self._delays_ms(failures)
            answers.append(_return(part, receipts, delays_ms))
        return _sum(answers)

    def _nack_one(self, message: LeasedMessage, delay_ms: int | None) -> ReceiptResult:
        """The same of one that is tried again."""
        part, failures = self._part_of(message), message.redelivery_count
        if delay_ms is None:
            delay_ms = self._policy.delay_ms(failures + 1, self._settings.random)
        answer = part.subscription.nack_one(message.delivery_offset, message.offset, failures, delay_ms)
        message.settle()
        return answer

    def _give_up(self, part: ReaderPart, lease: Lease) -> None:
        columns, failures = lease.exhausted, lease.exhausted_count
        receipts = Receipts(columns.partition, columns.offset, columns.delivery_offset, failures)
        for count in np.unique(failures).tolist():
            rows = failures == count
            self._bury(part, receipts.at(rows), failures[rows], LEASE_ENDED.format(count))

    def _bury(self, part: ReaderPart, receipts: Receipts, failures: Int64Array, reason: str) -> ReceiptResult:
        """Move leased records to the dead letters."""
        assert self._settings.dead_letter is not None
        buried = part.dead_letters.bury(self._settings.dead_letter, receipts, failures, reason)
        return ReceiptResult(done=buried, stale=len(failures) - buried)

    def _delays_ms(self, failures: Int64Array) -> Int64Array:
        return self._policy.delays_ms(failures, self._settings.random)

    # Leases that are kept, and limits.

    def _keeping(self) -> KeptLeases:
        settings = self._settings
        self.blocks.asleep = True
        return KeptLeases(
            self.blocks,
            settings.lease_ms,
            settings.max_lease_ms,
            now_ms=self._now_ms,
            prolong=self._prolong,
            give_back=self._give_back_late,
        )

    def _limits(self) -> Intake | None:
        rate, max_in_flight = self._settings.rate, self._settings.max_in_flight
        if rate is None and max_in_flight is None:
            return None
        return Intake(rate, max_in_flight, now_ms=self._now_ms, freed=self.agenda.resume)

    def _prolong(self, messages: Sequence[LeasedMessage]) -> int:
        """Lease what is in handlers for as long as at first; until when."""
        every = Receipts.of(messages)
        until_ms = min(
            self._parts[number].subscription.prolong(
                receipts.delivery_offset, receipts.redelivery_count, self._settings.lease_ms
            )
            for number, receipts in every.by_partition()
        )
        if self.intake is not None:
            self.intake.extended(every.places(), until_ms)
        return until_ms

    def _give_back_late(self, now_ms: int) -> None:
        """What is leased ahead and waits behind a slow handler goes to who has time for it."""
        with self._lock:
            late = [message for ahead in self._aheads for message in ahead.drain_late(now_ms)]
        self._give_back(late)

    def _end(self) -> None:
        """Let the partitions go, once no block is open."""
        if self._closed and not self.blocks:
            self._on_close()

    # Messages.

    def _receipts(self, messages: Messages) -> Receipts:
        """The receipts of messages of this subscription. Raises InvalidReceipt."""
        self._check_open(messages)
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

    def _check_mine(self, messages: LeasedMessage | Received) -> None:
        """Raises InvalidReceipt where it is no message, or another subscription's."""
        if not isinstance(messages, LeasedMessage | Received):
            raise InvalidReceipt(f"no message that was received: {messages!r}")
        leased_by = messages.subscription
        if leased_by is not self and (leased_by.topic, leased_by.name) != (self.topic, self.name):
            raise InvalidReceipt(f"a message of {leased_by.name!r} of {leased_by.topic}, not of {self!r}")

    def _part_of(self, message: LeasedMessage) -> ReaderPart:
        self._check_open(message)
        self._check_mine(message)
        return self._part(message.partition)

    def _part(self, number: int) -> ReaderPart:
        part = self._parts.get(number) if isinstance(number, int) else None
        if part is None:
            raise UnknownPartition(f"this reader does not have partition {number!r} of {self.topic}")
        return part

    def _check_open(self, messages: Messages | None = None) -> None:
        """A message whose block is open is settled behind a close, too."""
        self._usable()
        if self._closed and self.blocks.get(id(messages)) is None:
            raise StoreClosed("the subscription is closed; make another with store.subscribe(topic, name)")


def _settle(messages: Messages) -> None:
    if isinstance(messages, LeasedMessage | Received):
        messages.settle()
        return
    for message in messages:
        message.settle()


def _return(part: ReaderPart, receipts: Receipts, delays_ms: Int64Array) -> ReceiptResult:
    return part.subscription.nack(receipts.delivery_offset, receipts.offset, receipts.redelivery_count, delays_ms)


def _release(part: ReaderPart, columns: Columns, redelivery_count: Int64Array) -> None:
    """Give back what a receive that failed had leased already; where that fails too, the lease ends by itself."""
    with contextlib.suppress(AfterlogError):
        part.subscription.release(columns.delivery_offset, columns.offset, redelivery_count)


def _sum(answers: Sequence[ReceiptResult]) -> ReceiptResult:
    return ReceiptResult(
        done=sum(answer.done for answer in answers),
        stale=sum(answer.stale for answer in answers),
        deadline_ms=min((answer.deadline_ms for answer in answers), default=0),
    )
