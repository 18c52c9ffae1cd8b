"""The last appends of each producer to one partition, by which a repeated append is known (promise D11).

    (producer id, epoch, sequence, records) ──judge──> there already: at these offsets │ to be appended │ refused
                                            ──appended──> the state of that producer

    known, same epoch     the next sequence           to be appended
                          in what is remembered       there; of what goes on behind it the rest is to be appended
                          anything else               OutOfOrderSequence
    known, lower epoch                                ProducerFenced
    known, higher epoch   sequence 0                  to be appended; what was of the epoch before is forgotten
                          anything else               OutOfOrderSequence
    unknown               sequence 0                  to be appended
                          anything else               OutOfOrderSequence: it may be a retry of what was forgotten

A state is kept as the bytes that a file of them has (`producer_file.py`): a producer takes about 250 bytes. It has the
last RANGES_MAX ranges; an append that goes on where the last one ended, in offsets and sequence, makes that one longer.

It is changed after the write of an append and before the swap that makes this true. What is interrupted in between
has all of it made anew, from the file and from the log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from afterlog.base.errors import OutOfOrderSequence, ProducerFenced
from afterlog.index.producer_file import RANGE, RANGES_MAX, RECORDS_MAX, STATE, ProducerFileMark, check_state

SEQUENCES: Final = 1 << 31
"""So many sequence numbers there are."""


class Piece(NamedTuple):
    """Records that follow each other in the log."""

    offset: int
    records: int


class ProducerStates:
    """Of one partition. Not thread-safe: the log calls it under its append lock."""

    __slots__ = ("_states", "changes", "file", "stored")

    def __init__(self, states: dict[int, bytes] | None = None, file: ProducerFileMark | None = None) -> None:
        self._states = {} if states is None else states
        self.file = file
        """The one that was durable last."""
        self.changes = 0
        """Grows with each append that is noted."""
        self.stored = 0
        """As of which `changes` the file tells."""

    def __len__(self) -> int:
        return len(self._states)

    def judge(self, producer_id: int, epoch: int, sequence: int, records: int) -> tuple[Piece, ...]:
        """Where the first records of an append are, that are there already, in their order; none: all are to be
        appended. Raises ProducerFenced, OutOfOrderSequence.
        """
        state = self.state(producer_id)
        if state is None:
            if sequence:
                raise OutOfOrderSequence(
                    f"producer {producer_id} is not known here, or no more: what begins with sequence {sequence} may "
                    "be there already; begin with 0, under a higher epoch or another id",
                    expected=None,
                )
            return ()
        _, upcoming, known_epoch, _ = STATE.unpack_from(state)
        if epoch < known_epoch:
            raise ProducerFenced(
                f"producer {producer_id} goes on under epoch {known_epoch}, and no more under {epoch}",
                epoch=known_epoch,
            )
        if epoch > known_epoch:
            if sequence:
                raise OutOfOrderSequence(
                    f"epoch {epoch} of producer {producer_id} is new: begin with sequence 0, not {sequence}", expected=0
                )
            return ()
        return () if sequence == upcoming else _held(state, producer_id, sequence, records)

    def next_sequence(self, producer_id: int, epoch: int) -> int:
        """What a producer appends next under an epoch. Raises ProducerFenced."""
        state = self.state(producer_id)
        _, upcoming, known_epoch, _ = (0, 0, -1, 0) if state is None else STATE.unpack_from(state)
        if epoch > known_epoch:
            return 0
        self.judge(producer_id, epoch, upcoming, 1)
        return int(upcoming)

    def appended(self, producer_id: int, epoch: int, sequence: int, records: int, offset: int, now_ms: int) -> None:
        """Note what is in the log, whatever was before."""
        state, ranges = self.state(producer_id), b""
        if state is not None:
            _, upcoming, known_epoch, _ = STATE.unpack_from(state)
            if (epoch, sequence) == (known_epoch, upcoming):
                ranges = state[STATE.size :]
                held, base = RANGE.unpack_from(ranges, len(ranges) - RANGE.size)
                if base + held == offset and held + records <= RECORDS_MAX:
                    ranges = ranges[: -RANGE.size]
                    records, offset = held + records, base
                    sequence = (upcoming - held) % SEQUENCES
        ranges += RANGE.pack(min(records, RECORDS_MAX), offset + max(records - RECORDS_MAX, 0))
        ranges = _bounded(ranges)
        head = STATE.pack(now_ms, (sequence + records) % SEQUENCES, epoch, len(ranges) // RANGE.size)
        self._states[producer_id] = head + ranges
        self.changes += 1

    def beside(self) -> ProducerStates:
        """To judge one append after another, before any is made: it sees these, and what is noted stays in it."""
        return _Beside(self)

    def state(self, producer_id: int) -> bytes | None:
        return self._states.get(producer_id)

    def copy(self) -> dict[int, bytes]:
        """The states of now, by producer id."""
        return self._states.copy()

    def forget(self, states: Mapping[int, bytes]) -> None:
        """Those that are still what they were."""
        for producer_id, state in states.items():
            if self._states.get(producer_id) is state:
                del self._states[producer_id]

    def ids(self) -> Iterable[int]:
        return self._states.keys()

    def check(self, end_offset: int) -> None:
        """AssertionError where an invariant does not hold. end_offset: of the log."""
        for state in self._states.values():
            try:
                check_state(state, end_offset)
            except ValueError as error:
                raise AssertionError(str(error)) from error


class _Beside(ProducerStates):
    __slots__ = ("_before",)

    def __init__(self, before: ProducerStates) -> None:
        super().__init__()
        self._before = before

    def state(self, producer_id: int) -> bytes | None:
        return self._states.get(producer_id) or self._before.state(producer_id)


def last_ms(state: bytes) -> int:
    """When its producer appended last."""
    return int(STATE.unpack_from(state)[0])


def facts(state: bytes) -> tuple[int, int, int]:
    """Epoch, next sequence, and the offset after the last record."""
    _, upcoming, epoch, _ = STATE.unpack_from(state)
    records, offset = RANGE.unpack_from(state, len(state) - RANGE.size)
    return epoch, upcoming, offset + records


def _held(state: bytes, producer_id: int, sequence: int, records: int) -> tuple[Piece, ...]:
    """Where records from a sequence on are that is not the next. Raises OutOfOrderSequence."""
    _, upcoming, _, _ = STATE.unpack_from(state)
    ranges = [Piece(offset, held) for held, offset in RANGE.iter_unpack(memoryview(state)[STATE.size :])]
    remembered = sum(each.records for each in ranges)
    skipped = (sequence - upcoming + remembered) % SEQUENCES
    if skipped >= remembered:
        raise OutOfOrderSequence(
            f"producer {producer_id} sent sequence {sequence}, and {upcoming} is next; what is remembered begins at "
            f"{(upcoming - remembered) % SEQUENCES}",
            expected=upcoming,
        )
    found = list[Piece]()
    for offset, held in ranges:
        taken = min(held - skipped, records)
        if taken > 0:
            found.append(Piece(offset + skipped, taken))
            records -= taken
        skipped = max(skipped - held, 0)
    return tuple(found)


def _bounded(ranges: bytes) -> bytes:
    """The last of them, as many as are remembered."""
    ranges = ranges[-RANGES_MAX * RANGE.size :]
    if sum(_RANGES[len(ranges) // RANGE.size].unpack(ranges)[::2]) <= RECORDS_MAX:
        return ranges
    kept, room = list[bytes](), RECORDS_MAX
    for held, offset in reversed(list(RANGE.iter_unpack(ranges))):
        taken = min(held, room)
        if taken:
            kept.append(RANGE.pack(taken, offset + held - taken))
        room -= taken
    return b"".join(reversed(kept))


_RANGES: Final = tuple(struct.Struct("<" + count * RANGE.format.removeprefix("<")) for count in range(RANGES_MAX + 1))
"""So many of them at once."""
