"""How the tests run: Hypothesis as long as it takes, campaigns by the run's seed, and what they went through told."""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import core, settings

from tests import campaigns

COUNTED = "counted"
collect_ignore = [] if sys.platform == "linux" else ["test_recorded.py", "test_rivals.py", "test_bench_served.py"]
"""A library that stands before libc's, and what rivals use by /proc."""

settings.register_profile("afterlog", deadline=None, print_blob=True, max_examples=campaigns.examples(30, whole=200))
settings.load_profile("afterlog")


@pytest.fixture
def quiet() -> Iterator[None]:
    with campaigns.quiet():
        yield


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STARTED_S] = time.monotonic()


def pytest_report_header() -> str:
    taken = "a third of every campaign" if campaigns.WHOLE else "a share of every campaign"
    return f"{taken}, {campaigns.SEED_VARIABLE}={campaigns.SEED}"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Hypothesis's seed: another one for each test."""
    if item.config.getoption("--hypothesis-seed", None) is None:
        core.global_force_seed = zlib.crc32(f"{campaigns.SEED} {item.nodeid}".encode())  # type: ignore[assignment]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if call.when == "call":
        if "planted_bug" in item.name and report.passed:
            campaigns.count("planted bugs, caught")
        report.user_properties.append((COUNTED, campaigns.take_counted()))
        if report.failed:
            report.sections.append(("seed", f"{campaigns.SEED_VARIABLE}={campaigns.SEED} takes the same share again"))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    counted: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            counted.update(dict(getattr(report, "user_properties", ())).get(COUNTED, {}))
    if campaigns.COUNTS_VARIABLE in os.environ:
        Path(os.environ[campaigns.COUNTS_VARIABLE]).write_text(json.dumps(counted))
    if counted:
        seconds = time.monotonic() - config.stash[STARTED_S]
        terminalreporter.section("campaigns")
        for what, number in sorted(counted.items()):
            terminalreporter.line(f"{number:12,} {what}")
        terminalreporter.line(f"{pytest_report_header()}, in {seconds // 60:.0f} min {seconds % 60:.0f} s")


STARTED_S = pytest.StashKey[float]()
