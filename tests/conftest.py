"""How the tests run: Hypothesis as long as it takes, campaigns by the run's seed, and what they went through told."""

from __future__ import annotations

import json
import os
import random
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, core, settings

from tests import campaigns

COUNTED, SHOWN = "counted", "shown"
CPU_S = "CPU seconds"
ON_LINUX = ["campaigns/test_recorded.py", "test_rivals.py", "test_bench_served.py"]
collect_ignore = [] if sys.platform == "linux" else ON_LINUX
"""A library that stands before libc's, and what rivals use by /proc."""

settings.register_profile(
    "afterlog",
    settings.get_profile("default"),  # where CI is set, Hypothesis would take no seed: each run the same, for all seeds
    deadline=None,
    print_blob=True,
    max_examples=campaigns.examples(15, whole=200),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("afterlog")


@pytest.fixture
def quiet() -> Iterator[None]:
    with campaigns.quiet():
        yield


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STARTED_S] = time.monotonic()


def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.stash[SPENT_S] = [_spent_s()]


def pytest_report_header() -> str:
    taken = "a third of every campaign" if campaigns.WHOLE else "a share of every campaign"
    return f"{taken}, {campaigns.SEED_VARIABLE}={campaigns.SEED}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of tests with the mark `share` one run takes one in so many, unless it asks for some by name. Which module comes
    when, and which test in it, the seed says: none may need another one before it."""
    if not config.option.keyword and not any("::" in argument for argument in config.args):
        kept, left = list[pytest.Item](), list[pytest.Item]()
        for item in items:
            (kept if all(_is_chosen(item, *mark.args) for mark in item.iter_markers("share")) else left).append(item)
        config.hook.pytest_deselected(items=left)
        items[:] = kept
    modules: dict[str, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.nodeid.partition("::")[0], []).append(item)
    chance = random.Random(campaigns.SEED)
    names = sorted(modules)
    chance.shuffle(names)
    for each in (modules[name] for name in names):
        chance.shuffle(each)
    items[:] = [item for name in names for item in modules[name]]


def _is_chosen(item: pytest.Item, of: int) -> bool:
    return campaigns.WHOLE or campaigns.is_chosen(zlib.crc32(item.nodeid.encode()), of)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Hypothesis's seed: another one for each test."""
    if item.config.getoption("--hypothesis-seed", None) is None:
        core.global_force_seed = zlib.crc32(f"{campaigns.SEED} {item.nodeid}".encode())  # type: ignore[assignment]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    before, now = item.config.stash[SPENT_S].pop(), _spent_s()
    item.config.stash[SPENT_S].append(now)
    report.user_properties.append((CPU_S, now - before))
    if call.when == "call":
        if "planted_bug" in item.name and report.passed:
            campaigns.count("planted bugs, caught")
        report.user_properties += [(COUNTED, campaigns.take_counted()), (SHOWN, campaigns.take_shown())]
        if report.failed:
            report.sections.append(("seed", f"{campaigns.SEED_VARIABLE}={campaigns.SEED} takes the same share again"))
    return report


def _spent_s() -> float:
    """CPU time of this process, and of those that it has waited for."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    counted: Counter[str] = Counter()
    spent_s: Counter[str] = Counter()
    shown: dict[str, Any] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            properties = dict(getattr(report, "user_properties", ()))
            counted.update(properties.get(COUNTED, {}))
            shown |= properties.get(SHOWN, {})
            if CPU_S in properties:
                spent_s[str(Path(report.nodeid.partition("::")[0]).parent)] += properties[CPU_S]
    if sum(spent_s.values()) > 10:
        terminalreporter.section(CPU_S)
        for folder, seconds in spent_s.most_common():
            terminalreporter.line(f"{seconds:12,.1f} {folder}")
        terminalreporter.line(f"{sum(spent_s.values()):12,.1f} in all, without collecting")
    if campaigns.COUNTS_VARIABLE in os.environ:
        Path(os.environ[campaigns.COUNTS_VARIABLE]).write_text(json.dumps(counted))
    if counted:
        seconds = time.monotonic() - config.stash[STARTED_S]
        terminalreporter.section("campaigns")
        for what, number in sorted(counted.items()):
            terminalreporter.line(f"{number:12,} {what}")
        terminalreporter.line(f"{pytest_report_header()}, in {seconds // 60:.0f} min {seconds % 60:.0f} s")
    if shown:
        terminalreporter.line(f"searched for {len(shown)} planted bugs; AFTERLOG_PIN=1 records what shows them")
    if shown and "AFTERLOG_PIN" in os.environ:
        known = json.loads(campaigns.SHOWN_BY.read_text("utf-8")) | shown
        campaigns.SHOWN_BY.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n", "utf-8")


STARTED_S = pytest.StashKey[float]()
SPENT_S = pytest.StashKey[list[float]]()
"""When the last phase of a test ended."""
