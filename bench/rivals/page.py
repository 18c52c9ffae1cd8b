"""The comparison as Markdown tables and pictures, all from the figures of one run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.bars import Bar, bars
from bench.rivals.registry import OURS, RIVALS

Row = dict[str, Any]
AIMS_WORKLOAD = "uniform-100B-1000-fsync"
_SHARED_TIME = "equal-100B-1000-fsync"
_SPREADS = {
    "uniform": "due uniformly over an hour",
    "near": "nine of ten due within a minute, the tenth within 30 days",
    "equal": "all due in one millisecond",
}


@dataclass(frozen=True)
class Found:
    """The figures of a run, by what they are of."""

    result: dict[str, Any]

    def rows(self, table: str) -> list[Row]:
        return [row for row in self.result["rows"] if row["table"] == table]

    def row(self, table: str, workload: str, rival: str, phase: str) -> Row | None:
        for row in self.rows(table):
            if (row["workload"], row["rival"], row["phase"]) == (workload, rival, phase):
                return row
        return None

    def cpu_us(self, table: str, workload: str, rival: str, phase: str) -> float | None:
        row = self.row(table, workload, rival, phase)
        return None if row is None else cpu_us(row)

    def ratio(self, table: str, workload: str, rival: str, phase: str) -> float | None:
        """How many times as much CPU time the rival takes for a record as we do."""
        theirs, ours = (self.cpu_us(table, workload, name, phase) for name in (rival, OURS))
        return theirs / ours if theirs and ours else None

    def growth(self, rival: str) -> list[tuple[Row, Row]]:
        """(fill, reopen) at each size, the smallest first."""
        rows = {(row["records"], row["phase"]): row for row in self.rows("growth") if row["rival"] == rival}
        counts = sorted({count for count, phase in rows if phase == "reopen"})
        return [(rows[count, "fill"], rows[count, "reopen"]) for count in counts]


def cpu_us(row: Row) -> float:
    """CPU time of a record."""
    return float(row["cpu_s"] * 1e6 / row["records"])


def rate(row: Row) -> float:
    """Records a second of wall time."""
    return float(row["records"] / row["wall_s"])


# The aims.


def aims(found: Found) -> str:
    """What was aimed at, beside what came out."""
    rows = ["| aim | found | |", "|---|--:|---|"]
    for aim, told, met in _aims(found):
        rows.append(f"| {aim} | {told} | {'met' if met else '**missed**'} |")
    return "\n".join(rows)


def _aims(found: Found) -> Iterable[tuple[str, str, bool]]:
    for rival, factor in (("RocksDB", 5), ("SQLite", 20), ("PostgreSQL", 20), ("Redis", 20)):
        table = "served" if RIVALS[rival].served else "embedded"
        for phase, what in (("fill", "fill"), ("drain", "drain with lease and ack")):
            ratio = found.ratio(table, AIMS_WORKLOAD, rival, phase)
            if ratio is not None:
                yield f"{what}: {factor} times less CPU than {rival}", f"{ratio:.1f} times", ratio >= factor
    grown = found.growth(OURS)
    if len(grown) > 1:
        (small, small_open), (large, large_open) = grown[0], grown[-1]
        small_ms, large_ms = small_open["wall_s"] * 1e3, large_open["wall_s"] * 1e3
        yield f"reopen with {int(large['records']):,} pending below 50 ms", f"{large_ms:.0f} ms", large_ms < 50
        told = f"{small_ms:.0f} ms with {int(small['records']):,}"
        yield "reopen does not grow with what is pending (by less than a quarter)", told, large_ms < 1.25 * small_ms
        slope = _per_record(grown, "private_bytes", 1)
        yield "less than 1 byte of memory for each more record pending", f"{slope:.2f} B", slope < 1
    for workload, most, what in ((AIMS_WORKLOAD, 120, "exact due times"), (_SHARED_TIME, 20, "a thousand share one")):
        row = found.row("embedded", workload, OURS, "fill")
        if row is not None:
            over = row["disk_bytes"] / row["records"] - row["size"]
            yield f"disk, beyond the {row['size']} B, {what}: at most {most} B", f"{over:.1f} B", over <= most


def _per_record(grown: Sequence[tuple[Row, Row]], figure: str, part: int) -> float:
    """What each further record costs, between the smallest and the largest size: constant costs fall out."""
    first, last = grown[0][part], grown[-1][part]
    return float((last[figure] - first[figure]) / (grown[-1][0]["records"] - grown[0][0]["records"]))


# The tables.

_HEAD = (
    "| | fill, records/s | CPU us | times ours | drain, records/s | CPU us | times ours | reopen | private | disk |",
    "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
)


def phases_tables(found: Found, table: str) -> str:
    """One table for each workload of a kind."""
    parts: list[str] = []
    listed = found.rows(table)
    for workload in dict.fromkeys(row["workload"] for row in listed):
        rows = [row for row in listed if row["workload"] == workload]
        parts += [_title(rows[0]), "", *_HEAD]
        parts += [_phases_row(found, table, workload, rival) for rival in dict.fromkeys(row["rival"] for row in rows)]
        parts.append("")
    return "\n".join(parts).rstrip()


def _title(row: Row) -> str:
    durable = "fsync per batch" if row["fsync"] else "relaxed: survives the process, not a power cut"
    batches = "one by one" if row["batch"] == 1 else f"{row['batch']:,} at a time"
    return (
        f"**{int(row['records']):,} records of {row['size']:,} B, {_SPREADS[row['spread']]}, {batches}, {durable}**; "
        f"{row['rounds']} rounds"
    )


def _phases_row(found: Found, table: str, workload: str, rival: str) -> str:
    cells = [rival]
    for phase in ("fill", "drain"):
        row, ratio = found.row(table, workload, rival, phase), found.ratio(table, workload, rival, phase)
        cells += ["-", "-", "-"] if row is None else [short(rate(row)), f"{cpu_us(row):.2f}", _times(ratio)]
    opened, filled = (found.row(table, workload, rival, phase) for phase in ("reopen", "fill"))
    cells += ["-", "-"] if opened is None else [_ms(opened["wall_s"]), _mb(opened["private_bytes"])]
    cells.append("-" if filled is None else f"{filled['disk_bytes'] / filled['records']:,.0f} B")
    return f"| {' | '.join(cells)} |"


def growth_table(found: Found) -> str:
    """What grows with what is pending."""
    rows = [
        "| | reopen with few | with many | private memory per record | mapped files | disk per record |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for rival in RIVALS:
        grown = found.growth(rival)
        if len(grown) < 2:
            continue
        opens = [
            f"{short(filled['records'])}: {_ms(opened['wall_s'])}, CPU {_ms(opened['cpu_s'])}"
            for filled, opened in (grown[0], grown[-1])
        ]
        private, mapped = (_per_record(grown, f"{kind}_bytes", 1) for kind in ("private", "file"))
        disk = _per_record(grown, "disk_bytes", 0)
        rows.append(f"| {rival} | {' | '.join(opens)} | {private:.2f} B | {mapped:.2f} B | {disk:.0f} B |")
    return "\n".join(rows)


def lateness_table(found: Found) -> str:
    """How late records come at each rate."""
    listed = found.rows("lateness")
    rates = sorted({row["rate"] for row in listed})
    heads = [f"{each:,}/s: p50 | p99 | CPU us" for each in rates]
    rows = [f"| | {' | '.join(heads)} | early |", "|---|" + "--:|" * (3 * len(rates) + 1)]
    for rival in RIVALS:
        cells, early = [rival], 0
        for each in rates:
            row = next((row for row in listed if (row["rival"], row["rate"]) == (rival, each)), None)
            cells += (
                ["-"] * 3
                if row is None
                else [f"{row['p50_ms']:.1f} ms", f"{row['p99_ms']:.1f} ms", f"{cpu_us(row):.1f}"]
            )
            early += 0 if row is None else int(row["early"])
        if set(cells[1:]) != {"-"}:
            rows.append(f"| {' | '.join(cells)} | {early} |")
    return "\n".join(rows)


def limits_table(found: Found) -> str:
    """Our paths as multiples of what the machine can do."""
    limits = found.result["limits"]
    rows = ["| path | CPU us | the machine's own limit | CPU us | times | wall |", "|---|--:|---|--:|--:|--:|"]
    for workload, phase, name, parts in (
        (AIMS_WORKLOAD, "fill", "fill, fsync per batch", ("copy", "crc", "write_fsync")),
        (AIMS_WORKLOAD.replace("fsync", "relaxed"), "fill", "fill, relaxed", ("copy", "crc", "write")),
        (AIMS_WORKLOAD, "drain", "drain, lease and ack", ("gather", "crc")),
    ):
        row = found.row("embedded", workload, OURS, phase)
        if row is None or not limits:
            continue
        cpu, wall = (sum(limits[f"{part}_{kind}_us"] for part in parts) for kind in ("cpu", "wall"))
        what = " + ".join(_LIMITS[part] for part in parts)
        own_wall_us = row["wall_s"] * 1e6 / row["records"]
        rows.append(
            f"| {name} | {cpu_us(row):.3f} | {what} | {cpu:.3f} | {cpu_us(row) / cpu:.1f} | {own_wall_us / wall:.1f} |"
        )
    return "\n".join(rows)


_LIMITS = {
    "copy": "a copy", "crc": "a CRC-32C", "write": "write", "write_fsync": "write and fdatasync",
    "gather": "a copy in delivery order",
}  # fmt: skip


def settings_list(found: Found) -> str:
    """How each was set up, with its version, and who was not there."""
    versions, skipped = found.result["versions"], found.result["skipped"]
    lines = [f"- **{name}** {versions[name]}: {RIVALS[name].setting}." for name in RIVALS if name in versions]
    return "\n".join([*lines, *(f"- {name}: skipped, {why}." for name, why in skipped.items())])


def surroundings(found: Found, own: str = "about 1") -> str:
    """The machine, and how busy it was. own: how much of that the benchmark was itself."""
    machine = found.result["machine"]
    loads = found.result["load"].values()
    least, most = min(load["least"] for load in loads), max(load["most"] for load in loads)
    told = ", ".join(f"{name} {value}" for name, value in machine.items() if name not in ("cpu", "memory", "system"))
    return (
        f"Run `{found.result['name']}`, size {found.result['sizes']['size']}. Machine: {machine['cpu']}, "
        f"{machine['memory']}, {machine['system']}; {told}.\n"
        f"Load average meanwhile: {least:.1f} to {most:.1f}, of which {own} is the benchmark's own."
    )


# The pictures.


def pictures(found: Found) -> dict[str, str]:
    """SVG by file name."""
    drawn: dict[str, str] = {}
    groups = []
    for phase, title in (
        ("fill", "fill, 1,000 at a time, fsync each"),
        ("drain", "drain: lease and ack, 1,000 at a time"),
    ):
        listed = [_bar(row["rival"], cpu_us(row)) for row in _of_aims(found) if row["phase"] == phase]
        groups += [(title, listed)] if listed else []
    if groups:
        drawn["rivals-cpu.svg"] = bars("CPU time of a record of 100 B, client and server", "us", groups)
    grown = {rival: found.growth(rival) for rival in RIVALS}
    groups = []
    for place, title in ((0, "few"), (-1, "many")):
        listed = [_bar(name, each[place][1]["wall_s"] * 1e3) for name, each in grown.items() if len(each) > 1]
        counts = sorted({each[place][0]["records"] for each in grown.values() if len(each) > 1})
        groups += [(f"{title}: {' or '.join(f'{int(count):,}' for count in counts)} pending", listed)] if listed else []
    if groups:
        drawn["rivals-reopen.svg"] = bars("From a kill -9 to the first due record in hand", "ms", groups)
    return drawn


def _of_aims(found: Found) -> list[Row]:
    """The rows of the workload of the aims; ours stands in both tables, and is drawn once."""
    rows = [row for row in found.rows("embedded") if row["workload"] == AIMS_WORKLOAD]
    seen = {row["rival"] for row in rows}
    return rows + [row for row in found.rows("served") if row["workload"] == AIMS_WORKLOAD and row["rival"] not in seen]


def _bar(rival: str, value: float) -> Bar:
    return Bar(rival, value, "ours" if rival.startswith(OURS) else "floor" if rival == "bare floor" else "")


# Numbers.


def short(number: float) -> str:
    """Three digits and a unit."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}" if number < 1000 * size else f"{number / size:,.0f} {unit}"
    return f"{number:.0f}"


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1f}" if ratio < 100 else f"{ratio:,.0f}"


def _ms(seconds: float) -> str:
    ms = seconds * 1e3
    return f"{ms:,.0f} ms" if ms >= 10 else f"{ms:.1f} ms"


def _mb(count: float) -> str:
    return f"{count / 1e6:.1f} MB"
