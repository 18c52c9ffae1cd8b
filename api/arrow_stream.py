"""Records as Arrow IPC streams, both ways: what is sent, what was delivered, receipts, places in the log.

    sent       value, and of key, headers, deliver_after, delay, timestamp, partition, unique_key what is wanted
    delivered  partition, offset, delivery_offset, due, deliver_after, timestamp, broker_timestamp, key, value, headers,
               and of leased records redelivery_count, lease_number, deadline_ms; in the schema's metadata `afterlog`, a
               JSON object: the topic, and what the answer says besides
    receipts   partition, offset, delivery_offset, lease_number
    placed     partition, offset: where records were appended, in the order in which they were sent

Numbers are int64, or int32 where that will do; bytes are binary (text is taken, too); headers are a list of struct
<key: string, value: binary>. Sent: deliver_after and timestamp are ms since the epoch or timestamps, delay ms or a
duration; null for none. What others wrote is checked by `arrow_message`, and only then read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from afterlog.api.arrow_message import ColumnKind, Table, read_table
from afterlog.api.record_json import clients_headers
from afterlog.base.errors import InvalidDeliverAfter, InvalidRecord, InvalidRequest, RequestTooLarge
from afterlog.base.extras import missing
from afterlog.fetch.arrow_arrays import HEADERS, binary_array, headers_array
from afterlog.fetch.message_columns import Columns
from afterlog.records.batch import Headers, encode_headers, own_headers
from afterlog.records.columns import Bools, Int64Array, Ragged
from afterlog.records.columns import ragged as ragged_items
from afterlog.records.encode import RecordColumns, ragged, timestamp_column
from afterlog.records.time_columns import int64_column
from afterlog.records.times import (
    AS_SOON_AS_POSSIBLE,
    Delay,
    asked_ms,
    check_delayed,
    check_instant_column,
    check_timestamps,
)
from afterlog.records.unique_key import checked_keys, sections, with_unique_key
from afterlog.subscription.lease_number import failures
from afterlog.subscription.received import Receipts
from afterlog.subscription.redeliveries import UNKNOWN

try:
    import pyarrow as pa
except ImportError as error:
    raise missing(error, "columns of Arrow", "arrow") from error

HEADERS_MAX = 1 << 20
"""Of one stream. Each is a Python object for a while."""
_ROWS_AT_ONCE = 4_096

_NUMBERS: Final = ("partition", "offset", "delivery_offset", "due", "deliver_after", "timestamp", "broker_timestamp")
_RECEIPT: Final = Receipts._fields
_LEASE: Final = ("lease_number", "deadline_ms")


def _is_binary(kind: pa.DataType) -> bool:
    return kind in (pa.large_binary(), pa.binary(), pa.large_string(), pa.string())


def _is_headers(kind: pa.DataType) -> bool:
    """Of any names for the list's items, nullable or not, as different libraries write them."""
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return False
    parts = {field.name: field.type for field in kind.value_type}
    return list(parts) == ["key", "value"] and parts["key"] in _TEXT and _is_binary(parts["value"])


_TEXT: Final = (pa.string(), pa.large_string())
_INTEGER: Final = ColumnKind("int64 or int32", (pa.int64(), pa.int32()).__contains__)
_BYTES: Final = ColumnKind("binary or string", _is_binary)
_PAIRS: Final = ColumnKind(f"{HEADERS}", _is_headers)
_INSTANT: Final = ColumnKind(
    "int64 (ms) or a timestamp", lambda kind: kind == pa.int64() or pa.types.is_timestamp(kind)
)
_SPAN: Final = ColumnKind("int64 (ms) or a duration", lambda kind: kind == pa.int64() or pa.types.is_duration(kind))
SENT: Final = {
    "value": _BYTES, "key": _BYTES, "headers": _PAIRS, "deliver_after": _INSTANT, "delay": _SPAN,
    "timestamp": _INSTANT, "partition": _INTEGER, "unique_key": _BYTES,
}  # fmt: skip
"""The columns of what is sent, and their types."""
_DELIVERED: Final = {
    **dict.fromkeys((*_NUMBERS, *_LEASE, "redelivery_count"), _INTEGER),
    "key": _BYTES, "value": _BYTES, "headers": _PAIRS,
}  # fmt: skip
_METADATA: Final = b"afterlog"


class SentColumns(NamedTuple):
    """What somebody wants to have sent. partition: int64[n], -1 where none is named."""

    records: RecordColumns
    partition: Int64Array | None
    unique_keys: list[bytes | None] | None


class Delivered(NamedTuple):
    """Delivered records; of leased ones what `Received` knows, too. said: all of the metadata but the topic."""

    columns: Columns
    lease_number: Int64Array | None
    deadline_ms: Int64Array | None
    said: dict[str, Any]


# What is sent.


