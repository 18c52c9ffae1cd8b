"""The served way as Markdown tables, all from the figures of one run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.rivals import page as rivals
from bench.rivals.page import short
from bench.served.contestants import CONTESTANTS, EMBEDDED, OURS

Row = dict[str, Any]
SHARED_LEAST, BULK_TIMES_MOST, IDLE_MOST, GROWTH_MOST = 10, 3.0, 0.5, 1.05
"""The aims: records for each fdatasync with 64 clients; times what it takes in process; % of a core; last by first."""
_CROWD = 64


@dataclass(frozen=True)
class Found:
    """The figures of a run."""

    result: Row

    def rows(self, part: str) -> list[Row]:
        return [row for row in self.result["rows"] if row["part"] == part]

    def workloads(self, part: str) -> dict[str, dict[str, Row]]:
        """By workload and contestant, in the order of the run."""
        found = dict[str, dict[str, Row]]()
        for row in self.rows(part):
            found.setdefault(row["workload"], {})[row["who"]] = row
        return found


def made(found: Found) -> dict[str, str]:
    """The parts of the page, by the names in their marks. What was not measured is not there."""
    tables = {
        "sends": work_table, "bulk": work_table, "drain": work_table, "lateness": lateness_table, "idle": idle_table,
        "waiting": waiting_table, "soak": soak_table,
    }  # fmt: skip
    parts = {
        "surroundings": rivals.surroundings(rivals.Found(found.result), "most"),
        "aims": aims(found),
        "settings": settings_list(found),
    }
    return parts | {part: table(found, part) for part, table in tables.items() if found.rows(part)}


def cpu_us(row: Row, side: str = "both") -> float:
    """CPU time of a record: of the client, the server, or both."""
    sides = ("client", "server") if side == "both" else (side,)
    return float(sum(row[f"{each}_cpu_s"] for each in sides) * 1e6 / row["records"])


# The aims.


def aims(found: Found) -> str:
    """What was aimed at, beside what came out."""
    rows = ["| aim | found | |", "|---|--:|---|"]
    for aim, told, met in _aims(found):
        rows.append(f"| {aim} | {told} | {'met' if met else '**missed**'} |")
    return "\n".join(rows)


def _aims(found: Found) -> Iterator[tuple[str, str, bool]]:
    for row in found.rows("sends"):
        if row["who"] == OURS and row["clients"] == _CROWD:
            shared = row["records_per_sync"]
            yield (
                f"{_CROWD} clients: at least {SHARED_LEAST} records share an fdatasync",
                f"{shared:.1f}",
                shared >= SHARED_LEAST,
            )
    for workload, rows in found.workloads("bulk").items():
        if {OURS, EMBEDDED} <= {*rows}:
            ours, inside = rows[OURS], rows[EMBEDDED]
            for what, times in (
                ("CPU", cpu_us(ours) / cpu_us(inside)),
                ("wall time", _wall_s(ours) / _wall_s(inside)),
            ):
                aim = f"bulk as Arrow, {workload}: {what} at most {BULK_TIMES_MOST:g} times that in process"
                yield aim, f"{times:.1f} times", times <= BULK_TIMES_MOST
    for workload, rows in found.workloads("sends").items():
        if {OURS, "PostgreSQL"} <= {*rows}:
            times = cpu_us(rows["PostgreSQL"]) / cpu_us(rows[OURS])
            aim = f"durable sends per CPU second, {workload}: at least those of PostgreSQL"
            yield aim, f"{times:.2f} times", times >= 1
    for row in found.rows("idle"):
        if row["who"] == OURS:
            percent = row["core_percent"]
            yield f"an idle server takes less than {IDLE_MOST} % of a core", f"{percent:.3f} %", percent < IDLE_MOST
    for row in found.rows("soak"):
        times = row["private_last_bytes"] / row["private_first_bytes"]
        aim = (
            f"memory is flat over {row['minutes']:g} minutes: the last is at most {GROWTH_MOST - 1:.0%} above the first"
        )
        yield aim, f"{times - 1:+.1%}", times <= GROWTH_MOST


def _wall_s(row: Row) -> float:
    return float(row["wall_s"] / row["records"])


# The tables.


def work_table(found: Found, part: str) -> str:
    """One table for each workload of a part."""
    parts: list[str] = []
    calls = part == "sends"
    more = (" p50 | p99 | records per sync |", "--:|--:|--:|") if calls else ("", "")
    for workload, rows in found.workloads(part).items():
        ours = rows.get(OURS)
        first = next(iter(rows.values()))
        parts += [
            f"**{workload}**; {first['rounds']} round{'s' if first['rounds'] > 1 else ''}", "",
            "| | records | records/s | client CPU us | server CPU us | both | times ours |" + more[0],
            "|---|--:|--:|--:|--:|--:|--:|" + more[1],
        ]  # fmt: skip
        for who, row in rows.items():
            cells = [who, f"{int(row['records']):,}", short(1 / _wall_s(row)),
                     f"{cpu_us(row, 'client'):.2f}", _server(row), f"{cpu_us(row):.2f}",
                     "-" if ours is None else f"{cpu_us(row) / cpu_us(ours):.2f}"]  # fmt: skip
            if calls:
                shared = row.get("records_per_sync")
                cells += [
                    f"{row['p50_ms']:.2f} ms",
                    f"{row['p99_ms']:.2f} ms",
                    "-" if shared is None else f"{shared:.1f}",
                ]
            parts.append(f"| {' | '.join(cells)} |")
        parts.append("")
    return "\n".join(parts).rstrip()


def _server(row: Row) -> str:
    return f"{cpu_us(row, 'server'):.2f}" if CONTESTANTS[row["who"]].served else "-"


def lateness_table(found: Found, part: str) -> str:
    rows = ["| | | p50 | p99 | max | client CPU us | server CPU us | early |", "|---|---|--:|--:|--:|--:|--:|--:|"]
    for row in found.rows(part):
        late = " | ".join(f"{row[f'{name}_ms']:.1f} ms" for name in ("p50", "p99", "max"))
        rows.append(
            f"| {row['who']} | {row['workload']} | {late} | {cpu_us(row, 'client'):.2f} | {_server(row)} "
            f"| {int(row['early'])} |"
        )
    return "\n".join(rows)


def idle_table(found: Found, part: str) -> str:
    rows = ["| | of a core |", "|---|--:|"]
    return "\n".join([*rows, *(f"| {row['who']} | {row['core_percent']:.3f} % |" for row in found.rows(part))])


def waiting_table(found: Found, part: str) -> str:
    rows = ["| | memory of each | when they are gone | more when they come again | threads | of a core |",
            "|---|--:|--:|--:|--:|--:|"]  # fmt: skip
    for row in found.rows(part):
        rows.append(
            f"| {int(row['clients']):,} clients | {row['bytes_each'] / 1024:.1f} KiB "
            f"| {row['bytes_left'] / 1e6:.1f} MB | {row['bytes_more'] / 1e6:+.1f} MB "
            f"| {int(row['threads'])} | {row['core_percent']:.1f} % |"
        )
    return "\n".join(rows)


def soak_table(found: Found, part: str) -> str:
    rows = ["| memory of the server | first minute | last minute | a minute |", "|---|--:|--:|--:|"]
    done = list[str]()
    for row in found.rows(part):
        for name in ("private", "resident"):
            first, last, slope = (
                row[f"{name}_{what}"] / 1e6 for what in ("first_bytes", "last_bytes", "bytes_a_minute")
            )
            rows.append(f"| {name} | {first:.1f} MB | {last:.1f} MB | {slope:+.3f} MB |")
        counts = ", ".join(f"{int(row[name]):,} {name}" for name in ("sent", "cancelled", "acked", "nacked", "waits"))
        percent = 100 * row["server_cpu_s"] / row["wall_s"]
        done.append(
            f"{row['minutes']:g} minutes: {counts}; {percent:.0f} % of a core; {int(row['waits_left'])} waits left."
        )
    return "\n".join([*rows, "", *done])


def settings_list(found: Found) -> str:
    """How each was set up, with its version, and who was not there."""
    versions, skipped = found.result["versions"], found.result["skipped"]
    lines = [f"- **{name}** {versions[name]}: {CONTESTANTS[name].setting}." for name in CONTESTANTS if name in versions]
    return "\n".join([*lines, *(f"- {name}: skipped, {why}." for name, why in skipped.items())])
