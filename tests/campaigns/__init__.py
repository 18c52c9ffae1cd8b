"""Exhaustive campaigns: what share of each a run takes, and what it went through in all.

    make test       a share: one in so many states, bits, calls, with each seed another, so that some runs cover all
    make torture    a third of it, so that three seeds in a row cover all (AFTERLOG_WHOLE=1)
    … HOURS=2       one share after the other, of seeds that follow each other: tests/campaigns/torture.py

Of what takes an hour by itself such a whole run takes less than a third: so many more seeds see all of it.

The seed is in the header of a run and beside each of its failures: `AFTERLOG_SEED=… make test` takes the same shares
again, and Hypothesis the same examples. A planted bug takes no share, unless processes are killed to see it: it is
shown by what is known to show it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

Item = TypeVar("Item")

SEED_VARIABLE = "AFTERLOG_SEED"
SEED = int(os.environ.setdefault(SEED_VARIABLE, str(random.randrange(10**6))))
"""The run's. Processes that it starts, such as those of pytest-xdist, find it in their environment."""
WHOLE = bool(os.environ.get("AFTERLOG_WHOLE"))
"""Whether this run takes as much as there is time for in half an hour or so."""
THIRDS = 3
"""A whole run takes one of them."""
DEPTH = int(os.environ.get("AFTERLOG_DEPTH", "1"))
"""How many times the share of `make test` this run takes, if it does not take everything."""
COUNTS_VARIABLE = "AFTERLOG_COUNTS"
"""Where it is set, the file that gets the counts of the run, as JSON."""

SHOWN_BY = Path(__file__).with_name("shown_by.json")
"""By planted bug (the test that plants it): what shows it, such as a seed or a crash state. `AFTERLOG_PIN=1 make test`
writes what was searched for."""

_counted: Counter[str] = Counter()
_shown: dict[str, Any] = {}
_KNOWN: dict[str, Any] = json.loads(SHOWN_BY.read_text("utf-8"))


def is_chosen(number: int, of: int, *, whole: int = 1) -> bool:
    """Whether this run takes that item of a campaign of which it takes one in `of`; a whole run one in `whole`, of each
    third."""
    return (number + SEED) % (min(of, THIRDS * whole) if WHOLE else max(1, of // DEPTH)) == 0


def share(items: Iterable[Item], of: int, *, whole: int = 1) -> Iterator[Item]:
    """One in `of` of the items, in order; in a whole run all, or what one run of below an hour has time for."""
    if isinstance(items, range):  # however many
        step = min(of, THIRDS * whole) if WHOLE else max(1, of // DEPTH)
        return iter(cast("Sequence[Item]", items[-SEED % step :: step]))
    return (item for number, item in enumerate(items) if is_chosen(number, of, whole=whole))


def examples(number: int, *, whole: int | None = None) -> int:
    """How many examples Hypothesis tries; four times as many in a whole run, or as is said."""
    return number * DEPTH if not WHOLE else 4 * number if whole is None else whole


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No warnings: each torn tail that is cut is one, and to keep a hundred thousand takes longer than all the rest."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def count(what: str, number: int = 1) -> None:
    """Say what was gone through; the summary of the run adds it up."""
    _counted[what] += number


def known_first(candidates: Iterable[Item]) -> Iterator[Item]:
    """Where a planted bug may show: first what is known to show it, and then, where it does not any more, all others.

    A whole run searches anyway: what it holds is that the search sees.
    """
    if not WHOLE and _this_test() in _KNOWN:
        yield _KNOWN[_this_test()]
    yield from candidates


def shown(by: Any) -> None:
    """A planted bug was shown by that one of the candidates."""
    if not WHOLE and _KNOWN.get(_this_test()) != by:
        _shown[_this_test()] = by


def _this_test() -> str:
    return os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0]


def take_shown() -> dict[str, Any]:
    """What was searched for since it was last asked, by test."""
    taken = {**_shown}
    _shown.clear()
    return taken


def take_counted() -> dict[str, int]:
    """What was counted since it was last asked."""
    counted = {**_counted}
    _counted.clear()
    return counted
