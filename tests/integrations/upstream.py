"""The frameworks' own tests over our adapters: `make test-integrations`.

    sdist of a release, by its hash ──> unpacked, outside the tree ──> our fixtures beside its tests ──> pytest

Nothing of theirs is in this tree. What fails is in a list with the reason; one that fails and is not in it, or is in it
and does not fail, fails the run. Each framework has a virtual environment of its own, made where it is missing.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent.parent
OURS: Final = Path(__file__).parent / "suites"
ENVIRONMENTS: Final = ROOT / ".venv-integrations"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Of one framework."""

    release: str
    sha256: str
    """Of its sdist."""
    folder: str = "tests"
    """Where they are in it."""
    requires: Sequence[str]
    tests: Sequence[str]
    """Those that are about what an adapter does."""
    ours: Mapping[str, str]
    """What is copied beside them: our file, and its name there."""
    fails: Mapping[str, str] = field(default_factory=dict)
    """Tests that do, and why."""


SUITES: Final = {
    "kombu": Suite(
        release="kombu==5.7.0",
        sha256="31e62fdfd2381caa3422f8e02b84a491d9a2180ddda74507b57f4cb1e1c2c2c9",
        requires=["-e.[celery]", "pytest", "pytest-timeout"],
        folder="t",
        tests=["integration/test_afterlog.py"],
        ours={"kombu_transport.py": "integration/test_afterlog.py"},
        fails={
            "test_failover_switches_to_alternate_url": "a place has no port, by which it tells the two apart",
        },
    ),
    "dramatiq": Suite(
        release="dramatiq==2.2.1",
        sha256="f9fbbd2feea27b3fa4085446242a24d86f78288b20c78a93f9f0bdbd7d908cd5",
        requires=["-e.[dramatiq]", "pytest", "pytest-timeout", "pika", "prometheus-client"],
        tests=[
            f"test_{name}.py"
            for name in (
                "actors", "broker", "callbacks", "composition", "encoders", "generic_actors", "messages", "worker",
            )
        ],
        ours={"dramatiq_conftest.py": "conftest.py", "dramatiq_common.py": "common.py"},
        fails={
            "test_actors_can_be_sent_messages": "looks into the memory of the stub broker",
            "test_worker_handles_non_numeric_eta_and_logs_warning": "writes to the memory of the stub broker",
            "test_worker_handles_none_eta": "writes to the memory of the stub broker",
            "test_messages_belonging_to_missing_actors_are_rejected": "what a worker has names its record",
        },
    ),
}  # fmt: skip


def environment(name: str, suite: Suite) -> Path:
    """Its Python, with the release and what its tests need."""
    folder = ENVIRONMENTS / name
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", suite.release, *suite.requires], check=True, cwd=ROOT)
    return python


def unpacked(python: Path, suite: Suite, folder: Path) -> Path:
    """The tests of the release, with our fixtures beside them."""
    fetch = [python, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", suite.release]
    subprocess.run([*fetch, "--dest", folder], check=True)
    [archive] = folder.glob("*.tar.gz")
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != suite.sha256:
        raise SystemExit(f"{archive.name} is another one than was looked at: sha256 {found}")
    with tarfile.open(archive) as sdist:
        sdist.extractall(folder, filter="data")
    tests = folder / suite.folder  # apart from the sources: what is tried is what was installed
    shutil.move(folder / archive.name.removesuffix(".tar.gz") / suite.folder, tests)
    (tests / "__init__.py").touch()  # a package, whatever it was
    (tests / "conftest.py").unlink(missing_ok=True)  # which is for others of its tests
    for ours, there in suite.ours.items():
        shutil.copy(OURS / ours, tests / there)
    return tests


def results(report: Path) -> tuple[int, list[str]]:
    """How many passed, and those that failed, of a JUnit report."""
    passed, failed = 0, list[str]()
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            failed.append(case.attrib["name"])
        else:
            passed += "skipped" not in kinds
    return passed, failed


def run(name: str) -> int:
    """How many tests did other than was expected."""
    suite = SUITES[name]
    python = environment(name, suite)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        tests = unpacked(python, suite, folder)
        report = folder / "report.xml"
        # Their own settings ask for plugins that are not here.
        options = ["-q", "-c", "/dev/null", "--rootdir", folder, "-p", "no:cacheprovider", "--timeout=60", "--tb=short"]
        chosen = [f"--junit-xml={report}", *(tests / each for each in suite.tests)]
        subprocess.run([python, "-m", "pytest", *options, *chosen], cwd=folder, check=False)
        passed, failed = results(report)
    expected = suite.fails.keys()
    known = sum(each in expected for each in failed)
    print(f"{suite.release}: {passed} passed, {len(failed)} failed, {known} of these for a reason that is known")
    for each in sorted({*failed} - expected):
        print(f"    {each} failed")
    for each in sorted(expected - {*failed}):
        print(f"    {each} did not fail, and is said to: {suite.fails[each]}")
    return len({*failed} ^ expected)


if __name__ == "__main__":
    raise SystemExit(sum(run(name) for name in sys.argv[1:] or SUITES) > 0)
