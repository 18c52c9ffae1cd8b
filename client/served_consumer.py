"""A consumer of a served store, whose calls block. The names of `fetch/consumer.py`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from afterlog.client.call import Steps, blocking
from afterlog.client.consumer_steps import ConsumerSteps
from afterlog.fetch.message import Message
from afterlog.surface import ConsumerSurface, presents

if TYPE_CHECKING:
    from afterlog.client.pool import Pool
    from afterlog.fetch.message_columns import Columns


@presents(ConsumerSurface)
class ServedConsumer:
    """Made by `store.consumer`. Not thread-safe, but for `close`."""

    def __init__(self, steps: ConsumerSteps, pool: Pool) -> None:
        self._steps = steps
        self._drive: Callable[[Steps[Any]], Any] = pool.drive
        self.topic = steps.topic
        steps.reader = threading.get_ident()

    def __enter__(self) -> ServedConsumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(processed=kind is None and self._steps.reader == threading.get_ident())

    def __iter__(self) -> Iterator[Message]:
        while not self.closed:
            self._steps.reader = threading.get_ident()
            message = self._steps.next()
            if message is not None:
                yield message
            else:
                self._drive(self._steps.fill())

    @property
    def closed(self) -> bool:
        return self._steps.closed

    def poll(self, max_records: int = 500, timeout: float | None = 0.0) -> list[Message]:
        self._steps.reader = threading.get_ident()
        found: list[Message] = self._drive(self._steps.poll(max_records, timeout))
        return found

    def poll_columns(self, max_records: int = 65_536, timeout: float | None = 0.0) -> Columns:
        self._steps.reader = threading.get_ident()
        found: Columns = self._drive(self._steps.poll_columns(max_records, timeout))
        return found

    seek = blocking(ConsumerSteps.seek)
    commit = blocking(ConsumerSteps.commit)
    positions = blocking(ConsumerSteps.positions)
    committed = blocking(ConsumerSteps.committed)
    lag = blocking(ConsumerSteps.lag)
    _end = blocking(ConsumerSteps.end)

    def close(self) -> None:
        """Commit what is processed and let the partitions go. From another thread it ends the iteration.

        What was handed out last is processed if the thread that took it closes; another thread cannot know.
        """
        self._end(processed=self._steps.reader == threading.get_ident())
