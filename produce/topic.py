"""A topic: its partitions, each opened when it is first asked for, and which of them a record goes to.

A partition has two parts: its log, which is all that a record needs on its way in, and its delivery order, which is
made for the first reader. So who only sends loads nothing of `fetch`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from afterlog.base.arguments import flag
from afterlog.base.clock import INT64_MAX
from afterlog.base.errors import InvalidRecord, InvalidTopic, TopicDeleted, UniqueKeyConflict
from afterlog.fetch.record_id import RecordId
from afterlog.log.interceptors import interceptors_of
from afterlog.log.partition_log import PartitionLog
from afterlog.log.topic_settings import TopicSettings
from afterlog.records.columns import Int64Array
from afterlog.records.encode import Batches, RecordColumns, encode, ragged
from afterlog.records.partitioner import Partitioner
from afterlog.records.single import SingleRecord

if TYPE_CHECKING:
    from afterlog.fetch.message import ScheduledRecord, StoredRecord
    from afterlog.fetch.partition import Partition
    from afterlog.produce.numbered import AppendAnswer, AppendRequest
    from afterlog.produce.unique_send import Conflict
    from afterlog.records.producer_sequence import ProducerSequence
    from afterlog.records.unique_key import OnConflict


class Topic:
    """An open topic. `store.topic(name)` makes it. Thread-safe."""

    def __init__(
        self,
        name: str,
        settings: TopicSettings,
        open_log: Callable[[int], PartitionLog],
        usable: Callable[[], None],
    ) -> None:
        """usable: raises where the store is not: then nothing is opened any more."""
        self.name = name
        self.settings = settings
        self._logs: list[PartitionLog | None] = [None] * settings.partitions
        self._partitions: list[Partition | None] = [None] * settings.partitions
        self._open_log = open_log
        self._usable = usable
        self._opening = threading.Lock()
        self._partitioner = Partitioner(name, settings.partitions, settings.priorities)
        self._deleted = False

    def __repr__(self) -> str:
        count, notes = self.partition_count, [] if self.settings.delayed else ["FIFO"]
        notes += ["paused"] if self.settings.paused else []
        return f"<Topic {self.name}, {', '.join([f'{count} partition' + 's' * (count > 1), *notes])}>"

    @property
    def partition_count(self) -> int:
        return len(self._logs)

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """All of them. Raises as `partition` does."""
        return tuple(map(self.partition, range(self.partition_count)))

    @property
    def logs(self) -> tuple[PartitionLog, ...]:
        """Those of all partitions. Raises as `partition` does."""
        return tuple(map(self.log, range(self.partition_count)))

    @property
    def opened_logs(self) -> dict[int, PartitionLog]:
        """Of the partitions that somebody has asked for: nothing is known, or to be done, of the others.

        By the number of the partition.
        """
        return {number: log for number, log in enumerate(self._logs) if log is not None}

    def alter(self, settings: TopicSettings) -> None:
        """It has other settings from now on, durably so already, and partitions more, which are there."""
        with self._opening:
            self._partitions += [None] * (settings.partitions - len(self._partitions))
            self._logs += [None] * (settings.partitions - len(self._logs))
            is_same = settings.interceptors == self.settings.interceptors
            for log in self.opened_logs.values():
                made = log.context.interceptors if is_same else interceptors_of(self.name, settings.interceptors)
                log.alter(settings, made)
            self._partitioner = Partitioner(self.name, settings.partitions, settings.priorities)
            self.settings = settings

    def delete(self) -> None:
        """No partition of it is opened any more, and those that are open are closed for good. Can be called again."""
        with self._opening:
            self._deleted = True
        for log in self.opened_logs.values():
            log.delete()

    def wait_for_openings(self) -> None:
        """Return when nobody is opening a partition: for who closes the store, and has made it unusable."""
        with self._opening:
            pass

    def checked_partition(self, number: int, priority: int | None = None) -> int:
        """`number` itself. Raises UnknownPartition, and InvalidArgument where a priority is named with it."""
        if priority is None and isinstance(number, int) and 0 <= number < len(self._logs):
            return number
        return self._partitioner.checked_partition(number, priority)

    def priority_of(self, partition: int) -> int:
        """Of the records of a partition. Raises UnknownPartition."""
        return self._partitioner.priority_of(partition)

    @property
    def origin(self) -> str:
        """What its logs call themselves in other clusters: its id. Raises InvalidTopic where it can be in none."""
        if not self.settings.is_replicable:
            why = "a Kafka broker's, and only read" if self.settings.foreign else "of a time before topics had ids"
            raise InvalidTopic(f"{self.name} is {why}: it cannot be replicated; make a topic of another name")
        return self.settings.topic_id or ""

    @property
    def check_instants(self) -> bool:
        """Whether an instant that is surely wrong is refused, unless a call says otherwise."""
        return self.settings.check_instants

    def checks_instants(self, asked: bool | None) -> bool:
        """The same for a call that says so for itself, or None."""
        return self.check_instants if asked is None else flag("check_instants", asked)

    def log_now_ms(self, now_ms: int) -> int:
        """From when a delay counts: now, or what one of its logs has delivered by, if that is later.

        Since the clock was set back between two lives of the store, what is due before that is due at once. Of a topic
        with several partitions those count that are open.
        """
        logs = self._logs
        if len(logs) == 1 and logs[0] is None and self.settings.delayed:
            self.log(0)
        for log in logs:
            if log is not None and log.frontier_ms > now_ms:
                now_ms = log.frontier_ms
        return now_ms

    def check_own(self) -> None:
        """Raises ReadOnlyTopic where nothing is ever appended, and as `PartitionLog.check_own`."""
        log = self._logs[0]
        (self.log(0) if log is None else log).check_own()

    def check_asked(self, deliver_after: int) -> None:
        """Raises InvalidTopic or InvalidDeliverAfter where a record of this time cannot be taken."""
        log = self._logs[0]
        (self.log(0) if log is None else log).check_asked(deliver_after)

    def check_unique_keys(self) -> None:
        """Raises InvalidTopic where it can have none."""
        self.settings.check_unique_keys()

    def record_id(self, number: int, offset: int) -> RecordId:
        return RecordId(self.name, number, offset)

    def record_ids(self, number: int, offsets: Int64Array) -> list[RecordId]:
        """`record_id` of each."""
        from afterlog.fetch.objects import Same, made

        return made(RecordId, len(offsets), {"topic": Same(self.name), "partition": Same(number), "offset": offsets})

    def partition(self, number: int) -> Partition:
        """Opened, if it is not yet: recovered from what is on disk.

        Raises UnknownPartition; where it has to be opened CorruptFile, StorageError, StoreClosed, StoreForked, and the
        next call tries again.
        """
        partition = self._partitions[self.checked_partition(number)]
        return self._with_order(number) if partition is None else partition

    def log(self, number: int) -> PartitionLog:
        """The log of a partition, opened if it is not yet. Raises as `partition` does."""
        log = self._logs[self.checked_partition(number)]
        if log is not None:
            return log
        if self.settings.remote_storage_enable:  # later, the order would have to be made of what lies elsewhere by then
            return self.partition(number).log
        self._usable()  # a forked child may find the lock taken for ever
        with self._opening:
            return self._opened_log(number)

    def _with_order(self, number: int) -> Partition:
        from afterlog.fetch.partition import Partition

        self._usable()
        with self._opening:
            partition = self._partitions[number]
            if partition is None:
                partition = self._partitions[number] = Partition(self.name, number, self._opened_log(number))
            return partition

    def _opened_log(self, number: int) -> PartitionLog:
        """Once, whoever asks at the same time. One assignment makes it open: what was interrupted left nothing."""
        self._usable()  # who has closed the store meanwhile has waited for us, or we for them
        if self._deleted:
            raise TopicDeleted(f"the topic {self.name} was deleted")
        log = self._logs[number]
        if log is None:
            log = self._logs[number] = self._open_log(number)
        return log

    def partition_of(self, key: bytes | None, priority: int | None = None) -> int:
        """Where a record of this key and priority goes (`records/partitioner.py`). Raises InvalidRecord."""
        if priority is None and len(self._logs) == 1:
            return 0
        return self._partitioner.partition_of(key, priority)

    def partitions_of(self, columns: RecordColumns, priority: int | None = None) -> Int64Array:
        """`partition_of` for the keys of records, int64[n]. Without a key it is unclear which: InvalidRecord."""
        if columns.keys is None or not (columns.key_valid is None or bool(columns.key_valid.all())):
            raise InvalidRecord("a record has no key: name the partition, or give every key")
        return self._partitioner.partitions_of(columns.keys, priority)

    def partitions_for(self, key: bytes) -> list[int]:
        """Where records of this key may be: a partition of each priority, the highest first."""
        return self._partitioner.partitions_for(key)

    def pending(
        self,
        limit: int,
        key: bytes | None,
        numbers: Iterable[int],
        after_ms: int | None = None,
        before_ms: int | None = None,
    ) -> list[ScheduledRecord]:
        """The next `limit` pending records of some partitions, ordered by (due, partition, offset); of those due at or
        after an instant, and before another."""
        from afterlog.fetch.message_columns import Columns
        from afterlog.index.entries import Key

        behind = None if after_ms is None else Key(after_ms - 1, INT64_MAX)
        parts = [self.partition(number).scheduled(limit, key, behind=behind, before_ms=before_ms) for number in numbers]
        columns = Columns.concatenate([Columns.empty(self.name), *parts])
        order = np.lexsort((columns.offset, columns.partition, columns.due))
        return columns.take(order[:limit]).to_scheduled()

    def holder(self, key: bytes, numbers: Iterable[int]) -> StoredRecord | None:
        """The pending record of some partitions that holds a unique key. Raises CorruptFile, InvalidTopic."""
        for number in numbers:
            offset = self.log(number).holder(key)
            found = None if offset is None else self.partition(number).stored(offset)
            if found is not None and found.state == "pending":  # else it has fallen due meanwhile
                return found
        return None

    def append(
        self,
        number: int,
        columns: RecordColumns,
        *,
        any_size: bool = False,
        sequence: ProducerSequence | None = None,
    ) -> Int64Array:
        """Append records to one partition; their offsets, int64[n], in the order given.

        any_size: also beyond `batch_bytes_max`, for records that were taken once and have grown by headers of ours.
        sequence: of the first record that is written, which with a spread is the first by its time; what is there
        already is not appended again. Then also raises ProducerFenced, OutOfOrderSequence.
        """
        checked = self._checked(number, columns, any_size=any_size, sequence=sequence)
        if sequence is None:
            return _append(checked)
        from afterlog.produce.numbered import append_numbered

        return append_numbered(checked.log, columns, checked.parts, checked.order, sequence)

    def append_one(self, number: int, record: SingleRecord, sequence: ProducerSequence | None = None) -> int:
        """Append one record to one partition; its offset. sequence: as in `append`."""
        log = self.log(number)
        if log.takes_one(record):
            return log.append_one(record, sequence)
        return int(self.append(number, record.columns(), sequence=sequence)[0])

    def append_together(self, number: int, requests: Sequence[AppendRequest]) -> list[AppendAnswer]:
        """Append what many callers ask for to one partition, in one write and one sync, in the order given.

        For each the offsets of its records, int64[n], or its error: one that is refused, or there already, touches no
        other. Raises PartitionPoisoned, StoreClosed, OutOfResources and the like where nobody can tell what came of
        them: then each can be sent again with its sequence.
        """
        from afterlog.produce.numbered import append_together

        return append_together(self.log(number), requests)

    def next_sequence(self, number: int, producer_id: int, epoch: int) -> int:
        """What a producer appends next to a partition under an epoch. Raises ProducerFenced."""
        return self.log(number).next_sequence(producer_id, epoch)

    def held_of(self, number: int, sequence: ProducerSequence, records: int) -> Int64Array:
        """The offsets of those of so many records from a sequence on that are there, int64[up to n], and are safe.

        Raises ProducerFenced, OutOfOrderSequence.
        """
        return self.log(number).held_of(sequence, records).offsets()

    def append_one_unique(self, number: int, record: SingleRecord, key: bytes, on_conflict: OnConflict) -> int:
        """Append one record with a unique key to one partition; its offset, or with "keep" that of who holds the key.

        Raises UniqueKeyConflict.
        """
        from afterlog.produce.unique_send import send_one
        from afterlog.records.unique_key import with_unique_key

        record = record._replace(headers=with_unique_key(record.headers, key))
        offset, conflict = send_one(self.log(number), record, key, on_conflict)
        if conflict:
            holder = self.record_id(number, offset)
            raise UniqueKeyConflict(f"{holder} is pending, and holds the unique key {key!r:.100}", record=holder)
        return offset

    def append_unique(
        self,
        columns: RecordColumns,
        keys: list[bytes | None],
        on_conflict: OnConflict,
        partition: int | None,
        priority: int | None = None,
    ) -> Int64Array:
        """Append records, each with its unique key in its headers, to a partition, or each to that of its unique key.

        Those without one then go by their keys, and all to partitions of one priority. Raises UniqueKeyConflict; where
        that is found before anything is written, nothing is. Another thread that takes a key meanwhile may make it so
        late that other partitions have theirs.
        """
        from afterlog.produce.unique_send import held_by, send_columns

        if partition is not None or (len(self._logs) == 1 and priority is None):
            rows_of = {0 if partition is None else partition: np.arange(len(columns))}
        else:
            numbers = self.partitions_of_unique(columns, keys, priority)
            rows_of = {number: np.flatnonzero(numbers == number) for number in np.unique(numbers).tolist()}
        parts = [
            (number, rows, columns if len(rows) == len(columns) else columns.take(rows), [keys[row] for row in rows])
            for number, rows in rows_of.items()
        ]
        if on_conflict == "raise" and len(parts) > 1:
            for number, rows, part, held in parts:
                self._check_conflict(number, rows, held_by(self.log(number), part, held), keys)
        offsets = np.empty(len(columns), np.int64)
        for number, rows, part, held in parts:
            sent = send_columns(self.log(number), part, held, on_conflict)
            offsets[rows] = self._check_conflict(number, rows, sent, keys)
        return offsets

    def _check_conflict(
        self, number: int, rows: Int64Array, sent: Int64Array | Conflict, keys: list[bytes | None]
    ) -> Int64Array:
        if isinstance(sent, np.ndarray):
            return sent
        row, offset, other_row = int(rows[sent.row]), sent.offset, sent.other_row
        holder = None if offset is None else self.record_id(number, offset)
        has = f"{holder} is pending, and holds" if other_row is None else f"record {int(rows[other_row])} has"
        raise UniqueKeyConflict(f"{has} the unique key {keys[row]!r:.100} of record {row} of the call", record=holder)

    def partitions_of_unique(
        self, columns: RecordColumns, keys: list[bytes | None], priority: int | None = None
    ) -> Int64Array:
        """Where each of the records goes: by its unique key, without one by its key. InvalidRecord without either."""
        rows = [row for row, key in enumerate(keys) if key is None]
        numbers = self._partitioner.partitions_of(ragged([key or b"" for key in keys])[0], priority)
        if rows:
            numbers[rows] = self.partitions_of(columns.take(np.array(rows)), priority)
        return numbers

    def check_record(self, number: int, record: SingleRecord) -> None:
        """Raises what an append of it would: RecordTooLarge, InvalidRecord, and as `PartitionLog.check_asked`."""
        log = self.log(number)
        log.check_asked(record.deliver_after)
        if not log.takes_one(record):
            self._checked(number, record.columns())

    def check_columns(self, number: int, columns: RecordColumns) -> None:
        """Raises what an append of them to a partition would: RecordTooLarge, and as `PartitionLog.check_asked`."""
        self._checked(number, columns)

    def append_by_key(self, columns: RecordColumns, priority: int | None = None) -> Int64Array:
        """Append records, each to the partition of its key; their offsets there, int64[n], in the order given."""
        numbers = self.partitions_of(columns, priority)
        offsets = np.empty(len(columns), np.int64)
        rows_of = {number: np.flatnonzero(numbers == number) for number in np.unique(numbers).tolist()}
        checked = {number: self._checked(number, columns.take(rows)) for number, rows in rows_of.items()}
        for number, rows in rows_of.items():
            offsets[rows] = _append(checked[number])
        return offsets

    def _checked(
        self,
        number: int,
        columns: RecordColumns,
        *,
        any_size: bool = False,
        sequence: ProducerSequence | None = None,
    ) -> _Appendable:
        """Records that the partition can take, all of them. Raises as `check_batches`."""
        log = self.log(number)
        parts, order = encode(columns, log.context.config, any_size=any_size, sequence=sequence)
        for part in () if any_size else parts:
            log.check_batches(part)
        return _Appendable(log, parts, order)


class _Appendable(NamedTuple):
    """Batches ready to be appended to a log. order: the rows as they are written, None for the order given."""

    log: PartitionLog
    parts: list[Batches]
    order: Int64Array | None


def _append(checked: _Appendable) -> Int64Array:
    offsets = np.concatenate([checked.log.append(part) + np.arange(int(part.records.sum())) for part in checked.parts])
    if checked.order is None:
        return offsets
    placed = np.empty_like(offsets)
    placed[checked.order] = offsets
    return placed
