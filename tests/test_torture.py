"""Long campaigns, run by `make torture`: the same attacks as in the short suite, without its limits."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.crash_states import CrashModel
from tests.crashes import SCENARIOS, Scenario, Verifier
from tests.explorer import explore
from tests.test_state_machine import LogMachine

pytestmark = pytest.mark.torture


class LongMachine(LogMachine):
    """Longer histories, and fifty times as many."""


LongMachine.TestCase.settings = settings(max_examples=20_000, stateful_step_count=60)
TestLongHistories = LongMachine.TestCase


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_power_cut_after_every_kill(scenario: Scenario) -> None:
    """Every state that a kill may leave is recovered on, and the power cut at every point of that."""
    verifier = Verifier(scenario, scenario.survives_power_cut)
    explored = explore(
        scenario, verifier, kill=True, again_every=1, model=CrashModel(every_byte_max=4, sector_cuts_max=1)
    )
    print(explored)
    assert not explored.failures, str(explored)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_power_cut_torn_at_every_byte(scenario: Scenario) -> None:
    """Writes of up to 4 KiB are torn at every byte."""
    verifier = Verifier(scenario, scenario.survives_power_cut)
    explored = explore(scenario, verifier, model=CrashModel(every_byte_max=4_096))
    print(explored)
    assert not explored.failures, str(explored)
