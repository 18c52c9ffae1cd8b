"""What the tasks of a store share: calls in threads, and one thread that waits for all."""

from __future__ import annotations

import asyncio
import threading

import pytest

from afterlog.aio_calls import Calls, Waiters
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


def never() -> bool:
    return False


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
        pauses = [
            Pause(lambda number=number: number in told, due) for number, due in enumerate([None, None, 2_000, 3_000])
        ]  # type: ignore[misc]
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
    def over() -> bool:
        raise StoreClosed("closed")

    async def main() -> None:
        setting = Setting()
        await asyncio.wait_for(setting.waiters.wait(Pause(over, None), None), PATIENCE_S)
        setting.calls.close()

    asyncio.run(main())


def test_a_loop_that_is_closed_over_its_tasks_leaves_no_thread_behind() -> None:
    setting, loop = Setting(), asyncio.new_event_loop()
    task = loop.create_task(setting.waiters.wait(Pause(never, None), None))
    loop.run_until_complete(asyncio.sleep(0))
    assert setting.waiters._running
    loop.close()
    with setting.changed:
        setting.changed.notify_all()
    eventually(lambda: not setting.waiters._running)
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    setting.calls.close()
