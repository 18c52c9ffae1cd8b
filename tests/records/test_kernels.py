"""The kernels: each promise held by both implementations, and the two held against each other on whatever bytes."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import Any

import crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.base.errors import AfterlogError, InvalidBatch, InvalidDeliverAfter, InvalidRecord, RecordTooLarge
from afterlog.base.files import Bytes
from afterlog.records import _kernels, kernels, pure
from afterlog.records.batch import decode_headers, encode_headers
from afterlog.records.columns import (
    BODY_CRC,
    EPOCH,
    EXTRA_BYTES_MAX,
    FAULTS,
    HEADER_CRC,
    INDEX,
    INT64_MAX,
    LENGTH,
    LOST,
    MAGIC,
    OFFSET,
    OK,
    PREFIX,
    SHORT,
    Bools,
    Int32Array,
    Int64Array,
    Producers,
    Ragged,
    ragged,
)
from afterlog.records.entry import protobuf_field
from afterlog.records.header import HEADER_BYTES, BatchHeader, with_crc
from afterlog.records.varint import zigzag
from tests.campaigns import WHOLE
from tests.records.forged import MALFORMED_METADATA, forged_entry

T = 1_700_000_000_000
both = pytest.mark.parametrize("kernel", [pure, _kernels], ids=["pure", "compiled"])


# ---- what to feed them


@dataclass(frozen=True)
class Rows:
    """The arguments of `encode_batches`."""

    values: Ragged
    value_valid: Bools | None
    keys: Ragged | None
    key_valid: Bools | None
    headers: Ragged | None
    timestamps: Int64Array
    deliver_after: Int64Array | None
    bounds: Int64Array

    def encode(self, kernel: ModuleType) -> tuple[Bytes, Int64Array]:
        data, positions = kernel.encode_batches(*vars(self).values())
        return data, positions


def ints(*numbers: int) -> Int64Array:
    return np.array(numbers, np.int64)


def rows(
    values: list[bytes | None],
    *,
    keys: list[bytes | None] | None = None,
    headers: list[bytes | None] | None = None,
    timestamps: list[int] | None = None,
    deliver_after: list[int] | None = None,
    bounds: list[int] | None = None,
) -> Rows:
    value, value_valid = ragged(values)
    key, key_valid = ragged(keys) if keys is not None else (None, None)
    return Rows(
        value,
        value_valid,
        key,
        key_valid,
        ragged(headers)[0] if headers is not None else None,
        np.array(timestamps if timestamps is not None else [T] * len(values), np.int64),
        np.array(deliver_after, np.int64) if deliver_after is not None else None,
        np.array(bounds if bounds is not None else [0, len(values)], np.int64),
    )


NULLABLE = st.none() | st.binary(max_size=20) | st.binary(min_size=60, max_size=70).map(lambda part: part * 3)
HEADER_KEY = st.text(max_size=5) | st.just("deliver-after")
HEADER_VALUE = st.none() | st.binary(max_size=9) | st.just(b"1700000000000")
SECTION = st.lists(st.tuples(HEADER_KEY, HEADER_VALUE), max_size=3).map(encode_headers)
TIMESTAMP = st.integers(T, T + 1_000) | st.integers(-(2**63), INT64_MAX)
TIME = st.integers(-1, 5) | st.integers(0, INT64_MAX)


@st.composite
def some_rows(draw: st.DrawFn, header_sections: st.SearchStrategy[bytes] = SECTION) -> Rows:
    count = draw(st.integers(0, 6))

    def column(items: st.SearchStrategy[bytes | None]) -> list[bytes | None]:
        return draw(st.lists(items, min_size=count, max_size=count))

    def numbers(items: st.SearchStrategy[int]) -> list[int]:
        return draw(st.lists(items, min_size=count, max_size=count))

    return rows(
        column(NULLABLE),
        keys=column(NULLABLE) if draw(st.booleans()) else None,
        headers=column(header_sections) if draw(st.booleans()) else None,
        timestamps=numbers(TIMESTAMP),
        deliver_after=numbers(TIME) if draw(st.booleans()) else None,
        bounds=sorted(draw(st.sets(st.integers(0, count), min_size=1))),
    )


@dataclass(frozen=True)
class Log:
    """Entries as a segment would hold them."""

    data: Bytes
    positions: Int64Array

    def damaged(self, draw: st.DrawFn) -> Bytes:
        """Some bytes changed, a stretch cut off."""
        data = self.data.copy()
        for _ in range(draw(st.integers(0, 2))):
            if len(data):
                data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
        return data[: draw(st.integers(0, len(data)) | st.just(len(data)))].copy()


@st.composite
def some_log(draw: st.DrawFn) -> Log:
    data, positions = draw(some_rows()).encode(pure)
    if draw(st.integers(0, 4)) == 0:
        return Log(data, positions - positions[0])
    batches = len(positions) - 1
    asked = np.array(draw(st.lists(TIME, min_size=batches, max_size=batches)), np.int64)
    extra = draw(st.just(b"") | st.just(protobuf_field(32, b"rack-7")))
    first = draw(st.integers(0, 300))
    return Log(*pure.stamp_entries(data, positions, first, 3, asked, extra))


@st.composite
def nearly_a_record(draw: st.DrawFn) -> bytes:
    """Bytes that come close to being a record, so that every check gets its turn."""
    number = st.sampled_from([0, 0, 0, 1, 2, 3, -1, -2, 13, 100, 2**31 - 1, -(2**31), 2**31, 2**40])
    text = st.binary(max_size=3) | st.just(b"deliver-after") | st.just(T.to_bytes(8, "big")) | st.just(b"1700")
    part = (
        number.map(lambda value: zigzag(min(max(value, -(2**63)), INT64_MAX)))
        | text.map(lambda value: zigzag(len(value)) + value)
        | st.sampled_from([b"\x80", b"\xff" * 11, b"\x01", b"\x00", b"\x80\x00"])
    )
    body = b"\0" + draw(st.just(zigzag(0)) | part) + draw(st.just(zigzag(0)) | part) + b"".join(draw(st.lists(part)))
    length = draw(st.just(len(body)) | st.just(len(body)) | st.integers(-2, 40))
    return zigzag(length) + body


def outcome(call: Callable[[], object]) -> object:
    """What came of it, comparable: arrays as lists with their types, errors as their type and words."""
    try:
        return flat(call())
    except (AfterlogError, ValueError) as error:
        return type(error), str(error)


def flat(result: object) -> object:
    if isinstance(result, np.ndarray):
        assert result.flags.c_contiguous
        return str(result.dtype), result.tolist()
    if isinstance(result, tuple):
        return [flat(part) for part in result]
    return result


def same(call: Callable[[ModuleType], object]) -> object:
    """The outcome, which must be the same of both."""
    expected, actual = outcome(lambda: call(pure)), outcome(lambda: call(_kernels))
    assert expected == actual
    return expected


def stamped(source: Rows, base_offset: int = 0, asked: Int64Array | None = None) -> Log:
    data, positions = source.encode(pure)
    batches = len(positions) - 1
    asked = np.full(batches, T + 5, np.int64) if asked is None else asked
    return Log(*pure.stamp_entries(data, positions, base_offset, T, asked, b""))


def the_one_batch(batch: bytes) -> tuple[list[Bytes], Int32Array, Int64Array, Int64Array]:
    data = np.frombuffer(batch, np.uint8)
    return [data], np.zeros(1, np.int32), ints(0), ints(len(data))


# ---- the module


def test_the_compiled_kernels_are_taken() -> None:
    assert _kernels.encode_batches is kernels.encode_batches


def test_codes_have_words() -> None:
    assert list(range(len(FAULTS))) == [
        OK, SHORT, MAGIC, LENGTH, HEADER_CRC, BODY_CRC, OFFSET, EPOCH, PREFIX, INDEX, LOST,
    ]  # fmt: skip


@pytest.mark.parametrize("by_table", [True, False])
@given(st.binary(max_size=100))
def test_crc32c(by_table: bool, data: bytes) -> None:
    assert crc32c.crc32c(data) == _kernels.crc32c(np.frombuffer(data, np.uint8), by_table)


# ---- encode_batches


@given(some_rows())
def test_both_encode_the_same(source: Rows) -> None:
    same(source.encode)


@given(some_rows(st.binary(max_size=12)))
def test_both_refuse_the_same_headers(source: Rows) -> None:
    same(source.encode)


@both
@given(source=some_rows())
def test_what_was_encoded_is_decoded(kernel: ModuleType, source: Rows) -> None:
    data, positions = source.encode(kernel)
    first, stop = int(source.bounds[0]), int(source.bounds[-1])
    batches = len(positions) - 1
    try:
        decoded = kernel.decode_records(
            [data], np.zeros(batches, np.int32), positions[:-1], np.diff(positions), np.diff(source.bounds)
        )
    except InvalidDeliverAfter:
        return  # a header of the user's that has the name and not the shape
    assert source.timestamps[first:stop].tolist() == decoded.timestamp.tolist()
    for expected, valid, actual, actual_valid in (
        (source.values, source.value_valid, decoded.value, decoded.value_valid),
        (source.keys, source.key_valid, decoded.key, decoded.key_valid),
    ):
        items = [None] * (stop - first) if expected is None else nullable(expected, valid)[first:stop]
        assert items == nullable(actual, actual_valid)


def nullable(column: Ragged, valid: Bools | None) -> list[bytes | None]:
    offsets, data = column
    items = [data[start:end].tobytes() for start, end in pairwise(offsets)]
    return [item if valid is None or valid[place] else None for place, item in enumerate(items)]


@both
def test_columns_may_start_anywhere_and_be_read_only(kernel: ModuleType) -> None:
    data = np.frombuffer(b"--one+two--", np.uint8)
    values = (ints(2, 5, 9), data)
    source = Rows(values, None, None, None, None, ints(T, T), None, ints(0, 1, 2))
    for array in (*values, source.timestamps, source.bounds):
        array.setflags(write=False)
    expected = rows([b"one", b"+two"], bounds=[0, 1, 2]).encode(pure)[0].tobytes()
    assert expected == source.encode(kernel)[0].tobytes()


@both
def test_only_times_that_differ_travel_in_headers(kernel: ModuleType) -> None:
    own = encode_headers([("trace", b"7")])
    source = rows(
        [b"a", b"b", b"c", b"d"],
        headers=[own, own, b"", b""],
        deliver_after=[T, T + 9, -1, T + 9],
    )
    data, positions = source.encode(kernel)
    decoded = kernel.decode_records([data], np.zeros(1, np.int32), ints(0), np.diff(positions), ints(4))
    assert [T, -1, -1, -1] == decoded.deliver_after.tolist()
    sections = [decode_headers(section or b"") for section in nullable(decoded.headers, None)]
    mark = ("deliver-after", T.to_bytes(8, "big"))
    assert [[("trace", b"7"), mark], [("trace", b"7")], [], []] == sections


@both
@pytest.mark.parametrize("section", [b"\x02", b"\x01", b"\x02\x01\x00", b"\x00x", b"\x02\x02a\x05", b"\x80"])
def test_malformed_headers_are_refused(kernel: ModuleType, section: bytes) -> None:
    with pytest.raises(InvalidRecord, match="record 1: malformed headers"):
        rows([b"a", b"b"], headers=[b"", section]).encode(kernel)


@pytest.mark.parametrize("first_bytes", [100, 2**31 - 100] if WHOLE else [100])  # the latter: a copy of 2 GiB
def test_a_batch_beyond_int32_is_refused_before_it_is_written(first_bytes: int) -> None:
    values = (ints(0, first_bytes, 2**31), np.zeros(2**31, np.uint8))
    with pytest.raises(RecordTooLarge, match="batch 0"):
        Rows(values, None, None, None, None, ints(T, T), None, ints(0, 2)).encode(_kernels)


GOOD = rows([b"one", b"two"], keys=[b"k", None], headers=[b"", b""], deliver_after=[1, 2])


@both
@pytest.mark.parametrize(
    "wrong",
    [
        {"values": (ints(0, 3), GOOD.values[1])},
        {"values": (ints(0, 4, 3), GOOD.values[1])},
        {"values": (ints(0, 3, 7), GOOD.values[1])},
        {"values": (ints(-1, 3, 6), GOOD.values[1])},
        {"keys": (ints(0, 1), GOOD.values[1])},
        {"headers": (ints(0, 0), GOOD.values[1])},
        {"value_valid": np.ones(3, np.bool_)},
        {"key_valid": np.ones(1, np.bool_)},
        {"deliver_after": ints(1)},
        {"timestamps": ints(1)},
        {"bounds": ints()},
        {"bounds": ints(0, 0, 2)},
        {"bounds": ints(0, 3)},
        {"bounds": ints(-1, 2)},
    ],
)
def test_columns_that_contradict_each_other(kernel: ModuleType, wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"items|rise"):
        kernel.encode_batches(**(vars(GOOD) | wrong))


# ---- stamp_entries


@given(
    some_rows(),
    st.integers(0, 2**40),
    st.integers(0, INT64_MAX),
    st.data(),
    st.sampled_from([b"", protobuf_field(32, b"rack-7")]),
)
def test_both_stamp_the_same(source: Rows, base_offset: int, now: int, data: st.DataObject, extra: bytes) -> None:
    batches, positions = source.encode(pure)
    count = len(positions) - 1
    asked = data.draw(
        st.none() | st.lists(TIME, min_size=count, max_size=count).map(lambda due: np.array(due, np.int64))
    )
    same(lambda kernel: kernel.stamp_entries(batches, positions, base_offset, now, asked, extra))


@both
def test_stamping(kernel: ModuleType) -> None:
    batches, positions = rows([b"a", b"b", b"c", b"d"], bounds=[0, 1, 3, 4]).encode(kernel)
    asked = ints(T + 60, T - 60, -1)
    data, entry_positions = kernel.stamp_entries(batches, positions, 10, T, asked, b"")
    scan = kernel.scan_entries(data, 0, len(data), 10, True)
    assert (OK, len(data)) == (scan.fault, scan.stop)
    assert entry_positions[:-1].tolist() == scan.position.tolist()
    assert np.diff(entry_positions).tolist() == scan.size.tolist()
    assert [10, 11, 13] == scan.offset.tolist()
    assert [1, 2, 1] == scan.records.tolist()
    assert [T + 60, T, T] == scan.deliver_after.tolist()
    assert [T, T, T] == scan.broker_timestamp.tolist() == scan.max_timestamp.tolist()
    checked = kernel.check_entries(
        [data], np.zeros(3, np.int32), scan.position, scan.offset, scan.records, scan.deliver_after
    )
    assert (OK, 3) == (checked.fault, checked.row)
    assert [T + 60, T - 60, T] == checked.asked.tolist()
    assert [T] * 3 == checked.broker_timestamp.tolist()
    assert scan.batch_position.tolist() == checked.batch_positions.tolist()
    assert np.diff(positions).tolist() == checked.batch_sizes.tolist()
    assert [0, 0, 0] == checked.attributes.tolist()


@both
def test_stamping_where_the_topic_is_not_delayed(kernel: ModuleType) -> None:
    batches, positions = rows([b"a"]).encode(kernel)
    data, _ = kernel.stamp_entries(batches, positions, 10, T, None, protobuf_field(32, 1))
    scan = kernel.scan_entries(data, 0, len(data), 10, True)
    assert ([-1], [T]) == (scan.deliver_after.tolist(), scan.broker_timestamp.tolist())


@both
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((ints(0, 60), 0, T, ints(1), b""), "rise"),
        ((ints(0, 90), 0, T, ints(1), b""), "rise"),
        ((ints(0, 68), -1, T, ints(1), b""), "base offset"),
        ((ints(0, 68), 0, -1, ints(1), b""), "broker timestamp"),
        ((ints(0, 68), 0, T, ints(1, 2), b""), "asked"),
        ((ints(0, 68), 0, T, ints(1), bytes(EXTRA_BYTES_MAX + 1)), "extra"),
    ],
)
def test_stamps_that_contradict_each_other(kernel: ModuleType, arguments: tuple[object, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        kernel.stamp_entries(rows([b"a"]).encode(pure)[0], *arguments)


# ---- encode_entries


EXTRA = st.sampled_from([b"", protobuf_field(32, b"rack-7")])


@given(some_rows(), st.integers(0, 2**40), TIME.filter(lambda now: now >= 0), EXTRA)
def test_both_encode_the_same_entries(source: Rows, base_offset: int, now: int, extra: bytes) -> None:
    same(lambda kernel: kernel.encode_entries(*vars(source).values(), base_offset, now, extra))


@given(some_rows(st.binary(max_size=12)))
def test_both_refuse_the_same_headers_of_entries(source: Rows) -> None:
    same(lambda kernel: kernel.encode_entries(*vars(source).values(), 7, T, b""))


def producers_for(source: Rows, first: tuple[int, int, int]) -> Producers:
    """Of each batch another."""
    batches = np.arange(len(source.bounds) - 1)
    return Producers(*(np.minimum(field, 2**62) - batches for field in first))


SENT = st.tuples(st.integers(-1, 2**62), st.integers(-1, 2**15 - 1), st.integers(-1, 2**31 - 1))


@given(some_rows(), SENT)
def test_both_encode_the_same_producers(source: Rows, first: tuple[int, int, int]) -> None:
    arguments, producers = vars(source).values(), producers_for(source, first)
    same(lambda kernel: kernel.encode_batches(*arguments, producers))
    same(lambda kernel: kernel.encode_entries(*arguments, 7, T, b"", producers))


@both
@given(source=some_rows(), first=SENT)
def test_producers_change_nothing_else(kernel: ModuleType, source: Rows, first: tuple[int, int, int]) -> None:
    """Each header has its own; the rest is as without, but for the checksums."""
    data, positions = source.encode(kernel)
    producers = producers_for(source, first)
    named, same_positions = kernel.encode_batches(*vars(source).values(), producers)
    assert positions.tolist() == same_positions.tolist()
    for batch, (start, end) in enumerate(pairwise(positions.tolist())):
        header = BatchHeader.read(memoryview(named), start)
        producer = header.producer_id, header.producer_epoch, header.base_sequence
        assert producers.of(batch) == producer
        assert with_crc(header, named[start + HEADER_BYTES : end].tobytes()) == named[start:end].tobytes()
        before = header._replace(producer_id=-1, producer_epoch=-1, base_sequence=-1)
        assert with_crc(before, named[start + HEADER_BYTES : end].tobytes()) == data[start:end].tobytes()


@both
def test_producers_of_other_batches(kernel: ModuleType) -> None:
    producers = Producers(ints(7), ints(0), ints(5))
    for arguments in ((), (7, T, b"")):
        encode = kernel.encode_entries if arguments else kernel.encode_batches
        with pytest.raises(ValueError, match="producers"):
            encode(*vars(rows([b"a", b"b"], bounds=[0, 1, 2])).values(), *arguments, producers)


@both
@given(source=some_rows())
def test_entries_are_batches_stamped(kernel: ModuleType, source: Rows) -> None:
    data, positions = source.encode(kernel)
    asked = None
    if source.deliver_after is not None:
        asked = ints(*(int(source.deliver_after[first:stop].max()) for first, stop in pairwise(source.bounds)))
    expected = kernel.stamp_entries(data, positions, 7, 3, asked, b"")
    assert flat(expected) == flat(kernel.encode_entries(*vars(source).values(), 7, 3, b""))


@both
def test_entries_that_contradict_each_other(kernel: ModuleType) -> None:
    arguments = tuple(vars(GOOD).values())
    for base_offset, now, extra, words in (
        (-1, T, b"", "base offset"),
        (0, -1, b"", "broker timestamp"),
        (0, T, bytes(EXTRA_BYTES_MAX + 1), "extra"),
    ):
        with pytest.raises(ValueError, match=words):
            kernel.encode_entries(*arguments, base_offset, now, extra)
    with pytest.raises(ValueError, match="bounds"):
        kernel.encode_entries(*arguments[:-1], ints(0, 3), 0, T, b"")


# ---- encode_single


STAMP = TIME.filter(lambda now: now >= 0)


SINGLE = st.tuples(
    NULLABLE, NULLABLE, SECTION | st.binary(max_size=12), TIMESTAMP, TIME, st.integers(0, 2**40), STAMP
)  # fmt: skip


@given(SINGLE, st.none() | SENT, st.sampled_from([0, 0x20, 0x7FF8]))
def test_both_encode_the_same_single(record: tuple[Any, ...], sent: tuple[int, int, int] | None, bits: int) -> None:
    same(lambda kernel: np.frombuffer(kernel.encode_single(*record, sent, bits), np.uint8))


@both
@given(value=NULLABLE, key=NULLABLE, headers=SECTION, timestamp=TIMESTAMP, deliver_after=TIME)
def test_a_single_is_columns_of_one(
    kernel: ModuleType, value: bytes | None, key: bytes | None, headers: bytes, timestamp: int, deliver_after: int
) -> None:
    source = rows([value], keys=[key], headers=[headers], timestamps=[timestamp], deliver_after=[deliver_after])
    expected, _ = kernel.encode_entries(*vars(source).values(), 7, 3, b"")
    assert expected.tobytes() == kernel.encode_single(value, key, headers, timestamp, deliver_after, 7, 3)


# ---- read_single


def single(kernel: ModuleType, data: bytes, offset: int = 7, due: int = T) -> Any:
    """What read_single says, which is what read_records says of the same where it says anything."""
    found = kernel.read_single(data, offset, due)
    if found is not None:
        place = np.zeros(1, np.int32), ints(0), ints(offset), ints(1), ints(due)
        read = kernel.read_records([np.frombuffer(data, np.uint8)], *place, 1).decoded
        key, value, headers, timestamp, deliver_after, broker_timestamp = found
        assert (timestamp, deliver_after, broker_timestamp) == tuple(int(column[0]) for column in read[5:])
        assert (key is not None, value is not None) == (read.key_valid[0], read.value_valid[0])
        assert (key or b"", value or b"", headers) == tuple(read[column][1].tobytes() for column in (0, 2, 4))
    return found


@both
@given(record=SINGLE, behind=st.binary(max_size=9))
def test_what_was_encoded_by_itself_is_read_by_itself(
    kernel: ModuleType, record: tuple[Any, ...], behind: bytes
) -> None:
    value, key, headers, timestamp, asked, offset, stamp = record
    try:
        data = kernel.encode_single(*record)
    except InvalidRecord:  # headers that are none
        return
    due = max(asked, stamp)
    found = single(kernel, data + behind, offset, due)
    if b"deliver-after" in headers:  # it may have a time of its own
        return
    section = headers if headers and decode_headers(headers) else b""  # which may say that there are none
    assert (key, value, section, timestamp, due if asked < 0 else asked, stamp) == found
    assert kernel.read_single(data, offset + 1, due) is None
    assert kernel.read_single(data, offset, due - 1) is None
    assert kernel.read_single(data[:-1], offset, due) is None


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_no_bit_of_a_single_is_believed_without_its_checksum(place: int, flips: int) -> None:
    data = bytearray(pure.encode_single(b"value", b"key", b"", T, T, 7, 3))
    data[place % len(data)] ^= flips
    for kernel in (pure, _kernels):
        assert kernel.read_single(bytes(data), 7, T) is None


@given(batch=st.lists(st.tuples(NULLABLE, NULLABLE, TIMESTAMP), min_size=1, max_size=5), flip=st.integers(0, 10_000))
def test_one_of_several_is_what_its_columns_say(batch: list[tuple[Any, ...]], flip: int) -> None:
    values, keys, timestamps = zip(*batch, strict=True)
    source = rows([*values], keys=[*keys], timestamps=[*timestamps], bounds=[0, len(batch)])
    data = pure.encode_entries(*vars(source).values(), 7, T, b"")[0].tobytes()
    due = int(pure.scan_entries(np.frombuffer(data, np.uint8), 0, len(data), 7, True).deliver_after[0])
    rotten = bytearray(data)
    rotten[flip % len(data)] ^= 1
    for row in range(-1, len(batch) + 1):
        for content in (data, bytes(rotten), data[:-1], data + b"behind"):
            found = [kernel.read_single(content, 7, due, row, len(batch)) for kernel in (pure, _kernels)]
            assert found[0] == found[1]
            if content in (data, data + b"behind") and 0 <= row < len(batch):
                assert found[0] is not None
                assert (keys[row], values[row], timestamps[row]) == (found[0][0], found[0][1], found[0][3])
            else:
                assert found[0] is None
    for kernel in (pure, _kernels):
        assert kernel.read_single(data, 7, due, 0, len(batch) + 1) is None


@both
def test_more_than_a_single_is_read_by_its_columns(kernel: ModuleType) -> None:
    own = encode_headers([("deliver-after", T.to_bytes(8, "big"))])
    for source in (rows([b"a", b"b"], bounds=[0, 2]), rows([b"a"], headers=[own])):
        due = None if source.deliver_after is None else T
        data, _ = kernel.encode_entries(*vars(source).values(), 7, T, b"")
        assert kernel.read_single(data.tobytes(), 7, -1 if due is None else due) is None
    assert kernel.read_single(b"", 7, T) is None


@both
def test_a_single_that_cannot_be_stamped(kernel: ModuleType) -> None:
    for base_offset, now in ((-1, T), (0, -1)):
        with pytest.raises(ValueError, match="out of range"):
            kernel.encode_single(b"", None, b"", T, T, base_offset, now)


@both
def test_offsets_that_overflow_do_not_rise(kernel: ModuleType) -> None:
    far = 2**62 + 1
    source = rows([b""] * 4, bounds=[0, 4])
    values = (ints(0, far, 1 - far, 0, 0), np.zeros(1, np.uint8))
    with pytest.raises(ValueError, match="rise"):
        kernel.encode_batches(**(vars(source) | {"values": values, "value_valid": None}))


# ---- scan_entries


@given(some_log(), st.data(), st.booleans(), st.integers(-1, 3), st.booleans())
def test_both_scan_the_same(log: Log, data: st.DataObject, check_bodies: bool, limit: int, any_epoch: bool) -> None:
    buffer = log.damaged(data.draw)
    start = data.draw(st.just(0) | st.integers(0, len(buffer)))
    end = data.draw(st.just(-1) | st.integers(start, len(buffer)))
    next_offset = data.draw(st.integers(-1, 3))
    same(lambda kernel: kernel.scan_entries(buffer, start, end, next_offset, check_bodies, limit, any_epoch))


@both
def test_a_scan_grows_with_what_it_finds(kernel: ModuleType) -> None:
    log = stamped(rows([b"x" * (size % 50) for size in range(2_000)], bounds=list(range(2_001))), 5)
    scan = kernel.scan_entries(log.data, 0, -1, 5, True)
    assert (OK, len(log.data)) == (scan.fault, scan.stop)
    assert list(range(5, 2_005)) == scan.offset.tolist()
    assert log.positions[:-1].tolist() == scan.position.tolist()


@both
def test_a_scan_stops_at_its_limit_and_goes_on(kernel: ModuleType) -> None:
    log = stamped(rows([b"a", b"b", b"c"], bounds=[0, 1, 2, 3]))
    first = kernel.scan_entries(log.data, 0, -1, 0, True, 2)
    assert (OK, int(log.positions[2]), [0, 1]) == (first.fault, first.stop, first.offset.tolist())
    rest = kernel.scan_entries(log.data, first.stop, -1, 2, True, 2)
    assert (OK, len(log.data), [2]) == (rest.fault, rest.stop, rest.offset.tolist())
    none = kernel.scan_entries(log.data, 0, -1, 0, True, 0)
    assert (OK, 0, []) == (none.fault, none.stop, none.offset.tolist())


PARTS = st.one_of(
    st.tuples(st.sampled_from([1, 2, 5, 16, 18, 32]), st.integers(0, 9) | st.integers(0, 2**64 - 1)),
    st.tuples(st.sampled_from([2, 9, 40]), st.binary(max_size=5)),
).map(lambda field: protobuf_field(*field)) | st.sampled_from(
    [*MALFORMED_METADATA, b"\x29" + bytes(8), b"\x35" + bytes(4), b"\xf8\xff\xff\xff\x0f\x01", b"\x88\x00\x07"]
)


@given(
    st.lists(PARTS, max_size=4).map(b"".join),
    st.sampled_from([7, -1, INT64_MAX, INT64_MAX - 1]),
    st.sampled_from([2, 2, 1]),
    st.sampled_from([1, 2, 0, -1]),
    st.sampled_from([0, 0, 1]),
)
def test_both_judge_the_same_of_forged_entries(fields: bytes, offset: int, count: int, delta: int, epoch: int) -> None:
    header = BatchHeader(offset, 0, epoch, 2, 0, 0, delta, T, T, -1, -1, -1, count)
    batch = with_crc(header._replace(length=51), b"ab")
    for entry in (forged_entry(fields, batch), batch):
        data = np.frombuffer(entry, np.uint8)
        same(lambda kernel, data=data: kernel.scan_entries(data, 0, -1, -1, True))  # type: ignore[misc]


@both
@pytest.mark.parametrize("fields", MALFORMED_METADATA)
def test_malformed_metadata(kernel: ModuleType, fields: bytes) -> None:
    batch = rows([b"a"]).encode(pure)[0].tobytes()
    data = np.frombuffer(forged_entry(fields, (7).to_bytes(8, "big") + batch[8:]), np.uint8)
    assert PREFIX == kernel.scan_entries(data, 0, -1, 7, True).fault


@both
@pytest.mark.parametrize(("offset", "fault"), [(INT64_MAX - 1, OK), (INT64_MAX, OFFSET), (-1, OFFSET)])
def test_offsets_at_the_edge(kernel: ModuleType, offset: int, fault: int) -> None:
    batch = rows([b"a", b"b"]).encode(pure)[0].copy()
    batch[:8] = np.frombuffer(offset.to_bytes(8, "big", signed=True), np.uint8)
    assert fault == kernel.scan_entries(batch, 0, -1, -1, True).fault


@both
def test_nothing_follows_the_last_offset_that_there_can_be(kernel: ModuleType) -> None:
    batch = rows([b"a"]).encode(pure)[0].tobytes()
    entries = [offset.to_bytes(8, "big") + batch[8:] for offset in (INT64_MAX, 5)]
    scan = kernel.scan_entries(np.frombuffer(b"".join(entries), np.uint8), 0, -1, INT64_MAX, True)
    assert (OFFSET, len(entries[0]), [INT64_MAX]) == (scan.fault, scan.stop, scan.offset.tolist())


@both
def test_every_torn_tail_is_short(kernel: ModuleType) -> None:
    log = stamped(rows([b"a", b"b"], bounds=[0, 1, 2]))
    whole = int(log.positions[1])
    for end in range(whole + 1, len(log.data)):
        scan = kernel.scan_entries(log.data, 0, end, 0, True)
        assert (SHORT, whole, [0]) == (scan.fault, scan.stop, scan.offset.tolist())


@both
def test_every_flipped_bit_is_found(kernel: ModuleType) -> None:
    log = stamped(rows([b"hello"], keys=[b"k"]))
    for bit in range(8 * len(log.data)):
        data = log.data.copy()
        data[bit // 8] ^= 1 << bit % 8
        assert kernel.scan_entries(data, 0, -1, 0, True).fault != OK


@both
def test_a_flipped_bit_in_a_body_is_not_looked_for_unasked(kernel: ModuleType) -> None:
    log = stamped(rows([b"hello"]))
    data = log.data.copy()
    data[-2] ^= 1
    assert (OK, BODY_CRC) == tuple(kernel.scan_entries(data, 0, -1, 0, bodies).fault for bodies in (False, True))


@both
def test_a_scan_finds_a_gap(kernel: ModuleType) -> None:
    log = stamped(rows([b"a"]), 7)
    assert OFFSET == kernel.scan_entries(log.data, 0, -1, 6, True).fault
    assert OK == kernel.scan_entries(log.data, 0, -1, -1, True).fault


@both
def test_attributes_and_epoch_of_a_bare_batch(kernel: ModuleType) -> None:
    batch = rows([b"a"]).encode(pure)[0].tobytes()
    header = BatchHeader.read(memoryview(batch), 0)
    data = np.frombuffer(with_crc(header._replace(attributes=-32_756), batch[61:]), np.uint8)
    scan = kernel.scan_entries(data, 0, -1, 0, True)
    assert (OK, [-32_756], [-1]) == (scan.fault, scan.attributes.tolist(), scan.broker_timestamp.tolist())
    data = np.frombuffer(header._replace(partition_leader_epoch=1).encode() + batch[61:], np.uint8)
    assert EPOCH == kernel.scan_entries(data, 0, -1, 0, True).fault
    of_a_broker = kernel.scan_entries(data, 0, -1, 0, True, any_epoch=True)
    assert (OK, len(data), [0]) == (of_a_broker.fault, of_a_broker.stop, of_a_broker.offset.tolist())


@both
@pytest.mark.parametrize(("start", "end"), [(-1, 5), (0, 6), (4, 3), (0, -2), (6, -1)])
def test_a_stretch_outside_the_buffer(kernel: ModuleType, start: int, end: int) -> None:
    with pytest.raises(ValueError, match="does not lie"):
        kernel.scan_entries(np.zeros(5, np.uint8), start, end, 0, True)


# ---- check_entries, read_records


@st.composite
def some_places(draw: st.DrawFn) -> tuple[object, ...]:
    """Entries in any order, some of them damaged, some not what the index says: the arguments of `check_entries`."""
    log = draw(some_log())
    scan = pure.scan_entries(log.data, 0, -1, -1, True)
    buffers = [log.damaged(draw), log.data]
    order = np.array(draw(st.lists(st.integers(0, len(scan.offset) - 1)) if len(scan.offset) else st.just([])), int)
    which = np.array(draw(st.lists(st.integers(0, 1), min_size=len(order), max_size=len(order))), np.int32)
    columns = [scan.position[order], scan.offset[order], scan.records[order], scan.deliver_after[order]]
    if len(order) and draw(st.booleans()):
        column, row = draw(st.sampled_from(columns)), draw(st.integers(0, len(order) - 1))
        with np.errstate(over="ignore"):  # round to the other end is as wrong as any
            column[row] += draw(st.integers(-400, 400) | st.just(-(2**62)) | st.just(2**62))
    return buffers, which, *columns[:3], columns[3] if draw(st.booleans()) else None


@given(some_places())
def test_both_check_the_same(places: tuple[object, ...]) -> None:
    same(lambda kernel: kernel.check_entries(*places))


@given(some_places(), st.integers(-1, 600) | st.just(2**62))
def test_both_read_the_same(places: tuple[object, ...], max_bytes: int) -> None:
    same(lambda kernel: kernel.read_records(*places, max_bytes))


@given(
    st.lists(st.tuples(st.lists(nearly_a_record(), min_size=1, max_size=2), st.integers(1, 3)), min_size=1, max_size=3),
    st.lists(st.sampled_from([0, 0, 0, 0, 8, 4]), min_size=3, max_size=3),
    st.integers(0, 300),
)
def test_both_read_the_same_of_near_records(
    parts: list[tuple[list[bytes], int]], attributes: list[int], max_bytes: int
) -> None:
    """Batches whose checksums are right, and whose records may be anything."""
    batches = [
        with_crc(
            BatchHeader(0, 49 + len(b"".join(near)), 0, 2, 0, attribute, count - 1, T, T + 9, -1, -1, -1, count),
            b"".join(near),
        )
        for (near, count), attribute in zip(parts, attributes, strict=False)
    ]
    positions = ints(0, *np.cumsum([len(batch) for batch in batches]))
    log = Log(*pure.stamp_entries(np.frombuffer(b"".join(batches), np.uint8), positions, 0, T, None, b""))
    scan = pure.scan_entries(log.data, 0, -1, 0, True)
    which = np.zeros(len(batches), np.int32)
    assert len(batches) == len(scan.offset)
    places = [log.data], which, scan.position, scan.offset, scan.records, None
    same(lambda kernel: kernel.read_records(*places, max_bytes))


@both
def test_what_is_read_is_what_was_checked_and_decoded(kernel: ModuleType) -> None:
    """More than the room that there is at first, of sizes that grow."""
    values: list[bytes | None] = [bytes([row % 256]) * row for row in range(500)]
    keys: list[bytes | None] = [None if row % 3 else b"k" * row for row in range(500)]
    own = [T + row % 7 for row in range(500)]
    log = stamped(rows(values, keys=keys, deliver_after=own, bounds=list(range(0, 501, 5))), 9, np.full(100, T + 6))
    scan = pure.scan_entries(log.data, 0, -1, 9, True)
    order = np.argsort(scan.offset % 13, kind="stable")
    places = [log.data], np.zeros(100, np.int32), scan.position[order], scan.offset[order], scan.records[order]
    read = kernel.read_records(*places, None, 2**62)
    assert (OK, 100, False) == (read.fault, read.row, read.compressed)
    rank = (order[:, None] * 5 + np.arange(5)).ravel().tolist()
    assert [values[row] for row in rank] == nullable(read.decoded.value, read.decoded.value_valid)
    assert [keys[row] for row in rank] == nullable(read.decoded.key, read.decoded.key_valid)
    latest = [max(own[row // 5 * 5 : row // 5 * 5 + 5]) for row in range(500)]
    assert [own[row] if own[row] != latest[row] else T + 6 for row in rank] == read.decoded.deliver_after.tolist()
    assert [T] * 500 == read.decoded.broker_timestamp.tolist()


@both
@pytest.mark.parametrize(("batch", "size"), [(1, 1_000), (100, 0), (1, 0), (50, 300)])
def test_the_room_grows_in_records_or_in_bytes(kernel: ModuleType, batch: int, size: int) -> None:
    log = stamped(rows([bytes([row % 256]) * size for row in range(400)], bounds=list(range(0, 401, batch))))
    scan = pure.scan_entries(log.data, 0, -1, 0, True)
    which = np.zeros(len(scan.offset), np.int32)
    read = kernel.read_records([log.data], which, scan.position, scan.offset, scan.records, scan.deliver_after, 2**62)
    assert [bytes([row % 256]) * size for row in range(400)] == nullable(read.decoded.value, read.decoded.value_valid)


@both
def test_reading_stops_at_max_bytes_but_not_before_the_first(kernel: ModuleType) -> None:
    log = stamped(rows([b"a", b"b", b"c"], bounds=[0, 1, 2, 3]))
    scan = pure.scan_entries(log.data, 0, -1, 0, True)
    places = [log.data], np.zeros(3, np.int32), scan.position, scan.offset, scan.records, scan.deliver_after
    size = 69
    expected = [(0, 1), (size, 1), (2 * size - 1, 1), (2 * size, 2), (3 * size, 3), (2**62, 3)]
    reads = [(limit, kernel.read_records(*places, limit)) for limit, _ in expected]
    assert expected == [(limit, len(read.decoded.timestamp)) for limit, read in reads]
    assert all(
        (OK, rows, False) == (read.fault, read.row, read.compressed)
        for (_, read), (_, rows) in zip(reads, expected, strict=True)
    )


@both
def test_reading_leaves_what_is_compressed(kernel: ModuleType) -> None:
    header = BatchHeader(0, 49 + 7, 0, 2, 0, 4, 0, T, T, -1, -1, -1, 1)
    batches = [*(rows([b"a"]).encode(pure)[0].tobytes(),) * 2, with_crc(header, b"squeeze")]
    positions = ints(0, *np.cumsum([len(batch) for batch in batches]))
    data, _ = pure.stamp_entries(np.frombuffer(b"".join(batches), np.uint8), positions, 0, T, None, b"")
    scan = pure.scan_entries(data, 0, -1, 0, True)
    read = kernel.read_records([data], np.zeros(3, np.int32), scan.position, scan.offset, scan.records, None, 2**62)
    assert (OK, 2, True, 2) == (read.fault, read.row, read.compressed, len(read.decoded.timestamp))


@both
@pytest.mark.parametrize("column", ["position", "offset", "records", "deliver_after"])
def test_an_index_that_says_otherwise(kernel: ModuleType, column: str) -> None:
    log = stamped(rows([b"a", b"b"], bounds=[0, 1, 2]))
    scan = pure.scan_entries(log.data, 0, -1, 0, True)
    wrong = getattr(scan, column).copy()
    wrong[1] = 0 if column == "position" else wrong[1] + 1
    scan = scan._replace(**{column: wrong})
    checked = kernel.check_entries(
        [log.data], np.zeros(2, np.int32), scan.position, scan.offset, scan.records, scan.deliver_after
    )
    assert (INDEX, 1, 1) == (checked.fault, checked.row, len(checked.batch_positions))


@both
@pytest.mark.parametrize("position", [-1, -(2**63), 10_000, INT64_MAX])
def test_an_index_that_points_outside(kernel: ModuleType, position: int) -> None:
    data = stamped(rows([b"a"])).data
    checked = kernel.check_entries([data], np.zeros(1, np.int32), ints(position), ints(0), ints(1), None)
    assert (INDEX, 0) == (checked.fault, checked.row)


@both
def test_places_that_contradict_each_other(kernel: ModuleType) -> None:
    data = stamped(rows([b"a"])).data
    with pytest.raises(ValueError, match="which"):
        kernel.check_entries([data], np.ones(1, np.int32), ints(0), ints(0), ints(1), None)
    with pytest.raises(ValueError, match="length"):
        kernel.check_entries([data], np.zeros(1, np.int32), ints(0), ints(0, 1), ints(1), None)
    with pytest.raises(ValueError, match="which"):
        kernel.decode_records([], np.zeros(1, np.int32), ints(0), ints(1), ints(1))


# ---- decode_records


@given(some_rows(), st.data())
def test_both_decode_the_same(source: Rows, data: st.DataObject) -> None:
    batches, positions = source.encode(pure)
    damaged = Log(batches, positions).damaged(data.draw)
    count = len(positions) - 1
    records = np.diff(source.bounds)
    if count and data.draw(st.booleans()):
        records[data.draw(st.integers(0, count - 1))] += data.draw(st.integers(-3, 3) | st.just(2**40))
    which = np.zeros(count, np.int32)
    same(lambda kernel: kernel.decode_records([damaged], which, positions[:-1], np.diff(positions), records))


@given(st.lists(nearly_a_record(), min_size=1, max_size=2), st.integers(0, 3), st.sampled_from([0, 0, 0, 8, 3]))
def test_both_judge_the_same_of_near_records(parts: list[bytes], count: int, attributes: int) -> None:
    header = BatchHeader(0, 0, 0, 2, 0, attributes, count - 1, T, T + 9, -1, -1, -1, count)
    batch = with_crc(header, b"".join(parts))
    same(lambda kernel: kernel.decode_records(*the_one_batch(batch), ints(count)))


def record(*parts: bytes) -> bytes:
    return zigzag(sum(map(len, parts))) + b"".join(parts)


def batch_of(*records: bytes, attributes: int = 0) -> bytes:
    return with_crc(BatchHeader(0, 0, 0, 2, 0, attributes, 0, T, T + 9, -1, -1, -1, 1), b"".join(records))


NULL, ZERO = zigzag(-1), zigzag(0)
HEAD = b"\0" + ZERO + ZERO


@both
@pytest.mark.parametrize(
    ("records", "words"),
    [
        (b"\x80", "it cannot hold so many"),
        (b"\x80" * 9, "varint"),
        (zigzag(50) + HEAD + NULL + NULL + ZERO, "length"),
        (zigzag(-2) + HEAD + NULL + NULL + ZERO, "length"),
        (zigzag(0) + bytes(8), "length"),
        (record(b"\0", ZERO, zigzag(1), NULL, NULL, ZERO), "offset delta"),
        (record(HEAD, zigzag(-2), NULL, ZERO), "length"),
        (record(HEAD, zigzag(9), NULL, ZERO), "length"),
        (record(HEAD, NULL, zigzag(9), ZERO), "length"),
        (record(HEAD, NULL, zigzag(3), b"ab"), "length"),
        (record(HEAD, NULL, NULL, NULL), "length"),
        (record(HEAD, NULL, NULL, ZERO, b"x"), "left over"),
        (record(HEAD, NULL, NULL, ZERO) + b"x", "left over"),
        (record(HEAD, NULL, NULL, zigzag(2**31 - 1)), "varint"),
        (record(HEAD, NULL, NULL, zigzag(1), NULL, NULL), "length"),
        (record(HEAD, NULL, NULL, zigzag(1), ZERO, zigzag(5)), "length"),
        (record(HEAD, zigzag(2), b"ab", NULL), "varint"),
    ],
)
def test_records_that_lie(kernel: ModuleType, records: bytes, words: str) -> None:
    with pytest.raises(InvalidBatch, match="batch 0: .*" + words):
        kernel.decode_records(*the_one_batch(batch_of(records)), ints(1))


@both
@pytest.mark.parametrize(
    ("position", "size", "count", "words"),
    [
        (-1, 68, 1, "buffer"),
        (1, 68, 1, "buffer"),
        (0, 60, 0, "buffer"),
        (0, -1, 0, "buffer"),
        (INT64_MAX, 68, 1, "buffer"),
        (0, INT64_MAX, 1, "buffer"),
        (0, 68, -1, "so many"),
        (0, 68, INT64_MAX, "so many"),
    ],
)
def test_places_that_lie(kernel: ModuleType, position: int, size: int, count: int, words: str) -> None:
    buffers, which, _, _ = the_one_batch(batch_of(record(HEAD, NULL, NULL, ZERO)))
    with pytest.raises(InvalidBatch, match=words):
        kernel.decode_records(buffers, which, ints(position), ints(size), ints(count))


@both
def test_a_compressed_batch_is_not_decoded(kernel: ModuleType) -> None:
    with pytest.raises(InvalidBatch, match="compressed"):
        kernel.decode_records(*the_one_batch(batch_of(record(HEAD, NULL, NULL, ZERO), attributes=4)), ints(1))


@both
def test_log_append_time_is_the_batchs(kernel: ModuleType) -> None:
    decoded = kernel.decode_records(*the_one_batch(batch_of(record(HEAD, NULL, NULL, ZERO), attributes=8)), ints(1))
    assert [T + 9] == decoded.timestamp.tolist()
    assert (b"", False) == (decoded.value[1].tobytes(), bool(decoded.value_valid[0]))


@both
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (T.to_bytes(8, "big"), T),
        (bytes(8), 0),
        (b"1700000000000", T),
        (b"0", 0),
        (b"9223372036854775807", INT64_MAX),
        (b"12345678", int.from_bytes(b"12345678", "big")),
        (b"9223372036854775808", None),
        (b"00000000000000000001", None),
        (b"-1", None),
        (b"1e3", None),
        (b"", None),
        (None, None),
        (b"\xff" * 8, None),
        ("٣".encode(), None),
    ],
)
def test_deliver_after_of_a_record(kernel: ModuleType, value: bytes | None, expected: int | None) -> None:
    section = encode_headers([("deliver-after", b"junk"), ("other", None), ("deliver-after", value)])
    arguments = (*the_one_batch(batch_of(record(HEAD, NULL, NULL, section))), ints(1))
    if expected is None:
        with pytest.raises(InvalidDeliverAfter, match=re.escape("batch 0: a deliver-after header")):
            kernel.decode_records(*arguments)
    else:
        decoded = kernel.decode_records(*arguments)
        assert [expected] == decoded.deliver_after.tolist()
        assert section == decoded.headers[1].tobytes()


@both
def test_batches_of_several_buffers_in_any_order(kernel: ModuleType) -> None:
    one, two = (rows([value]).encode(pure)[0] for value in (b"one", b"two"))
    decoded = kernel.decode_records(
        [one, np.empty(0, np.uint8), two],
        np.array([2, 0, 2], np.int32),
        ints(0, 0, 0),
        ints(len(two), len(one), len(two)),
        ints(1, 1, 1),
    )
    assert [b"two", b"one", b"two"] == nullable(decoded.value, decoded.value_valid)


@both
def test_nothing_is_decoded_into_nothing(kernel: ModuleType) -> None:
    decoded = kernel.decode_records([], np.empty(0, np.int32), ints(), ints(), ints())
    assert ([0], 0) == (decoded.value[0].tolist(), len(decoded.timestamp))


# ---- rows of columns


@given(st.lists(st.binary(max_size=40), max_size=9), st.lists(st.integers(0, 8), max_size=40))
def test_items_are_taken(items: list[bytes], taken: list[int]) -> None:
    taken = [row for row in taken if row < len(items)]
    column, _ = ragged([b"in front", *items])
    column = column[0][1:], column[1]  # a view that does not begin at 0
    for kernel in (pure, _kernels):
        offsets, data = kernel.take_items(column, ints(*taken))
        assert (np.int64, np.uint8) == (offsets.dtype, data.dtype)
        assert [items[row] for row in taken] == [data[a:b].tobytes() for a, b in pairwise(offsets.tolist())]
        assert (0, len(data)) == (offsets[0], offsets[-1])


@both
@pytest.mark.parametrize("row", [-1, 3, 2**63 - 1, -(2**63)])
def test_no_such_item(kernel: ModuleType, row: int) -> None:
    column, _ = ragged([b"a", b"b", b"c"])
    with pytest.raises(IndexError, match=f"no item {row} in a column of 3"):
        kernel.take_items(column, ints(0, row))


@both
@pytest.mark.parametrize("offsets", [[0, 9], [2, 1], [-1, 1], [0, -(2**63)], [-(2**63), 2**63 - 1]])
def test_items_that_do_not_lie_in_their_data(kernel: ModuleType, offsets: list[int]) -> None:
    with pytest.raises(IndexError, match="no item 0 in a column of 1, or not inside its data"):
        kernel.take_items((ints(*offsets), np.frombuffer(b"abc", np.uint8)), ints(0))


@both
def test_no_column_to_take_from(kernel: ModuleType) -> None:
    with pytest.raises(ValueError, match="this one none"):
        kernel.take_items((ints(), np.empty(0, np.uint8)), ints())


@given(st.lists(TIME), st.integers(0, 7) | st.integers(0, 2**70))
def test_a_batch_begins_behind_the_spread_of_the_one_before(due: list[int], spread_ms: int) -> None:
    due = sorted(due)
    expected = pure.spread_starts(ints(*due), spread_ms)
    assert expected.tolist() == _kernels.spread_starts(ints(*due), spread_ms).tolist()
    for first, stop in pairwise([*expected.tolist(), len(due)]):
        assert due[stop - 1] - due[first] <= spread_ms
        assert due[first] != -1 or due[stop - 1] == -1
        assert stop == len(due) or due[stop] - due[first] > spread_ms or due[first] == -1 != due[stop]


@both
def test_no_negative_spread(kernel: ModuleType) -> None:
    with pytest.raises(ValueError, match="no spread: -1"):
        kernel.spread_starts(ints(1), -1)
