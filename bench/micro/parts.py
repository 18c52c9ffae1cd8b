"""Each part as a function of a size and a folder that prepares everything and returns what is to be measured.

What is measured can be called again and again, and returns how many records or entries it went through.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

import afterlog
from afterlog.base.files import Bytes
from afterlog.fetch.timeline import Timeline
from afterlog.records import kernels
from afterlog.records.columns import INT64_MAX, Scan
from afterlog.records.encode import RecordColumns, encode
from afterlog.subscription import bits
from afterlog.subscription.ack_set import AckSet
from bench.workloads import (
    START_MS,
    TOPIC,
    dues,
    make_due,
    merge_all,
    new_store,
    runs,
    scheduled,
    values,
    write_scheduled,
)

VALUE_BYTES, AT_ONCE, LOOK_UPS = 100, 1_000, 1_000
Part = Callable[[], int]
Prepare = Callable[[int, Path], Part]


def batch_encode(count: int, folder: Path) -> Part:
    """Columns to entries of the log: with uniform due times, a batch for each record."""
    columns = _columns(count)
    return lambda: len(_entries(columns)[1]) - 1


def batch_decode(count: int, folder: Path) -> Part:
    """Entries in delivery order to columns, both checksums of each verified."""
    data, found = _log(count)
    order = np.lexsort((found.offset, found.deliver_after))
    which = np.zeros(count, np.int32)
    positions, offsets, records, due = (
        np.ascontiguousarray(column[order])
        for column in (found.position, found.offset, found.records, found.deliver_after)
    )
    return lambda: kernels.read_records([data], which, positions, offsets, records, due, INT64_MAX).row


def scan(count: int, folder: Path) -> Part:
    """A walk over the log as recovery does it, all checksums verified."""
    data, _ = _log(count)
    return lambda: len(kernels.scan_entries(data, 0, len(data), 0, True).position)


def index_build(count: int, folder: Path) -> Part:
    """Sorted entries to a run on disk."""
    entries = scheduled("uniform", count, 1, "80-120")
    return lambda: write_scheduled(folder / "run", entries).count


def searchsorted(count: int, folder: Path) -> Part:
    """Look-ups of one number each in a sorted column."""
    column = np.sort(dues("uniform", count))
    sought = dues("uniform", LOOK_UPS).tolist()

    def look_up() -> int:
        for ms in sought:
            column.searchsorted(ms)
        return len(sought)

    return look_up


def merge_of(number: int) -> Prepare:
    """All entries of so many runs, in delivery order."""

    def prepare(count: int, folder: Path) -> Part:
        index = runs(folder, number, count)
        return lambda: merge_all(index)

    return prepare


def timeline(count: int, folder: Path) -> Part:
    """Delivery order from the beginning to the high watermark, with nothing cached."""
    store = new_store(folder / "store", afterlog.OS)
    store.send_many(TOPIC, values(count, VALUE_BYTES), deliver_after=dues("uniform", count))
    make_due(store)
    log = store.topic(TOPIC).partition(0).log

    def read() -> int:
        fresh = Timeline(log)
        reading, position = fresh.advance(), 0
        while len(block := fresh.read(position, reading, 65_536)):
            position = block.end_delivery_offset
        return position

    return read


def ack(count: int, folder: Path) -> Part:
    """Delivered and acked, a thousand at a time, every other one first: that makes as many holes as there can be."""
    columns = [np.arange(first, min(first + AT_ONCE, count)) for first in range(0, count, AT_ONCE)]
    even, odd = ([offsets[start::2].copy() for offsets in columns] for start in (0, 1))

    def work_off() -> int:
        acks, acked = AckSet(), 0
        for offsets, half in zip(columns, even, strict=True):
            acks.read(int(offsets[-1]) + 1, bits.of_column(offsets))
            acked += acks.ack(bits.of_column(half))
        return acked + sum(acks.ack(bits.of_column(half)) for half in odd)

    return work_off


PARTS: dict[str, Prepare] = {
    "batch encode": batch_encode,
    "batch decode": batch_decode,
    "scan": scan,
    "index build": index_build,
    "searchsorted": searchsorted,
    **{f"merge of {number:,} runs": merge_of(number) for number in (1, 10, 100)},
    "timeline": timeline,
    "ack": ack,
}


def _columns(count: int) -> RecordColumns:
    return RecordColumns(
        values=values(count, VALUE_BYTES), timestamps=np.full(count, START_MS), deliver_after=dues("uniform", count)
    )


def _entries(columns: RecordColumns) -> tuple[Bytes, np.ndarray]:
    batches = encode(columns, afterlog.Config())[0]
    assert len(batches) == 1, "more than one part"
    return batches[0].entries(0, len(batches[0]), 0, START_MS, delayed=True, extra=b"")


def _log(count: int) -> tuple[Bytes, Scan]:
    data, _ = _entries(_columns(count))
    return data, kernels.scan_entries(data, 0, len(data), 0, True)
