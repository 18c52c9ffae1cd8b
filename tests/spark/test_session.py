from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from afterlog.base.environment import import_folder
from afterlog.base.errors import SparkUnavailable
from afterlog.spark import session as session_module
from afterlog.spark.session import find_java, spark_session, warn_of_plain_kernels
from afterlog.spark.source import register


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java == find_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(java.parent))
    assert java == find_java()


@pytest.mark.parametrize(("home", "told"), [("", "no java on the path"), ("/nowhere", "/nowhere, has no bin/java")])
def test_without_java(monkeypatch: pytest.MonkeyPatch, home: str, told: str) -> None:
    monkeypatch.setenv("JAVA_HOME", home)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SparkUnavailable, match=told):
        spark_session()


@pytest.mark.parametrize("module", ["pyspark.sql", "pyarrow"])
def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SparkUnavailable, match=r"afterlog\[spark\]"):
        spark_session()


def test_workers_are_this_interpreter_with_this_package(spark: SparkSession) -> None:
    def where(batches):  # type: ignore[no-untyped-def]
        import sys

        import pyarrow as pa

        import afterlog

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"python": [sys.executable], "package": [afterlog.__file__]})

    [row] = spark.range(1).mapInArrow(where, "python STRING, package STRING").collect()
    assert (sys.executable, str(import_folder() / "afterlog" / "__init__.py")) == (row.python, row.package)
    assert spark is spark_session()


def test_plain_kernels_are_told_of_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    warn_of_plain_kernels.cache_clear()
    try:
        monkeypatch.setattr(session_module, "missing", lambda: ("records._kernels",))
        with caplog.at_level(logging.WARNING, "afterlog.spark"):
            for _ in range(2):
                warn_of_plain_kernels()
        [told] = caplog.messages
        assert f"{sys.executable} runs without the compiled kernels records._kernels" in told
        warn_of_plain_kernels.cache_clear()
        monkeypatch.undo()
        warn_of_plain_kernels()
        assert 1 == len(caplog.messages), "here they are"
    finally:
        warn_of_plain_kernels.cache_clear()


def test_a_source_that_spark_can_plan_with(spark: SparkSession) -> None:
    register(spark)


def test_a_source_that_spark_cannot_plan_with(tmp_path: Path) -> None:
    """In a virtual environment that is not activated: `python3` of the path is another one."""
    (tmp_path / "program.py").write_text(
        "from pyspark.sql import SparkSession\n"
        "from afterlog.spark.session import QUICK_START\n"
        "from afterlog.spark.source import register\n"
        "builder = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false')\n"
        "session = builder.config('spark.driver.extraJavaOptions', QUICK_START).getOrCreate()\n"
        "try:\n"
        "    register(session)\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    (tmp_path / "bin" / "python3").chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYSPARK_PYTHON", "PYTHONPATH")}
    environment["PATH"] = f"{tmp_path / 'bin'}:{environment['PATH']}"
    ran = subprocess.run(
        [sys.executable, tmp_path / "program.py"], env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout.startswith("SparkUnavailable the Python in which Spark plans has no ")
    assert f"set PYSPARK_PYTHON={sys.executable} before" in ran.stdout
