"""The decoders of what a server and its clients say to each other in columns: Arrow streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from afterlog.api.arrow_stream import (
    delivered,
    delivered_stream,
    placed_of,
    placed_stream,
    receipts_of,
    receipts_stream,
    sent_columns,
    sent_stream,
)
from afterlog.base.errors import InvalidDeliverAfter, InvalidRecord, InvalidRequest
from afterlog.fetch.message import Message
from afterlog.fetch.message_columns import Columns
from afterlog.records.encode import same_headers
from afterlog.subscription.received import Receipts
from tests.fuzzing.decoder import Decoder, accepted, refused, same

NOW_MS: Final = 1_700_000_000_000
_REFUSED: Final = (InvalidRequest, InvalidRecord, InvalidDeliverAfter)


def _sent_seeds() -> Sequence[bytes]:
    numbers = np.arange(3)
    return [
        sent_stream([b"a"]),
        sent_stream([b"a", None, b"ccc"], keys=[None, b"k", b""], partition=numbers),
        sent_stream([b"a"] * 3, headers=same_headers((("h", b"v"), ("n", None)), 3), timestamps=NOW_MS + numbers),
        sent_stream([b"a"] * 3, deliver_after=NOW_MS + numbers, unique_keys=[b"u", None, b"w"]),
        sent_stream([b"a"] * 3, delay_ms=numbers * 500),
    ]


def read_sent(data: bytes) -> str:
    try:
        sent = sent_columns(data, NOW_MS)
    except _REFUSED as error:
        return refused(error)
    records, rows = sent.records, len(sent.records)
    for column in (records.values, records.keys, records.headers):
        assert column is None or len(column[0]) - 1 == rows
        assert column is None or int(column[0][-1]) <= len(column[1])
    for numbers in (records.timestamps, records.deliver_after, sent.partition):
        assert numbers is None or len(numbers) == rows
    assert sent.unique_keys is None or len(sent.unique_keys) == rows
    return accepted(
        rows, records.keys is None, records.headers is None, sent.partition is None, sent.unique_keys is None
    )


def _messages(count: int) -> Columns:
    messages = [
        Message(
            topic="mail", partition=row, offset=row + 7, delivery_offset=row, key=b"k" * row if row else None,
            value=b"v", headers=(("h", b"v"),) * row, timestamp=NOW_MS, broker_timestamp=NOW_MS,
            deliver_after=NOW_MS, due=NOW_MS + row,
        )
        for row in range(count)
    ]  # fmt: skip
    return Columns.concatenate([Columns.empty("mail"), *map(Columns.of, messages)])


def _delivered_seeds() -> Sequence[bytes]:
    counts = np.arange(3, dtype=np.int64)
    return [
        delivered_stream(_messages(0)),
        delivered_stream(_messages(3), {"positions": {"0": 7}, "now_ms": NOW_MS}),
        delivered_stream(_messages(3), lease_number=counts, deadline_ms=counts + NOW_MS),
    ]


def read_delivered(data: bytes) -> str:
    try:
        found = delivered(data)
    except _REFUSED as error:
        return refused(error)
    messages = found.columns.to_messages()
    again = delivered(delivered_stream(found.columns, found.said))
    assert messages == again.columns.to_messages()
    return accepted(len(messages), found.lease_number is None, found.deadline_ms is None)


def _receipt_seeds() -> Sequence[bytes]:
    return [receipts_stream(Receipts(*(np.arange(rows) + number for number in range(4)))) for rows in (0, 1, 5)]


def _place_seeds() -> Sequence[bytes]:
    return [placed_stream(np.arange(rows), np.arange(rows) * 7) for rows in (0, 1, 5)]


def _reading(read: Callable[[bytes], Any], write: Callable[..., bytes]) -> Callable[[bytes], str]:
    """Of columns of numbers, which are written as they were read."""

    def reading(data: bytes) -> str:
        try:
            columns = tuple(read(data))
        except _REFUSED as error:
            return refused(error)
        assert same(columns, tuple(read(write(*columns))))
        return accepted(len(columns[0]))

    return reading


WIRE_DECODERS: Final = (
    Decoder("arrow-sent", _sent_seeds, read_sent),
    Decoder("arrow-delivered", _delivered_seeds, read_delivered),
    Decoder(
        "arrow-receipts", _receipt_seeds, _reading(receipts_of, lambda *columns: receipts_stream(Receipts(*columns)))
    ),
    Decoder("arrow-placed", _place_seeds, _reading(placed_of, lambda *columns: placed_stream(*columns))),
)
