"""Records in JSON: what is told is read again, and what cannot be is refused."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.api.record_json import SentRecord, message_of, message_row, scheduled_of, sent_record
from afterlog.base.errors import InvalidRecord
from afterlog.fetch.message import Message, ScheduledRecord

BYTES = st.none() | st.binary(max_size=20)
NUMBERS = st.integers(-1, 2**63 - 1)
HEADERS = st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=3).map(tuple)
FIELDS = {
    "topic": st.just("mail"), "partition": st.integers(0, 9), "offset": NUMBERS, "key": BYTES, "value": BYTES,
    "headers": HEADERS, "timestamp": NUMBERS, "broker_timestamp": NUMBERS, "deliver_after": NUMBERS, "due": NUMBERS,
}  # fmt: skip
SENT = st.builds(
    SentRecord,
    BYTES,
    key=BYTES,
    headers=HEADERS,
    delay=st.none() | st.floats(0, 1e9) | st.integers(0, 10**9),
    deliver_after=st.none() | NUMBERS | st.just("2030-01-31T08:00:00Z"),
    partition=st.none() | st.integers(0, 9),
    unique_key=st.none() | st.binary(min_size=1, max_size=9),
)


class TestSent:
    @given(SENT)
    def test_what_is_sent_is_read(self, record: SentRecord) -> None:
        assert record == sent_record(json.loads(json.dumps(record.to_row())))

    def test_a_value_is_enough(self) -> None:
        assert SentRecord(b"hi") == sent_record({"value": "hi"})

    @pytest.mark.parametrize(
        "row",
        [None, 1, "hi", [], {}, {"key": "a"}, {"value": 1}, {"value": "a", "due": 1}, {"value": "a", "delay": "30s"},
         {"value": "a", "delay": True}, {"value": "a", "partition": 1.5}, {"value": "a", "deliver_after": []},
         {"value": "a", "headers": 1}],
    )  # fmt: skip
    def test_nothing_else_is_taken(self, row: object) -> None:
        with pytest.raises(InvalidRecord):
            sent_record(row)


class TestReceived:
    @given(st.builds(Message, delivery_offset=NUMBERS, **FIELDS))
    def test_messages_come_back(self, message: Message) -> None:
        assert message == message_of(json.loads(json.dumps(message_row(message))))

    @given(st.builds(ScheduledRecord, **FIELDS))
    def test_so_do_pending_records(self, record: ScheduledRecord) -> None:
        assert record == scheduled_of(json.loads(json.dumps(message_row(record))))


def test_none_of_it_needs_numpy() -> None:
    code = "import afterlog.api.record_json, afterlog.api.problem, afterlog.api.position_text, sys; print('numpy' in sys.modules)"  # noqa: E501
    assert "False" == subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()
