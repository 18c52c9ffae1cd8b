"""`afterlog export`: a folder for each partition, what is said of it, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import afterlog
from tests.cli.test_main import rows, run


def test_both_orders(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with afterlog.open(data) as store:
        store.create_topic("mail", partitions=2)
        store.cancel(store.send("mail", b"cancelled", delay=3_600, partition=0))
        for value in (b"a", b"b"):
            store.send("mail", value, partition=0)
        store.send("mail", b"c", delay=3_600, partition=1)
    [zero, one] = rows(run("export", data, "mail", tmp_path / "appended", "--json"))
    assert [(0, 2, 4), (1, 1, 1)] == [(row["partition"], row["records"], row["end_offset"]) for row in (zero, one)]
    [zero, one] = rows(run("export", data, "mail", tmp_path / "due", "--order", "delivery", "--due-only", "--json"))
    assert [(2, 2), (0, 0)] == [(row["records"], row["end_offset"]) for row in (zero, one)]
    told = run("export", data, "mail", tmp_path / "all", "--order", "delivery").stdout.splitlines()
    assert f"mail-1: 1 records in 1 segments, {tmp_path / 'all' / 'mail-1'}" == told[1]
    log = tmp_path / "all" / "mail-1" / "00000000000000000000.log"
    assert "ok" == rows(run("dump", log, "--json"))[0]["crc"]
    run("export", data, "mail", tmp_path / "timed", "--times")
    timed = (tmp_path / "timed" / "mail-1" / log.name).read_bytes()
    assert (False, True) == (b"deliver-after" in log.read_bytes(), b"deliver-after" in timed)
    assert (
        run("receive", data, "mail", "--group", "g", "--timeout", 0).stdout == "a\nb\n"
    )  # nothing was delivered by it


def test_what_cannot_be(tmp_path: Path) -> None:
    data = tmp_path / "data"
    run("create", data, "mail")
    assert "--order delivery" in run("export", data, "mail", tmp_path / "out", "--due-only", code=2).stderr
    run("export", data, "none", tmp_path / "out", code=3)
    run("export", tmp_path / "none", "mail", tmp_path / "out", code=3)
    run("export", data, "mail", tmp_path / "out")
    again = run("export", data, "mail", tmp_path / "out", code=6).stderr
    assert "mail-0" in again
