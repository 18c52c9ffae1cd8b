"""Receipts as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.api.receipt import Receipt
from afterlog.base.errors import InvalidReceipt

NUMBERS = st.integers(0, 2**63 - 1)


class TestReceipt:
    @given(st.builds(Receipt, st.integers(0, 2**31 - 1), NUMBERS, NUMBERS, NUMBERS))
    def test_it_is_read_again(self, receipt: Receipt) -> None:
        assert receipt == Receipt.parse(str(receipt))

    @pytest.mark.parametrize(
        "text", ["", "1", "1.2.3", "1.2.3.4.5", "1.2.3.-4", "1.2.3.4\n", " 1.2.3.4", "1.2.3.٤", "a.b.c.d", 1, None,
                 b"1.2.3.4", f"1.2.{2**63}.4", "1" * 5_000]
    )  # fmt: skip
    def test_nothing_else_is(self, text: object) -> None:
        with pytest.raises(InvalidReceipt):
            Receipt.parse(text)
