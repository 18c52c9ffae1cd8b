"""Simulated clusters, seed by seed: `AFTERLOG_SEED=… pytest tests/replication/test_simulation.py` takes them again."""

from __future__ import annotations

import pytest

from tests import campaigns
from tests.replication.simulation import Simulation

SEEDS = campaigns.examples(60, whole=1_200)
STEPS = 40

pytestmark = pytest.mark.usefixtures("quiet")


def test_what_one_never_had_it_does_not_tell_as_acked() -> None:
    """Retention had taken it before the third got it; there it was passed, and the first had it still."""
    Simulation(202612080031, 3).run(STEPS)


@pytest.mark.parametrize("clusters", [2, 3, 4])
@pytest.mark.parametrize("share", range(10))
def test_all_have_the_same_in_the_end(clusters: int, share: int) -> None:
    for number in range(share, SEEDS // 3, 10):
        seed = campaigns.SEED * 10_000 + number
        try:
            simulation = Simulation(seed, clusters)
            simulation.run(STEPS)
        except BaseException as error:
            error.add_note(f"Simulation({seed}, {clusters}).run({STEPS})")
            raise
        campaigns.count("simulated courses of clusters")
        campaigns.count("crashes of clusters", simulation.counts["crash"])
