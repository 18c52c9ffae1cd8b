"""The command line over object storage: up, looked after, and back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import click
import pytest

import afterlog
from afterlog.base.files import OsFiles
from afterlog.cli.main import cli
from afterlog.tier.manifest import Manifest
from afterlog.tier.remote_segment import SegmentState
from afterlog.tier.remote_url import open_remote
from tests.cli.test_main import process, rows, run
from tests.fetch.test_foreign import THREE, Broker
from tests.tier.support import row

DONE = {"uploaded": 0, "freed": 0, "expired": 0, "removed": 0}
OPENING = ("send", "receive", "topics", "stats", "cancel", "reschedule", "pending", "metrics", "create", "offload")


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    (tmp_path / "storage").mkdir()
    return tmp_path / "storage"


@pytest.fixture
def data(tmp_path: Path, storage: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with two sealed segments, of which one is due, and a record behind them."""
    monkeypatch.setenv("AFTERLOG_REMOTE", str(storage))
    data = tmp_path / "data"
    run("create", data, "mail", "--remote-storage", "--local-retention", "0s", "--retention", "1d")
    run("send", data, "mail", stdin="a\nb\n")
    with afterlog.open(data) as store:
        store.topic("mail").partition(0).log.roll()
        store.send("mail", b"later", delay=3_600)
        store.topic("mail").partition(0).log.roll()
        store.send("mail", b"last")
    return data


def findings(*args: object, code: int = 0) -> list[tuple[str, str, str | None]]:
    """Kind, key, and what was done."""
    return [(each["kind"], each["key"], each["done"]) for each in rows(run("scrub", *args, "--json", code=code))]


def logs(storage: Path) -> list[Path]:
    return sorted((storage / "mail-0").glob("*.log"))


class TestOffload:
    def test_uploads_and_lets_go_of_what_is_due(self, data: Path, storage: Path) -> None:
        told = run("offload", data).stdout
        assert told.startswith("mail-0: 2 uploaded, 1 no longer here, 0 removed by retention")
        assert 2 == len(logs(storage))
        assert [False, True, True] == [(data / "mail-0" / f"{base:020}.log").exists() for base in (0, 2, 3)], (
            "what is pending stays"
        )
        assert "a\nb\nlast\n" == run("receive", data, "mail", "--group", "g").stdout
        assert [{"topic": "mail", "partition": 0, **DONE}] == rows(run("offload", data, "--topic", "mail", "--json"))

    def test_rolls_where_asked(self, data: Path) -> None:
        [done] = rows(run("offload", data, "--roll", "--json"))
        assert (3, 2) == (done["uploaded"], done["freed"])

    def test_wrong_usage(self, data: Path) -> None:
        none: dict[str, Any] = {"AFTERLOG_REMOTE": ""}
        assert "give --remote" in run("offload", data, env=none, code=2).stderr
        run("create", data, "ticks", "--fifo")
        assert "ticks was made without --remote-storage" in run("offload", data, "--topic", "ticks", code=2).stderr
        assert "no topic" in run("offload", data, "--topic", "post", code=3).stderr
        assert "--remote-storage" in run("create", data, "more", "--local-retention", "1h", code=2).stderr
        assert "opened with" not in run("create", data, "far", "--remote-storage").stderr

    def test_others_upload_nothing(self, data: Path, storage: Path) -> None:
        for _ in range(3):
            run("stats", data)
            run("send", data, "mail", "x")
        assert [] == logs(storage)
        assert [] == findings()


class TestRemote:
    @pytest.mark.parametrize("name", OPENING)
    def test_whatever_opens_a_store_takes_it(self, name: str) -> None:
        assert "--remote" in run(name, "--help").stdout

    def test_by_name_or_environment(self, data: Path, storage: Path) -> None:
        run("offload", data)
        none: dict[str, Any] = {"AFTERLOG_REMOTE": ""}
        receive = ("receive", data, "mail", "--group", "g")
        assert "open the store with remote" in run(*receive, env=none, code=6).stderr
        run("send", data, "mail", "more", env=none)
        assert "a\nb\nlast\nmore\n" == run(*receive, "--remote", storage, env=none).stdout

    def test_a_storage_that_is_not_there(self, data: Path, storage: Path) -> None:
        assert "no such folder" in run("topics", data, "--remote", storage / "gone", code=6).stderr
        assert "no storage is known" in run("topics", data, "--remote", "ftp://x", code=6).stderr


