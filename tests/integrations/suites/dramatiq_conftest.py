"""Fixtures for Dramatiq's own tests: its StubBroker is our broker, on a folder of its own for each test.

They are copied beside those tests as `conftest.py` (`tests/integrations/upstream.py`). What a stub broker has for
tests, and no other broker, is added here: `join` raises what was given up, and `dead_letters` has it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

import dramatiq
import pytest
from dramatiq import Broker, Consumer, MessageProxy, Worker
from dramatiq.rate_limits import RateLimiterBackend
from dramatiq.rate_limits.backends import StubBackend as StubLimits
from dramatiq.results import ResultBackend
from dramatiq.results.backends import StubBackend as StubResults

import afterlog
from afterlog.integrations.dramatiq import AfterlogBroker


class StubBroker(AfterlogBroker):
    """Its consumers note what they give up."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.dead_letters: list[MessageProxy] = []

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 100) -> Consumer:
        consumer = super().consume(queue_name, prefetch, timeout)
        nack = consumer.nack

        def noted(message: MessageProxy) -> None:
            message.kept_exception = message._exception
            self.dead_letters.append(message)
            nack(message)

        consumer.nack = noted
        return consumer

    def join(self, queue_name: str, *, interval: int = 20, timeout: int | None = None, fail_fast: bool = True) -> None:
        super().join(queue_name, interval=interval, timeout=timeout)
        for message in self.dead_letters:
            if fail_fast and message.queue_name == queue_name:
                raise message.kept_exception or Exception("given up") from None
            message.kept_exception = None


@pytest.fixture
def stub_broker() -> Iterator[Broker]:
    with tempfile.TemporaryDirectory() as folder, afterlog.open(folder) as store:
        broker = StubBroker(store)
        broker.emit_after("process_boot")
        dramatiq.set_broker(broker)
        yield broker
        broker.flush_all()
        broker.close()


@pytest.fixture
def stub_worker(stub_broker: Broker) -> Iterator[Worker]:
    worker = Worker(stub_broker, worker_timeout=100, worker_threads=32)
    worker.start()
    yield worker
    worker.stop()


@pytest.fixture
def result_backend() -> ResultBackend:
    """In memory: results and rate limits are not the broker's."""
    return StubResults()


@pytest.fixture
def rate_limiter_backend() -> RateLimiterBackend:
    return StubLimits()
