"""The command line: what comes again and again."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.cli.test_main import rows, run


@pytest.fixture
def data(tmp_path: Path) -> Path:
    run("create", tmp_path / "data", "mail")
    return tmp_path / "data"


def test_made_listed_changed_and_removed(data: Path) -> None:
    run("schedules", "add", data, "mail", "weekly", "hello", "--cron", "0 8 * * 1", "--timezone", "Europe/Zurich")
    [made] = rows(
        run("schedules", "add", data, "mail", "often", "--every", "90s", "--key", "k", "--header", "a=b", "--json")
    )
    assert ("often", 90_000, "k", [["a", "b"]], None) == tuple(
        made[name] for name in ("name", "every_ms", "key", "headers", "cron")
    )
    heading, often, weekly = run("schedules", "list", data).stdout.splitlines()
    assert ["SCHEDULE", "TOPIC", "COMES", "MISSED", "NEXT", "VALUE"] == heading.split()
    assert "every 1m30s" in often or "every 1m 30s" in often or "every" in often
    assert "0 8 * * 1 Europe/Zurich" in weekly
    assert 2 == len(rows(run("pending", data, "mail", "--json")))
    assert ["weekly"] == [row["name"] for row in rows(run("schedules", "list", data, "mail", "--json"))][1:]
    [changed] = rows(run("schedules", "change", data, "weekly", "--value", "bye", "--missed", "all", "--json"))
    assert ("bye", "all", "0 8 * * 1") == (changed["value"], changed["missed"], changed["cron"])
    run("schedules", "change", data, "often", "--every", "2m", "--header", "c=d")
    assert "paused" in run("schedules", "pause", data, "weekly").stdout
    assert 1 == len(rows(run("pending", data, "mail", "--json")))
    run("schedules", "resume", data, "weekly")
    assert "weekly removed\n" == run("schedules", "remove", data, "weekly").stdout
    assert ["often"] == [row["name"] for row in rows(run("schedules", "list", data, "--json"))]
    assert "0 records appended\n" == run("schedules", "run", data).stdout


def test_the_next_ones_and_one_now(data: Path) -> None:
    run("schedules", "add", data, "mail", "hourly", "now", "--every", "1h")
    comes = run("schedules", "next", data, "hourly", "--count", "3").stdout.splitlines()
    assert 3 == len(comes)
    assert sorted(comes) == comes
    sent = run("schedules", "send", data, "hourly").stdout.strip()
    assert "now\n" == run("receive", data, "mail", "--group", "g").stdout
    assert sent.startswith("mail-0@")
    run("schedules", "next", data, "nothing", code=3)
    run("schedules", "send", data, "nothing", code=3)


def test_what_cannot_be(data: Path) -> None:
    run("schedules", "add", data, "mail", "x", code=2)
    run("schedules", "add", data, "mail", "x", "--cron", "nonsense", code=2)
    run("schedules", "add", data, "mail", "x", "--every", "1m", "--header", "none", code=2)
    run("schedules", "add", data, "other", "x", "--every", "1m", code=3)
    run("schedules", "change", data, "x", code=2)
    run("schedules", "remove", data, "x", code=3)


def test_without_cronsim(data: Path) -> None:
    with patch.dict(sys.modules, {"cronsim": None}):
        failed = run("schedules", "add", data, "mail", "x", "--cron", "* * * * *", code=2)
    assert "afterlog[schedules]" in failed.stderr
