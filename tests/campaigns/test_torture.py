"""The lanes name tests that are there, share the time, tell what failed by its seed, and go on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, TextIO

import pytest

from tests import campaigns
from tests.campaigns import torture
from tests.campaigns.torture import BEGIN, END, LANES, ROOT, Lane, Result

PASSES = Lane("passes", ("tests/campaigns/test_campaigns.py",), {"kills": 10}, chosen="counts_are_added_up")
FAILS = Lane("fails", ("tests/no_such_test.py",), {"kills": 20, "states": 1})


@pytest.mark.parametrize("lane", LANES, ids=lambda lane: lane.name)
def test_the_tests_of_a_lane_are_there(lane: Lane) -> None:
    assert [] == [test for test in lane.tests if not (ROOT / test).exists()]


def test_rounds_go_to_who_is_least_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))

    def run(command: list[str], *, env: dict[str, str], **_: Any) -> subprocess.CompletedProcess[str]:
        Path(env[campaigns.COUNTS_VARIABLE]).write_text('{"kills": 4, "states": 2}')
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(torture, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(subprocess, "run", run)
    results = [Result(PASSES), Result(FAILS), Result(Lane("third", (), {"kills": 40}))]
    order = [result.lane.name for result in torture.torture(results, 45 / 3_600, 7, "abc", tmp_path)]
    assert ["passes", "fails", "third", "third", "fails", "third", "third", "passes", "fails", "third"] == order[:10]
    assert [7, 8] == [each.seed for each in results[0].rounds[:2]]


def test_a_run_goes_on_where_its_journal_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], *, env: dict[str, str], **_: Any) -> subprocess.CompletedProcess[str]:
        Path(env[campaigns.COUNTS_VARIABLE]).write_text('{"kills": 4}')
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(torture, "LANES", (PASSES, FAILS))
    monkeypatch.setattr(torture, "commit_here", lambda: "abc")
    monkeypatch.setattr(subprocess, "run", run)
    journal = tmp_path / "journal"
    for _ in range(2):
        monkeypatch.setattr(torture, "monotonic", iter([0.0] * 7 + [3_600.0] * 20).__next__)
        assert 0 == torture.main(["--hours", "0.5", "--lane", "passes", "--journal", str(journal)])
    rounds = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [(campaigns.SEED + number, "passes", "abc", {"kills": 4}) for number in range(len(rounds))] == [
        (each["seed"], each["lane"], each["commit"], each["counted"]) for each in rounds
    ]
    assert len(rounds) == 4


def test_what_failed_is_told_with_its_seed_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], *, env: dict[str, str], stdout: TextIO, **_: Any) -> subprocess.CompletedProcess[str]:
        stdout.write("words")
        Path(env[campaigns.COUNTS_VARIABLE]).write_text('{"kills": 3}')
        if env[campaigns.SEED_VARIABLE] == "9":
            raise subprocess.TimeoutExpired(command, 1)
        return subprocess.CompletedProcess(command, int(env[campaigns.SEED_VARIABLE] == "7"))

    monkeypatch.setattr(subprocess, "run", run)
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nbehind\n")
    results = [Result(FAILS), Result(PASSES)]
    failed = results[0].round(7, "abc", tmp_path).failed
    assert f"exit status 1: {campaigns.SEED_VARIABLE}=7 AFTERLOG_DEPTH=1" in failed
    assert "words" == (tmp_path / "fails-7.log").read_text()
    assert "" == results[1].round(8, "abc", tmp_path).failed
    assert not (tmp_path / "passes-8.log").exists()
    assert "did not end" in results[1].round(9, "abc", tmp_path).failed
    torture.write(page, results)
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n| lane |")
    assert text.endswith(f"{END}\nbehind\n")
    assert "| 6 kills | 1 |" in text
    assert "Of abc." in text


def test_as_a_command() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.campaigns.torture", "--hours", "0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.startswith(f"{campaigns.SEED_VARIABLE}={campaigns.SEED}, 0.0 hours")
