from __future__ import annotations

import importlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.subscription import redeliveries
from afterlog.subscription.redeliveries import UNKNOWN, Redeliveries, Rows
from tests.apart import apart

KEYS = st.sets(st.integers(0, 60), min_size=1, max_size=20)


def rows(table: dict[int, tuple[int, int, int]]) -> Rows:
    columns = np.array([(key, *table[key]) for key in sorted(table)], np.int64).reshape(-1, 4).T
    return Rows(*columns)


@given(st.lists(st.tuples(st.sampled_from(["put", "keep"]), KEYS), max_size=20))
def test_like_a_dict(steps: list[tuple[str, set[int]]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redeliveries, "RECENT", 16)
        table, model = Redeliveries(), dict[int, tuple[int, int, int]]()
        for turn, (step, keys) in enumerate(steps):
            if step == "put":
                fresh = {key: (key + 1_000, turn, turn + 1) for key in keys}
                table.put(rows(fresh))
                model |= fresh
            else:
                table.keep(np.array(sorted(keys)))
                model = {key: value for key, value in model.items() if key in keys}
            table.check()
            assert len(model) == len(table)
            wanted = {key: model.get(key, (UNKNOWN, 0, 0)) for key in range(60)}
            found = table.find(np.arange(60))
            assert all(map(np.array_equal, rows(wanted), found))
            assert [model.get(key, (0, 0, 0))[2] for key in range(60)] == table.lease_numbers(np.arange(60)).tolist()
        assert all(map(np.array_equal, rows(model), table.rows()))


def test_memory() -> None:
    table = Redeliveries()
    for first in range(0, 100_000, 10_000):
        keys = np.arange(first, first + 10_000)
        table.put(Rows(keys, keys, keys, np.ones(10_000, np.int64)))
    assert 100_000 == len(table)
    assert 32 * 100_000 == table.memory_bytes()


def test_a_failed_allocation_is_survived() -> None:
    """numpy 2.4 writes to address zero where it casts in a fancy assignment and has no memory for that."""
    pytest.importorskip("_testcapi", reason="a Python without its test modules cannot fail allocations")
    with apart() as elsewhere:
        assert elsewhere(fail_allocations) > 0


def fail_allocations() -> int:
    """One by one those of a `put` of what is known. How many made it fail."""
    memory, keys, failed = importlib.import_module("_testcapi"), np.arange(redeliveries.RECENT + 1), 0
    for number in range(100):
        table = Redeliveries()
        table.put(Rows(keys, keys, keys, np.ones_like(keys)))
        again = Rows(*np.array([[5], [6], [7], [2]]))
        try:
            memory.set_nomemory(number, number + 1)
            try:
                table.put(again)
            finally:
                memory.remove_mem_hooks()
        except (MemoryError, SystemError):
            failed += 1
        table.check()
    return failed
