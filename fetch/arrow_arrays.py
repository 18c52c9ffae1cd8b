"""Columns of bytes and of headers as Arrow arrays, over the same memory where Arrow's layout allows. Needs pyarrow."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from afterlog.base.extras import missing
from afterlog.records.batch import decode_own_headers
from afterlog.records.columns import Bools, Ragged

try:
    import pyarrow as pa
except ImportError as error:
    raise missing(error, "columns of Arrow", "arrow") from error

HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def binary_array(column: Ragged, valid: Bools | None) -> pa.Array:
    offsets, data = column
    mask = None if valid is None or bool(valid.all()) else pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [mask, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def headers_array(column: Ragged) -> pa.Array:
    """A Python object each, where there are any."""
    offsets, data = column
    if offsets[0] == offsets[-1]:
        nothing = pa.array([], HEADERS.value_type)
        return pa.ListArray.from_arrays(pa.array(np.zeros(len(offsets), np.int32)), nothing)
    view = memoryview(np.ascontiguousarray(data))
    starts, ends = offsets[:-1].tolist(), offsets[1:].tolist()
    rows = [
        [{"key": name, "value": value} for name, value in decode_own_headers(view[start:end])] if start < end else []
        for start, end in zip(starts, ends, strict=True)
    ]
    try:
        return pa.array(rows, HEADERS)
    except UnicodeEncodeError:  # a foreign producer's names need not be UTF-8, which Arrow's text must
        return pa.array([[_as_text(each) for each in row] for row in rows], HEADERS)


def _as_text(header: dict[str, Any]) -> dict[str, Any]:
    return header | {"key": header["key"].encode("utf-8", "surrogateescape").decode("utf-8", "replace")}
