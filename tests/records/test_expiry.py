"""How long a record is of use, by its last header: of one, and of a column."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.base.clock import INT64_MAX
from afterlog.base.errors import InvalidDeliverAfter, InvalidRecord
from afterlog.records.batch import decode_own_headers, encode_headers
from afterlog.records.encode import ragged
from afterlog.records.expiry import expiring, lapse_ms, span_of
from afterlog.records.lapsed import first_lapse_ms, lapsed_rows

NAMES = ["a", "expires-after", "expires-aftes", "deliver-after", "unique-key"]
values = st.one_of(st.none(), st.binary(max_size=9), st.integers(0, 300).map(lambda ms: ms.to_bytes(8, "big")))
headers = st.lists(st.tuples(st.sampled_from(NAMES[:3] + NAMES[4:]), values), max_size=4)


@pytest.mark.parametrize(("given_", "ms"), [(1, 1_000), (0.25, 250), (timedelta(days=1), 86_400_000), (0.0001, 1)])
def test_it_is_the_last_header(given_: Any, ms: int) -> None:
    made = expiring([("a", b"1")], given_)
    assert [("a", b"1"), ("expires-after", ms.to_bytes(8, "big"))] == list(made)
    assert ms == span_of(made)
    assert () == expiring((), None)


@pytest.mark.parametrize(
    ("headers", "span", "error"),
    [((), 0, InvalidRecord), ((), -1, InvalidDeliverAfter), ({"a": b""}, 1, InvalidRecord), (7, 1, InvalidRecord)],
)
def test_what_cannot_be(headers: Any, span: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        expiring(headers, span)


@given(
    st.lists(st.tuples(headers, st.none() | st.integers(0, 300), st.booleans()), max_size=20),
    st.none() | st.integers(1, 300),
)
def test_a_column_is_judged_as_each(rows: list[tuple[Any, int | None, bool]], topics_ms: int | None) -> None:
    """timed: the log has put the record's time behind its headers."""
    sections, due = [], np.arange(len(rows), dtype=np.int64) * 31 % 300
    for others, span_ms, timed in rows:
        span = [] if span_ms is None else [("expires-after", span_ms.to_bytes(8, "big"))]
        sections.append(encode_headers([*others, *span, *([("deliver-after", bytes(8))] if timed else [])]))
    column, _ = ragged(sections)
    own = [decode_own_headers(section) if section else () for section in sections]
    ends = [lapse_ms(int(at), one, topics_ms) for at, one in zip(due, own, strict=True)]
    each = [end <= 300 for end in ends]
    found = lapsed_rows(due, column, topics_ms, 300)
    assert each == ([False] * len(rows) if found is None else found.tolist())
    assert (found is None) == (not any(each))
    assert min(ends, default=INT64_MAX) == first_lapse_ms(due, column, topics_ms)
