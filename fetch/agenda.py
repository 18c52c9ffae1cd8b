"""The agenda of a reader: partitions where something may have come, and when the others are due.

    notifiers of its partitions ──come(ms)──┐
    nothing was found: rest(until ms) ──────┴──> when each is to be looked at ──> rows ──> the reader looks
                                                        └──> wait: until the first of them is

So a poll costs what there is to look at, and not how many partitions there are; and who waits is woken by what was
appended to its own partitions, and only where that is due before what it waits for anyway.

A row is looked at until a look has found nothing *and* nothing came meanwhile: an exception in the middle leaves it on
the agenda. What is told may be lost to an exception, too, between a change and the telling: a few rows are looked at
again every so often, whatever was told (`OVERLOOKED_S`).

Times are those of the store's clock, less what `clock_jump_limit_ms` holds back.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from afterlog.base.clock import Clock
from afterlog.base.locks import Condition
from afterlog.log.notifier import NEVER_MS, Notifier

OVERLOOKED_S = 20.0
"""What no notifier told of is found after this long, at the latest, by a reader of up to OVERLOOKED_ROWS partitions."""

OVERLOOKED_ROWS = 64
"""Looked at again at a time."""


class Follower:
    """One partition of an agenda, as what its notifiers tell."""

    __slots__ = ("__weakref__", "_agenda", "_delay_ms", "_row")

    def __init__(self, agenda: Agenda, row: int, delay_ms: int) -> None:
        self._agenda = agenda
        self._row = row
        self._delay_ms = delay_ms

    def come(self, ms: int) -> None:
        self._agenda.stir(self._row, ms + self._delay_ms)


class Agenda:
    """Of one reader. Thread-safe; no lock is held while a listener is called."""

    def __init__(self, rows: int, clock: Clock, now_ms: Callable[[], int]) -> None:
        """clock: for waiting; now_ms: for deciding. Everything is to be looked at."""
        self._clock = clock
        self._now_ms = now_ms
        self._from_ms = [0] * rows
        """When each is to be looked at."""
        self._first_ms = 0
        """No later than the first of them."""
        self._paused_ms = 0
        """Nothing is looked at before, whatever comes."""
        self.stirs = [0] * rows
        """Another number whenever something came for a row: to be asked before a look, for `rest`."""
        self._numbers = itertools.count(1)
        self._overlooked = 0
        self._checked_s = clock.monotonic_s()
        self._changed = Condition()
        self._sources: list[tuple[Notifier, Follower]] = []
        self._listener: Callable[[Agenda], None] | None = None

    def follow(self, row: int, notifier: Notifier, delay_ms: int = 0) -> None:
        """What is told there is about this row, and `delay_ms` later."""
        follower = Follower(self, row, delay_ms)
        self._sources.append((notifier, follower))
        notifier.listen(follower)

    def listen(self, listener: Callable[[Agenda], None]) -> None:
        """Call `listener`, from any thread, when something is to be looked at earlier than was known."""
        self._listener = listener

    def close(self) -> None:
        """Nothing is told any more; who waits looks once again."""
        for notifier, follower in self._sources:
            notifier.leave(follower)
        self.stir_all()

    # What the reader asks.

    def rows(self) -> list[int]:
        """What is to be looked at now, ascending. O(1) where nothing is."""
        now_s, now_ms = self._clock.monotonic_s(), self._now_ms()
        if now_s - self._checked_s >= OVERLOOKED_S:
            self._look_again(now_s)
        if self._first_ms > now_ms or self._paused_ms > now_ms:
            return []
        rows = [row for row, ms in enumerate(self._from_ms) if ms <= now_ms]
        if not rows:
            with self._changed:
                self._first_ms = min(self._from_ms)
        return rows

    def rest(self, row: int, stirs: int, until_ms: int) -> None:
        """A look found nothing, and will not before `until_ms` but for what comes; or has come since `stirs`."""
        with self._changed:
            before_ms, self._from_ms[row] = self._from_ms[row], until_ms
            if self.stirs[row] != stirs:
                self._from_ms[row] = before_ms

    def pause(self, until_ms: int) -> None:
        """Look at nothing before, or until `resume`: the reader may take no more."""
        with self._changed:
            self._paused_ms = until_ms

    def resume(self) -> None:
        """Go on. From any thread."""
        with self._changed:
            self._paused_ms = 0
            self._changed.notify_all()
        if self._listener is not None:
            self._listener(self)

    def due(self) -> bool:
        """Whether there is something to look at."""
        return self._first_ms <= self._now_ms() and bool(self.rows())

    def first_ms(self) -> int:
        """When there is, if nothing comes; NEVER_MS where nothing is known to come."""
        with self._changed:
            self._first_ms = min(self._from_ms)
            return max(self._first_ms, self._paused_ms)

    def wait(self, timeout_s: float | None) -> None:
        """Block until there may be something to look at, at most `timeout_s`. May return early: callers loop."""
        with self._changed:
            self._first_ms = min(self._from_ms)
            until_ms = max(self._first_ms, self._paused_ms)
            now_ms = self._now_ms()
            if until_ms > now_ms:
                at_ms = None if until_ms == NEVER_MS else until_ms + self._clock.now_ms() - now_ms
                self._clock.wait(self._changed, at_ms, timeout_s)

    # What it is told.

    def stir(self, row: int, ms: int = 0) -> None:
        """There may be something in this row from `ms` on. No lock where it is looked at before that anyway."""
        self.stirs[row] = next(self._numbers)  # first: a `rest` that does not see this was seen by the next line
        if ms >= self._from_ms[row]:
            return
        with self._changed:
            first = ms < self._first_ms
            if first:
                self._first_ms = ms
            if ms < self._from_ms[row]:
                self._from_ms[row] = ms
            if first:
                self._changed.notify_all()
        if first and self._listener is not None:
            self._listener(self)

    def stir_all(self) -> None:
        """Look at everything again."""
        for row in range(len(self.stirs)):
            self.stir(row)

    def _look_again(self, now_s: float) -> None:
        """At a few rows, every OVERLOOKED_S."""
        self._checked_s = now_s
        count = len(self.stirs)
        for step in range(min(count, OVERLOOKED_ROWS)):
            self.stir((self._overlooked + step) % count)
        self._overlooked = (self._overlooked + OVERLOOKED_ROWS) % count


def in_turn(rows: Sequence[int], turn: int) -> list[int]:
    """Rows, ascending, with those from `turn` on first: so that a busy one starves nobody."""
    return [row for row in rows if row >= turn] + [row for row in rows if row < turn]
