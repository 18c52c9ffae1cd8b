"""The command line: backups."""

from __future__ import annotations

import shutil
from pathlib import Path

import afterlog
from tests.cli.test_main import rows, run


def test_made_and_restored(tmp_path: Path) -> None:
    data, dest = tmp_path / "data", tmp_path / "backups"
    run("create", data, "mail")
    run("send", data, "mail", "hello", "--delay", "1h")
    made = run("backup", data, dest)
    assert "copied, the rest linked" in made.stderr
    [again] = rows(run("backup", data, dest, "--json"))
    assert 2 == again["number"]
    assert again["copied_bytes"] < 1_000
    shutil.copytree(made.stdout.strip(), tmp_path / "copy")
    [row] = rows(run("pending", tmp_path / "copy", "mail", "--json"))
    assert "hello" == row["value"]
    refused = run("pending", again["path"], "mail", code=6)
    assert "this is a backup: copy it" in refused.stderr


def test_open_elsewhere_it_says_who_can(tmp_path: Path) -> None:
    with afterlog.open(tmp_path / "data") as store:
        store.create_topic("mail")
        refused = run("backup", tmp_path / "data", tmp_path / "backups", code=4)
        assert "call store.backup(" in refused.stderr
        assert "in that process" in refused.stderr


def test_a_place_that_cannot_be(tmp_path: Path) -> None:
    run("create", tmp_path / "data", "mail")
    run("backup", tmp_path / "data", tmp_path / "data", code=2)
    run("backup", tmp_path / "none", tmp_path / "backups", code=3)
