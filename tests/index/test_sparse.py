from __future__ import annotations

import pytest

from afterlog.index.sparse import SparseIndexes
from tests.index.support import int64


def test_both_indexes_get_their_entries_at_the_same_batches() -> None:
    sparse = SparseIndexes(100, 4_096)
    sparse.add(int64(0, 3_000, 5_000, 6_000), int64(100, 101, 102, 103), int64(70, 90, 80, 95))
    assert (5_000, 101 + 1) == (sparse.offsets.floor(102), sparse.times.floor(91))
    assert (95, 103) == sparse.latest
    written = sparse.to_bytes()

    again = SparseIndexes.from_bytes(*written, 100, 4_096)
    assert (90, 101) == again.latest
    again.latest = sparse.latest
    for index in (sparse, again):
        index.add(int64(9_000), int64(104), int64(60))
        index.finish()
        index.check()
    assert sparse.to_bytes() == again.to_bytes()
    assert sparse.to_bytes() == tuple(old + new for old, new in zip(written, sparse.since(1, 1), strict=True))
    assert sparse.interval_bytes == again.interval_bytes == 4_096


def test_a_rotten_file_is_refused() -> None:
    with pytest.raises(ValueError, match="whole number"):
        SparseIndexes.from_bytes(b"", b"1", 0, 4_096)
