"""What a worker of a relay has done since it began, and how late it was."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

from afterlog.base.measures import LATENESS_EDGES_MS
from afterlog.relay.relay_partition import DeliveryTurn

TRANSACTION_EDGES_S: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


@dataclass(slots=True)
class RelayMeasures:
    """For one thread; another may look."""

    transactions: int = 0
    aborted: int = 0
    fenced: int = 0
    """Of these, since somebody else has the worker's name or its partitions. One after the other: two have one name."""
    sessions: int = 0
    """Times that it has joined the group."""
    lost: int = 0
    """Partitions that were taken away while it was thought to be dead."""
    rebuilds: int = 0
    """Partitions that were begun anew since their transaction failed."""
    dead_letters: int = 0
    delivered_total: int = 0
    lateness: list[int] = field(default_factory=lambda: [0] * (len(LATENESS_EDGES_MS) + 1))
    """Of what was delivered, by `LATENESS_EDGES_MS`: from when it was due, or read, to when it was committed."""
    lateness_ms: int = 0
    """All of it."""
    transaction_s: list[int] = field(default_factory=lambda: [0] * (len(TRANSACTION_EDGES_S) + 1))
    """How long transactions took, by `TRANSACTION_EDGES_S`."""
    transactions_s: float = 0.0

    def transaction(self, seconds: float) -> None:
        self.transactions += 1
        self.transactions_s += seconds
        self.transaction_s[bisect_left(TRANSACTION_EDGES_S, seconds)] += 1

    def delivered(self, turn: DeliveryTurn, now_ms: int) -> None:
        """A turn was committed. What was due when it was sent counts by its timestamp."""
        for each in (*turn.late, *turn.due):
            late_ms = max(now_ms - max(each.due_ms, each.timestamp_ms), 0)
            self.lateness[bisect_left(LATENESS_EDGES_MS, late_ms)] += 1
            self.lateness_ms += late_ms
        self.delivered_total += len(turn.late) + len(turn.due)
