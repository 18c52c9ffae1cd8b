"""The parts of the micro benchmark, tiny: each goes through what it says, again and again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.micro.parts import LOOK_UPS, PARTS

BASELINE = Path(__file__).parent.parent / "bench" / "micro" / "baseline.json"


@pytest.mark.parametrize("name", PARTS)
def test_a_part_can_be_measured_again_and_again(tmp_path: Path, name: str) -> None:
    part = PARTS[name](1_100, tmp_path)
    expected = LOOK_UPS if name == "searchsorted" else 1_100
    assert [expected] * 2 == [part(), part()]


def test_the_baseline_has_each_part() -> None:
    found = {each["params"]["name"] for each in json.loads(BASELINE.read_text())["benchmarks"]}
    assert {*PARTS} == found
