"""One Spark for the whole lane: its tests run in one process, one after another."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from afterlog.spark.session import spark_session

SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",  # compiling costs more than a few rows can give back
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Spark's own, on its way up
        session = spark_session(settings=SETTINGS)
    yield session
    session.stop()
