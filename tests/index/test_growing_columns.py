from __future__ import annotations

import numpy as np

from afterlog.index.growing_columns import GrowableColumns


def test_holds_what_was_appended_and_a_held_view_keeps_its_values() -> None:
    columns = GrowableColumns(2)
    columns.append(np.arange(10), np.arange(10) * 2)
    held = columns.column(1)
    columns.append(np.arange(10, 5_000), np.arange(10, 5_000) * 2)
    assert list(range(0, 20, 2)) == held.tolist()
    assert np.array_equal(np.arange(5_000), columns.column(0))
    assert np.array_equal(np.arange(5_000) * 2, columns.column(1))
    assert columns.column(1).flags.c_contiguous
