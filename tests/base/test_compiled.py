"""That a missing compiled module is told where people look: the version, the log, a metric."""

from __future__ import annotations

import ast
import logging
import sys

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry

from afterlog import metrics
from afterlog._version import __version__
from afterlog.base import compiled
from afterlog.base.clock import ManualClock
from afterlog.base.config import Durability
from afterlog.base.names import LOG, segment_file
from afterlog.cli.main import cli
from tests.architecture import ROOT
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, PATH, content, killed, open_small, with_file


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where there is no compiler."""
    for name in compiled.MODULES:
        monkeypatch.setitem(sys.modules, f"afterlog.{name}", None)


def told_version() -> str:
    return CliRunner().invoke(cli, ["--version"]).stdout


def told_kernels() -> float | None:
    registry = CollectorRegistry()
    with open_small(SimulatedFiles(), ManualClock(NOW_MS)) as store:
        metrics.register(store, registry)
        kernels = "plain" if compiled.missing() else "compiled"
        return registry.get_sample_value("afterlog_build_info", {"version": __version__, "kernels": kernels})


def test_the_modules_are_those_that_setup_builds() -> None:
    built = [
        (names.elts[0].value, names.elts[1].value)
        for names in ast.walk(ast.parse((ROOT / "setup.py").read_text("utf-8")))
        if isinstance(names, ast.Tuple)
        and len(names.elts) == 2
        and all(isinstance(each, ast.Constant) for each in names.elts)
    ]
    assert sorted(compiled.MODULES) == sorted(name for name, _ in built)
    assert all((ROOT / path).is_file() for _, path in built)


def test_compiled() -> None:
    assert () == compiled.missing()
    assert f"afterlog {__version__} (compiled kernels)\n" == told_version()
    assert 1 == told_kernels()


def test_plain(plain: None) -> None:
    assert compiled.MODULES == compiled.missing()
    without = "base._mapping, fetch._objects, index._packing, records._kernels"
    assert f"afterlog {__version__} (plain kernels, without {without})\n" == told_version()
    assert 1 == told_kernels()


def test_one_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "afterlog.index._packing", None)
    assert ("index._packing",) == compiled.missing()


class TestTheLogAtOpen:
    def test_it_says_what_was_opened(self, caplog: pytest.LogCaptureFixture) -> None:
        disk, clock = SimulatedFiles(), ManualClock(NOW_MS)
        with caplog.at_level(logging.INFO, "afterlog.store.store"):
            open_small(disk, clock, durability=Durability.interval(20)).close()
        assert [
            f"{PATH}: opened by afterlog {__version__}, compiled kernels, durability interval(20 ms); "
            "topics: 0, partitions recovered: 0, bytes cut: none"
        ] == caplog.messages

    def test_plain_kernels(self, plain: None, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO, "afterlog.store.store"):
            open_small(SimulatedFiles(), ManualClock(NOW_MS)).close()
        assert "plain kernels, without base._mapping" in caplog.text

    def test_what_recovery_found(self, caplog: pytest.LogCaptureFixture) -> None:
        disk, clock = SimulatedFiles(), ManualClock(NOW_MS)
        store = open_small(disk, clock)
        store.create_topic("mail", 2)
        store.send("mail", b"v", partition=1)
        path = PATH / "mail-1" / segment_file(0, LOG)
        torn = with_file(killed(disk), path, content(disk, path) + b"torn")
        caplog.clear()
        with caplog.at_level(logging.INFO, "afterlog.store.store"):
            open_small(torn, clock).close()
        assert "durability os; topics: 1, partitions recovered: 1, bytes cut: mail-1 4" in caplog.messages[-1]

    def test_nobody_asks(self, plain: None, caplog: pytest.LogCaptureFixture) -> None:
        open_small(SimulatedFiles(), ManualClock(NOW_MS)).close()
        assert [] == caplog.messages
