"""Snapshot rounds: which positions in other clusters' logs correspond to one's own; and the cache of snapshots.

    request ──> all others ──> responses ──┬── from one: a snapshot
                                           └── from more: request again ──> responses ──> a snapshot

The remote positions are those of the first round, the local one is where the last response of the last round came in:
whatever lies before a remote position there, of the clusters that answered and of this one, was given to this log
before. With three clusters one round is not enough: what lies before a position in the second may be the third's, and
still be on its way here; a second round of answers comes in behind it (PIP-33).

A snapshot says whose records it speaks of: of a cluster that did not answer, or was not known yet, some may be there
that are not here. So a cluster that is gone holds up one round, until it times out; from then on it is not waited for
until something is heard from it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from afterlog.replication.markers import Snapshot, SnapshotRequest, SnapshotResponse


class SnapshotRounds:
    """Of one partition. make_id: gives a name to each snapshot. own: what this cluster is called. frequency_ms and
    timeout_ms: as `afterlog.Config` has them.
    """

    def __init__(self, make_id: Callable[[], str], own: str, frequency_ms: int, timeout_ms: int) -> None:
        self.started = self.completed = self.timed_out = 0
        self.updates = 0
        """Positions of subscriptions that were told."""
        self._make_id = make_id
        self._own = own
        self._frequency_s, self._timeout_s = frequency_ms / 1_000, timeout_ms / 1_000
        self._id = ""
        """Of the one in the making."""
        self._round = 0
        self._asked: frozenset[str] = frozenset()
        self._answered: dict[str, int] = {}
        self._first: dict[str, int] = {}
        """What was answered in the first round."""
        self._began_s = 0.0
        self._is_news = False
        """Whether anything was acked since the last one was begun."""
        self._silent = set[str]()
        """Who did not answer in time, and was not heard since."""

    @property
    def pending(self) -> int:
        return int(bool(self._id))

    def acked(self) -> None:
        """There is something that a position could tell."""
        self._is_news = True

    def heard(self, origin: str) -> None:
        """Anything of another cluster."""
        self._silent.discard(origin)

    def begin(self, others: Collection[str], now_s: float) -> SnapshotRequest | None:
        """What to ask now; None where one is in the making, has just been made, or there is nothing new."""
        if self._id and now_s - self._began_s >= self._timeout_s:
            self.timed_out += 1
            self._silent |= self._asked - self._answered.keys()
            self._id, self._is_news = "", True
        if self._id or not others or not self._is_news or (self.started and now_s - self._began_s < self._frequency_s):
            return None
        self.started += 1
        self._id, self._began_s, self._is_news = self._make_id(), now_s, False
        self._asked = frozenset(others) - self._silent or frozenset(others)
        self._answered, self._first = {}, {}
        self._round = 1
        return SnapshotRequest(self._id, 1)

    def hear(self, response: SnapshotResponse, origin: str, local: int) -> SnapshotRequest | Snapshot | None:
        """An answer, when all that its cluster had before is here. local: where this log ends."""
        if (response.id, response.round) != (self._id, self._round) or origin not in self._asked:
            return None
        self._answered.setdefault(origin, response.position)
        if self._asked - self._answered.keys():
            return None
        if self._round == 1:
            self._first = self._answered
        if self._round == 1 and len(self._asked) > 1:
            self._round, self._answered = 2, {}
            return SnapshotRequest(self._id, 2)
        made = Snapshot(self._id, local, self._first, sorted({*self._asked, self._own}))
        self.completed += 1
        self._id = ""
        return made


class SnapshotCache:
    """Those of one subscription that may still be of use: the oldest and the newest stay, between them it thins out."""

    def __init__(self, most: int) -> None:
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
