"""Who sent a batch, and as which in order: the three fields of its header by which a retry is known (KIP-98).

    43 producer_id i64    51 producer_epoch i16    53 base_sequence i32        of the header, `afterlog.records.header`

A producer numbers the records that it appends to one partition, from 0 on; a batch says the number of its first one.
Behind 2^31-1 comes 0 again, as in Kafka. All three are -1 where nobody says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from afterlog.base.arguments import whole
from afterlog.base.errors import InvalidArgument, WrongType
from afterlog.base.files import Bytes
from afterlog.index.growing_columns import Int64Array
from afterlog.index.producer_states import SEQUENCES
from afterlog.records.columns import INT64_MAX, Producers, Scan

EPOCH_MAX: Final = (1 << 15) - 1
FIELDS_AT: Final = 43
FIELDS: Final = np.dtype(list(zip(Producers._fields, (">i8", ">i2", ">i4"), strict=True)))

assert FIELDS.itemsize == 14


@dataclass(frozen=True, slots=True)
class ProducerSequence:
    """Which of a producer's records an append begins with: the same again is appended once (docs/guarantees.md, D11).

    producer_id: 0 to 2^63-1, of this producer and no other; epoch: 0 to 32767, a larger one fences those before;
    sequence: 0 to 2^31-1, of the first record, counted from 0 in each partition and epoch. Raises InvalidArgument.
    """

    producer_id: int
    epoch: int
    sequence: int

    def __post_init__(self) -> None:
        producer_id, epoch, sequence = self.producer_id, self.epoch, self.sequence
        if type(producer_id) is type(epoch) is type(sequence) is int and (
            0 <= producer_id <= INT64_MAX and 0 <= epoch <= EPOCH_MAX and 0 <= sequence < SEQUENCES
        ):
            return
        for name, most in (("producer_id", None), ("epoch", EPOCH_MAX), ("sequence", SEQUENCES - 1)):
            given = getattr(self, name)
            number = whole(name, given)
            if most is not None and number > most:
                raise InvalidArgument(f"{name} must be an integer of at most {most}, not {number}")
            if type(given) is not int:
                object.__setattr__(self, name, number)

    def after(self, records: int) -> ProducerSequence:
        """Where so many records end."""
        return ProducerSequence(self.producer_id, self.epoch, (self.sequence + records) % SEQUENCES)

    def of_batches(self, starts: Int64Array) -> Producers:
        """For the headers of batches; `starts` counts the records before each."""
        count = len(starts)
        return Producers(
            np.full(count, self.producer_id), np.full(count, self.epoch), (self.sequence + starts) % SEQUENCES
        )


def checked_sequence(sequence: Any) -> ProducerSequence:
    """What a call was handed. Raises WrongType."""
    if not isinstance(sequence, ProducerSequence):
        raise WrongType(f"sequence must be an afterlog.ProducerSequence, not {sequence!r:.100}")
    return sequence


class ProducerRows(NamedTuple):
    """What producers have appended: int64 columns of one length, in offset order."""

    producer_id: Int64Array
    epoch: Int64Array
    base_sequence: Int64Array
    records: Int64Array
    offset: Int64Array
    stamp_ms: Int64Array
    """When; -1 where the log does not say."""

    @staticmethod
    def empty() -> ProducerRows:
        return _NONE

    @staticmethod
    def concatenate(parts: list[ProducerRows]) -> ProducerRows:
        return ProducerRows(*map(np.concatenate, zip(*parts, strict=True))) if parts else _NONE

    def __bool__(self) -> bool:
        return len(self.offset) > 0

    def where(self, rows: Any) -> ProducerRows:
        """Those that a mask or an index chooses."""
        return ProducerRows(*(column[rows] for column in self))

    def runs(self) -> ProducerRows:
        """The same, with neighbours as one that follow each other in offsets and sequence."""
        if len(self.offset) < 2:
            return self
        behind = self.offset[:-1] + self.records[:-1]
        upcoming = (self.base_sequence[:-1] + self.records[:-1]) % SEQUENCES
        new = (
            (self.producer_id[1:] != self.producer_id[:-1])
            | (self.epoch[1:] != self.epoch[:-1])
            | (self.offset[1:] != behind)
            | (self.base_sequence[1:] != upcoming)
        )
        first = np.append(0, np.flatnonzero(new) + 1)
        return self.where(first)._replace(
            records=np.add.reduceat(self.records, first), stamp_ms=np.maximum.reduceat(self.stamp_ms, first)
        )


_NO_ROWS = np.empty(0, np.int64)
_NONE = ProducerRows(*(_NO_ROWS,) * 6)


def producers_of(data: Bytes, positions: Int64Array) -> Producers | None:
    """What the headers at these positions say; None where none names a producer."""
    if not bool((data[positions + FIELDS_AT] < 0x80).any()):  # a negative id has its first bit set
        return None
    return _producers(data, positions)


def producers_in(data: Bytes, scan: Scan) -> ProducerRows:
    """The same of the entries that a scan of `data` found: a row for each that names a producer."""
    row = np.flatnonzero(data[scan.batch_position + FIELDS_AT] < 0x80)
    if not len(row):
        return _NONE
    sent = _producers(data, scan.batch_position[row])
    rows = ProducerRows(*sent, scan.records[row], scan.offset[row], scan.broker_timestamp[row])
    said = (rows.epoch >= 0) & (rows.base_sequence >= 0)
    return rows if bool(said.all()) else rows.where(said)


def _producers(data: Bytes, positions: Int64Array) -> Producers:
    fields = data[positions[:, None] + np.arange(FIELDS_AT, FIELDS_AT + FIELDS.itemsize)].view(FIELDS)[:, 0]
    return Producers(*(fields[name].astype(np.int64) for name in Producers._fields))
