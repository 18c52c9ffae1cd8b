"""Each test of the suite runs on a store that was got in each of the ways; a run of `make test` takes half of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from afterlog.base.clock import ManualClock
from tests.conformance.ways import WAYS, Setting
from tests.support import NOW_MS


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.share(2))


@pytest.fixture(autouse=True, scope="module")
def quick_turns() -> Iterator[None]:
    """Client and server are threads of one interpreter here, which hand it on at once."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture(params=WAYS)
def setting(request: pytest.FixtureRequest) -> Iterator[Setting]:
    """With settings of the store where the test has the mark `store`."""
    marker = request.node.get_closest_marker("store")
    settings = {} if marker is None else dict(marker.kwargs)
    with (
        TemporaryDirectory() as folder,
        WAYS[request.param](Path(folder), ManualClock(NOW_MS), settings) as made,
    ):
        yield made
