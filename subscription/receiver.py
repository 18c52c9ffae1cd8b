"""The receiving side of one reader: takes due records of its partitions in turn, within its limits, and leases ahead.

    look ──> due records, leased        of the partitions on the agenda, in turn; no more than the flow has room for
    begin ──> fill ──> pop, pop, …      an iteration: a few leased ahead (`read_ahead.py`), handed out one by one
                └── end, drain, close   what was not handed out goes back

Partitions of one priority take turns, and those of a higher one go first. One record of sixteen is of a lower one,
where such are due, and the lower ones take turns at it.

Nothing here waits: who must not block calls these steps, and waits by the agenda for when to look again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence

import numpy as np

from afterlog.base.arguments import whole
from afterlog.base.clock import INT64_MAX, Clock
from afterlog.base.errors import CorruptFile, StoreClosed, StoreForked
from afterlog.base.files import PROCESS
from afterlog.fetch.agenda import in_turn
from afterlog.fetch.message_columns import Columns
from afterlog.fetch.partition import agenda_of
from afterlog.fetch.timeline import FEW
from afterlog.subscription.active_handlers import ActiveHandlers
from afterlog.subscription.answers import Lease
from afterlog.subscription.flow_control import FlowControl
from afterlog.subscription.lease_keeper import KeptLeases
from afterlog.subscription.leased_message import LeasedMessage, Settling, complete
from afterlog.subscription.read_ahead import ReadAhead
from afterlog.subscription.reader_part import ReaderPart
from afterlog.subscription.reader_settings import ReaderSettings
from afterlog.subscription.received import Receipts, Received, ReceivedMessages, ReceivedOne

FAIR = 16
"""Of so many records one is of a lower priority, where such are due."""
_PAUSED = -1


class Receiver:
    """Of one reader. Thread-safe; what one iteration has leased ahead is for one thread."""

    def __init__(self, reader: Settling, parts: Sequence[ReaderPart], settings: ReaderSettings, clock: Clock) -> None:
        """reader: who settles the messages."""
        self._reader = reader
        self._rows = tuple(parts)
        self._parts = {part.number: part for part in parts}
        self._settings = settings
        self._clock = clock
        self._now_ms = parts[0].subscription.partition.log.context.now_ms
        self._shared = shared = tuple(part.subscription for part in parts)
        self.agenda = agenda_of([each.partition for each in shared], clock, delay_ms=shared[0].delay_ms)
        """What it has to look at, and so how long there is nothing."""
        for row, each in enumerate(shared):
            self.agenda.follow(row, each.notifier)
        self._turn = self._taken = self._shares = 0
        self.aheads: list[ReadAhead] = []
        self.blocks = ActiveHandlers[LeasedMessage]()
        """Of its messages, what is in handlers now."""
        self.kept = self._keeping() if settings.auto_extend else None
        self.flow = self._limits()
        self.draining = False
        self.closed = False
        self._lock = threading.Lock()
        self._owner = PROCESS.id

    @property
    def ended(self) -> bool:
        """Whether it takes nothing more: draining, or closed."""
        return self.draining or self.closed

    def halt(self) -> None:
        """Take nothing more. No lock is taken: for a signal's handler. Somebody has to `stop_taking` behind it."""
        self.draining = True

    def stop_taking(self) -> None:
        """The same; give back what was leased ahead, and wake who waits."""
        self.halt()
        with self._lock:
            left = [message for ahead in self.aheads for message in ahead.drain()]
        try:
            self._give_back(left)
        finally:
            self.agenda.resume()
            self.agenda.stir_all()

    def close(self) -> None:
        """The same, for good."""
        with self._lock:
            self.closed = True
            left = [message for ahead in self.aheads for message in ahead.drain()]
        try:
            self._give_back(left)
        finally:
            self.agenda.close()

    def is_idle(self) -> bool:
        """Whether no handler is at work, as far as is known."""
        return not any(ahead.is_out for ahead in self.aheads) and not self.blocks

    def look(self, max_records: int) -> Received | None:
        """Lease what is due now; None where nothing is: the agenda tells how long. Empty where it has ended."""
        if self.ended:
            return self.nothing()
        max_records = whole("max_records", max_records, least=-1)  # too few are an InvalidSubscription
        try:
            if self.flow is not None:
                return self._limited(self.flow, max_records)
            rows = self.agenda.rows()
            few = self._few_of(rows[0], max_records) if max_records > 1 and len(rows) == 1 else None
            return self._sweep(max_records, rows) if few is None else few
        except StoreClosed:
            if not self.closed:  # else by another thread
                raise
            return self.nothing()

    def take(self, max_records: int) -> Received | None:
        """`one`, where one is wanted, or else `look`."""
        alone = type(max_records) is int and max_records == 1 and self.flow is None and not self.ended
        one = self.one() if alone else None
        return self.look(max_records) if one is None else one

    def one(self, row: int | None = None) -> ReceivedOne | None:
        """One record that was read ahead, became due last, or comes back, of this partition or one that has its turn;
        None: `look` for it."""
        share: int | None = None
        if row is None:
            rows = self.agenda.rows()
            if not rows:
                return None
            row = rows[0]
            if len(rows) > 1:
                row, share = self._in_order(rows, 1)[0]
        settings, stirs = self._settings, self.agenda.stirs[row]
        found = self._shared[row].receive_one(
            settings.lease_ms, LeasedMessage, policy=settings.policy, held=settings.durable_leases is True
        )
        if found is None:
            return None
        self._turn = (self._turn + 1) % len(self._shared)
        self._taken += 1
        if share is not None:
            self._shares += 1
        message, number, until_ms, is_last = found
        complete(message, self._reader, number, until_ms)
        if is_last:
            self._rest_behind([message], row, stirs)
        return ReceivedOne(message)

    def few_at_once(self, max_records: int, rows: Sequence[int]) -> Received | None:
        """One, or a few that became due last, for who must not block: where one partition is on the agenda, and nothing
        holds it up. rows: of the agenda, now."""
        if len(rows) != 1 or self.flow is not None or self.ended or not self._shared[rows[0]].is_free():
            return None
        if type(max_records) is not int or max_records < 1:
            return None
        [row] = rows
        stirs = self.agenda.stirs[row]
        found = self.one(row) if max_records == 1 else self._few_of(row, min(max_records, FEW))
        if found is None:  # then there are many, or there is nothing
            self.agenda.rest(row, stirs, self._shared[row].rest_ms())
        return found

    def _few_of(self, row: int, max_records: int) -> Received | None:
        """Records of one partition that became due last, where these are few; None: `_sweep`."""
        settings, stirs = self._settings, self.agenda.stirs[row]
        found = self._shared[row].receive_few(
            max_records, settings.lease_ms, LeasedMessage, held=settings.durable_leases is True
        )
        if found is None:
            return None
        self._turn = (self._turn + 1) % len(self._shared)
        messages, number, until_ms, is_last = found
        for message in messages:
            complete(message, self._reader, number, until_ms)
        if is_last:
            self._rest_behind(messages, row, stirs)
        return ReceivedOne(messages[0]) if len(messages) == 1 else ReceivedMessages(self._reader, messages)

    def _rest_behind(self, messages: Sequence[LeasedMessage], row: int, stirs: int) -> None:
        """These may be the last that are due: look when the next is. They go back where that cannot be told."""
        try:
            self.agenda.rest(row, stirs, self._shared[row].rest_ms())
        except BaseException:
            self._give_back(messages)
            raise

    def nothing(self) -> Received:
        """No records."""
        none = np.empty(0, np.int64)
        return Received(self._reader, Columns.empty(self._reader.topic), none, none)

    # Iterations.

    def begin(self) -> ReadAhead:
        """What an iteration has leased ahead: nothing yet."""
        PROCESS.check_is(self._owner)
        ahead = ReadAhead(self._settings.lease_ms, self._shared[0].lapse_ms, self._priorities)
        with self._lock:
            self.aheads.append(ahead)
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
        share = None if self.flow is None else self.flow.share(len(self.aheads))
        found = self.look(wanted if share is None else min(wanted, share))
        if found is None:
            return False
        ahead.fill(found, self._now_ms(), seeks, self._first_lapse_ms(found))
        return True

    def fill_at_once(self, ahead: ReadAhead) -> bool | None:
        """`fill` for who must not block, where few are due, or none are; None: it is to be asked."""
        if ahead.is_empty and not self.ended:
            rows = self.agenda.rows()
            if not rows:
                return False
            seeks, found = self._seeks(), self.few_at_once(ahead.wanted(self._now_ms()), rows)
            if found is not None:
                ahead.fill(found, self._now_ms(), seeks, self._first_lapse_ms(found))
                return True
            if len(rows) == 1 and not self.agenda.due():
                return False
        return None

    def end(self, ahead: ReadAhead) -> None:
        """Give back what was not handed out; in a forked child it is the parent's."""
        if PROCESS.id != self._owner:
            return
        with self._lock:
            self.aheads = [each for each in self.aheads if each is not ahead]
        try:
            self._give_back(ahead.drain())
        finally:
            if self.blocks.watched:
                self.blocks.ended()

    # The steps.

    def _limited(self, flow: FlowControl, max_records: int) -> Received | None:
        """`_sweep`, of what there is room for; where there is none the agenda pauses."""
        with flow.taking:
            room = flow.room()
            if room <= 0:
                self.agenda.pause(flow.until_ms())
                if flow.room() > 0:  # somebody settled one before that
                    self.agenda.resume()
                return None
            found = self._sweep(min(max_records, room), self.agenda.rows())
            if found is not None:
                flow.took(found.receipts.places(), found.deadline_ms.tolist())
            return found

    def _sweep(self, max_records: int, rows: Sequence[int]) -> Received | None:
        """Due records of these partitions, which are on the agenda; None where there are none."""
        leases, left = list[tuple[ReaderPart, Lease]](), max_records
        in_order = self._in_order(rows, max_records) if len(rows) > 1 else [(row, None) for row in rows]
        self._turn = (self._turn + 1) % len(self._rows)
        try:
            for row, share in in_order:
                if share is not None and leases:  # one of a lower priority has given it
                    continue
                part, stirs = self._rows[row], self.agenda.stirs[row]
                try:
                    lease = part.lease(left if share is None else share, self._settings)
                except CorruptFile:
                    if leases:  # which come first; then it is told
                        break
                    raise
                if len(lease):
                    leases.append((part, lease))
                    self._taken += len(lease)
                    self._shares += share is not None
                    left -= len(lease)
                    if left <= 0:
                        break
                else:
                    self.agenda.rest(row, stirs, part.subscription.rest_ms())
        except BaseException:
            for part, lease in leases:
                part.undo(lease.columns, lease.lease_number)
            raise
        if len(leases) > 1 and in_order[0][1] is not None:
            leases.sort(key=lambda each: -self._priority_of(each[0].number))
        return self._received([lease for _, lease in leases]) if leases else None

    def _in_order(self, rows: Sequence[int], max_records: int) -> list[tuple[int, int | None]]:
        """The order of a look at these, which are on the agenda, and how many each may give, where not as many as are
        wanted: of those of a lower priority that come first, the first who has some."""
        turned = in_turn(rows, self._turn)
        if self._priorities == 1:
            return [(row, None) for row in turned]
        level = {row: self._priority_of(self._rows[row].number) for row in turned}
        turned.sort(key=level.__getitem__, reverse=True)
        lower = [row for row in turned if level[row] < level[turned[0]]]
        share = (self._taken + max_records) // FAIR - self._taken // FAIR
        first = self._shares % len(lower) if lower and share > 0 else 0
        giving = (*lower[first:], *lower[:first]) if share > 0 else ()
        return [*((row, share) for row in giving), *((row, None) for row in turned)]

    @property
    def _priorities(self) -> int:
        """As the topic has them now."""
        return self._shared[0].partition.log.context.settings.priorities

    def _priority_of(self, partition: int) -> int:
        return partition % self._priorities

    def _received(self, leases: Sequence[Lease]) -> Received:
        if len(leases) == 1:
            [lease] = leases
            return Received(self._reader, lease.columns, lease.lease_number, np.full(len(lease), lease.deadline_ms))
        return Received(
            self._reader,
            Columns.concatenate([lease.columns for lease in leases]),
            np.concatenate([lease.lease_number for lease in leases]),
            np.repeat([lease.deadline_ms for lease in leases], [len(lease) for lease in leases]),
        )

    def _first_lapse_ms(self, found: Received) -> int:
        """When the first of them expires."""
        one = self._shared[0]
        if type(found) is Received:
            return one.first_lapse_ms(found.columns)
        return min(map(one.lapse_ms, found), default=INT64_MAX)

    def _seeks(self) -> int:
        """How often it was sought; _PAUSED where nothing may be handed out, of what was leased ahead either."""
        seeks = 0
        for each in self._shared:
            if each.is_paused:
                return _PAUSED
            seeks += each.seeks
        return seeks

    def _give_back(self, messages: Sequence[LeasedMessage]) -> None:
        """Release what was leased ahead. What has been closed meanwhile, has released it itself."""
        if messages:
            for number, receipts in Receipts.of(messages).by_partition():
                with contextlib.suppress(StoreClosed, StoreForked):
                    self._parts[number].release(receipts)
            if self.flow is not None:
                for message in messages:
                    message.settle()

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

    def _limits(self) -> FlowControl | None:
        rate, max_in_flight = self._settings.rate, self._settings.max_in_flight
        if rate is None and max_in_flight is None:
            return None
        return FlowControl(
            rate, max_in_flight, now_ms=self._now_ms, boot_ms=self._clock.boot_ms, freed=self.agenda.resume
        )

    def _prolong(self, messages: Sequence[LeasedMessage]) -> int:
        """Lease what is in handlers for as long as at first; until when."""
        every = Receipts.of(messages)
        until_ms = min(
            self._parts[number].subscription.prolong(
                receipts.delivery_offset, receipts.lease_number, self._settings.lease_ms
            )
            for number, receipts in every.by_partition()
        )
        if self.flow is not None:
            self.flow.extended(every.places(), until_ms)
        return until_ms

    def _give_back_late(self, now_ms: int) -> None:
        """What is leased ahead and waits behind a slow handler goes to who has time for it."""
        with self._lock:
            late = [message for ahead in self.aheads for message in ahead.drain_late(now_ms)]
        self._give_back(late)
