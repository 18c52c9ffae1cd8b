"""The overview of all topics: counts for each and for all, filtered, sorted, paged.

    GET /v1/overview?filter=mail&sort=pending&descending=true&limit=50

It asks indexes and subscriptions alone: no record is read, and the journal of a subscription that nobody has open once
for each change of it. A topic that was at rest is opened, as a scrape of metrics opens it. What was asked less than a
second ago is answered again, so that ten people who look cost what one does.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final

from afterlog.api.operations import SORTS
from afterlog.base.errors import AfterlogError, InvalidArgument, StoreClosed, StoreForked, UnknownTopic
from afterlog.base.measures import LATENESS_EDGES_MS
from afterlog.base.names import REDRIVE
from afterlog.fetch.partition import Partition
from afterlog.produce.topic import Topic
from afterlog.store.store import Store
from afterlog.subscription.stats import Standings

ANSWERED_AGAIN_S: Final = 1.0
_SUMMED: Final = (
    "pending", "due", "sent", "became_due", "handed_out", "bytes", "segments", "leased", "retrying", "dead",
)  # fmt: skip

TopicCounts = dict[str, Any]


class Overview:
    """Of one store. Thread-safe: of those who ask at once, one counts."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._standings = Standings()
        self._lock = threading.Lock()
        self._rows: list[TopicCounts] = []
        self._counted_s: float | None = None
        self._counted_ms = 0

    def page(
        self,
        *,
        may_look: Callable[[str], bool],
        filter_text: str = "",
        topic: str | None = None,
        sort: str = "name",
        descending: bool = False,
        offset: int = 0,
        limit: int = 50,
    ) -> TopicCounts:
        """The counts of the topics that `may_look` lets through: `totals` of all of them, `topics` of one page.

        filter_text: only topics whose name has it, whatever the case; topic: only that one. Topics without a value come
        last. Raises UnknownTopic, InvalidArgument.
        """
        if sort not in SORTS:
            raise InvalidArgument(f"sort by one of {', '.join(SORTS)}, not {sort!r:.60}")
        counted, counted_ms = self._counted()
        rows = [row for row in counted if may_look(row["topic"])]
        if topic is None:
            found = [row for row in rows if filter_text.casefold() in row["topic"].casefold()]
        else:
            found = [row for row in rows if row["topic"] == topic]
            if not found:
                raise UnknownTopic(f"no topic {topic!r} here")
        return {
            "now_ms": counted_ms,
            "all": len(rows),
            "matching": len(found),
            "totals": total_of(rows),
            "lateness_edges_ms": list(LATENESS_EDGES_MS),
            "topics": _ordered(found, "topic" if sort == "name" else sort, descending)[offset : offset + limit],
        }

    def _counted(self) -> tuple[list[TopicCounts], int]:
        """And when that was."""
        with self._lock:
            now_s = self._store.clock.monotonic_s()
            if self._counted_s is None or not 0 <= now_s - self._counted_s < ANSWERED_AGAIN_S:
                self._counted_ms = self._store.now_ms()
                self._rows = topic_rows(self._store, self._standings)
                self._counted_s = now_s
            return self._rows, self._counted_ms


def topic_rows(store: Store, standings: Standings) -> list[TopicCounts]:
    """A row for each topic, by name; counts are of all its partitions. Raises StoreClosed."""
    standings.look(store.open_subscriptions())
    return [topic_row(topic, standings) for topic in store.topics()]


def topic_row(topic: Topic, standings: Standings) -> TopicCounts:
    """due: in the log, whoever has read it; sent, became_due, handed_out: counters; unreadable: why, or None.

    lag, leased, retrying, dead: of all subscriptions; lag is that of the slowest, None where there is none.
    """
    row: TopicCounts = {
        "topic": topic.name,
        "partitions": topic.partition_count,
        "delayed": topic.settings.delayed,
        "paused": topic.settings.paused,
    }
    row |= dict.fromkeys(_SUMMED, 0)
    row |= {"next_due": None, "lateness_up_to": [0] * (len(LATENESS_EDGES_MS) + 1), "lag": None, "unreadable": None}
    lags: dict[str, int] = defaultdict(int)
    for number in range(topic.partition_count):
        try:
            partition = topic.partition(number)
            _add_partition(row, partition)
        except (StoreClosed, StoreForked):
            raise
        except (AfterlogError, OSError) as error:
            row["unreadable"] = f"{topic.name}-{number}: {error}"
        else:
            _add_subscriptions(row, lags, partition, standings)
    row["lag"] = max(lags.values(), default=None)
    return row


def total_of(rows: Sequence[TopicCounts]) -> TopicCounts:
    """The counts of many rows together."""
    lateness = [sum(column) for column in zip(*(row["lateness_up_to"] for row in rows), strict=True)]
    next_dues = [row["next_due"] for row in rows if row["next_due"] is not None]
    return {name: sum(row[name] for row in rows) for name in _SUMMED} | {
        "next_due": min(next_dues, default=None),
        "lateness_up_to": lateness or [0] * (len(LATENESS_EDGES_MS) + 1),
    }


def _add_partition(row: TopicCounts, partition: Partition) -> None:
    counts, segments = partition.counts(), partition.log.version.segments
    row["pending"] += counts.pending
    row["due"] += counts.due
    row["sent"] += counts.log_end_offset
    row["became_due"] += counts.high_watermark
    row["bytes"] += sum(segment.size for segment in segments)
    row["segments"] += len(segments)
    if counts.next_due is not None:
        row["next_due"] = counts.next_due if row["next_due"] is None else min(row["next_due"], counts.next_due)
    if partition.lateness is not None:
        up_to = partition.lateness.up_to()
        row["lateness_up_to"] = [sum(pair) for pair in zip(row["lateness_up_to"], up_to, strict=True)]
        row["handed_out"] += up_to[-1]


def _add_subscriptions(row: TopicCounts, lags: dict[str, int], partition: Partition, standings: Standings) -> None:
    """Of all but that which sends dead letters back; of one that cannot be read verify tells, and stats."""
    for name, stats in standings.of(partition, passed_over=(AfterlogError, OSError)):
        if name != REDRIVE:
            lags[name] += stats.due + stats.leased + stats.retrying
            for count in ("leased", "retrying", "dead"):
                row[count] += getattr(stats, count)


def _ordered(rows: Sequence[TopicCounts], name: str, descending: bool) -> list[TopicCounts]:
    known = [row for row in rows if row[name] is not None]
    unknown = [row for row in rows if row[name] is None]
    return [*sorted(known, key=lambda row: row[name], reverse=descending), *unknown]
