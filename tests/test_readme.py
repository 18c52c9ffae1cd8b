"""The documents are true: README's examples run as pasted, links lead somewhere, tests that are named exist."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest

from tests.pages import ROOT, blocks, reading

SHOWN = {"sh": "water the plants", "python": ""}
"""What every block of that language shows, apart from something."""


def test_its_blocks_run_as_pasted_in_one_folder_each_program_by_itself(tmp_path: Path) -> None:
    here = [block for block in blocks("README.md") if "pyspark" not in block.text]  # those: tests/spark/test_pages.py
    assert ["python", "python", "sh", "python", "python", "sh"] == [block.language for block in here]
    with reading(tmp_path) as reader:
        for block in here:
            reader.start_anew()
            shown = reader.run(block)
            assert shown, block
            assert SHOWN[block.language] in shown, block


def test_the_license_is_there_and_is_the_one_that_is_named() -> None:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    named, file = (settings["metadata"][key] for key in ("license", "license_files"))
    text = (ROOT / file).read_text()
    assert ("Apache-2.0", 202) == (named, text.count("\n"))
    assert "Apache License\n                           Version 2.0, January 2004" in text


@pytest.mark.parametrize("page", sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")], key=str))
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
