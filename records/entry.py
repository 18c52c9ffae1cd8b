"""An entry of the log: one record batch, and in front of it what the log stamped (PIP-70, broker entry metadata).

    0 magic u16 = 0x0E02    2 size u32    6 metadata, `size` bytes of protobuf    6 + size  record batch v2

Big-endian. The batch is byte for byte as the producer made it, but for base_offset. The prefix is optional: where the
first two bytes are not its magic, the entry is a bare batch, and a log of those is a Kafka log.

The metadata's fields, numbers 1 and 2 as in Pulsar. A reader takes them in any order and steps over unknown ones:

     1 broker_timestamp  varint     log clock at append, ms
     2 index             varint     offset of the batch's last record
    16 deliver_after     varint     effective, ms
    18 deliver_after     varint     as asked for, ms; only where the stamping rule changed it
    32 and up                       from the user's interceptors
    19, 20                          where a replicated entry comes from (`afterlog.records.entry_origin`)
    17 header_crc32c     fixed32    little-endian as in all protobuf, required and last

header_crc32c is CRC-32C over magic, size, the metadata in front of field 17, and the batch's 61-byte header as it is
stored. The body behind it has Kafka's own CRC, so every byte of an entry is covered. Kafka's does not cover base offset
and length; since this one does, a length that rotted is known as rot and not taken for the end of the file.
After a crash any suffix of an entry may be missing.

Example: one record at offset 7, appended at 1700000000000 ms, due a minute later. The metadata is 23 bytes:

    0E 02   00 00 00 17        magic, size
    08 80 D0 95 FF BC 31       1 broker_timestamp = 1700000000000
    10 07                      2 index = 7
    80 01 E0 A4 99 FF BC 31    16 deliver_after = 1700000060000
    8D 01 2D C5 CF D3          17 header_crc32c = 0xD3CFC52D
    00 00 00 00 00 00 00 07 …  the batch
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, runtime_checkable

from afterlog.base.checksum import crc32c
from afterlog.base.errors import InvalidBatch, InvalidRecord
from afterlog.base.files import Data
from afterlog.records.columns import (
    BODY_CRC,
    EPOCH,
    EXTRA_BYTES_MAX,
    FAULTS,
    HEADER_CRC,
    INT64_MAX,
    LENGTH,
    MAGIC,
    OFFSET,
    PREFIX,
    SHORT,
    view_of,
)
from afterlog.records.header import CRC_END, HEADER_BYTES, MAGIC_2, BatchHeader
from afterlog.records.varint import read_varint, varint

PREFIX_MAGIC: Final = 0x0E02
PREFIX_HEAD: Final = struct.Struct(
    ">"
    "H"  # magic
    "I"  # size of the metadata
)
assert PREFIX_HEAD.size == 6

BROKER_TIMESTAMP: Final = 1
LAST_OFFSET: Final = 2
DELIVER_AFTER: Final = 16
HEADER_CRC32C: Final = 17
DELIVER_AFTER_ASKED: Final = 18
FIRST_EXTRA: Final = 32
"""Field numbers from here on belong to interceptors."""

CRC_FIELD: Final = struct.Struct(
    "<"
    "2s"  # tag of field 17, wire type fixed32: 8D 01
    "I"  # header_crc32c
)
CRC_TAG: Final = b"\x8d\x01"
METADATA_BYTES_MAX: Final = 64 << 10
"""A size beyond this is rot: what the log writes itself is below 64 bytes."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerEntryMetadata:
    """What the log knows of an entry besides the batch."""

    broker_timestamp: int = -1
    index: int = -1
    deliver_after: int = -1
    """Effective. -1 in these four: not there."""
    deliver_after_asked: int = -1
    extra: bytes = b""
    """The fields of interceptors, as they encoded them."""


class Entry(NamedTuple):
    """Where an entry lies in its buffer, and what its two headers say."""

    position: int
    size: int
    """Prefix and batch, bytes."""
    batch_position: int
    header: BatchHeader
    metadata: BrokerEntryMetadata | None
    """None: a bare batch."""


@runtime_checkable
class BrokerEntryMetadataInterceptor(Protocol):
    """Adds fields to the metadata of every entry that one append writes."""

    def intercept(self, first_offset: int, broker_timestamp: int, entries: int) -> bytes:
        """Protobuf fields with numbers of 32 and up, as `protobuf_field` makes them. Called under the append lock."""


