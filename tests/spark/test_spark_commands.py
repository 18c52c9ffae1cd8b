"""`afterlog spark …`, on the session of the lane."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from afterlog.base.names import LOG, segment_file
from afterlog.cli.main import cli
from afterlog.spark import session as session_module
from afterlog.spark.location import ACTIVE
from tests.log.kafka_log import some_segment
from tests.spark.backlog import opened, write_backlog
from tests.support import NOW_MS, flipped

Run = Callable[..., Result]


class Kept:
    """A session that outlives the command."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self.stopped = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._session, name)

    def stop(self) -> None:
        self.stopped += 1


@pytest.fixture
def run(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(*args: str) -> Result:
        kept, masters = Kept(spark), []
        monkeypatch.setattr(session_module, "spark_session", lambda master, settings: masters.append(master) or kept)
        result = CliRunner().invoke(cli, ["spark", *args])
        assert len(masters) == kept.stopped
        return result

    return run


@pytest.fixture
def kafka(tmp_path: Path) -> Path:
    for name, base in (("a-0", 0), ("b-0", 7)):
        (tmp_path / name).mkdir()
        (tmp_path / name / segment_file(base, LOG)).write_bytes(some_segment(base, base).log)
    return tmp_path


def test_build_and_verify(run: Run, kafka: Path) -> None:
    result = run("index", str(kafka), "--topic", "a")
    assert (0, ["TOPIC", "ACTION", "SEGMENTS", "BYTES"]) == (result.exit_code, result.output.split()[:4])
    assert ["a", "built", "1"] == result.output.split()[4:7]
    result = run("index", str(kafka), "--json")
    assert ["skipped", "built"] == [json.loads(line)["action"] for line in result.output.splitlines()]
    path = kafka / "b-0" / segment_file(7, LOG)
    path.write_bytes(flipped(path.read_bytes(), path.stat().st_size - 1))
    result = run("index", str(kafka), "--verify-only", "--cores", "*")
    assert 1 == result.exit_code
    assert f"{path} at byte " in result.output


def test_buckets(run: Run, tmp_path: Path) -> None:
    write_backlog(None, tmp_path)
    result = run("buckets", str(tmp_path), "--topic", "t")
    assert 0 == result.exit_code
    left, _, *table = result.output.splitlines()
    assert left.startswith("t-0, offset ")
    assert left.endswith(f": {ACTIVE}")
    assert [("t", "active", "1"), ("t", "merged", "1")] == [tuple(line.split()[:3]) for line in table]
    result = run("buckets", str(tmp_path), "--topic", "t", "--json")
    assert ["skipped", "active"] == [json.loads(line)["action"] for line in result.output.splitlines()]
    result = run("buckets", str(tmp_path), "--topic", "t", "--roll", "--json")
    assert ["merged"] == [json.loads(line)["action"] for line in result.output.splitlines()]
    with opened(None, tmp_path, NOW_MS):
        assert 4 == run("buckets", str(tmp_path)).exit_code


def test_upload(run: Run, kafka: Path, tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    storage.mkdir()
    result = run("upload", str(kafka), str(storage), "--topic", "a")
    assert (1, True) == (result.exit_code, "a-0, offset 0: it has no indexes" in result.output)
    assert 0 == run("index", str(kafka), "--topic", "a").exit_code
    result = run("upload", str(kafka), str(storage), "--topic", "a")
    assert (0, ["a", "uploaded", "1"]) == (result.exit_code, result.output.split()[4:7])
    result = run("index", f"file://{storage}", "--verify-only", "--json")
    assert ["verified"] == [json.loads(line)["action"] for line in result.output.splitlines()]


def test_what_is_not_there(run: Run, kafka: Path) -> None:
    assert 2 == run("index", str(kafka / "nowhere")).exit_code
    result = run("index", str(kafka), "--topic", "c")
    assert (3, True) == (result.exit_code, "'c'" in result.output)
