"""The occurrences of a recurring schedule: which one comes next, how its record names it, and where it is in the log.

Three headers behind those of the schedule say where a record comes from:

    afterlog-schedule       weekly
    afterlog-occurrence     1700467200000       when it came, ms since the epoch, whenever it was appended
    afterlog-schedule-id    32 hex digits, of this schedule and no other of its name

They stand behind those that the schedule has of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from afterlog.base.recurrence import Every, Recurrence
from afterlog.records.batch import Headers

if TYPE_CHECKING:
    from afterlog.fetch.partition import Partition

_NAME, _OCCURRENCE, _ID = "afterlog-schedule", "afterlog-occurrence", "afterlog-schedule-id"


MISSED_MAX = 1_000
"""Of what was missed so many are appended, the latest: each costs some syncs, and the schedule stands until then."""


def kept_of_missed(recurrence: Recurrence, due_ms: int, now_ms: int) -> tuple[int, int]:
    """Of the occurrences from one on up to now, the first that is kept by `missed="all"`, and how many come before."""
    if isinstance(recurrence, Every):
        left_out = max((now_ms - due_ms) // recurrence.every_ms + 1 - MISSED_MAX, 0)
        return due_ms + left_out * recurrence.every_ms, left_out
    kept, count = deque[int](maxlen=MISSED_MAX), 0
    after: int | None = due_ms
    while after is not None and after <= now_ms:
        kept.append(after)
        count += 1
        after = recurrence.after(after)
    return kept[0], count - len(kept)


def next_of(recurrence: Recurrence, upto_ms: int, now_ms: int, missed: str) -> tuple[int | None, int]:
    """The occurrence that is appended next, and up to when all is dealt with once it is."""
    due_ms = recurrence.after(upto_ms)
    if due_ms is None or due_ms > now_ms or missed == "all":
        return due_ms, upto_ms if due_ms is None else due_ms
    if missed == "one":
        return due_ms, now_ms
    due_ms = recurrence.after(now_ms)
    return due_ms, now_ms if due_ms is None else due_ms


def headers_of_occurrence(name: str, identity: str, due_ms: int) -> tuple[tuple[str, bytes | None], ...]:
    return (_NAME, name.encode()), (_OCCURRENCE, b"%d" % due_ms), (_ID, identity.encode())


def occurrence_of(headers: Headers, identity: str) -> int | None:
    """Which occurrence of the schedule the record is, by its last three headers; None of a record that is none."""
    *_, (name, value), (_, found) = (("", b""), ("", b""), *headers)
    if found != identity.encode() or name != _OCCURRENCE or value is None or not value.isdigit():
        return None
    return int(value)


def appended_occurrences(partition: Partition, identity: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """(occurrence, offset) of the records of a schedule, from one append offset to another. Raises CorruptFile."""
    from afterlog.subscription.dead_letters import own_headers

    for records in partition.appended(max(start, partition.log_start_offset), end):
        for offset, headers in zip(records.offset.tolist(), own_headers(records), strict=True):
            due_ms = occurrence_of(headers, identity)
            if due_ms is not None:
                yield due_ms, offset
