from __future__ import annotations

from collections.abc import Callable

import pytest

from afterlog.base.errors import StoreClosed
from afterlog.tier.tiering import InterruptibleStore
from tests.tier.memory_store import MemoryStore
from tests.tier.remote_store_suite import RemoteStoreTests
from tests.tier.support import disk, simulated_manifest

CALLS: list[Callable[[InterruptibleStore], object]] = [
    lambda store: store.put("a", b"1"),
    lambda store: store.put_if("b", b"1", None),
    lambda store: store.get("c", 1),
    lambda store: store.get_ranges("c", [(0, 1)]),
    lambda store: store.head("c"),
    lambda store: store.list_objects(),
    lambda store: store.delete("c"),
]


class TestIsAStore(RemoteStoreTests):
    @pytest.fixture
    def remote(self) -> InterruptibleStore:
        return InterruptibleStore(simulated_manifest(disk()).remote, lambda: None)


@pytest.mark.parametrize("call", CALLS)
def test_a_call_goes_on_only_where_it_may(call: Callable[[InterruptibleStore], object]) -> None:
    held, going = MemoryStore(), [True]
    held.put("c", b"1")

    def proceed() -> None:
        if not going[0]:
            raise StoreClosed("no more")

    store = InterruptibleStore(held, proceed)
    going[0] = False
    before = dict(held.objects)
    with pytest.raises(StoreClosed):
        call(store)
    assert before == held.objects
    going[0] = True
    call(store)
