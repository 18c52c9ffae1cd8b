"""The compiled way and the plain one make the same objects, as their `__init__` would, and refuse the same."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.base.errors import InvalidBatch
from afterlog.fetch import objects
from afterlog.fetch.message import Message
from afterlog.fetch.message_columns import Columns
from afterlog.fetch.objects import Same, Strings, made, plainly_made
from afterlog.fetch.record_id import RecordId
from afterlog.records.columns import ragged
from afterlog.records.encode import encode_headers
from afterlog.subscription.leased_message import LeasedMessage

WAYS = pytest.mark.parametrize("make", [made, plainly_made])
strings = st.none() | st.binary(max_size=9)
numbers = st.integers(-(2**63), 2**63 - 1)
headers = st.lists(st.tuples(st.text(max_size=3).filter(lambda name: name != "deliver-after"), strings), max_size=3)


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    number: int
    text: bytes | None


def columns_of(messages: list[Message]) -> Columns:
    def int64(name: str) -> Any:
        return np.array([getattr(each, name) for each in messages], np.int64)

    names = ("partition", "offset", "delivery_offset", "due", "deliver_after", "timestamp", "broker_timestamp")
    key, key_valid = ragged([each.key for each in messages])
    value, value_valid = ragged([each.value for each in messages])
    sections, _ = ragged([encode_headers(each.headers) if each.headers else b"" for each in messages])
    numbers = {name: int64(name) for name in names}
    return Columns(
        topic="t", key=key, key_valid=key_valid, value=value, value_valid=value_valid, headers=sections, **numbers
    )


@WAYS
@given(rows=st.lists(st.tuples(strings, strings, headers, *[numbers] * 6), max_size=7))
def test_as_by_init(make: Callable[..., list[Any]], rows: list[Any]) -> None:
    wanted = [
        Message(
            topic="t", partition=number, key=key, value=value, headers=tuple(own), offset=row[0],
            delivery_offset=row[1], timestamp=row[2], broker_timestamp=row[3], deliver_after=row[4], due=row[5],
        )
        for number, (key, value, own, *row) in enumerate(rows)
    ]  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("afterlog.fetch.message_columns.made", make)
        found = columns_of(wanted).to_messages()
        scheduled = columns_of(wanted).to_scheduled()
    assert wanted == found
    assert [*map(repr, wanted)] == [*map(repr, found)]
    assert [*map(hash, wanted)] == [*map(hash, found)]
    assert wanted == pickle.loads(pickle.dumps(found)) == copy.deepcopy(found)
    assert [(each.offset, each.value, each.id) for each in wanted] == [
        (each.offset, each.value, each.id) for each in scheduled
    ]


@WAYS
def test_a_slice_of_columns(make: Callable[..., list[Any]]) -> None:
    """Its strings do not begin at the first byte, and its integers may be of a column of more."""
    strings = Strings(np.array([3, 5, 5, 9]), np.frombuffer(b"abcdefghij", np.uint8), np.array([True, False, True]))
    numbers = np.arange(18).reshape(9, 2)[::3, 1]
    assert [Pair(1, b"de"), Pair(7, None), Pair(13, b"fghi")] == make(Pair, 3, {"number": numbers, "text": strings})


@WAYS
def test_frozen_and_its_own(make: Callable[..., list[Any]]) -> None:
    value = [b"x"]
    [first, second] = make(Pair, 2, {"number": np.array([1, 2]), "text": Same(value)})
    assert first.text is second.text is value
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.number = 3
    assert not hasattr(first, "__dict__")


@WAYS
def test_more_slots_in_a_subclass(make: Callable[..., list[Any]]) -> None:
    names, reader = [field.name for field in dataclasses.fields(LeasedMessage)], SimpleNamespace(flow=None)
    [message] = make(
        LeasedMessage, 1, {name: [name] for name in names} | {"settled": Same(False), "subscription": Same(reader)}
    )
    assert ("topic", "deadline_ms", False) == (message.topic, message.deadline_ms, message.settled)
    assert RecordId("topic", "partition", "offset") == message.id  # type: ignore[arg-type]
    message.settle()
    assert message.settled


@WAYS
@pytest.mark.parametrize(
    "column",
    [
        np.arange(2),
        [b"a", b"b"],
        Strings(np.zeros(3, np.int64), np.empty(0, np.uint8), np.ones(2, np.bool_)),
    ],
)
def test_a_column_of_another_length(make: Callable[..., list[Any]], column: Any) -> None:
    with pytest.raises(ValueError, match="column of 2 for 3 rows"):
        make(Pair, 3, {"text": column})


@WAYS
def test_what_is_no_slot(make: Callable[..., list[Any]]) -> None:
    with pytest.raises(TypeError, match=r"RecordId\.__str__ is no slot"):
        make(RecordId, 1, {"__str__": Same(1)})
    with pytest.raises(AttributeError):
        make(RecordId, 1, {"nothing": Same(1)})


def test_strings_outside_of_their_bytes_are_the_callers_mistake() -> None:
    wild = Strings(np.array([0, 99]), np.zeros(9, np.uint8), np.ones(1, np.bool_))
    if objects.made is not plainly_made:
        with pytest.raises(ValueError, match="0 to 99 of 9 bytes"):
            made(Pair, 1, {"text": wild})


named = st.lists(st.tuples(st.text(max_size=3) | st.just("deliver-after"), strings), max_size=4)


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except InvalidBatch as error:
        return str(error)


@given(named, st.data())
def test_header_sections(named: list[tuple[str, bytes | None]], data: st.DataObject) -> None:
    """Sound ones, and ones of which a byte is another, or the end is gone: as the plain way has it."""
    sound = encode_headers(named)
    assert tuple(header for header in named if header[0] != "deliver-after") == objects.section_of(sound)
    rotten = bytearray(sound)
    if rotten:
        rotten[data.draw(st.integers(0, len(rotten) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(rotten[: data.draw(st.integers(0, len(rotten)))])
    for section in (sound, bytes(rotten), cut, sound + b"x"):
        plain = outcome(lambda section=section: objects.plain_section_of(section))
        assert plain == outcome(lambda section=section: objects.section_of(section))
        rows = ragged([b"", sound, section])[0]
        assert outcome(lambda rows=rows: objects.plain_sections_of(*rows)) == outcome(
            lambda rows=rows: objects.sections_of(*rows)
        )


@pytest.mark.parametrize(
    "section",
    [
        b"\x02\x06\xff\xfe\xfd\x00",
        b"\x02\xff\xff\xff\xff\x1f",
        b"\x80\x80\x80\x80\x10",
        b"\x01",
        b"\x02\x01\x00",
        b"\x80",
    ],
)
def test_header_sections_at_their_bounds(section: bytes) -> None:
    """Keys that are no UTF-8, numbers that do not fit or do not end, a header without a key."""
    assert outcome(lambda: objects.plain_section_of(section)) == outcome(lambda: objects.section_of(section))


def test_sections_outside_of_their_bytes_are_the_callers_mistake() -> None:
    if objects.sections_of is not objects.plain_sections_of:
        with pytest.raises(ValueError, match="0 to 99 of 9 bytes"):
            objects.sections_of(np.array([0, 99]), np.zeros(9, np.uint8))
