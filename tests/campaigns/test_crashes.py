"""Every crash of some small workloads, or a share of them: after each the store has what it promised, and goes on.

`tests.campaigns.simulated_disk` says what a power cut or a kill may leave, `tests.campaigns.crashes` what must still be
true of it, and `tests.campaigns.planted_bugs` proves that it would be seen if it were not.
"""

from __future__ import annotations

from functools import partial

import pytest

from tests import campaigns
from tests.campaigns import WHOLE
from tests.campaigns.crash_states import CrashModel
from tests.campaigns.crashes import SCENARIOS, Scenario, Verifier, random_life
from tests.campaigns.explorer import explore, first_failure
from tests.campaigns.planted_bugs import BUGS, Bug

STATES_MIN = {
    "singles": 11_000,
    "many": 18_000,
    "rolls": 50_000,
    "rolls in parts": 40_000,
    "merges": 44_000,
    "cancels": 19_500,
    "unique keys": 55_000,
    "unique keys written": 72_000,
    "numbered": 20_000,
    "numbered in vain": 10_000,
    "numbered fifo": 7_000,
    "replicated": 30_000,
    "cancels go": 19_500,
    "retention": 25_000,
    "cleans": 75_000,
    "cleans written": 75_000,
    "acked": 36_000,
    "acked later": 36_000,
    "acked fifo": 16_500,
    "acked beyond": 60_000,
    "evicted": 22_000,
    "reopened": 18_500,
    "frontier": 13_500,
    "at rest": 10_500,
    "synced": 22_000,
    "written": 31_000,
    "compressed": 18_000,
    "fifo": 9_400,
}
"""Of three whole runs. A share begins with every state but for most of the places where a write may be torn."""


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_power_cut(scenario: Scenario) -> None:
    """At every point of the workload, every state that may be left. Writes of up to 4 KiB are torn at every byte."""
    verifier = Verifier(scenario, scenario.survives_power_cut)
    explored = explore(scenario, verifier, model=CrashModel(every_byte_max=4_096, of=160), of=12)
    print(explored)
    assert not explored.failures, str(explored)
    assert explored.points > 40  # whatever the seed; how many states a share of them has, is chance
    assert explored.states >= (STATES_MIN[scenario.name] // 3 if WHOLE else 10)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_kill_then_power_cut(scenario: Scenario) -> None:
    """What was not durable before the kill is still not durable when the power fails in the second life.

    Every state that a kill may leave is recovered on; and the power is cut at every point of that, or of a share."""
    verifier = Verifier(scenario, scenario.survives_power_cut)
    model = CrashModel(every_byte_max=4, sector_cuts_max=1)
    explored = explore(scenario, verifier, kill=True, again_every=3 if WHOLE else 193, model=model, of=15)
    print(explored)
    assert not explored.failures, str(explored)


@pytest.mark.parametrize("number", range(9 if WHOLE else campaigns.DEPTH))
def test_crashes_of_a_random_life(number: int) -> None:
    """Another workload each time: a power cut, or a kill and a power cut."""
    scenario = random_life(1_000 * campaigns.SEED + number)
    verifier = Verifier(scenario, scenario.survives_power_cut)
    exploring = partial(explore, scenario, verifier, model=CrashModel(every_byte_max=16, sector_cuts_max=1))
    for explored in (exploring(of=8), exploring(of=8, kill=True, again_every=3 if WHOLE else 97)):
        print(scenario.name, explored)
        assert not explored.failures, f"{scenario.name}: {explored}"


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_planted_bug_is_caught(bug: Bug) -> None:
    """The harness can see: with the bug it fails, and the bug alone is why."""
    with bug.planted():
        verifier = Verifier(bug.scenario, bug.scenario.survives_power_cut)
        model = CrashModel(every_byte_max=4, sector_cuts_max=2)
        exploring = partial(explore, bug.scenario, verifier, wrap=bug.wrap, kill=bug.kill, model=model)
        explored = first_failure(partial(exploring, again_every=1) if bug.kill else exploring)
    print(explored)
    assert explored.failures, f"not seen: {bug.name}"
