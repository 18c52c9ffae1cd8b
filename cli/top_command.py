"""`afterlog top`: rates, lateness and backlog of all topics, refreshed every two seconds.

They are computed from the counters of two overviews:

    look at 1,000 ms: sent 400   ─┐
    look at 3,000 ms: sent 500   ─┴─> 50 a second

Times are those at which the counts were made, so a look that was answered late, or again, tells the same rates. A
counter that has become smaller (another process opened the store, a topic was made anew) tells nothing until the next
look.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import TYPE_CHECKING, Any

import click

from afterlog.base.environment import CTRL_D, Keyboard
from afterlog.base.locks import Condition
from afterlog.cli.base import JSON, FolderOrAddress, StoreCommand, opened, store_arguments
from afterlog.cli.input import Duration
from afterlog.cli.output import iso, json_line, relative, screen, span

if TYPE_CHECKING:
    from afterlog.base.clock import Clock


ALL = "*"
"""The row of all topics together; no topic has this name."""
SHARE = 0.99
"""Of what was handed out, so much was no later than is told."""

HEADINGS = ("TOPIC", "SENT/S", "DUE/S", "OUT/S", "LATE 99%", "PENDING", "NEXT DUE", "LAG", "RETRYING", "DEAD")
INTERVAL_MS_MIN = 10
QUIT = b"qQ" + CTRL_D
Show = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRates:
    """One row. sent, became_due, handed_out: records a second; None where two looks do not tell yet.

    handed_out: to the first of its readers. late_ms: the edge below which `SHARE` of it lay, `inf` beyond the last one;
    None where nothing was handed out. lag, retrying, dead: of subscriptions; None: it has none.
    """

    topic: str
    sent: float | None
    became_due: float | None
    handed_out: float | None
    late_ms: float | None
    pending: int
    next_due_ms: int | None
    lag: int | None
    retrying: int
    dead: int
    unreadable: str | None


class Rates:
    """Compares each look with the one before."""

    def __init__(self) -> None:
        self._now_ms: int | None = None
        self._counts: dict[str, Mapping[str, Any]] = {}
        self._shown: list[TopicRates] = []

    def of(self, overview: Mapping[str, Any]) -> list[TopicRates]:
        """A row for each topic, the busiest first; of many, one of all before them (`ALL`).

        overview: as `/v1/overview` answers.
        """
        now_ms, edges = overview["now_ms"], overview["lateness_edges_ms"]
        if now_ms == self._now_ms:
            return self._shown
        rows: list[Mapping[str, Any]] = [*overview["topics"]]
        elapsed_ms = 0 if self._now_ms is None else now_ms - self._now_ms
        shown = sorted((self._row(row, elapsed_ms, edges) for row in rows), key=_busy)
        if overview["all"] > 1 and len(rows) > 1:
            total = {"topic": ALL, "lag": None, "unreadable": None, **overview["totals"]}
            shown.insert(0, self._row(total, elapsed_ms, edges))
            rows.append(total)
        self._now_ms, self._shown = now_ms, shown
        self._counts = {row["topic"]: row for row in rows}
        return shown

    def _row(self, row: Mapping[str, Any], elapsed_ms: int, edges: Sequence[int]) -> TopicRates:
        before = self._counts.get(row["topic"], {})
        return TopicRates(
            topic=row["topic"],
            sent=_a_second(row["sent"], before.get("sent"), elapsed_ms),
            became_due=_a_second(row["became_due"], before.get("became_due"), elapsed_ms),
            handed_out=_a_second(row["handed_out"], before.get("handed_out"), elapsed_ms),
            late_ms=_lateness(row["lateness_up_to"], before.get("lateness_up_to"), edges),
            pending=row["pending"],
            next_due_ms=row["next_due"],
            lag=row["lag"],
            retrying=row["retrying"],
            dead=row["dead"],
            unreadable=row["unreadable"],
        )


def _a_second(count: int, before: int | None, elapsed_ms: int) -> float | None:
    if before is None or elapsed_ms <= 0 or count < before:
        return None
    return (count - before) * 1_000 / elapsed_ms


def _lateness(up_to: Sequence[int], before: Sequence[int] | None, edges: Sequence[int]) -> float | None:
    """Of what was handed out between two looks."""
    if before is None:
        return None
    counts = [now - then for now, then in zip(up_to, before, strict=True)]
    if counts[-1] <= 0 or min(counts) < 0:
        return None
    return next((edge for edge, count in zip((*edges, inf), counts, strict=True) if count >= SHARE * counts[-1]), inf)


def _busy(row: TopicRates) -> tuple[float, int, str]:
    return -(row.sent or 0) - (row.handed_out or 0), -row.pending, row.topic


@click.command(cls=StoreCommand)
@store_arguments
@click.argument("topic", required=False)
@click.option("--interval", type=Duration(), default="2s", show_default=True, help="Between two looks.")
@click.option("--once", is_flag=True, help="Two looks, and what is between them; then it ends.")
@JSON
def top(data: FolderOrAddress, topic: str | None, interval: int, once: bool, as_json: bool) -> None:
    """Watch the topics: records sent, due and handed out a second, how late, what is pending, and next due.

    q or Ctrl-C ends it. Without a terminal it prints a table for each look. LATE 99%: of what was handed out to the
    first of its readers since the look before, 99 % were no later. LAG, RETRYING, DEAD: of subscriptions that have a
    reader.

    What is handed out is known to the process that has the store open. Where none has, this one has, as long as it
    watches.
    """
    if interval < INTERVAL_MS_MIN:
        raise click.BadParameter(f"at least {INTERVAL_MS_MIN} ms", param_hint="--interval")
    from afterlog.cli.status import overview

    keyboard = Keyboard.of(sys.stdin) if sys.stdout.isatty() and not once else None
    with contextlib.suppress(KeyboardInterrupt), opened(data) as store, keyboard or contextlib.nullcontext():
        rates, first = Rates(), overview(store, topic)
        with _lines(rates) if as_json else _view(rates) as show:
            if once:
                rates.of(first)
            else:
                show(first)
            while _goes_on(keyboard, store.clock, interval / 1_000):
                show(overview(store, topic))
                if once:
                    break


def _goes_on(keyboard: Keyboard | None, clock: Clock, interval_s: float) -> bool:
    """Wait for the next look; False where somebody wants it to end."""
    until_s = clock.monotonic_s() + interval_s
    never = Condition()
    while (left_s := until_s - clock.monotonic_s()) > 0:
        if keyboard is None:
            with never:
                clock.wait(never, None, left_s)
        elif any(key in QUIT for key in keyboard.typed(left_s)):
            return False
    return True


@contextlib.contextmanager
def _lines(rates: Rates) -> Iterator[Show]:
    def show(look: Mapping[str, Any]) -> None:
        for row in rates.of(look):
            told = asdict(row) | {"now_ms": look["now_ms"]}
            click.echo(json_line(told | {"late_ms": None} if row.late_ms == inf else told))

    yield show


@contextlib.contextmanager
def _view(rates: Rates) -> Iterator[Show]:
    with screen() as put:

        def show(look: Mapping[str, Any]) -> None:
            now_ms, rows = look["now_ms"], rates.of(look)
            shown, every = len(look["topics"]), look["all"]
            which = f"{every} topics" if shown == every else f"{shown} of {every} topics"
            put(f"{iso(now_ms)}, {which}", HEADINGS, [_cells(row, now_ms, look["lateness_edges_ms"]) for row in rows])

        yield show


def _cells(row: TopicRates, now_ms: int, edges: list[int]) -> list[Any]:
    late_ms, due_ms = row.late_ms, row.next_due_ms
    return [
        "all" if row.topic == ALL else row.topic,
        row.sent,
        row.became_due,
        row.handed_out,
        None if late_ms is None else f"over {span(edges[-1])}" if late_ms == inf else f"up to {span(int(late_ms))}",
        row.pending if row.unreadable is None else "unreadable",
        None if due_ms is None else relative(due_ms, now_ms),
        row.lag,
        row.retrying,
        row.dead,
    ]
