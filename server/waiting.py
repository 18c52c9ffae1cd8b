"""Requests that wait for a record: a task each and no thread; a wait ends when its client goes or the server stops.

    found = await waits.until(subscription.receive(100, timeout=20), request.receive)

What was taken for a client that is gone goes back, since the wait is cancelled (`aio_calls`). A server that stops
answers all who wait with nothing, at once: they come back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from afterlog.server.request import ClientGone, Receive

Waited = TypeVar("Waited")


class Waits:
    """Of one server, in its event loop."""

    def __init__(self) -> None:
        self._waiting: set[_Wait] = set()
        self._over = False

    def __len__(self) -> int:
        return len(self._waiting)

    async def until(self, found: Coroutine[Any, Any, Waited], receive: Receive) -> Waited | None:
        """What is found; None where the server stops meanwhile. Raises ClientGone."""
        if self._over:
            found.close()
            return None
        task = asyncio.current_task()
        assert task is not None, "requests are tasks"
        wait = _Wait(task)
        listening = asyncio.ensure_future(wait.listen(receive))
        self._waiting.add(wait)
        try:
            return await found
        except asyncio.CancelledError:
            if not wait.ended:  # by somebody else
                raise
            task.uncancel()
            if wait.gone:
                raise ClientGone from None
            return None
        finally:
            self._waiting.discard(wait)
            wait.ended = True
            listening.cancel()

    def end(self) -> None:
        """Nobody waits any more, from now on."""
        self._over = True
        for wait in list(self._waiting):
            wait.end()


class _Wait:
    """Of one request, and its end."""

    __slots__ = ("_task", "ended", "gone")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task
        self.ended = False
        self.gone = False

    async def listen(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if not self.ended:
            self.gone = True
            self.end()

    def end(self) -> None:
        if not self.ended:
            self.ended = True
            self._task.cancel()