def sent_stream(
    values: Any,
    *,
    keys: Any = None,
    headers: Ragged | None = None,
    deliver_after: Int64Array | None = None,
    delay_ms: Int64Array | None = None,
    timestamps: Int64Array | None = None,
    partition: Int64Array | None = None,
    unique_keys: Any = None,
) -> bytes:
    """values, keys, unique_keys: what `send_many` takes; headers: encoded sections. Raises InvalidRecord."""
    value_column, value_valid = ragged(values)
    columns = {"value": binary_array(value_column, value_valid)}
    for name, given in (("key", keys), ("unique_key", unique_keys)):
        if given is not None:
            columns[name] = binary_array(*ragged(given, name))
    if headers is not None:
        columns["headers"] = headers_array(headers)
    for name, numbers in (
        ("deliver_after", deliver_after), ("delay", delay_ms), ("timestamp", timestamps), ("partition", partition),
    ):  # fmt: skip
        if numbers is not None:
            columns[name] = pa.array(numbers, pa.int64())
    if len({len(column) for column in columns.values()}) > 1:
        raise InvalidRecord("columns of one call are of one length")
    return _stream(columns, {})


def sent_columns(
    data: bytes | memoryview, now_ms: int, *, delay: Delay | None = None, check: bool = False
) -> SentColumns:
    """The records of a stream, asked for at `now_ms`. delay: of all of them. check: refuse instants surely wrong.

    Raises InvalidRequest, RequestTooLarge, InvalidRecord, InvalidDeliverAfter.
    """
    table = read_table(data, SENT, ("value",))
    values, value_valid = _ragged(table, "value")
    keys, key_valid = _ragged(table, "key") if "key" in table.columns else (None, None)
    unique_keys = checked_keys(table.columns["unique_key"]) if "unique_key" in table.columns and table.rows else None
    records = RecordColumns(
        values=values,
        value_valid=value_valid,
        keys=keys,
        key_valid=key_valid,
        headers=_sections(table, unique_keys, lambda headers: clients_headers(own_headers(headers))),
        timestamps=_timestamps(table, now_ms, check),
        deliver_after=_asked(table, now_ms, delay, check),
    )
    partition = _numbers(table, "partition", -1) if "partition" in table.columns else None
    return SentColumns(records, partition, unique_keys)


# What was delivered.


def delivered_stream(
    columns: Columns,
    said: Mapping[str, Any] | None = None,
    *,
    lease_number: Int64Array | None = None,
    deadline_ms: Int64Array | None = None,
) -> bytes:
    """said: what the answer says besides, JSON."""
    arrays = {name: pa.array(getattr(columns, name)) for name in _NUMBERS}
    arrays["key"] = binary_array(columns.key, columns.key_valid)
    arrays["value"] = binary_array(columns.value, columns.value_valid)
    arrays["headers"] = headers_array(columns.headers)
    if lease_number is not None:
        arrays["redelivery_count"] = pa.array(failures(lease_number))
        arrays["lease_number"] = pa.array(lease_number)
    if deadline_ms is not None:
        arrays["deadline_ms"] = pa.array(deadline_ms)
    return _stream(arrays, {"topic": columns.topic, **(said or {})})


def delivered(data: bytes | memoryview) -> Delivered:
    """Raises InvalidRequest, InvalidRecord."""
    table = read_table(data, _DELIVERED, (*_NUMBERS, "key", "value", "headers"))
    said = _said(table)
    (key, key_valid), (value, value_valid) = _ragged(table, "key"), _ragged(table, "value")
    every = np.ones(table.rows, np.bool_)
    columns = Columns(
        topic=str(said.pop("topic", "")),
        **{name: _numbers(table, name) for name in _NUMBERS},
        key=key,
        key_valid=every if key_valid is None else key_valid,
        value=value,
        value_valid=every if value_valid is None else value_valid,
        headers=_sections(table, None) or _no_items(table.rows),
    )
    numbers, deadlines = (_numbers(table, name) if name in table.columns else None for name in _LEASE)
    return Delivered(columns, numbers, deadlines, said)


# Receipts and places.


def receipts_stream(receipts: Receipts) -> bytes:
    return _stream({name: pa.array(column) for name, column in receipts._asdict().items()}, {})


def receipts_of(data: bytes | memoryview) -> Receipts:
    """Raises InvalidRequest."""
    table = read_table(data, dict.fromkeys(_RECEIPT, _INTEGER), _RECEIPT)
    return Receipts(*(_numbers(table, name, least=UNKNOWN if name == "offset" else 0) for name in _RECEIPT))


def placed_stream(partition: Int64Array, offset: Int64Array) -> bytes:
    return _stream({"partition": pa.array(partition.astype(np.int32)), "offset": pa.array(offset)}, {})


def placed_of(data: bytes | memoryview) -> tuple[Int64Array, Int64Array]:
    """(partition, offset) of each. Raises InvalidRequest."""
    table = read_table(data, {"partition": _INTEGER, "offset": _INTEGER}, ("partition", "offset"))
    return _numbers(table, "partition"), _numbers(table, "offset")


# From columns to Arrow.


