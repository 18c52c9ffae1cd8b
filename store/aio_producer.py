"""A buffered producer for tasks, whoever has the store."""

from __future__ import annotations

from afterlog.fetch.record_id import RecordId
from afterlog.produce.producer import Producer
from afterlog.store.aio_calls import Calls
from afterlog.store.awaiting import Closing, awaited, buffered


class AsyncProducer(Closing):
    """Made by `store.producer`. `send` is awaited twice: for a place in the buffer, and for the append."""

    def __init__(self, producer: Producer[RecordId], calls: Calls) -> None:
        self._blocking = producer
        self._run = calls.run

    send = buffered(Producer[RecordId].send)
    flush = awaited(Producer.flush)
    close = awaited(Producer.close)
