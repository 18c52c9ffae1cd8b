"""Long polls under way, and how they are ended: by a close, a drain, or a record that is settled.

A wait is a request that the server answers late. To end it, nothing more is said on its connection: the server takes
that for a client that has gone, and takes nothing for it; what it had taken already it answers, and that is given back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from afterlog.base.locks import Condition


class Polls:
    """The waits of one reader. Thread-safe."""

    def __init__(self) -> None:
        self.ended = False
        self._hang_ups: dict[int, Callable[[], object]] = {}
        self._lock = threading.Lock()

    def add(self, hang_up: Callable[[], object]) -> int:
        """A wait begins; its number."""
        with self._lock:
            number = id(hang_up)
            self._hang_ups[number] = hang_up
            if not self.ended:
                return number
        hang_up()
        return number

    def remove(self, number: int) -> None:
        with self._lock:
            self._hang_ups.pop(number, None)

    def end(self) -> None:
        """End those that wait, and all that come."""
        with self._lock:
            self.ended = True
            hang_ups = [*self._hang_ups.values()]
        for hang_up in hang_ups:
            hang_up()


class Waking:
    """Tells who pauses that there may be something to do. Thread-safe.

    Whoever pauses says which `version` it has seen: what came since ends the pause at once.
    """

    def __init__(self) -> None:
        self.version = 0
        self.changed = Condition()
        self._listeners: list[Callable[[], object]] = []

    def wake(self) -> None:
        with self.changed:
            self.version += 1
            self.changed.notify_all()
            listeners = [*self._listeners]
        for listener in listeners:
            listener()

    def listen(self, listener: Callable[[], object]) -> None:
        with self.changed:
            self._listeners.append(listener)

    def leave(self, listener: Callable[[], object]) -> None:
        with self.changed:
            self._listeners = [each for each in self._listeners if each is not listener]
