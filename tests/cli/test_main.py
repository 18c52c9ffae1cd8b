"""The command line, as people and scripts use it: what it prints, its exit codes, what it imports."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import afterlog
from afterlog.api.statistics import histogram_edges
from afterlog.base.errors import (
    AfterlogError,
    DiskFailed,
    InvalidDeliverAfter,
    InvalidRecord,
    NotAllowed,
    NotAuthenticated,
    RecordTooLarge,
    ServerNotTrusted,
)
from afterlog.cli import output
from afterlog.cli.base import CORRUPT, FINDINGS, Failure
from afterlog.cli.input import InputRecord, chunks_of_lines, duration_ms, instant, json_records
from afterlog.cli.main import cli
from afterlog.cli.output import amount, iso, relative, span

ROOT = Path(__file__).parent.parent.parent
HOUR_MS = 3_600_000


def run(*args: object, stdin: str | bytes | None = None, code: int = 0, env: dict[str, str] | None = None) -> Result:
    result = CliRunner().invoke(cli, [str(arg) for arg in args], input=stdin, env=env)
    assert code == result.exit_code, result.output + repr(result.exception)
    return result


def rows(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def process(*args: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", "from afterlog.cli.main import main; main()", *map(str, args)]
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.run(command, cwd=ROOT, text=True, timeout=60, **piped | options)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    run("create", tmp_path / "data", "mail")
    return tmp_path / "data"


class TestSendAndReceive:
    def test_a_value(self, data: Path) -> None:
        assert "mail-0@0\n" == run("send", data, "mail", "water the plants").stdout
        assert "water the plants\n" == run("receive", data, "mail", "--group", "shell").stdout
        assert "" == run("receive", data, "mail", "--group", "shell").stdout
        assert "water the plants\n" == run("receive", data, "mail", "--group", "other").stdout

    def test_nothing_is_early(self, data: Path) -> None:
        run("send", data, "mail", "later", "--delay", "1h")
        run("send", data, "mail", "much later", "--at", "2099-01-01T00:00:00Z")
        run("send", data, "mail", "at once", "--at", "2002-01-01T00:00:00+01:00")
        assert "at once\n" == run("receive", data, "mail", "--group", "shell").stdout

    def test_waits_until_the_timeout(self, data: Path) -> None:
        run("send", data, "mail", "soon", "--delay", "150ms")
        assert "soon\n" == run("receive", data, "mail", "--group", "shell", "--timeout", "20").stdout
        assert "" == run("receive", data, "mail", "--group", "shell", "--timeout", "0.01").stdout

    def test_makes_store_and_topic_where_asked(self, tmp_path: Path) -> None:
        assert "no store" in run("send", tmp_path / "new", "mail", "x", code=3).stderr
        assert not (tmp_path / "new").exists()
        run("send", tmp_path / "new" / "store", "mail", "x", "--create")
        run("send", tmp_path / "new" / "store", "mail", "y", "--create")
        assert "x\ny\n" == run("receive", tmp_path / "new" / "store", "mail", "--group", "g").stdout

    def test_lines(self, data: Path) -> None:
        sent = run("send", data, "mail", "--key", "k", "--json", stdin="one\n\nthree")
        assert [{"topic": "mail", "records": 3}] == rows(sent)
        received = rows(run("receive", data, "mail", "--group", "g", "--json"))
        assert [("one", "k"), ("", "k"), ("three", "k")] == [(row["value"], row["key"]) for row in received]

    def test_many_lines(self, data: Path) -> None:
        lines = [str(number) for number in range(100_000)]
        assert "100,000 records sent to mail\n" == run("send", data, "mail", stdin="\n".join(lines)).stdout
        assert lines == run("receive", data, "mail", "--group", "g").stdout.splitlines()

    def test_json_lines_there_and_back(self, data: Path) -> None:
        records: list[dict[str, Any]] = [
            {"value": "text", "key": "k", "headers": {"a": "1"}, "deliver_after": 10**12 + 1_000},
            {"value": {"base64": "/w=="}, "headers": {"a": "1", "b": None}, "deliver_after": "2002-01-01T00:00:00Z"},
            {"value": None, "deliver_after": 10**12 + 2_000},
            {"value": "at once"},
            {"value": "later", "delay": "1h"},
            {"json": {"to": ["ada", 1]}},
        ]
        run("send", data, "mail", "--json-input", stdin="\n".join(map(json.dumps, records)))
        received = rows(run("receive", data, "mail", "--group", "g", "--json"))
        values = ["text", {"base64": "/w=="}, None, "at once", '{"to":["ada",1]}']
        assert values == [row["value"] for row in received]
        assert ["k", None, None, None, None] == [row["key"] for row in received]
        assert [["a", "1"], ["b", None]] == received[1]["headers"]
        assert [10**12 + 1_000, 1_009_843_200_000, 10**12 + 2_000] == [row["deliver_after"] for row in received[:3]]
        assert [0, 1, 2, 3, 4] == [row["delivery_offset"] for row in received]

    def test_a_bad_line_says_where_and_what_was_sent(self, data: Path) -> None:
        result = run("send", data, "mail", "--json-input", stdin='{"value": "a"}\n{"valve": "b"}\n', code=2)
        assert result.stderr.startswith("afterlog: line 2: needs one JSON object with value or json")
        assert "(0 records before it were sent)" in result.stderr
        assert 1 == result.stderr.count("\n")
        assert "" == run("receive", data, "mail", "--group", "g").stdout

    def test_how_long_it_is_of_use(self, data: Path) -> None:
        """Of one, of lines, and of lines that say it themselves."""
        run("send", data, "mail", "one", "--expires-after", "90s")
        run("send", data, "mail", "--expires-after", "2m", stdin="a\n")
        given = [
            {"value": "b"},
            {"value": "c", "expires_after": 1.5, "headers": {"x": "1"}},
            {"value": "d", "expires_after": None},
        ]
        run("send", data, "mail", "--expires-after", "3m", "--json-input", stdin="\n".join(map(json.dumps, given)))
        failed = run("send", data, "mail", "--json-input", stdin='{"value": "e", "expires_after": 0}', code=2)
        assert "line 1: expires_after must be more than 0" in failed.stderr
        received = rows(run("receive", data, "mail", "--group", "g", "--json"))
        found = {row["value"]: [name for name, _ in row["headers"]] for row in received}
        last = ["expires-after"]
        assert {"one": last, "a": last, "b": last, "c": ["x", *last], "d": []} == found

    def test_an_expiry_of_a_topic(self, data: Path) -> None:
        run("create", data, "taxis", "--expires-after", "5m", "--on-expiry", "dead_letter")
        run("alter", data, "taxis", "--expires-after", "10m", "--on-expiry", "drop")
        with afterlog.open(data) as store:
            settings = store.topic("taxis").settings
            assert (600_000, "drop") == (settings.expires_after_ms, settings.on_expiry)
        run("alter", data, "taxis", "--expires-after", "none")
        with afterlog.open(data) as store:
            assert store.topic("taxis").settings.expires_after_ms is None

    def test_priorities(self, data: Path) -> None:
        run("create", data, "jobs", "--priorities", "2", "--partitions", "3")
        run("send", data, "jobs", "low")
        run("send", data, "jobs", "high", "--priority", "1")
        run("send", data, "jobs", "--priority", "1", stdin="a\nb\n")
        given = [{"value": "c"}, {"value": "d", "priority": 0}, {"value": "e", "priority": 1}]
        run("send", data, "jobs", "--priority", "1", "--json-input", stdin="\n".join(map(json.dumps, given)))
        failed = run("send", data, "jobs", "--json-input", stdin='{"value": "e", "priority": "1"}', code=2)
        assert "line 1: a priority is a whole number" in failed.stderr
        with afterlog.open(data) as store:
            topic = store.topic("jobs")
            assert (4, 2) == (topic.partition_count, topic.settings.priorities)
            with store.subscribe("jobs", "s") as subscription:
                found = {message.value: topic.priority_of(message.partition) for message in subscription.receive()}
        assert {b"low": 0, b"high": 1, b"a": 1, b"b": 1, b"c": 1, b"d": 0, b"e": 1} == found
        run("alter", data, "jobs", "--priorities", "4")
        with afterlog.open(data) as store:
            assert 4 == store.topic("jobs").settings.priorities

    def test_from_max_and_no_commit(self, data: Path) -> None:
        run("send", data, "mail", stdin="a\nb\nc\n")
        receive = ("receive", data, "mail", "--group", "g")
        assert "a\nb\n" == run(*receive, "--max", 2, "--no-commit").stdout
        assert "a\n" == run(*receive, "--max", 1).stdout
        assert "b\nc\n" == run(*receive).stdout
        assert "a\nb\nc\n" == run(*receive, "--from", "earliest").stdout
        assert "" == run(*receive, "--from", "latest").stdout
        assert "a\nb\nc\n" == run(*receive, "--from", "2001-01-01T00:00:00Z").stdout
        assert "a\nb\nc\n" == run(*receive, "--from-broker-time", "2001-01-01T00:00:00Z").stdout
        assert "" == run(*receive, "--from-broker-time", "2099-01-01T00:00:00Z").stdout
        both = run(*receive, "--from", "latest", "--from-broker-time", "2001-01-01T00:00:00Z", code=2)
        assert "give --from or --from-broker-time, not both" in both.stderr

    def test_follow_ends_with_max_or_silence(self, data: Path) -> None:
        run("send", data, "mail", stdin="a\nb\nc\n")
        receive = ("receive", data, "mail", "--follow", "--group")
        assert "a\nb\n" == run(*receive, "one", "--max", 2).stdout
        assert "a\nb\nc\n" == run(*receive, "two", "--timeout", "0.05").stdout

    def test_an_argument_that_is_not_utf8(self, data: Path) -> None:
        run("send", data, "mail", "\udcff")
        assert b"\xff\n" == run("receive", data, "mail", "--group", "g").stdout_bytes


class TestLooking:
    def test_topics(self, data: Path) -> None:
        run("create", data, "ticks", "--partitions", 3, "--fifo", "--retention", "1d", "--retention-bytes", 1000)
        run("create", data, "near", "--max-delay", "15m")
        text = run("topics", data).stdout.splitlines()
        assert ["TOPIC", "PARTITIONS", "ORDER"] == text[0].split()[:3]
        assert ["ticks", "3", "fifo", "-", "1d", "1,000"] == text[3].split()
        listed = rows(run("topics", data, "--json"))
        assert ["mail", "near", "ticks"] == [row["topic"] for row in listed]
        assert 900_000 == listed[1]["max_delay_ms"]
        assert "more than --max-delay" in run("send", data, "near", "x", "--delay", "1h", code=2).stderr

    def test_stats(self, data: Path) -> None:
        run("send", data, "mail", stdin="a\nb\n")
        run("send", data, "mail", "--delay", "1h", stdin="c\n" * 90)
        run("send", data, "mail", "--delay", "3h", stdin="d\n" * 10)
        partition, *buckets = rows(run("stats", data, "mail", "--json", "--buckets", 5))
        assert (100, 2, 102) == (partition["pending"], partition["due"], partition["log_end_offset"])
        assert (1, 0) == (partition["buckets"], partition["index_bytes"]), "a short run is loaded again"
        assert 100 == sum(row["records"] for row in buckets)
        assert len(buckets) <= 5
        text = run("stats", data).stdout
        assert "mail-0" in text
        assert "in 59m" in text
        assert "#" * 50 + " 90" in text

    def test_what_holds_the_disk(self, data: Path) -> None:
        quota = ("--backlog-quota", "1h", "--backlog-quota-bytes", "1000000")
        run("create", data, "work", "--retention-by-subscriptions", "--segment-age", "1ms", *quota)
        [settings] = [row for row in rows(run("topics", data, "--json")) if row["topic"] == "work"]
        assert (1, True) == (settings["segment_ms"], settings["retention_by_subscriptions"])
        assert (3_600_000, 1_000_000) == (settings["backlog_quota_ms"], settings["backlog_quota_bytes"])
        assert "work 1h 1,000,000 producer_exception" in " ".join(run("topics", data).stdout.split())
        run("send", data, "work", stdin="a\nb\n")
        assert "SEALED BYTES OF" not in run("stats", data).stdout
        with afterlog.open(data) as store:
            store.topic("work").partition(0).log.roll()
        [work] = [row for row in rows(run("stats", data, "work", "--json")) if "held_backlog_bytes" in row]
        assert work["bytes"] == work["held_backlog_bytes"] > 0
        assert "SEALED BYTES OF" in run("stats", data).stdout
        assert "BacklogQuota" not in run("create", data, "x", "--backlog-quota", "1h", code=2).stderr

    def test_stats_of_nothing_and_of_fifo(self, data: Path) -> None:
        run("create", data, "ticks", "--fifo")
        run("send", data, "ticks", "x")
        mail, ticks = rows(run("stats", data, "--json"))
        assert (0, 0, None) == (mail["pending"], mail["due"], mail["next_due"])
        assert (0, 1, None) == (ticks["pending"], ticks["due"], ticks["next_due"])
        assert (1, 0) == (mail["buckets"], ticks["buckets"])

    def test_dump(self, data: Path) -> None:
        run("send", data, "mail", "hello", "--key", "k\n")
        run("receive", data, "mail", "--group", "g")
        log = data / "mail-0" / ("0" * 20 + ".log")
        entry, record = rows(run("dump", log, "--records", "--json"))
        assert (0, 0, 1, "ok") == (entry["position"], entry["offset"], entry["records"], entry["crc"])
        assert ("hello", "k\n") == (record["value"], record["key"])
        assert "crc ok" in run("dump", log).stdout
        assert ['"k\\n"', "headers", "()", "value", "hello"] == run("dump", log, "--records").stdout.split()[-5:]
        for path in sorted(data.rglob("*")):
            if path.is_file() and path.name != "lock":
                run("dump", path)
        run("dump", data / "lock", code=5)
        run("dump", data / "nothing.log", code=3)
        run("dump", data, code=2)


class TestVerifyAndRepair:
    def test_there_and_back(self, data: Path) -> None:
        run("send", data, "mail", stdin="a\n" * 1_000)
        run("send", data, "mail", stdin="b\n" * 1_000)
        assert "" == run("verify", data).stdout
        assert "nothing to repair\n" == run("repair", data).stderr
        log = data / "mail-0" / ("0" * 20 + ".log")
        whole = log.read_bytes()
        log.write_bytes(whole[:-1] + b"?")
        assert f"{log} at byte" in run("verify", data, code=1).stdout
        [finding] = rows(run("verify", data, "mail", "--json", code=1))
        assert (str(log), "the body's CRC does not match") == (finding["path"], finding["message"])
        told = run("repair", data, code=1)
        assert "offsets 1000 to 1999 are lost" in told.stdout
        assert "nothing was done yet" in told.stderr
        assert told.stdout.splitlines() == [row["step"] for row in rows(run("repair", data, "--json", code=1))]
        assert len(whole) == log.stat().st_size
        assert told.stdout == run("repair", data, "--apply").stdout
        assert "no findings\n" == run("verify", data).stderr
        assert "a\n" * 1_000 == run("receive", data, "mail", "--group", "g").stdout

    def test_clock(self, data: Path) -> None:
        ahead = afterlog.ManualClock(afterlog.SystemClock().now_ms() + 48 * HOUR_MS)
        with afterlog.open(data, clock=ahead) as store:
            store.send("mail", b"x")
            with store.consumer("mail", group="g") as consumer:
                assert 1 == len(consumer.poll())
        assert "over an hour behind" in run("receive", data, "mail", "--group", "h", code=4).stderr
        assert "repair --clock" in run("verify", data, code=1).stdout
        assert "Given up" in run("repair", data, "--clock", "--apply").stdout
        run("verify", data)
        run("receive", data, "mail", "--group", "h")

    def test_beyond_repair(self, data: Path) -> None:
        for path in (data / "mail-0").glob("*"):
            if path.is_file():
                path.unlink()
        assert "restore the folder from a copy" in run("repair", data, "--apply", code=5).stderr


class TestExitCodes:
    @pytest.mark.parametrize(
        ("code", "args", "message"),
        [
            (2, ["send", "{data}", "mail", "x", "--delay", "5"], "no duration"),
            (2, ["send", "{data}", "mail", "x", "--delay", "1s", "--at", "5"], "not both"),
            (2, ["send", "{data}", "mail", "x", "--json-input"], "leave VALUE out"),
            (2, ["send", "{data}", "mail", "x", "--at", "2030-01-01"], "no time zone"),
            (2, ["send", "{data}"], "Missing argument 'TOPIC'"),
            (2, ["create", "{data}", "../x"], "cannot name a topic"),
            (2, ["create", "{data}", "mail", "--fifo"], "is there with"),
            (2, ["create", "{data}", "x", "--fifo", "--max-delay", "1h"], "delayed topics"),
            (2, ["unheard-of"], "No such command"),
            (3, ["send", "{data}", "post", "x"], "no topic"),
            (3, ["receive", "{data}/nowhere", "mail", "--group", "g"], "no store"),
            (3, ["stats", "{data}", "post"], "no topic"),
            (3, ["verify", "{data}/nowhere"], "no store"),
            (3, ["verify", "{data}", "post"], "no topic"),
            (3, ["repair", "{data}/nowhere"], "no store"),
        ],
    )
    def test_one_line_and_a_code(self, data: Path, code: int, args: list[str], message: str) -> None:
        result = run(*(arg.format(data=data) for arg in args), code=code)
        assert result.stderr.startswith("afterlog: ")
        assert message in result.stderr
        assert 1 == result.stderr.count("\n")

    def test_locked(self, data: Path) -> None:
        with afterlog.open(data):
            assert "is open in process" in run("topics", data, code=4).stderr
            assert "is open in process" in run("verify", data, code=4).stderr
            run("dump", data / "topics")

    def test_corrupt(self, data: Path) -> None:
        (data / "topics").write_bytes(b"rot")
        assert "not an intact afterlog-topics document" in run("topics", data, code=5).stderr

    def test_disk(self, data: Path) -> None:
        (data / "lock").unlink()
        (data / "lock").mkdir()
        run("topics", data, code=6)

    @pytest.mark.parametrize(
        "error",
        [
            NotAllowed("no scope"),
            NotAuthenticated("no token"),
            ServerNotTrusted("another name"),
            PermissionError(errno.EACCES, "Permission denied", "lock"),
            DiskFailed("open: Permission denied", path="lock", number=errno.EACCES),
        ],
    )
    def test_not_allowed(self, error: AfterlogError | OSError) -> None:
        assert 7 == Failure.of(error).code

    def test_another_users(self, data: Path) -> None:
        def as_nobody() -> None:
            os.seteuid(65_534)
            try:
                run("topics", data, code=7)
            finally:
                os.seteuid(0)

        if os.geteuid():
            data.chmod(0)
            run("topics", data, code=7)
        else:
            data.chmod(0o700)
            as_nobody()

    @pytest.mark.parametrize(
        ("args", "message"),
        [
            (["send", "{data}", "post", "x"], "no topic 'post' here; `afterlog create DATA post` makes it"),
            (["schedules", "pause", "{data}", "x"], "`afterlog schedules list DATA` lists those that are"),
            (["send", "{data}", "fifo", "x", "--delay", "1h"], "made with --fifo: send without --delay and --at"),
            (["create", "{data}", "x", "--fifo", "--max-delay", "1h"],
             "--max-delay is for delayed topics: leave it out, or make the topic without --fifo"),
            (["create", "{data}", "x", "--local-retention", "1h"], "retention is for topics with --remote-storage"),
            (["create", "{data}", "x", "--backlog-quota", "1h"], "a quota where --retention-by-subscriptions keeps it"),
            (["alter", "{data}", "mail", "--remote-storage"], "--remote-storage needs object storage: --remote URL"),
            (["send", "{data}", "mail", "x", "--at", "5"], "if it is meant: `afterlog alter DATA TOPIC --any-instant`"),
            (["create", "{data}", "mail", "--partitions", "7"], "mail is there with partitions=1, not 7"),
        ],
    )  # fmt: skip
    def test_advice_is_for_the_shell(self, data: Path, args: list[str], message: str) -> None:
        run("create", data, "fifo", "--fifo")
        told = CliRunner().invoke(cli, [arg.format(data=data) for arg in args]).stderr
        assert message in told
        assert not re.search(r"=True|=False|store\.|_ms\b", told)

    def test_help_names_them(self) -> None:
        text = run("--help").stdout
        assert [0, 1, 2, 3, 4, 5, 6, 7, 130] == [
            int(line.split()[0]) for line in text.partition("Exit codes:\n")[2].splitlines() if line.strip()
        ]

    def test_every_command_has_help(self) -> None:
        names = cli.list_commands(click.Context(cli))
        assert {"send", "cancel", "dead-letters", "spark"} < set(names)
        for name in names:
            assert "Usage: afterlog" in run(name, "--help").stdout


class TestFolder:
    """DATA, or AFTERLOG_DATA."""

    def test_from_the_environment(self, data: Path) -> None:
        env = {"AFTERLOG_DATA": str(data)}
        run("send", "--key", "k", "mail", "x", env=env)
        assert "x\n" == run("receive", "mail", "--group", "g", env=env).stdout
        assert "mail" in run("topics", env=env).stdout
        run("verify", env=env)
        run("verify", "mail", env=env)

    def test_a_path_counts_all_the_same(self, data: Path, tmp_path: Path) -> None:
        env = {"AFTERLOG_DATA": str(data)}
        run("create", tmp_path / "other", "post", env=env)
        run("send", tmp_path / "other", "post", "x", env=env)
        assert "post" in run("topics", tmp_path / "other", env=env).stdout
        assert "no topic" in run("send", "post", "x", env=env, code=3).stderr


class TestProcesses:
    def test_imports(self) -> None:
        program = (
            "import sys; sys.argv = ['afterlog', '--help']\n"
            "import afterlog, contextlib\n"
            "early = len(sys.modules)\n"
            "from afterlog.cli.main import main\n"
            "with contextlib.suppress(SystemExit): main()\n"
            "heavy = {'numpy', 'rich', 'crc32c', 'pyroaring', 'cramjam', 'sortedcontainers'} & set(sys.modules)\n"
            "print(sorted(heavy), early, len(sys.modules), file=sys.stderr)\n"
        )
        ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
        heavy, early, late = json.loads(f"[{ran.stderr.strip().replace('] ', '],').replace(' ', ',')}]")
        assert [] == heavy
        assert early < 150
        assert late < 300

    def test_a_command_does_not_load_those_of_others(self, data: Path) -> None:
        program = (
            "import sys, contextlib; sys.argv = ['afterlog', 'send', sys.argv[1], 'mail', 'x']\n"
            "from afterlog.cli.main import main\n"
            "with contextlib.suppress(SystemExit): main()\n"
            "print(*sys.modules, file=sys.stderr)\n"
        )
        command = [sys.executable, "-c", program, str(data)]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        loaded = set(ran.stderr.split())
        assert "mail-0@0\n" == ran.stdout
        assert {"afterlog.cli.main", "afterlog.store.store", "click"} <= loaded
        others = {f"afterlog.cli.{name}" for name in ("export_command", "queue_commands", "spark_commands")}
        assert not others & loaded
        assert not {"rich", "asyncio", "email", "socket", "afterlog.fetch.partition", "afterlog.offline"} & loaded

    def test_version(self) -> None:
        assert f"afterlog {afterlog.__version__} (compiled kernels)\n" == process("--version").stdout

    def test_as_a_module(self) -> None:
        ran = subprocess.run(
            [sys.executable, "-m", "afterlog", "send", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert ran.stdout.startswith("Usage: afterlog send ")

    def test_completion(self, data: Path) -> None:
        def completed(*words: str) -> list[str]:
            env = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1), "AFTERLOG_DATA": str(data)}
            ran = process(env={**os.environ, **env, "_AFTERLOG_COMPLETE": "bash_complete"})
            return ran.stdout.split()

        assert ["plain,schedules", "plain,scrub", "plain,send", "plain,serve"] == sorted(completed("afterlog", "s"))[:4]
        assert ["plain,--on-conflict"] == completed("afterlog", "send", "--on")

    def test_no_command(self) -> None:
        ran = process()
        assert 2 == ran.returncode
        assert "Usage: afterlog" in ran.stdout + ran.stderr

    def test_a_pipe_that_closes(self, data: Path) -> None:
        run("send", data, "mail", stdin="a line\n" * 100_000)
        log = data / "mail-0" / ("0" * 20 + ".log")
        command = f"{sys.executable} -c 'from afterlog.cli.main import main; main()' dump --records {log} | head -1"
        ran = subprocess.run(
            ["bash", "-c", command + '; exit "${PIPESTATUS[0]}"'], cwd=ROOT, capture_output=True, text=True
        )
        assert (0, "") == (ran.returncode, ran.stderr)
        assert 1 == ran.stdout.count("\n")

    def test_what_a_closed_pipe_did_not_take_comes_again(self, data: Path) -> None:
        run("send", data, "mail", stdin="a line\n" * 100_000)
        command = (
            f"{sys.executable} -c 'from afterlog.cli.main import main; main()' receive {data} mail --group g | head -1"
        )
        ran = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
        assert ("a line\n", "") == (ran.stdout, ran.stderr)
        left = run("receive", data, "mail", "--group", "g").stdout.count("\n")
        assert 50_000 < left < 100_000

    @pytest.mark.parametrize(
        ("who", "reader"), [("group", "head -n 2"), ("subscription", "(read a; echo $a; read b; echo $b)")]
    )
    def test_of_what_a_pipe_holds_nothing_is_done_with(self, data: Path, who: str, reader: str) -> None:
        """All 500 fit into a pipe of 64 KiB; the first is larger than a page."""
        lines = ["x" * 70_000, *(f"line {number}" for number in range(499))]
        run("send", data, "mail", stdin="\n".join(lines) + "\n")
        command = f"{sys.executable} -c 'from afterlog.cli.main import main; main()' receive {data} mail --{who} w"
        seen: list[str] = []
        for _ in range(2):
            ran = subprocess.run(["bash", "-c", f"{command} | {reader}"], cwd=ROOT, capture_output=True, text=True)
            assert "" == ran.stderr
            seen += ran.stdout.splitlines()
        assert 4 == len(seen)
        if who == "group":
            assert lines[:4] == seen
            ran = subprocess.run(
                ["bash", "-c", f"{command} --no-commit | {reader}"], cwd=ROOT, capture_output=True, text=True
            )
            assert lines[4:6] == ran.stdout.splitlines()
        ran = subprocess.run(["bash", "-c", f"{command} | cat"], cwd=ROOT, capture_output=True, text=True)
        seen += ran.stdout.splitlines()
        assert lines == seen if who == "group" else sorted(lines) == sorted(seen)

    @pytest.mark.parametrize("who", ["group", "subscription"])
    def test_sigterm_ends_what_follows(self, data: Path, who: str) -> None:
        """What was printed is done with; the exit code is that of one who has ended."""
        run("send", data, "mail", stdin="first\nsecond\n")
        command = [sys.executable, "-c", "from afterlog.cli.main import main; main()", "receive", str(data), "mail"]
        with subprocess.Popen(
            [*command, f"--{who}", "w", "--follow"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as follower:
            assert follower.stdout is not None
            assert [b"first\n", b"second\n"] == [follower.stdout.readline(), follower.stdout.readline()]
            follower.send_signal(signal.SIGTERM)
            try:
                rest, errors = follower.communicate(timeout=30)
            finally:
                follower.kill()
        assert (0, b"", b"") == (follower.returncode, rest, errors.strip())
        run("send", data, "mail", "third")
        assert "third\n" == run("receive", data, "mail", f"--{who}", "w").stdout

    def test_interrupt(self, data: Path) -> None:
        run("send", data, "mail", "first")
        # Where the tests run in the background, their shell had SIGINT ignored, and children inherit that.
        heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
        command = [sys.executable, "-c", heed + "; from afterlog.cli.main import main; main()", "receive", data, "mail"]
        with subprocess.Popen(
            [*map(str, command), "--group", "g", "--follow"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as follower:
            assert follower.stdout is not None
            assert b"first\n" == follower.stdout.readline()
            follower.send_signal(signal.SIGINT)
            try:
                _, errors = follower.communicate(timeout=30)
            finally:
                follower.kill()
        assert 130 == follower.returncode
        assert b"" == errors.strip()


class TestInput:
    @pytest.mark.parametrize(
        ("text", "ms"),
        [("250ms", 250), ("30s", 30_000), ("5m", 300_000), ("2h", 2 * HOUR_MS), ("1d", 24 * HOUR_MS),
         ("1w", 168 * HOUR_MS), ("2w1d", 360 * HOUR_MS),
         ("1h30m", 5_400_000), ("0.5s", 500), ("0.0001s", 1), ("0s", 0)],
    )  # fmt: skip
    def test_durations(self, text: str, ms: int) -> None:
        assert ms == duration_ms(text)

    @pytest.mark.parametrize("text", ["", "5", "s", "-1s", "1 s", "1.s", "1e3s", "5mins", "٣s", "9" * 18 + "d"])
    def test_no_durations(self, text: str) -> None:
        with pytest.raises(InvalidDeliverAfter):
            duration_ms(text)

    def test_instants(self) -> None:
        assert 1_700_000_000_000 == instant("1700000000000")
        assert datetime(2030, 1, 31, 8, tzinfo=UTC) == instant("2030-01-31T08:00:00Z")
        for text in ("2030-01-31", "tomorrow", "-1", "", "1" * 30):
            with pytest.raises(InvalidDeliverAfter):
                instant(text)

    def test_lines_in_pieces(self) -> None:
        class Pieces:
            def __init__(self, *pieces: bytes) -> None:
                self.pieces = [*pieces]

            def read(self, size: int) -> bytes:
                return self.pieces.pop(0) if self.pieces else b""

        stream: Any = Pieces(b"a\nb", b"c", b"\n\nd")
        assert [[b"a"], [b"bc", b""], [b"d"]] == list(chunks_of_lines(stream, 10))
        endless: Any = Pieces(*[b"x" * 8] * 3)
        with pytest.raises(RecordTooLarge):
            list(chunks_of_lines(endless, 10))

    @pytest.mark.parametrize(
        "line",
        ["", "[]", "1", "{}", '{"value": 1}', '{"value": {"base64": "?"}}', '{"value": "x", "delay": 5}', "[" * 100_000,
         '{"value": "x", "delay": "1s", "deliver_after": 5}', '{"value": "x", "deliver_after": true}',
         '{"value": "x", "headers": [1]}', '{"value": "x", "key": []}', '{"value": "x", "unknown": 1}', "\xff"],
    )  # fmt: skip
    def test_bad_json_lines(self, line: str) -> None:
        if not line:
            assert [] == json_records([b"  "], 1, 0, InputRecord(value=None))
            return
        with pytest.raises(InvalidRecord, match="line 7: "):
            json_records([line.encode("latin-1")], 7, 0, InputRecord(value=None))


class TestOutput:
    def test_spans(self) -> None:
        assert ["0ms", "7ms", "1s", "1m 1s", "2h 5m", "3d"] == [
            span(ms) for ms in (0, 7, 1_500, 61_000, 2 * HOUR_MS + 300_000, 72 * HOUR_MS)
        ]
        assert ("in 1s", "1s ago") == (relative(2_000, 1_000), relative(0, 1_000))

    def test_instants_and_amounts(self) -> None:
        assert "2023-11-14T22:13:20.001Z" == iso(1_700_000_000_001)
        assert f"{2**62} ms" == iso(2**62)
        assert ["0 B", "1023 B", "1.0 KiB", "2.0 GiB"] == [amount(size) for size in (0, 1023, 1024, 2 << 30)]

    @pytest.mark.parametrize("buckets", [1, 2, 7, 12])
    @pytest.mark.parametrize("length_ms", [0, 1, 999, 60_000, 86_400_000 * 365, 2**62])
    def test_histogram_edges(self, buckets: int, length_ms: int) -> None:
        first_ms = 1_700_000_000_123
        edges = histogram_edges(first_ms, first_ms + length_ms, buckets)
        assert edges[0] <= first_ms <= first_ms + length_ms < edges[-1]
        assert 2 <= len(edges) <= buckets + 1
        assert 1 == len({behind - edge for edge, behind in itertools.pairwise(edges)})

    @pytest.mark.parametrize("draw", [
        lambda: output.table(("NAME", "COUNT"), [("a", 1_000), ("[b]", None)]),
        lambda: output.bars([("a", 10), ("b", 0), ("c", 5)]),
    ])  # fmt: skip
    def test_rich_shows_the_same_text(
        self, draw: Callable[[], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        from rich.console import Console

        draw()
        plain = capsys.readouterr().out.replace("#", "").split()
        monkeypatch.setattr(output, "_console", lambda stream: Console(file=stream, width=100))
        draw()
        drawn = capsys.readouterr().out
        assert plain == "".join(char for char in drawn if not "▀" <= char <= "▟").split()

    def test_progress(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from rich.console import Console

        with output.progress("sending", None) as advance:
            advance(1)
        monkeypatch.setattr(output, "_console", lambda stream: Console(file=stream, force_terminal=True))
        with output.progress("verifying", 10) as advance:
            advance(10)


class TestConfig:
    def test_it_is_shown_and_changed(self, tmp_path: Path) -> None:
        data = tmp_path / "data"
        with afterlog.open(data, config=afterlog.Config(segment_bytes=4 << 20)):
            assert "the store is open" in run("config", data, "--set", "linger_ms=1", code=4).stderr
        assert "segment_bytes=4194304 (by default 1073741824)\n" == run("config", data).stdout
        changed = run("config", data, "--set", "segment_bytes=8388608", "--set", "compression=zstd", "--json")
        assert {"segment_bytes": 8388608, "compression": "zstd"} == json.loads(changed.stdout)
        with afterlog.open(data) as store:
            assert afterlog.Config(segment_bytes=8388608, compression="zstd") == store.config
        assert "all as by default" in run("config", data, "--reset").stderr

    @pytest.mark.parametrize("given", ["segment_bytes", "segment_bytes=1", "durability=os", "none=1"])
    def test_what_cannot_be(self, tmp_path: Path, given: str) -> None:
        data = tmp_path / "data"
        afterlog.open(data).close()
        assert run("config", data, "--set", given, code=2).stderr
        assert "all as by default" in run("config", data).stderr

    def test_one_that_rots_is_found_and_reset(self, tmp_path: Path) -> None:
        data = tmp_path / "data"
        afterlog.open(data, config=afterlog.Config(linger_ms=1)).close()
        (data / "config").write_bytes(b"afterlog-config 1 00000000\n{}\n")
        assert "afterlog config --reset" in run("verify", data, code=FINDINGS).stdout
        assert "afterlog config --reset" in run("topics", data, code=CORRUPT).stderr
        run("config", data, "--reset", "--set", "linger_ms=2")
        run("verify", data)
        assert "linger_ms=2 (by default 5)\n" == run("config", data).stdout

    def test_where_there_is_no_store(self, tmp_path: Path) -> None:
        run("config", tmp_path / "none", code=3)
