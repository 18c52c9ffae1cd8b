"""Two operations on one log, one after the other but for chosen places: no chance in it.

    second   starts ── held before its fdatasync ·················── goes on: what it wrote becomes visible ──> done
    first                                         ── held at a line ·······································── goes on

One of them runs at a time: a thread that holds goes on when it is told to, and one that would wait for the other's lock
says so before it does.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any
from unittest.mock import patch

from tests.support import PATIENCE_S

_LOCK, _RLOCK = threading.Lock, threading.RLock
HELD, WAITING, DONE = "held", "waiting", "done"


class Actor:
    """An operation in a thread of its own. `start` and `go_on` return once it holds, waits for a lock, or is done."""

    def __init__(
        self,
        call: Callable[[], object],
        *,
        at_line: tuple[str, int] | None = None,
        at_sync: bool = False,
        behind: Callable[[], object] | None = None,
    ) -> None:
        """at_line: hold at the line of that number among those of files whose name begins so. behind: called at each
        of them from there on. at_sync: hold before the first fdatasync."""
        self.state = ""
        """What was heard of it last."""
        self.lines = 0
        """Of those files, so far."""
        self.where = ""
        self.at_sync = at_sync
        self._call = call
        self._behind = behind
        self._prefix, self._line = at_line or ("", -1)
        self._error: BaseException | None = None
        self._told, self._may = queue.SimpleQueue[str](), queue.SimpleQueue[None]()
        self._waits = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def start(self) -> str:
        self._thread.start()
        return self._heard()

    def go_on(self) -> str:
        """Of one that holds."""
        self._may.put(None)
        return self._heard()

    def end(self) -> None:
        """It goes on to its end. Raises what it has raised."""
        while self.state != DONE:
            self.go_on() if self.state == HELD else self._heard()
        self._thread.join(PATIENCE_S)
        if self._error is not None:
            raise self._error

    def hold(self) -> None:
        self._told.put(HELD)
        self._may.get(timeout=PATIENCE_S)

    def waits(self) -> None:
        """It is about to wait for a lock."""
        if not self._waits:
            self._waits = True
            self._told.put(WAITING)

    def _heard(self) -> str:
        self.state = self._told.get(timeout=PATIENCE_S)
        return self.state

    def _run(self) -> None:
        if self._prefix:
            sys.settrace(self._trace)
        try:
            self._call()
        except BaseException as error:
            self._error = error
        finally:
            sys.settrace(None)
            self._told.put(DONE)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(self._prefix):
            return self._trace if event == "call" else None
        if event == "line":
            if self.lines == self._line:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}"
                self.hold()
            if self._line <= self.lines and self._behind is not None:
                self._behind()
            self.lines += 1
        return self._trace


class Turns:
    """Of the actors of now, who waits for a lock is known."""

    def __init__(self) -> None:
        self.actors: list[Actor] = []

    def before_sync(self) -> None:
        for actor in self.actors:
            if actor.is_current and actor.at_sync:
                actor.at_sync = False
                actor.hold()

    def waits(self) -> None:
        for actor in self.actors:
            if actor.is_current:
                actor.waits()

    @contextlib.contextmanager
    def locks(self) -> Iterator[None]:
        """Locks that are made in the block tell who is about to wait for them."""
        with (
            patch.object(threading, "Lock", lambda: _Told(_LOCK(), self)),
            patch.object(threading, "RLock", lambda: _Told(_RLOCK(), self)),
        ):
            yield


class OwnLock(Exception):
    """Who looks at a line of an operation would wait for a lock that the operation holds there."""


class _Told:
    """A lock."""

    def __init__(self, lock: Any, turns: Turns) -> None:
        self._lock = lock
        self._turns = turns
        self._owner = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not self._lock.acquire(False):
            if not blocking:
                return False
            if self._owner == threading.get_ident():
                raise OwnLock
            self._turns.waits()
            if not self._lock.acquire(blocking, timeout):
                return False
        self._owner = threading.get_ident()
        return True

    def release(self) -> None:
        self._owner = 0
        self._lock.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
