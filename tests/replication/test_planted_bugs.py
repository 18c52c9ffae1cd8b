"""The simulation can see: with each of these bugs in the code some seed fails."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from unittest.mock import patch

import numpy as np
import pytest

from afterlog.fetch.origin_slices import _Slice
from afterlog.index.origin_index import OriginIndex
from afterlog.log import recovery
from afterlog.log.commit import Commit
from afterlog.log.replicated_appends import ReplicatedAppends
from afterlog.records.origin_slice import OriginSlice
from afterlog.replication.store_cluster import StoreCluster
from tests import campaigns
from tests.replication.simulation import Simulation

SEEDS = 150
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
        patch.object(_Slice, "_is_given", lambda made, found: found.offset + found.records > made._position)
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
    """The next slice begins behind a record that this one does not have."""
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


@pytest.mark.parametrize(
    "bug",
    [
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
        for seed in range(campaigns.SEED * 1_000, campaigns.SEED * 1_000 + SEEDS):
            try:
                Simulation(seed, 2 + seed % 2).run(STEPS)
            except Exception:
                campaigns.count("planted bugs, caught")
                return
    pytest.fail(f"not seen in {SEEDS} seeds: {bug.__doc__}")
