"""Every crash of some small workloads: after each the store has what it promised, and goes on.

`tests.simulated_disk` says what a power cut or a kill may leave, `tests.crashes` what must still be true of it.
"""

from __future__ import annotations

import pytest

from tests.crashes import SCENARIOS, Scenario, Verifier
from tests.simulated_disk import CrashModel, explore

MODEL = CrashModel(every_byte_max=256)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_power_cut(scenario: Scenario) -> None:
    explored = explore(scenario, Verifier(scenario, scenario.survives_power_cut), model=MODEL)
    print(explored)
    assert not explored.failures, str(explored)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_kill_then_power_cut(scenario: Scenario) -> None:
    verifier = Verifier(scenario, scenario.survives_power_cut, once=False)
    explored = explore(scenario, verifier, kill=True, again_every=1, model=CrashModel(every_byte_max=4, sector_cuts_max=1))
    print(explored)
    assert not explored.failures, str(explored)
