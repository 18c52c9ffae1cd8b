"""The merge iterator over more and more runs of the same entries. The floor reads the same files with a bare copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.conftest import Measure
from bench.harness import read_bytes
from bench.workloads import merge_all, runs

ENTRIES = 1_000_000


@pytest.mark.parametrize("count", [1, 10, 100, 1000])
def test_merge(measure: Measure, tmp_path: Path, count: int) -> None:
    index = runs(tmp_path, count, ENTRIES)
    files = sorted(tmp_path.iterdir())
    assert ENTRIES == merge_all(index)
    measure(
        f"merge-{count:04d}-runs", {"entries": ENTRIES, "runs": count}, ENTRIES,
        lambda: merge_all(index), lambda: [read_bytes(path) for path in files], rounds=5,
    )  # fmt: skip
