"""The documents are true: README's examples run as pasted, links lead somewhere, tests that are named exist."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest

from afterlog._version import __version__
from tests.pages import ROOT, blocks, reading

HERE = "https://github.com/afterlog/afterlog/blob/main/"
"""What `main` has."""

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


def test_its_links_work_where_the_package_is_shown() -> None:
    """A package index has no folder to which a relative link could lead."""
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    assert len(links) > 15
    assert [] == [link for link in links if not link.startswith(HERE)]
    assert [] == [link for link in links if not (ROOT / link.removeprefix(HERE)).is_file()]


def test_the_project_is_where_its_links_say() -> None:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    metadata = settings["metadata"]
    links = dict(line.split(" = ") for line in metadata["project_urls"].strip().splitlines())
    assert {"Documentation", "Source", "Issues", "Changelog"} == set(links)
    assert {metadata["url"]} == {link[: len(metadata["url"])] for link in (*links.values(), HERE)}
    assert [] == [
        link for link in links.values() if link.startswith(HERE) and not (ROOT / link.removeprefix(HERE)).is_file()
    ]


def test_the_version_is_written_in_one_place() -> None:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    assert "attr: afterlog._version.__version__" == settings["metadata"]["version"]
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "mkdocs.yml", "afterlog/__init__.py", "deploy/Dockerfile"):
        assert not re.search(rf"\b{re.escape(__version__)}\b", (ROOT / name).read_text()), name


class TestChangelog:
    """The form of keepachangelog.com: versions, newest first, each with its date; what changed under a few headings."""

    TEXT = (ROOT / "CHANGELOG.md").read_text()

    def test_the_newest_is_unreleased_or_this_version(self) -> None:
        versions = re.findall(r"^## \[(.+?)\](.*)$", self.TEXT, re.MULTILINE)
        assert versions[0] in (("Unreleased", ""), (__version__, versions[0][1]))
        for version, date in versions:
            assert version == "Unreleased" or re.fullmatch(r" - \d{4}-\d\d-\d\d", date), version
            assert re.search(rf"^\[{re.escape(version)}\]: {HERE.removesuffix('blob/main/')}", self.TEXT, re.MULTILINE)

    def test_each_line_stands_under_one_of_its_headings(self) -> None:
        headings = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
        for version in re.split(r"^## ", self.TEXT, flags=re.MULTILINE)[1:]:
            before, *parts = re.split(r"^### ", version, flags=re.MULTILINE)
            assert "- " not in before.partition("\n")[2]
            assert [heading for heading in headings if heading in {part.partition("\n")[0] for part in parts}] == [
                part.partition("\n")[0] for part in parts
            ]
            for part in parts:
                lines = part.partition("\n")[2].partition("\n[")[0].strip("\n").split("\n")
                assert [] == [line for line in lines if not line.startswith(("- ", "  "))]


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
