"""What Dramatiq's own tests import beside their fixtures: copied there as `common.py`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pika
import pytest
from dramatiq import Worker

RABBITMQ_CREDENTIALS = pika.credentials.PlainCredentials("guest", "guest")
skip_in_ci = skip_on_windows = skip_on_pypy = skip_with_gevent = pytest.mark.skipif(False, reason="")
skip_without_gevent = pytest.mark.skip(reason="there is no gevent here")
skip_unless_rabbit_mq = pytest.mark.skip(reason="there is no RabbitMQ here")


@contextmanager
def worker(*given: Any, **options: Any) -> Iterator[Worker]:
    made = Worker(*given, **options)
    made.start()
    try:
        yield made
    finally:
        made.stop()
