"""What the tasks of a store share: calls in threads, and one timer for all who wait."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable

import pytest

from afterlog.base.clock import ManualClock, SystemClock
from afterlog.base.errors import StoreClosed
from afterlog.fetch.agenda import Agenda
from afterlog.log.notifier import NEVER_MS
from afterlog.store.aio_calls import Calls, Line, Waiters
from tests.support import PATIENCE_S, Gate


class Setting:
    def __init__(self) -> None:
        self.calls = Calls()
        self.clock = ManualClock(1_000)
        self.waiters = Waiters(self.calls, self.clock, self.clock.now_ms)

    def agenda(self, due_ms: int) -> Agenda:
        """With nothing to look at before that."""
        agenda = Agenda(1, self.clock, self.clock.now_ms)
        agenda.rest(0, agenda.stirs[0], due_ms)
        return agenda

    async def waited(self, agenda: Agenda) -> None:
        while not agenda.due():
            await self.waiters.wait(agenda, None)


def test_a_call_is_made_elsewhere_and_answers_or_raises() -> None:
    async def main() -> None:
        calls = Calls()
        assert threading.get_ident() != await calls.run(threading.get_ident)
        with pytest.raises(ZeroDivisionError):
            await calls.run(lambda: 1 // 0)
        calls.close()
        assert threading.get_ident() == await calls.run(threading.get_ident), "nothing blocks any more"
        assert calls.closed

    asyncio.run(main())


def test_what_a_cancelled_call_gave_is_undone_and_an_error_is_nobodys() -> None:
    async def main() -> None:
        calls, undone = Calls(), list[str]()
        for answer in ("given", StoreClosed("closed")):
            gate = Gate()

            def call(answer: str | Exception = answer, gate: Gate = gate) -> str:
                gate.passing()
                if isinstance(answer, Exception):
                    raise answer
                return answer

            task = asyncio.create_task(calls.run(call, undo=undone.append))
            await asyncio.to_thread(gate.came)
            task.cancel()
            gate.open()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert ["given"] == undone
        calls.close()

    asyncio.run(main())


def test_each_waits_for_its_own_agenda() -> None:
    async def main() -> None:
        setting = Setting()
        agendas = [setting.agenda(due_ms) for due_ms in (NEVER_MS, NEVER_MS, 2_000, 3_000)]
        tasks = [asyncio.create_task(setting.waiters.wait(agenda, None)) for agenda in agendas]
        await asyncio.sleep(0)

        async def woken(*numbers: int) -> None:
            await asyncio.wait_for(asyncio.gather(*(tasks[number] for number in numbers)), PATIENCE_S)
            assert len(numbers) == sum(task.done() for task in tasks)

        setting.clock.advance(1_000)
        await woken(2)
        await asyncio.to_thread(agendas[1].stir, 0)
        await woken(1, 2)
        tasks[0].cancel()
        setting.clock.advance(1_000)
        await asyncio.wait(tasks)
        assert tasks[0].cancelled()
        assert ({}, {}, 0) == (setting.waiters._waiting, setting.waiters._times, len(setting.waiters._in_order))
        assert not setting.clock._watching, "nobody watches it for nothing"
        setting.calls.close()
        await setting.waiters.wait(agendas[0], None)

    asyncio.run(main())


def test_what_comes_earlier_than_was_known_is_waited_for_instead() -> None:
    async def main() -> None:
        setting = Setting()
        agenda, other = setting.agenda(9_000), setting.agenda(3_000)
        tasks = [asyncio.create_task(setting.waited(each)) for each in (agenda, other)]
        await asyncio.sleep(0)
        await asyncio.to_thread(agenda.stir, 0, 2_000)
        while setting.waiters._times.get(agenda) != 2_000:
            await asyncio.sleep(0)
        setting.clock.advance(1_000)
        await asyncio.wait_for(tasks[0], PATIENCE_S)
        assert not tasks[1].done()
        setting.clock.advance(1_000)
        await asyncio.wait_for(tasks[1], PATIENCE_S)
        setting.calls.close()

    asyncio.run(main())


def test_a_loop_that_is_closed_over_its_tasks_leaves_nothing_behind_and_another_may_come() -> None:
    setting, loop = Setting(), asyncio.new_event_loop()
    agenda = setting.agenda(2_000)
    task = loop.create_task(setting.waiters.wait(agenda, None))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert setting.clock._watching
    agenda.stir(0)
    setting.clock.advance(500)
    assert ({}, {}) == (setting.clock._watching, setting.waiters._waiting)
    task._log_destroy_pending = False  # type: ignore[attr-defined]

    async def main() -> None:
        waiting = asyncio.create_task(setting.waited(setting.agenda(2_000)))
        await asyncio.sleep(0)
        setting.clock.advance(500)
        await asyncio.wait_for(waiting, PATIENCE_S)

    asyncio.run(main())
    setting.calls.close()


def test_a_clock_keeps_nobody_whose_loop_was_closed() -> None:
    """Where nothing stirs, and nobody sets it: that of the machine is there for ever."""
    setting, loop = Setting(), asyncio.new_event_loop()
    clock = setting.clock
    task = loop.create_task(setting.waiters.wait(setting.agenda(2_000), None))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    setting.calls.close()
    assert clock._watching
    del task, setting
    gc.collect()
    assert not clock._watching


def test_nobody_begins_a_thread_to_wait() -> None:
    async def main() -> None:
        setting, before = Setting(), threading.active_count()
        waiting = [asyncio.create_task(setting.waited(setting.agenda(2_000 + number))) for number in range(10)]
        await asyncio.sleep(0)
        assert before == threading.active_count()
        setting.clock.advance(1_010)
        await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE_S)

    asyncio.run(main())


def test_a_real_clock_wakes_by_a_timer_and_a_step_of_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        stepped, clock = list[Callable[[], object]](), SystemClock()
        monkeypatch.setattr(SystemClock, "watch", lambda clock, stir: stepped.append(stir) or stepped.clear)
        waiters, wall_ms = Waiters(Calls(), clock, lambda: clock.now_ms() + ahead_ms), clock.now_ms()
        ahead_ms = 0
        soon, later = Agenda(1, clock, waiters._now_ms), Agenda(1, clock, waiters._now_ms)
        soon.rest(0, soon.stirs[0], wall_ms + 2)
        later.rest(0, later.stirs[0], wall_ms + 3_600_000)

        async def waited(agenda: Agenda) -> None:
            while not agenda.due():
                await waiters.wait(agenda, None)

        tasks = [asyncio.create_task(waited(agenda)) for agenda in (soon, later)]
        await asyncio.wait_for(tasks[0], PATIENCE_S)
        assert not tasks[1].done()
        ahead_ms = 3_600_000
        [stir] = stepped
        await asyncio.to_thread(stir)
        await asyncio.wait_for(tasks[1], PATIENCE_S)
        assert not stepped, "nobody watches it for nothing"

    asyncio.run(main())


def test_many_at_one_reader_look_only_as_long_as_something_is_found() -> None:
    async def main() -> None:
        setting, there, looks = Setting(), list[str](), 0
        agenda = setting.agenda(NEVER_MS)
        line = Line(setting.waiters, agenda)

        async def look() -> str | None:
            nonlocal looks
            looks += 1
            stirs = agenda.stirs[0]
            await asyncio.sleep(0)
            if there:
                return there.pop(0)
            agenda.rest(0, stirs, NEVER_MS)
            return None

        tasks = [asyncio.create_task(line.found(look, None)) for _ in range(100)]
        await asyncio.wait_for(waiting(setting, 100), PATIENCE_S)
        looks = 0
        there += ["a", "b"]
        agenda.stir(0)
        while sum(task.done() for task in tasks) < 2:
            await asyncio.sleep(0)
        await asyncio.wait_for(waiting(setting, 98), PATIENCE_S)
        assert ["a", "b"] == sorted(task.result() or "" for task in tasks if task.done())
        assert looks <= 4
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        setting.calls.close()

    async def waiting(setting: Setting, count: int) -> None:
        while sum(map(len, setting.waiters._waiting.values())) != count:
            await asyncio.sleep(0)

    asyncio.run(main())


def test_patience_ends_where_nothing_comes() -> None:
    async def main() -> None:
        setting = Setting()

        async def look() -> bool:
            return False

        assert await Line(setting.waiters, setting.agenda(NEVER_MS)).found(look, 0.001) is None
        setting.calls.close()

    asyncio.run(main())
