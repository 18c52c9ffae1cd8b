"""kombu's own tests of a transport, over ours: copied beside its `common.py` as `test_afterlog.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import kombu
import pytest
from t.integration.common import (
    BaseExchangeTypes,
    BaseFailover,
    BaseMessage,
    BasePriority,
    BaseTimeToLive,
    BasicFunctionality,
)

import afterlog.integrations.celery  # noqa: F401  (which makes the scheme known)


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[kombu.Connection]:
    made = kombu.Connection(f"afterlog://{tmp_path}/data")
    yield made
    made.release()


@pytest.fixture
def invalid_connection() -> kombu.Connection:
    return kombu.Connection("afterlog:///proc/nowhere")


@pytest.fixture
def failover_connection(tmp_path: Path) -> Iterator[kombu.Connection]:
    made = kombu.Connection(f"afterlog:///proc/nowhere;afterlog://{tmp_path}/data", connect_timeout=10)
    yield made
    made.release()


class TestBasicFunctionality(BasicFunctionality):
    pass


class TestExchangeTypes(BaseExchangeTypes):
    pass


class TestTimeToLive(BaseTimeToLive):
    pass


class TestPriority(BasePriority):
    pass


class TestFailover(BaseFailover):
    pass


class TestMessage(BaseMessage):
    pass