class AppendBrokerTimestamp:
    """Asks for the prefix, and so for the broker timestamp, on a topic that is not delayed; delayed ones have it."""

    def intercept(self, first_offset: int, broker_timestamp: int, entries: int) -> bytes:
        return b""


class AppendIndex:
    """Asks for the prefix, and so for the last offset, on a topic that is not delayed; delayed ones have it."""

    def intercept(self, first_offset: int, broker_timestamp: int, entries: int) -> bytes:
        return b""


def protobuf_field(number: int, value: int | bytes) -> bytes:
    """One protobuf field: a varint for an int of 0 to 2^64-1, a length-delimited one for bytes."""
    if not 1 <= number < 1 << 29:
        raise ValueError(f"protobuf numbers its fields from 1 to 2^29-1, not {number}")
    if isinstance(value, int):
        if not 0 <= value < 1 << 64:
            raise ValueError(f"a varint holds 0 to 2^64-1, not {value}")
        return varint(number << 3 | _VARINT) + varint(value)
    return varint(number << 3 | _BYTES) + varint(len(value)) + value


def extra_fields(interceptors: Sequence[object], first_offset: int, broker_timestamp: int, entries: int) -> bytes:
    """What the interceptors add to each entry of an append. InvalidRecord where that is not protobuf of their own."""
    extra = b""
    for interceptor in interceptors:
        name = type(interceptor).__name__
        if not isinstance(interceptor, BrokerEntryMetadataInterceptor):
            raise InvalidRecord(f"interceptor {name} has no method intercept")
        fields = interceptor.intercept(first_offset, broker_timestamp, entries)
        try:
            numbers = [field.number for field in metadata_fields(memoryview(fields), 0, len(fields))]
        except InvalidBatch as error:
            raise InvalidRecord(f"interceptor {name} returned malformed protobuf: {error}") from None
        if any(number < FIRST_EXTRA for number in numbers):
            raise InvalidRecord(f"interceptor {name} returned a field below {FIRST_EXTRA}: these belong to the log")
        extra += fields
    if len(extra) > EXTRA_BYTES_MAX:
        raise InvalidRecord(f"interceptors returned {len(extra)} bytes, more than {EXTRA_BYTES_MAX}")
    return extra


def encode_entry(metadata: BrokerEntryMetadata | None, batch: Data) -> bytes:
    """An entry of the metadata and a batch that is stamped already."""
    body = bytes(batch)
    if metadata is None:
        return body
    fields = b"".join(
        protobuf_field(number, value)
        for number, value in (
            (BROKER_TIMESTAMP, metadata.broker_timestamp),
            (LAST_OFFSET, metadata.index),
            (DELIVER_AFTER, metadata.deliver_after),
            (DELIVER_AFTER_ASKED, metadata.deliver_after_asked),
        )
        if value >= 0
    )
    covered = (
        PREFIX_HEAD.pack(PREFIX_MAGIC, len(fields) + len(metadata.extra) + CRC_FIELD.size) + fields + metadata.extra
    )
    return covered + CRC_FIELD.pack(CRC_TAG, crc32c(body[:HEADER_BYTES], crc32c(covered))) + body


def decode_entry(data: Data, position: int) -> Entry:
    """The entry at `position`, all its checksums checked. InvalidBatch where there is none."""
    view = view_of(data)
    if not 0 <= position <= len(view):
        raise InvalidBatch(f"byte {position} lies outside the {len(view)} bytes")
    entry = read_entry(view, position, len(view))
    if isinstance(entry, int):
        raise InvalidBatch(f"at byte {position}: {FAULTS[entry]}")
    return entry


