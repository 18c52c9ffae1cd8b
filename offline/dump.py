"""What is in one file of a store, as rows: plain dictionaries, for people and for JSON. Needs no lock, writes nothing.

    .log                 an entry a row: where it is, what its headers say, whether its checksums match; with `records`
                         each record too. After what is broken it goes on with the next entry that can be found.
                         Bare batches may be a Kafka broker's, of any leader epoch, and compacted. Of messages older
                         than batches, where they are and that they are
    .index, .timeindex   an index entry a row
    .deliverafterindex   what the run covers, then each chunk and its entries, in delivery order
    producers            a producer a row: what it appended last, and where
    documents            the one object

A file that was fetched from object storage, and has the name that it has there, is the same.

Times are ms since the epoch; -1 stands for what an entry does not say.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from afterlog.base import document
from afterlog.base.errors import CorruptFile, InvalidBatch, InvalidDeliverAfter
from afterlog.base.files import Bytes, Files, map_file, read_file
from afterlog.base.names import (
    DELIVER_AFTER_INDEX,
    LOG,
    OFFSET_INDEX,
    TIME_INDEX,
    is_producer_file,
    parse_remote_segment_file,
    parse_segment_file,
)
from afterlog.index.producer_file import RANGE, STATE, decoded
from afterlog.index.run import Run
from afterlog.log.scan import CUT, every_entry
from afterlog.offline.verify import OFFSET_ENTRY, TIME_ENTRY
from afterlog.records.batch import decode_batch, decode_compacted
from afterlog.records.columns import view_of
from afterlog.records.compression import CODECS
from afterlog.records.entry import Entry
from afterlog.records.header import CODEC_BITS, CONTROL, DELETE_HORIZON, LOG_APPEND_TIME, TRANSACTIONAL

Row = dict[str, Any]

_DECOMPRESSED_BYTES_MAX = 256 << 20
_FLAGS = {
    LOG_APPEND_TIME: "log append time",
    TRANSACTIONAL: "transactional",
    CONTROL: "control",
    DELETE_HORIZON: "delete horizon",
}


def dump(files: Files, path: Path, *, records: bool = False) -> Iterator[Row]:
    """What is in a file of the store, told by its name. Raises CorruptFile, FileNotFoundError."""
    original = path.name.partition(CUT)[0]
    parsed = parse_segment_file(original) or parse_remote_segment_file(original)
    base_offset = parsed[0] if parsed else 0
    if original.endswith(LOG):
        return _dump_log(map_file(files, path), records)
    if path.name.endswith(DELIVER_AFTER_INDEX):
        return _dump_run(Run.open(files, path))
    if path.suffix == OFFSET_INDEX:
        return _dump_sparse(map_file(files, path), OFFSET_ENTRY, base_offset)
    if path.suffix == TIME_INDEX:
        return _dump_sparse(map_file(files, path), TIME_ENTRY, base_offset)
    if is_producer_file(path.name):
        return _dump_producers(read_file(files, path), path)
    return iter([_dump_document(read_file(files, path), path)])


def _dump_log(data: Bytes, records: bool) -> Iterator[Row]:
    for position, size, entry, fault in every_entry(data):
        if entry is None:
            yield {"position": position, "size": size, "crc": fault}
            continue
        header, metadata = entry.header, entry.metadata
        codec = header.attributes & CODEC_BITS
        yield {
            "position": position,
            "offset": header.base_offset,
            "records": header.records,
            "due": metadata.deliver_after if metadata else -1,
            "broker_timestamp": metadata.broker_timestamp if metadata else -1,
            "asked": metadata.deliver_after_asked if metadata else -1,
            "codec": CODECS[codec] if codec < len(CODECS) else str(codec),
            "flags": [name for bit, name in _FLAGS.items() if header.attributes & bit],
            "leader_epoch": header.partition_leader_epoch,
            "producer_id": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "sequence": header.base_sequence,
            "size": size,
            "crc": fault or "ok",
        }
        if records and not fault:
            yield from _dump_records(view_of(data), entry)


def _dump_records(view: memoryview, entry: Entry) -> Iterator[Row]:
    batch, header = view[entry.batch_position : entry.position + entry.size], entry.header
    try:
        if header.lengths_fit:
            decoded = list(enumerate(decode_batch(batch, limit_bytes=_DECOMPRESSED_BYTES_MAX)))
        else:
            decoded = decode_compacted(batch, limit_bytes=_DECOMPRESSED_BYTES_MAX)
    except (InvalidBatch, InvalidDeliverAfter) as error:
        yield {"position": entry.position, "records": f"cannot be decoded: {error}"}
        return
    for delta, record in decoded:
        yield {
            "offset": header.base_offset + delta,
            "timestamp": record.timestamp,
            "deliver_after": record.deliver_after,
            "key": record.key,
            "headers": record.headers,
            "value": record.value,
        }


def _dump_producers(data: bytes, path: Path) -> Iterator[Row]:
    try:
        _, states = decoded(data)
    except ValueError as error:
        raise CorruptFile(str(error), path=path) from error
    for producer_id, state in states.items():
        last_ms, upcoming, epoch, _ = STATE.unpack_from(state)
        yield {
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "next_sequence": upcoming,
            "last": last_ms,
            "ranges": [
                {"offset": offset, "records": records}
                for records, offset in RANGE.iter_unpack(memoryview(state)[STATE.size :])
            ],
        }


def _dump_sparse(data: Bytes, entry: np.dtype[np.void], base_offset: int) -> Iterator[Row]:
    whole = len(data) // entry.itemsize * entry.itemsize
    names = ["offset" if name == "relative_offset" else name for name in entry.names or ()]
    for row in data[:whole].view(entry):
        yield {name: int(value) + base_offset * (name == "offset") for name, value in zip(names, row, strict=True)}
    if whole != len(data):
        yield {"position": whole, "size": len(data) - whole, "crc": "no whole entry"}


def _dump_run(run: Run) -> Iterator[Row]:
    coverage, directory = run.coverage, run.directory
    yield {
        "first_offset": coverage.first_offset,
        "end_offset": coverage.end_offset,
        "start_segment": coverage.start_segment,
        "start_position": coverage.start_position,
        "end_segment": coverage.end_segment,
        "end_position": coverage.end_position,
        "chunks": run.chunks,
        "entries": run.count,
        "records": run.records,
    }
    for chunk in range(run.chunks):
        entries = run.chunk(chunk)
        yield {
            "chunk": chunk,
            "position": int(directory.position[chunk]),
            "size": int(directory.size[chunk]),
            "entries": len(entries),
            "records_before": int(directory.records_before[chunk]),
        }
        columns = (entries.deliver_after, entries.offset, entries.position, entries.records)
        for due, offset, position, records in zip(*(column.tolist() for column in columns), strict=True):
            yield {"due": due, "offset": offset, "position": position, "records": records}


def _dump_document(data: bytes, path: Path) -> Row:
    words = data[: data.find(b"\n") + 1].split()
    if len(words) != 3 or not words[0].startswith(b"afterlog-") or not words[1].isdigit() or len(words[1]) > 9:
        raise CorruptFile("no file of a store: no segment's name, and no document", path=path, position=0)
    name, version = words[0].decode("ascii", "replace"), int(words[1])
    return {"document": name, "version": version, "crc": "ok", **document.decode(name, version, data, path)}
