"""Locks that are held together are let go, whatever strikes, wherever."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import pytest

import afterlog
from afterlog.base.config import OS
from afterlog.base.locks import Condition, Switch, Thread, within
from afterlog.produce.producer import SendFuture
from tests import campaigns
from tests.campaigns import strikes
from tests.campaigns.life import OPERATIONS, life_of
from tests.support import PATIENCE_S, Background, eventually

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 33, 10_000])
def test_all_are_held_in_order(count: int) -> None:
    locks = [threading.Lock() for _ in range(count)]
    assert "done" == within(locks, lambda: "done" if all(lock.locked() for lock in locks) else "")
    assert not any(lock.locked() for lock in locks)


def test_what_fails_lets_go_of_all() -> None:
    locks = [threading.Lock() for _ in range(20)]
    with pytest.raises(KeyError):
        within(locks, lambda: {}["nothing"])
    assert not any(lock.locked() for lock in locks)


def test_struck_anywhere() -> None:
    def held() -> list[threading.Lock]:
        locks = [threading.Lock() for _ in range(19)]
        within(locks, lambda: None)
        return locks

    for place in strikes.places(held):
        locks = [threading.Lock() for _ in range(19)]
        with suppress(KeyboardInterrupt), strikes.strike(place, KeyboardInterrupt):
            within(locks, lambda: None)
        assert not any(lock.locked() for lock in locks)


class Waited:
    """A condition that somebody else notifies, an event, a future and a thread: what is waited for."""

    def __init__(self) -> None:
        self.changed, self.event, self.future = Condition(), Switch(), SendFuture[int]()
        self.threads: list[threading.Thread] = []

    def wait(self) -> None:
        with self.changed:
            self.changed.wait(0.0)

    def notified(self) -> None:
        self.changed._waiters.append(gone := threading.Lock())
        gone.acquire()
        with self.changed:
            self.changed.notify_all()

    def set(self) -> None:
        self.event.set()
        assert self.event.wait(1)
        self.event.clear()
        self.event.wait(0.0)

    def resolved(self) -> None:
        with suppress(TimeoutError):
            self.future.result(0.0)

    def threaded(self) -> None:
        thread = Thread(target=int)
        self.threads.append(thread)
        thread.start()
        thread.join()


@pytest.fixture
def struck_here() -> Iterator[None]:
    """What these tests call of the standard library is struck, too."""
    with patch.object(strikes, "ROOTS", (strikes.ROOT, __file__)):
        yield


@pytest.mark.usefixtures("struck_here")
@pytest.mark.parametrize("call", [Waited.wait, Waited.notified, Waited.set, Waited.resolved, Waited.threaded])
def test_a_wait_that_is_struck_holds_nobody_up(call: Callable[[Waited], None]) -> None:
    """At any place, in the Python of the standard library, too: whoever comes next gets in, and what was begun ends."""
    for place in strikes.places(lambda: call(Waited())):
        waited = Waited()
        with suppress(KeyboardInterrupt), strikes.strike(place, KeyboardInterrupt) as where:
            call(waited)
        other = Background(lambda each=waited: goes_on(each))  # type: ignore[misc]
        assert other.answer(), where
        for thread in waited.threads:
            if thread.ident is not None:
                thread.join(PATIENCE_S)
                assert not thread.is_alive(), where


def goes_on(waited: Waited) -> bool:
    """In another thread: none of the locks is left taken."""
    locks = [waited.changed, waited.event._changed, waited.future._condition]
    taken = [lock.acquire(timeout=1) for lock in locks]
    for lock, is_taken in zip(locks, taken, strict=True):
        if is_taken:
            lock.release()
    return all(taken)


@pytest.mark.usefixtures("struck_here")
def test_planted_bug_of_a_condition_in_python_is_caught() -> None:
    """The standard library's own is left taken at some place."""

    def planted() -> Waited:
        waited = Waited()
        waited.changed = threading.Condition()  # type: ignore[assignment]
        return waited

    for place in strikes.places(lambda: planted().wait()):
        waited = planted()
        with suppress(KeyboardInterrupt, RuntimeError), strikes.strike(place, KeyboardInterrupt):
            waited.wait()
        if not Background(lambda each=waited: goes_on(each)).answer():  # type: ignore[misc]
            return
    raise AssertionError("nobody saw it")


def test_it_wakes_whom_it_should() -> None:
    changed, woken = Condition(), list[bool]()

    def wait() -> None:
        with changed:
            woken.append(changed.wait(PATIENCE_S))

    waiting = [Background(wait) for _ in range(3)]
    eventually(lambda: len(changed._waiters) == 3)
    with changed:
        changed.notify()
    eventually(lambda: len(woken) == 1)
    with changed:
        changed.notify_all()
    for each in waiting:
        each.answer()
    assert [True] * 3 == woken
    with changed:
        assert not changed.wait(0.0)
    assert not changed._waiters


def test_no_other_module_makes_one() -> None:
    """Conditions, events and threads of the standard library are entered in Python."""
    pattern = re.compile(
        r"threading\.(Condition|Event|Semaphore|Barrier|Timer|Thread)\(|queue\.Queue\(|ThreadPoolExecutor"
    )
    package = Path(afterlog.__file__).parent
    folders = [package, *(folder for folder in package.iterdir() if folder.is_dir())]  # links, most of them
    others = [path for folder in folders for path in folder.glob("*.py") if path.name != "locks.py"]
    assert len(others) > 300
    assert [] == [path.name for path in others if pattern.search(path.read_text("utf-8"))]


def test_a_deletion_that_is_struck_holds_nothing_up() -> None:
    """Amid the exit of an `ExitStack` it once left what the next adoption waits for held for good, at two places."""
    life = life_of(OS).ready()
    places = strikes.places(lambda: OPERATIONS["delete topic"](life))
    for place in campaigns.share(places, 24):
        life = life_of(OS).ready()
        with suppress(MemoryError), strikes.strike(place, MemoryError):
            OPERATIONS["delete topic"](life)
        assert not life.store._recovered_adoptions().lock.locked(), place
        assert not life.store._scheduling().lock.locked(), place