def read_entry(
    view: memoryview, position: int, end: int, check_body: bool = True, any_epoch: bool = False
) -> Entry | int:
    """The entry at `position`, or the code of its first fault. any_epoch: bare batches may be a Kafka broker's."""
    if end - position < 2:
        return SHORT
    metadata: BrokerEntryMetadata | None = None
    batch_position = position
    if view[position] << 8 | view[position + 1] == PREFIX_MAGIC:
        if end - position < PREFIX_HEAD.size:
            return SHORT
        _, metadata_bytes = PREFIX_HEAD.unpack_from(view, position)
        if not CRC_FIELD.size <= metadata_bytes <= METADATA_BYTES_MAX:
            return LENGTH
        batch_position += PREFIX_HEAD.size + metadata_bytes
        if end - batch_position < HEADER_BYTES:
            return SHORT
        crc_position = batch_position - CRC_FIELD.size
        tag, header_crc = CRC_FIELD.unpack_from(view, crc_position)
        if tag != CRC_TAG:
            return PREFIX
        header_bytes = view[batch_position : batch_position + HEADER_BYTES]
        if header_crc != crc32c(header_bytes, crc32c(view[position:crc_position])):
            return HEADER_CRC
        try:
            metadata = read_metadata(view, position + PREFIX_HEAD.size, crc_position)
        except InvalidBatch:
            return PREFIX
    if end - batch_position < HEADER_BYTES:
        return SHORT
    header = BatchHeader.read(view, batch_position)
    if header.magic != MAGIC_2:
        return MAGIC
    if not header.lengths_fit:
        return LENGTH
    batch_end = batch_position + header.size
    if batch_end > end:
        return SHORT
    last_offset = header.base_offset + header.last_offset_delta
    if header.base_offset < 0 or last_offset > INT64_MAX:
        return OFFSET
    if metadata is None and header.partition_leader_epoch != 0 and not any_epoch:
        return EPOCH
    if metadata is not None and metadata.index not in (-1, last_offset):
        return PREFIX
    if check_body and crc32c(view[batch_position + CRC_END : batch_end]) != header.crc:
        return BODY_CRC
    return Entry(
        position=position,
        size=batch_end - position,
        batch_position=batch_position,
        header=header,
        metadata=metadata,
    )


def read_compacted(view: memoryview, position: int, end: int, check_body: bool = True) -> Entry | None:
    """A Kafka broker's batch at `position` that is intact, but for records that compaction took out of it; else None.

    What is left may be nothing: a broker keeps the last batch of each producer, if need be an empty one.
    """
    if end - position < HEADER_BYTES:
        return None
    header = BatchHeader.read(view, position)
    whole = (
        header.magic == MAGIC_2
        and 0 <= header.records <= header.last_offset_delta <= INT64_MAX - header.base_offset
        and HEADER_BYTES <= header.size <= end - position
        and header.base_offset >= 0
    )
    if not whole or (check_body and crc32c(view[position + CRC_END : position + header.size]) != header.crc):
        return None
    return Entry(position=position, size=header.size, batch_position=position, header=header, metadata=None)


def read_metadata(view: memoryview, position: int, end: int) -> BrokerEntryMetadata:
    """The fields in front of header_crc32c. InvalidBatch where they are malformed."""
    found = dict.fromkeys((BROKER_TIMESTAMP, LAST_OFFSET, DELIVER_AFTER, DELIVER_AFTER_ASKED), -1)
    extra = b""
    for field in metadata_fields(view, position, end):
        if field.number == HEADER_CRC32C:
            raise InvalidBatch("header_crc32c is not the last field")
        if field.number in found:
            if field.wire_type != _VARINT or field.value > INT64_MAX:
                raise InvalidBatch(f"field {field.number} is not a varint of at most 63 bits")
            found[field.number] = field.value
        elif field.number >= FIRST_EXTRA:
            extra += view[field.start : field.end]
    return BrokerEntryMetadata(
        broker_timestamp=found[BROKER_TIMESTAMP],
        index=found[LAST_OFFSET],
        deliver_after=found[DELIVER_AFTER],
        deliver_after_asked=found[DELIVER_AFTER_ASKED],
        extra=extra,
    )


class MetadataField(NamedTuple):
    """One protobuf field, and where it lies in its buffer."""

    number: int
    wire_type: int
    value: int
    """Of a varint; 0 for the other types, whose contents are between `content` and `end`."""
    start: int
    content: int
    end: int


def metadata_fields(view: memoryview, position: int, end: int) -> list[MetadataField]:
    """All protobuf fields in a range. InvalidBatch where it does not end with one."""
    fields = []
    while position < end:
        start = position
        tag, position = read_varint(view, position, end)
        number, wire_type, value, content = tag >> 3, tag & 7, 0, position
        match wire_type:
            case 0:
                value, position = read_varint(view, position, end)
            case 1:
                position += 8
            case 2:
                size, content = read_varint(view, position, end)
                position = content + size
            case 5:
                position += 4
            case _:
                raise InvalidBatch(f"wire type {wire_type} is not used")
        if position > end or not 1 <= number < 1 << 29:
            raise InvalidBatch(f"field {number} runs past the end or has no valid number")
        fields.append(MetadataField(number, wire_type, value, start, content, position))
    return fields
