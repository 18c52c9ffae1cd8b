"""Every crash of some small workloads over a store with object storage (`tests.tier.crashes`), and what it can see."""

from __future__ import annotations

from functools import partial
from unittest.mock import patch

import pytest

from tests.campaigns import WHOLE
from tests.campaigns.crash_states import CrashModel
from tests.campaigns.explorer import explore, first_failure
from tests.tier.crashes import SCENARIOS, TieredScenario, TieredSession, TieredVerifier
from tests.tier.planted_bugs import BUGS, NAMED, Bug

COARSE = CrashModel(every_byte_max=4, sector_cuts_max=1)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_power_cut(scenario: TieredScenario) -> None:
    explored = explore(scenario, TieredVerifier(scenario), model=COARSE, of=27)
    print(explored)
    assert not explored.failures, str(explored)


def test_kill_then_power_cut() -> None:
    """The second life ends in the middle of an offload."""
    scenario = NAMED["expires"]
    explored = explore(
        scenario, TieredVerifier(scenario), kill=True, again_every=3 if WHOLE else 433, model=COARSE, of=3
    )
    print(explored)
    assert not explored.failures, str(explored)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_planted_bug_is_caught(bug: Bug) -> None:
    with bug.planted(), patch.object(TieredSession, "sound", False):
        explored = first_failure(partial(explore, bug.scenario, TieredVerifier(bug.scenario, 6), model=COARSE))
    print(explored)
    assert explored.failures, f"not seen: {bug.name}"
