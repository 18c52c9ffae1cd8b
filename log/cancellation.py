"""Cancelled records of one partition: who decides, and what readers do not see.

    pending ──cancel──> cancelled                 a control batch in the log says so (`afterlog.records.control`)
       └───time───> due: too late to cancel

Decided under the append lock, by the stamp of the control batch: a target is cancelled iff it is due after that. No
fetch uses a reading above the stamp until the control batch is visible, and from then on the target is hidden. So a
record is either delivered or cancelled, and whoever has seen it due cannot be told that it was cancelled.

What is hidden, targets and control records, keeps its delivery offset: readers step over it, as over a control record
or a compacted offset in Kafka. The high watermark, positions and lag count it; `pending`, `next_due` and histograms do
not.

Invariants (`check`): hidden are the targets and the controls, and no offset is both; each has a key behind the log
start; what has landed was written by a control batch below the visible end.
"""

from __future__ import annotations

import enum
import threading

import numpy as np
import numpy.typing as npt

from afterlog.index.cancel_index import Cancelled
from afterlog.index.entries import Entries, Key
from afterlog.index.growing_columns import Int64Array
from afterlog.index.hidden_keys import NOTHING_HIDDEN, HiddenKeys
from afterlog.index.offset_set import OffsetSet

Int8Array = npt.NDArray[np.int8]


class CancelResult(enum.IntEnum):
    """What came of a cancel; the numbers that `cancel_many` answers with."""

    CANCELLED = 0
    """It will not be delivered: it was pending until now."""
    ALREADY_DELIVERED = 1
    """It is due, and so delivered, or about to be."""
    ALREADY_CANCELLED = 2
    """It was cancelled, or rescheduled, before."""
    UNKNOWN = 3
    """No such record: it was never appended, retention has removed it, or the offset is a control record's."""


class Cancellations:
    """One thread writes, under the append lock; one reader at a time asks what is hidden."""

    def __init__(self, cancelled: Cancelled, log_start: Key) -> None:
        """`cancelled`: all that the log says. What lies up to `log_start` in delivery order is out of reach."""
        self._lock = threading.Lock()
        self._hidden = NOTHING_HIDDEN
        self._landing: list[Cancelled] = []
        self._targets, self._controls = OffsetSet(), OffsetSet()
        self.wrote(cancelled)
        self._land(len(self._landing))
        self.forget(log_start, 0)

    def wrote(self, cancelled: Cancelled) -> None:
        """Control batches were written: called before they can become visible."""
        if len(cancelled):
            with self._lock:
                self._landing.append(cancelled)
                self._targets.add_many(cancelled.target)
                self._controls.add_many(cancelled.controls()[1])

    def hidden(self, end_offset: int) -> HiddenKeys:
        """What is hidden where `end_offset` is the visible end, which only grows."""
        first = next(iter(self._landing), None)
        if first is not None and int(first.control[-1]) < end_offset:
            with self._lock:
                self._land(sum(int(cancelled.control[-1]) < end_offset for cancelled in self._landing))
        return self._hidden

    def answers(self, found: Entries, offsets: Int64Array, log_start: Key, now_ms: int) -> Int8Array:
        """A CancelResult for each of the looked-up offsets, which differ: CANCELLED where only the stamp can tell."""
        answers = np.full(len(offsets), CancelResult.CANCELLED, np.int8)
        answers[found.deliver_after <= now_ms] = CancelResult.ALREADY_DELIVERED
        with self._lock:
            answers[self._targets.holds(offsets)] = CancelResult.ALREADY_CANCELLED
            answers[self._controls.holds(offsets)] = CancelResult.UNKNOWN
        earlier = found.deliver_after < log_start.deliver_after
        same = (found.deliver_after == log_start.deliver_after) & (found.offset <= log_start.offset)
        answers[(found.records == 0) | earlier | same] = CancelResult.UNKNOWN
        return answers

    def forget(self, log_start: Key, end_offset: int) -> None:
        """Retention put everything up to this key out of reach. `end_offset`: the visible end.

        What was cancelled may have become visible and no reader has asked since: it goes, too. Of what is not visible
        yet nothing lies before the log start: an append in flight keeps what it cancels from being due.
        """
        self.hidden(end_offset)
        with self._lock:
            if self._hidden.rank(log_start):
                before = self._hidden.offsets()
                self._hidden = self._hidden.behind(log_start)
                gone = np.setdiff1d(before, self._hidden.offsets(), assume_unique=True)
                self._targets.remove_many(gone)
                self._controls.remove_many(gone)

    def check(self, log_start: Key) -> None:
        """Prove the invariants."""
        with self._lock:
            self._hidden.check()
            assert not self._hidden.rank(log_start)
            landing = Cancelled.concatenate(self._landing)
            landing.check()
            hidden = np.concatenate([self._hidden.offsets(), landing.target, landing.controls()[1]])
            known = np.concatenate([self._targets.column(), self._controls.column()])
            assert np.array_equal(np.sort(hidden), np.sort(known))
            assert len(np.unique(known)) == len(known)

    def _land(self, count: int) -> None:
        landed = Cancelled.concatenate(self._landing[:count])
        if len(landed):
            due, control = landed.controls()
            self._hidden = self._hidden.including(
                np.concatenate([landed.deliver_after, due]), np.concatenate([landed.target, control])
            )
        del self._landing[:count]
