from collections.abc import Sequence

from afterlog.base.files import Bytes
from afterlog.records.columns import (
    Bools,
    Checked,
    Decoded,
    Int32Array,
    Int64Array,
    Producers,
    Ragged,
    Scan,
    Verified,
)

def encode_batches(
    values: Ragged,
    value_valid: Bools | None,
    keys: Ragged | None,
    key_valid: Bools | None,
    headers: Ragged | None,
    timestamps: Int64Array,
    deliver_after: Int64Array | None,
    bounds: Int64Array,
    producers: Producers | None = None,
) -> tuple[Bytes, Int64Array]: ...
def stamp_entries(
    data: Bytes,
    positions: Int64Array,
    base_offset: int,
    broker_timestamp: int,
    asked: Int64Array | None,
    extra: bytes,
) -> tuple[Bytes, Int64Array]: ...
def encode_entries(
    values: Ragged,
    value_valid: Bools | None,
    keys: Ragged | None,
    key_valid: Bools | None,
    headers: Ragged | None,
    timestamps: Int64Array,
    deliver_after: Int64Array | None,
    bounds: Int64Array,
    base_offset: int,
    broker_timestamp: int,
    extra: bytes,
    producers: Producers | None = None,
) -> tuple[Bytes, Int64Array]: ...
def encode_single(
    value: bytes | None,
    key: bytes | None,
    headers: bytes,
    timestamp: int,
    deliver_after: int,
    base_offset: int,
    broker_timestamp: int,
    producer: tuple[int, int, int] | None = None,
    attributes: int = 0,
) -> bytes: ...
def scan_entries(
    buffer: Bytes,
    start: int,
    end: int,
    next_offset: int,
    check_bodies: bool,
    limit: int = -1,
    any_epoch: bool = False,
) -> Scan: ...
def check_entries(
    buffers: Sequence[Bytes],
    which: Int32Array,
    positions: Int64Array,
    offsets: Int64Array,
    records: Int64Array,
    deliver_after: Int64Array | None,
) -> Checked: ...
def decode_records(
    buffers: Sequence[Bytes],
    which: Int32Array,
    batch_positions: Int64Array,
    batch_sizes: Int64Array,
    records: Int64Array,
    *,
    lenient: bool = False,
) -> Decoded: ...
def read_records(
    buffers: Sequence[Bytes],
    which: Int32Array,
    positions: Int64Array,
    offsets: Int64Array,
    records: Int64Array,
    deliver_after: Int64Array | None,
    max_bytes: int,
) -> Verified: ...
def read_single(
    data: bytes, offset: int, deliver_after: int, row: int = 0, records: int = 1
) -> tuple[bytes | None, bytes | None, bytes, int, int, int] | None: ...
def take_items(items: Ragged, rows: Int64Array) -> Ragged: ...
def spread_starts(deliver_after: Int64Array, spread_ms: int) -> Int64Array: ...
def crc32c(data: Bytes, by_table: bool) -> int: ...
