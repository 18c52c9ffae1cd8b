"""A receipt as text: what ack, nack, extend and release name a leased record by.

    0.1042.977.2        partition 0, offset 1042, delivery offset 977, lease number 2

It is good for that one lease, and stale once it has ended: a restart of the server does not change it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from afterlog.base.errors import InvalidReceipt

_RECEIPT = re.compile(r"([0-9]{1,10})\.(-1|[0-9]{1,19})\.([0-9]{1,19})\.([0-9]{1,19})\Z", re.ASCII)
_INT64_MAX = 2**63 - 1


class Receipt(NamedTuple):
    """Of one lease of one record. offset: -1 where who kept it did not keep that; nobody goes by it."""

    partition: int
    offset: int
    delivery_offset: int
    lease_number: int

    @property
    def place(self) -> tuple[int, int, int]:
        """What of it a subscription goes by: partition, delivery offset, lease number."""
        return self.partition, self.delivery_offset, self.lease_number

    def __str__(self) -> str:
        return f"{self.partition}.{self.offset}.{self.delivery_offset}.{self.lease_number}"

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
