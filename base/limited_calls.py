"""Calls that have so long and no longer: in a thread, which is struck, or in a process, which is killed.

    TimeLimits.call(do, 30)       do() ──30 s──> an exception in its thread, at its next instruction of Python
    CallProcess(call).run(x, 30)  call(x) in a process of its own ──30 s──> SIGKILL; the next call has another one

A thread that waits in C, or for a disk, is struck once it comes back; a process is not asked. What strikes is no
`Exception`, so that a handler's `except Exception` does not swallow it (as Dramatiq's time limits). It cannot come
after the call: who ends it and who strikes have one lock, and what is on its way then is caught there.
"""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import pickle
import signal
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import CancelledError
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from afterlog.base.errors import InvalidArgument
from afterlog.base.locks import Condition, Thread

Given = TypeVar("Given")


class CallStruck(BaseException):
    """Strikes in the thread of a call whose time is up."""


class CallFailed(Exception):
    """A call failed in its process, by an error that cannot be brought here, or the process did."""


class _LimitedCall:
    def __init__(self, end_s: float) -> None:
        self.thread_id = threading.get_ident()
        self.end_s = end_s
        self.is_struck = False


class TimeLimits:
    """Over calls in threads of their own. Thread-safe; its own thread runs while there are any."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._now_s = monotonic_s
        self._running = set[_LimitedCall]()
        self._changed = Condition()
        self._thread: Thread | None = None

    def call(self, do: Callable[[], Given], limit_s: float) -> Given:
        """What `do` gives. Raises TimeoutError where it takes longer, and as it does."""
        mine = _LimitedCall(self._now_s() + limit_s)
        try:
            self._begin(mine)
            try:
                return do()
            finally:
                self._end(mine)
        except CallStruck:
            self._end(mine)  # it struck in the line above
            raise TimeoutError(f"it had {limit_s:g} s") from None

    def _begin(self, mine: _LimitedCall) -> None:
        with self._changed:
            self._running.add(mine)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = Thread(target=self._watch, name="afterlog-time-limits", daemon=True)
                self._thread.start()

    def _end(self, mine: _LimitedCall) -> None:
        """Nothing strikes any more when it returns."""
        with self._changed:
            self._running.discard(mine)
        if mine.is_struck:
            _strike(mine.thread_id, None)

    def _watch(self) -> None:
        with self._changed:
            while self._running:
                now_s = self._now_s()
                for each in self._running:
                    if each.end_s <= now_s and not each.is_struck:
                        each.is_struck = True
                        _strike(each.thread_id, CallStruck)
                left_s = [each.end_s - now_s for each in self._running if not each.is_struck]
                self._changed.wait(min(left_s, default=None))
            self._thread = None


def _strike(thread_id: int, error: type[BaseException] | None) -> None:
    """Raise it in that thread; None: nothing of the kind any more."""
    struck = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), struck)


class CallProcess:
    """A function of one argument, in a process that is started anew where it died. `run` by one thread at a time."""

    def __init__(self, call: Callable[[Any], object]) -> None:
        """Raises InvalidArgument where the function cannot be found by its name in another process."""
        try:
            pickle.dumps(call)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise InvalidArgument(
                f"{call!r} cannot run in a process of its own, where it is imported by its name: {error}"
            ) from None
        self._call = call
        self._process: Any = None
        self._pipe: Connection | None = None
        self._is_over = False
        self._lock = threading.Lock()

    def run(self, argument: object, limit_s: float | None = None) -> None:
        """Call it there. Raises TimeoutError, CallFailed, what the call does, and CancelledError once it is over."""
        pipe = self._started()
        try:
            pipe.send(argument)
            if not pipe.poll(limit_s):
                self._kill()
                raise TimeoutError(f"it had {limit_s:g} s")
            answer = pipe.recv()
        except (EOFError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            code = self._kill()
            if self._is_over:
                raise CancelledError from None
            raise CallFailed(f"its process ended, with exit code {code}") from None
        if answer is not None:
            raise _error_of(*answer)

    def close(self) -> None:
        """Kill the process, if there is one, and start no other. From any thread."""
        self._is_over = True
        self._kill()

    def _started(self) -> Connection:
        with self._lock:
            if self._is_over:
                raise CancelledError
            if self._pipe is None:
                spawned = multiprocessing.get_context("spawn")  # a fork would have the locks of threads that it has not
                ours, theirs = spawned.Pipe()
                process = spawned.Process(target=_serve, args=(theirs, self._call), daemon=True)
                process.start()
                theirs.close()
                self._process, self._pipe = process, ours
            return self._pipe

    def _kill(self) -> int | None:
        """Its exit code."""
        with self._lock:
            process, self._process = self._process, None
            self._pipe = None
        if process is None:
            return None
        process.kill()
        process.join()
        code: int | None = process.exitcode
        return code


def _serve(pipe: Connection, call: Callable[[Any], object]) -> None:
    """In the process: call after call, until nobody asks any more. Who stops the program stops it, not the signal."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    while True:
        try:
            argument = pipe.recv()
        except (EOFError, OSError):
            return
        answer = None
        try:
            made = call(argument)
            if asyncio.iscoroutine(made):
                asyncio.run(made)
        except BaseException as error:
            answer = _answer_of(error)
        try:
            pipe.send(answer)
        except OSError:
            return


def _answer_of(error: BaseException) -> tuple[bytes, str, str]:
    try:
        pickled = pickle.dumps(error)
    except Exception:
        pickled = b""
    return pickled, f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))


def _error_of(pickled: bytes, said: str, where: str) -> BaseException:
    """As it was raised there, with where; else one that says so."""
    error: BaseException
    try:
        error = pickle.loads(pickled)
        assert isinstance(error, BaseException)
    except Exception:
        error = CallFailed(said)
    error.add_note(where)
    return error
