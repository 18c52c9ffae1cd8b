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

STATES_MIN = 50_000


def test_power_cut() -> None:
    """At every point of every workload, every state that may be left."""
    states = 0
    for scenario in SCENARIOS:
        verifier = Verifier(scenario, scenario.survives_power_cut)
        explored = explore(scenario, verifier, model=CrashModel(every_byte_max=256))
        print(f"{scenario.name}: {explored}")
        assert not explored.failures, f"{scenario.name}: {explored}"
        states += explored.states
    print(f"{states} states")
    assert states >= STATES_MIN


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_kill_then_power_cut(scenario: Scenario) -> None:
    """What was not durable before the kill is still not durable when the power fails in the second life."""
    verifier = Verifier(scenario, scenario.survives_power_cut, once=False)
    model = CrashModel(every_byte_max=4, sector_cuts_max=1)
    explored = explore(scenario, verifier, kill=True, again_every=29, model=model)
    print(explored)
    assert not explored.failures, str(explored)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_planted_bug_is_caught(bug: Bug) -> None:
    """The harness can see: with the bug it fails, and the bug alone is why."""
    with bug.planted():
        verifier = Verifier(bug.scenario, bug.scenario.survives_power_cut, once=False)
        explored = explore(
            bug.scenario, verifier, wrap=bug.wrap, kill=bug.kill, again_every=int(bug.kill), model=CrashModel(
                every_byte_max=4, sector_cuts_max=2
            ), failures_max=1,
        )  # fmt: skip
    print(explored)
    assert explored.failures, f"not seen: {bug.name}"
