"""One reader's view of one partition of a subscription: lease, nack, dead-letter and release, by its own policy."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from afterlog.base.errors import AfterlogError
from afterlog.fetch.message_columns import Columns
from afterlog.index.growing_columns import Int64Array
from afterlog.subscription.answers import Lease, ReceiptResult
from afterlog.subscription.dead_letters import DeadLetters
from afterlog.subscription.lease_number import failures
from afterlog.subscription.partition_subscription import PartitionSubscription
from afterlog.subscription.reader_settings import ReaderSettings
from afterlog.subscription.received import Receipts

EXPIRED = "expired before anybody got it"
LEASE_ENDED = "given up after {} deliveries, of which the last ended without an answer"


@dataclass(frozen=True, slots=True)
class ReaderPart:
    """As all readers of the subscription share it. `settings`: of the reader that asks."""

    subscription: PartitionSubscription
    dead_letters: DeadLetters

    @property
    def number(self) -> int:
        return self.subscription.partition.number

    def lease(self, max_records: int, settings: ReaderSettings) -> Lease:
        """Lease due records; those that have failed too often go to the dead letters at once, as may, by the topic,
        what has expired; else that is dropped."""
        self.dead_letters.resume()
        while True:
            lease = self.subscription.receive(
                max_records, settings.lease_ms, policy=settings.policy, held=settings.durable_leases is True
            )
            if len(lease.exhausted) or len(lease.lapsed):
                try:
                    self._let_lapse(lease, settings)
                    self._give_up(lease, settings)
                except BaseException:
                    self.undo(lease.columns, lease.lease_number)
                    self.undo(lease.exhausted, lease.exhausted_number)
                    self.undo(lease.lapsed, lease.lapsed_number)
                    raise
            if len(lease) or not (len(lease.exhausted) or len(lease.lapsed)):
                return lease

    def nack(self, receipts: Receipts, delay_ms: int | None, reason: str, settings: ReaderSettings) -> ReceiptResult:
        """These failed: they go out again after the delay, by default the policy's, or to the dead letters."""
        counts = failures(receipts.lease_number) + 1
        exhausted = settings.policy.exhausted(counts)
        answers = []
        if bool(exhausted.any()):
            answers.append(self.dead_letter(receipts.at(exhausted), counts[exhausted], reason or "nacked", settings))
            receipts, counts = receipts.at(~exhausted), counts[~exhausted]
        if len(counts):
            given = None if delay_ms is None else np.full(len(counts), delay_ms)
            delays_ms = settings.policy.delays_ms(counts, settings.random) if given is None else given
            answers.append(
                self.subscription.nack(receipts.delivery_offset, receipts.offset, receipts.lease_number, delays_ms)
            )
        return summed(answers)

    def dead_letter(
        self, receipts: Receipts, counts: Int64Array, reason: str, settings: ReaderSettings
    ) -> ReceiptResult:
        """Move leased records to the dead letters."""
        assert settings.dead_letter is not None
        letters = self.dead_letters.dead_letter(settings.dead_letter, receipts, counts, reason)
        return ReceiptResult(done=letters, stale=len(counts) - letters)

    def release(self, receipts: Receipts) -> ReceiptResult:
        """Give these back, to go out again at once."""
        return self.subscription.release(receipts.delivery_offset, receipts.offset, receipts.lease_number)

    def undo(self, columns: Columns, lease_number: Int64Array) -> None:
        """Give back what a receive that failed had leased already; where that fails too, the lease ends by itself."""
        with contextlib.suppress(AfterlogError):
            self.subscription.release(columns.delivery_offset, columns.offset, lease_number)

    def _let_lapse(self, lease: Lease, settings: ReaderSettings) -> None:
        columns, numbers = lease.lapsed, lease.lapsed_number
        if not len(columns):
            return
        by_topic = self.subscription.partition.log.context.settings.on_expiry
        if by_topic == "dead_letter" and settings.dead_letter is not None:
            receipts = Receipts(columns.partition, columns.offset, columns.delivery_offset, numbers)
            self.dead_letter(receipts, failures(numbers), EXPIRED, settings)
        else:
            self.subscription.drop_lapsed(columns.delivery_offset, numbers)

    def _give_up(self, lease: Lease, settings: ReaderSettings) -> None:
        columns, counts = lease.exhausted, failures(lease.exhausted_number)
        receipts = Receipts(columns.partition, columns.offset, columns.delivery_offset, lease.exhausted_number)
        for count in np.unique(counts).tolist():
            rows = counts == count
            self.dead_letter(receipts.at(rows), counts[rows], LEASE_ENDED.format(count), settings)


def summed(answers: Sequence[ReceiptResult]) -> ReceiptResult:
    """Of all partitions."""
    return ReceiptResult(
        done=sum(answer.done for answer in answers),
        stale=sum(answer.stale for answer in answers),
        deadline_ms=min((answer.deadline_ms for answer in answers), default=0),
    )
