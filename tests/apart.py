"""Calls in a process of its own, which may die or hang: that is then the call's failure, and the tests go on."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

Result = TypeVar("Result")


class Apart:
    """One process, started with the first call and again after a call that it did not survive."""

    def __init__(self, timeout_s: float = 300) -> None:
        self._timeout_s = timeout_s
        self._pool: ProcessPoolExecutor | None = None

    def __call__(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """What `function` returns or raises there. AssertionError if the process died of it, or hung."""
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=faulthandler.enable)
        try:
            return self._pool.submit(function, *arguments).result(self._timeout_s)
        except (BrokenProcessPool, TimeoutError) as error:
            self.end()
            how = "hangs" if isinstance(error, TimeoutError) else "died; the last words are among what was captured"
            raise AssertionError(f"the process of {function.__qualname__}{arguments} {how}") from None

    def end(self) -> None:
        if self._pool is not None:
            for process in [*(self._pool._processes or {}).values()]:
                process.kill()
            self._pool.shutdown()
            self._pool = None


@contextlib.contextmanager
def apart(timeout_s: float = 300) -> Iterator[Apart]:
    calls = Apart(timeout_s)
    try:
        yield calls
    finally:
        calls.end()
