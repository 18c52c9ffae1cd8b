from __future__ import annotations

import dataclasses

import pytest

from afterlog.fetch.message import Message
from afterlog.fetch.record_id import RecordId

MESSAGE = Message(
    topic="t", partition=2, offset=7, delivery_offset=3, key=None, value=b"v", headers=(("h", None),), timestamp=1,
    broker_timestamp=2, deliver_after=2, due=3,
)  # fmt: skip


def test_a_message_names_its_record() -> None:
    assert RecordId("t", 2, 7) == MESSAGE.id
    assert RecordId(topic="t", partition=2, offset=7) == dataclasses.replace(MESSAGE, delivery_offset=9).id


def test_both_are_facts() -> None:
    assert 1 == len({MESSAGE, dataclasses.replace(MESSAGE)}) == len({MESSAGE.id, RecordId("t", 2, 7)})
    with pytest.raises(dataclasses.FrozenInstanceError):
        MESSAGE.offset = 8  # type: ignore[misc]
