"""Control batches: what the log says to itself, inline, as Kafka's brokers do. Readers never see them.

A batch with attribute bit 5 (`afterlog.records.header`) and one record:

    key      version i16 = 0 | type i16                              big-endian, as in Kafka
    value    (target offset i64 | target deliver_after i64)*         effective ms; rows ascend by neither

    type     1000 CANCEL        the targets are not to be delivered
             1001 RESCHEDULE    the same of its one target; the record of the next offset, written with it, is instead
             1002 CANCEL_AWAITED    the targets are records of another log that were not replicated to this one yet;
                                it has no targets here, and its value is that of `afterlog.records.awaited`
             1010 … 1014 markers of replicated subscriptions (`afterlog.replication.markers`); no targets, either

Kafka counts its own types from 0; ours keep away from them. The batch is an entry like any other, with offsets of its
own. Its deliver_after is the largest of its targets': it sorts behind all of them, so retention, which takes a prefix
of delivery order, never takes it while one of them can still be read (docs/decisions/0017). One without targets is a
*note*: due when it is appended, and hidden by itself.

After a crash a RESCHEDULE without its follower can only be the last entry: recovery cuts it, too. Both are covered by
the checksums that every entry has.

Example: CANCEL of the record of offset 7, due at 1700000060000 ms; the record's key and value:

    00 00   03 E8
    00 00 00 00 00 00 00 07   00 00 01 8B CF E6 52 60
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from afterlog.base.errors import InvalidBatch, InvalidDeliverAfter
from afterlog.base.files import Bytes
from afterlog.index.cancel_index import Cancelled
from afterlog.records import kernels
from afterlog.records.columns import Int64Array, view_of
from afterlog.records.encode import Batches, EncodedBatches
from afterlog.records.header import CODEC_BITS, CONTROL, HEADER_BYTES, BatchHeader, with_crc
from afterlog.records.single import SingleRecord

KEY: Final = struct.Struct(
    ">"
    "h"  # version
    "h"  # type
)
VERSION: Final = 0
TARGET: Final = struct.Struct(
    ">"
    "q"  # offset
    "q"  # effective deliver_after, ms
)
TARGET_BYTES: Final = TARGET.size
OVERHEAD_BYTES: Final = HEADER_BYTES + 32
"""What a control batch takes at most besides its targets: the header, the record's lengths and deltas, the key."""


class ControlType(enum.IntEnum):
    """What a control batch says; the numbers on disk."""

    CANCEL = 1000
    RESCHEDULE = 1001
    CANCEL_AWAITED = 1002
    SNAPSHOT_REQUEST = 1010
    SNAPSHOT_RESPONSE = 1011
    SNAPSHOT = 1012
    SUBSCRIPTION_UPDATE = 1013
    ACKED = 1014


TARGETED: Final = (ControlType.CANCEL, ControlType.RESCHEDULE)
"""The others are notes."""
OWN: Final = (ControlType.CANCEL_AWAITED, ControlType.SNAPSHOT)
"""What a log says to itself alone: other clusters do not get it."""


