"""The simulation can see: with each of these bugs in the code some seed fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from unittest.mock import patch

import numpy as np
import pytest
from pyroaring import BitMap64

from afterlog.base.config import OS
from afterlog.fetch.origin_slices import _Slice
from afterlog.index.growing_columns import Int64Array
from afterlog.index.origin_index import OriginIndex
from afterlog.log import recovery
from afterlog.log.commit import Commit
from afterlog.log.replicated_appends import ReplicatedAppends
from afterlog.records.origin_slice import OriginSlice
from afterlog.replication.markers import Marker, Snapshot, SnapshotRequest, SnapshotResponse, SubscriptionUpdate
from afterlog.replication.snapshots import SnapshotRounds
from afterlog.replication.store_cluster import StoreCluster
from afterlog.replication.subscriptions import _PartitionMarkers
from afterlog.subscription.bits import of_column
from afterlog.subscription.partition_subscription import PartitionSubscription
from afterlog.subscription.replicated_acks import ReplicatedAcks
from tests import campaigns
from tests.replication.courses import Course, Step, ack, crash, move, retain, send, tick
from tests.replication.simulation import Simulation

SEEDS = 600
STEPS = 40

pytestmark = pytest.mark.usefixtures("quiet")
Planted = Callable[[], AbstractContextManager[object]]


def not_synced_on_receipt() -> AbstractContextManager[object]:
    """A link goes on behind what a power cut takes."""
    return patch.object(Commit, "sync", lambda commit: commit.committed(commit._of.written))


def given_before_it_is_durable() -> AbstractContextManager[object]:
    """Other records get the offsets of what was given."""
    return patch.object(Commit, "make_delivered_durable", Commit.usable)


def goes_round() -> AbstractContextManager[object]:
    """What came from elsewhere is given as one's own."""
    stack = ExitStack()
    stack.enter_context(patch.object(OriginIndex, "own_from", lambda index, offset: offset))
    stack.enter_context(
        patch.object(_Slice, "_is_own", lambda made, found: found.offset + found.records > made._position)
    )
    return stack


def appended_again() -> AbstractContextManager[object]:
    """Who sends a slice again has it there twice."""
    stack = ExitStack()
    stack.enter_context(patch.object(ReplicatedAppends, "upcoming", lambda appends, origin: 0))
    stack.enter_context(patch.object(OriginIndex, "check"))
    return stack


def forgotten_by_a_crash() -> AbstractContextManager[object]:
    """What was replicated is not known any more."""
    return patch.object(recovery, "recovered_origins", lambda *_: None)


def one_too_far() -> AbstractContextManager[object]:
    """The next slice begins after a record that this one does not have."""
    found = StoreCluster.slice

    def slice(cluster: StoreCluster, topic: str, partition: int, first: int, max_bytes: int) -> OriginSlice:
        given = found(cluster, topic, partition, first, max_bytes)
        return given._replace(upto=min(given.upto + 1, given.end))

    return patch.object(StoreCluster, "slice", slice)


