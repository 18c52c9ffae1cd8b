"""A worker of a relay: what `afterlog relay` runs, and a program can.

    relay = Relay(RelaySettings(bootstrap="localhost:9092", inputs=("later",), group="relays"))
    relay.run()                       # until relay.stop(), from a signal or another thread

Any number of workers of one group share the partitions, on any machines; each has a name of its own, which it keeps
over restarts. One more than there are partitions waits, and takes over.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException

from afterlog.base.clock import Clock, SystemClock
from afterlog.base.environment import machine_name
from afterlog.base.files import temporary_folder
from afterlog.base.locks import Condition
from afterlog.relay.kafka_cluster import RelayCluster
from afterlog.relay.relay_measures import RelayMeasures
from afterlog.relay.relay_partition import RelayCounts
from afterlog.relay.relay_session import Assigned, RelaySession, SessionOver, WorkerState
from afterlog.relay.relay_settings import RelaySettings

logger = logging.getLogger("afterlog.relay")

AGAIN_S: Final = 1.0
"""Between two sessions, the first of which has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """How a partition stands that a worker has. In ms since the epoch, None where there is none, or it is not known."""

    topic: str
    partition: int
    state: WorkerState
    error: str
    """Why it has stopped."""
    pending: int
    next_due_ms: int | None
    next_offset: int | None
    lowest_offset: int | None
    frontier_ms: int | None
    intake_lag: int | None
    """Records of the input that were not read yet, as it was heard last."""
    delivered: int
    late: int
    refused: int
    carried: int
    cancelled: int
    replaced: int
    cancels_missed: int
    rebuilt_s: float | None
    goes_soon: bool
    """Whether what waits longest is older than four fifths of the `retention.ms` of its input."""


class Relay:
    """See the head. `run` is for one thread; the rest for any."""

    def __init__(self, settings: RelaySettings, *, clock: Clock | None = None) -> None:
        """Raises ImportError without confluent-kafka (the extra `kafka`)."""
        self.settings = replace(settings, worker=settings.worker or machine_name())
        self.measures = RelayMeasures()
        self._clock = SystemClock() if clock is None else clock
        self._session: RelaySession | None = None
        self._is_stopping = False
        self._changed = Condition()

    def run(self) -> None:
        """Relay until `stop`. Where the cluster does not answer it goes on trying; behind any failure it goes on with
        what was committed. Raises RelayStopped where it cannot begin: a setting has to be changed; and what the disk of
        the cache did not do, StorageFull for one."""
        with self._cache() as cache:
            while not self._is_stopping:
                try:
                    self._run_session(cache)
                except (SessionOver, KafkaException) as error:
                    logger.warning("it begins anew: %s", error)
                    self._pause()

    def stop(self) -> None:
        """End `run` once what was begun is committed: within a second, or, where the cluster does not answer, once the
        call that is under way has timed out. From any thread; takes no lock, so from a signal's handler, too."""
        self._is_stopping = True

    def status(self) -> list[PartitionStatus]:
        """Of the partitions that this worker has."""
        session = self._session
        assigned = [] if session is None else [*session.assigned.copy().values()]
        return [_status(each) for each in sorted(assigned, key=lambda each: each.place)]

    def _run_session(self, cache: Path) -> None:
        cluster = RelayCluster(self.settings, self._clock)
        cluster.prepare()
        session = RelaySession(self.settings, cluster, self._clock, cache, self.measures)
        self.measures.sessions += 1
        self._session = session
        try:
            session.run(lambda: self._is_stopping)
        finally:
            session.close()
            self._session = None

    def _pause(self) -> None:
        if not self._is_stopping:
            with self._changed:
                self._clock.wait(self._changed, None, AGAIN_S)

    @contextlib.contextmanager
    def _cache(self) -> Iterator[Path]:
        folder = self.settings.cache
        if folder is None:
            with temporary_folder() as made:
                yield made
        else:
            yield folder


def _status(assigned: Assigned) -> PartitionStatus:
    relayed = assigned.relayed
    told: dict[str, Any] = asdict(RelayCounts() if relayed is None else relayed.counts)
    rectangle = None if relayed is None else relayed.rectangle
    lag = None if relayed is None or assigned.end < 0 else max(assigned.end - relayed.next_offset, 0)
    return PartitionStatus(
        topic=assigned.place[0], partition=assigned.place[1], state=assigned.state, error=assigned.stopped,
        pending=0 if relayed is None else len(relayed.pending),
        next_due_ms=None if relayed is None else relayed.pending.next_due_ms(),
        next_offset=None if relayed is None else relayed.next_offset,
        lowest_offset=None if rectangle is None else rectangle.lowest,
        frontier_ms=None if rectangle is None or rectangle.frontier.due_ms < 0 else rectangle.frontier.due_ms,
        intake_lag=lag, rebuilt_s=assigned.rebuilt_s, goes_soon=assigned.goes_soon, **told,
    )  # fmt: skip
