"""What a reader has to look at, and until when it waits."""

from __future__ import annotations

import threading

import pytest

from afterlog.base.clock import ManualClock
from afterlog.fetch import agenda as agenda_module
from afterlog.fetch.agenda import Agenda, in_turn
from afterlog.log.notifier import NEVER_MS, Notifier
from tests.support import NOW_MS, PATIENCE_S, SteppedClock


class Setting:
    """Three partitions, in none of which anything was found."""

    def __init__(self) -> None:
        self.clock = SteppedClock(NOW_MS)
        self.agenda = Agenda(3, self.clock, self.clock.now_ms)
        assert [0, 1, 2] == self.agenda.rows(), "at first, all"
        for row in range(3):
            self.rest(row, NEVER_MS)

    def rest(self, row: int, until_ms: int) -> None:
        self.agenda.rest(row, self.agenda.stirs[row], until_ms)


@pytest.fixture
def setting() -> Setting:
    return Setting()


def test_what_was_looked_at_rests_until_its_time(setting: Setting) -> None:
    setting.rest(1, NOW_MS + 10)
    setting.rest(2, NOW_MS + 20)
    assert ([], False, NOW_MS + 10) == (setting.agenda.rows(), setting.agenda.due(), setting.agenda.first_ms())
    setting.clock.advance(10)
    assert ([1], True) == (setting.agenda.rows(), setting.agenda.due())
    setting.clock.advance(10)
    assert [1, 2] == setting.agenda.rows(), "looked at it, and found something: it stays"


def test_what_comes_is_looked_at_when_it_may_be_due(setting: Setting) -> None:
    setting.agenda.stir(2, NOW_MS + 5)
    assert [] == setting.agenda.rows()
    setting.agenda.stir(2, NOW_MS + 9)
    setting.agenda.stir(0)
    assert [0] == setting.agenda.rows()
    setting.clock.advance(5)
    assert [0, 2] == setting.agenda.rows()


def test_what_comes_while_a_reader_looks_is_looked_at_once_more(setting: Setting) -> None:
    setting.agenda.stir(0)
    stirs = setting.agenda.stirs[0]
    setting.agenda.stir(0, NOW_MS + 50)
    setting.agenda.rest(0, stirs, NEVER_MS)
    assert [0] == setting.agenda.rows()
    setting.rest(0, NOW_MS + 50)
    assert [] == setting.agenda.rows()


def test_a_notifier_tells_of_its_own_row_and_as_much_later_as_was_asked_for(setting: Setting) -> None:
    notifier, later = Notifier(), Notifier()
    setting.agenda.follow(1, notifier)
    setting.agenda.follow(2, later, 100)
    notifier.notify()
    later.notify(NOW_MS)
    assert ([1], NOW_MS + 100) == (setting.agenda.rows(), setting.agenda._from_ms[2])
    setting.agenda.close()
    assert [0, 1, 2] == setting.agenda.rows(), "who waits finds out"
    setting.rest(1, NEVER_MS)
    notifier.notify()
    assert [0, 2] == setting.agenda.rows(), "and nothing is told any more"


def test_a_wait_is_until_the_first_time_or_what_comes_before_it(setting: Setting) -> None:
    setting.clock.steps = [lambda: None] * 2
    setting.agenda.wait(2.5)
    setting.rest(1, NOW_MS + 10)
    setting.agenda.wait(None)
    assert [(None, 2.5), (NOW_MS + 10, None)] == setting.clock.waits
    setting.agenda.stir(0)
    setting.agenda.wait(None)
    assert 2 == len(setting.clock.waits), "nobody waits where something is there"


def test_a_wait_is_by_the_clock_that_waits_where_a_jump_is_held_back() -> None:
    clock = SteppedClock(NOW_MS + 1_000)
    agenda = Agenda(1, clock, lambda: NOW_MS)
    agenda.rest(0, 0, NOW_MS + 10)
    clock.steps = [lambda: None]
    agenda.wait(None)
    assert [(NOW_MS + 1_010, None)] == clock.waits


@pytest.mark.parametrize("ms", [0, NOW_MS + 5])
def test_who_waits_is_woken_only_by_what_comes_earlier(ms: int) -> None:
    clock = ManualClock(NOW_MS)
    agenda = Agenda(2, clock, clock.now_ms)
    agenda.rest(0, 0, NOW_MS + 10)
    agenda.rest(1, 0, NEVER_MS)
    told: list[Agenda] = []
    agenda.listen(told.append)
    agenda.first_ms()
    agenda.stir(1, NOW_MS + 10)
    assert [] == told
    agenda.stir(1, ms)
    assert [agenda] == told


def test_a_thread_that_waits_is_woken() -> None:
    clock = ManualClock(NOW_MS)
    agenda = Agenda(1, clock, clock.now_ms)
    agenda.rest(0, 0, NEVER_MS)
    woken = threading.Event()

    def wait() -> None:
        while not agenda.due():
            agenda.wait(None)
        woken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    agenda.stir(0)
    assert woken.wait(PATIENCE_S)
    thread.join()


def test_what_was_told_and_lost_is_looked_at_in_the_end(monkeypatch: pytest.MonkeyPatch, setting: Setting) -> None:
    """An exception may strike between a change and the telling."""
    monkeypatch.setattr(agenda_module, "OVERLOOKED_ROWS", 2)
    looked = []
    for _ in range(3):
        assert [] == setting.agenda.rows()
        setting.clock.patience_s += agenda_module.OVERLOOKED_S
        rows = setting.agenda.rows()
        looked.append(rows)
        for row in rows:
            setting.rest(row, NEVER_MS)
    assert [[0, 1], [0, 2], [1, 2]] == looked


def test_rows_are_taken_in_turn() -> None:
    assert [[1, 3, 5], [3, 5, 1], [3, 5, 1], [1, 3, 5]] == [in_turn([1, 3, 5], turn) for turn in (1, 2, 3, 6)]
