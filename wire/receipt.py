"""A receipt as text: what ack, nack, extend and release name a leased record by.

    0.1042.977.2        partition 0, offset 1042, delivery offset 977, two deliveries before it failed

It is good as long as that delivery is the last one: a restart of the server does not change it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from afterlog.errors import InvalidReceipt

_RECEIPT = re.compile(r"([0-9]{1,10})\.([0-9]{1,19})\.([0-9]{1,19})\.([0-9]{1,19})\Z", re.ASCII)
_INT64_MAX = 2**63 - 1


class Receipt(NamedTuple):
    """Of one delivery of one record."""

    partition: int
    offset: int
    delivery_offset: int
    redelivery_count: int

    def __str__(self) -> str:
        return f"{self.partition}.{self.offset}.{self.delivery_offset}.{self.redelivery_count}"

    @staticmethod
    def parse(text: object) -> Receipt:
        """Raises InvalidReceipt."""
        found = _RECEIPT.match(text) if isinstance(text, str) else None
        if found is None:
            raise InvalidReceipt(f"not a receipt, as receive gives it: {text!r:.60}")
        receipt = Receipt(*map(int, found.groups()))
        if max(receipt) > _INT64_MAX:
            raise InvalidReceipt(f"not a receipt, as receive gives it: {text!r:.60}")
        return receipt
