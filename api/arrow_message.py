"""The messages of an Arrow IPC stream that somebody else wrote: read one by one, and refused before they cost anything.

    schema | record batch … record batch | end        each: metadata (a flatbuffer), and for a batch a body

What comes from outside may lie about itself. So a body is a slice of the bytes that are there, and never allocated;
compressed bodies, which may say that they are a terabyte, and dictionaries are refused by the metadata alone; a schema
has only columns that are asked for, of types that are known; and a batch is validated in full, every offset and every
text, before anybody looks into it.

What pyarrow's flatbuffer has of a message, of which it does not tell all itself:

    Message      0 version  1 kind of header  2 header  3 length of the body
    RecordBatch  0 rows     1 nodes           2 buffers 3 compression, where there is any
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from afterlog.base.errors import InvalidRequest, RequestTooLarge
from afterlog.base.extras import missing

try:
    import pyarrow as pa
except ImportError as error:
    raise missing(error, "columns of Arrow", "arrow") from error

MEDIA_TYPE = "application/vnd.apache.arrow.stream"
ROWS_MAX = 1 << 20
"""Of one stream: what one append takes at once, so that all or nothing of it is written."""
METADATA_BYTES_MAX = 1 << 20
"""Of one message. Larger: a schema may name more, and takes longer to refuse."""
BATCHES_MAX = 4_096
"""Of one stream. Larger: more of them may be empty."""


class ColumnKind(NamedTuple):
    """Of which types a column may be: for people, and whether one is."""

    text: str
    has: Callable[[pa.DataType], bool]


class Table(NamedTuple):
    """All batches of a stream as one: each column, whole and validated, and what the schema says besides."""

    rows: int
    columns: dict[str, pa.Array]
    metadata: dict[bytes, bytes]


def read_table(data: bytes | memoryview, kinds: Mapping[str, ColumnKind], needed: Sequence[str]) -> Table:
    """A stream of columns of these kinds by their names, of which those needed must be there.

    Raises InvalidRequest, RequestTooLarge.
    """
    try:
        return _table(pa.BufferReader(data), kinds, needed)
    except (pa.ArrowException, OSError, ValueError, TypeError, LookupError, OverflowError) as error:
        if isinstance(error, InvalidRequest):
            raise
        raise InvalidRequest(
            f"not an Arrow IPC stream that can be taken: {str(error) or type(error).__name__:.200}"
        ) from None


def _table(source: Any, kinds: Mapping[str, ColumnKind], needed: Sequence[str]) -> Table:
    schema, batches, rows = None, list[pa.RecordBatch](), 0
    for message in pa.ipc.MessageReader.open_stream(source):
        if message.metadata.size > METADATA_BYTES_MAX:
            raise RequestTooLarge(
                f"an Arrow message has {message.metadata.size} bytes of metadata; {METADATA_BYTES_MAX} will do"
            )
        if schema is None:
            if message.type != "schema":
                raise InvalidRequest(f"an Arrow IPC stream begins with its schema, not with a {message.type}")
            schema = pa.ipc.read_schema(message)
            _check_schema(schema, kinds, needed)
            continue
        if message.type != "record batch":
            raise InvalidRequest(f"a {message.type} cannot be taken: write plain columns, no dictionaries")
        said_rows, compressed = _batch_header(memoryview(message.metadata))
        if compressed:
            raise InvalidRequest("the Arrow buffers are compressed: write them without")
        rows += said_rows
        if said_rows < 0 or rows > ROWS_MAX or len(batches) == BATCHES_MAX:
            raise RequestTooLarge(f"an Arrow stream has at most {ROWS_MAX} rows in {BATCHES_MAX} batches")
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate(full=True)
        batches.append(batch)
    if schema is None:
        raise InvalidRequest("the Arrow IPC stream is empty: not even a schema is there")
    columns = {
        name: _joined([batch.column(name) for batch in batches], schema.field(name).type) for name in schema.names
    }
    return Table(rows, columns, dict(schema.metadata or {}))


def _check_schema(schema: pa.Schema, kinds: Mapping[str, ColumnKind], needed: Sequence[str]) -> None:
    for name in schema.names:
        if name not in kinds:
            raise InvalidRequest(f"there is no column {name!r:.60} here; there are {', '.join(kinds)}")
        if schema.names.count(name) > 1:
            raise InvalidRequest(f"the column {name!r} is there twice")
        kind = schema.field(name).type
        if not kinds[name].has(kind):
            raise InvalidRequest(f"the column {name!r} is {kinds[name].text}, not {kind!s:.60}")
    for name in needed:
        if name not in schema.names:
            raise InvalidRequest(f"the column {name!r} is missing")


def _joined(parts: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    if len(parts) == 1:
        return parts[0]
    return pa.concat_arrays(parts) if parts else pa.array([], kind)


def _batch_header(metadata: memoryview) -> tuple[int, bool]:
    """(rows, whether its buffers are compressed) of a record batch, whose flatbuffer pyarrow has verified."""
    message = _Flat.root(metadata)
    at = message.field(2)
    if at is None:
        raise InvalidRequest("an Arrow message without a header")
    header = _Flat(metadata, at + _number(metadata, at, 4))
    rows = header.field(0)
    return 0 if rows is None else _number(metadata, rows, 8, signed=True), header.field(3) is not None


class _Flat(NamedTuple):
    """A table of a flatbuffer: `at` is where it starts, with the distance back to what says where its fields are."""

    data: memoryview
    at: int

    @staticmethod
    def root(data: memoryview) -> _Flat:
        return _Flat(data, _number(data, 0, 4))

    def field(self, number: int) -> int | None:
        """Where a field is; None where the table does not have it."""
        fields = self.at - _number(self.data, self.at, 4, signed=True)
        slot = 4 + 2 * number
        if slot + 2 > _number(self.data, fields, 2):
            return None
        distance = _number(self.data, fields + slot, 2)
        return self.at + distance if distance else None


def _number(data: memoryview, at: int, size: int, *, signed: bool = False) -> int:
    if not 0 <= at <= len(data) - size:
        raise InvalidRequest("an Arrow message that ends before it should")
    return int.from_bytes(data[at : at + size], "little", signed=signed)
