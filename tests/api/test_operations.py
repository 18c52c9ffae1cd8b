"""The table of operations is what it is made for: what both ends go by, in the words of the engine."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from afterlog.api import operations
from afterlog.api.operation import HttpOperation
from afterlog.index.producer_states import SEQUENCES
from afterlog.records.producer_sequence import EPOCH_MAX
from afterlog.server.table import ENDPOINTS, Routes

ROWS = {name: row for name, row in vars(operations).items() if isinstance(row, HttpOperation)}


@pytest.mark.parametrize("name", ROWS)
def test_each_is_answered_where_its_path_leads(name: str) -> None:
    row = ROWS[name]
    names = {
        each: f"{each} of/ä" for each in ("topic", "subscription", "group", "schedule") if f"{{{each}}}" in row.path
    }
    route = Routes(ENDPOINTS).find(row.path_of(**names))
    assert route is not None
    assert (row.path, names) == (route.methods[row.method].path, route.names)


def test_each_is_there_once() -> None:
    assert len(ROWS) == len({(row.method, row.path) for row in ROWS.values()})


def test_a_query_leaves_out_what_is_none() -> None:
    path = operations.PENDING.path_of({"limit": 3, "key": None, "partition": 0, "force": True}, topic="a&b")
    assert ("/v1/topics/a%26b/pending", "limit=3&partition=0&force=true") == urlsplit(path)[2:4]
    assert "/v1/topics/mail/pending" == operations.PENDING.path_of({"key": None}, topic="mail")


def test_it_says_what_the_engine_says() -> None:
    """It imports no numpy, and so says these itself."""
    assert (EPOCH_MAX, SEQUENCES) == (operations.EPOCH_MAX, operations.SEQUENCES)
