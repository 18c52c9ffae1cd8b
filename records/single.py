"""One record by itself on its way into the log: values instead of columns, for whoever sends one at a time.

SingleRecord ──entry──> its entry, byte for byte that of `columns()` of one row
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from afterlog.records import kernels
from afterlog.records.batch import Headers, encode_headers, own_headers
from afterlog.records.encode import RECORD_OVERHEAD_BYTES, RecordColumns, ragged
from afterlog.records.header import HEADER_BYTES
from afterlog.records.producer_sequence import ProducerSequence


class SingleRecord(NamedTuple):
    """value, key: None for null; headers: encoded, empty for none; timestamp, deliver_after: ms, as in a column."""

    value: bytes | None
    key: bytes | None
    headers: bytes
    timestamp: int
    deliver_after: int

    @property
    def batch_bytes_max(self) -> int:
        """An upper bound of the size of a batch of it."""
        return HEADER_BYTES + RECORD_OVERHEAD_BYTES + len(self.value or b"") + len(self.key or b"") + len(self.headers)

    def entry(self, base_offset: int, stamp_ms: int) -> bytes:
        """The entry of a delayed topic that holds it alone. Raises InvalidRecord, RecordTooLarge."""
        return kernels.encode_single(*self, base_offset, stamp_ms)

    def entry_of(self, sent: ProducerSequence, base_offset: int, stamp_ms: int) -> bytes:
        """The same of a record that its producer numbers."""
        producer = sent.producer_id, sent.epoch, sent.sequence
        return kernels.encode_single(*self, base_offset, stamp_ms, producer)

    def columns(self) -> RecordColumns:
        """The same as one row."""
        return columns_of([self])


def columns_of(records: Sequence[SingleRecord]) -> RecordColumns:
    """Records by themselves as rows, at least one."""
    value, key, headers, timestamp, deliver_after = zip(*records, strict=True)
    values, value_valid = ragged(value)
    has_keys = any(each is not None for each in key)
    keys, key_valid = ragged(key, "keys") if has_keys else (None, None)
    return RecordColumns(
        values=values,
        value_valid=value_valid,
        keys=keys,
        key_valid=key_valid,
        headers=ragged(headers, "headers")[0] if any(headers) else None,
        timestamps=np.array(timestamp, np.int64),
        deliver_after=np.array(deliver_after, np.int64),
    )


def byte_string(value: object, name: str = "values") -> bytes | None:
    """A value or key, of anything bytes-like. Raises InvalidRecord."""
    if value is None or type(value) is bytes:
        return value
    (_, data), _ = ragged([value], name)
    return data.tobytes()


def header_section(headers: Headers) -> bytes:
    """The headers of one record, encoded; empty where there are none. Raises InvalidRecord."""
    return b"" if type(headers) is tuple and not headers else encode_headers(own_headers(headers))
