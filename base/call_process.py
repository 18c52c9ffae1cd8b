"""A function in a process of its own, called with bytes again and again; killed where a call takes too long.

    CallProcess(serve, "jobs", "report").run(data, 30)
        ──pipe──> serve(data, "jobs", "report")
        ──30 s──> SIGKILL, TimeoutError; the next call has another process

It is spawned: a fork would have the locks of threads that it has not. Nothing is pickled but the function's name: calls
are bytes, and what one raises comes back in words, as an error of the name that it had.
"""

from __future__ import annotations

import json
import multiprocessing
import signal
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import CancelledError
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

Serve: TypeAlias = Callable[..., None]
"""Of a module, by its name there; of bytes, and of names."""


class CallFailed(Exception):
    """A call failed in its process, or the process did. What it raised has its own name, and this as its base."""


class CallProcess:
    """`run` by one thread at a time, `close` by any."""

    def __init__(self, serve: Serve, *names: str) -> None:
        self._serve = serve
        self._names = names
        self._process: Any = None
        self._pipe: Connection | None = None
        self._is_over = False
        self._lock = threading.Lock()

    def run(self, data: bytes, limit_s: float | None = None) -> None:
        """Call it. Raises TimeoutError, CallFailed, and CancelledError once it is over."""
        pipe = self._started()
        try:
            pipe.send_bytes(data)
            is_answered = pipe.poll(limit_s)
            answer = json.loads(pipe.recv_bytes()) if is_answered else None
        except (EOFError, OSError):
            code = self._kill()
            if self._is_over:
                raise CancelledError from None
            raise CallFailed(f"its process ended, with exit code {code}") from None
        if answer is None:
            self._kill()
            raise TimeoutError(f"it had {limit_s:g} s")
        if answer:
            name, text, where = answer
            error: CallFailed = type(name, (CallFailed,), {})(text)
            error.add_note(where)
            raise error

    def close(self) -> None:
        """Kill the process, if there is one, and start no other."""
        self._is_over = True
        self._kill()

    def _started(self) -> Connection:
        with self._lock:
            if self._is_over:
                raise CancelledError
            if self._pipe is None:
                spawned = multiprocessing.get_context("spawn")
                ours, theirs = spawned.Pipe()
                process = spawned.Process(target=_served, args=(theirs, self._serve, self._names), daemon=True)
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


def _served(pipe: Connection, serve: Serve, names: tuple[str, ...]) -> None:
    """In the process: call after call, until nobody asks any more. Whoever asks ends it, and no signal to the group."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    while True:
        try:
            data = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        answer = list[str]()
        try:
            serve(data, *names)
        except BaseException as error:
            answer = [type(error).__name__, str(error), "".join(traceback.format_exception(error))]
        try:
            pipe.send_bytes(json.dumps(answer).encode())
        except OSError:
            return
