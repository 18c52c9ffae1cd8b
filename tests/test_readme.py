"""The documents are true: README's examples run as pasted, links lead somewhere, tests that are named exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
PYTHON = [block for block in BLOCKS if "pyspark" not in block]
"""The others are for the lane that has a Spark (tests/spark/test_readme.py)."""
TIERED = re.findall(
    r"^```python\n(.*?)^```", (ROOT / "docs" / "tiered-storage.md").read_text(), re.MULTILINE | re.DOTALL
)
SHELL = re.findall(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_readme_has_its_examples() -> None:
    assert (4, 2, 1) == (len(PYTHON), len(SHELL), len(TIERED))


@pytest.mark.parametrize("block", [*PYTHON, *TIERED])
def test_python_block_runs_as_pasted(block: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", block], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (0, "") == (done.returncode, done.stderr)
    assert done.stdout


@pytest.mark.parametrize("block", SHELL)
def test_shell_block_runs_as_pasted(block: str, tmp_path: Path) -> None:
    command = f'{sys.executable} -c "from afterlog.cli.main import main; main()"'
    done = subprocess.run(
        ["bash", "-euc", f"afterlog() {{ {command} \"$@\"; }}\n{block}"], cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (0, "") == (done.returncode, done.stderr)
    assert "water the plants" in done.stdout


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
