"""An exception at every place of every public operation, Ctrl-C or a failed allocation: nothing acknowledged is lost,
nothing is made up or comes twice, and the store goes on. What a user's program catches must not cost it its records.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import linecache
import random
import traceback
import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from unittest.mock import patch

import pytest

from afterlog.base.config import ALWAYS, OS, Durability
from afterlog.base.errors import AfterlogError
from afterlog.fetch.consumer import Consumer
from afterlog.log.commit import Commit
from afterlog.log.partition_log import PartitionLog
from afterlog.subscription.partition_subscription import PartitionSubscription
from tests import campaigns
from tests.apart import Apart, apart
from tests.campaigns import strikes
from tests.campaigns.life import OPERATIONS, Life, life_of
from tests.support import drained, killed

pytestmark = [
    pytest.mark.usefixtures("quiet"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # it strikes in finalizers, too
]


def struck(name: str, place: int, durability: Durability, error: type[BaseException], way: int) -> None:
    """One life in which it strikes there."""
    life, where = life_of(durability).ready(), list[str]()
    try:
        with suppress(error), strikes.strike(place, error) as where:
            OPERATIONS[name](life)
        lives_on(life, name, way)
    except BaseException as failure:
        failure.add_note(f"{error.__name__} at place {place}, {where}; way {way}")
        raise


def lives_on(life: Life, name: str, way: int) -> None:
    """A reader or none, more work or none, and a kill or a clean close; then all is there."""
    if name in ("close", "open") or (name == "adopt" and life.partition.log.commit.poisoned):
        life.reopen()
    life.flushed()
    if name == "poll" and hasattr(life, "consumer"):
        if not life.consumer.closed:
            life.received[2] = life.consumer.poll(2)
            life.handed()
            life.consumer.commit()
        life.consumer.close()
    if way & 1:
        drained(life.partition, life.partition.log_start)
        life.store.check()
    if way & 2:
        life.goes_on()
    if way & 4:
        life.store.close()
    life.disk = killed(life.disk)
    life.open()
    life.verify()
    life.store.close()


@functools.cache
def places(name: str, durability: Durability) -> list[int]:
    life = life_of(durability).ready()
    return strikes.places(lambda: OPERATIONS[name](life))


def test_a_reader_looks_after_an_append_that_nobody_waits_for() -> None:
    """Interrupted while it waits for its fdatasync: it is written, and holds back what is due behind it."""
    life = life_of(ALWAYS).ready()
    with patch.object(Commit, "committed", interrupted), suppress(KeyboardInterrupt):
        life.send(b"struck")
    life.clock.advance(100_000)
    assert b"struck" in drained(life.partition)


@pytest.mark.parametrize(
    ("owner", "method", "name"),
    [
        (PartitionLog, "_mend", "send"),
        (PartitionSubscription, "_mend", "receive"),
        (PartitionSubscription, "_mend", "nack"),
        (Consumer, "_settle", "poll"),
    ],
)
def test_planted_bug_is_caught(owner: type, method: str, name: str) -> None:
    """What mends is needed: without it some place shows that."""

    def settled(consumer: Any) -> None:
        consumer._processed = list(consumer._handed)

    with patch.object(owner, method, settled if method == "_settle" else lambda self: None):
        found = places(name, ALWAYS)
        for number in campaigns.known_first(sorted(range(len(found)), key=lambda number: number * 37 % 101)):
            try:
                struck(name, found[number % len(found)], ALWAYS, KeyboardInterrupt, number % 8)
            except Exception:
                campaigns.shown(number)
                return
    raise AssertionError("nobody saw it")


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.share(3)
@pytest.mark.parametrize("name", OPERATIONS)
def test_struck_at_every_place(name: str) -> None:
    """Every other place by Ctrl-C, under always, the rest by failed allocations: a twelfth in a whole run."""
    for turn, (error, durability) in enumerate([(KeyboardInterrupt, ALWAYS), (MemoryError, OS)]):
        for number, place in campaigns.share([*enumerate(places(name, durability))][turn::2], 1_800, whole=4):
            struck(name, place, durability, error, number // 2 % 8)
            campaigns.count("interrupts")


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Apart]:
    with apart(timeout_s=1_200) as calls:  # a backup takes 260 s in a whole run, on two quiet cores
        yield calls


@pytest.mark.share(2)
@pytest.mark.parametrize("name", [name for name in OPERATIONS if "flush" not in name])
def test_a_failed_allocation(name: str, elsewhere: Apart) -> None:
    """Of Python, numpy, the kernels, Roaring bitmaps: one in 24 of them, one by one; in another process, for what
    the interpreter does not survive.

    Not where a thread is started: CPython's `Thread.start` waits for ever for one that has no memory to say it runs.
    """
    pytest.importorskip("_testcapi", reason="a Python without its test modules cannot fail allocations")
    campaigns.count("failed allocations", elsewhere(fail_allocations, name))


def fail_allocations(name: str) -> int:
    """How many made the operation fail. An operation may do without what it did not get: it has ended where none of
    eight in a row was missed."""
    OPERATIONS[name](life_of(OS).ready())  # imports what comes with its first use: CPython does not survive that
    failed, missed = 0, 0
    with campaigns.quiet(), warnings.catch_warnings(action="ignore"):
        for number in allocations():
            was_missed = fail_allocation(name, number)
            failed += was_missed
            missed = 0 if was_missed else missed + 1
            if missed == 8:
                break
    return failed


def fail_allocation(name: str, number: int) -> bool:
    """One life in which that allocation fails. Whether the operation did."""
    memory = importlib.import_module("_testcapi")
    life, failed = life_of(OS).ready(), True
    try:
        try:
            memory.set_nomemory(number, number + 1)
            try:
                OPERATIONS[name](life)
                failed = False
            finally:
                memory.remove_mem_hooks()
        except (MemoryError, SystemError, RuntimeError, AfterlogError) as error:
            if is_exit_lost(error):
                return True
        lives_on(life, name, number // 24 % 8)
    except BaseException as failure:
        failure.add_note(f"allocation {number} of {name!r}")
        raise
    return failed


def is_exit_lost(error: BaseException) -> bool:
    """Whether CPython had no memory to leave an ExitStack, and lost it with the locks that it held (0024, limits)."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    return type(error) is MemoryError and "with contextlib.ExitStack()" in linecache.getline(
        frame.f_code.co_filename, line
    )


def allocations() -> Iterator[int]:
    """Every 24th; or numbers from among all that an operation may make."""
    if campaigns.WHOLE:
        return itertools.count(campaigns.SEED % 24, 24)
    chance = random.Random(campaigns.SEED)
    return (chance.randrange(1_000) for _ in range(2 * campaigns.DEPTH))
