from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from afterlog.base.environment import import_folder
from afterlog.base.errors import SparkUnavailable
from afterlog.spark.session import find_java, spark_session


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
