"""Locks that are held together are let go, whatever strikes, wherever."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

from afterlog.config import OS
from afterlog.locks import within
from tests import campaigns, strikes
from tests.life import OPERATIONS, life_of

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 17, 5_000])
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
