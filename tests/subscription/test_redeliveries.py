from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.subscription import redeliveries
from afterlog.subscription.redeliveries import UNKNOWN, Redeliveries, Rows

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
            assert [model.get(key, (0, 0, 0))[2] for key in range(60)] == table.attempts(np.arange(60)).tolist()
        assert all(map(np.array_equal, rows(model), table.rows()))


def test_memory() -> None:
    table = Redeliveries()
    for first in range(0, 100_000, 10_000):
        keys = np.arange(first, first + 10_000)
        table.put(Rows(keys, keys, keys, np.ones(10_000, np.int64)))
    assert 100_000 == len(table)
    assert 32 * 100_000 == table.memory_bytes()