@dataclass(frozen=True, slots=True, eq=False)
class Control:
    """A control batch before it is written. Targets: int64 columns of one length.

    follower: the one batch that a RESCHEDULE brings with it, or the record of one. note: the value of one that has no
    targets.
    """

    type: ControlType
    target: Int64Array
    deliver_after: Int64Array
    follower: Batches | SingleRecord | None = None
    note: bytes = b""

    @staticmethod
    def of_note(type: ControlType, value: bytes) -> Control:
        return Control(type, _NO_ROWS, _NO_ROWS, note=value)

    @property
    def records(self) -> int:
        """How many offsets it takes, those of its follower with it."""
        if isinstance(self.follower, SingleRecord):
            return 2
        return 1 + (0 if self.follower is None else int(self.follower.records.sum()))

    @property
    def size_max(self) -> int:
        """Bytes that it takes at most, its follower with it."""
        if isinstance(self.follower, SingleRecord):
            followed = self.follower.batch_bytes_max
        else:
            followed = 0 if self.follower is None else int(self.follower.positions[-1] - self.follower.positions[0])
        return OVERHEAD_BYTES + TARGET_BYTES * len(self.target) + len(self.note) + followed

    def later_than(self, stamp_ms: int) -> Control:
        """The same with only the targets that are due after `stamp_ms`. A note is due then."""
        if self.type not in TARGETED:
            return replace(self, deliver_after=np.array([stamp_ms]))
        if len(self.target) == 1 and self.deliver_after[0] > stamp_ms:
            return self
        later = self.deliver_after > stamp_ms
        return Control(self.type, self.target[later], self.deliver_after[later], self.follower)

    def batches(self, stamp_ms: int) -> Batches:
        """What is to be written, at `stamp_ms`: the control batch, and its follower behind it."""
        batch = self._encoded(stamp_ms)
        positions, records = np.array([0, len(batch)]), np.ones(1, np.int64)
        due, timestamp = self.deliver_after.max(keepdims=True), np.array([stamp_ms])
        control = EncodedBatches(positions, records, due, timestamp, batch)
        assert not isinstance(self.follower, SingleRecord), "it is written as an entry, or given as a batch"
        return control if self.follower is None else EncodedBatches.joined([control, self.follower])

    @property
    def is_one(self) -> bool:
        """Whether it has one target, and brings nothing with it, or one record."""
        is_plain = self.follower is None or isinstance(self.follower, SingleRecord)
        return self.type in TARGETED and len(self.target) == 1 and is_plain

    def entry_of_one(self, offset: int, stamp_ms: int) -> bytes:
        """As an entry of a delayed topic; byte for byte that of `batches`, of one that `is_one`."""
        target, due_ms = int(self.target[0]), int(self.deliver_after[0])
        key, value = KEY.pack(VERSION, self.type), TARGET.pack(target, due_ms)
        return kernels.encode_single(value, key, b"", stamp_ms, due_ms, offset, stamp_ms, None, CONTROL)

    def rows(self, offset: int) -> Cancelled:
        """What the cancel index keeps of it once it is written at `offset`."""
        if self.type not in TARGETED:
            return Cancelled(np.array([offset]), np.array([offset]), self.deliver_after)
        return Cancelled(np.full(len(self.target), offset), self.target, self.deliver_after)

    @property
    def is_void(self) -> bool:
        """Whether there is nothing to write: all of its targets were due."""
        return not len(self.deliver_after)

    def _encoded(self, stamp_ms: int) -> Bytes:
        value = np.frombuffer(self.note, np.uint8)
        if self.type in TARGETED:
            value = np.stack([self.target, self.deliver_after], axis=1).astype(">i8").view(np.uint8).ravel()
        key = np.frombuffer(KEY.pack(VERSION, self.type), np.uint8)
        batch, _ = kernels.encode_batches(
            (np.array([0, len(value)]), value), None, (np.array([0, len(key)]), key), None, None,
            np.array([stamp_ms]), None, np.array([0, 1]),
        )  # fmt: skip
        view = view_of(batch)
        header = BatchHeader.read(view, 0)._replace(attributes=CONTROL)
        return np.frombuffer(with_crc(header, view[HEADER_BYTES:].tobytes()), np.uint8)


class Note(NamedTuple):
    """A control batch without targets."""

    offset: int
    type: ControlType
    value: bytes


class Controls(NamedTuple):
    """The control batches of a stretch of log: int64 columns of one length, their targets, and what notes say."""

    row: Int64Array
    """Which entries of the scan they are."""
    type: Int64Array
    cancelled: Cancelled
    """A note is its own target."""
    notes: tuple[Note, ...] = ()

    @staticmethod
    def empty() -> Controls:
        return _NO_CONTROLS

    def unfollowed(self, scan: kernels.Scan) -> bool:
        """Whether the last entry of the scan is a RESCHEDULE."""
        last = len(scan.position) - 1
        return bool(len(self.row)) and int(self.row[-1]) == last and int(self.type[-1]) == ControlType.RESCHEDULE


