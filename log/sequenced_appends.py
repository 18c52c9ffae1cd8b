"""Appends numbered by their producers: judged and appended under one append lock, so each is in the log once.

    (producer id, epoch, sequence) ──judge──> there already: its offsets     nothing is written
                                          ├─> part of it:    the rest ──────┐
                                          ├─> the next:      all of it ─────┴──> appended: one write for all of a call
                                          └─> neither:       its error       nothing is written

What `index/producer_states.py` says of each is final when it is said: who holds the lock appends next. Of several
appends in one call each is judged after those before it, so one that comes twice in the call is appended once; what is
refused fails by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from afterlog.base.errors import AfterlogError, OutOfOrderSequence, ProducerFenced, StorageFull
from afterlog.index.producer_states import Piece, ProducerStates
from afterlog.log.append import Appender
from afterlog.log.version import VersionSet
from afterlog.records.columns import Int64Array
from afterlog.records.encode import Batches, EncodedBatches
from afterlog.records.producer_sequence import ProducerSequence
from afterlog.records.single import SingleRecord


class NumberedAppend(NamedTuple):
    """One append: some batches of several, and what it is without its first records."""

    batches: Batches
    first: int
    last: int
    """The batches from this one to that one."""
    records: int
    """In these."""
    sequence: ProducerSequence | None
    """Of the first record; None: nobody numbers it, and it is appended."""
    rest: Callable[[int], Sequence[Batches]]
    """Of it without so many records."""


class Placed(NamedTuple):
    """Where the records of an append are, in their order; one piece, as a rule."""

    pieces: tuple[Piece, ...]

    @property
    def end_offset(self) -> int:
        """After the last of them."""
        return max((piece.offset + piece.records for piece in self.pieces), default=0)

    def offsets(self) -> Int64Array:
        """int64[n], in the order of the records."""
        parts = [np.arange(piece.offset, piece.offset + piece.records) for piece in self.pieces]
        return parts[0] if len(parts) == 1 else np.concatenate([_NO_OFFSETS, *parts])


PlacedOrError = Placed | AfterlogError
_NO_OFFSETS = np.empty(0, np.int64)


class SequencedAppends:
    """Of one log, which calls all of it within its append lock, with nothing interrupted before."""

    def __init__(self, versions: VersionSet, appender: Appender) -> None:
        self._versions = versions
        self._appender = appender

    def append_one(self, record: SingleRecord, sent: ProducerSequence) -> int:
        """Append a record for which `takes_one` is true, where it is not there; its offset.

        Raises ProducerFenced, OutOfOrderSequence.
        """
        held = self._states().judge(sent.producer_id, sent.epoch, sent.sequence, 1)
        return held[0].offset if held else self._appender.append_one(record, sent)

    def append(self, append: NumberedAppend) -> Placed:
        """What of it is not there. Raises ProducerFenced, OutOfOrderSequence, and as `Appender.append`."""
        [answer] = self.append_together([append])
        if isinstance(answer, AfterlogError):
            raise answer
        return answer

    def append_together(self, appends: Sequence[NumberedAppend]) -> list[PlacedOrError]:
        """The same of several, in this order and in one write; what came of each. Raises but for what is one's own."""
        trial, end = self._states().beside(), self._versions.current.written.offset
        answers, fresh = list[PlacedOrError](), list[_Stretch]()
        for append in appends:
            try:
                held = self._held(trial, append)
            except (ProducerFenced, OutOfOrderSequence) as error:
                answers.append(error)
                continue
            skipped = sum(piece.records for piece in held)
            left = append.records - skipped
            if left:
                if skipped:
                    fresh += [_Stretch(batches, 0, len(batches)) for batches in append.rest(skipped)]
                elif fresh and fresh[-1].batches is append.batches and fresh[-1].last == append.first:
                    fresh[-1] = fresh[-1]._replace(last=append.last)
                else:
                    fresh.append(_Stretch(append.batches, append.first, append.last))
                if append.sequence is not None:
                    sent = append.sequence.after(skipped) if skipped else append.sequence
                    trial.appended(sent.producer_id, sent.epoch, sent.sequence, left, end, 0)
                held = (*held, Piece(end, left))
                end += left
            answers.append(Placed(held))
        if not fresh:
            return answers
        try:
            self._appender.append(_as_one(fresh))
        except StorageFull as error:  # what came before, in segments that are full, is there
            written = self._versions.current.written.offset
            return [_as_far_as(answer, written, error) for answer in answers]
        return answers

    def append_foreign(self, batches: Batches) -> int:
        """Append a producer's own batches but for those at the front that are there; the offset of the first record.

        Raises ProducerFenced, OutOfOrderSequence, and as `Appender.append`.
        """
        sent = batches.producers
        assert sent is not None, "else they are appended as any"
        trial, end, first, skipped = self._states().beside(), self._versions.current.written.offset, -1, 0
        for row, records in enumerate(batches.records.tolist()):
            producer_id, epoch, sequence = sent.of(row)
            held = trial.judge(producer_id, epoch, sequence, records) if producer_id >= 0 else ()
            if held and (skipped < row or sum(piece.records for piece in held) < records):
                raise OutOfOrderSequence(
                    f"batch {row} of the call, or a part of it, is there already, and what comes before it is not",
                    expected=trial.next_sequence(producer_id, epoch),
                )
            if row == 0:
                first = held[0].offset if held else end
            if held:
                skipped += 1
            else:
                if producer_id >= 0:
                    trial.appended(producer_id, epoch, sequence, records, end, 0)
                end += records
        if skipped < len(batches):
            self._appender.append(EncodedBatches.of(batches, skipped, len(batches)) if skipped else batches)
        return self._versions.current.written.offset if first < 0 else first

    def held(self, sent: ProducerSequence, records: int) -> Placed:
        """What is there of an append. Raises ProducerFenced, OutOfOrderSequence."""
        return Placed(self._states().judge(sent.producer_id, sent.epoch, sent.sequence, records))

    def next_sequence(self, producer_id: int, epoch: int) -> int:
        """What the producer appends next. Raises ProducerFenced."""
        return self._states().next_sequence(producer_id, epoch)

    def _held(self, trial: ProducerStates, append: NumberedAppend) -> tuple[Piece, ...]:
        sent = append.sequence
        return () if sent is None else trial.judge(sent.producer_id, sent.epoch, sent.sequence, append.records)

    def _states(self) -> ProducerStates:
        """Made with the first use: there is nothing to be remembered of before."""
        version = self._versions.current
        states = version.producers
        if states is None:
            states = ProducerStates()
            self._versions.swap(version, producers=states)
        return states


class _Stretch(NamedTuple):
    """Batches that are to be appended: from one to another of several."""

    batches: Batches
    first: int
    last: int


def _as_one(stretches: Sequence[_Stretch]) -> Batches:
    parts = [
        batches if last - first == len(batches) else EncodedBatches.of(batches, first, last)
        for batches, first, last in stretches
    ]
    return parts[0] if len(parts) == 1 else EncodedBatches.joined(parts)


def _as_far_as(answer: PlacedOrError, written: int, error: StorageFull) -> PlacedOrError:
    """What came of an append where the disk ran full behind an offset. Sent again, what is there of it is known."""
    return error if isinstance(answer, Placed) and answer.end_offset > written else answer
