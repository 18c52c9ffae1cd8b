"""The cancel index of a segment: which records its control batches have cancelled. Like Kafka's transaction index.

    +--------------------+-------------------+----------------------+
    | control offset i64 | target offset i64 | target deliver_after |   24 bytes a row, big-endian, rows in the order of
    +--------------------+-------------------+----------------------+   the log; deliver_after is the effective one, i64

Example: the control batch at offset 41 cancelled the record of offset 7, due at 1700000060000 ms:

    00 00 00 00 00 00 00 29   00 00 00 00 00 00 00 07   00 00 01 8B CF E6 52 60

A control batch is due with the last of its targets, so a row is all that must be known of either. A segment without
control batches has no file. After a crash the file may be longer than the checkpoints say, by any bytes; the checksum,
over all rows, is in the checkpoints. Where it does not match the rows are read from the log again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from afterlog.index.growing_columns import Int64Array

_ROW_BYTES = 24


class Cancelled(NamedTuple):
    """Rows of cancel indexes: int64 columns of one length. Every target lies before its control in offset order.

    A control batch that has none, a note, is its own: the row hides it.
    """

    control: Int64Array
    target: Int64Array
    deliver_after: Int64Array

    @staticmethod
    def empty() -> Cancelled:
        return _EMPTY

    @staticmethod
    def concatenate(parts: list[Cancelled]) -> Cancelled:
        parts = [part for part in parts if len(part)]
        if len(parts) < 2:
            return parts[0] if parts else _EMPTY
        return Cancelled(
            np.concatenate([part.control for part in parts]),
            np.concatenate([part.target for part in parts]),
            np.concatenate([part.deliver_after for part in parts]),
        )

    @staticmethod
    def from_bytes(data: bytes) -> Cancelled:
        """What `to_bytes` gave. ValueError with the reason where it cannot be that."""
        if len(data) % _ROW_BYTES:
            raise ValueError(f"{len(data)} bytes are no whole number of {_ROW_BYTES}-byte rows")
        rows = np.frombuffer(data, ">i8").reshape(-1, 3).T.astype(np.int64, order="C")
        cancelled = Cancelled(rows[0], rows[1], rows[2])
        cancelled.check()
        return cancelled

    def to_bytes(self) -> bytes:
        return np.stack([self.control, self.target, self.deliver_after], axis=1).astype(">i8").tobytes()

    def __len__(self) -> int:
        return len(self.control)

    def before(self, end_offset: int) -> Cancelled:
        """The rows of control batches below an offset."""
        rows = int(self.control.searchsorted(end_offset))
        return Cancelled(self.control[:rows], self.target[:rows], self.deliver_after[:rows])

    def since(self, offset: int) -> Cancelled:
        """The others: of control batches from an offset on."""
        first = int(self.control.searchsorted(offset))
        return Cancelled(*(column[first:].copy() for column in self)) if first else self

    def controls(self) -> tuple[Int64Array, Int64Array]:
        """The control batches, in offset order: (effective deliver_after, offset)."""
        if len(self) < 2:
            return self.deliver_after, self.control
        first = np.flatnonzero(np.append(True, self.control[1:] != self.control[:-1]))
        return np.maximum.reduceat(self.deliver_after, first), self.control[first]

    def of_records(self) -> Cancelled:
        """Those whose targets are records."""
        if len(self) == 1:
            return self if self.target[0] != self.control[0] else _EMPTY
        notes = self.target == self.control
        return Cancelled(*(column[~notes] for column in self)) if bool(notes.any()) else self

    def check(self) -> None:
        """ValueError where an invariant does not hold."""
        if bool((self.control[1:] < self.control[:-1]).any()):
            raise ValueError("controls are not in offset order")
        if bool((self.target > self.control).any()) or int(self.target.min(initial=0)) < 0:
            raise ValueError("a target lies behind its control")
        if int(self.deliver_after.min(initial=0)) < 0:
            raise ValueError("a deliver_after is negative")


_NONE = np.empty(0, np.int64)
_NONE.flags.writeable = False
_EMPTY = Cancelled(_NONE, _NONE, _NONE)