def half_of_a_slice() -> AbstractContextManager[object]:
    """The order of an origin is not kept: of what is cut out of a slice the rest is forgotten."""
    take = _Slice._take

    def some(made: _Slice, piece: object, found: object, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        take(made, piece, found, rows[::-1])  # type: ignore[arg-type]

    return patch.object(_Slice, "_take", some)


def without_a_second_round() -> AbstractContextManager[object]:
    """What lies before a position of the second cluster may be the third's, and still be on its way here."""
    hear = SnapshotRounds.hear

    def once(rounds: SnapshotRounds, response: SnapshotResponse, origin: str, local: int) -> object:
        found = hear(rounds, response, origin, local)
        if isinstance(found, SnapshotRequest):
            rounds._id = ""
            return Snapshot(found.id, local, rounds._first, sorted({*rounds._asked, rounds._own}))
        return found

    return patch.object(SnapshotRounds, "hear", once)


def local_position_of_the_request() -> AbstractContextManager[object]:
    """What the others had at their answer may have come here behind it."""
    tell, hear, at = _PartitionMarkers.tell, SnapshotRounds.hear, dict[str, int]()

    def told(partition: _PartitionMarkers, *markers: Marker) -> None:
        tell(partition, *markers)
        for marker in markers:
            if isinstance(marker, SnapshotRequest):
                at.setdefault(marker.id, partition.log.written)

    def heard(rounds: SnapshotRounds, response: SnapshotResponse, origin: str, local: int) -> object:
        return hear(rounds, response, origin, at.get(response.id, local))

    stack = ExitStack()
    stack.enter_context(patch.object(_PartitionMarkers, "tell", told))
    stack.enter_context(patch.object(SnapshotRounds, "hear", heard))
    return stack


def mark_delete_one_too_far() -> AbstractContextManager[object]:
    """A snapshot is used whose last record is not acked."""
    mark = ReplicatedAcks.mark_delete
    return patch.object(ReplicatedAcks, "mark_delete", lambda acks: mark(acks) + 1)


def update_one_too_far() -> AbstractContextManager[object]:
    """The record behind the answer, and the request that is kept behind that, is taken for acked."""
    update = _PartitionMarkers.update

    def further(partition: _PartitionMarkers, told: SubscriptionUpdate) -> None:
        update(partition, told._replace(remote={origin: position + 3 for origin, position in told.remote.items()}))

    return patch.object(_PartitionMarkers, "update", further)


def whoever_they_are_of() -> AbstractContextManager[object]:
    """A snapshot without a cluster is taken for one of its records, too."""
    update = _PartitionMarkers.update

    def all_of_them(partition: _PartitionMarkers, told: SubscriptionUpdate) -> None:
        update(partition, told._replace(origins=dict.fromkeys([*partition.origins, partition.origin], 0)))

    return patch.object(_PartitionMarkers, "update", all_of_them)


def what_never_came() -> AbstractContextManager[object]:
    """What was gone before it came to a cluster is taken for acked there."""
    return patch.object(_PartitionMarkers, "_whole", lambda partition, origins: dict.fromkeys(origins, 0))


def passed_is_acked() -> AbstractContextManager[object]:
    """What a seek passed is told as acked."""
    acks = PartitionSubscription.acks
    return patch.object(PartitionSubscription, "acks", lambda part: acks(part)._replace(sought=0))


def un_acked_before_a_seek_back() -> AbstractContextManager[object]:
    """And so is what was un-acked, and is unread behind a seek back."""
    acks = PartitionSubscription.acks
    return patch.object(PartitionSubscription, "acks", lambda part: acks(part)._replace(first_lease=-1))


def acks_are_not_told() -> AbstractContextManager[object]:
    """Where one record is pending nothing behind it is known to be acked."""
    return patch.object(ReplicatedAcks, "look", lambda acks: {})


def acks_in_offsets_of_this_log() -> AbstractContextManager[object]:
    """Offsets are told as if all records came from here."""

    def note(acks: ReplicatedAcks, offset: Int64Array, found: dict[str, BitMap64]) -> None:
        own = acks.subscription.partition.log.context.settings.topic_id or ""
        acks._done |= of_column(offset)
        found[own] = found.get(own, BitMap64()) | of_column(offset)

    return patch.object(ReplicatedAcks, "_note", note)


LATE_IN_THE_THIRD: Sequence[Step] = (
    move(1, 0), move(2, 0), move(0, 1), move(0, 2), move(1, 2), move(2, 1),
    send(0), ack(0, "0:0"), tick(0), move(0, 2), move(2, 0),  # the third has answered
    send(2), move(2, 1), move(0, 1), move(1, 0),  # the second answers with what the third has sent since
    tick(0), move(0, 1),
)  # fmt: skip
AT_THE_POSITION: Sequence[Step] = (
    move(1, 0), move(0, 1), send(0), ack(0, "0:0"), send(1), tick(0), move(0, 1), move(1, 0), tick(0), move(0, 1),
)  # fmt: skip
BEHIND_THE_ANSWER: Sequence[Step] = (
    move(1, 0), move(0, 1), send(0), ack(0, "0:0"), tick(0), move(0, 1), send(1), move(1, 0), tick(0), move(0, 1),
)  # fmt: skip
WITHOUT_THE_THIRD: Sequence[Step] = (
    move(1, 0), move(2, 0), move(0, 1), move(0, 2), move(1, 2), move(2, 1),
    send(0), ack(0, "0:0"), tick(0), send(2), move(2, 1),  # the third's last, which the second alone has
    *(step for _ in range(33) for step in (tick(0), move(0, 1), move(1, 0))),
)  # fmt: skip
GONE_BEFORE_IT_CAME: Sequence[Step] = (
    send(1), move(1, 0), retain(1), send(1), move(1, 2), move(1, 0),  # the third has but the second's second
    move(2, 1), move(2, 0), move(0, 1), move(0, 2), send(2), ack(2, "1:1", "2:0"),
    *4 * (tick(2), move(2, 1), move(2, 0), move(0, 2), move(1, 2), move(0, 1), move(1, 0)),
)  # fmt: skip
BY_STEPS: Sequence[tuple[Planted, int, Sequence[Step]]] = (
    (without_a_second_round, 3, LATE_IN_THE_THIRD),
    (local_position_of_the_request, 2, AT_THE_POSITION),
    (mark_delete_one_too_far, 2, AT_THE_POSITION),
    (update_one_too_far, 2, BEHIND_THE_ANSWER),
    (whoever_they_are_of, 3, WITHOUT_THE_THIRD),
    (what_never_came, 3, GONE_BEFORE_IT_CAME),
)
"""Bugs that chance finds in one of some hundred seeds: who sees them, and the history that shows them."""


def acks_heard_are_not_durable() -> AbstractContextManager[object]:
    """The power takes them, and the marker that told them is kept, and not heard again."""
    sync = Commit.sync

    def but_journals(commit: Commit) -> None:
        if "journal" not in commit.path.name:
            sync(commit)

    return patch.object(Commit, "sync", but_journals)


HEARD_AND_LOST: Sequence[Step] = (
    send(0, 2), move(0, 1), ack(0, "0:1"), tick(0), move(0, 1), send(1), crash(1, power=True),
)  # fmt: skip


def test_acks_that_were_heard_survive_the_power() -> None:
    Course(2, OS).go(HEARD_AND_LOST)
    with acks_heard_are_not_durable(), pytest.raises(AssertionError, match="come again"):
        Course(2, OS).go(HEARD_AND_LOST)
    campaigns.count("planted bugs, caught")


@pytest.mark.parametrize(("bug", "clusters", "steps"), BY_STEPS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_history_shows_a_planted_bug(bug: Planted, clusters: int, steps: Sequence[Step]) -> None:
    Course(clusters).go(steps)
    with bug(), pytest.raises(AssertionError, match="acked by nobody"):
        Course(clusters).go(steps)
    campaigns.count("planted bugs, caught")


@pytest.mark.parametrize(
    "bug",
    [
        passed_is_acked,
        un_acked_before_a_seek_back,
        acks_are_not_told,
        acks_in_offsets_of_this_log,
        not_synced_on_receipt,
        given_before_it_is_durable,
        goes_round,
        appended_again,
        forgotten_by_a_crash,
        one_too_far,
        half_of_a_slice,
    ],
    ids=lambda bug: bug.__name__,
)
def test_a_planted_bug_is_caught(bug: Planted) -> None:
    with bug():
        for seed in campaigns.known_first(range(SEEDS)):
            try:
                Simulation(seed, 2 + seed % 2).run(STEPS)
            except Exception:
                campaigns.shown(seed)
                return
    pytest.fail(f"not seen in {SEEDS} seeds: {bug.__doc__}")
