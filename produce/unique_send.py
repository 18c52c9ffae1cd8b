"""Sends with unique keys: what becomes of a record whose key another one holds, or another one of the same call.

    raise      nothing is appended; UniqueKeyConflict names the holder
    keep       the record is not appended; its answer is the offset of the holder
    replace    the holder is cancelled and the record appended in its place, both or neither

A call of many records does what sends of one by one would, in the order given and by one reading of the clock; but that
of those that would replace each other within the call only the last is appended, whose offset they all get. A record
that is due by that reading holds nothing, and so stands beside others of its key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from afterlog.log.partition_log import PartitionLog
from afterlog.log.unique_appends import Holders, UniqueAppends
from afterlog.records.columns import Int64Array
from afterlog.records.encode import Batches, EncodedBatches, RecordColumns, encode
from afterlog.records.single import SingleRecord
from afterlog.records.times import AS_SOON_AS_POSSIBLE
from afterlog.records.unique_key import OnConflict, numbered

BoolArray = npt.NDArray[np.bool_]


class Conflict(NamedTuple):
    """Why a call with "raise" appended nothing: the row, and who holds its key: a record, or another row."""

    row: int
    offset: int | None
    other_row: int | None = None


class SendPlan(NamedTuple):
    """What becomes of the rows of a call."""

    appended: Int64Array
    """The rows that are appended, ascending."""
    answer: Int64Array
    """Of every row, which of the rows of `appended` it gets the offset of, by its place there; -1: that of a holder."""
    kept: Int64Array
    """The offset of that holder."""
    replaced: Holders
    """Holders that go; `which` is the place in `appended` of the row that takes the key."""


def send_one(log: PartitionLog, record: SingleRecord, key: bytes, on_conflict: OnConflict) -> tuple[int, bool]:
    """Append a record that has the key in its headers; its offset, or that of the holder: whether it is a conflict."""
    config = log.context.config
    log.check_asked(record.deliver_after)
    parts: list[Batches] = [] if log.takes_one(record) else encode(record.columns(), config)[0]
    for part in parts:
        log.check_batches(part)

    def send(appends: UniqueAppends) -> tuple[int, bool]:
        holders = appends.holders_of_one(key)
        if not len(holders.offset):
            return (appends.append(parts[0]) if parts else appends.append_one(record)), False
        if on_conflict != "replace":
            return int(holders.offset[0]), on_conflict == "raise"
        return appends.replace(holders.offset, holders.due, parts[0] if parts else record), False

    return log.append_unique(send)


def send_columns(
    log: PartitionLog, columns: RecordColumns, keys: list[bytes | None], on_conflict: OnConflict
) -> Int64Array | Conflict:
    """Append records that have these keys in their headers; the offsets that they get, int64[n], in the order given."""
    log.check_asked(int(columns.deliver_after.max()))
    rows, different, number = numbered(keys)

    def send(appends: UniqueAppends) -> Int64Array | Conflict:
        pending = _will_be_pending(log, columns, appends)
        holders = appends.holders(different)
        planned = PLANS[on_conflict](pending, rows, number, holders)
        return planned if isinstance(planned, Conflict) else _done(log, appends, columns, planned)

    return log.append_unique(send)


def held_by(log: PartitionLog, columns: RecordColumns, keys: list[bytes | None]) -> Int64Array | Conflict:
    """What a call of `send_columns` with "raise" would meet now: a conflict, or nothing. Nothing is appended."""
    rows, different, number = numbered(keys)

    def look(appends: UniqueAppends) -> Int64Array | Conflict:
        pending = _will_be_pending(log, columns, appends)
        planned = _raising(pending, rows, number, appends.holders(different))
        return planned if isinstance(planned, Conflict) else planned.appended

    return log.append_unique(look)


def _will_be_pending(log: PartitionLog, columns: RecordColumns, appends: UniqueAppends) -> BoolArray:
    """Which records hold their keys once they are appended. With a spread a batch may make one due so much later."""
    spread_ms = log.context.config.deliver_after_spread_ms
    return (columns.deliver_after > AS_SOON_AS_POSSIBLE) & (columns.deliver_after > appends.reading_ms - spread_ms)


def _raising(pending: BoolArray, rows: Int64Array, number: Int64Array, holders: Holders) -> SendPlan | Conflict:
    if len(holders.which):
        at = int(np.flatnonzero(np.isin(number, holders.which))[0])
        holder = int(np.flatnonzero(holders.which == number[at])[0])
        return Conflict(int(rows[at]), int(holders.offset[holder]))
    first = _first_pending(pending, rows, number)
    again = np.flatnonzero(rows > first[number])
    if len(again):
        return Conflict(int(rows[again[0]]), None, int(first[number[again[0]]]))
    return _all(len(pending))


def _keeping(pending: BoolArray, rows: Int64Array, number: Int64Array, holders: Holders) -> SendPlan | Conflict:
    count = len(pending)
    first = _first_pending(pending, rows, number)
    holder = np.full(len(first), -1, np.int64)
    holder[holders.which[::-1]] = holders.offset[::-1]  # the first of several
    held = holder[number] >= 0
    dropped = np.zeros(count, np.bool_)
    dropped[rows] = held | (rows > first[number])
    appended = np.flatnonzero(~dropped)
    place = np.cumsum(~dropped) - 1
    answer, kept = place.copy(), np.full(count, -1, np.int64)
    answer[rows] = np.where(held, -1, place[np.minimum(rows, first[number])])
    kept[rows] = holder[number]
    return SendPlan(appended, answer, kept, _nobody())


def _replacing(pending: BoolArray, rows: Int64Array, number: Int64Array, holders: Holders) -> SendPlan | Conflict:
    count = len(pending)
    order = np.argsort(number, kind="stable")
    of_key, each = number[order], rows[order]
    is_last = np.append(of_key[1:] != of_key[:-1], True) if len(order) else np.zeros(0, np.bool_)
    stays = is_last | ~pending[each]
    # The next of the key that is appended: the last one always is.
    place_in_order = np.where(stays, np.arange(len(order)), len(order))
    following = np.minimum.accumulate(place_in_order[::-1])[::-1]
    dropped = np.zeros(count, np.bool_)
    dropped[each[~stays]] = True
    place = np.cumsum(~dropped) - 1
    answer = place.copy()
    answer[each] = place[each[following]]
    is_first = np.append(True, of_key[1:] != of_key[:-1]) if len(order) else np.zeros(0, np.bool_)
    taker = np.zeros(int(of_key[-1]) + 1 if len(order) else 0, np.int64)
    taker[of_key[is_first]] = answer[each[is_first]]
    replaced = Holders(taker[holders.which], holders.offset, holders.due)
    return SendPlan(np.flatnonzero(~dropped), answer, np.full(count, -1, np.int64), replaced)


PLANS: dict[OnConflict, Callable[[BoolArray, Int64Array, Int64Array, Holders], SendPlan | Conflict]] = {
    "raise": _raising,
    "keep": _keeping,
    "replace": _replacing,
}


def _all(count: int) -> SendPlan:
    each = np.arange(count)
    return SendPlan(each, each, np.full(count, -1, np.int64), _nobody())


def _nobody() -> Holders:
    none = np.empty(0, np.int64)
    return Holders(none, none, none)


def _first_pending(pending: BoolArray, rows: Int64Array, number: Int64Array) -> Int64Array:
    """Of each key the first row of the call that will be pending; beyond them all where none will."""
    first = np.full(int(number.max(initial=-1)) + 1, len(pending), np.int64)
    held = pending[rows]
    first[number[held][::-1]] = rows[held][::-1]  # of several the first is assigned last
    return first


def _done(log: PartitionLog, appends: UniqueAppends, columns: RecordColumns, plan: SendPlan) -> Int64Array:
    """Append what is planned; the offsets that the rows get."""
    offsets = np.empty(len(plan.appended), np.int64)
    if len(plan.appended):
        chosen = columns if len(plan.appended) == len(columns) else columns.take(plan.appended)
        parts, order = encode(chosen, log.context.config)
        for part in parts:
            log.check_batches(part)
        written = _written(appends, parts, order, plan.replaced)
        offsets[slice(None) if order is None else order] = written
    return np.where(plan.answer < 0, plan.kept, np.append(offsets, -1)[plan.answer])


def _written(appends: UniqueAppends, parts: list[Batches], order: Int64Array | None, replaced: Holders) -> Int64Array:
    """Append the parts; the offsets of their records, in the order of these. Each batch cancels what it replaces."""
    place = replaced.which
    if order is not None and len(place):
        inverse = np.empty_like(order)
        inverse[order] = np.arange(len(order))
        place = inverse[place]
    offsets, start = list[Int64Array](), 0
    for part in parts:
        count = int(part.records.sum())
        mine = np.flatnonzero((place >= start) & (place < start + count))
        if not len(mine):
            offsets.append(appends.append(part) + np.arange(count))
        else:
            targets = Holders(place[mine] - start, replaced.offset[mine], replaced.due[mine])
            offsets += _written_over(appends, part, targets)
        start += count
    return np.concatenate(offsets)


def _written_over(appends: UniqueAppends, part: Batches, targets: Holders) -> list[Int64Array]:
    """The same of a part of which some batches replace what is pending; `which` is the record of the part that does."""
    end = np.cumsum(part.records)
    batch = end.searchsorted(targets.which, "right")
    order = np.argsort(batch, kind="stable")
    numbers, first = np.unique(batch[order], return_index=True)
    offsets, row = list[Int64Array](), 0
    for number, rows in zip(numbers.tolist(), np.split(order, first[1:]), strict=True):
        if row < number:
            before = EncodedBatches.of(part, row, number)
            offsets.append(appends.append(before) + np.arange(int(before.records.sum())))
        taking = EncodedBatches.of(part, number, number + 1)
        at = appends.replace(np.sort(targets.offset[rows]), targets.due[rows][np.argsort(targets.offset[rows])], taking)
        offsets.append(at + np.arange(int(taking.records.sum())))
        row = number + 1
    if row < len(part):
        behind = EncodedBatches.of(part, row, len(part))
        offsets.append(appends.append(behind) + np.arange(int(behind.records.sum())))
    return offsets
