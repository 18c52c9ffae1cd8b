"""What a log should do, in lists and dicts: the oracle of the state machine and of the crash tests.

It knows nothing of files, batches or indexes. A record is a row of `Model.records`, in append order; delivery order is
`sorted`. The engine says which stamp an append got; the model bounds it by the clock and by what was ever read, and
holds the engine to it from then on. Each `check_*` proves one promise of docs/guarantees.md; its docstring names it.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from afterlog import CancelResult, Message
from afterlog.records.times import AS_SOON_AS_POSSIBLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """One record as appended. `due` is its effective deliver_after; `asked` may be AS_SOON_AS_POSSIBLE."""

    value: bytes
    asked: int
    due: int
    told: int = AS_SOON_AS_POSSIBLE
    """What a reader is told that it asked for: its own time, where its batch asked for a later one."""
    key: bytes | None = field(default=None, compare=False)
    """The unique key that it was sent with."""


@dataclass(slots=True)
class Model:
    """One partition. Offsets are rows of `records`; `removed` are those that retention took."""

    delayed: bool = True
    records: list[Expected] = field(default_factory=list)
    removed: set[int] = field(default_factory=set)
    cancelled: dict[int, int] = field(default_factory=dict)
    """Offset of a cancelled record -> offset of the control record that says so."""
    visible_end: int = 0
    """Records below are visible to readers, and safe under the durability."""
    log_start: int = 0
    purged: int = 0
    """The delivery offset up to which a purge has put all out of reach."""
    committed: int | None = None
    seen: dict[int, int] = field(default_factory=dict)
    """Delivery offset -> offset of every record that was ever delivered."""
    reading_ms: int = 0
    """The largest clock reading of any fetch, ever."""
    life_reading_ms: int = 0
    """The same since the log was opened."""
    opened_ms: int = 0
    """What is due by then may have been when the log was opened, by no reading."""
    delivered_ms: int = 0
    """The largest reading that made something due which was not."""
    delivered: int = 0
    """The largest high watermark, ever."""
    stamp_ms: int = 0
    """The largest stamp that is in the log."""
    stamp_ms_ever: int = 0
    """No stamp was ever larger."""
    put_back_end: int = 0
    """Records below had their stamps from a clock that was put back since."""
    meanwhile: Sequence[int] = ()
    """What else the wall clock showed during the operation: it stepped."""
    closed_ms: int = 0
    """The reading used last, where the life before was closed."""

    # What happens.

    def appended(self, first_offset: int, batch: Sequence[Expected], wall_ms: int, lease_ms: int) -> None:
        """Records came in at `wall_ms`, with the due times that the engine says they got."""
        assert len(self.records) == first_offset, "offsets are dense"
        self.check_stamps(batch, wall_ms, lease_ms)
        self.records += batch

    def asked_to_cancel(
        self, offsets: Sequence[int], answers: Sequence[CancelResult], wall_ms: int, lease_ms: int
    ) -> list[int]:
        """Offsets, which differ, were to be cancelled at `wall_ms`; of which it was said that it is so."""
        out_of_reach = set(self.order()[: self.log_start])
        for offset, answer in zip(offsets, answers, strict=True):
            if not 0 <= offset < len(self.records) or offset in self.cancelled.values() or offset in out_of_reach:
                assert CancelResult.UNKNOWN == answer
            elif offset in self.cancelled:
                assert CancelResult.ALREADY_CANCELLED == answer
            elif not self.delayed or self.records[offset].due <= self.stamp_least(wall_ms):
                assert CancelResult.ALREADY_DELIVERED == answer
            elif self.records[offset].due > self.stamp_most(wall_ms, lease_ms):
                assert CancelResult.CANCELLED == answer
            else:
                assert answer in (CancelResult.CANCELLED, CancelResult.ALREADY_DELIVERED)
        return [offset for offset, answer in zip(offsets, answers, strict=True) if answer == CancelResult.CANCELLED]

    def control(self, targets: Sequence[int]) -> Expected:
        """The control record that cancels them: due with the last."""
        due = max(self.records[target].due for target in targets)
        value = b"".join(struct.pack(">qq", target, self.records[target].due) for target in targets)
        return Expected(value=value, asked=due, due=due)

    def read(self, clock_ms: int, wall_ms: int) -> None:
        """A fetch decided by `clock_ms`: never ahead of any clock, never back in one life, late only for an append in
        flight."""
        if self.delayed:
            assert self.life_reading_ms <= clock_ms <= max(self.wall_most(wall_ms), self.reading_ms)
            assert self.visible_end < len(self.records) or self.wall_least(wall_ms) <= clock_ms
        self.life_reading_ms = clock_ms
        self.reading_ms = max(self.reading_ms, clock_ms)
        high_watermark = self.high_watermark(clock_ms)
        if high_watermark > max(self.delivered, self.high_watermark(self.opened_ms)):
            self.delivered_ms = max(self.delivered_ms, clock_ms)
        self.delivered = max(self.delivered, high_watermark)

    def crashed(self, end: int, covered: bool) -> None:
        """The log was reopened with `end` records. `covered`: the durability covers what happened."""
        self.check_d3_acknowledged_survive(end, covered)
        del self.records[end:]
        self.cancelled = {target: control for target, control in self.cancelled.items() if control < end}
        if not covered:
            # Of what was committed before the clock was put back nobody knows which ranks it has now.
            kept = 0 if self.put_back_end else self.committed or 0
            self.seen = {rank: offset for rank, offset in self.seen.items() if rank < kept}
            self.delivered = kept
        self.visible_end = end
        stamped = (record.due for record in self.records[self.put_back_end :] if record.due > record.asked)
        self.stamp_ms = max(stamped, default=0)

    def clock_put_back(self, clock_ms: int) -> None:
        """The frontier was put back to the wall clock: what was delivered beyond it is forgotten, and D2 given up."""
        self.put_back_end = len(self.records)
        self.seen, self.delivered, self.delivered_ms = {}, 0, 0
        self.reading_ms, self.life_reading_ms = clock_ms, 0
        self.stamp_ms = min(self.stamp_ms, clock_ms)

    def forget_behind(self, end: int) -> None:
        """The log begins a new life elsewhere with its first `end` records. Nobody there knows what was delivered."""
        del self.records[end:]
        self.cancelled = {target: control for target, control in self.cancelled.items() if control < end}
        self.visible_end, self.seen, self.committed = end, {}, None
        self.delivered = self.delivered_ms = 0
        self.stamp_ms = max((record.due for record in self.records if record.due > record.asked), default=0)

    def closed(self) -> None:
        """In order: the reading that was used last is durable."""
        self.closed_ms = self.reading_ms

    def reopened(self) -> None:
        """A new life: readings may start below those of the one before, where a crash lost them."""
        self.life_reading_ms = 0
        self.opened_ms = max(self.stamp_ms, self.delivered_ms, self.closed_ms)
        self.closed_ms = 0

    def holders(self, key: bytes, after_ms: int) -> list[int]:
        """Who holds a unique key, of those that are due later."""
        rows = enumerate(self.records)
        return [row for row, each in rows if each.key == key and each.due > after_ms and row not in self.cancelled]

    # What must be.

    def order(self) -> list[int]:
        """Offsets of the visible records in delivery order."""
        offsets = range(self.visible_end)
        return sorted(offsets, key=lambda offset: (self.records[offset].due, offset)) if self.delayed else [*offsets]

    def hidden(self) -> set[int]:
        """Offsets that no reader sees: the cancelled, and the control records."""
        return {each for pair in self.cancelled.items() if pair[1] < self.visible_end for each in pair}

    def shown(self, position: int, end: int) -> list[tuple[int, int]]:
        """What a reader finds between two positions: (delivery offset, offset)."""
        hidden = self.hidden()
        ranks = enumerate(self.order()[position:end], position)
        return [(rank, offset) for rank, offset in ranks if offset not in hidden]

    def pending(self, clock_ms: int) -> list[tuple[int, int]]:
        """(due, offset) of what is not due at a reading, next first, without what is hidden."""
        ahead = self.shown(self.high_watermark(clock_ms), self.visible_end)
        return [(self.records[offset].due, offset) for _, offset in ahead]

    def high_watermark(self, clock_ms: int) -> int:
        """Records that are due at a reading, hidden ones too."""
        if not self.delayed:
            return self.visible_end
        return sum(record.due <= clock_ms for record in self.records[: self.visible_end])

    def next_due(self, clock_ms: int) -> int | None:
        """When the first record is due that is not due yet."""
        hidden = self.hidden()
        later = [
            record.due
            for offset, record in enumerate(self.records)
            if (record.due, offset) > (clock_ms, self.visible_end - 1) and offset not in hidden
        ]
        return min(later, default=None) if self.delayed else None

    def histogram(self, edges: Sequence[int]) -> list[int]:
        """Records after the log start with edges[i] <= due < edges[i + 1], without what is hidden."""
        hidden = self.hidden()
        keys = sorted((record.due, offset) for offset, record in enumerate(self.records))[self.log_start :]
        dues = [due for due, offset in keys if offset not in hidden]
        below = [bisect_left(dues, edge) for edge in edges]
        return [high - low for low, high in pairwise(below)]

    def position_at(self, ms: int) -> int:
        """Of the first record due at or after `ms`."""
        return min(max(sum(record.due < ms for record in self.records), self.log_start), self.visible_end)

    def position_after(self, offset: int) -> int:
        """After the record of `offset`; of a pending one where it stands so far."""
        if not self.delayed:
            return offset + 1
        key = (self.records[offset].due, offset)
        return min(sum((record.due, other) <= key for other, record in enumerate(self.records)), self.visible_end)

    # The promises.

    def check_stamps(self, batch: Iterable[Expected], wall_ms: int, lease_ms: int) -> None:
        """The stamping rule, which D2 and D6 rest on: due = max(asked, stamp), and the stamp is at or above the clock
        and every reading that ever decided "due", also in an earlier life; never further ahead than a lease."""
        if not self.delayed:
            return
        least, most = self.stamp_least(wall_ms), self.stamp_most(wall_ms, lease_ms)
        for record in batch:
            assert record.due >= max(record.asked, least), (least, record)
            if record.due > record.asked:
                assert record.due <= most, (record, most)
                self.stamp_ms = max(self.stamp_ms, record.due)
        self.stamp_ms_ever = most  # where all asked for later, the stamp is not seen

    def wall_least(self, wall_ms: int) -> int:
        return min((wall_ms, *self.meanwhile))

    def wall_most(self, wall_ms: int) -> int:
        return max((wall_ms, *self.meanwhile))

    def stamp_least(self, wall_ms: int) -> int:
        return max(self.wall_least(wall_ms), self.life_reading_ms, self.delivered_ms, self.stamp_ms)

    def stamp_most(self, wall_ms: int, lease_ms: int) -> int:
        return max(self.wall_most(wall_ms), self.reading_ms + lease_ms, self.stamp_ms_ever)

    def check_d1_never_early(self, messages: Iterable[Message], clock_ms: int) -> None:
        """D1, never early: delivered at `clock_ms` implies asked <= effective deliver_after <= clock_ms."""
        for message in messages:
            assert max(self.records[message.offset].asked, 0) <= message.due or not self.delayed
            assert not self.delayed or message.due <= clock_ms

    def check_d2_never_skipped(self, messages: Sequence[Message], position: int, high_watermark: int) -> None:
        """D2, never skipped: a drain delivers every record that is due after the position, minus cancelled."""
        found = [(message.delivery_offset, message.offset) for message in messages]
        assert self.shown(position, high_watermark) == found

    def check_d3_acknowledged_survive(self, end: int, covered: bool) -> None:
        """D3, no loss, and D7: what was acknowledged under a durability that covers the fault is there afterwards."""
        assert end <= len(self.records), "more than was ever appended"
        if covered:
            assert self.visible_end <= end, f"lost [{end}, {self.visible_end})"

    def check_d6_order(self, messages: Sequence[Message], position: int) -> None:
        """D6, order: keys strictly increase, and delivery offsets are dense from the position on, but for what is
        hidden."""
        if self.delayed:
            keys = [(message.due, message.offset) for message in messages]
            assert sorted(set(keys)) == keys
        ranks = [message.delivery_offset for message in messages]
        assert [rank for rank, _ in self.shown(position, self.visible_end)[: len(ranks)]] == ranks

    def check_d8_prefix(self, contents: Sequence[Expected | None]) -> None:
        """D8, prefix: the log holds what was appended, in order, each byte as it was; None where retention removed."""
        expected = [None if offset in self.removed else record for offset, record in enumerate(self.records)]
        assert expected == list(contents)

    def check_d8_never_changes(self, messages: Iterable[Message]) -> None:
        """D8 and D12: an offset once visible names the same bytes, due time and delivery offset for ever."""
        for message in messages:
            record = self.records[message.offset]
            assert record.value == message.value
            if self.delayed:
                assert record.due == message.due
                if record.told != AS_SOON_AS_POSSIBLE:
                    assert record.told == message.deliver_after
            assert message.offset == self.seen.setdefault(message.delivery_offset, message.offset)

    def check_d9_committed(self, committed: int | None, log_end: int) -> None:
        """D9, durable acks: a commit that returned is never undone, and names a position of the log."""
        assert self.committed == committed
        assert committed is None or committed <= log_end

    def check_d13_retention(
        self, kept: Iterable[Iterable[int]], log_start: int, expired_ms: int | None, oversized: bool
    ) -> None:
        """D13, retention: removes only records that are due and satisfy the rule; the log start only grows, to after
        the last key removed, and puts nothing out of reach that does not satisfy it.

        `expired_ms`: due up to here is old enough; `oversized`: the log was too large.
        """
        kept_offsets = {offset for span in kept for offset in span}
        removed = set(range(len(self.records))) - kept_offsets
        assert self.removed <= removed, "a removed record came back"
        order = {offset: rank for rank, offset in enumerate(self.order())}
        gone = {offset for offset, rank in order.items() if self.log_start <= rank < log_start}
        for offset in removed - self.removed | gone:
            due = self.records[offset].due
            assert not self.delayed or due <= self.reading_ms, "pending"
            is_expired = expired_ms is not None and due <= expired_ms
            assert oversized or is_expired or order[offset] < self.purged
        self.removed = removed
        assert max((order[offset] + 1 for offset in removed), default=0) <= log_start
        assert self.log_start <= log_start
        self.log_start = log_start

    def check_schedule(
        self,
        clock_ms: int,
        high_watermark: int,
        pending: int,
        scheduled: list[tuple[int, int]],
        next_due: int | None,
        edges: Sequence[int],
        counts: list[int],
    ) -> None:
        """What the log says of its schedule without reading a record: D2's set, counted."""  # fmt: skip
        assert self.high_watermark(clock_ms) == high_watermark
        assert self.pending(clock_ms) == scheduled or not self.delayed
        assert len(scheduled) == pending
        if self.delayed:
            assert self.next_due(clock_ms) == next_due
            assert self.histogram(edges) == counts

    def check_delivery(self, messages: Sequence[Message], position: int, clock_ms: int, high_watermark: int) -> None:
        """All promises on one drain from a position."""
        self.check_d1_never_early(messages, clock_ms)
        self.check_d2_never_skipped(messages, position, high_watermark)
        self.check_d6_order(messages, position)
        self.check_d8_never_changes(messages)
