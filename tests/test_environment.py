from __future__ import annotations

import sys
from pathlib import Path

import pytest

import afterlog
from afterlog import environment


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFTERLOG_TEST", "before")
    assert "before" == environment.variable("AFTERLOG_TEST")
    environment.set_variable("AFTERLOG_TEST", "after")
    assert "after" == environment.variable("AFTERLOG_TEST")
    monkeypatch.delenv("AFTERLOG_TEST")
    assert "" == environment.variable("AFTERLOG_TEST")


def test_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "java"
    program.write_text("")
    assert environment.program("java", tmp_path) is None
    program.chmod(0o755)
    assert program == environment.program("java", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program == environment.program("java")


def test_the_folder_that_others_import_from() -> None:
    assert Path(afterlog.__file__).parent.parent == environment.import_folder()
    assert str(environment.import_folder()) in [str(Path(entry).absolute()) for entry in sys.path]
