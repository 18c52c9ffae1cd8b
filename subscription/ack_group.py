"""Acks of blocks that have ended, of one reader, which go together: Pulsar's acknowledgmentsGroupTime.

    with message: ──> add ──┬── ack_group_ms after the first of them ──> all of them, in one ack
                            ├── MESSAGES_MAX of them wait ──> who comes then acks by itself
                            └── close, drain, seek, stats ──> before anything else

The thread that keeps leases sends them (`lease_keeper.py`). Who dies before has acked nothing of the group: its records
come again when their leases are over. What could not be sent stays, and goes with the next.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from afterlog.base.errors import AfterlogError

logger = logging.getLogger("afterlog.subscription")

MESSAGES_MAX = 256
"""In a group. Larger: fewer requests where handlers are quick, more that comes again behind a crash."""


class Ackable(Protocol):
    """A message."""

    def settle(self) -> None: ...


Grouped = TypeVar("Grouped", bound=Ackable)


def _nobody() -> None:
    """Nobody keeps it yet."""


class AckGroup(Generic[Grouped]):
    """Thread-safe. `add` does no I/O."""

    def __init__(self, group_ms: int, send: Callable[[list[Grouped]], object], *, boot_ms: Callable[[], int]) -> None:
        """send: acks them, and returns when that is safe. boot_ms: the clock by which time goes by."""
        self._group_ms = group_ms
        self._send = send
        self._boot_ms = boot_ms
        self._messages: list[Grouped] = []
        self._due_ms = 0
        self._closed = False
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self.wake: Callable[[], object] = _nobody
        """Tells who keeps it that there is something."""
        self.sent: Callable[[], object] = _nobody
        """Called behind each `flush`."""

    def add(self, message: Grouped) -> bool:
        """It is acked with the others, and counts as settled; False where whoever has it must ack it."""
        with self._lock:
            count = len(self._messages)
            if self._closed or count >= MESSAGES_MAX:
                return False
            if not count:
                self._due_ms = self._boot_ms() + self._group_ms
            self._messages.append(message)
        message.settle()
        if not count:
            self.wake()
        return True

    def keep(self) -> int | None:
        """See `lease_keeper.Keeping`: send them where it is time."""
        left_ms = self.left_ms()
        if left_ms is None or left_ms > 0:
            return left_ms
        try:
            self.flush()
        except AfterlogError as error:
            self.tell(error)
            return None if self._closed else max(self._group_ms, 1_000)
        return self.left_ms()

    def tell(self, error: AfterlogError) -> None:
        """Log why what waits was not sent: if nobody sends it, its records come again."""
        logger.error("%d acks wait: %s", len(self._messages), error)

    def left_ms(self) -> int | None:
        """How long until they go; None where nothing waits."""
        with self._lock:
            return max(self._due_ms - self._boot_ms(), 0) if self._messages else None

    def flush(self) -> None:
        """Ack what waits. Raises what `send` raises; then it waits on."""
        try:
            with self._sending:
                messages = self.take()
                try:
                    if messages:
                        self._send(messages)
                except BaseException:
                    self.put_back(messages)
                    raise
        finally:
            self.sent()

    def close(self) -> None:
        """The same, for good: from now on each is acked by itself."""
        self._closed = True
        self.flush()

    # For who must not block.

    def refuse(self) -> None:
        """From now on each is acked by itself."""
        self._closed = True

    @property
    def is_sending(self) -> bool:
        return self._sending.locked()

    def take(self) -> list[Grouped]:
        """All that waits: whoever takes it acks it, or puts it back."""
        with self._lock:
            messages, self._messages = self._messages, []
        return messages

    def put_back(self, messages: list[Grouped]) -> None:
        with self._lock:
            self._messages[:0] = messages