def _stream(columns: Mapping[str, pa.Array], said: Mapping[str, Any]) -> bytes:
    batch = pa.RecordBatch.from_arrays(
        list(columns.values()), names=list(columns), metadata={_METADATA: json.dumps(said)} if said else None
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    made: bytes = sink.getvalue().to_pybytes()
    return made


# From Arrow to columns.


def _said(table: Table) -> dict[str, Any]:
    try:
        said = json.loads(table.metadata.get(_METADATA, b"{}"))
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the schema's metadata {_METADATA.decode()} is no JSON: {error}") from None
    if not isinstance(said, dict):
        raise InvalidRequest(f"the schema's metadata {_METADATA.decode()} is no JSON object")
    return said


def _no_items(rows: int) -> Ragged:
    return np.zeros(rows + 1, np.int64), np.empty(0, np.uint8)


def _ragged(table: Table, name: str) -> tuple[Ragged, Bools | None]:
    return ragged(table.columns[name], name) if table.rows else (_no_items(0), None)


def _numbers(table: Table, name: str, null: int | None = None, *, least: int | None = None) -> Int64Array:
    """A column of integers; null: in place of what is null, which without it is refused."""
    column = table.columns[name]
    if column.null_count and null is None:
        raise InvalidRequest(f"the column {name!r} has a null")
    numbers = _plain(column.fill_null(null) if column.null_count else column).astype(np.int64)
    if least is not None and len(numbers) and int(numbers.min()) < least:
        raise InvalidRequest(f"the column {name!r} has numbers below {least}")
    return numbers


def _plain(column: pa.Array) -> npt.NDArray[Any]:
    """A column without nulls, as numpy has it, copied: its own buffers may lie anywhere."""
    return np.array(column.to_numpy(zero_copy_only=False))


def _instants(table: Table, name: str, null: int) -> Int64Array:
    """A column of instants or spans, ms: int64[n]; null: where there is none. Raises InvalidDeliverAfter."""
    column = table.columns.get(name)
    if column is None:
        return np.full(table.rows, null, np.int64)
    missing = _plain(column.is_null())
    times = int64_column(_plain(column.fill_null(pa.scalar(0, pa.int64()).cast(column.type))), table.rows, name)
    times[missing] = null
    return times


def _timestamps(table: Table, now_ms: int, check: bool) -> Int64Array:
    """Now, where the sender says nothing; -1 is none."""
    column = table.columns.get("timestamp")
    if column is None:
        return np.full(table.rows, now_ms)
    if pa.types.is_timestamp(column.type):
        times = _instants(table, "timestamp", now_ms)
    else:
        times = timestamp_column(_numbers(table, "timestamp", now_ms), table.rows)
    if check:
        check_timestamps(times, now_ms)
    return times


def _asked(table: Table, now_ms: int, delay: Delay | None, check: bool) -> Int64Array:
    """When each is asked for, ms: int64[n]."""
    both = delay is not None and ("delay" in table.columns or "deliver_after" in table.columns)
    if both or {"delay", "deliver_after"} <= table.columns.keys():
        raise InvalidDeliverAfter("give a delay or deliver_after, and only once")
    if "delay" in table.columns:
        asked = _instants(table, "delay", AS_SOON_AS_POSSIBLE)
        if table.rows and int(asked.max()) > np.iinfo(np.int64).max - now_ms:
            raise InvalidDeliverAfter("delay reaches beyond the last instant that int64 milliseconds can name")
        if check and table.rows:
            check_delayed(int(asked.max()) + now_ms, now_ms)
        return np.where(asked == AS_SOON_AS_POSSIBLE, asked, asked + now_ms)
    if "deliver_after" in table.columns:
        asked = _instants(table, "deliver_after", AS_SOON_AS_POSSIBLE)
        if check:
            check_instant_column(asked, now_ms)
        return asked
    return np.full(table.rows, asked_ms(now_ms, delay, None, check_instants=check), np.int64)


def _sections(
    table: Table, unique_keys: list[bytes | None] | None, checked: Callable[[Headers], Headers] = own_headers
) -> Ragged | None:
    """The encoded headers of each record, its unique key in front. None where there are none. Raises InvalidRecord."""
    column = table.columns.get("headers")
    if column is None or not len(column.values):
        return None if unique_keys is None else sections(b"", unique_keys)
    if len(column.values) > HEADERS_MAX:
        raise RequestTooLarge(f"an Arrow stream has at most {HEADERS_MAX} headers")
    encoded = _encoded(column, checked)
    if unique_keys is None:
        items = list(encoded)
    else:
        items = [
            section if key is None else with_unique_key(section, key)
            for section, key in zip(encoded, unique_keys, strict=True)
        ]
    return ragged_items(items)[0]


def _encoded(column: pa.Array, checked: Callable[[Headers], Headers]) -> Iterable[bytes]:
    for start in range(0, len(column), _ROWS_AT_ONCE):
        for headers in column.slice(start, _ROWS_AT_ONCE).to_pylist():
            yield _section(headers, checked) if headers else b""


def _section(headers: list[dict[str, Any] | None], checked: Callable[[Headers], Headers]) -> bytes:
    pairs = []
    for header in headers:
        if header is None or header["key"] is None:
            raise InvalidRecord("a header, or the key of one, is null")
        pairs.append((header["key"], header["value"]))
    try:
        return encode_headers(checked(pairs))
    except ValueError as error:
        raise InvalidRecord(str(error)) from None
