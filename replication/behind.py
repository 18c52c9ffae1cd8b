"""How far a cluster lags behind others, by the slices that arrive, and how its snapshot rounds ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from afterlog.records.origin_slice import OriginSlice
from afterlog.replication.snapshots import SnapshotRounds


class Behind(NamedTuple):
    """One partition of a topic, and one other cluster, by the topic's id there."""

    topic: str
    partition: int
    origin: str
    records: int
    """Offsets there that were not given yet: at most so many records."""
    seconds: float
    """Since when there are any."""
    heard_seconds: float
    """Since something came."""


class ReplicationStanding:
    """Of one cluster. One thread at a time changes it."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, str], tuple[int, float | None, float]] = {}
        """Records behind, since when, and when that was seen."""

    def received(self, topic: str, partition: int, given: OriginSlice, now_s: float) -> None:
        """A slice came in."""
        key, records = (topic, partition, given.origin), given.end - given.upto
        _, since_s, _ = self._known.get(key, (0, None, now_s))
        self._known[key] = records, (since_s if since_s is not None else now_s) if records else None, now_s

    def behind(self, now_s: float) -> list[Behind]:
        """Of each partition that anything ever came to."""
        return [
            Behind(*key, records, 0.0 if since_s is None else now_s - since_s, now_s - heard_s)
            for key, (records, since_s, heard_s) in sorted(self._known.copy().items())
        ]


def snapshot_row(topic: str, partition: int, rounds: SnapshotRounds) -> dict[str, Any]:
    return {
        "topic": topic, "partition": partition, "started": rounds.started, "completed": rounds.completed,
        "timed_out": rounds.timed_out, "pending": rounds.pending, "updates": rounds.updates,
    }  # fmt: skip


def totals(rows: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Of all partitions."""
    found = dict.fromkeys(("started", "completed", "timed_out", "pending", "updates"), 0)
    for row in rows:
        for name in found:
            found[name] += row[name]
    return found
