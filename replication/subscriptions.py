"""The replicated subscriptions of one cluster: the markers that it appends, and those that it receives.

    tick    acks since the last one ──> ACKED            mark_delete behind a snapshot ──> SUBSCRIPTION_UPDATE
            a second over, and something acked since ──> SNAPSHOT_REQUEST
    hear    SNAPSHOT_REQUEST ──> SNAPSHOT_RESPONSE       the last response ──> SNAPSHOT, kept for each subscription
            SUBSCRIPTION_UPDATE, ACKED ──> the subscription, made where it is not there, acks

`Replicator`, which copies the logs, calls both; a store whose topics nobody replicates does none of it. A marker is
synced before anything depends on it: otherwise its offset could be reused after a power cut.

The markers are all of this that is on disk. A cluster that restarts sends all acks once more, and acks are a union; it
reads the snapshots of its earlier life from the end of its log. A subscription that somebody here has said is not
replicated sends nothing and takes nothing.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from pyroaring import BitMap64

from afterlog.base.clock import Clock
from afterlog.base.errors import CorruptFile, UnknownTopic
from afterlog.fetch.append_order import segment_of
from afterlog.index.growing_columns import Int64Array
from afterlog.index.offset_set import column_of
from afterlog.log.partition_log import PartitionLog
from afterlog.log.scan import steps
from afterlog.log.segment import SealedSegment
from afterlog.records.control import Note, read_controls
from afterlog.records.origin_slice import OriginSlice
from afterlog.replication.markers import (
    AcksUpdate,
    Marker,
    Snapshot,
    SnapshotRequest,
    SnapshotResponse,
    SubscriptionUpdate,
    decoded,
    encoded,
)
from afterlog.replication.snapshots import SnapshotCache, SnapshotRounds
from afterlog.store.store import Store
from afterlog.subscription.bits import of_column
from afterlog.subscription.partition_subscription import PartitionSubscription
from afterlog.subscription.replicated_acks import ReplicatedAcks
from afterlog.subscription.subscription import Subscription

logger = logging.getLogger("afterlog.replication")

LATEST_CONTROLS = 128
"""So many control batches are looked at."""

ACKED_BYTES = 64 << 10
"""Of the bitmaps in one marker, about."""


def latest_notes(log: PartitionLog) -> list[Note]:
    """What was noted here, and not in a log that was replicated from, among the last control batches; ascending.

    Raises CorruptFile.
    """
    version = log.pin()
    visible, start = version.readable(), version.log_start_offset
    controls = np.sort(version.cancellations.controls.offsets())
    controls = controls[(controls >= start) & (controls < visible.end.offset)][-LATEST_CONTROLS:]
    if version.origins is not None:
        controls = controls[version.origins.origins(controls)[0] < 0]
    found = log.find(controls, version)
    notes = list[Note]()
    for offset, position in zip(controls.tolist(), found.position.tolist(), strict=True):
        segment = segment_of(visible.segments, offset)
        stop = segment.size if isinstance(segment, SealedSegment) else visible.end.position
        for step in steps(segment.view(position, stop), position, stop, limit=1):
            if step.fault and not len(step.found.offset):
                raise CorruptFile(step.fault, path=segment.path, position=position)
            notes += read_controls(step.piece, step.found.moved(-step.start)).notes
            break
    return notes


class ReplicatedSubscriptions:
    """Of one open store. One thread at a time."""

    def __init__(self, store: Store, make_id: Callable[[], str]) -> None:
        self._store = store
        self._make_id = make_id
        self._partitions: dict[tuple[str, int], _PartitionMarkers] = {}
        self._readers: dict[tuple[str, str], Subscription] = {}
        """They keep the subscriptions open, and take nothing."""
        self._refused: set[tuple[str, str]] = set()
        """Others have them; here somebody said that they are not replicated."""
        self._looked: set[str] = set()
        """Topics of which the subscriptions on disk were looked at."""

    def meet(self, topic: str, origin: str) -> None:
        """Another cluster has the topic, too."""
        for number in range(self._store.topic(topic).partition_count):
            self._partition(topic, number).others.add(origin)

    def tick(self) -> None:
        """Tell what there is to be told. Raises as appends and fetches do."""
        self._find()
        for (topic, name), reader in [*self._readers.items()]:
            is_left = not all(part.is_replicated for part in reader.parts())
            if reader.ended or is_left:  # deleted, or the store began anew; or it is not replicated any more
                del self._readers[topic, name]
                reader.close()
                for partition in self._partitions.values():
                    partition.forget(topic, name)
        for partition in self._partitions.values():
            partition.tick(self._store.clock)

    def coming(self, topic: str, number: int, given: OriginSlice) -> None:
        """Something of another cluster is about to be appended, and what it tells to be heard."""
        self._partition(topic, number).came(given).coming(given)

    def came(self, topic: str, number: int, given: OriginSlice) -> None:
        """It is."""
        self._partition(topic, number).came(given).upto = given.upto

    def hear(self, topic: str, number: int, origin: str, note: Note) -> None:
        """What another cluster has told. Raises InvalidBatch, and as acks do."""
        marker = decoded(note)
        partition = self._partition(topic, number)
        partition.rounds.heard(origin)
        match marker:
            case SnapshotRequest():
                partition.others.add(origin)
                partition.tell(
                    SnapshotResponse(marker.id, marker.round, origin, partition.log.written, partition.origins)
                )
            case SnapshotResponse() if marker.to == partition.origin:
                partition.answered(marker, origin)
            case SubscriptionUpdate() if partition.origin in marker.remote:
                if self._open(topic, marker.subscription):
                    partition.update(marker)
            case AcksUpdate():
                if self._open(topic, marker.subscription):
                    partition.subscriptions[marker.subscription].acks.subscription.ack_elsewhere(marker.acked)
            case _:
                pass  # what others say to each other, or said to themselves before that was kept from us

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()

    def counts(self) -> Iterator[tuple[str, int, SnapshotRounds]]:
        """Of each partition, what became of its snapshots."""
        for (topic, number), partition in sorted(self._partitions.items()):
            yield topic, number, partition.rounds

    def _find(self) -> None:
        """Subscriptions that are replicated since somebody has said so, and those of earlier lives."""
        for topic, name in self._store.newly_replicated():
            self._refused.discard((topic, name))
            with contextlib.suppress(UnknownTopic):  # deleted since
                if name in self._store.subscriptions(topic):
                    self._open(topic, name)
        there = {topic.name for topic in self._store.topics() if topic.settings.is_replicable}
        for topic in sorted(there - self._looked):
            self._looked.add(topic)
            for name in self._store.replicated_subscriptions(topic):
                self._open(topic, name)

    def _open(self, topic: str, name: str) -> bool:
        """Be its reader, where it is not yet, and it may be replicated; whether it may."""
        if (topic, name) in self._readers:
            return True
        if (topic, name) in self._refused:
            return False
        reader = self._store.subscribe(topic, name)
        try:
            if any(part.is_replicated is False for part in reader.parts()):
                self._refused.add((topic, name))
                return False
            for part in reader.parts():
                part.replicate()
                partition = self._partition(topic, part.partition.number)
                partition.subscriptions[name] = partition.followed(part)
            self._readers[topic, name] = reader
            return True
        finally:
            if (topic, name) not in self._readers:
                reader.close()

    def _partition(self, topic: str, number: int) -> _PartitionMarkers:
        found = self._partitions.get((topic, number))
        if found is None:
            log = self._store.topic(topic).log(number)
            found = self._partitions[topic, number] = _PartitionMarkers(topic, log, self._make_id)
        return found


class _Came:
    """How far slices of one origin came, since this life began."""

    def __init__(self, first: int) -> None:
        self.whole_from = self.upto = first
        """Between the two nothing is missed; below is what an earlier life was given, and what was gone by then."""

    def coming(self, given: OriginSlice) -> None:
        if given.first > self.upto:
            self.whole_from = given.first
        self.whole_from = max(self.whole_from, given.gone_upto)


class _Followed:
    """One in one partition."""

    def __init__(self, subscription: PartitionSubscription, snapshots: SnapshotCache) -> None:
        self.acks = ReplicatedAcks(subscription)
        self.snapshots = snapshots


class _PartitionMarkers:
    """What is known of one partition."""

    def __init__(self, topic: str, log: PartitionLog, make_id: Callable[[], str]) -> None:
        config = log.context.config
        self.topic = topic
        self.log = log
        self.rounds = SnapshotRounds(
            make_id,
            self.origin,
            config.replicated_subscriptions_snapshot_frequency_ms,
            config.replicated_subscriptions_snapshot_timeout_ms,
        )
        self.others = set[str]()
        """By which names the other clusters have it."""
        self.subscriptions: dict[str, _Followed] = {}
        self._came: dict[str, _Came] = {}

    def came(self, given: OriginSlice) -> _Came:
        """Of its origin."""
        return self._came.setdefault(given.origin, _Came(given.first))

    @property
    def origin(self) -> str:
        return self.log.context.settings.topic_id or ""

    def followed(self, subscription: PartitionSubscription) -> _Followed:
        """With the snapshots that an earlier life left in the log. Raises CorruptFile."""
        snapshots = SnapshotCache(self.log.context.config.replicated_subscriptions_snapshot_max_cached)
        for note in latest_notes(self.log):
            if isinstance(marker := decoded(note), Snapshot):
                snapshots.add(marker)
        return _Followed(subscription, snapshots)

    def tell(self, *markers: Marker) -> None:
        """Append markers, durably, but what nobody else is told."""
        for marker in markers:
            self.log.append_note(*encoded(marker))
        if not all(isinstance(marker, Snapshot) for marker in markers):
            self.log.commit.sync()

    def tick(self, clock: Clock) -> None:
        told = list[Marker]()
        for name, subscription in self.subscriptions.items():
            subscription.acks.subscription.step_over()
            acked = [AcksUpdate(name, part) for part in _parts(subscription.acks.look())]
            if acked:
                self.rounds.acked()
            told += acked
            snapshot = subscription.snapshots.advance(subscription.acks.mark_delete())
            if snapshot is not None:
                told.append(SubscriptionUpdate(name, snapshot.remote, self._whole(snapshot.origins)))
                self.rounds.updates += 1
        if self.subscriptions:
            request = self.rounds.begin(self.others.union(self.origins), clock.monotonic_s())
            told += [] if request is None else [request]
        self.tell(*told)

    @property
    def origins(self) -> Sequence[str]:
        """All of which there ever were records here."""
        index = self.log.version.origins
        return [] if index is None else [*index.names]

    def _whole(self, origins: Sequence[str]) -> dict[str, int]:
        """Of these the ones of which something came, or that is its own: from where on all is known."""
        known = {**{origin: came.whole_from for origin, came in self._came.items()}, self.origin: 0}
        return {origin: known[origin] for origin in origins if origin in known}

    def answered(self, response: SnapshotResponse, origin: str) -> None:
        self.others |= {*response.origins} - {self.origin}
        made = self.rounds.hear(response, origin, self.log.written)
        if made is None:
            return
        self.tell(made)
        if isinstance(made, Snapshot):
            for subscription in self.subscriptions.values():
                subscription.snapshots.add(made)

    def update(self, told: SubscriptionUpdate) -> None:
        """All of a subscription is acked elsewhere that lies before an append offset here, of some origins, from an
        offset of each on.
        """
        position, acked = told.remote[self.origin], {self.origin: BitMap64()}
        index = self.log.version.origins
        behind = 0
        if index is not None:
            rows = index.rows(0, position)
            for number, there, here, records in zip(*(column.tolist() for column in rows), strict=True):
                acked[self.origin].add_range(behind, min(here, position))
                records = min(records, position - here)
                acked.setdefault(index.names[number], BitMap64()).add_range(there, there + records)
                behind = here + records
        acked[self.origin].add_range(behind, position)
        acked = {origin: offsets for origin, offsets in acked.items() if origin in told.origins}
        for origin, offsets in acked.items():
            offsets.remove_range(0, told.origins[origin])
        self.subscriptions[told.subscription].acks.subscription.ack_elsewhere(acked)

    def forget(self, topic: str, name: str) -> None:
        if topic == self.topic:
            self.subscriptions.pop(name, None)


def _parts(acked: dict[str, BitMap64]) -> Iterator[dict[str, BitMap64]]:
    """The same in parts that fit into a marker each."""
    for origin, offsets in acked.items():
        size = len(offsets.serialize())
        if size <= ACKED_BYTES:
            yield {origin: offsets}
            continue
        column: Int64Array = column_of(offsets)
        step = max(len(column) * ACKED_BYTES // size, 1)
        for first in range(0, len(column), step):
            yield {origin: of_column(column[first : first + step])}
