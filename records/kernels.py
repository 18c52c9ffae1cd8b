"""Loops over records and entries: the compiled kernels where they are built, else the pure ones.

    encode_batches   columns of records    -> uncompressed batches
    stamp_entries    batches               -> entries of the log
    encode_entries   columns of records    -> entries of the log: the two above in one go
    encode_single    one record            -> its entry: bytes, as encode_entries gives them for columns of one
    scan_entries     a stretch of log      -> a row per entry, and where and why the walk stopped; with any_epoch bare
                                              batches may have a partition leader epoch, as a Kafka broker's have
    check_entries    places in an index    -> are they what the index says, every checksum verified
    decode_records   uncompressed batches  -> columns of records; with lenient a header deliver-after that names no
                                              time is none, as in a log that others wrote
    read_records     places in an index    -> columns of records: the two above in one go
    read_single      bytes of the log      -> the one record of the entry that they begin with, or the row-th of so
                                              many, or None: read_records says what is the matter with it, or reads
                                              what is more than that
    take_items       a column, and rows    -> the items at these rows, in this order
    spread_starts    times that ascend     -> the rows at which a batch begins, where each takes what lies no further
                                              than a spread after its first

Both give the same bytes and raise the same errors; tests hold one against the other. Arrays are C-contiguous and may be
read-only; none is kept. Arguments that contradict each other are the caller's mistake and raise ValueError; bytes that
came from a disk or a client are never trusted. The compiled kernels run without the GIL.
"""

from __future__ import annotations

from afterlog.records.columns import (
    BODY_CRC,
    EPOCH,
    FAULTS,
    HEADER_CRC,
    INDEX,
    LENGTH,
    MAGIC,
    OFFSET,
    OK,
    PREFIX,
    SHORT,
    Checked,
    Decoded,
    Ragged,
    Scan,
    Verified,
    ragged,
)

try:
    from afterlog.records._kernels import (
        check_entries,
        decode_records,
        encode_batches,
        encode_entries,
        encode_single,
        read_records,
        read_single,
        scan_entries,
        spread_starts,
        stamp_entries,
        take_items,
    )
except ImportError:
    from afterlog.records.pure import (
        check_entries,
        decode_records,
        encode_batches,
        encode_entries,
        encode_single,
        read_records,
        read_single,
        scan_entries,
        spread_starts,
        stamp_entries,
        take_items,
    )

__all__ = [
    "BODY_CRC",
    "EPOCH",
    "FAULTS",
    "HEADER_CRC",
    "INDEX",
    "LENGTH",
    "MAGIC",
    "OFFSET",
    "OK",
    "PREFIX",
    "SHORT",
    "Checked",
    "Decoded",
    "Ragged",
    "Scan",
    "Verified",
    "check_entries",
    "decode_records",
    "encode_batches",
    "encode_entries",
    "encode_single",
    "ragged",
    "read_records",
    "read_single",
    "scan_entries",
    "spread_starts",
    "stamp_entries",
    "take_items",
]
