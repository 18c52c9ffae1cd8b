"""The documents are true: README's examples run as pasted, links lead somewhere, tests that are named exist."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/tiered-storage.md")
SHOWN = {"sh": "water the plants", "python": ""}
"""What every block of that language shows, apart from something."""


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text, in order. Those for Spark are for the lane that has one (tests/spark/test_readme.py)."""
    found = re.findall(r"^```(\w+)\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    return [(language, block) for language, block in found if "pyspark" not in block]


def test_pages_have_their_examples() -> None:
    languages = [[language for language, _ in blocks(page)] for page in PAGES]
    assert [["python", "python", "sh", "python", "python", "sh"], ["python"]] == languages


@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs_as_pasted_from_top_to_bottom_in_one_folder(page: str, tmp_path: Path) -> None:
    command = f'{sys.executable} -c "from afterlog.cli.main import main; main()"'
    for language, block in blocks(page):
        run = [sys.executable, "-W", "error", "-c", block]
        if language == "sh":
            run = ["bash", "-euc", f'afterlog() {{ {command} "$@"; }}\n{block}']
        done = subprocess.run(
            run, cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert (0, "") == (done.returncode, done.stderr), block
        assert done.stdout, block
        assert SHOWN[language] in done.stdout, block


def test_the_license_is_there_and_is_the_one_that_is_named() -> None:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    named, file = (settings["metadata"][key] for key in ("license", "license_files"))
    text = (ROOT / file).read_text()
    assert ("Apache-2.0", 202) == (named, text.count("\n"))
    assert "Apache License\n                           Version 2.0, January 2004" in text


@pytest.mark.parametrize("page", sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")], key=str))
def test_links_lead_somewhere(page: Path) -> None:
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()) if "://" not in target]
    assert [] == [target for target in targets if not (page.parent / target).exists()]


def test_guarantees_name_tests_that_exist() -> None:
    named = re.findall(r"`(tests/[\w/.]+?)(?:::(\w+))?`", (ROOT / "docs" / "guarantees.md").read_text())
    assert len(named) > 20
    missing = [
        (file, name)
        for file, name in named
        if not (ROOT / file).exists() or (name and f"def {name}(" not in (ROOT / file).read_text())
    ]
    assert [] == missing
