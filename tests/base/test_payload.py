from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import afterlog
from afterlog.base import payload
from afterlog.base.clock import ManualClock
from afterlog.base.errors import InvalidRecord
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, open_small

texts = st.text(st.characters(exclude_categories=["Cs"]))
objects = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
)


@given(objects)
def test_there_and_back(value: Any) -> None:
    assert value == payload.object_of(afterlog.json(value), "mail-0@0")


def test_it_is_utf8_without_spaces() -> None:
    assert '{"ä":[1,null]}'.encode() == afterlog.json({"ä": [1, None]})


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "made",
    [
        lambda: b"bytes", lambda: datetime.now(UTC), lambda: math.nan, lambda: {(1, 2): 3}, lambda: "\ud800",
        lambda: nested(100_000),
    ],
)  # fmt: skip
def test_what_has_no_form(made: Callable[[], Any]) -> None:
    with pytest.raises(InvalidRecord, match="no JSON can be made of this "):
        afterlog.json(made())


def test_messages_and_pending_records() -> None:
    clock = ManualClock(NOW_MS)
    with open_small(SimulatedFiles(), clock) as store:
        store.create_topic("mail")
        store.send("mail", afterlog.json({"to": "ada"}), delay=1)
        store.send("mail", None, delay=2)
        store.send("mail", b"{", delay=3)
        assert [{"to": "ada"}] == [record.json() for record in store.pending("mail", limit=1)]
        clock.advance(3_000)
        with store.consumer("mail", group="g") as consumer, store.subscribe("mail", "s") as subscription:
            for first, second, third in (consumer.poll(), subscription.receive()):
                assert ({"to": "ada"}, None) == (first.json(), second.json())
                with pytest.raises(InvalidRecord, match=r"the value of mail-0@2 is not JSON: .*; it is b'{'"):
                    third.json()


@pytest.mark.parametrize("value", [b"\xff", b"", b"[" * 100_000], ids=["no text", "nothing", "deep"])
def test_what_is_no_json(value: bytes) -> None:
    with pytest.raises(InvalidRecord, match="mail-0@0 is not JSON"):
        payload.object_of(value, "mail-0@0")
