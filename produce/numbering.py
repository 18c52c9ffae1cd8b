"""How an idempotent producer numbers its appends, one at a time in each partition, and what it knows when one fails.

    next ──> appended ──> the next is known
         └─> failed   ──> found: what of it is there, by the log ──> the next is known
                      └─> that fails, too ──> the log is asked before the next append

What is next is known or asked for, and never assumed: two records must never get one number. Of a log that is asked
over a network an append whose answer was lost may still come: what is next then has a higher epoch, which fences it.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from afterlog.base.arguments import flag
from afterlog.base.environment import random_bits
from afterlog.base.errors import AfterlogError, AnswerLost, InvalidArgument, OutOfOrderSequence
from afterlog.records.columns import Int64Array
from afterlog.records.encode import RecordColumns
from afterlog.records.producer_sequence import EPOCH_MAX, ProducerSequence


class NumberedTarget(Protocol):
    """Where it appends: one topic."""

    def append(
        self, number: int, columns: RecordColumns, *, sequence: ProducerSequence | None = None
    ) -> Int64Array: ...

    def next_sequence(self, number: int, producer_id: int, epoch: int) -> int: ...

    def held_of(self, number: int, sequence: ProducerSequence, records: int) -> Int64Array: ...


class Numbering:
    """Of one producer. Not thread-safe: the producer calls it for one append after the other."""

    def __init__(self, target: NumberedTarget, first: ProducerSequence, *, remote: bool = False) -> None:
        """first: the producer id, and the epoch under which it begins. remote: appends may come late, see above."""
        self._target = target
        self._first = first
        self._remote = remote
        self._epochs = dict[int, int]()
        """Of the partitions in which it had to begin anew."""
        self._upcoming = dict[int, ProducerSequence]()
        """What comes next in a partition, where that is known. Not while an append is under way."""

    def next(self, number: int) -> ProducerSequence:
        """What the next append to a partition begins with. Raises ProducerFenced, and as `PartitionLog.append`."""
        known = self._upcoming.pop(number, None)
        if known is not None:
            return known
        producer_id, epoch = self._first.producer_id, self._epochs.get(number, self._first.epoch)
        return ProducerSequence(producer_id, epoch, self._target.next_sequence(number, producer_id, epoch))

    def append(self, number: int, columns: RecordColumns, sent: ProducerSequence) -> Int64Array:
        """Append records that begin with what `next` gave; their offsets."""
        offsets = self._target.append(number, columns, sequence=sent)
        self._upcoming[number] = sent.after(len(columns))
        return offsets

    def begin_anew(self, number: int, sent: ProducerSequence, refused: OutOfOrderSequence) -> ProducerSequence:
        """What to send instead: the log has forgotten a producer that was idle for long. `refused` itself otherwise.

        Nothing is in doubt then: what was sent before was resolved, and this was refused.
        """
        if refused.expected is not None or sent.epoch == EPOCH_MAX:
            raise refused
        self._epochs[number] = sent.epoch + 1
        return ProducerSequence(sent.producer_id, sent.epoch + 1, 0)

    def found(self, number: int, sent: ProducerSequence, records: int, failed: BaseException) -> Int64Array:
        """The offsets of what is there of an append that failed; none, where nobody can tell."""
        refused = isinstance(failed, AfterlogError) and not isinstance(failed, AnswerLost)
        late = self._remote and not refused
        if late:
            self._epochs[number] = sent.epoch + 1
        try:
            offsets = self._target.held_of(number, sent, records)
        except AfterlogError:
            return np.empty(0, np.int64)
        if not late:
            self._upcoming[number] = sent.after(len(offsets))
        return offsets


def numbering_of(
    target: NumberedTarget, idempotent: bool, producer_id: int | None, epoch: int | None, *, remote: bool = False
) -> Numbering | None:
    """That of a producer that is asked for so; None: it numbers nothing. Raises InvalidArgument, WrongType."""
    if flag("idempotent", idempotent):
        chosen = random_bits(63) if producer_id is None else producer_id
        return Numbering(target, ProducerSequence(chosen, 0 if epoch is None else epoch, 0), remote=remote)
    if producer_id is not None or epoch is not None:
        raise InvalidArgument("producer_id and epoch are an idempotent producer's: give idempotent=True")
    return None
