"""What `Subscription.receive` returns: records leased to one reader, as columns and as messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, overload

from afterlog.base.errors import InvalidReceipt
from afterlog.subscription.flow_control import Place
from afterlog.subscription.lease_number import deliveries, failures
from afterlog.subscription.leased_message import LeasedMessage, Settling

if TYPE_CHECKING:  # what a server gave comes as messages, and may stay so
    from afterlog.fetch.message_columns import Columns
    from afterlog.index.growing_columns import Int64Array
    from afterlog.records.columns import Bools
    from afterlog.subscription.partition_subscription import Offsets


class Receipts(NamedTuple):
    """What ack_many, nack, reject, release and extend go by: int64[n] each; plain numbers, which can be kept elsewhere.

    partition and delivery_offset name a record, lease_number one of its leases: the receipt is stale once that has
    ended, by an ack, a nack, a release, a seek or its deadline. offset: in append order, of what was received here;
    UNKNOWN of what a caller hands in, who is not believed.
    """

    partition: Int64Array
    offset: Int64Array
    delivery_offset: Int64Array
    lease_number: Int64Array

    @staticmethod
    def of_columns(partition: Offsets, delivery_offset: Offsets, lease_number: Offsets) -> Receipts:
        """From columns of one length, of integers: what somebody kept. Raises InvalidReceipt."""
        import numpy as np

        from afterlog.subscription.redeliveries import UNKNOWN

        columns = [_column(values) for values in (partition, delivery_offset, lease_number)]
        if len({len(column) for column in columns}) != 1:
            raise InvalidReceipt(f"columns of {', '.join(str(len(column)) for column in columns)} receipts")
        return Receipts(columns[0], np.full(len(columns[0]), UNKNOWN), columns[1], columns[2])

    def kept(self) -> Receipts:
        """As who hands them in may have kept them: checked, and not believed where nobody goes by it. Raises
        InvalidReceipt."""
        return Receipts.of_columns(self.partition, self.delivery_offset, self.lease_number)

    @staticmethod
    def of_rows(rows: Sequence[tuple[int, int, int, int]]) -> Receipts:
        """From one tuple each."""
        import numpy as np

        return Receipts(*np.ascontiguousarray(np.array(rows, np.int64).reshape(-1, 4).T))

    @staticmethod
    def of(messages: Iterable[LeasedMessage]) -> Receipts:
        return Receipts.of_rows(
            [(each.partition, each.offset, each.delivery_offset, each.lease_number) for each in messages]
        )

    def places(self) -> Iterator[Place]:
        """See `Place`."""
        return zip(self.partition.tolist(), self.delivery_offset.tolist(), self.lease_number.tolist(), strict=True)

    def at(self, rows: Bools) -> Receipts:
        return Receipts(*(column[rows] for column in self))

    def by_partition(self) -> Iterator[tuple[int, Receipts]]:
        """The receipts of each partition."""
        import numpy as np

        if not len(self.partition):
            return
        first = int(self.partition[0])
        if bool((self.partition == first).all()):
            yield first, self
            return
        for number in np.unique(self.partition).tolist():
            yield number, self.at(self.partition == number)


def _column(values: Offsets) -> Int64Array:
    """As int64[n]. Raises InvalidReceipt where they are no integers, or too large."""
    import numpy as np

    try:
        column = np.asarray(values)
        if column.ndim == 1 and (column.dtype.kind in "iu" or not len(column)):
            return column.astype(np.int64, casting="safe" if len(column) else "unsafe")
    except (TypeError, ValueError, OverflowError):
        pass
    raise InvalidReceipt(f"no column of integers: {values!r:.100}")


class Received(Sequence[LeasedMessage]):
    """Leased records, in due order within each partition. `ack_many` takes it as it is, with no object per record.

    columns: the records; redelivery_count, delivery_count, lease_number, deadline_ms: int64[n], see `LeasedMessage`.
    The messages are made when the first of them is asked for.
    """

    __slots__ = ("_columns", "_deadline_ms", "_lease_number", "_messages", "subscription")

    def __init__(
        self, subscription: Settling, columns: Columns, lease_number: Int64Array, deadline_ms: Int64Array
    ) -> None:
        self.subscription = subscription
        self._columns = columns
        self._lease_number = lease_number
        self._deadline_ms = deadline_ms
        self._messages: list[LeasedMessage] | None = None

    @property
    def columns(self) -> Columns:
        return self._columns

    @property
    def lease_number(self) -> Int64Array:
        return self._lease_number

    @property
    def redelivery_count(self) -> Int64Array:
        return failures(self.lease_number)

    @property
    def delivery_count(self) -> Int64Array:
        return deliveries(self.lease_number)

    @property
    def deadline_ms(self) -> Int64Array:
        return self._deadline_ms

    def __len__(self) -> int:
        return len(self.columns)

    @overload
    def __getitem__(self, row: int) -> LeasedMessage: ...
    @overload
    def __getitem__(self, row: slice) -> list[LeasedMessage]: ...
    def __getitem__(self, row: int | slice) -> LeasedMessage | list[LeasedMessage]:
        return self._made()[row]

    def __iter__(self) -> Iterator[LeasedMessage]:
        return iter(self._made())

    def __repr__(self) -> str:
        return f"<Received: {len(self)} of {self.columns.topic}>"

    @property
    def receipts(self) -> Receipts:
        """By which all can be settled, also where the messages are not at hand: see `Receipts`."""
        columns = self.columns
        return Receipts(columns.partition, columns.offset, columns.delivery_offset, self.lease_number)

    def settle(self) -> None:
        """Note that all were acked, nacked or released."""
        for message in self._messages or ():
            message.settle()
        flow = self.subscription.flow
        if flow is not None:
            flow.settled_many(self.receipts.places())

    def extended(self, deadline_ms: int) -> None:
        """Note that all are leased until then, in so far as they are leased."""
        flow = self.subscription.flow
        if flow is not None:
            flow.extended(self.receipts.places(), deadline_ms)

    def _made(self) -> list[LeasedMessage]:
        if self._messages is None:
            from afterlog.fetch.objects import Same

            self._messages = self.columns.each(
                LeasedMessage,
                lease_number=self.lease_number,
                deadline_ms=self.deadline_ms,
                subscription=Same(self.subscription),
                settled=Same(False),
            )
        return self._messages


class ReceivedMessages(Received):
    """The same, there as messages: their columns are made when somebody asks for them."""

    __slots__ = ("_mine",)

    def __init__(self, subscription: Settling, messages: list[LeasedMessage]) -> None:
        self.subscription = subscription
        self._mine = self._messages = messages

    @property
    def columns(self) -> Columns:
        from afterlog.fetch.message_columns import Columns

        parts = [Columns.of(message) for message in self._mine]
        return Columns.concatenate(parts) if parts else Columns.empty(self.subscription.topic)

    @property
    def lease_number(self) -> Int64Array:
        return self.receipts.lease_number

    @property
    def deadline_ms(self) -> Int64Array:
        import numpy as np

        return np.array([message.deadline_ms for message in self._mine], np.int64)

    @property
    def receipts(self) -> Receipts:
        return Receipts.of(self._mine)

    def settle(self) -> None:
        for message in self._mine:
            message.settle()

    def __len__(self) -> int:
        return len(self._mine)

    def __iter__(self) -> Iterator[LeasedMessage]:
        return iter(self._mine)

    def __repr__(self) -> str:
        return f"<Received: {len(self)} of {self.subscription.topic}>"


class ReceivedOne(ReceivedMessages):
    """The same of one record."""

    __slots__ = ()

    def __init__(self, message: LeasedMessage) -> None:
        self.subscription = message.subscription
        self._mine = self._messages = [message]

    @property
    def message(self) -> LeasedMessage:
        """That one."""
        return self._mine[0]
