"""Threads that make blocking calls for an event loop: started when needed, and kept.

    begin(call) ──> queue ──> a thread that is free, or a new one as long as there are fewer than `most`

An executor makes a future, a condition and a work item for each call, which nobody looks at where the loop is told by
the call itself: 15 us of CPU of 41. What is begun is done, also where the process ends in the ordinary way meanwhile.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from weakref import WeakSet

from afterlog.base.environment import at_exit
from afterlog.base.locks import Thread

logger = logging.getLogger("afterlog")

ThreadJob = Callable[[], object]
"""Whoever began it hears from itself what came of it."""


class WorkerThreads:
    """Up to `most` of them. Begun from one thread, that of the loop."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._queue: SimpleQueue[ThreadJob | None] = SimpleQueue()
        self._free: deque[None] = deque()
        """As many as there are threads that wait for a job which nobody has begun yet."""
        self._threads: list[Thread] = []
        self._ended = False
        _there.add(self)

    def begin(self, job: ThreadJob) -> None:
        """To be called in a thread. Raises RuntimeError once they have ended."""
        if self._ended:
            raise RuntimeError("no calls any more: the store is closed, or the process ends")
        self._queue.put(job)
        if self._free:
            self._free.pop()
        elif len(self._threads) < self._most:
            number = len(self._threads)
            work = (self._queue, self._free)
            thread = Thread(target=_work, args=work, name=f"{self._name}_{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def end(self) -> None:
        """No more jobs; those that were begun are done."""
        if not self._ended:
            self._ended = True
            for _ in self._threads:
                self._queue.put(None)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def __del__(self) -> None:
        self.end()


def _work(queue: SimpleQueue[ThreadJob | None], free: deque[None]) -> None:
    """Not a method: a thread keeps nobody alive who has forgotten to end it."""
    while (job := queue.get()) is not None:
        try:
            job()
        except BaseException:
            logger.exception("a call in a thread has failed, and nobody waits for it")
        del job  # and what it holds
        free.append(None)


_there: WeakSet[WorkerThreads] = WeakSet()


def _end_all() -> None:
    threads = [*_there]
    for each in threads:
        each.end()
    for each in threads:
        each.join()


at_exit(_end_all)
