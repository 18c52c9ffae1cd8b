"""Rates and lateness for `afterlog top`, computed from the counters of two overviews.

    look at 1,000 ms: sent 400   ─┐
    look at 3,000 ms: sent 500   ─┴─> 50 a second

Times are those at which the counts were made, so a look that was answered late, or again, tells the same rates. A
counter that has become smaller (another process opened the store, a topic was made anew) tells nothing until the next
look.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

ALL = "*"
"""The row of all topics together; no topic has this name."""
SHARE = 0.99
"""Of what was handed out, so much was no later than is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRates:
    """One row. sent, became_due, handed_out: records a second; None where two looks do not tell yet.

    handed_out: to the first of its readers. late_ms: the edge below which `SHARE` of it lay, `inf` beyond the last one;
    None where nothing was handed out. lag, retrying, dead: of subscriptions; None: it has none.
    """

    topic: str
    sent: float | None
    became_due: float | None
    handed_out: float | None
    late_ms: float | None
    pending: int
    next_due_ms: int | None
    lag: int | None
    retrying: int
    dead: int
    unreadable: str | None


class Rates:
    """Compares each look with the one before."""

    def __init__(self) -> None:
        self._now_ms: int | None = None
        self._counts: dict[str, Mapping[str, Any]] = {}
        self._shown: list[TopicRates] = []

    def of(self, overview: Mapping[str, Any]) -> list[TopicRates]:
        """A row for each topic, the busiest first; of many, one of all before them (`ALL`).

        overview: as `/v1/overview` answers.
        """
        now_ms, edges = overview["now_ms"], overview["lateness_edges_ms"]
        if now_ms == self._now_ms:
            return self._shown
        rows: list[Mapping[str, Any]] = [*overview["topics"]]
        elapsed_ms = 0 if self._now_ms is None else now_ms - self._now_ms
        shown = sorted((self._row(row, elapsed_ms, edges) for row in rows), key=_busy)
        if overview["all"] > 1 and len(rows) > 1:
            total = {"topic": ALL, "lag": None, "unreadable": None, **overview["totals"]}
            shown.insert(0, self._row(total, elapsed_ms, edges))
            rows.append(total)
        self._now_ms, self._shown = now_ms, shown
        self._counts = {row["topic"]: row for row in rows}
        return shown

    def _row(self, row: Mapping[str, Any], elapsed_ms: int, edges: Sequence[int]) -> TopicRates:
        before = self._counts.get(row["topic"], {})
        return TopicRates(
            topic=row["topic"],
            sent=_a_second(row["sent"], before.get("sent"), elapsed_ms),
            became_due=_a_second(row["became_due"], before.get("became_due"), elapsed_ms),
            handed_out=_a_second(row["handed_out"], before.get("handed_out"), elapsed_ms),
            late_ms=_lateness(row["lateness_up_to"], before.get("lateness_up_to"), edges),
            pending=row["pending"],
            next_due_ms=row["next_due"],
            lag=row["lag"],
            retrying=row["retrying"],
            dead=row["dead"],
            unreadable=row["unreadable"],
        )


def _a_second(count: int, before: int | None, elapsed_ms: int) -> float | None:
    if before is None or elapsed_ms <= 0 or count < before:
        return None
    return (count - before) * 1_000 / elapsed_ms


def _lateness(up_to: Sequence[int], before: Sequence[int] | None, edges: Sequence[int]) -> float | None:
    """Of what was handed out between two looks."""
    if before is None:
        return None
    counts = [now - then for now, then in zip(up_to, before, strict=True)]
    if counts[-1] <= 0 or min(counts) < 0:
        return None
    return next((edge for edge, count in zip((*edges, inf), counts, strict=True) if count >= SHARE * counts[-1]), inf)


def _busy(row: TopicRates) -> tuple[float, int, str]:
    return -(row.sent or 0) - (row.handed_out or 0), -row.pending, row.topic
