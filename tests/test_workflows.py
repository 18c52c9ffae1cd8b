"""The workflows of the hosted CI: what they name is there, and they mean the Pythons that classifiers and wheels do."""

from __future__ import annotations

import configparser
import re
import tomllib
from typing import Any

import pytest
import yaml

from tests.pages import ROOT

WORKFLOWS = {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in (ROOT / ".github/workflows").glob("*.yml")}
JOBS = [(file, name) for file, workflow in WORKFLOWS.items() for name in workflow["jobs"]]
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]


def settings() -> configparser.ConfigParser:
    found = configparser.ConfigParser()
    found.read(ROOT / "setup.cfg")
    return found


def steps(file: str, job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = WORKFLOWS[file]["jobs"][job]["steps"]
    return found


def test_they_are_there() -> None:
    assert {"nightly", "release", "tests"} == set(WORKFLOWS)


def test_what_takes_long_is_not_run_on_each_push() -> None:
    on_push = WORKFLOWS["tests"]["jobs"]
    assert {"check", "suite", "spark"} == set(on_push)
    assert len(on_push["suite"]["strategy"]["matrix"]["include"]) <= 4
    assert {"suite", "free-threaded", "torture", "kafka", "docs", "browser"} == set(WORKFLOWS["nightly"]["jobs"])


class TestPythons:
    def test_classifiers(self) -> None:
        classifiers = settings()["metadata"]["classifiers"]
        assert PYTHONS == re.findall(r"^Programming Language :: Python :: (3\.\d+)$", classifiers, re.MULTILINE)
        assert f">={PYTHONS[0]}" == settings()["options"]["python_requires"]

    def test_wheels(self) -> None:
        built = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["cibuildwheel"]["build"]
        assert [*(f"cp{python.replace('.', '')}-*" for python in PYTHONS), "cp314t-*"] == built

    def test_suite(self) -> None:
        matrix = WORKFLOWS["nightly"]["jobs"]["suite"]["strategy"]["matrix"]
        assert PYTHONS == matrix["python"]
        assert {"ubuntu", "macos"} == {system.partition("-")[0] for system in matrix["system"]}
        for each in WORKFLOWS["tests"]["jobs"]["suite"]["strategy"]["matrix"]["include"]:
            assert each["system"] in matrix["system"]
            assert each["python"] in PYTHONS
        assert matrix["system"] == WORKFLOWS["release"]["jobs"]["wheels"]["strategy"]["matrix"]["system"]


@pytest.mark.parametrize(("file", "job"), JOBS)
class TestJob:
    def test_what_it_needs_is_a_job(self, file: str, job: str) -> None:
        needs = WORKFLOWS[file]["jobs"][job].get("needs", [])
        assert {needs} if isinstance(needs, str) else {*needs} <= set(WORKFLOWS[file]["jobs"])

    def test_it_ends(self, file: str, job: str) -> None:
        assert WORKFLOWS[file]["jobs"][job]["timeout-minutes"] <= 60

    def test_an_action_is_named_by_its_hash(self, file: str, job: str) -> None:
        used = [step["uses"] for step in steps(file, job) if "uses" in step]
        assert used
        assert [] == [name for name in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", name)]

    def test_what_it_runs_is_there(self, file: str, job: str) -> None:
        run = "\n".join(step.get("run", "") for step in steps(file, job))
        extras = settings()["options.extras_require"]
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
        assert set(re.findall(r"\bmake ([\w-]+)", run)) <= set(targets)
        for named in re.findall(r"-e '\.\[([\w,]+)\]'", run):
            assert set(named.split(",")) <= set(extras)
        for path in re.findall(r"\btests/[\w./-]+|\b[A-Z]+\.md\b", run):
            assert (ROOT / path).exists(), path
        for module, name in re.findall(r"from (afterlog[\w.]*) import (\w+)", run):
            assert name in (ROOT / f"{module.replace('.', '/')}.py").read_text("utf-8")

    def test_it_may_read_and_no_more_but_to_publish(self, file: str, job: str) -> None:
        assert {"contents": "read"} == WORKFLOWS[file]["permissions"]
        allowed = {"id-token": "write"} if job == "publish" else None
        assert allowed == WORKFLOWS[file]["jobs"][job].get("permissions")


def test_only_a_tag_is_published_with_attestations_and_without_a_secret() -> None:
    publish = WORKFLOWS["release"]["jobs"]["publish"]
    assert "startsWith(github.ref, 'refs/tags/v')" == publish["if"]
    assert {"sdist", "wheels"} == {*publish["needs"]}
    assert "pypi" == publish["environment"]["name"]
    uploads = [step for step in publish["steps"] if step["uses"].startswith("pypa/gh-action-pypi-publish@")]
    assert [{"attestations": True}] == [step["with"] for step in uploads]
    assert "secrets." not in (ROOT / ".github/workflows/release.yml").read_text("utf-8")


def test_artifacts_that_are_fetched_were_kept() -> None:
    uses = [step for _, job in JOBS if job in WORKFLOWS["release"]["jobs"] for step in steps("release", job)]
    kept = [step["with"]["name"] for step in uses if "upload-artifact" in step.get("uses", "")]
    fetched = [step["with"].get("name") for step in uses if "download-artifact" in step.get("uses", "")]
    assert ["sdist", "wheels-${{ matrix.system }}"] == kept
    assert ["sdist", None] == fetched
