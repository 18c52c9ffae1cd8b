"""A share of the campaign of `tests/killed_clients.py`, and what its oracle has to see."""

from __future__ import annotations

import pytest

from tests import campaigns
from tests.killed_client import BUGS
from tests.killed_clients import Lies, campaign

SEEDS = 10
"""A bug need not show under each of them."""


KILLS = 200 if campaigns.WHOLE else 6 * campaigns.DEPTH


def test_promises_hold_whoever_is_killed() -> None:
    report = campaign(KILLS, seed=campaigns.SEED, pause_s=0.1)
    campaigns.count("kills of processes that share a store", report.kills)
    assert 0 < len(report.takeovers_s) <= report.kills
    assert report.records > 0


@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug != "none"])
def test_planted_bug_is_caught(bug: str) -> None:
    """The first lie ends it: as a rule after a kill or two."""

    def told() -> None:
        for seed in range(SEEDS):
            campaign(8, seed=seed, bug=bug, pause_s=0.2)

    with pytest.raises(Lies):
        told()
