"""A reader of a served subscription: what it remembers, and what its methods ask (`call.py`).

The server has the subscription; a reader has what it was given and has not settled. All that holds of an embedded
reader holds here, with the same means: what is leased ahead (`read_ahead.py`), blocks whose leases are kept
(`lease_keeper.py`), limits (`flow_control.py`). Where it ends, it gives back all that it has but for what is in a
block.

Instants are those of the server's clock (`server_time.py`), in deadlines, too.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from afterlog.api import operations
from afterlog.api.operation import ARROW, HttpOperation
from afterlog.api.position_text import position_text
from afterlog.api.reader_json import reader_row
from afterlog.api.receipt import Receipt
from afterlog.api.record_json import message_fields
from afterlog.base.arguments import seconds, whole
from afterlog.base.clock import INT64_MAX, Clock
from afterlog.base.errors import (
    AfterlogError,
    AnswerLost,
    InvalidArgument,
    InvalidReceipt,
    InvalidSubscription,
    NoDeadLetterTopic,
    StoreClosed,
    StoreForked,
    UnknownPartition,
)
from afterlog.base.names import check_name
from afterlog.client import answer_rows as rows
from afterlog.client.ack_line import RECEIPTS_MAX, AckLine
from afterlog.client.call import (
    AnswerOf,
    Call,
    HttpReply,
    HttpRequest,
    Pause,
    Steps,
    asking,
    json_bytes,
    json_of,
    nothing,
    one,
)
from afterlog.client.polls import Polls, Waking
from afterlog.client.sent import has_arrow, seconds_of
from afterlog.client.server_time import ServerTime
from afterlog.fetch.positions import Position
from afterlog.log.notifier import NEVER_MS
from afterlog.records.expiry import lapse_ms
from afterlog.records.times import Delay, delay_ms
from afterlog.subscription.ack_group import AckGroup
from afterlog.subscription.active_handlers import ActiveHandlers
from afterlog.subscription.answers import AckResult, ReceiptResult, SubscriptionStats
from afterlog.subscription.flow_control import FlowControl, Place
from afterlog.subscription.lease_keeper import KeptLeases
from afterlog.subscription.leased_message import LeasedMessage, Settling
from afterlog.subscription.policy import check_span
from afterlog.subscription.read_ahead import ReadAhead
from afterlog.subscription.reader_settings import ReaderOptions, ReaderSettings
from afterlog.subscription.received import Receipts, Received, ReceivedMessages

if TYPE_CHECKING:
    from afterlog.surface import MessagesToSettle

SLICE_S = 20.0
"""A wait is asked for in parts: proxies cut what is silent for longer, and a server that stops is found."""
GIVE_BACK_S = 5.0
"""What is given back is tried for so long; then its lease ends by itself."""
JSON_RECORDS = 256
"""More are asked for as columns, where pyarrow is there. An iteration never asks for more."""
RECORDS_MAX = 65_536
"""A server gives no more at a time."""
REASON_CHARACTERS = 1_000
"""What a dead letter keeps of a reason."""
_MANY = 1 << 62


class LeasedReceipts(FlowControl):
    """What the reader has, with the receipts: to be given back at the end."""

    def __init__(
        self,
        settings: ReaderSettings,
        *,
        now_ms: Callable[[], int],
        boot_ms: Callable[[], int],
        freed: Callable[[], object],
    ) -> None:
        super().__init__(
            settings.rate,
            _MANY if settings.max_in_flight is None else settings.max_in_flight,
            now_ms=now_ms,
            boot_ms=boot_ms,
            freed=freed,
        )
        self.is_limited = settings.rate is not None or settings.max_in_flight is not None
        self._receipts: dict[Place, Receipt] = {}

    def has(self, receipts: Iterable[Receipt], deadline_ms: int) -> None:
        """These were leased until then."""
        mine = {_place(each): each for each in receipts}
        self._receipts.update(mine)
        self.took(mine, [deadline_ms] * len(mine))
        if len(self._receipts) > 2 * len(self._places) + 1_000:  # of leases that have ended
            self._receipts = {place: each for place, each in self._receipts.items() if place in self._places}

    def settled(self, place: Place) -> None:
        self._receipts.pop(place, None)
        super().settled(place)

    def unsettled(self, but: Iterable[Place]) -> list[Receipt]:
        """What is still leased, as far as is known, but for some."""
        self._forget_ended(self._boot_ms())
        kept = set(but)
        return [each for place, each in self._receipts.items() if place in self._places and place not in kept]


class SubscriptionSteps:
    """Of one reader. Thread-safe; each iteration is for one thread, or one task."""

    def __init__(
        self,
        topic: str,
        name: str,
        settings: ReaderSettings,
        partitions: Sequence[int],
        *,
        clock: Clock,
        server_time: ServerTime,
        drive_now: Callable[[Steps[Any]], Any],
        usable: Callable[[], None],
        on_close: Callable[[], None],
    ) -> None:
        """drive_now: what takes steps in a thread that may block: that which keeps leases."""
        self.topic = topic
        self.name = name
        self.settings = settings
        self.partitions = frozenset(partitions)
        self.owner: Settling
        """Whose messages they are: who has these steps."""
        self._row = reader_row(settings)
        self._row_bytes = json_bytes(self._row)
        self._how = {"reader": self._row} if settings.delay_ms else {}
        """What a server that was started again has to know to settle a record."""
        self._clock = clock
        self._server_time = server_time
        self._drive_now = drive_now
        self._usable = usable
        self._on_close = on_close
        self.blocks = ActiveHandlers[LeasedMessage]()
        self.waking = Waking()
        self.polls = Polls()
        self.leased = LeasedReceipts(settings, now_ms=self.now_ms, boot_ms=clock.boot_ms, freed=self.waking.wake)
        self.kept = self._keeping() if settings.auto_extend else None
        self._asking = 0
        """Records that are being asked for: there is room for these."""
        self._extended: dict[Place, int] = {}
        """Until when somebody has extended a lease by hand."""
        self._aheads: list[ReadAhead] = []
        self._seeks = 0
        self._draining = False
        self.closed = False
        self._acks = AckLine(self._acking)
        self._group_sent = Waking()
        self.group = self._grouping() if settings.ack_group_ms else None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return (
            f"<Subscription {self.name!r} of {self.topic}, partitions {', '.join(map(str, sorted(self.partitions)))}>"
        )

    def now_ms(self) -> int:
        return self._server_time.now_ms()

    @staticmethod
    def opening(topic: str, name: str, settings: ReaderSettings) -> Steps[dict[str, Any]]:
        """Begin the subscription where it is new; what the server says of it. Raises as `store.subscribe` does."""
        check_name(name, "subscription")
        if settings.dead_letter == topic:
            raise InvalidSubscription("the dead letters of a topic need another topic")
        body = {"reader": reader_row(settings)}
        told: dict[str, Any] = yield asking(operations.OPEN_SUBSCRIPTION, dict, body, topic=topic, subscription=name)
        return told

    # Receiving.

    def receive(self, max_records: int = 100, timeout: float | None = 0.0) -> Steps[Received]:
        self._check_open()
        timeout = seconds("timeout", timeout)
        if whole("max_records", max_records, least=-1) < 1:
            raise InvalidSubscription(f"max_records must be at least 1, not {max_records}")
        deadline_s = None if timeout is None else self._clock.monotonic_s() + timeout
        while not self.ended:
            left_s = SLICE_S if deadline_s is None else max(deadline_s - self._clock.monotonic_s(), 0.0)
            found = yield from self._taken(max_records, min(left_s, SLICE_S))
            if len(found) or (deadline_s is not None and left_s <= 0):
                return found
        return self._none()

    def _taken(self, max_records: int, wait_s: float) -> Steps[Received]:
        """What is due, or comes within the time, and has room."""
        if not self.leased.is_limited:
            return (yield from self._asked(max_records, wait_s))
        version = self.waking.version
        with self.leased.taking:
            room = min(self.leased.room() - self._asking, max_records)
            self._asking += max(room, 0)
        if room <= 0:
            yield Pause(self.waking, version, self.leased.until_ms(), wait_s)
            return self._none()
        try:
            return (yield from self._asked(room, wait_s))
        finally:
            with self.leased.taking:
                self._asking -= room

    def _asked(self, max_records: int, wait_s: float) -> Steps[Received]:
        body = b'{"max_records":%d,"wait_ms":%d,"reader":%s}' % (
            min(max_records, RECORDS_MAX), int(wait_s * 1_000), self._row_bytes
        )  # fmt: skip
        request = HttpRequest(operations.RECEIVE.method, self._path(operations.RECEIVE), body)
        if max_records > JSON_RECORDS and has_arrow():
            request = request._replace(accept=ARROW)
        arrived: list[Received] = []

        def read(reply: HttpReply) -> Received:
            arrived.append(self._received(reply))
            return arrived[0]

        try:
            found: Received = yield Call(request=request, read=read, wait_s=wait_s, polls=self.polls)
        except AnswerLost:
            if self.ended:
                return self._none()
            raise
        except GeneratorExit:
            raise
        except BaseException:  # who asked is gone: a task that was cancelled, or Ctrl-C
            for lost in arrived:
                yield from self._give_back(lost)
            raise
        if self.ended and len(found):
            yield from self._give_back(found)
            return self._none()
        return found

    def _received(self, reply: HttpReply) -> Received:
        if reply.kind == ARROW:
            return self._columns(reply.body)
        row = json_of(reply)
        self._server_time.saw(row)
        messages = [self._message(each) for each in row["messages"]]
        if messages:
            with self.leased.taking:
                self.leased.has(map(_receipt, messages), min(each.deadline_ms for each in messages))
        return ReceivedMessages(self.owner, messages)

    def _message(self, row: dict[str, Any]) -> LeasedMessage:
        return LeasedMessage(
            **message_fields(row),
            delivery_offset=row["delivery_offset"],
            lease_number=Receipt.parse(row["receipt"]).lease_number,
            deadline_ms=row["deadline_ms"],
            subscription=self.owner,
        )

    def _columns(self, data: bytes) -> Received:
        from afterlog.api.arrow_stream import delivered

        found = delivered(data)
        self._server_time.saw(found.said)
        numbers, deadlines = found.lease_number, found.deadline_ms
        if numbers is None or deadlines is None:
            raise ValueError("leased records have a number and a deadline")
        received = Received(self.owner, found.columns, numbers, deadlines)
        if len(received):
            with self.leased.taking:
                self.leased.has(_each(received.receipts), int(deadlines.min()))
        return received

    def _none(self) -> Received:
        return ReceivedMessages(self.owner, [])

    # What became of them.

    def ack(self, message: LeasedMessage) -> Steps[AckResult]:
        if not isinstance(message, LeasedMessage):
            raise InvalidReceipt(f"no message that was received: {message!r}")
        self._check_open(message)
        self._check_mine(message)
        answer: AckResult = yield from self._acks.ack(_receipt(message))
        message.settle()
        return answer

    def ack_many(self, messages: MessagesToSettle) -> Steps[AckResult]:
        every = self._receipts(messages)
        if len(every) > JSON_RECORDS and not self._how and has_arrow():
            from afterlog.api.arrow_stream import receipts_stream

            columns = Receipts.of_rows(every)
            request = HttpRequest(operations.ACK.method, self._path(operations.ACK), receipts_stream(columns), ARROW)
            answer: AckResult = yield Call(request=request, read=lambda reply: rows.ack_result(json_of(reply)))
        elif every:
            answer = yield self._call(operations.ACK, rows.ack_result, {"receipts": [*map(str, every)], **self._how})
        else:
            answer = AckResult(acked=0)
        self._settle(messages)
        return answer

    def _acking(self, receipts: Sequence[Receipt]) -> Call[list[AckResult]]:
        def read(row: Any) -> list[AckResult]:
            return rows.ack_results(row, len(receipts))

        return self._call(operations.ACK, read, {"receipts": [*map(str, receipts)], **self._how})

    def nack(self, messages: MessagesToSettle, *, delay: Delay | None = None, reason: str = "") -> Steps[ReceiptResult]:
        body: dict[str, Any] = {} if delay is None else {"delay": seconds_of(delay_ms(delay))}
        return (
            yield from self._settled(
                operations.NACK, messages, {**body, "reason": reason[:REASON_CHARACTERS], "reader": self._row}
            )
        )

    def reject(self, messages: MessagesToSettle, reason: str = "") -> Steps[ReceiptResult]:
        self._receipts(messages)
        if self.settings.dead_letter is None:
            raise NoDeadLetterTopic(f"{self!r} has no dead letters: subscribe with dead_letter=, or nack with a delay")
        return (
            yield from self._settled(
                operations.REJECT, messages, {"reason": reason[:REASON_CHARACTERS], "reader": self._row}
            )
        )

    def release(self, messages: MessagesToSettle) -> Steps[ReceiptResult]:
        return (yield from self._settled(operations.RELEASE, messages, self._how))

    def extend(self, messages: MessagesToSettle, *, lease_ms: int | None = None) -> Steps[ReceiptResult]:
        lease_ms = self.settings.lease_ms if lease_ms is None else lease_ms
        check_span("lease_ms", lease_ms, 1)
        every = self._receipts(messages)
        if not every:
            return ReceiptResult(done=0)
        answer: ReceiptResult = yield self._extending(every, lease_ms)
        self._extended |= dict.fromkeys(map(_place, every), answer.deadline_ms)
        return answer

    def _extending(self, receipts: Sequence[Receipt], lease_ms: int) -> Call[ReceiptResult]:
        def read(row: Any) -> ReceiptResult:
            self._server_time.saw(row)
            answer = rows.receipt_result(row)
            self.leased.extended(map(_place, receipts), answer.deadline_ms)
            return answer

        body = {"receipts": [*map(str, receipts)], "lease_ms": lease_ms, **self._how}
        return self._call(operations.EXTEND, read, body)

    def _settled(
        self, operation: HttpOperation, messages: MessagesToSettle, body: dict[str, Any]
    ) -> Steps[ReceiptResult]:
        every = self._receipts(messages)
        if not every:
            return ReceiptResult(done=0)
        answer: ReceiptResult = yield self._call(
            operation, rows.receipt_result, {"receipts": [*map(str, every)], **body}
        )
        self._settle(messages)
        return answer

    def flush(self) -> Steps[None]:
        """Ack what waits for others of its group."""
        group = self.group
        if group is None:
            return
        while True:
            version = self._group_sent.version
            if not group.is_sending:
                break
            yield Pause(self._group_sent, version, NEVER_MS, SLICE_S)
        messages = group.take()
        try:
            yield from self._acked_together(messages)
        except BaseException:
            group.put_back(messages)
            raise

    # The whole subscription.

    def seek(self, position: Position | datetime, partition: int | None = None) -> Steps[None]:
        self._check_open()
        yield from self.flush()
        numbers: list[int | None] = [partition]
        if partition is None and self.settings.partitions is not None:
            numbers = [*self.partitions]
        elif partition is not None and (not isinstance(partition, int) or partition not in self.partitions):
            raise UnknownPartition(f"this reader does not have partition {partition!r} of {self.topic}")
        for number in numbers:
            body: dict[str, Any] = {"position": position_text(position), **self._how}
            if number is not None:
                body["partition"] = number
            yield self._call(operations.SEEK, nothing, body)
        self._seeks += 1

    def stats(self) -> Steps[SubscriptionStats]:
        self._check_open()
        yield from self.flush()
        mine = self.partitions if self.settings.partitions is not None else None
        told: SubscriptionStats = yield self._call(
            operations.SHOW_SUBSCRIPTION, lambda row: rows.subscription_stats(row, mine)
        )
        return told

    @property
    def ended(self) -> bool:
        """Whether it takes nothing more: draining, or closed."""
        return self._draining or self.closed

    def halt(self) -> None:
        """Take nothing more. No lock is taken: for a signal's handler. Somebody has to `stop_taking` behind it."""
        self._draining = True

    def stop_taking(self) -> Steps[None]:
        """The same; give back what was leased ahead, and end the waits."""
        self.halt()
        self._end_waits()
        yield from self._give_back(self._ahead_of_all())

    def is_idle(self) -> bool:
        """Whether no handler is at work, as far as is known."""
        return not any(ahead.is_out for ahead in self._aheads) and not self.blocks

    def check_drainable(self, timeout: float | None) -> float | None:
        self._check_open()
        return seconds("timeout", timeout)

    def close(self) -> Steps[None]:
        """End the iterations, and give back all that this reader has, but for messages whose block is open.

        From any thread. The end of such a block still acks, as long as the store is open.
        """
        was, self.closed = self.closed, True
        try:
            self._usable()
        except StoreForked:  # it is the parent's
            return
        except StoreClosed:
            was = True
        self._end_waits()
        self._ahead_of_all()
        if self.group is not None:
            self.group.refuse()
        if not was:
            try:
                yield from self.flush()
            except AfterlogError as error:
                assert self.group is not None, "it had something to send"
                self.group.tell(error)
            with contextlib.suppress(AfterlogError):
                yield from self._released(self.leased.unsettled(map(_place_of, [*self.blocks.copy().values()])))
        self.blocks.listen(self.let_go)
        self.let_go()

    def let_go(self) -> None:
        """Of the thread that keeps leases, once no block is open."""
        if self.closed and not self.blocks:
            self._on_close()

    # Iterating.

    def begin(self) -> ReadAhead:
        """What an iteration has leased ahead: nothing yet."""
        with contextlib.suppress(StoreClosed):  # it ends at once
            self._usable()
        ahead = ReadAhead(self.settings.lease_ms, self._lapse_ms)
        with self._lock:
            self._aheads.append(ahead)
        return ahead

    def pop(self, ahead: ReadAhead) -> LeasedMessage | None:
        """The next message that was leased ahead; None where it is time to `fill`."""
        return ahead.pop(self.now_ms()) if ahead.seeks == self._seeks else None

    def fill(self, ahead: ReadAhead) -> Steps[None]:
        """Lease ahead what is due, or comes within a slice. What has waited for too long goes back."""
        ahead.out = None
        yield from self._give_back(ahead.drain())
        seeks, wanted = self._seeks, ahead.wanted(self.now_ms())
        share = self.leased.share(len(self._aheads)) if self.settings.max_in_flight is not None else None
        found = yield from self._taken(wanted if share is None else min(wanted, share), SLICE_S)
        ahead.fill(found, self.now_ms(), seeks, min(map(self._lapse_ms, found), default=INT64_MAX))

    def end(self, ahead: ReadAhead) -> Steps[None]:
        """Give back what was not handed out."""
        with self._lock:
            self._aheads = [each for each in self._aheads if each is not ahead]
        left = ahead.drain()
        try:
            yield from self._give_back(left)
        finally:
            if self.blocks.watched:
                self.blocks.ended()

    # Inside.

    def _lapse_ms(self, message: LeasedMessage) -> int:
        """When it expires by what it says itself; how long a topic's records are of use the server knows."""
        return lapse_ms(message.due + self.settings.delay_ms, message.headers, None) if message.headers else INT64_MAX

    def _path(self, operation: HttpOperation) -> str:
        return operation.path_of(topic=self.topic, subscription=self.name)

    def _call(
        self,
        operation: HttpOperation,
        read: Callable[[Any], AnswerOf],
        body: dict[str, Any] | None = None,
        patience_s: float | None = None,
    ) -> Call[AnswerOf]:
        return asking(operation, read, body, patience_s=patience_s, topic=self.topic, subscription=self.name)

    def _end_waits(self) -> None:
        self.polls.end()
        self.waking.wake()

    def _ahead_of_all(self) -> list[LeasedMessage]:
        with self._lock:
            return [message for ahead in self._aheads for message in ahead.drain()]

    def _give_back(self, messages: Iterable[LeasedMessage]) -> Steps[None]:
        """Release what was leased ahead. Where that fails its lease ends by itself."""
        left = [*messages]
        yield from self._released([*map(_receipt, left)])
        for message in left:
            message.settle()

    def _released(self, receipts: Sequence[Receipt]) -> Steps[None]:
        if not receipts:
            return
        body = {"receipts": [*map(str, receipts)], **self._how}
        with contextlib.suppress(AfterlogError):
            yield self._call(operations.RELEASE, nothing, body, patience_s=GIVE_BACK_S)

    def _keeping(self) -> KeptLeases:
        self.blocks.asleep = True
        return KeptLeases(
            self.blocks,
            self.settings.lease_ms,
            self.settings.max_lease_ms,
            now_ms=self.now_ms,
            prolong=self._prolong,
            give_back=self._give_back_late,
        )

    def _grouping(self) -> AckGroup[LeasedMessage]:
        def send(messages: Sequence[LeasedMessage]) -> None:
            self._drive_now(self._acked_together(messages))

        group = AckGroup(self.settings.ack_group_ms, send, boot_ms=self._clock.boot_ms)
        group.sent = self._group_sent.wake
        return group

    def _acked_together(self, messages: Sequence[LeasedMessage]) -> Steps[None]:
        for start in range(0, len(messages), RECEIPTS_MAX):
            yield self._acking([*map(_receipt, messages[start : start + RECEIPTS_MAX])])

    def _prolong(self, messages: Sequence[LeasedMessage]) -> int:
        """Lease what is in handlers for as long as at first, but for what somebody has leased for longer."""
        until_ms = self.now_ms() + self.settings.lease_ms
        every = [*map(_receipt, messages)]
        self._extended = {place: ms for place, ms in self._extended.items() if ms > until_ms}
        shorter = [each for each in every if _place(each) not in self._extended]
        if not shorter:
            return until_ms
        answer: ReceiptResult = self._drive_now(one(self._extending(shorter, self.settings.lease_ms)))
        return answer.deadline_ms or until_ms

    def _give_back_late(self, now_ms: int) -> None:
        """What is leased ahead and waits behind a slow handler goes to who has time for it."""
        with self._lock:
            late = [message for ahead in self._aheads for message in ahead.drain_late(now_ms)]
        if late:
            self._drive_now(self._give_back(late))

    # Messages.

    def _receipts(self, messages: MessagesToSettle) -> list[Receipt]:
        """Of messages of this subscription, or those that somebody kept. Raises InvalidReceipt, UnknownPartition."""
        self._check_open(messages)
        if isinstance(messages, Receipts):
            kept = messages.kept()
            for number in {*kept.partition.tolist()} - self.partitions:
                raise UnknownPartition(f"this reader does not have partition {number!r} of {self.topic}")
            return _each(kept)
        return self._receipts_of(messages)

    def _receipts_of(self, messages: LeasedMessage | Sequence[LeasedMessage]) -> list[Receipt]:
        if isinstance(messages, LeasedMessage):
            self._check_mine(messages)
            return [_receipt(messages)]
        if isinstance(messages, Received) and not isinstance(messages, ReceivedMessages):
            self._check_mine(messages)
            return _each(messages.receipts)
        if not isinstance(messages, Sequence):
            raise InvalidReceipt(f"give a message, a list of them, or what receive returned, not {messages!r}")
        for message in messages:
            self._check_mine(message)
        return [*map(_receipt, messages)]

    def _settle(self, messages: MessagesToSettle) -> None:
        """Note that they were acked, nacked, rejected or released."""
        if isinstance(messages, LeasedMessage | Received):
            messages.settle()
        elif isinstance(messages, Receipts):
            self.leased.settled_many(messages.kept().places())
        else:
            for message in messages:
                message.settle()

    def _check_mine(self, messages: LeasedMessage | Received) -> None:
        if not isinstance(messages, LeasedMessage | Received):
            raise InvalidReceipt(f"no message that was received: {messages!r}")
        leased_by = messages.subscription
        if leased_by is not self.owner and (leased_by.topic, leased_by.name) != (self.topic, self.name):
            raise InvalidReceipt(f"a message of {leased_by.name!r} of {leased_by.topic}, not of {self!r}")
        if isinstance(messages, LeasedMessage) and messages.partition not in self.partitions:
            raise UnknownPartition(f"this reader does not have partition {messages.partition!r} of {self.topic}")

    def _check_open(self, messages: object = None) -> None:
        """A message whose block is open is settled behind a close, too."""
        self._usable()
        if self.closed and self.blocks.get(id(messages)) is None:
            raise StoreClosed("the subscription is closed; make another with store.subscribe(topic, name)")


def _receipt(message: LeasedMessage) -> Receipt:
    return Receipt(message.partition, message.offset, message.delivery_offset, message.lease_number)


def _each(receipts: Receipts) -> list[Receipt]:
    return [*map(Receipt, *(column.tolist() for column in receipts))]


def _place(receipt: Receipt) -> Place:
    return receipt.partition, receipt.delivery_offset, receipt.lease_number


def _place_of(message: LeasedMessage) -> Place:
    return message.partition, message.delivery_offset, message.lease_number


def served_settings(options: ReaderOptions) -> ReaderSettings:
    """Of what `store.subscribe` takes. Raises InvalidArgument, UnknownPartition, and as `ReaderSettings`."""
    from afterlog.client.store_steps import chosen_partitions

    settings = ReaderSettings.of(options)
    if settings.random is not None:
        raise InvalidArgument("random= is for an embedded store: the server has its own jitter; leave it out")
    return replace(settings, partitions=chosen_partitions(settings.partitions))
