from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.fetch.message import Message
from afterlog.fetch.message_columns import Columns
from afterlog.records.batch import encode_headers
from afterlog.records.columns import ragged

messages = st.builds(
    Message,
    topic=st.just("t"),
    partition=st.integers(0, 3),
    offset=st.integers(0, 2**62),
    delivery_offset=st.integers(0, 2**62),
    key=st.none() | st.binary(max_size=4),
    value=st.none() | st.binary(max_size=9),
    headers=st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2).map(tuple),
    timestamp=st.integers(-1, 2**62),
    broker_timestamp=st.integers(-1, 2**62),
    deliver_after=st.integers(-1, 2**62),
    due=st.integers(0, 2**62),
)


def columns_of(rows: list[Message]) -> Columns:
    key, key_valid = ragged([row.key for row in rows])
    value, value_valid = ragged([row.value for row in rows])
    headers, _ = ragged([encode_headers(row.headers) for row in rows])
    numbers = {
        name: np.array([getattr(row, name) for row in rows], np.int64)
        for name in ("partition", "offset", "delivery_offset", "due", "deliver_after", "timestamp", "broker_timestamp")
    }
    return Columns(
        topic="t", key=key, key_valid=key_valid, value=value, value_valid=value_valid, headers=headers, **numbers
    )


@given(st.lists(messages, max_size=9), st.integers(-10, 10), st.integers(-10, 10))
def test_slices_are_the_same_records(rows: list[Message], start: int, stop: int) -> None:
    columns = columns_of(rows)
    assert len(rows) == len(columns)
    assert rows == columns.to_messages()
    part = columns[start:stop]
    assert rows[start:stop] == part.to_messages()
    assert rows[start:stop][1:] == part[1:].to_messages()
    assert rows[:stop] == columns[:stop].to_messages()


@given(st.lists(st.lists(messages, max_size=5), min_size=1, max_size=4))
def test_concatenate(parts: list[list[Message]]) -> None:
    """Of views that begin in the middle of their data, too."""
    joined = Columns.concatenate([columns_of(part)[1:] for part in parts])
    assert [row for part in parts for row in part[1:]] == joined.to_messages()


def test_concatenating_one_copies_nothing() -> None:
    columns = Columns.empty("t")
    assert columns is Columns.concatenate([columns])


@given(st.lists(messages, max_size=9), st.integers(0, 9), st.integers(0, 9))
def test_to_arrow(rows: list[Message], start: int, stop: int) -> None:
    """Null masks and offsets of slices that begin anywhere."""
    batch = columns_of(rows)[start:stop].to_arrow()
    batch.validate(full=True)
    numbers = ["partition", "offset", "delivery_offset", "due", "deliver_after", "timestamp", "broker_timestamp"]
    names = [*numbers, "key", "value"]
    pairs = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    assert [*names, "headers"] == batch.schema.names
    assert [pa.int64()] * 7 + [pa.large_binary()] * 2 + [pairs] == batch.schema.types
    expected = [
        {name: getattr(row, name) for name in names}
        | {"headers": [{"key": name, "value": value} for name, value in row.headers]}
        for row in rows[start:stop]
    ]
    assert expected == batch.to_pylist()


def test_to_arrow_keeps_its_memory_alive() -> None:
    def values() -> pa.Array:
        rows = [_message(number) for number in range(100)]
        return columns_of(rows)[10:].to_arrow().column("value")

    assert [b"%d" % number for number in range(10, 100)] == values().to_pylist()


def test_empty() -> None:
    columns = Columns.empty("t")
    assert (0, []) == (len(columns), columns.to_messages())
    assert (0, []) == (len(columns[0:5]), columns.to_arrow().to_pylist())


def test_a_slice_takes_no_step() -> None:
    with pytest.raises(ValueError, match="no step"):
        columns_of([_message(1)])[::2]


def _message(number: int) -> Message:
    return Message(
        topic="t", partition=0, offset=number, delivery_offset=number, key=None, value=b"%d" % number, headers=(),
        timestamp=0, broker_timestamp=0, deliver_after=0, due=0,
    )  # fmt: skip
