"""The blocking client's connections: each call takes one, and tries until it is answered (`retry.py`).

A connection is kept for the next call, the last one used first; one more is made where all are in use, so that a
thread that waits for records holds up no other. Each has its lane (`lanes.py`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from afterlog.base.clock import Clock
from afterlog.base.environment import process_id
from afterlog.base.errors import AfterlogError, StoreClosed, StoreForked
from afterlog.base.locks import Condition
from afterlog.client.call import AnswerOf, Call, Connecting, Pause, ServerConnection, Steps
from afterlog.client.lanes import Lane
from afterlog.client.retry import Attempts
from afterlog.client.server_time import ServerTime

KEPT = 32
"""Connections that nobody uses."""


class _Slot(NamedTuple):
    connection: ServerConnection
    lane: Lane


class Pool:
    """Thread-safe."""

    def __init__(self, connecting: Connecting, clock: Clock, server_time: ServerTime, timeout_s: float) -> None:
        self._connecting = connecting
        self._clock = clock
        self._server_time = server_time
        self._timeout_s = timeout_s
        self._idle: list[_Slot] = []
        self._busy: dict[int, _Slot] = {}
        self._owner = process_id()
        self._changed = Condition()
        self.closed = False

    def drive(self, steps: Steps[AnswerOf]) -> AnswerOf:
        """Ask what the steps ask, one after the other, and return what they return."""
        try:
            asked = next(steps)
            while True:
                try:
                    answer = self._done(asked)
                except BaseException as error:
                    asked = steps.throw(error)
                else:
                    asked = steps.send(answer)
        except StopIteration as end:
            answered: AnswerOf = end.value
            return answered

    def _done(self, asked: Call[Any] | Pause) -> Any:
        return self.run(asked) if isinstance(asked, Call) else self._pause(asked)

    def run(self, asked: Call[AnswerOf]) -> AnswerOf:
        """Raises what the server says; ServerUnavailable, AnswerLost, StoreClosed, StoreForked."""
        slot = self._take()
        try:
            return self._tried(asked, slot)
        finally:
            slot.lane.left()
            self._put(slot)

    def check_usable(self) -> None:
        """Raises StoreClosed, StoreForked."""
        if self.closed:
            raise StoreClosed("the connection to the store is closed; make another with afterlog.connect(url)")
        if process_id() != self._owner:
            raise StoreForked("this is a forked child, the connection belongs to its parent: connect after the fork")

    def close(self) -> None:
        """Calls that are under way are cut off. In a forked child it only forgets."""
        if process_id() != self._owner:
            self.closed = True
            return
        with self._changed:
            self.closed = True
            idle, self._idle = self._idle, []
            busy = [*self._busy.values()]
            self._changed.notify_all()
        for slot in idle:
            slot.connection.close()
        for slot in busy:
            slot.connection.hang_up()

    def _tried(self, asked: Call[AnswerOf], slot: _Slot) -> AnswerOf:
        attempts, forgotten = Attempts(asked, self._clock, self._timeout_s), False
        while True:
            try:
                return self._once(asked, slot, attempts)
            except AfterlogError as error:
                if attempts.is_refused(error):
                    if slot.lane.refused(error) and not forgotten:
                        forgotten = True
                        continue
                    raise
                if asked.polls is not None and asked.polls.ended:
                    raise
                pause_s = attempts.pause_s(error)
            self._sleep(pause_s)

    def _once(self, asked: Call[AnswerOf], slot: _Slot, attempts: Attempts) -> AnswerOf:
        request, patience_s = slot.lane.request(asked), attempts.patience_s()
        slot.connection.connect(patience_s)
        if asked.polls is None:
            reply = slot.connection.exchange(request, patience_s)
        else:
            number = asked.polls.add(slot.connection.hang_up)  # connected, so that the end of the waits is not missed
            try:
                reply = slot.connection.exchange(request, patience_s)
            finally:
                asked.polls.remove(number)
        answer = asked.answer(reply)
        slot.lane.settled(asked)
        return answer

    def _take(self) -> _Slot:
        self.check_usable()
        with self._changed:
            slot = self._idle.pop() if self._idle else _Slot(self._connecting(), Lane())
            self._busy[id(slot)] = slot
        return slot

    def _put(self, slot: _Slot) -> None:
        with self._changed:
            self._busy.pop(id(slot), None)
            keep = not self.closed and len(self._idle) < KEPT
            if keep:
                self._idle.append(slot)
        if not keep:
            slot.connection.close()

    def _sleep(self, seconds: float) -> None:
        until_s = self._clock.monotonic_s() + seconds
        with self._changed:
            while not self.closed and (left_s := until_s - self._clock.monotonic_s()) > 0:
                self._clock.wait(self._changed, None, left_s)
        self.check_usable()

    def _pause(self, pause: Pause) -> Any:
        waking = pause.waking
        until_ms = self._clock.now_ms() + max(pause.until_ms - self._server_time.now_ms(), 0)
        with waking.changed:
            if waking.version == pause.version:
                self._clock.wait(waking.changed, until_ms, pause.seconds)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
