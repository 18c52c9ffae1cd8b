"""Cancelled records of one partition: who decides, and what readers do not see.

    pending ──cancel──> cancelled                 a control batch in the log says so (`afterlog.records.control`)
       └───time───> due: too late to cancel

Decided under the append lock, by the stamp of the control batch: a target is cancelled iff it is due after that. No
fetch uses a reading above the stamp until the control batch is visible, and from then on the target is hidden. So a
record is either delivered or cancelled, and whoever has seen it due cannot be told that it was cancelled.

What is hidden, targets and control records, keeps its delivery offset: readers step over it, as over a control record
or a compacted offset in Kafka. The high watermark, positions and lag count it; `pending`, `next_due` and histograms do
not. Hidden in the same way are the ranges that all readers have acked (`index/acked_ranges.py`): what lies in one is
out of reach, cancelled or not.

All of it is a value, a part of the version: a control batch is written, and another value takes the place of this one.

Invariants (`check`): hidden are the targets and controls that have landed, and the ranges; no offset is both; each has
a key behind the log start, and in no range; what has landed was written by a control batch below the visible end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from afterlog.index.acked_ranges import NOTHING_ACKED, AckedRanges
from afterlog.index.cancel_index import Cancelled
from afterlog.index.entries import Entries, Key
from afterlog.index.growing_columns import Int64Array
from afterlog.index.hidden_keys import NOTHING_HIDDEN, HiddenKeys
from afterlog.log.cancel_result import CancelResult

Int8Array = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cancellations:
    """What the control batches in a log say, as far as it lies after the log start."""

    targets: HiddenKeys = NOTHING_HIDDEN
    """The records that are cancelled, visible yet or not; and the same of control records."""
    controls: HiddenKeys = NOTHING_HIDDEN
    hidden: HiddenKeys = NOTHING_HIDDEN
    """Of both, what readers do not see."""
    landing: tuple[Cancelled, ...] = ()
    """What was written and is not visible yet."""

    @staticmethod
    def of(cancelled: Cancelled, log_start: Key, acked: AckedRanges = NOTHING_ACKED) -> Cancellations:
        """`cancelled`: all that the log says, and all of it is visible. Up to `log_start`, and in ranges that all
        readers have acked, it is out of reach.
        """
        if not len(cancelled):
            return NOTHING_CANCELLED.with_acked(acked)
        found = NOTHING_CANCELLED.wrote(cancelled).landed(int(cancelled.control[-1]) + 1)
        return found.behind(log_start).with_acked(acked)

    def wrote(self, cancelled: Cancelled) -> Cancellations:
        """And what control batches say that were just written."""
        records = cancelled.of_records()
        return Cancellations(
            targets=self.targets.including(records.deliver_after, records.target),
            controls=self.controls.including(*cancelled.controls()),
            hidden=self.hidden,
            landing=(*self.landing, cancelled),
        )

    def landed(self, end_offset: int) -> Cancellations:
        """The same where `end_offset` is the visible end."""
        count = sum(int(cancelled.control[-1]) < end_offset for cancelled in self.landing)
        if not count:
            return self
        landed = Cancelled.concatenate([*self.landing[:count]])
        (due, control), records = landed.controls(), landed.of_records()
        hidden = self.hidden.including(
            np.concatenate([records.deliver_after, due]), np.concatenate([records.target, control])
        )
        return Cancellations(targets=self.targets, controls=self.controls, hidden=hidden, landing=self.landing[count:])

    def behind(self, log_start: Key) -> Cancellations:
        """The same where retention put everything up to this key out of reach.

        Of what is not visible yet nothing lies there: an append in flight keeps what it cancels from being due.
        """
        if not self.hidden.rank(log_start):
            return self
        return replace(
            self,
            targets=self.targets.behind(log_start),
            controls=self.controls.behind(log_start),
            hidden=self.hidden.behind(log_start),
        )

    def with_acked(self, acked: AckedRanges) -> Cancellations:
        """The same where these ranges are what all readers have acked. What is not visible yet lies in none."""
        if acked is self.hidden.acked:
            return self
        targets, controls, hidden = self.targets, self.controls, self.hidden
        if not acked.spans_like(hidden.acked):  # else they lie outside already, and there may be millions
            targets, controls, hidden = (keys.outside(acked) for keys in (targets, controls, hidden))
        return replace(self, targets=targets, controls=controls, hidden=hidden.with_acked(acked))

    def answers(self, found: Entries, offsets: Int64Array, log_start: Key, now_ms: int) -> Int8Array:
        """A CancelResult for each of the looked-up offsets, which differ: CANCELLED where only the stamp can tell."""
        if len(offsets) == 1:
            return np.array([self._answer(found, offsets, log_start, now_ms)], np.int8)
        answers = np.full(len(offsets), CancelResult.CANCELLED, np.int8)
        answers[found.deliver_after <= now_ms] = CancelResult.ALREADY_DELIVERED
        answers[self.targets.holds(found.deliver_after, offsets)] = CancelResult.ALREADY_CANCELLED
        answers[self.controls.holds(found.deliver_after, offsets)] = CancelResult.UNKNOWN
        earlier = found.deliver_after < log_start.deliver_after
        same = (found.deliver_after == log_start.deliver_after) & (found.offset <= log_start.offset)
        is_gone = earlier | same | self.hidden.acked.holds(found.deliver_after, offsets)
        answers[(found.records == 0) | is_gone] = CancelResult.UNKNOWN
        return answers

    def _answer(self, found: Entries, offsets: Int64Array, log_start: Key, now_ms: int) -> CancelResult:
        """The same of one."""
        due_ms = int(found.deliver_after[0])
        if not found.records[0] or (due_ms, int(found.offset[0])) <= log_start:
            return CancelResult.UNKNOWN
        acked = self.hidden.acked
        if bool(self.controls.holds(found.deliver_after, offsets)[0]):
            return CancelResult.UNKNOWN
        if acked.rows and bool(acked.holds(found.deliver_after, offsets)[0]):
            return CancelResult.UNKNOWN
        if bool(self.targets.holds(found.deliver_after, offsets)[0]):
            return CancelResult.ALREADY_CANCELLED
        return CancelResult.ALREADY_DELIVERED if due_ms <= now_ms else CancelResult.CANCELLED

    def check(self, log_start: Key) -> None:
        """Prove the invariants."""
        for keys in (self.targets, self.controls, self.hidden):
            keys.check()
            assert not keys.rank(log_start)
        landing = Cancelled.concatenate([*self.landing])
        landing.check()
        hidden = np.concatenate([self.hidden.offsets(), landing.of_records().target, landing.controls()[1]])
        known = np.concatenate([self.targets.offsets(), self.controls.offsets()])
        assert np.array_equal(np.sort(hidden), np.sort(known))
        assert len(np.unique(known)) == len(known)


NOTHING_CANCELLED = Cancellations()