def read_controls(data: Bytes, scan: kernels.Scan) -> Controls:
    """The control batches among the entries that a scan of `data` found. InvalidBatch where one is none of ours."""
    row = np.flatnonzero(scan.attributes & CONTROL)
    if not len(row):
        return Controls.empty()
    if bool((scan.attributes[row] & CODEC_BITS).any()) or bool((scan.records[row] != 1).any()):
        raise InvalidBatch(f"the control batch at offset {int(scan.offset[row[0]])} or behind it is not one of ours")
    size = scan.size[row] - (scan.batch_position[row] - scan.position[row])
    which = np.zeros(len(row), np.int32)
    try:
        decoded = kernels.decode_records([data], which, scan.batch_position[row], size, scan.records[row])
    except InvalidDeliverAfter as error:
        raise InvalidBatch(f"the control batch at offset {int(scan.offset[row[0]])} or behind it: {error}") from error
    keys, (place, values) = _equal_items(decoded.key, KEY.size), decoded.value
    lengths = np.diff(place)
    if keys is None or bool((keys[:, 0] != VERSION).any()):
        raise InvalidBatch("a control batch of a version that is not known here")
    if not bool(np.isin(keys[:, 1], list(ControlType)).all()) or not bool(lengths.all()):
        raise InvalidBatch("a control batch of a type that is not known here")
    targeted = np.isin(keys[:, 1], TARGETED)
    if bool((lengths[targeted] % TARGET_BYTES != 0).any()):
        raise InvalidBatch("a control batch whose targets are cut off")
    if bool(targeted.all()):
        targets = values[int(place[0]) : int(place[-1])].view(">i8").reshape(-1, 2).astype(np.int64)
        cancelled = Cancelled(
            np.repeat(scan.offset[row], lengths // TARGET_BYTES), targets[:, 0].copy(), targets[:, 1].copy()
        )
        notes: tuple[Note, ...] = ()
    else:
        cancelled, notes = _with_notes(scan.offset[row], scan.deliver_after[row], keys[:, 1], place, values)
    try:
        cancelled.check()
        if len(cancelled.of_records()) + len(notes) != len(cancelled):
            raise ValueError("a target is its control")
    except ValueError as error:
        raise InvalidBatch(f"a control batch contradicts itself: {error}") from error
    return Controls(row, keys[:, 1], cancelled, notes)


def _with_notes(
    offset: Int64Array, due: Int64Array, types: Int64Array, place: Int64Array, values: Bytes
) -> tuple[Cancelled, tuple[Note, ...]]:
    """What control batches say of which some are notes: few, so one after the other."""
    parts, notes = list[Cancelled](), list[Note]()
    for row, (one, kind) in enumerate(zip(offset.tolist(), types.tolist(), strict=True)):
        value = values[int(place[row]) : int(place[row + 1])]
        if kind in TARGETED:
            targets = value.copy().view(">i8").reshape(-1, 2).astype(np.int64)
            parts.append(Cancelled(np.full(len(targets), one), targets[:, 0].copy(), targets[:, 1].copy()))
        else:
            notes.append(Note(one, ControlType(kind), value.tobytes()))
            parts.append(Cancelled(np.array([one]), np.array([one]), due[row : row + 1].copy()))
    return Cancelled.concatenate(parts), (*notes,)


def _equal_items(column: kernels.Ragged, size: int) -> Int64Array | None:
    """Items of `size` bytes each as rows of big-endian int16; None where one has another size."""
    offsets, data = column
    if bool((np.diff(offsets) != size).any()):
        return None
    flat = data[int(offsets[0]) : int(offsets[-1])]
    return flat.view(">i2").reshape(-1, size // 2).astype(np.int64)


_NO_ROWS = np.empty(0, np.int64)
_NO_CONTROLS = Controls(_NO_ROWS, _NO_ROWS, Cancelled.empty())
