"""Records as Arrow streams: what is written is read again, also where others write it; what cannot be is refused."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.api import arrow_message
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
from afterlog.base.errors import AfterlogError, InvalidDeliverAfter, InvalidRecord, InvalidRequest, RequestTooLarge
from afterlog.fetch.message import Message
from afterlog.fetch.message_columns import Columns
from afterlog.records import encode
from afterlog.records.batch import decode_headers
from afterlog.records.columns import Ragged, ragged
from afterlog.records.unique_key import key_of
from afterlog.subscription.received import Receipts

NOW_MS = 1_700_000_000_000
BYTES = st.none() | st.binary(max_size=12)
NUMBERS = st.integers(-1, 2**63 - 1)
HEADERS = st.lists(st.tuples(st.text(max_size=5).filter(lambda name: name != "deliver-after"), BYTES), max_size=3)
MESSAGES = st.lists(
    st.builds(
        Message, topic=st.just("mail"), partition=st.integers(0, 9), offset=NUMBERS, delivery_offset=NUMBERS, key=BYTES,
        value=BYTES, headers=HEADERS.map(tuple), timestamp=NUMBERS, broker_timestamp=NUMBERS, deliver_after=NUMBERS,
        due=NUMBERS,
    ),
    max_size=6,
)  # fmt: skip


def stream(batches: Any, *, compression: str | None = None, schema: pa.Schema | None = None) -> bytes:
    """What another program would write."""
    batches = batches if isinstance(batches, list) else [batches]
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, schema or batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch(columns)


def items(column: Ragged) -> list[bytes]:
    offsets, data = column
    return [bytes(data[start:end]) for start, end in itertools.pairwise(offsets)]


def columns_of(messages: list[Message]) -> Columns:
    return Columns.concatenate([Columns.empty("mail"), *map(Columns.of, messages)])


class TestDelivered:
    @given(MESSAGES, st.booleans())
    def test_what_is_written_is_read(self, messages: list[Message], leased: bool) -> None:
        counts = np.arange(len(messages), dtype=np.int64)
        lease = {"lease_number": counts, "deadline_ms": counts + NOW_MS} if leased else {}
        said = {"positions": {"0": 7}, "now_ms": NOW_MS}
        found = delivered(delivered_stream(columns_of(messages), said, **lease))
        assert messages == found.columns.to_messages()
        assert ("mail", said) == (found.columns.topic, found.said)
        assert (leased, leased) == (found.lease_number is not None, found.deadline_ms is not None)
        if found.lease_number is not None and found.deadline_ms is not None:
            assert lease["lease_number"].tolist() == found.lease_number.tolist()
            assert lease["deadline_ms"].tolist() == found.deadline_ms.tolist()

    def test_a_slice(self) -> None:
        values = [b"a", None, b"ccc", b"d"]
        messages = [
            Message(topic="mail", partition=0, offset=row, delivery_offset=row, key=b"k" * row, value=value,
                    headers=(("n", b"%d" % row),), timestamp=1, broker_timestamp=1, deliver_after=1, due=1)
            for row, value in enumerate(values)
        ]  # fmt: skip
        assert messages[1:3] == delivered(delivered_stream(columns_of(messages)[1:3])).columns.to_messages()

    def test_names_of_headers_that_are_not_utf8_are_mended(self) -> None:
        columns = columns_of([])
        message = Message(topic="mail", partition=0, offset=0, delivery_offset=0, key=None, value=b"x",
                          headers=(("a\udcff", b"1"),), timestamp=1, broker_timestamp=1, deliver_after=1,
                          due=1)  # fmt: skip
        columns = columns_of([message])
        [found] = delivered(delivered_stream(columns)).columns.to_messages()
        assert (("a\ufffd", b"1"),) == found.headers

    @pytest.mark.parametrize("said", [b"no json", b"[1]", b"[" * 100_000])
    def test_metadata_that_is_no_object(self, said: bytes) -> None:
        data = delivered_stream(columns_of([]))
        schema = pa.ipc.open_stream(data).schema.with_metadata({b"afterlog": said})
        with pytest.raises(InvalidRequest, match="metadata afterlog"):
            delivered(stream([], schema=schema))


class TestSent:
    @given(st.lists(st.tuples(BYTES, BYTES, HEADERS, st.integers(-1, 2**62)), max_size=5))
    def test_what_is_written_is_read(self, rows: list[tuple[bytes | None, bytes | None, Any, int]]) -> None:
        from afterlog.records.batch import encode_headers

        values, keys, headers, numbers = map(list, zip(*rows, strict=True)) if rows else ([], [], [], [])
        column = np.array(numbers, np.int64)
        data = sent_stream(
            values, keys=keys, headers=ragged([encode_headers(each) for each in headers])[0],
            delay_ms=np.maximum(column, 0), timestamps=column, partition=np.arange(len(rows)),
        )  # fmt: skip
        sent = sent_columns(data, NOW_MS)
        records = sent.records
        assert [value or b"" for value in values] == items(records.values)
        assert [value is not None for value in values] == (
            [True] * len(rows) if records.value_valid is None else records.value_valid.tolist()
        )
        assert records.keys is not None
        assert [key or b"" for key in keys] == items(records.keys)
        read = [()] * len(rows) if records.headers is None else map(decode_headers, items(records.headers))
        assert [list(each) for each in headers] == [list(each) for each in read]
        assert (np.maximum(column, 0) + NOW_MS).tolist() == records.deliver_after.tolist()
        assert column.tolist() == records.timestamps.tolist()
        assert sent.partition is not None
        assert list(range(len(rows))) == sent.partition.tolist()

    def test_value_alone(self) -> None:
        sent = sent_columns(stream(batch(value=["a", None])), NOW_MS)
        assert [b"a", b""] == items(sent.records.values)
        assert sent.records.value_valid is not None
        assert [True, False] == sent.records.value_valid.tolist()
        assert [NOW_MS, NOW_MS] == sent.records.timestamps.tolist()
        assert [-1, -1] == sent.records.deliver_after.tolist()
        assert (None, None, None, None) == (sent.records.keys, sent.records.headers, sent.partition, sent.unique_keys)

    def test_many_batches_and_none(self) -> None:
        one = batch(value=[b"a"])
        assert [b"a", b"a"] == items(sent_columns(stream([one, one]), NOW_MS).records.values)
        assert 0 == len(sent_columns(stream([], schema=one.schema), NOW_MS).records)
        assert 0 == len(sent_columns(sent_stream([], unique_keys=[], delay_ms=np.empty(0, np.int64)), 1).records)

    @pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
    @pytest.mark.parametrize("zone", [None, "UTC", "Europe/Zurich"])
    def test_instants_of_any_unit_are_rounded_up(self, unit: str, zone: str | None) -> None:
        ticks = {"s": 2_000_000_000, "ms": 2_000_000_000_001, "us": 2_000_000_000_000_001, "ns": 2 * 10**18 + 1}[unit]
        column = pa.array([ticks, None], pa.timestamp(unit, zone))
        asked = sent_columns(stream(batch(value=[b"a", b"b"], deliver_after=column)), NOW_MS).records.deliver_after
        assert [2_000_000_000_000 + (unit != "s"), -1] == asked.tolist()

    @pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
    def test_delays(self, unit: str) -> None:
        ticks = {"s": 1, "ms": 1_000, "us": 999_001, "ns": 999_000_001}[unit]
        column = pa.array([ticks, None], pa.duration(unit))
        asked = sent_columns(stream(batch(value=[b"a", b"b"], delay=column)), NOW_MS).records.deliver_after
        assert [NOW_MS + 1_000, -1] == asked.tolist()

    def test_one_delay_for_all(self) -> None:
        asked = sent_columns(stream(batch(value=[b"a", b"b"])), NOW_MS, delay=1.5).records.deliver_after
        assert [NOW_MS + 1_500] * 2 == asked.tolist()

    @pytest.mark.parametrize(
        ("columns", "options"),
        [
            ({"deliver_after": [1], "delay": [1]}, {}),
            ({"deliver_after": [1]}, {"delay": 1}),
            ({"delay": [1]}, {"delay": 1}),
            ({"deliver_after": [-5]}, {}),
            ({"delay": [-5]}, {}),
            ({"delay": [2**63 - 5]}, {}),
            ({"deliver_after": pa.array([-1_000], pa.timestamp("us"))}, {}),
            ({"deliver_after": pa.array([2**62], pa.timestamp("s"))}, {}),
            ({"deliver_after": pa.array([-(2**63)], pa.int64()).cast(pa.timestamp("ns"))}, {}),
            ({"deliver_after": [1_700_000_000]}, {"check": True}),
        ],
    )
    def test_times_that_cannot_be(self, columns: Any, options: Any) -> None:
        with pytest.raises(InvalidDeliverAfter):
            sent_columns(stream(batch(value=[b"a"], **columns)), NOW_MS, **options)

    def test_unique_keys_are_headers(self) -> None:
        headers = pa.array(
            [[("a", b"1")], [], None], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        )
        for columns in ({}, {"headers": headers}):
            data = stream(batch(value=[b"a", b"b", b"c"], unique_key=["x", None, "z"], **columns))
            sent = sent_columns(data, NOW_MS)
            assert [b"x", None, b"z"] == sent.unique_keys
            assert sent.records.headers is not None
            assert [b"x", None, b"z"] == [key_of(section) for section in items(sent.records.headers)]

    @pytest.mark.parametrize(
        "headers", [[[{"key": None, "value": b"x"}]], [[None]], [[{"key": "deliver-after", "value": b"x"}]]]
    )
    def test_headers_that_cannot_be(self, headers: Any) -> None:
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        with pytest.raises(InvalidRecord):
            sent_columns(stream(batch(value=[b"a"], headers=pa.array(headers, kind))), NOW_MS)

    def test_headers_as_others_write_them(self) -> None:
        entry = pa.struct([pa.field("key", pa.large_string(), nullable=False), pa.field("value", pa.large_binary())])
        kind = pa.large_list(pa.field("element", entry, nullable=False))
        data = stream(batch(value=[b"a"], headers=pa.array([[{"key": "n", "value": b"x"}]], kind)))
        sent = sent_columns(data, NOW_MS)
        assert sent.records.headers is not None
        assert [[("n", b"x")]] == [decode_headers(section) for section in items(sent.records.headers)]


class TestReceiptsAndPlaces:
    @given(st.lists(st.tuples(*[st.integers(0, 2**63 - 1)] * 4), max_size=5))
    def test_receipts(self, rows: list[tuple[int, int, int, int]]) -> None:
        receipts = Receipts(*np.array(rows, np.int64).reshape(-1, 4).T)
        assert rows == list(zip(*(column.tolist() for column in receipts_of(receipts_stream(receipts))), strict=True))

    def test_places(self) -> None:
        partition, offset = placed_of(placed_stream(np.array([0, 2]), np.array([5, 2**40])))
        assert ([0, 2], [5, 2**40]) == (partition.tolist(), offset.tolist())

    @pytest.mark.parametrize("number", [None, -1])
    def test_numbers_that_are_none(self, number: int | None) -> None:
        rows = {name: pa.array([number], pa.int64()) for name in Receipts._fields}
        with pytest.raises(InvalidRequest, match="column 'partition' has"):
            receipts_of(stream(batch(**rows)))


class TestRefused:
    @pytest.mark.parametrize("compression", ["lz4", "zstd"])
    def test_compressed_buffers(self, compression: str) -> None:
        with pytest.raises(InvalidRequest, match="compressed"):
            sent_columns(stream(batch(value=[b"a" * 1_000]), compression=compression), NOW_MS)

    def test_dictionaries(self) -> None:
        with pytest.raises(InvalidRequest, match="'value' is binary or string, not dictionary"):
            sent_columns(stream(batch(value=pa.array(["a", "a"]).dictionary_encode())), NOW_MS)

    def test_a_dictionary_batch_of_a_plain_schema(self) -> None:
        plain, coded = stream(batch(value=["a"])), stream(batch(value=pa.array(["a"]).dictionary_encode()))
        messages = list(pa.ipc.MessageReader.open_stream(coded))
        schema = next(iter(pa.ipc.MessageReader.open_stream(plain)))
        assert ["schema", "dictionary", "record batch"] == [each.type for each in messages]
        data = b"".join(bytes(each.serialize()) for each in (schema, messages[1]))
        with pytest.raises(InvalidRequest, match="a dictionary cannot be taken"):
            sent_columns(data, NOW_MS)

    @pytest.mark.parametrize(
        ("columns", "what"),
        [
            ({"value": ["a"], "colour": ["red"]}, "no column 'colour'"),
            ({"key": ["a"]}, "'value' is missing"),
            ({"value": [1]}, "'value' is binary or string, not int64"),
            ({"value": pa.nulls(3)}, "not null"),
            ({"value": ["a"], "partition": [1.5]}, "'partition' is int64 or int32, not double"),
            ({"value": ["a"], "headers": ["x"]}, "'headers' is list"),
            ({"value": pa.array(["a"], pa.string_view())}, "not string_view"),
            ({"value": pa.array([[b"a"]], pa.list_(pa.binary()))}, "not list"),
        ],
    )
    def test_columns_that_are_not_asked_for(self, columns: Any, what: str) -> None:
        with pytest.raises(InvalidRequest, match=what):
            sent_columns(stream(batch(**columns)), NOW_MS)

    def test_a_column_that_is_there_twice(self) -> None:
        twice = pa.RecordBatch.from_arrays([pa.array(["a"])] * 2, names=["value", "value"])
        with pytest.raises(InvalidRequest, match="'value' is there twice"):
            sent_columns(stream(twice), NOW_MS)

    @pytest.mark.parametrize("data", [b"", b"\xff\xff\xff\xff\0\0\0\0", b"abc", b"{}", b"\xff" * 100, bytes(100)])
    def test_what_is_no_stream(self, data: bytes) -> None:
        with pytest.raises(InvalidRequest):
            sent_columns(data, NOW_MS)

    def test_a_batch_before_the_schema(self) -> None:
        message = list(pa.ipc.MessageReader.open_stream(stream(batch(value=["a"]))))[1]
        with pytest.raises(InvalidRequest, match="begins with its schema"):
            sent_columns(bytes(message.serialize()), NOW_MS)

    def test_text_that_is_no_utf8(self) -> None:
        """Offsets and texts are looked through before they are used."""
        data = stream(batch(value=["aaaa"]))
        at = data.index(b"aaaa")
        with pytest.raises(InvalidRequest, match="UTF8"):
            sent_columns(data[:at] + b"\xff\xff\xff\xff" + data[at + 4 :], NOW_MS)

    def test_offsets_that_lead_elsewhere(self) -> None:
        data = stream(batch(value=pa.array([b"abcd", b"efgh"], pa.large_binary())))
        wanted = np.array([0, 4, 8], "<i8").tobytes()
        at = data.index(wanted)
        for wrong in ([0, 4, 2**40], [0, 9, 8], [-8, 4, 8], [4, 0, 8]):
            bad = data[:at] + np.array(wrong, "<i8").tobytes() + data[at + 24 :]
            with pytest.raises(InvalidRequest):
                sent_columns(bad, NOW_MS)

    def test_too_many_rows_too_many_batches_too_much_metadata(self, monkeypatch: pytest.MonkeyPatch) -> None:
        two = stream([batch(value=["a"])] * 2)
        for name, least in (("ROWS_MAX", 1), ("BATCHES_MAX", 1), ("METADATA_BYTES_MAX", 100)):
            with monkeypatch.context() as patched:
                patched.setattr(arrow_message, name, least)
                with pytest.raises(RequestTooLarge):
                    sent_columns(two, NOW_MS)
        assert 2 == len(sent_columns(two, NOW_MS).records)

    def test_columns_of_different_length(self) -> None:
        with pytest.raises(InvalidRecord, match="one length"):
            sent_stream([b"a"], keys=[b"a", b"b"])

    @given(st.data())
    def test_whatever_is_broken_in_it_is_an_error_of_ours_or_nothing(self, data: st.DataObject) -> None:
        whole = data.draw(st.sampled_from(WHOLE))
        broken = bytearray(whole)
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(broken) - 1))
            if data.draw(st.booleans()):
                broken[at] = data.draw(st.integers(0, 255))
            else:
                broken[at : at + 4] = data.draw(
                    st.sampled_from([b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f"])
                )
        cut = data.draw(st.integers(0, len(broken)) | st.just(len(broken)))
        for read in (lambda sent: sent_columns(sent, NOW_MS), delivered, receipts_of, placed_of):
            try:
                read(bytes(broken[:cut]))
            except AfterlogError:
                pass


def whole() -> Iterator[bytes]:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    yield stream(
        batch(
            value=pa.array(["a", None, "ccc"]), key=pa.array([b"1", b"2", None], pa.large_binary()),
            headers=pa.array([[("a", b"1")], None, []], kind), partition=pa.array([0, None, 2], pa.int32()),
            deliver_after=pa.array([2 * 10**12, None, 0], pa.timestamp("us", "UTC")), unique_key=["x", None, "y"],
        )
    )  # fmt: skip
    yield receipts_stream(Receipts(*[np.arange(3)] * 4))
    yield placed_stream(np.arange(2), np.arange(2))
    message = Message(topic="mail", partition=0, offset=0, delivery_offset=0, key=None, value=b"x",
                      headers=(("a", b"1"),), timestamp=1, broker_timestamp=1, deliver_after=1, due=1)  # fmt: skip
    yield delivered_stream(columns_of([message, message]), json.loads('{"positions": {"0": 1}}'))


WHOLE = list(whole())


def test_offsets_of_which_the_buffer_ends_amid_one() -> None:
    """As the fuzzer found them: Arrow takes them for right, and it says nothing against that."""
    buffer = pa.py_buffer(np.array([0, 1, 3], np.int32).tobytes() + b"x")
    column = pa.Array.from_buffers(pa.binary(), 2, [None, buffer, pa.py_buffer(b"abc")])
    column.validate(full=True)
    assert [b"a", b"bc"] == items(encode.ragged(column)[0])
    assert [b"bc"] == items(encode.ragged(column[1:])[0])