class TestLooking:
    def test_stats(self, data: Path) -> None:
        assert "ONLY HERE" not in run("stats", data).stdout
        run("offload", data)
        [partition, *_] = rows(run("stats", data, "--json", "--buckets", 1))
        assert [1, 1, 1, 3] == [
            partition[name] for name in ("only_local_segments", "both_segments", "only_remote_segments", "segments")
        ]
        assert partition["bytes"] == sum(partition[f"{name}_bytes"] for name in ("only_local", "both", "only_remote"))
        assert "ONLY IN OBJECT STORAGE" in run("stats", data).stdout

    def test_topics(self, data: Path) -> None:
        assert ["mail", "0ms", "-"] == run("topics", data).stdout.splitlines()[-1].split()
        [topic] = rows(run("topics", data, "--json"))
        assert (True, 0) == (topic["remote_storage_enable"], topic["local_retention_ms"])

    def test_metrics(self, data: Path) -> None:
        lines = run("metrics", data).stdout.splitlines()
        assert "afterlog_remote_copy_lag_segments 2.0" in lines
        assert "afterlog_remote_fetch_requests_total 0.0" in lines

    def test_verify_and_dump(self, data: Path, storage: Path) -> None:
        run("offload", data)
        verified = run("verify", data)
        assert "" == verified.stdout
        assert " in 1 segment are only in object storage" in verified.stderr
        assert "scrub --deep" in verified.stderr
        entry, first, _ = rows(run("dump", logs(storage)[0], "--records", "--json"))
        assert ("ok", "a") == (entry["crc"], first["value"])


class TestScrub:
    def test_all_is_well(self, data: Path) -> None:
        run("offload", data)
        assert [] == findings("--deep") == findings(data) == findings("--topic", "mail")
        assert "no findings in 1 partition\n" == run("scrub").stderr
        assert "no topic" in run("scrub", "--topic", "post", code=3).stderr
        assert "give --remote" in run("scrub", env={"AFTERLOG_REMOTE": ""}, code=2).stderr
        assert "no store" in run("scrub", data / "nowhere", code=3).stderr

    def test_faults(self, data: Path, storage: Path) -> None:
        run("offload", data)
        first, _ = logs(storage)
        key = f"mail-0/{first.name}"
        whole = first.read_bytes()
        first.write_bytes(whole[:-1] + b"?")
        assert [] == findings()
        assert [("CORRUPT", key, None)] == findings("--deep", code=1)
        first.write_bytes(whole[:-1])
        assert [("PARTIAL", key, None)] == findings(code=1)
        first.unlink()
        assert [("MISSING", key, None)] == findings(code=1)
        assert f"MISSING    {key}: listed, and not there\n" == run("scrub", code=1).stdout
        assert "see `afterlog verify`" in run("--help").stdout
        run("receive", data, "mail", "--group", "g", code=5)

    def test_litter(self, data: Path, storage: Path) -> None:
        run("offload", data)
        extra = storage / "mail-0" / f"{0:020}-{1:032x}.log"
        shutil.copy(logs(storage)[0], extra)
        (storage / "mail-0" / "notes").write_bytes(b"x")
        (storage / "me\nmo").write_bytes(b"x")
        manifest = Manifest(open_remote(str(storage), files=OsFiles()), "mail-0")
        manifest.update(lambda segments: (*segments, row(7, 900, SegmentState.COPY_STARTED)))
        unfinished = "UNFINISHED", manifest.object_key(row(7, 900), "")
        kinds = [("EXTRA", "me\nmo"), ("EXTRA", f"mail-0/{extra.name}"), unfinished, ("EXTRA", "mail-0/notes")]
        assert [(*each, None) for each in kinds] == findings()
        assert "me\\nmo" in run("scrub").stdout
        assert [("EXTRA", "me\nmo", None), (*unfinished, "ended")] == findings("--end-unfinished", "1d")[:2]
        done = {key: what for _, key, what in findings("--remove-extra")}
        assert {"me\nmo": None, f"mail-0/{extra.name}": "deleted", "mail-0/notes": "kept, for it is not ours"} == done
        assert ["me\nmo", "mail-0/notes"] == [key for _, key, _ in findings()]

    def test_a_store_that_takes_for_uploaded_what_is_not_listed(self, data: Path, storage: Path) -> None:
        run("offload", data)
        manifest = Manifest(open_remote(str(storage)), "mail-0")
        manifest.update(lambda segments: segments[1:])
        kinds = [kind for kind, _, _ in findings(data, code=1)]
        assert "MISSING" in kinds
        assert {"EXTRA"} == set(kinds) - {"MISSING"}
        assert "its records cannot be read" in run("scrub", data, code=1).stdout

    def test_rotten_documents(self, data: Path, storage: Path) -> None:
        run("offload", data)
        for versions in (storage / "topics.versions", storage / "mail-0" / "manifest.versions"):
            for version in versions.iterdir():
                version.write_bytes(b"rot")
        assert [("CORRUPT", "topics", None), ("CORRUPT", "mail-0/manifest", None)] == findings(data, code=1)


