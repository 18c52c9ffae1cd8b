"""Instants that are surely wrong: before 2001-09-09, or more than a century ahead of the log's clock.

A unit that was mistaken moves an instant by a factor of a thousand, and so out of this window:

    1_770_000_000          seconds        1970-01-21   would be due at once
    1_770_000_000_000      milliseconds   2026-02-02   what is meant
    10**12                 milliseconds   2001-09-09   where the window begins
    1_770_000_000_000_000  microseconds   year 58059   would never be due

Judged are the instants that a caller states, not delays. 0 is the epoch and nothing else, in any unit: it is taken,
and means at once. A clock that itself stands before the window is a simulation's, by which nothing can be judged.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from afterlog.errors import InvalidDeliverAfter

if TYPE_CHECKING:
    from afterlog.records.columns import Int64Array

EARLIEST_MS: Final = 10**12
"""2001-09-09T01:46:40Z. In seconds, an instant of today is below it up to the year 33658."""
AHEAD_MS: Final = 36_525 * 86_400_000
"""A century."""

_UNITS: Final = (("seconds", 1_000, 1), ("microseconds", 1, 1_000), ("nanoseconds", 1, 1_000_000))
"""Each with what makes milliseconds of it: times, and divided by."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def check_instant(ms: int, now_ms: int) -> None:
    """Raises InvalidDeliverAfter where an instant that was asked for is surely wrong. What is not positive passes."""
    if ms > 0 and now_ms >= EARLIEST_MS and not EARLIEST_MS <= ms <= now_ms + AHEAD_MS:
        raise InvalidDeliverAfter(_why(ms, now_ms, ""))


def check_instants(column: Int64Array, now_ms: int) -> None:
    """The same for a column of them."""
    if now_ms < EARLIEST_MS or not len(column):
        return
    latest_ms = now_ms + AHEAD_MS
    if EARLIEST_MS <= int(column.min()) and int(column.max()) <= latest_ms:
        return
    wrong = ((column > 0) & (column < EARLIEST_MS)) | (column > latest_ms)
    if bool(wrong.any()):
        row = int(wrong.argmax())
        raise InvalidDeliverAfter(_why(int(column[row]), now_ms, f"row {row}: "))


def _why(ms: int, now_ms: int, place: str) -> str:
    mean = "if it is meant: check_instants=False"
    for unit, times, divisor in _UNITS:
        if EARLIEST_MS <= ms * times // divisor <= now_ms + AHEAD_MS:
            change = "multiply by 1000" if times > 1 else f"divide by {divisor}"
            return (
                f"{place}deliver_after {ms} looks like {unit}, and is taken as milliseconds since the epoch "
                f"({_when(ms)}): {change}, or give an aware datetime; {mean}"
            )
    which = "before 2001-09-09" if ms < EARLIEST_MS else "more than a century ahead"
    return f"{place}deliver_after {ms} ms since the epoch ({_when(ms)}) is {which}: mend it, or {mean}"


def _when(ms: int) -> str:
    try:
        return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="seconds")
    except OverflowError:
        return f"the year {1970 + ms // 31_556_952_000}"
