"""Receipts that a client names: leased records by their receipts alone, as ack, nack, extend and release take them."""

from __future__ import annotations

import numpy as np

from afterlog.server.request import Request
from afterlog.subscription.leased_message import Settling
from afterlog.subscription.received import Receipts, Received
from afterlog.wire.receipt import Receipt


class NamedReceipts(Received):
    """`Received`, of which nothing but the receipts is known."""

    __slots__ = ("_receipts",)

    def __init__(self, subscription: Settling, receipts: Receipts) -> None:
        self.subscription = subscription
        self._receipts = receipts

    @property
    def receipts(self) -> Receipts:
        return self._receipts

    def __len__(self) -> int:
        return len(self._receipts.partition)

    def settle(self) -> None:
        """Whoever received them notes it."""


def named(request: Request) -> Receipts:
    """The receipts of a request, JSON or Arrow. Raises InvalidReceipt, InvalidRequest."""
    if request.data is not None:
        from afterlog.wire.arrow_stream import receipts_of

        return receipts_of(request.data)
    rows = [Receipt.parse(text) for text in request.body["receipts"]]
    return Receipts(*np.array(rows, np.int64).reshape(-1, 4).T.copy())
