"""The command line: topics and readers as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

import afterlog
from tests.cli.test_main import rows, run


@pytest.fixture
def data(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    for value, options in (("a", ()), ("b", ()), ("later", ("--delay", "1h"))):
        run("send", data, "mail", value, *options, "--create")
    run("receive", data, "mail", "--group", "g", "--max", "1")
    run("receive", data, "mail", "--subscription", "s", "--max", "1")
    return data


def topics(data: Path) -> list[str]:
    return [row["topic"] for row in rows(run("topics", data, "--json"))]


def test_delete_topic_says_what_is_pending_and_asks(data: Path) -> None:
    refused = run("delete-topic", data, "mail", code=130)
    assert "1 pending records, 2 due ones and 2 readers" in refused.stderr
    assert ["mail"] == topics(data)
    assert "mail deleted\n" == run("delete-topic", data, "mail", "--yes").stdout
    assert [] == topics(data)
    run("delete-topic", data, "mail", "--yes", code=3)


def test_readers_are_deleted_and_reset(data: Path) -> None:
    run("reset", data, "mail", "--group", "g", "--to", "earliest")
    assert "a\nb\n" == run("receive", data, "mail", "--group", "g").stdout
    run("reset", data, "mail", "--subscription", "s", "--to", "earliest")
    assert "a\nb\n" == run("receive", data, "mail", "--subscription", "s").stdout
    run("reset", data, "mail", "--to", "earliest", code=2)
    run("reset", data, "mail", "--group", "none", "--to", "earliest", code=3)
    run("delete-group", data, "mail", "g", "--yes")
    run("delete-subscription", data, "mail", "s", "-y")
    run("delete-subscription", data, "mail", "s", "-y", code=3)
    assert "a\nb\n" == run("receive", data, "mail", "--subscription", "s").stdout


def test_what_is_paused_hands_out_nothing(data: Path) -> None:
    assert "a\n" == run("receive", data, "mail", "--subscription", "p", "--max", "1").stdout
    assert "p of mail is paused\n" == run("pause", data, "mail", "--subscription", "p").stdout
    assert "" == run("receive", data, "mail", "--subscription", "p").stdout
    shown = run("stats", data).stdout
    assert "PAUSED" in shown
    assert "paused" in shown
    assert "mail is paused\n" == run("pause", data, "mail").stdout
    assert "" == run("receive", data, "mail", "--group", "paused").stdout
    assert "p of mail goes on\n" == run("resume", data, "mail", "--subscription", "p").stdout
    assert "" == run("receive", data, "mail", "--subscription", "p").stdout
    assert "mail goes on\n" == run("resume", data, "mail").stdout
    assert "b\n" == run("receive", data, "mail", "--subscription", "p").stdout
    assert "PAUSED" not in run("stats", data).stdout
    run("pause", data, "mail", "--subscription", "nobody", code=3)


def test_purge(data: Path) -> None:
    assert "up to 2 due records; 1 pending ones stay" in run("purge", data, "mail", code=130).stderr
    assert "2 records purged from mail\n" == run("purge", data, "mail", "--yes").stdout
    assert "" == run("receive", data, "mail", "--group", "new").stdout
    assert "1 records purged from mail\n" == run("purge", data, "mail", "--pending", "--yes").stdout
    assert [] == rows(run("pending", data, "mail", "--json"))


def test_clean(data: Path) -> None:
    with afterlog.open(data) as store:
        store.alter_topic("mail", segment_ms=1)
    run("purge", data, "mail", "--yes")
    freed = run("clean", data, "mail").stdout
    assert freed.endswith(" bytes freed in mail\n")
    assert not freed.startswith("0 ")
    assert "0 bytes freed in mail\n" == run("clean", data, "mail").stdout
    assert 1 == len(rows(run("pending", data, "mail", "--json")))


def test_alter(data: Path) -> None:
    run("alter", data, "mail", "--max-delay", "2h", "--retention", "7d", "--partitions", "3")
    [row] = rows(run("topics", data, "--json"))
    assert (7_200_000, 604_800_000, 3) == (row["max_delay_ms"], row["retention_ms"], row["partitions"])
    run("alter", data, "mail", "--max-delay", "none", "--by-subscriptions", "--any-instant")
    [row] = rows(run("topics", data, "--json"))
    assert (None, True, False) == (row["max_delay_ms"], row["retention_by_subscriptions"], row["check_instants"])
    run("alter", data, "mail", "--interceptor", "AppendBrokerTimestamp", "--interceptor", "AppendIndex")
    with afterlog.open(data) as store:
        assert ("AppendBrokerTimestamp", "AppendIndex") == store.topic("mail").settings.interceptors
    run("alter", data, "mail", "--interceptor", "none")
    with afterlog.open(data) as store:
        assert () == store.topic("mail").settings.interceptors
    run("alter", data, "mail", code=2)
    run("alter", data, "mail", "--partitions", "1", code=2)
    run("alter", data, "mail", "--remote-storage", code=2)
