"""One S3 server for all tests of a process. It runs in the process, on loopback, and keeps objects in memory."""

from __future__ import annotations

import itertools
import logging
import threading
import urllib.request
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest

from afterlog.tier.remote_store import RemoteStore
from afterlog.tier.remote_url import open_remote

_BUCKET = "bucket"


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    from moto.server import DomainDispatcherApplication, ThreadedMotoServer

    one_at_a_time, answer = threading.Lock(), DomainDispatcherApplication.__call__

    def answers(*request: Any) -> Any:
        """It looks whether a conditional put may, and then puts: two threads of it might both see that they may."""
        with one_at_a_time:
            return answer(*request)

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    request = urllib.request.Request(f"http://{host}:{port}/{_BUCKET}", method="PUT")
    with patch.object(DomainDispatcherApplication, "__call__", answers), urllib.request.urlopen(request):
        yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="session")
def new_s3(s3_endpoint: str) -> Callable[[], RemoteStore]:
    """Makes a `RemoteStore` on the server, under a prefix of its own."""
    numbers = itertools.count()

    def make() -> RemoteStore:
        return open_remote(
            f"s3://{_BUCKET}/{next(numbers)}",
            endpoint=s3_endpoint,
            region="us-east-1",
            access_key_id="test",
            secret_access_key="test",
            client_options={"allow_http": True},
            retry_config={"max_retries": 1, "retry_timeout": timedelta(seconds=5)},
        )

    return make
