"""The durable side of a subscription in one partition: its state, and the journal that brings the state back.

    open      newest journal ──replay──> state ── leases that nobody holds end ──> the next journal, with a snapshot
    record    event ──> journal ──> state                                      overgrown: the next journal
    close     all synced, and sealed

An event that cannot be written is not applied, so the journal always replays to the state. Where an exception struck in
between, `mend` makes the state anew from the journal.
"""

from __future__ import annotations

import contextlib
import logging

import numpy as np

from afterlog.base.errors import OutOfResources, PartitionPoisoned, StorageFull
from afterlog.base.names import subscription_folder
from afterlog.fetch.partition import Partition
from afterlog.fetch.timeline import Reading
from afterlog.index.growing_columns import Int64Array
from afterlog.index.offset_set import column_of
from afterlog.subscription.ack_set import AckSet
from afterlog.subscription.events import Event, Reason, Returned, Skipped
from afterlog.subscription.journal import Journal
from afterlog.subscription.redeliveries import UNKNOWN
from afterlog.subscription.replay import Replayed, replay
from afterlog.subscription.state import Owner, SubscriptionState
from afterlog.subscription.timers import at_once_ms

logger = logging.getLogger("afterlog.subscription")


class JournaledState:
    """`record` by one thread at a time; `journal` says what any thread may call."""

    def __init__(self, partition: Partition, name: str, start: int) -> None:
        """Open the subscription's ledger, or begin one whose reader starts at the delivery offset `start`.

        Raises CorruptFile, StorageFull, SubscriptionPoisoned.
        """
        context = partition.log.context
        self._partition = partition
        self._owner = Owner(context.folder.name, name)
        folder = subscription_folder(context.folder, name)
        was_there = context.files.exists(folder)
        for each in (folder.parent, folder):  # a copy of the store may have left out the empty first one
            with contextlib.suppress(FileExistsError):
                context.files.make_folder(each)
            context.files.sync_folder(each.parent)
        self._folder = folder
        self.replayed = self._replay()
        """What was found; None of a new subscription."""
        if was_there and self.replayed is None:  # or it was killed when it was first made
            logger.warning("%s: there is no journal in it: the subscription begins anew", folder)
        replayed = self.replayed or Replayed(-1, SubscriptionState(AckSet(start), sought=start))
        self.state = replayed.state
        self._return_crashed()
        end_offset = partition.log_end_offset
        partition.log.commit.make_delivered_durable()
        snapshot = self.state.to_bytes(self._owner)
        self.journal = Journal(
            context.files, folder, context.config.durability, replayed.number + 1, snapshot, end_offset
        )

    def record(self, event: Event) -> None:
        """Write it down, and make it so. Raises StorageFull, SubscriptionPoisoned, StoreClosed: then nothing is."""
        end_offset = self._partition.log.pin().visible.offset
        self.journal.append(event, end_offset)
        self.state.apply(event)
        if self.journal.overgrown:
            self._begin_anew(end_offset)

    def record_leased_one(self, position: int, delivery_offset: int) -> None:
        """`record` of Leased, of one record that was not read before."""
        end_offset = self._partition.log.pin().visible.offset
        self.journal.append_leased_one(position, delivery_offset, end_offset)
        self.state.lease_one(position, delivery_offset)
        if self.journal.overgrown:
            self._begin_anew(end_offset)

    def record_acked_one(self, delivery_offset: int) -> None:
        """`record` of Acked, of one record that is un-acked."""
        end_offset = self._partition.log.pin().visible.offset
        self.journal.append_acked_one(delivery_offset, end_offset)
        self.state.ack_one(delivery_offset)
        if self.journal.overgrown:
            self._begin_anew(end_offset)

    def skip(self, log_start: int) -> None:
        """Retention took all below: what of it was not acked is lost to this subscription, and that is said."""
        before = self.state.counts.removed
        self.record(Skipped(log_start))
        removed = self.state.counts.removed - before
        if removed:
            logger.warning(
                "%s: retention took %d records of %s, up to delivery offset %d, that were not acked",
                self._owner.subscription, removed, self._owner.partition, log_start,
            )  # fmt: skip

    def mend(self) -> None:
        """Make the state anew, after an interruption. Raises CorruptFile, SubscriptionPoisoned."""
        self.journal.rollback()
        replayed = self._replay()
        assert replayed is not None
        self.state = replayed.state

    def append_offsets(self, delivery_offset: Int64Array, reading: Reading | None = None) -> Int64Array:
        """Of delivered records, ascending. UNKNOWN where one is not due again yet, after the clock stepped back."""
        offset = self.state.redeliveries.find(delivery_offset).offset
        unknown = np.flatnonzero(offset == UNKNOWN)
        if len(unknown):
            offset[unknown] = self._partition.offsets_at(delivery_offset[unknown], reading)
        return offset

    def now_ms(self) -> int:
        """Now by the log clock, without deciding what is due: also while it is far behind."""
        return max(self._partition.log.context.now_ms(), self._partition.log.frontier_ms)

    def seal(self) -> None:
        """Make everything durable, with the proof that it is."""
        self.journal.seal(self._partition.log_end_offset)

    def check(self) -> None:
        """AssertionError where an invariant does not hold: of the state, of the journal, or that it replays to it."""
        self.state.check()
        self.journal.check()
        replayed = self._replay()
        assert replayed is not None
        assert replayed.state.to_bytes(self._owner) == self.state.to_bytes(self._owner)

    def _replay(self) -> Replayed | None:
        return replay(self._partition.log.context.files, self._folder, self._owner, self._partition.log_end_offset)

    def retry_ms(self, delivery_offset: Int64Array, wanted_ms: Int64Array) -> Int64Array:
        """When leased records, ascending, may go out again: as wanted, or once they are due by the clock as it is.

        It may have stepped back since a life that ended, in which they were due. No fetch delivers by a reading above
        the lease of the frontier: by then all of it is due.
        """
        opened_ms = self._partition.log.opened_lease_ms
        if self._partition.log.frontier_ms >= opened_ms:
            return wanted_ms
        row = int(delivery_offset.searchsorted(self._partition.high_watermark()))
        return np.concatenate([wanted_ms[:row], np.maximum(wanted_ms[row:], opened_ms)])

    def _return_crashed(self) -> None:
        """What was leased in a life that ended, and is not held, goes out again: at once, or as soon as it is due."""
        every = self.state.leased()
        leased = column_of(every - self.state.held_among(every))
        leased = leased[leased.searchsorted(self._partition.log_start) :]
        if len(leased):
            offset = self.state.redeliveries.find(leased).offset  # the rest is looked up when it is received
            now_ms = at_once_ms(self.now_ms(), self._partition.log.context.config.delayed_delivery_tick_time_ms)
            retry_ms = self.retry_ms(leased, np.full(len(leased), now_ms))
            self.state.apply(Returned(Reason.CRASHED, leased, offset, retry_ms))

    def _begin_anew(self, end_offset: int) -> None:
        self.journal.postpone()
        try:
            self._partition.log.commit.make_delivered_durable()
            self.journal.begin_anew(self.state.to_bytes(self._owner), end_offset)
        except (StorageFull, OutOfResources, PartitionPoisoned) as error:
            # The event itself is written, and the old journal holds all that the new one would.
            logger.warning("%s: not begun anew: %s", self.journal.path, error)
