"""Rounds that find out which positions in other clusters' logs go with one's own, and the snapshots that are kept.

    request ──> all others ──> responses ──┬── two clusters: a snapshot
                                           └── more: request again ──> responses ──> a snapshot

The remote positions are those of the first round, the local one is where the last response of the last round came in:
whatever lies before a remote position there was given to this log before. With three clusters one round is not enough:
what lies before a position in the second may be the third's, and still be on its way here; a second round of answers
comes in behind it (PIP-33). Who has records of a cluster that was not asked says so, and the round is of no use.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from afterlog.replication.markers import Snapshot, SnapshotRequest, SnapshotResponse

INTERVAL_S = 1.0
"""Between two snapshots. Smaller: a later cluster is closer behind; more markers in the logs."""
TIMEOUT_S = 30.0
"""Without an answer of all others there is no snapshot."""
CACHED = 10
"""Snapshots of one subscription."""


class SnapshotRounds:
    """Of one partition. make_id: gives a name to each snapshot."""

    def __init__(self, make_id: Callable[[], str]) -> None:
        self.started = self.completed = self.timed_out = 0
        self.updates = 0
        """Positions of subscriptions that were told."""
        self._make_id = make_id
        self._id = ""
        """Of the one in the making."""
        self._round = 0
        self._asked: frozenset[str] = frozenset()
        self._answered: dict[str, int] = {}
        self._first: dict[str, int] = {}
        """What was answered in the first round."""
        self._began_s = 0.0
        self._ended = -1
        """Where the log ended when the last one was begun."""

    @property
    def pending(self) -> int:
        return int(bool(self._id))

    def begin(self, end: int, others: Collection[str], now_s: float) -> SnapshotRequest | None:
        """What to ask now; None where one is in the making, has just been made, or there is nothing new."""
        if self._id and now_s - self._began_s >= TIMEOUT_S:
            self.timed_out += 1
            self._id, self._ended = "", -1
        if self._id or not others or end == self._ended or (self.started and now_s - self._began_s < INTERVAL_S):
            return None
        self.started += 1
        self._id, self._began_s, self._ended = self._make_id(), now_s, end
        self._asked, self._answered, self._first = frozenset(others), {}, {}
        self._round = 1
        return SnapshotRequest(self._id, 1)

    def hear(self, response: SnapshotResponse, origin: str, local: int) -> SnapshotRequest | Snapshot | None:
        """An answer, when all that its cluster had before is here. local: where this log ends."""
        if (response.id, response.round) != (self._id, self._round) or origin not in self._asked:
            return None
        if {*response.origins} - self._asked - {response.to}:
            self._id, self._ended = "", -1
            return None
        self._answered.setdefault(origin, response.position)
        if self._asked - self._answered.keys():
            return None
        if self._round == 1:
            self._first = self._answered
        if self._round == 1 and len(self._asked) > 1:
            self._round, self._answered = 2, {}
            return SnapshotRequest(self._id, 2)
        made = Snapshot(self._id, local, self._first)
        self.completed += 1
        self._id = ""
        return made


class SnapshotCache:
    """Those of one subscription that may still be of use: the oldest and the newest stay, between them it thins out."""

    def __init__(self, most: int = CACHED) -> None:
        self._most = most
        self._kept: list[Snapshot] = []

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, snapshot: Snapshot) -> None:
        """A newer one."""
        if self._kept and snapshot.local <= self._kept[-1].local:
            self._kept[-1] = snapshot
            return
        self._kept.append(snapshot)
        if len(self._kept) > self._most:
            spans = [self._kept[row + 1].local - self._kept[row - 1].local for row in range(1, len(self._kept) - 1)]
            del self._kept[1 + spans.index(min(spans))]

    def advance(self, mark_delete: int) -> Snapshot | None:
        """The newest at or below it, which goes with all before; None where there is none."""
        count = sum(snapshot.local <= mark_delete for snapshot in self._kept)
        if not count:
            return None
        found = self._kept[count - 1]
        del self._kept[:count]
        return found