class TestRestore:
    def test_a_fresh_machine(self, data: Path, tmp_path: Path) -> None:
        run("offload", data)
        fresh = tmp_path / "fresh"
        restored = run("restore", fresh)
        assert ["mail-0", "2"] == restored.stdout.splitlines()[1].split()[:2]
        assert "positions and subscriptions are not there" in restored.stderr
        assert "a\nb\n" == run("receive", fresh, "mail", "--group", "g").stdout
        [row] = rows(run("stats", fresh, "--json"))[:1]
        assert (1, 3) == (row["pending"], row["log_end_offset"])
        assert "there is a store" in run("restore", fresh, code=2).stderr
        assert "give --remote" in run("restore", tmp_path / "x", env={"AFTERLOG_REMOTE": ""}, code=2).stderr
        assert not (tmp_path / "x").exists()

    def test_sealed_and_never_uploaded(self, data: Path, storage: Path, tmp_path: Path) -> None:
        run("offload", data)
        manifest = Manifest(open_remote(str(storage)), "mail-0")
        manifest.update(lambda segments: segments[:1])
        [row] = rows(run("restore", tmp_path / "fresh", "--json", code=1))
        assert (1, 2, 1, 3) == (row["segments"], row["records"], row["missing"], row["log_end_offset"])

    def test_missing_between_others(self, data: Path, storage: Path, tmp_path: Path) -> None:
        run("offload", data)
        manifest = Manifest(open_remote(str(storage)), "mail-0")
        manifest.update(lambda segments: segments[1:])
        assert "--partial" in run("restore", tmp_path / "fresh", code=5).stderr
        [row] = rows(run("restore", tmp_path / "fresh", "--partial", "--json", code=1))
        assert (1, 1, 2, 3) == (row["segments"], row["records"], row["missing"], row["log_end_offset"])

    def test_an_empty_storage(self, tmp_path: Path, storage: Path) -> None:
        assert "no topics" in run("restore", tmp_path / "fresh", "--remote", storage, code=3).stderr
        assert not (tmp_path / "fresh").exists()

    def test_what_is_here_is_not_replaced(self, data: Path) -> None:
        """The document of topics is lost: the folder has records that no storage has."""
        run("offload", data)
        (data / "topics").unlink()
        assert "holds records" in run("restore", data, code=5).stderr
        assert "Given up: max_delay_ms and retention settings" in run("repair", data, "--apply").stdout
        assert "a\nb\nlast\n" == run("receive", data, "mail", "--group", "g").stdout
        [topic] = rows(run("topics", data, "--json"))
        assert (True, True) == (topic["remote_storage_enable"], topic["delayed"])


class TestRepair:
    def test_a_broken_log_that_was_uploaded(self, data: Path) -> None:
        run("offload", data)
        log = data / "mail-0" / f"{2:020}.log"
        log.write_bytes(log.read_bytes()[:-1] + b"?")
        without = run("repair", data, env={"AFTERLOG_REMOTE": ""}, code=1).stdout
        assert "give --remote" in without
        assert "offsets 2 to 2 are lost" in without
        assert "nothing is lost" in run("repair", data, "--apply").stdout
        assert "no findings" in run("verify", data).stderr
        [partition, *_] = rows(run("stats", data, "--json", "--buckets", 1))
        assert (2, 1) == (partition["only_remote_segments"], partition["pending"])
        assert "a\nb\nlast\n" == run("receive", data, "mail", "--group", "g").stdout


def test_it_is_asked_for_politely() -> None:
    for name in ("offload", "scrub", "restore"):
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        assert command.help
    assert 0 == process("scrub", "--help").returncode


def test_json_is_json(data: Path) -> None:
    for command in ("offload", "scrub"):
        for line in run(command, data, "--json").stdout.splitlines():
            json.loads(line)


def test_a_topic_that_is_only_read(tmp_path: Path, storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Kafka broker's: what it lacks are gaps, and nothing is missing."""
    monkeypatch.setenv("AFTERLOG_REMOTE", str(storage))
    broker = Broker(THREE)
    broker.uploaded()
    for key, content in broker.storage.objects.items():
        (storage / key).parent.mkdir(exist_ok=True)
        (storage / key).write_bytes(content)
    data = tmp_path / "fresh"
    [told] = rows(run("restore", data, "--json"))
    assert (7, 0, 5, 33) == (told["records"], told["missing"], told["log_start_offset"], told["log_end_offset"])
    assert "read only" in run("topics", data).stdout
    assert 7 == len(rows(run("receive", data, "orders", "--group", "g", "--json")))
    for refused in (("send", data, "orders", "v"), ("cancel", data, "orders-0@5")):
        assert "only read" in run(*refused, code=2).stderr
    assert "only read" in run("offload", data, code=2).stderr
