"""One partition of one subscription: receive, ack, nack, extend, release, seek; all that happens is in its journal.

    partition ── fresh, in delivery order ──┐  merged by the time at which each is due to this subscription
    timers    ── retries, by retry time ────┴──> leased ──ack──> acked
       ▲                                           │ nack, release, the lease ends, a restart where nobody holds it
       └───────────────────────────────────────────┘

Every change is an event: written to the journal, then applied to the state, then its timers are set. One lock covers
that; the sync that makes it durable is waited for outside, and shared.

*Held leases.* A lease ends with the process, for its readers do. One that is taken with `held` outlives it: its reader
is elsewhere, a server's client. Its deadline and each extension are in the journal, a close leaves it as it is, and the
next life goes on with it: nobody else has the record before the deadline, and the receipt is good as it was.

*Time.* Leases and retries last for a time: their timers go by the log's clock, as do the instants on disk, and where
that was set forward while no time went by, the first call behind it moves them all along, on disk too (`_now_ms`, D18).

*Interruptions.* An exception may strike between any two of these: an operation leaves a flag set, as on a log
(`afterlog.log.dirty_flag`), and whoever comes next and finds it makes state and timers anew from the journal. Leases
keep their deadlines; what was leased by a call that did not return goes out again, uncounted.

D4: what is leased or retrying has a timer, and what is not read is read next. D5: a record goes out again only by a
`Returned`, whose reasons are counted. D9: an ack returns when its frame is safe under the durability. D10: a nacked
record waits in the timers, and its attempts are in the journal.

*Paused*, by itself or with its topic, nothing is handed out; what is leased is acked, nacked and ends as ever.

*Ordered by key* what is read is queued, and goes out when it is its turn (`key_order.py`).

Invariants, proved by `check`: those of the state, the timers, the key order and the journal; the journal replays to the
state; nothing that is un-acked is hidden from readers.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from pyroaring import BitMap64

from afterlog.base.errors import (
    AfterlogError,
    CorruptFile,
    InvalidSubscription,
    InvalidTopic,
    StorageFull,
    StoreClosed,
    StoreForked,
)
from afterlog.fetch.message import Message
from afterlog.fetch.message_columns import Columns, MadeMessage
from afterlog.fetch.partition import Partition
from afterlog.fetch.positions import EARLIEST, LATEST, AtTime, Position
from afterlog.fetch.timeline import Reading
from afterlog.index.entries import Keys
from afterlog.index.growing_columns import Int64Array
from afterlog.index.offset_set import column_of
from afterlog.log.dirty_flag import Changing, DirtyFlag
from afterlog.log.notifier import NEVER_MS, Notifier
from afterlog.records.columns import Bools
from afterlog.records.expiry import lapse_ms
from afterlog.records.lapsed import first_lapse_ms, lapsed_rows
from afterlog.records.times import instant_ms
from afterlog.subscription import bits
from afterlog.subscription.answers import AckResult, Acks, Lease, PartitionStats, ReceiptResult
from afterlog.subscription.events import (
    Acked,
    AckedElsewhere,
    Dead,
    DeadLetter,
    Extended,
    Intended,
    Lapsed,
    Leapt,
    Leased,
    LeasedUntil,
    Ordered,
    Paused,
    Queued,
    Reason,
    Replicated,
    Returned,
    Sought,
)
from afterlog.subscription.journal import Journal
from afterlog.subscription.journaled_state import JournaledState
from afterlog.subscription.key_order import KeyOrder, key_hashes, queued_between
from afterlog.subscription.lease_number import failures
from afterlog.subscription.leased_record import LeasedRecord, leased_records
from afterlog.subscription.policy import RetryPolicy, check_span
from afterlog.subscription.redeliveries import UNKNOWN
from afterlog.subscription.replay import Replayed
from afterlog.subscription.state import SubscriptionState
from afterlog.subscription.stats import standing
from afterlog.subscription.timers import Timers, at_once_ms, deadline_ms
from afterlog.subscription.unread_cursor import UnreadCursor

logger = logging.getLogger("afterlog.subscription")

STEPPED_OVER = 1 << 16
"""Looked at, at a time, of what other clusters have acked."""
RECEIVE_BYTES = 16 << 20
"""UnreadCursor records of one `receive`, but for the first."""
LAPSED_AT_ONCE = 4_096
"""Looked at, at a time, of what has expired: what is before the first that has not goes together."""

READ_ON = 64
"""Where it is ordered, read at a time while few have their turn; twice as many each time that brings nobody. Larger:
more of the queue is read before it is needed."""
FEW_IN_TURN = 16
"""So many of those whose turn it is are taken one by one."""
READ_ON_MAX = 16_384
"""The most of one call: what holds up its caller, at about a microsecond each."""

Offsets = Int64Array | Sequence[int]

_ACKED, _ALREADY, _UNKNOWN = AckResult(acked=1), AckResult(acked=0, already=1), AckResult(acked=0, unknown=1)
_RETURNED, _STALE = ReceiptResult(done=1), ReceiptResult(done=0, stale=1)


class PartitionSubscription:
    """Thread-safe. One to a partition and name: who opens it sees to that."""

    def __init__(
        self,
        partition: Partition,
        name: str,
        *,
        start: Position = EARLIEST,
        delay_ms: int = 0,
    ) -> None:
        """Open the subscription `name`, or make it, to begin at `start`.

        delay_ms: it sees each record that much later. What was leased in an earlier life goes out again at once, and
        counts as failed, but for what is held: that is leased until its deadline. Raises CorruptFile,
        InvalidSubscription, InvalidTopic, OffsetOutOfRange, StorageFull.
        """
        check_span("delay_ms", delay_ms, 0)
        if delay_ms and not partition.log.delayed:
            raise InvalidTopic("the topic was made with delayed=False: subscribe without delay_ms")
        self.partition = partition
        self.name = name
        self.delay_ms = delay_ms
        self.notifier = Notifier()
        """Tells the readers of what may let them receive earlier than they think, with the time at which it may."""
        self.seeks = 0
        """Grows with every seek: what was leased before is leased no more."""
        self._context = partition.log.context
        self._lock = threading.Lock()
        self._dirty = DirtyFlag()
        self._one_changing = self._dirty.guard(AfterlogError)
        """What `_changing` gives, made once."""
        self._closed = False
        self._nothing = Columns.empty(partition.topic)
        self._unread = UnreadCursor(partition, delay_ms)
        self._log_start = 0
        """Below, nothing is un-acked."""
        self._order: KeyOrder | None = None
        """Where it is ordered; None: to be made from the state."""
        self._read_on = READ_ON
        self._leapt_ms = self._context.leapt_ms()
        self._journaled = JournaledState(partition, name, self._sought(start))
        self._precision_ms = self._context.config.delayed_delivery_tick_time_ms
        self._timers = Timers(self._journaled.state, self._precision_ms)

    @property
    def journal(self) -> Journal:
        """For the thread that syncs under `interval`."""
        return self._journaled.journal

    @property
    def replayed(self) -> Replayed | None:
        """What was found when it was opened; None of a new one."""
        return self._journaled.replayed

    @property
    def is_paused(self) -> bool:
        """Whether nothing is handed out: it is paused, or its topic."""
        return self._journaled.state.is_paused or self._context.settings.paused

    @property
    def is_ordered(self) -> bool:
        """Whether the records of a key go out one after the other."""
        return self._journaled.state.is_ordered

    @property
    def _state(self) -> SubscriptionState:
        return self._journaled.state

    # Receiving.

    def receive(
        self,
        max_records: int,
        lease_ms: int,
        *,
        policy: RetryPolicy | None = None,
        max_bytes: int = RECEIVE_BYTES,
        held: bool = False,
    ) -> Lease:
        """Lease up to `max_records` records that are due, oldest first; none where nothing is due.

        policy: of this reader, which says what is exhausted; without one nothing ever is. held: the leases outlive the
        process. Raises ClockBehind, CorruptFile, StoreClosed, StorageFull, SubscriptionPoisoned; then nothing is
        leased.
        """
        if max_records < 1:
            raise InvalidSubscription(f"max_records must be at least 1, not {max_records}")
        check_span("lease_ms", lease_ms, 1)
        with self._lock, self._changing():
            self._now_ms()
            position = self._state.position
            lease = self._receive(max_records, lease_ms, policy, max_bytes, self._reading(), held)
            self._handed_out(lease.columns, position)
        if len(lease):
            self.notifier.notify(lease.deadline_ms)
        return lease

    def is_free(self) -> bool:
        """Whether `receive_one` waits for nobody and for no disk, as far as is known, but for pages that are not in
        memory: a lease is written, and nobody syncs it."""
        return not self._lock.locked() and self.journal.has_room and self.partition.is_free()

    def receive_one(
        self,
        lease_ms: int,
        kind: type[MadeMessage],
        *,
        policy: RetryPolicy | None = None,
        held: bool = False,
    ) -> tuple[MadeMessage, int, int, bool] | None:
        """Lease the next record, where it was read ahead or is one of a few that became due last, and nothing has come
        back, or where it has come back, and nothing is due that was not read; None: `receive` is to be asked.

        The record as a message, with the slots that are not `Message`'s left
        empty, the number of its lease, when that ends, and whether it may have been the last. Raises as `receive` does.
        """
        with self._lock:
            if self._closed or self._dirty.is_set:
                self._look()
            journaled, timers = self._journaled, self._timers
            state = journaled.state
            reading = None if self._unread.has(state.acks.position) else self.partition.reading()
            now_ms = journaled.now_ms() if reading is None else reading.clock_ms
            if state.dying or state.elsewhere or self._context.leapt_ms() != self._leapt_ms:
                return None
            if state.is_paused or self._context.settings.paused:
                return None
            if state.is_ordered:
                if not timers.quiet(now_ms):
                    return None
                turns, until_ms, is_last = self._at_once_in_turn(1, lease_ms, kind, held)
                return (turns[0], state.redeliveries.first, until_ms, is_last) if turns else None
            if not timers.quiet(now_ms):
                return self._one_again(lease_ms, kind, policy, held)
            found = self._unread.one(state.acks.position, kind, reading)
            if found is None or self.partition.log_start > self._log_start:
                return None
            message, position = found
            expires = message.headers or self._context.settings.expires_after_ms is not None
            if expires and self.lapse_ms(message) <= now_ms:
                return None
            until_ms, delivery_offset = deadline_ms(now_ms, lease_ms), message.delivery_offset
            with self._one_changing:
                if held:
                    journaled.record(LeasedUntil(position, bits.of_one(delivery_offset), until_ms))
                else:
                    journaled.record_leased_one(position, delivery_offset)
                is_news = timers.lease_one(until_ms, delivery_offset)
        self.partition.handed_out_one(message.due, position, delay_ms=self.delay_ms)
        if is_news:
            self.notifier.notify(until_ms)
        return message, state.redeliveries.first, until_ms, reading is not None and position >= reading.high_watermark

    def receive_few(
        self, max_records: int, lease_ms: int, kind: type[MadeMessage], *, held: bool = False
    ) -> tuple[list[MadeMessage], int, int, bool] | None:
        """Lease up to so many of a few records that became due last, where nothing was read ahead or has come back;
        None: `receive` is to be asked.

        The records as that of `receive_one`, the number of their leases, when these end, and whether they may have
        been the last. Raises as `receive` does.
        """
        with self._lock:
            if self._closed or self._dirty.is_set:
                self._look()
            journaled, timers = self._journaled, self._timers
            state = journaled.state
            if state.dying or state.elsewhere or self._context.leapt_ms() != self._leapt_ms:
                return None
            if state.is_paused or self._context.settings.paused:
                return None
            if state.is_ordered:
                if not timers.quiet(journaled.now_ms()):
                    return None
                turns, until_ms, is_last = self._at_once_in_turn(max_records, lease_ms, kind, held)
                return (turns, state.redeliveries.first, until_ms, is_last) if turns else None
            if self._unread.has(state.acks.position):
                return None
            reading = self.partition.reading()
            if not timers.quiet(reading.clock_ms) or self.partition.log_start > self._log_start:
                return None
            messages = self._unread.few(state.acks.position, max_records, kind, reading)
            if not messages or any(self.lapse_ms(message) <= reading.clock_ms for message in messages):
                return None
            offsets = [message.delivery_offset for message in messages]
            position, until_ms, is_news = offsets[-1] + 1, deadline_ms(reading.clock_ms, lease_ms), False
            with self._one_changing:
                leased = bits.of_column(np.array(offsets))
                journaled.record(LeasedUntil(position, leased, until_ms) if held else Leased(position, leased))
                for offset in offsets:
                    is_news |= timers.lease_one(until_ms, offset)
        for message in messages:
            self.partition.handed_out_one(message.due, position, delay_ms=self.delay_ms)
        if is_news:
            self.notifier.notify(until_ms)
        return messages, state.redeliveries.first, until_ms, position >= reading.high_watermark

    def ack(self, delivery_offsets: Offsets) -> AckResult:
        """These are done with, whoever has them now. Returns when that is safe under the durability.

        Raises StoreClosed, StorageFull, SubscriptionPoisoned.
        """
        column = _ascending(_column(delivery_offsets))
        with self._lock, self._changing():
            known = column[column.searchsorted(0) : column.searchsorted(self._state.position)]
            offsets = bits.of_column(known)
            ackable = self._state.ackable(offsets)
            acked = len(ackable)
            if acked:
                self._done_with(Acked(ackable))
            end = self.journal.written
        self.journal.commit.committed(end)
        return AckResult(acked=acked, already=len(known) - acked, unknown=len(column) - len(known))

    def ack_one(self, delivery_offset: int) -> AckResult:
        """`ack` of one."""
        with self._lock:
            answer = self._acked_one(delivery_offset)
            end = self.journal.written
        self.journal.commit.committed(end)
        return answer

    def ack_each(self, delivery_offsets: Iterable[int]) -> list[AckResult]:
        """`ack_one` of a few, safe together; what each did."""
        with self._lock:
            answers = [self._acked_one(delivery_offset) for delivery_offset in delivery_offsets]
            end = self.journal.written
        self.journal.commit.committed(end)
        return answers

    def _acked_one(self, delivery_offset: int) -> AckResult:
        """Within the lock; not safe yet."""
        if self._closed or self._dirty.is_set:
            self._look()
        state = self._journaled.state
        acks = state.acks
        if not 0 <= delivery_offset < acks.position:
            return _UNKNOWN
        if delivery_offset not in acks.unacked or delivery_offset in state.dying:
            return _ALREADY
        with self._one_changing:
            self._journaled.record_acked_one(delivery_offset)
            if self._order is not None:
                self._settled([delivery_offset])
        return _ACKED

    def nack(
        self, delivery_offsets: Offsets, offsets: Offsets, lease_numbers: Offsets, delays_ms: Offsets | int
    ) -> ReceiptResult:
        """These failed: they go out again after a delay, one for all or one for each.

        offsets: the append offsets, or UNKNOWN. Stale receipts do nothing. Returns and raises as `ack`.
        """
        delays = np.full(len(delivery_offsets), delays_ms) if isinstance(delays_ms, int) else _column(delays_ms)
        if len(delays):
            check_span("delay_ms", int(delays.min()), 0)
            check_span("delay_ms", int(delays.max()), 0)
        return self._returned(Reason.NACKED, delivery_offsets, offsets, lease_numbers, delays)

    def nack_one(self, delivery_offset: int, offset: int, lease_number: int, delay_ms: int) -> ReceiptResult:
        """`nack` of one."""
        check_span("delay_ms", delay_ms, 0)
        with self._lock:
            self._look()
            good = delivery_offset >= self.partition.log_start and self._state.is_leased(delivery_offset, lease_number)
            if good:
                column = np.array([delivery_offset])
                with self._dirty.guard(AfterlogError):
                    retry_ms = self._now_ms() + delay_ms
                    self._give_back(Reason.NACKED, column, np.array([retry_ms]), np.array([offset]))
            end = self.journal.written
        self.journal.commit.committed(end)
        if not good:
            return _STALE
        self.notifier.notify(retry_ms)
        return _RETURNED

    def release(self, delivery_offsets: Offsets, offsets: Offsets, lease_numbers: Offsets) -> ReceiptResult:
        """Give these back, to go out again at once; it does not count as a failure."""
        delays = np.zeros(len(delivery_offsets), np.int64)
        return self._returned(Reason.RELEASED, delivery_offsets, offsets, lease_numbers, delays)

    def extend(self, delivery_offsets: Offsets, lease_numbers: Offsets, lease_ms: int) -> ReceiptResult:
        """Lease these for `lease_ms` from now. Journaled are those that are held: another ends with the process anyway.

        Raises StoreClosed, and where one is held StorageFull, SubscriptionPoisoned.
        """
        check_span("lease_ms", lease_ms, 1)
        with self._lock, self._changing():
            until_ms = deadline_ms(self._now_ms(), lease_ms)
            rows, column = self._good(delivery_offsets, lease_numbers)
            self._extend(until_ms, bits.of_column(column))
        self.notifier.notify(until_ms)
        return ReceiptResult(done=len(rows), stale=len(delivery_offsets) - len(rows), deadline_ms=until_ms)

    def prolong(self, delivery_offsets: Offsets, lease_numbers: Offsets, lease_ms: int) -> int:
        """Lease these for `lease_ms` from now, where that is longer than they are; until when. Stale receipts do
        nothing. Raises as `extend` does."""
        with self._lock, self._changing():
            until_ms = deadline_ms(self._now_ms(), lease_ms)
            _, column = self._good(delivery_offsets, lease_numbers)
            self._extend(until_ms, self._timers.ending_before(until_ms, bits.of_column(column)))
        return until_ms

    def sought(self, position: Position) -> int:
        """The delivery offset that a position names here, where what is due is so `delay_ms` later.

        Raises OffsetOutOfRange.
        """
        with self._lock:
            self._look()
            return self._sought(position)

    def seek(self, position: Position) -> None:
        """Read on from there: all before counts as acked, all behind as never delivered. Raises as `sought` does."""
        letting_go = self.partition.log.letting_go  # what it goes back to is its own again, or has gone
        with letting_go, self._lock, self._changing():
            self._journaled.record(Sought(self._sought(position)))
            self._timers = Timers(self._state, self._precision_ms)
            self._order = None
            self._unread = UnreadCursor(
                self.partition, self.delay_ms
            )  # what was handed out by itself is handed out again
            self.seeks += 1
            end = self.journal.written
        self.journal.commit.committed(end)
        self.notifier.notify()

    def drop_lapsed(self, delivery_offsets: Int64Array, lease_numbers: Int64Array) -> ReceiptResult:
        """These had expired when they were leased, and are done with. Not synced: what is forgotten expires again."""
        with self._lock, self._changing():
            rows, column = self._good(delivery_offsets, lease_numbers)
            if len(rows):
                self._done_with(Lapsed(bits.of_column(column)))
        return ReceiptResult(done=len(rows), stale=len(delivery_offsets) - len(rows))

    def lapse_ms(self, message: Message) -> int:
        """When a message expires; INT64_MAX: it does not."""
        return lapse_ms(message.due + self.delay_ms, message.headers, self._context.settings.expires_after_ms)

    def first_lapse_ms(self, columns: Columns) -> int:
        """When the first of some records does."""
        return first_lapse_ms(columns.due, columns.headers, self._context.settings.expires_after_ms) + self.delay_ms

    # Dead letters. Intent, append, done: the record is among the dead letters once, whatever crashes in between.

    def intend_dead_letters(self, letters: Sequence[DeadLetter], lease_numbers: Offsets) -> tuple[DeadLetter, ...]:
        """Before the append: those whose receipts are good, and so to be appended. The rest is somebody else's.

        Append offsets that are UNKNOWN are looked up; what is not due again yet, after the clock stepped back, stays
        leased. They are durable when it returns, and the log as far as they speak of it, whatever the durability: else
        a power cut could take the intent and leave the append.
        """
        with self._lock, self._changing():
            rows, column = self._good([letter.delivery_offset for letter in letters], lease_numbers)
            mine = tuple(letters[row] for row in rows.tolist())
            if any(letter.offset == UNKNOWN for letter in mine):
                places = self._journaled.append_offsets(column).tolist()
                mine = tuple(replace(each, offset=at) for each, at in zip(mine, places, strict=True) if at != UNKNOWN)
            if mine:
                self._journaled.record(Intended(mine))
        if mine:
            self.partition.log.commit.make_delivered_durable()
            self.journal.commit.sync()
        return mine

    def finish_dead_letters(self, delivery_offsets: Offsets) -> int:
        """After the append is as durable as this is to be: they are acked, and counted as dead. How many were dying."""
        with self._lock, self._changing():
            dying = [offset for offset in set(_column(delivery_offsets).tolist()) if offset in self._state.dying]
            if dying:
                self._done_with(Dead(BitMap64(dying)))
            end = self.journal.written
        self.journal.commit.committed(end)
        return len(dying)

    def unfinished_dead_letters(self) -> tuple[DeadLetter, ...]:
        """Intended and not finished, in this life or one before: look for them behind their `log_end_offset` first."""
        with self._lock:
            self._look()
            return tuple(self._state.dying.values())

    # Other clusters.

    def replicate(self, is_replicated: bool = True) -> None:
        """Others have it, too, from now on, or do not. Raises InvalidSubscription where it is ordered, and as `ack`."""
        with self._lock, self._changing():
            if is_replicated and self._state.is_ordered:
                raise InvalidSubscription(f"{self.name!r} is ordered by key, which no other cluster could keep to")
            if self._state.is_replicated is not is_replicated:
                self._journaled.record(Replicated(is_replicated))
            end = self.journal.written
        self.journal.commit.committed(end)

    def ack_elsewhere(self, acked: Mapping[str, BitMap64]) -> int:
        """Other clusters have acked these, offsets by where they were appended first: whoever has them here, they are
        done with, and what of them is not here, or not due, is not handed out when it is. How many were leased or
        waiting for a retry. Durable when it returns, whatever the durability: it is not told again. Raises as `ack`.
        """
        with self._lock, self._changing():
            for origin, offsets in acked.items():
                fresh = offsets - self._state.elsewhere.get(origin, BitMap64())
                if fresh:
                    self._journaled.record(AckedElsewhere(origin, fresh))
            unacked = column_of(self._state.ackable(self._state.acks.unacked))
            known = unacked[self._acked_elsewhere(self._journaled.append_offsets(unacked))]
            if len(known):
                self._journaled.record(Acked(bits.of_column(known)))
        self.journal.commit.sync()
        return len(known)

    def step_over(self) -> int:
        """Read past what is due and was acked elsewhere, up to the first that was not: so mark_delete goes on, and
        retention with it, where nobody receives. How many delivery offsets. Raises as `receive`.
        """
        with self._lock, self._changing():
            reading, begun = self.partition.reading(), self._state.position
            high_watermark = self._unread.high_watermark(reading)
            while self._state.elsewhere and max(self._state.position, reading.log_start) < high_watermark:
                position = max(self._state.position, reading.log_start)
                upto = min(position + STEPPED_OVER, high_watermark)
                offset = self.partition.offsets_at(np.arange(position, upto), reading)
                passed = (offset < 0) | self._acked_elsewhere(offset)  # what is hidden is nobody's
                count = len(passed) if bool(passed.all()) else int(passed.argmin())
                if count:
                    self._journaled.record(Leased(position + count, BitMap64()))
                if count < len(passed):
                    break
            return self._state.position - begun

    def acks(self) -> Acks:
        """What is acked, and what is only passed. A copy."""
        with self._lock:
            self._look()
            state = self._state
            lost = state.counts.removed > 0 or state.acks.mark_delete < self.partition.log_start
            unacked, elsewhere = state.acks.unacked.copy(), state.elsewhere.copy()
            return Acks(state.position, unacked, state.sought, lost, elsewhere, state.redeliveries.first)

    @property
    def is_replicated(self) -> bool | None:
        """None: nobody has said."""
        return self._state.is_replicated

    # Pausing, and the order of keys.

    def pause(self, is_paused: bool = True) -> None:
        """Hand out nothing from now on, or go on. Raises as `ack`."""
        with self._lock, self._changing():
            if self._state.is_paused is not is_paused:
                self._journaled.record(Paused(is_paused))
            end = self.journal.written
        self.journal.commit.committed(end)
        self.notifier.notify()

    def check_orderable(self) -> None:
        """Raises InvalidSubscription where it is not ordered and cannot be: records are on their way, or others have
        it, too."""
        with self._lock:
            self._look()
            self._check_orderable()

    def order_by_key(self) -> None:
        """From now on the records of a key go out one after the other. Raises as `check_orderable`, and as `ack`."""
        with self._lock, self._changing():
            self._check_orderable()  # a reader may have received since somebody asked
            if not self._state.is_ordered:
                self._journaled.record(Ordered())
            end = self.journal.written
        self.journal.commit.committed(end)

    # Looking.

    def acked(self, delivery_offsets: Int64Array) -> Bools:
        """Which of these are acked: bool[n]. Dead letters count, and what was skipped by a seek."""
        with self._lock:
            self._look()
            acks = self._state.acks
            return np.fromiter(map(acks.__contains__, delivery_offsets.tolist()), np.bool_, len(delivery_offsets))

    def durable_acks(self) -> tuple[int, BitMap64]:
        """What is acked, whatever crashes: all below the first, but for these. Raises StoreClosed,
        SubscriptionPoisoned.
        """
        with self._lock:
            acks, end = self._known_acks(), self.journal.written
        if self.journal.safe < end:
            self.journal.commit.sync()
        return acks

    def mark_delete(self) -> int:
        """All below is acked, durably or not. Raises StoreClosed."""
        with self._lock:
            self._look()
            return self._state.acks.mark_delete

    def known_acks(self) -> tuple[int, BitMap64]:
        """What is acked, durably or not, as of `durable_acks`. Raises StoreClosed."""
        with self._lock:
            return self._known_acks()

    def _known_acks(self) -> tuple[int, BitMap64]:
        self._look()
        return self._state.acks.position, self._state.acks.unacked.copy()

    def stats(self) -> PartitionStats:
        """Exact counts, of one instant."""
        with self._lock:
            self._look()
            reading = self.partition.look()
            high_watermark = self._unread.high_watermark(reading)
            state = self._state.behind_retention(reading.log_start)
            return standing(state, self.partition, reading, high_watermark, self._unread.upto(reading))

    def leased(self, limit: int) -> list[LeasedRecord]:
        """Up to so many records that readers have, the first to end first. Raises CorruptFile, StoreClosed."""
        with self._lock:
            self._look()
            return leased_records(self.partition, self._state, self._timers.ends(), self.partition.look(), limit)

    def rest_ms(self) -> int:
        """Until when `receive` will find nothing but for what comes; not later than now where there is something."""
        now_ms = self._context.now_ms()  # before the reading: what comes between the two is due
        with self._lock:
            self._look()
            if self._journaled.state.is_paused or self._context.settings.paused:
                return self._timers.next_end_ms()
            reading = self.partition.look()
            times = [self._timers.next_ms(), self._unread.next_due_ms(reading)]
            if self._unread.high_watermark(reading) > self._state.position or self._may_have_turns(reading):
                times = [now_ms]
        ahead = min((ms for ms in times if ms is not None), default=NEVER_MS)
        return self.partition.rest_until(ahead, now_ms, delay_ms=self.delay_ms)

    def close(self) -> None:
        """Release what is leased and not held, and make all durable.

        Poisoned, or of a store that is closed, it is only let go.
        """
        with self._lock:
            if self.journal.commit.closed:
                return
            self._closed = True
            try:
                self.partition.log.pin()
                if not self.journal.commit.poisoned:
                    self._mend()
                    with self._dirty.guard(AfterlogError):
                        leased = self._state.leased()
                        leased -= self._state.held_among(leased)
                        now_ms = at_once_ms(self._now_ms(), self._precision_ms)
                        self._give_back(Reason.RELEASED, column_of(leased), now_ms)
                    self._journaled.seal()
            except (StoreClosed, StoreForked):
                pass
            except StorageFull as error:  # what is leased counts as crashed, when it is opened again
                self.journal.commit.sync()
                logger.warning("%s: closed without its end: %s", self.journal.path, error)
            finally:
                self.journal.close()
        self.notifier.notify()

    def check(self) -> None:
        """Prove the invariants. AssertionError where one does not hold."""
        with self._lock:
            self._look()
            self._journaled.check()
            self._timers.check()
            reading = self.partition.look()
            unacked = column_of(self._state.acks.unacked)
            unacked = unacked[(unacked >= reading.log_start) & (unacked < reading.high_watermark)]
            assert bool((self.partition.offsets_at(unacked, reading) >= 0).all()), "what is hidden is nobody's"
            if self._order is not None and self.partition.log_start <= self._state.acks.mark_delete:
                keys = self._hashes(unacked, reading)
                self._order.check(self._state, dict(zip(unacked.tolist(), keys.tolist(), strict=True)))

    # Interruptions.

    def _look(self) -> None:
        """Within the lock, before all else: what was interrupted is mended. Raises StoreClosed."""
        self._check_open()
        if self._dirty.is_set:
            self._mend()

    def _changing(self) -> Changing:
        """The same, for a block that changes something: where it raises one of our own errors, nothing is half done."""
        self._look()
        return self._dirty.guard(AfterlogError)

    def _mend(self) -> None:
        """Where a call was interrupted: begin anew from the journal, as far as it was believed."""
        if not self._dirty.is_set or self.journal.commit.poisoned:
            return
        logger.warning("%s: a call was interrupted; beginning anew from the journal", self.journal.path)
        self._journaled.mend()
        self._order = None
        self._unread = UnreadCursor(self.partition, self.delay_ms)
        self._timers, nobodys = self._timers.anew(self._state)
        self._give_back(Reason.RELEASED, column_of(nobodys), at_once_ms(self._journaled.now_ms(), self._precision_ms))
        self.notifier.notify()
        self._dirty.is_set = False

    # Time, under the lock.

    def _now_ms(self) -> int:
        """Now by the log's clock, with all timers as far along as that has leapt. Raises StorageFull."""
        while True:
            leapt_ms, now_ms = self._context.leapt_ms(), self._journaled.now_ms()
            if leapt_ms == self._context.leapt_ms():  # else it leapt between the two
                break
        if leapt_ms != self._leapt_ms:
            self._leap(leapt_ms)
        return now_ms

    def _reading(self) -> Reading:
        """The same of a reading to deliver by. Raises as `Partition.reading`."""
        while True:
            reading = self.partition.reading()
            if self._context.leapt_ms() == self._leapt_ms:
                return reading
            self._now_ms()

    def _leap(self, leapt_ms: int) -> None:
        """Leases end and retries come later by what the clock leapt, for no time has gone by."""
        ms = leapt_ms - self._leapt_ms
        if self._state.held or self._state.retrying_count:
            self._journaled.record(Leapt(ms))
        self._timers, _ = self._timers.anew(self._state, ms)
        self._leapt_ms = leapt_ms
        self.notifier.notify()

    # Receiving, under the lock.

    def _one_again(
        self, lease_ms: int, kind: type[MadeMessage], policy: RetryPolicy | None, held: bool
    ) -> tuple[MadeMessage, int, int, bool] | None:
        """`receive_one` of a record that comes back."""
        with self._one_changing:  # from before it is taken out of the timers
            reading, state, timers = self._reading(), self._state, self._timers
            now_ms, position = reading.clock_ms, state.acks.position
            if timers.has_ended(now_ms) or reading.log_start > state.acks.mark_delete:
                return None
            if self._unread.high_watermark(reading) > position:
                return None
            taken = timers.due(now_ms, 1)
            if not len(taken):
                return None
            try:
                _, delivery_offset = taken.key(0)
                offset, number = state.redeliveries.of_one(delivery_offset)
                if offset == UNKNOWN or (policy is not None and policy.gives_up(failures(number))):
                    return None
                message = self.partition.one_at(offset, delivery_offset, reading, kind)
                if message is None or self.lapse_ms(message) <= now_ms:
                    return None
                until_ms, offsets = deadline_ms(now_ms, lease_ms), bits.of_one(delivery_offset)
                self._journaled.record(LeasedUntil(position, offsets, until_ms) if held else Leased(position, offsets))
                is_news = timers.lease_one(until_ms, delivery_offset)
            finally:
                timers.put_back(taken)
        if is_news:
            self.notifier.notify(until_ms)
        return message, number, until_ms, True

    def _receive(
        self, max_records: int, lease_ms: int, policy: RetryPolicy | None, max_bytes: int, reading: Reading, held: bool
    ) -> Lease:
        now_ms, high_watermark = reading.clock_ms, self._unread.high_watermark(reading)
        for ended_ms, offsets in self._timers.expired(now_ms):
            self._give_back(Reason.EXPIRED, column_of(offsets), ended_ms, reading=reading)
        if reading.log_start > self._state.acks.mark_delete:
            self._journaled.skip(reading.log_start)
            self._order = None
        self._log_start = reading.log_start
        end = _LeaseEnd(deadline_ms(now_ms, lease_ms), held, now_ms)
        if self._journaled.state.is_paused or self._context.settings.paused:
            return Lease.nothing(self._nothing, end.ms)
        if self._journaled.state.is_ordered:
            return self._receive_in_turn(high_watermark, max_records, max_bytes, policy, end, reading)
        try:
            fresh, position = self._fresh(high_watermark, max_records, max_bytes, reading)
        except CorruptFile:
            if not self._timers.has_due(now_ms):
                raise
            fresh, position = self._nothing, self._state.position
        if self._state.elsewhere:
            fresh = fresh.take(np.flatnonzero(~self._acked_elsewhere(fresh.offset)))
        if not self._timers.has_due(now_ms):
            if not len(fresh) and position == self._state.position:
                return Lease.nothing(self._nothing, end.ms)
            return self._leased(fresh, np.full(len(fresh), self._state.redeliveries.first), position, end, policy)
        if position < high_watermark and len(fresh):  # there are more: no retry may overtake them
            now_ms = min(now_ms, int(fresh.due.max()) + self.delay_ms)
        retries = self._timers.due(now_ms, max_records)
        try:
            merged = self._intact(fresh, self._shown(retries, reading), position, max_records, reading)
            return self._leased(*merged, end, policy)
        finally:
            self._timers.put_back(retries)

    def _check_orderable(self) -> None:
        state = self._state
        if state.is_ordered:
            return
        if state.is_replicated or state.elsewhere:
            raise InvalidSubscription(f"{self.name!r} is replicated: other clusters could not keep to an order")
        if state.acks.count:
            raise InvalidSubscription(
                f"{self.name!r} of {self.partition.topic} has {state.acks.count} records that were handed out and "
                "are not acked: it can be ordered by key once they are settled, or from its beginning on"
            )

    def _receive_in_turn(
        self,
        high_watermark: int,
        max_records: int,
        max_bytes: int,
        policy: RetryPolicy | None,
        end: _LeaseEnd,
        reading: Reading,
    ) -> Lease:
        """`_receive`, of each key one at a time: what comes back first, for its key waits for it."""
        order = self._made_order(reading)
        if order is None:
            return Lease.nothing(self._nothing, end.ms)
        retries = self._timers.due(end.now_ms, max_records)
        try:
            turns = list[int]()
            if len(retries) < max_records:
                wanted = max_records - len(retries)
                self._look_for(order, reading)
                self._read_on_for(order, wanted, high_watermark, max_bytes, reading)
                turns = order.turns(wanted)
            shown = self._shown(retries, reading)
            if not turns and not len(shown):
                return Lease.nothing(self._nothing, end.ms)
            out = Keys.concatenate([Keys(np.zeros(len(turns), np.int64), np.array(turns, np.int64)), shown])
            merged = self._intact(self._nothing, out, self._state.position, max_records, reading)
            lease = self._leased(*merged, end, policy)
            order.lease(merged[0].delivery_offset.tolist())
            return lease
        finally:
            self._timers.put_back(retries)

    def _at_once_in_turn(
        self, max_records: int, lease_ms: int, kind: type[MadeMessage], held: bool
    ) -> tuple[list[MadeMessage], int, bool]:
        """`receive_few` of a few whose turn it is, where none has to be looked for; none: `receive` is to be asked."""
        order, nothing = self._order, (list[MadeMessage](), 0, False)
        if order is None or order.hungry or not order.turn_count:
            return nothing
        reading, position = self.partition.reading(), self._state.position
        is_read = position >= self._unread.high_watermark(reading)
        if reading.log_start > self._log_start or not (is_read or order.turn_count >= 2 * max_records):
            return nothing
        turns = order.turns(max_records)
        if len(turns) > FEW_IN_TURN:
            return nothing
        messages = list[MadeMessage]()
        for delivery_offset in turns:
            message = self._queued_one(delivery_offset, reading, kind)
            if message is None or self.lapse_ms(message) <= reading.clock_ms:
                return nothing
            messages.append(message)
        until_ms, is_news = deadline_ms(reading.clock_ms, lease_ms), False
        with self._one_changing:
            leased = bits.of_column(np.sort(turns))
            self._journaled.record(LeasedUntil(position, leased, until_ms) if held else Leased(position, leased))
            order.lease(turns)
            for delivery_offset in turns:
                is_news |= self._timers.lease_one(until_ms, delivery_offset)
        if is_news:
            self.notifier.notify(until_ms)
        return messages, until_ms, is_read and not order.has_turns

    def _queued_one(self, delivery_offset: int, reading: Reading, kind: type[MadeMessage]) -> MadeMessage | None:
        """A record that was read, and is queued, as that of `receive_one`; None: `receive` is to be asked."""
        if self._unread.has(delivery_offset):
            found = self._unread.one(delivery_offset, kind, None)
            if found is not None and found[0].delivery_offset == delivery_offset:
                return found[0]
        [offset] = self._journaled.append_offsets(np.array([delivery_offset]), reading).tolist()
        return None if offset == UNKNOWN else self.partition.one_at(offset, delivery_offset, reading, kind)

    def _made_order(self, reading: Reading) -> KeyOrder | None:
        """Whose turn it is. None where that cannot be told yet: something is not due again, as the clock stepped back.

        Raises CorruptFile.
        """
        if self._order is None and self._can_be_ordered(reading):
            order, queued = KeyOrder(), self._state.queued
            out = column_of(self._state.acks.unacked - queued)
            order.in_flight(out, self._hashes(out, reading))
            waiting = column_of(queued)
            for start in range(0, len(waiting), READ_ON_MAX):
                part = waiting[start : start + READ_ON_MAX]
                order.queue(part, self._hashes(part, reading))
            self._order = order
        return self._order

    def _can_be_ordered(self, reading: Reading) -> bool:
        return not self._state.acks.count or self._state.acks.unacked.max() < reading.high_watermark

    def _may_have_turns(self, reading: Reading) -> bool:
        if self._order is None:
            return bool(self._state.queued_count) and self._can_be_ordered(reading)
        return self._order.has_turns

    def _hashes(self, delivery_offset: Int64Array, reading: Reading) -> Int64Array:
        """Of the keys of delivered records, ascending, int64[n]."""
        if not len(delivery_offset):
            return delivery_offset
        offset = self._journaled.append_offsets(delivery_offset, reading)
        return key_hashes(self.partition.records_at(offset, delivery_offset, reading))

    def _look_for(self, order: KeyOrder, reading: Reading) -> None:
        """What is next of keys of which all that was known is done with."""
        looked, step, queued = 0, READ_ON, self._state.queued
        while order.hungry and looked < READ_ON_MAX:
            start, last = min(order.hungry.values()), queued.max() if queued else -1
            stop = start + step
            part = queued_between(queued, start, stop)
            order.found(part, self._hashes(part, reading), stop if stop <= last else None, queued)
            looked, step = looked + max(len(part), 1), step * 2

    def _read_on_for(self, order: KeyOrder, wanted: int, high_watermark: int, max_bytes: int, reading: Reading) -> None:
        """Read on while few keys have their turn, lest one with many keeps the others from it."""
        left = READ_ON_MAX
        while self._state.position < high_watermark and left > 0 and order.turn_count < 2 * wanted:
            count, before = min(max(self._read_on, wanted), left), order.turn_count
            try:
                columns, position = self._unread.read(self._state.position, high_watermark, count, max_bytes, reading)
            except CorruptFile:
                if not order.turn_count:
                    raise
                break
            hashes = key_hashes(columns)
            self._journaled.record(Queued(position, bits.of_column(columns.delivery_offset)))
            order.queue(columns.delivery_offset, hashes)
            self.partition.handed_out(columns.delivery_offset, columns.due, position, delay_ms=self.delay_ms)
            left -= max(len(columns), 1)
            self._read_on = READ_ON if order.turn_count > before else min(2 * self._read_on, READ_ON_MAX)

    def _done_with(self, event: Acked | Lapsed | Dead) -> None:
        """Records are, in a way; others of their keys have their turn."""
        self._journaled.record(event)
        if self._order is not None:
            self._settled(column_of(event.offsets).tolist())

    def _settled(self, delivery_offsets: list[int]) -> None:
        if self._order is not None and self._order.settle(delivery_offsets, self._state.queued):
            self.notifier.notify()

    def _fresh(self, high_watermark: int, max_records: int, max_bytes: int, reading: Reading) -> tuple[Columns, int]:
        """Up to so many that were not read, and more where those before them have expired; the position behind."""
        fresh, position = self._unread.read(self._state.position, high_watermark, max_records, max_bytes, reading)
        lapsed = self._lapsed_of(fresh, reading.clock_ms)
        if lapsed is None or not bool(lapsed.all()) or max_records >= LAPSED_AT_ONCE:
            return fresh, position
        fresh, position = self._unread.read(self._state.position, high_watermark, LAPSED_AT_ONCE, max_bytes, reading)
        lapsed = self._lapsed_of(fresh, reading.clock_ms)
        count = len(fresh) if lapsed is None or bool(lapsed.all()) else int(lapsed.argmin()) + max_records
        return (fresh, position) if count >= len(fresh) else (fresh[:count], int(fresh.delivery_offset[count]))

    def _lapsed_of(self, columns: Columns, now_ms: int) -> Bools | None:
        """Which records have expired; None: none has."""
        topics_ms, (ends, _) = self._context.settings.expires_after_ms, columns.headers
        if topics_ms is None and ends[-1] == ends[0]:  # as a rule
            return None
        return lapsed_rows(columns.due, columns.headers, topics_ms, now_ms - self.delay_ms)

    def _intact(
        self, fresh: Columns, retries: Keys, position: int, max_records: int, reading: Reading
    ) -> tuple[Columns, Int64Array, int]:
        """`_merged`, of what can be read where a retry cannot: fresh ones, or the retries before it."""
        while True:
            try:
                return self._merged(fresh, retries, position, max_records, reading)
            except CorruptFile:
                if len(fresh):
                    return fresh, np.full(len(fresh), self._state.redeliveries.first), position
                if len(retries) <= 1:
                    raise
                retries = retries[: len(retries) // 2]

    def _shown(self, retries: Keys, reading: Reading) -> Keys:
        """Without those that nobody sees: cancelled ones and markers, which older versions may have leased."""
        rows = np.argsort(retries.offset)
        offset = np.empty_like(rows)
        offset[rows] = self._journaled.append_offsets(retries.offset[rows], reading)
        hidden = (offset == UNKNOWN) & (retries.offset < reading.high_watermark)
        if not hidden.any():
            return retries
        self._step_over(retries.offset[hidden])
        return retries.take(np.flatnonzero(~hidden))

    def _step_over(self, delivery_offset: Int64Array) -> None:
        """These were leased, and are nobody's."""
        logger.warning(
            "%s: %d cancelled records or markers, from delivery offset %d on, were leased by an older version",
            self.journal.path, len(delivery_offset), int(delivery_offset.min()),
        )  # fmt: skip
        self._done_with(Acked(bits.of_column(np.sort(delivery_offset))))

    def _acked_elsewhere(self, offset: Int64Array) -> Bools:
        """Which records, by append offset, other clusters have acked; of UNKNOWN none."""
        log, found = self.partition.log, np.zeros(len(offset), np.bool_)
        index, own = log.version.origins, log.context.settings.topic_id
        number, there = (np.full(len(offset), -1), offset) if index is None else index.origins(offset)
        for origin, acked in self._state.elsewhere.items():
            if origin == own:
                rows = np.flatnonzero((number < 0) & (offset >= 0))
            elif index is not None and origin in index.names:
                rows = np.flatnonzero(number == index.names.index(origin))
            else:
                continue
            found[rows] = np.fromiter(map(acked.__contains__, there[rows].tolist()), np.bool_, len(rows))
        return found

    def _merged(
        self, fresh: Columns, retries: Keys, position: int, max_records: int, reading: Reading
    ) -> tuple[Columns, Int64Array, int]:
        """The first `max_records` of both by (time, delivery offset), their lease numbers, and the position behind."""
        time = np.concatenate([np.maximum.accumulate(fresh.due) + self.delay_ms, retries.deliver_after])
        order = np.lexsort((np.concatenate([fresh.delivery_offset, retries.offset]), time))[:max_records]
        again = order >= len(fresh)
        fresh_count = len(order) - int(again.sum())
        if fresh_count < len(fresh):
            position = int(fresh.delivery_offset[fresh_count])
        delivery_offset = retries.offset[: len(order) - fresh_count]
        ascending = np.argsort(delivery_offset)
        context = np.empty_like(ascending)
        context[ascending] = np.arange(len(ascending))
        offset = self._journaled.append_offsets(delivery_offset[ascending])[context]
        columns = [fresh[:fresh_count], self.partition.records_at(offset, delivery_offset, reading)]
        numbers = np.full(len(order), self._state.redeliveries.first)
        numbers[again] = self._state.redeliveries.lease_numbers(delivery_offset[ascending])[context]
        merged = Columns.concatenate(columns).take(np.where(again, order - len(fresh) + fresh_count, order))
        hidden = reading.hidden.holds(merged.due, merged.offset)
        if hidden.any():  # where a nack has said where it lies
            self._step_over(merged.delivery_offset[hidden])
            merged, numbers = merged.take(np.flatnonzero(~hidden)), numbers[~hidden]
        return merged, numbers, position

    def _leased(
        self, columns: Columns, lease_number: Int64Array, position: int, end: _LeaseEnd, policy: RetryPolicy | None
    ) -> Lease:
        """Lease the records, with everything below `position` read."""
        if len(columns) or position > self._state.position:
            offsets = bits.of_column(np.sort(columns.delivery_offset))
            is_held = end.held and len(columns)
            self._journaled.record(LeasedUntil(position, offsets, end.ms) if is_held else Leased(position, offsets))
            if len(columns):
                self._timers.lease(end.ms, offsets)
        lapsed, lapsed_number = self._nothing, lease_number[:0]
        over = self._lapsed_of(columns, end.now_ms)
        if over is not None:
            lapsed, lapsed_number = columns.take(np.flatnonzero(over)), lease_number[over]
            columns, lease_number = columns.take(np.flatnonzero(~over)), lease_number[~over]
        exhausted, nobody = self._nothing, lease_number[:0]
        if policy is not None and lease_number.any():
            done = policy.exhausted(failures(lease_number))
            exhausted, nobody = columns.take(np.flatnonzero(done)), lease_number[done]
            columns, lease_number = columns.take(np.flatnonzero(~done)), lease_number[~done]
        return Lease(
            columns=columns,
            lease_number=lease_number,
            exhausted=exhausted,
            exhausted_number=nobody,
            lapsed=lapsed,
            lapsed_number=lapsed_number,
            deadline_ms=end.ms,
        )

    def _handed_out(self, columns: Columns, position: int) -> None:
        """Note how late those are that were not read before: they lie from `position` on."""
        delivery_offset, due = columns.delivery_offset, columns.due
        fresh = delivery_offset >= position
        if not fresh.all():
            delivery_offset, due = delivery_offset[fresh], due[fresh]
        self.partition.handed_out(delivery_offset, due, self._state.position, delay_ms=self.delay_ms)

    # Extended, and coming back, under the lock.

    def _extend(self, until_ms: int, offsets: BitMap64) -> None:
        """Leased records end then; those that are held, and did not already, by the journal too."""
        held = self._state.held_among(offsets)
        held -= self._state.held.at(until_ms)
        if held:
            self._journaled.record(Extended(until_ms, held))
        self._timers.extend(until_ms, offsets)

    def _returned(
        self,
        reason: Reason,
        delivery_offsets: Offsets,
        offsets: Offsets,
        lease_numbers: Offsets,
        delays_ms: Int64Array,
    ) -> ReceiptResult:
        with self._lock, self._changing():
            rows, column = self._good(delivery_offsets, lease_numbers)
            now_ms = self._now_ms()
            retry_ms = now_ms + delays_ms[rows] if reason == Reason.NACKED else at_once_ms(now_ms, self._precision_ms)
            self._give_back(reason, column, retry_ms, _column(offsets)[rows])
            end = self.journal.written
        self.journal.commit.committed(end)
        if len(rows):
            self.notifier.notify(int(np.min(retry_ms)))
        return ReceiptResult(done=len(rows), stale=len(delivery_offsets) - len(rows))

    def _good(self, delivery_offsets: Offsets, lease_numbers: Offsets) -> tuple[Int64Array, Int64Array]:
        """The rows whose receipts are good, by ascending delivery offset, and these offsets."""
        column, rows = np.unique(_column(delivery_offsets), return_index=True)
        log_start = max(self.partition.log_start, 0)  # what retention has taken is nobody's
        inside = slice(int(column.searchsorted(log_start)), int(column.searchsorted(self._state.position)))
        column, rows = column[inside], rows[inside]
        good = self._state.leased_rows(column, _column(lease_numbers)[rows])
        return rows[good], column[good]

    def _give_back(
        self,
        reason: Reason,
        delivery_offset: Int64Array,
        retry_ms: Int64Array | int,
        offset: Int64Array | None = None,
        reading: Reading | None = None,
    ) -> None:
        """Leased records, ascending, go out again."""
        if not len(delivery_offset):
            return
        times = np.full(len(delivery_offset), retry_ms) if isinstance(retry_ms, int) else retry_ms
        if offset is None:
            offset = self._journaled.append_offsets(delivery_offset, reading)
        times = self._journaled.retry_ms(delivery_offset, times)
        self._journaled.record(Returned(reason, delivery_offset, offset, times))
        self._timers.unlease(bits.of_column(delivery_offset))
        self._timers.retry(times, delivery_offset)

    def _sought(self, position: Position) -> int:
        if position is LATEST:
            return self._unread.high_watermark(self.partition.look())
        if isinstance(position, AtTime):
            position = AtTime(max(instant_ms(position.instant) - self.delay_ms, 0))
        return self.partition.beginning(position)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the subscription is closed; subscribe again")


class _LeaseEnd(NamedTuple):
    """When leases end, whether they hold until then whatever becomes of the process, and when they began."""

    ms: int
    held: bool
    now_ms: int


def _column(values: Offsets | int) -> Int64Array:
    return np.asarray(values, np.int64)


def _ascending(column: Int64Array) -> Int64Array:
    """Sorted, and each value once."""
    return column if bool((column[1:] > column[:-1]).all()) else np.unique(column)
