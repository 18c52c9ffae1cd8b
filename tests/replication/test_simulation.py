"""Simulated clusters, seed by seed: `AFTERLOG_SEED=… pytest tests/replication/test_simulation.py` takes them again."""

from __future__ import annotations

import pytest

from tests import campaigns
from tests.replication.simulation import Simulation

SEEDS = campaigns.examples(60, whole=1_200)
STEPS = 40

pytestmark = pytest.mark.usefixtures("quiet")


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
