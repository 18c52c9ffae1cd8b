"""The command line as a work queue: what is scheduled, subscriptions, dead letters."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import afterlog
from afterlog.base.errors import InvalidRecord
from afterlog.cli.output import CELL_WIDTH, clipped
from afterlog.fetch.record_id import RecordId
from tests.cli.test_main import process, rows, run


@pytest.fixture
def data(tmp_path: Path) -> Path:
    run("create", tmp_path / "data", "mail")
    return tmp_path / "data"


@pytest.fixture
def dead(data: Path) -> Path:
    """A record that died, and one that somebody put among the dead letters."""
    run("send", data, "mail", "poison\n", "--key", "k")
    with afterlog.open(data) as store:
        once = afterlog.RetryPolicy(attempts=1)
        with store.subscribe("mail", "sender", retry=once, dead_letter="mail.dead") as subscription:
            subscription.nack(subscription.receive(), reason="it is bad")
        store.send("mail.dead", b"mine")
    return data


class TestSchedule:
    def test_pending(self, data: Path) -> None:
        run("send", data, "mail", "second", "--delay", "2h", "--key", "k")
        run("send", data, "mail", "first", "--delay", "1h")
        run("send", data, "mail", "due")
        heading, first, second = run("pending", data, "mail").stdout.splitlines()
        assert ["RECORD", "DUE", "KEY", "VALUE"] == heading.split()
        assert ("mail-0@1", "-", "first") == (first.split()[0], *first.split()[-2:])
        assert "in 59m" in first
        assert ("mail-0@0", "k", "second") == (second.split()[0], *second.split()[-2:])
        assert [first] == run("pending", data, "mail", "--limit", 1).stdout.splitlines()[1:]
        [row] = rows(run("pending", data, "mail", "--key", "k", "--json"))
        assert ("mail", 0, 0, "k", "second") == tuple(
            row[name] for name in ("topic", "partition", "offset", "key", "value")
        )
        assert [] == rows(run("pending", data, "mail", "--key", "none", "--json"))

    def test_cancel(self, data: Path) -> None:
        run("send", data, "mail", stdin="a\nb\n")
        run("send", data, "mail", "--delay", "1h", stdin="c\nd\n")
        assert "mail-0@2 cancelled\n" == run("cancel", data, "mail-0@2").stdout
        assert "mail-0@2 already cancelled\nmail-0@3 cancelled\n" == run("cancel", data, "mail-0@2", "mail-0@3").stdout
        assert "mail-0@0 already delivered\n" == run("cancel", data, "mail-0@0", code=1).stdout
        assert [{"topic": "mail", "partition": 0, "offset": 99, "answer": "unknown"}] == rows(
            run("cancel", data, "mail-0@99", "--json", code=1)
        )
        assert "" == "\n".join(run("pending", data, "mail").stdout.splitlines()[1:])
        assert "mail-0@2 already cancelled\n" == run("cancel", "mail-0@2", env={"AFTERLOG_DATA": str(data)}).stdout

    def test_unique_keys(self, data: Path) -> None:
        assert "mail-0@0\n" == run("send", data, "mail", "a", "--delay", "1h", "--unique-key", "k").stdout
        assert "mail-0@0 is pending" in run("send", data, "mail", "b", "--unique-key", "k", code=2).stderr
        again = ("send", data, "mail", "b", "--delay", "1h", "--unique-key", "k", "--on-conflict")
        assert "mail-0@0\n" == run(*again, "keep").stdout
        assert "mail-0@2\n" == run(*again, "replace").stdout
        assert ["b"] == [row["value"] for row in rows(run("pending", data, "mail", "--json"))]

    def test_unique_keys_of_lines(self, data: Path) -> None:
        def lines(*pairs: tuple[str, Any]) -> str:
            return "".join(
                json.dumps({"value": value, "unique_key": key, "delay": "1h"}) + "\n" for value, key in pairs
            )

        def pending() -> list[str]:
            return [row["value"] for row in rows(run("pending", data, "mail", "--json"))]

        send = ("send", data, "mail", "--json-input")
        run(*send, stdin=lines(("a", "k"), ("b", None), ("c", {"base64": "AAE="})))
        assert ["a", "b", "c"] == pending()
        failed = run(*send, stdin=lines(("d", None), ("e", "k"), ("f", None)), code=2).stderr
        assert "mail-0@0 is pending" in failed
        assert "1 records before it were sent" in failed
        run(*send, "--on-conflict", "keep", stdin=lines(("g", "k"), ("h", "l")))
        assert ["a", "b", "c", "d", "h"] == pending()
        run(*send, "--on-conflict", "replace", stdin=lines(("i", {"base64": "AAE="})))
        assert ["a", "b", "d", "h", "i"] == pending()

    def test_reschedule(self, data: Path) -> None:
        run("send", data, "mail", "a", "--delay", "1h")
        assert "mail-0@2\n" == run("reschedule", data, "mail-0@0", "--delay", "2h").stdout
        [row] = rows(run("reschedule", data, "mail-0@2", "--at", "2002-01-01T00:00:00Z", "--json"))
        assert "a\n" == run("receive", data, "mail", "--group", "g").stdout
        told = run("reschedule", data, f"mail-0@{row['offset']}", "--delay", "1h", code=1).stderr
        assert told.startswith("afterlog: ")
        assert 1 == told.count("\n")

    @pytest.mark.parametrize(
        ("code", "args", "message"),
        [
            (2, ["send", "{data}", "mail", "--unique-key", "k"], "give VALUE"),
            (2, ["send", "{data}", "mail", "v", "--on-conflict", "keep"], "goes with --unique-key"),
            (2, ["cancel", "{data}"], "give RECORDS"),
            (2, ["cancel", "{data}", "mail-0"], "names no record"),
            (2, ["reschedule", "{data}", "mail-0@0"], "--delay or --at"),
            (2, ["reschedule", "{data}", "mail-0@0", "--delay", "1s", "--at", "5"], "--delay or --at"),
            (3, ["cancel", "{data}", "post-0@0"], "no topic"),
            (3, ["cancel", "{data}", "mail-1@0"], "has the partitions"),
            (3, ["pending", "{data}", "post"], "no topic"),
            (3, ["pending", "{data}", "mail", "--partition", "1"], "has the partitions"),
            (3, ["pending", "{data}/nowhere", "mail"], "no store"),
            (3, ["dead-letters", "list", "{data}", "post"], "no topic"),
            (3, ["dead-letters", "redrive", "{data}", "post"], "no topic"),
            (2, ["receive", "{data}", "mail"], "--group or --subscription"),
            (2, ["receive", "{data}", "mail", "--group", "g", "--subscription", "s"], "--group or --subscription"),
            (2, ["receive", "{data}", "mail", "--group", "g", "--no-ack"], "goes with --subscription"),
            (2, ["receive", "{data}", "mail", "--subscription", "s", "--no-commit"], "goes with --group"),
            (2, ["receive", "{data}", "mail", "--subscription", "s", "--lease", "0s"], "lease_ms must be"),
        ],
    )
    def test_one_line_and_a_code(self, data: Path, code: int, args: list[str], message: str) -> None:
        result = run(*(arg.format(data=data) for arg in args), code=code)
        assert message in result.stderr
        assert 1 == result.stderr.count("\n")

    def test_names_of_records(self) -> None:
        for record in (RecordId("mail", 0, 1042), RecordId("a-1.b", 12, 0), RecordId("x", 0, 2**63 - 1)):
            assert record == RecordId.parse(str(record))
        for text in (
            "",
            "mail",
            "mail@1",
            "mail-0",
            "mail-0@",
            "mail-0@-1",
            "mail-0@x",
            "mail-01@1",
            "mail-0@٣",
            f"m-0@{2**63}",
        ):
            with pytest.raises(InvalidRecord, match="names no record"):
                RecordId.parse(text)

    def test_what_fits_into_a_cell(self) -> None:
        assert ["text", "a\\nb", "\\xff", "é…", None] == [
            clipped(data) for data in (b"text", b"a\nb", b"\xff", "é".encode() + b"\x00" * 0 + "…".encode(), None)
        ]
        for data in (b"x" * 10_000, b"\xff" * 50, "é".encode() * 10_000):
            assert CELL_WIDTH == len(clipped(data) or "")
            assert (clipped(data) or "").endswith("…")


class TestSubscription:
    def test_what_is_printed_is_acked(self, data: Path) -> None:
        run("send", data, "mail", stdin="a\nb\nc\n")
        receive = ("receive", data, "mail", "--subscription", "sender")
        assert "a\n" == run(*receive, "--max", 1).stdout
        assert ["b", "c"] == run(*receive, "--no-ack").stdout.split()
        [b, c] = rows(run(*receive, "--json"))
        assert (("b", 0), ("c", 0)) == ((b["value"], b["redelivery_count"]), (c["value"], c["redelivery_count"]))
        assert "" == run(*receive).stdout
        assert "a\nb\nc\n" == run(*receive, "--from", "earliest").stdout
        assert "a\nb\n" == run(*receive[:-1], "other", "--follow", "--max", 2).stdout
        assert "is a subscription to mail" in run("receive", data, "mail", "--group", "sender", code=2).stderr

    def test_what_could_not_be_printed_comes_again(self, data: Path) -> None:
        run("send", data, "mail", stdin="a line\n" * 2_000)
        receive = ["receive", data, "mail", "--subscription", "s"]
        with Path("/dev/full").open("wb") as full:
            assert 6 == process(*receive, stdout=full).returncode
        assert 2_000 == run(*receive).stdout.count("\n")

    def test_stats(self, dead: Path) -> None:
        run("send", dead, "mail", stdin="a\nb\nc\n")
        run("send", dead, "mail", "later", "--delay", "1h")
        run("receive", dead, "mail", "--subscription", "sender", "--max", 1)
        with afterlog.open(dead) as store, store.subscribe("mail", "sender") as subscription:
            subscription.nack(subscription.receive(1), delay=timedelta(hours=1))
            expected = subscription.stats()
        text = run("stats", dead, "mail").stdout.splitlines()
        [place] = [number for number, line in enumerate(text) if line.startswith("SUBSCRIPTION")]
        assert ["SUBSCRIPTION", "PENDING", "DUE", "LEASED", "RETRYING", "ACKED", "DEAD"] == text[place].split()
        assert ["mail/sender", "1", "1", "0", "1", "1", "1"] == text[place + 1].split()
        [row] = [row for row in rows(run("stats", dead, "--json")) if row.get("subscription") == "sender"]
        names = ("pending", "due", "leased", "retrying", "acked", "dead", "nacked", "redelivered")
        assert [getattr(expected, name) for name in names] == [row[name] for name in names]
        assert ("mail", 0) == (row["topic"], row["partition"])


def test_leased(data: Path) -> None:
    run("create", data, "post")
    with afterlog.open(data) as store:
        store.send("post", b"first", key=b"k")
        with store.subscribe("post", "s", durable_leases=True) as subscription:
            [message] = subscription.receive()
    [row] = rows(run("leased", data, "post", "s", "--json"))
    assert ("first", "k", message.deadline_ms) == (row["value"], row["key"], row["deadline_ms"])
    heading, first = run("leased", data, "post", "s").stdout.splitlines()
    assert ["RECORD", "LEASED", "UNTIL", "DELIVERY", "KEY", "VALUE"] == heading.split()
    assert ["post-0@0", "1", "k", "first"] == [first.split()[0], *first.split()[-3:]]
    run("leased", data, "post", "nobody", code=3)


class TestDeadLetters:
    def test_list(self, dead: Path) -> None:
        for _ in range(2):
            [died] = rows(run("dead-letters", "list", dead, "mail.dead", "--json"))
            assert ("poison\n", "k") == (died["value"], died["key"])
            assert {
                "record": "mail-0@0", "subscription": "sender", "reason": "it is bad", "redelivery_count": 1,
            } == died["origin"]  # fmt: skip
        heading, first = run("dead-letters", "list", dead, "mail.dead").stdout.splitlines()
        assert ["RECORD", "FROM", "SUBSCRIPTION", "FAILED", "REASON", "VALUE"] == heading.split()
        assert "mail.dead-0@0 mail-0@0 sender 1 it is bad poison\\n" == " ".join(first.split())
        assert 1 == len(rows(run("dead-letters", "list", dead, "mail.dead", "--limit", 1, "--json")))

    def test_redrive(self, dead: Path) -> None:
        env = {"AFTERLOG_DATA": str(dead)}
        assert "1 records sent back from mail.dead\n" == run("dead-letters", "redrive", "mail.dead", env=env).stdout
        assert [{"topic": "mail.dead", "records": 0, "left": {}}] == rows(
            run("dead-letters", "redrive", dead, "mail.dead", "--json")
        )
        assert [] == rows(run("dead-letters", "list", "mail.dead", "--json", env=env))
        assert "poison\n\n" == run("receive", dead, "mail", "--subscription", "sender").stdout

    def test_redrive_says_why_some_stay(self, dead: Path) -> None:
        with afterlog.open(dead) as store:
            store.delete_topic("mail", force=True)
        run("create", dead, "other")
        said = process("dead-letters", "redrive", dead, "mail.dead")
        assert (1, "0 records sent back from mail.dead\n") == (said.returncode, said.stdout)
        assert "1 stay in mail.dead: there is no topic 'mail' any more\n" in said.stderr
        assert "--target" in said.stderr
        done = run("dead-letters", "redrive", dead, "mail.dead", "--target", "other")
        assert "1 records sent to other from mail.dead\n" == done.stdout

    def test_some_by_filter(self, data: Path) -> None:
        """Listed, counted by reason, sent back one by one with another value, at a rate, and let go."""
        run("create", data, "post")
        with afterlog.open(data) as store:
            store.send_many("post", [b"0", b"1", b"2", b"3"])
            with store.subscribe("post", "s", dead_letter="lost") as subscription:
                for message in subscription.receive():
                    subscription.reject(message, reason=f"bad {int(message.value) % 2}")
        letters = "dead-letters"
        assert [2, 2] == [each["records"] for each in rows(run(letters, "list", data, "lost", "--by-reason", "--json"))]
        assert "bad 1" in run(letters, "list", data, "lost", "--by-reason").stdout
        odd = rows(run(letters, "list", data, "lost", "--reason", "bad 1", "--json"))
        assert ["1", "3"] == [each["value"] for each in odd]
        named = odd[0]["id"] if "id" in odd[0] else f"lost-0@{odd[0]['offset']}"
        run(letters, "redrive", data, "lost", "--value", "x", code=2)
        assert "1 records" in run(letters, "redrive", data, "lost", "--record", named, "--value", "edited").stdout
        assert "edited\n" == run("receive", data, "post", "--subscription", "s").stdout
        run(letters, "discard", data, "lost", "--reason", "bad 0", code=130)
        assert "2 dead letters of lost let go" in run(letters, "discard", data, "lost", "--reason=bad 0", "-y").stdout
        assert ["3"] == [each["value"] for each in rows(run(letters, "list", data, "lost", "--json"))]
        assert "1 records" in run(letters, "redrive", data, "lost", "--rate", "100", "--subscription", "s").stdout
        assert [{"topic": "lost", "records": 0}] == rows(run(letters, "discard", data, "lost", "-y", "--json"))

    def test_help(self) -> None:
        assert "redrive" in run("dead-letters", "--help").stdout
        assert "Usage: afterlog dead-letters list" in run("dead-letters", "list", "--help").stdout


def test_json_is_json(dead: Path) -> None:
    for line in run("stats", dead, "--json").stdout.splitlines():
        assert isinstance(json.loads(line), dict)


def test_journals_are_dumped_and_verified(data: Path) -> None:
    run("send", data, "mail", "a")
    run("receive", data, "mail", "--subscription", "sender")
    [journal] = (data / "mail-0" / "subscriptions" / "sender").iterdir()
    kinds = [row["kind"] for row in rows(run("dump", journal, "--json"))]
    assert ["SNAPSHOT", "LEASED", "ACKED", "CLOSED"] == kinds
    assert "kind ACKED" in run("dump", journal).stdout
    run("verify", data)
    journal.write_bytes(b"rot" + journal.read_bytes())
    assert str(journal) in run("verify", data, code=1).stdout
    assert "begins anew" in run("repair", data, "--apply").stdout
    assert "a\n" == run("receive", data, "mail", "--subscription", "sender").stdout


def test_of_a_healthy_store_verify_says_nothing(data: Path) -> None:
    run("send", data, "mail", stdin="a\nb\n")
    run("receive", data, "mail", "--subscription", "s", "--max", 1)
    run("receive", data, "mail", "--group", "g", "--max", 1)
    said = process("verify", data)
    assert (0, "", "no findings\n") == (said.returncode, said.stdout, said.stderr)
