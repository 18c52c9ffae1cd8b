"""`afterlog top`: rates, lateness and backlog of all topics, refreshed every two seconds."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from math import inf
from typing import TYPE_CHECKING, Any

import click

from afterlog.base.environment import CTRL_D, Keyboard
from afterlog.base.locks import Condition
from afterlog.cli.base import JSON, FolderOrAddress, StoreCommand, opened, store_arguments
from afterlog.cli.input import Duration
from afterlog.cli.output import iso, json_line, relative, screen, span
from afterlog.cli.rates import ALL, Rates, TopicRates

if TYPE_CHECKING:
    from afterlog.base.clock import Clock

HEADINGS = ("TOPIC", "SENT/S", "DUE/S", "OUT/S", "LATE 99%", "PENDING", "NEXT DUE", "LAG", "RETRYING", "DEAD")
INTERVAL_MS_MIN = 10
QUIT = b"qQ" + CTRL_D

Show = Callable[[Mapping[str, Any]], None]


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
    from afterlog.cli.how_it_stands import overview

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
