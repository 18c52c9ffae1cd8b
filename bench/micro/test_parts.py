"""CPU time of each part: `make bench-baseline` keeps the figures, `make bench-compare` holds a change against them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.micro.parts import LOOK_UPS, PARTS

COUNT = 100_000


@pytest.mark.parametrize("name", PARTS)
def test_part(benchmark: Any, tmp_path: Path, name: str) -> None:
    part = PARTS[name](COUNT, tmp_path)
    expected = LOOK_UPS if name == "searchsorted" else COUNT
    assert expected == part()
    benchmark.extra_info["operations"] = expected
    benchmark.pedantic(part, rounds=15, warmup_rounds=1)
