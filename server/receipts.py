"""Receipts of leases as clients send them, of this life of the server or an earlier one: from JSON or Arrow."""

from __future__ import annotations

from afterlog.api.receipt import Receipt
from afterlog.server.request import Request
from afterlog.subscription.received import Receipts


def named(request: Request) -> Receipts:
    """The receipts of a request, JSON or Arrow. Raises InvalidReceipt, InvalidRequest."""
    if request.data is not None:
        from afterlog.api.arrow_stream import receipts_of

        return receipts_of(request.data)
    return Receipts.of_rows([Receipt.parse(text) for text in request.body["receipts"]])
