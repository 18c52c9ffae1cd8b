"""The page of the benchmarks is what the results say, and the tables say what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench import report
from bench.bars import Bar, bars
from bench.rivals import page
from bench.rivals.registry import OURS

MADE = "<!-- made by `make bench`: {} -->\n"


def _row(rival: str, phase: str, cpu_s: float = 1.0, table: str = "embedded", **more: Any) -> dict[str, Any]:
    row = {
        "table": table, "workload": page.AIMS_WORKLOAD, "records": 1_000, "size": 100, "spread": "uniform",
        "batch": 1_000, "fsync": True, "rival": rival, "phase": phase, "rounds": 2, "cpu_s": cpu_s, "wall_s": 2.0,
        "disk_bytes": 210_000, "private_bytes": 5_000_000, "file_bytes": 0,
    }  # fmt: skip
    return row | more


@pytest.fixture
def found() -> page.Found:
    rows = [_row(name, phase, cpu_s) for name, cpu_s in ((OURS, 0.5), ("RocksDB", 2.0)) for phase in ("fill", "drain")]
    rows += [_row(name, "reopen", wall_s=0.03) for name in (OURS, "RocksDB")]
    rows += [_row(OURS, "fill", 0.2, "served"), _row("Redis", "fill", 5.0, "served")]
    for count, private, wall_s in ((1_000, 5_000, 0.020), (2_000, 5_500, 0.021)):
        rows.append(_row(OURS, "fill", table="growth", records=count, disk_bytes=count * 205 + 7_000))
        rows.append(_row(OURS, "reopen", table="growth", records=count, private_bytes=private, wall_s=wall_s))
    rows.append(_row(OURS, "lateness", table="lateness", rate=1_000, p50_ms=1.25, p99_ms=9.0, early=0))
    limits = dict.fromkeys(
        (f"{part}_{kind}_us" for part in ("copy", "crc", "write", "write_fsync", "gather") for kind in ("cpu", "wall")),
        1.0,
    )
    load = {"embedded": {"least": 1.0, "most": 2.0}}
    machine = {"cpu": "2 x Some", "memory": "1 kB", "system": "Linux", "python": "3.11"}
    return page.Found(
        {"name": "2020-01-01-some", "sizes": {"size": "full"}, "rows": rows, "limits": limits, "load": load,
         "machine": machine, "versions": {OURS: "1"}, "skipped": {"beanstalkd": "no program beanstalkd"}}
    )  # fmt: skip


def test_aims_are_held_against_what_was_found(found: page.Found) -> None:
    rows = page.aims(found).splitlines()[2:]
    assert "| fill: 5 times less CPU than RocksDB | 4.0 times | **missed** |" == rows[0]
    assert "| fill: 20 times less CPU than Redis | 25.0 times | met |" in rows
    assert "| reopen with 2,000 pending below 50 ms | 21 ms | met |" in rows
    assert "| less than 1 byte of memory for each more record pending | 0.50 B | met |" in rows
    assert "| disk, beyond the 100 B, exact due times: at most 120 B | 110.0 B | met |" in rows


def test_tables_tell_ratios_and_what_is_not_there(found: page.Found) -> None:
    table = page.phases_tables(found, "embedded")
    assert "| RocksDB | 500 | 2000.00 | 4.0 | 500 | 2000.00 | 4.0 | 30 ms | 5.0 MB | 210 B |" in table
    assert "| Redis | 500 | 5000.00 | 25.0 | - | - | - | - | - | 210 B |" in page.phases_tables(found, "served")
    assert (
        "| afterlog | 1 k: 20 ms, CPU 1,000 ms | 2 k: 21 ms, CPU 1,000 ms | 0.50 B | 0.00 B | 205 B |"
        in page.growth_table(found)
    )
    assert "| afterlog | 1.2 ms | 9.0 ms | 1000.0 | 0 |" in page.lateness_table(found)
    assert "| 500.000 | a copy + a CRC-32C + write and fdatasync | 3.000 | 166.7 |" in page.limits_table(found)
    assert "- beanstalkd: skipped, no program beanstalkd." in page.settings_list(found)
    assert "meanwhile: 1.0 to 2.0," in page.surroundings(found)


def test_pictures_have_a_bar_for_each(found: page.Found) -> None:
    drawn = page.pictures(found)
    assert {"rivals-cpu.svg"} | {"rivals-reopen.svg"} == {*drawn}
    assert 1 + 5 == len(ElementTree.fromstring(drawn["rivals-cpu.svg"]).findall("{*}rect"))


def test_bars_are_as_long_as_their_values() -> None:
    drawn = ElementTree.fromstring(bars("head", "us", [("group", [Bar("a", 1), Bar("b & c", 10), Bar("d", 100)])]))
    _, *widths = [float(rect.attrib["width"].rstrip("%")) for rect in drawn.findall("{*}rect")]
    assert [1.0, pytest.approx(widths[2] / 2, abs=0.2)] == widths[:2]


def test_only_what_is_made_is_written_anew() -> None:
    text = f"by hand\n{MADE.format('a')}old\n<!-- end -->\nby hand\n"
    once = report.page(text, {"a": "new", "b": "nowhere"})
    assert f"by hand\n{MADE.format('a')}\nnew\n\n<!-- end -->\nby hand\n" == once
    assert once == report.page(once, {"a": "new"})


def test_the_page_says_what_the_results_say() -> None:
    text, made = report.PAGE.read_text("utf-8"), report.parts()
    assert all(MADE.format(name) in text for name in made)
    assert text == report.page(text, made), "python -m bench.report"
    run = report.newest_run()
    assert run is not None
    for name, drawn in page.pictures(page.Found(run)).items():
        assert drawn == (report.IMAGES / name).read_text("utf-8")


def test_committed_runs_are_whole() -> None:
    """Or of one table, which is then on the page in place of that of the last whole run."""
    for path in sorted(report.RESULTS.glob(report.RUNS)):
        result = json.loads(path.read_text())
        assert (path.stem, "full") == (result["name"], result["sizes"]["size"])
        assert {"rows", "limits", "load", "versions", "skipped", "machine"} <= result.keys()
        tables = {row["table"] for row in result["rows"]}
        assert len(tables) == 1 or {"embedded", "served", "growth", "one by one", "lateness"} == tables


def test_the_newest_run_counts(tmp_path: Path) -> None:
    assert report.newest_run(tmp_path) is None
    for day in ("01", "02"):
        rows = [{"table": "growth"}] if day == "01" else []
        (tmp_path / f"2020-01-{day}-machine.json").write_text(json.dumps({"day": day, "rows": rows}))
    assert {"day": "02", "rows": []} == report.newest_run(tmp_path)
    assert {"day": "01", "rows": [{"table": "growth"}]} == report.newest_run(tmp_path, "growth")
    assert report.newest_run(tmp_path, "embedded") is None
