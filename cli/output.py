"""What the command line shows: JSON lines, tables, bars, progress. rich draws on a terminal where it is installed.

Piped into something else, output is plain text without colours, the same on every machine.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TextIO

import click

from afterlog.api.byte_text import text_or_base64
from afterlog.base.clock import Clock
from afterlog.base.environment import Pipe

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from afterlog.fetch.message import Message, ScheduledRecord

LOT_LINES = 500
"""Messages received at a time."""
LOT_S = 1.0
"""A pipe's reader that takes longer for a lot gets half as many the next time: their leases run."""
BAR_WIDTH = 50
CELL_WIDTH = 60
_INSTANTS = ("due", "asked", "deliver_after", "broker_timestamp", "timestamp")
_MESSAGE = (
    "topic", "partition", "offset", "delivery_offset", "timestamp", "broker_timestamp", "deliver_after", "due",
    "redelivery_count", "key", "headers", "value",
)  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))


def json_line(row: Mapping[str, Any]) -> str:
    """One JSON object in one line."""
    return json.dumps(row, default=_plain, ensure_ascii=False).encode("utf-8", "replace").decode()


def text_line(row: Mapping[str, Any]) -> str:
    """The same for people: names and values, instants as such."""
    return "  ".join(f"{name} {_text(name, value)}" for name, value in row.items() if value is not None)


class Lines:
    """Lines to standard output; into a pipe one by one, each when the reader has taken the one before."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._output = sys.stdout.buffer
        self._pipe = Pipe.of(self._output)
        self.lot = LOT_LINES if self._pipe is None else 1
        """How many lines to come with: so many as a reader is likely to take at once."""

    def put(self, lines: Sequence[bytes]) -> int:
        """How many were taken: all, or those before the reader of a pipe had gone."""
        if self._pipe is None:
            self._output.write(b"".join(lines))
            self._output.flush()
            return len(lines)
        started_s = self._clock.monotonic_s()
        for taken, line in enumerate(lines):
            try:
                self._output.write(line)
                self._output.flush()
            except BrokenPipeError:
                return taken
            if not self._pipe.is_taken():
                return taken
        quick = self._clock.monotonic_s() - started_s < LOT_S
        self.lot = min(2 * self.lot, LOT_LINES) if quick else max(self.lot // 2, 1)
        return len(lines)


def value_line(message: Message) -> bytes:
    """A message's value as it came, and a line end."""
    return (message.value or b"") + b"\n"


def json_message(message: Message) -> bytes:
    """A message as one JSON object in one line."""
    return json_line(message_row(message)).encode() + b"\n"


def message_row(message: Message | ScheduledRecord) -> dict[str, Any]:
    """What is told of a message; of one that is leased also how often its delivery failed."""
    return {name: getattr(message, name) for name in _MESSAGE if hasattr(message, name)}


def clipped(data: bytes | None) -> str | None:
    """A key or value in a table: what fits, in one line."""
    if data is None:
        return None
    text = data[: 4 * CELL_WIDTH].decode("utf-8", "backslashreplace")
    shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return shown if len(shown) <= CELL_WIDTH and len(data) <= 4 * CELL_WIDTH else shown[: CELL_WIDTH - 1] + "…"


def iso(ms: int) -> str:
    """An instant, UTC; what datetime cannot name stays a number."""
    try:
        return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return f"{ms} ms"


def span(ms: int) -> str:
    """A duration by its two largest units: `2h 5m`."""
    parts: list[str] = []
    for unit, size in _UNITS:
        if ms >= size and (unit != "ms" or not parts):
            parts.append(f"{ms // size}{unit}")
            ms %= size
    return " ".join(parts[:2]) or "0ms"


def relative(ms: int, now_ms: int) -> str:
    """`in 2h 5m`, `3d ago`."""
    return f"in {span(ms - now_ms)}" if ms >= now_ms else f"{span(now_ms - ms)} ago"


def amount(size: int) -> str:
    """Bytes for people."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table; numbers to the right."""
    console = _console(sys.stdout)
    rows = list(rows)
    if console is not None:
        console.print(_drawn(headings, rows))
        return
    texts = [[_cell(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headings, *texts, strict=True)]
    for row in ([*headings], *texts):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@contextlib.contextmanager
def screen() -> Iterator[Callable[[str, Sequence[str], Sequence[Sequence[Any]]], None]]:
    """What it yields shows a line and a table in the place of those before; without a terminal, behind them."""
    console = _console(sys.stdout)
    if console is None:

        def follow(line: str, headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
            click.echo(line)
            table(headings, rows)

        yield follow
        return
    from rich.console import Group
    from rich.live import Live

    with Live(console=console, screen=True, auto_refresh=False) as live:
        yield lambda line, headings, rows: live.update(Group(line, "", _drawn(headings, rows)), refresh=True)


def _drawn(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for column, heading in enumerate(headings):
        right = any(isinstance(row[column], int | float) for row in rows)
        drawn.add_column(heading, justify="right" if right else "left", no_wrap=True)
    for row in rows:
        drawn.add_row(*(Text(_cell(cell)) for cell in row))
    return drawn


def bars(rows: Sequence[tuple[str, int]]) -> None:
    """A labelled bar for each count."""
    largest = max((count for _, count in rows), default=0)
    console = _console(sys.stdout)
    if console is not None:
        from rich.bar import Bar
        from rich.table import Table

        drawn = Table.grid(padding=(0, 1))
        for label, count in rows:
            drawn.add_row(label, Bar(max(largest, 1), 0, count, width=BAR_WIDTH, color="cyan"), f"{count:,}")
        console.print(drawn)
        return
    width = max((len(label) for label, _ in rows), default=0)
    for label, count in rows:
        length = -(-count * BAR_WIDTH // max(largest, 1))
        click.echo(f"{label:{width}} {'#' * length:{BAR_WIDTH}} {count:,}")


@contextlib.contextmanager
def progress(label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr where that is a terminal; call what it yields with each advance."""
    console = _console(sys.stderr)
    if console is None:
        yield lambda advance: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda advance: bar.advance(task, advance)


def _console(stream: TextIO) -> Console | None:
    if not stream.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(file=stream, highlight=False)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return text_or_base64(bytes(value))
    return str(value)


def _text(name: str, value: Any) -> str:
    if name in _INSTANTS and isinstance(value, int):
        return iso(value) if value >= 0 else "-"
    if isinstance(value, bytes):
        plain = text_or_base64(value)
        return plain if isinstance(plain, str) and plain.isprintable() else json.dumps(plain)
    return json_line(value) if isinstance(value, dict) else str(value)


def _cell(cell: Any) -> str:
    match cell:
        case None:
            return "-"
        case int():
            return f"{cell:,}"
        case float():
            return f"{cell:,.1f}"
    return str(cell)
