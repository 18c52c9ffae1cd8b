"""Part of an entry: the records that remain where some must not be passed on, as entries of their own.

Offsets within a batch are dense here, so each stretch of records that is left becomes a batch, at the offset that it
had, with the times of the whole. Who sent it is not said any more: the numbers would not be those of its producer.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import groupby
from typing import Final

from afterlog.records.batch import decode_batch, encode_batch
from afterlog.records.compression import CODECS
from afterlog.records.entry import Entry, encode_entry
from afterlog.records.header import CODEC_BITS

_BASE_OFFSET: Final = struct.Struct(">q")


def entries_without(data: memoryview, entry: Entry, left_out: Collection[int], limit_bytes: int) -> Iterator[bytes]:
    """Entries of what is left of one in `data` without the records of some offsets; none where nothing is.

    limit_bytes: of the batch, decompressed. Raises InvalidBatch.
    """
    first, codec = entry.header.base_offset, CODECS[entry.header.attributes & CODEC_BITS]
    records = decode_batch(data[entry.batch_position : entry.position + entry.size], limit_bytes=limit_bytes)
    for is_left, stretch in groupby(range(len(records)), lambda row: first + row not in left_out):
        if is_left:
            rows = [*stretch]
            batch = bytearray(encode_batch([records[row] for row in rows], codec))
            _BASE_OFFSET.pack_into(batch, 0, first + rows[0])
            metadata = entry.metadata
            yield encode_entry(metadata and replace(metadata, index=first + rows[-1]), batch)
