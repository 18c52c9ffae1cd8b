"""Appends that their producers have numbered, and those of many callers in one.

    request   a record by itself, or columns ── its sequence, or None ──┐
    request                                                            ├──> one append of the log ──> an answer for each
    request   what cannot be taken ──> its error                        ┘

Records that come by themselves, one request after another, are encoded in one go, each as a batch of its own: what
sends of one by one would write. Encoding is done before the log's lock is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from afterlog.base.errors import AfterlogError, InvalidRecord, RecordTooLarge
from afterlog.log.partition_log import PartitionLog
from afterlog.log.sequenced_appends import NumberedAppend
from afterlog.records.columns import Int64Array, Producers
from afterlog.records.encode import Batches, EncodedBatches, RecordColumns, encode, encode_each
from afterlog.records.producer_sequence import ProducerSequence
from afterlog.records.single import SingleRecord, columns_of


class AppendRequest(NamedTuple):
    """What one caller wants appended."""

    records: SingleRecord | RecordColumns
    sequence: ProducerSequence | None = None


FEW = 32
"""Records by themselves are written one by one up to so many: 30 us each, where columns cost 500 and 22 each."""

AppendAnswer = Int64Array | AfterlogError
_NO_OFFSETS = np.empty(0, np.int64)


def append_numbered(
    log: PartitionLog,
    columns: RecordColumns,
    parts: Sequence[Batches],
    order: Int64Array | None,
    sequence: ProducerSequence,
) -> Int64Array:
    """Append what is not there of encoded records; the offsets of all, int64[n], in the order given."""
    placed = [log.append_numbered(each).offsets() for each in _numbered(log, columns, parts, order, sequence)]
    return _in_order(np.concatenate(placed), order)


def append_together(log: PartitionLog, requests: Sequence[AppendRequest]) -> list[AppendAnswer]:
    """What `Topic.append_together` does."""
    if len(requests) <= FEW:
        few = _few(log, requests)
        if few is not None:
            return few
    answers: list[AppendAnswer | None] = [None] * len(requests)
    appends, owners, orders = list[NumberedAppend](), list[int](), dict[int, Int64Array | None]()
    for row, prepared in enumerate(_prepared(log, requests)):
        if isinstance(prepared, AfterlogError):
            answers[row] = prepared
            continue
        appends += prepared.appends
        owners += [row] * len(prepared.appends)
        orders[row] = prepared.order
    offsets = {row: list[Int64Array]() for row in orders}
    for row, answer in zip(owners, log.append_together(appends) if appends else (), strict=True):
        if isinstance(answer, AfterlogError):
            answers[row] = answers[row] or answer
        else:
            offsets[row].append(answer.offsets())
    return [
        answer if answer is not None else _in_order(np.concatenate([_NO_OFFSETS, *offsets[row]]), orders[row])
        for row, answer in enumerate(answers)
    ]


def _few(log: PartitionLog, requests: Sequence[AppendRequest]) -> list[AppendAnswer] | None:
    """The same of records that come by themselves: each the short way. None where one of them cannot go it."""
    records = [each.records for each in requests if isinstance(each.records, SingleRecord)]
    if len(records) < len(requests) or not all(map(log.takes_one, records)):
        return None
    placed = log.append_few(records, [each.sequence for each in requests])
    return [answer if isinstance(answer, AfterlogError) else np.array([answer]) for answer in placed]


class _Taken(NamedTuple):
    """A request that can be taken. order: the rows as they are written, None for the order given."""

    appends: list[NumberedAppend]
    order: Int64Array | None


def _prepared(log: PartitionLog, requests: Sequence[AppendRequest]) -> list[_Taken | AfterlogError]:
    """Each request, encoded, or why it cannot be taken."""
    found: list[_Taken | AfterlogError | None] = [None] * len(requests)
    alone = list[int]()
    for row, (records, sequence) in enumerate(requests):
        try:
            if isinstance(records, SingleRecord):
                log.check_asked(records.deliver_after)
                if records.batch_bytes_max <= log.context.config.batch_bytes_max:
                    alone.append(row)
                    continue
                records = records.columns()
            parts, order = encode(records, log.context.config, sequence=sequence)
            for part in parts:
                log.check_batches(part)
            found[row] = _Taken(_numbered(log, records, parts, order, sequence), order)
        except AfterlogError as error:
            found[row] = error
    singles = [requests[row] for row in alone]
    try:
        appends: list[NumberedAppend | AfterlogError] = [*_alone(log, singles)]
    except InvalidRecord:  # the headers of one: which, is found one by one
        appends = [_one_alone(log, each) for each in singles]
    for row, append in zip(alone, appends, strict=True):
        found[row] = append if isinstance(append, AfterlogError) else _Taken([append], None)
    return [each for each in found if each is not None]


def _one_alone(log: PartitionLog, request: AppendRequest) -> NumberedAppend | AfterlogError:
    try:
        return _alone(log, [request])[0]
    except InvalidRecord as error:
        return error


def _alone(log: PartitionLog, requests: Sequence[AppendRequest]) -> list[NumberedAppend]:
    """Records by themselves, encoded in one go. Raises InvalidRecord where the headers of one are none."""
    if not requests:
        return []
    columns = columns_of([each.records for each in requests if isinstance(each.records, SingleRecord)])
    sent = [each.sequence for each in requests]
    producers = None
    if any(each is not None for each in sent):
        fields = [(-1, -1, -1) if each is None else (each.producer_id, each.epoch, each.sequence) for each in sent]
        producers = Producers(*np.array(fields, np.int64).T.copy())
    encoded = EncodedBatches.joined([encode_each(columns, log.context.config, producers)])
    return [NumberedAppend(encoded, row, row + 1, 1, sequence, _nothing) for row, sequence in enumerate(sent)]


def _numbered(
    log: PartitionLog,
    columns: RecordColumns,
    parts: Sequence[Batches],
    order: Int64Array | None,
    sequence: ProducerSequence | None,
) -> list[NumberedAppend]:
    """The parts of one request."""
    appends, start = list[NumberedAppend](), 0
    for part in parts:
        sent = None if sequence is None else sequence.after(start)
        stop = start + int(part.records.sum())
        rows = np.arange(start, stop) if order is None else order[start:stop]
        rest = partial(_rest, log, columns, rows, sent)
        appends.append(NumberedAppend(part, 0, len(part), stop - start, sent, rest))
        start = stop
    return appends


def _rest(
    log: PartitionLog, columns: RecordColumns, rows: Int64Array, sequence: ProducerSequence | None, skipped: int
) -> Sequence[Batches]:
    """Of the rows of a part those after the first ones, encoded anew: they may have been cut elsewhere before."""
    sent = None if sequence is None else sequence.after(skipped)
    return encode(columns.take(rows[skipped:]), log.context.config, sequence=sent)[0]


def _nothing(_: int) -> Sequence[Batches]:
    """The rest of one record that is there."""
    raise RecordTooLarge("one record has no rest")


def _in_order(offsets: Int64Array, order: Int64Array | None) -> Int64Array:
    """Offsets of records as written, in the order given."""
    if order is None:
        return offsets
    placed = np.empty_like(offsets)
    placed[order] = offsets
    return placed
