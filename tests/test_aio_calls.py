"""What the tasks of a store share: calls in threads, and one thread that waits for all."""

from __future__ import annotations

import asyncio
import threading

import pytest

from afterlog.aio_calls import Calls, Line, Waiters
from afterlog.clock import ManualClock
from afterlog.errors import StoreClosed
from afterlog.fetch.pause import Pause
from tests.support import PATIENCE_S, Gate, eventually


class Setting:
    def __init__(self) -> None:
        self.calls = Calls()
        self.clock = ManualClock(1_000)
        self.changed = threading.Condition()
        self.waiters = Waiters(self.calls, self.clock, self.clock.now_ms, self.changed)


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


def test_each_waits_for_its_own_pause() -> None:
    async def main() -> None:
        setting, told = Setting(), set[int]()
        dues = [None, None, 2_000, 3_000]
        pauses = [Pause(lambda number=number: number in told, False, due) for number, due in enumerate(dues)]  # type: ignore[misc]
        tasks = [asyncio.create_task(setting.waiters.wait(pause, None)) for pause in pauses]
        await asyncio.sleep(0)

        async def woken(*numbers: int) -> None:
            await asyncio.wait_for(asyncio.gather(*(tasks[number] for number in numbers)), PATIENCE_S)
            assert len(numbers) == sum(task.done() for task in tasks)

        setting.clock.advance(1_000)
        await woken(2)
        told.add(1)
        with setting.changed:
            setting.changed.notify_all()
        await woken(1, 2)
        tasks[0].cancel()
        setting.clock.advance(1_000)
        await asyncio.wait(tasks)
        assert tasks[0].cancelled()
        await asyncio.to_thread(eventually, lambda: not setting.waiters._running)
        setting.calls.close()
        await setting.waiters.wait(pauses[0], None)

    asyncio.run(main())


def test_a_pause_that_cannot_be_asked_is_over() -> None:
    def over() -> int:
        raise StoreClosed("closed")

    async def main() -> None:
        setting = Setting()
        await asyncio.wait_for(setting.waiters.wait(Pause(over, 1, None), None), PATIENCE_S)
        setting.calls.close()

    asyncio.run(main())


def test_a_loop_that_is_closed_over_its_tasks_leaves_no_thread_behind() -> None:
    setting, loop = Setting(), asyncio.new_event_loop()
    task = loop.create_task(setting.waiters.wait(Pause(lambda: 1, 1, None), None))
    loop.run_until_complete(asyncio.sleep(0))
    assert setting.waiters._running
    loop.close()
    with setting.changed:
        setting.changed.notify_all()
    eventually(lambda: not setting.waiters._running)
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    setting.calls.close()


def test_many_at_one_reader_look_only_as_long_as_something_is_found() -> None:
    async def main() -> None:
        setting, there, looks = Setting(), list[str](), 0
        line = Line(setting.waiters)

        async def look() -> str | Pause:
            nonlocal looks
            looks += 1
            await asyncio.sleep(0)
            return there.pop(0) if there else Pause(seen, tuple(there), None)

        def seen() -> tuple[str, ...]:
            return tuple(there)

        tasks = [asyncio.create_task(line.found(look, None)) for _ in range(100)]
        await asyncio.wait_for(waiting(setting, 100), PATIENCE_S)
        looks = 0
        there += ["a", "b"]
        with setting.changed:
            setting.changed.notify_all()
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
