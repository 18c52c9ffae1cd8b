"""Commands on a store that another process has open: they go through its socket; what cannot, says so."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import afterlog
from afterlog.cli.base import NOT_NOW
from afterlog.cli.main import cli


def run(*arguments: str, text: str = "", code: int = 0, **environment: str) -> str:
    """What is printed. As `afterlog` does it: errors are a line, and an exit code."""
    ran = CliRunner(env=environment).invoke(cli, [*arguments], input=text)
    assert code == ran.exit_code, ran.output
    return ran.output


def rows(printed: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in printed.splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[str]:
    """Of a store that is open, and served."""
    with afterlog.open(tmp_path / "store", serve=True) as store:
        store.create_topic("mail", partitions=2)
        store.send("mail", b"later", delay=3_600, partition=0, key=b"k")
        store.send("mail", b"now", partition=1)
        yield str(tmp_path / "store")


class TestLive:
    def test_send_and_receive(self, folder: str) -> None:
        assert "mail-" in run("send", folder, "mail", "one")
        assert "2 records" in run("send", folder, "mail", text="two\nthree\n")
        assert {"now", "one", "two", "three"} == set(run("receive", folder, "mail", "--group", "g").split())
        assert "" == run("receive", folder, "mail", "--group", "g"), "committed"
        assert {"now", "one", "two", "three"} == set(run("receive", folder, "mail", "--subscription", "s").split())
        assert "" == run("receive", folder, "mail", "--subscription", "s"), "acked"

    def test_topics(self, folder: str) -> None:
        run("create", folder, "calls")
        assert {"calls", "mail"} == {row["topic"] for row in rows(run("topics", folder, "--json"))}
        run("alter", folder, "calls", "--retention", "1d")
        assert "calls" in run("topics", folder)
        assert "calls deleted" in run("delete-topic", folder, "calls", "--yes")
        assert {"mail"} == {row["topic"] for row in rows(run("topics", folder, "--json"))}

    def test_stats_are_those_of_a_store_that_is_free(self, folder: str, tmp_path: Path) -> None:
        with afterlog.connect(folder) as store:
            store.subscribe("mail", "s").close()
        live = run("stats", folder), rows(run("stats", folder, "--json"))
        pending = [row for row in live[1] if "pending" in row and "subscription" not in row]
        assert [1, 0] == [row["pending"] for row in pending]
        assert [1] == [row["records"] for row in live[1] if "records" in row]
        assert re.search(r"mail-0 +1 +0", live[0])

    def test_what_is_scheduled(self, folder: str) -> None:
        [row] = rows(run("pending", folder, "mail", "--json"))
        assert "later" == row["value"]
        moved = run("reschedule", folder, "mail-0@0", "--delay", "2h").strip()
        assert f"{moved} cancelled" in run("cancel", folder, moved)
        assert [] == rows(run("pending", folder, "mail", "--json"))

    def test_dead_letters(self, folder: str) -> None:
        with afterlog.connect(folder) as store:
            store.create_topic("dead")
            with store.subscribe("mail", "s", dead_letter="dead") as subscription:
                subscription.reject(subscription.receive(timeout=30), "broken")
        [letter] = rows(run("dead-letters", "list", folder, "dead", "--json"))
        assert "now" == letter["value"]
        assert "1 records sent back" in run("dead-letters", "redrive", folder, "dead")

    def test_purge_and_reset(self, folder: str) -> None:
        run("receive", folder, "mail", "--group", "g")
        run("reset", folder, "mail", "--group", "g", "--to", "earliest")
        assert "1 records purged" in run("purge", folder, "mail", "--yes")
        assert "g of mail deleted" in run("delete-group", folder, "mail", "g", "--yes")

    def test_metrics(self, folder: str) -> None:
        assert "afterlog_delayed_message_index_bucket_total" in run("metrics", folder)

    def test_a_backup_is_made_by_who_has_the_store_open(self, folder: str, tmp_path: Path) -> None:
        made = Path(run("backup", folder, str(tmp_path / "backups")).splitlines()[0])
        assert tmp_path / "backups" == made.parent.parent
        [again] = rows(run("backup", f"unix:{folder}/server.sock", str(tmp_path / "backups"), "--json"))
        assert 2 == again["number"]
        shutil.copytree(made, tmp_path / "restored")
        with afterlog.open(tmp_path / "restored") as restored:
            assert [b"later"] == [record.value for record in restored.pending("mail")]
        assert "a folder of its own" in run("backup", folder, f"{folder}/inside", code=2)

    def test_by_address(self, folder: str) -> None:
        address = f"unix:{folder}/server.sock"
        assert "later" in run("pending", address, "mail")
        assert "later" in run("pending", "mail", AFTERLOG_DATA=address)

    @pytest.mark.parametrize("command", [("export", "DATA", "mail", "/nowhere"), ("verify", "DATA")])
    def test_what_cannot_says_so(self, folder: str, command: tuple[str, ...]) -> None:
        arguments = [folder if word == "DATA" else word for word in command]
        assert "is open in process" in run(*arguments, code=NOT_NOW)


def test_a_store_that_is_open_and_not_served(tmp_path: Path) -> None:
    with afterlog.open(tmp_path) as store:
        store.create_topic("mail")
        assert "is open in process" in run("stats", str(tmp_path), code=NOT_NOW)


def test_nobody_at_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("afterlog.cli.base.SERVER_S", 0.05)
    assert "nobody answers" in run("stats", f"unix:{tmp_path}/none.sock", code=NOT_NOW)


def test_what_a_server_does_not_do(tmp_path: Path) -> None:
    run("backup", "unix:/x", str(tmp_path), code=NOT_NOW)
    told = run("export", "unix:/x", "mail", str(tmp_path), code=NOT_NOW)
    assert "`afterlog export` is not done by a server" in told
