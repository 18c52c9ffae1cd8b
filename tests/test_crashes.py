"""Every crash of some small workloads: after each the store has what it promised, and goes on.

`tests.simulated_disk` says what a power cut or a kill may leave, `tests.crashes` what must still be true of it, and
`tests.planted_bugs` proves that it would be seen if it were not.
"""

from __future__ import annotations

import pytest

from tests.crash_states import CrashModel
from tests.crashes import SCENARIOS, Scenario, Verifier
from tests.explorer import explore
from tests.planted_bugs import BUGS, Bug

STATES_MIN = {
    "singles": 4_000,
    "many": 1_900,
    "rolls": 2_500,
    "merges": 4_700,
    "cancels": 5_400,
    "cancels go": 2_700,
    "retention": 5_300,
    "reopened": 3_500,
    "frontier": 1_800,
    "synced": 12_000,
    "written": 24_500,
    "compressed": 1_900,
    "fifo": 3_300,
}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_power_cut(scenario: Scenario) -> None:
    """At every point of the workload, every state that may be left."""
    verifier = Verifier(scenario, scenario.survives_power_cut)
    explored = explore(scenario, verifier, model=CrashModel(every_byte_max=256))
    print(explored)
    assert not explored.failures, str(explored)
    assert explored.states >= STATES_MIN[scenario.name]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_kill_then_power_cut(scenario: Scenario) -> None:
    """What was not durable before the kill is still not durable when the power fails in the second life."""
    verifier = Verifier(scenario, scenario.survives_power_cut)
    model = CrashModel(every_byte_max=4, sector_cuts_max=1)
    explored = explore(scenario, verifier, kill=True, again_every=29, model=model)
    print(explored)
    assert not explored.failures, str(explored)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_planted_bug_is_caught(bug: Bug) -> None:
    """The harness can see: with the bug it fails, and the bug alone is why."""
    with bug.planted():
        verifier = Verifier(bug.scenario, bug.scenario.survives_power_cut)
        explored = explore(
            bug.scenario, verifier, wrap=bug.wrap, kill=bug.kill, again_every=int(bug.kill), model=CrashModel(
                every_byte_max=4, sector_cuts_max=2
            ), failures_max=1,
        )  # fmt: skip
    print(explored)
    assert explored.failures, f"not seen: {bug.name}"
