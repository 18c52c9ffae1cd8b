"""Endpoints of numbered producers: the next sequence number of one, and which of its appends are in the log."""

from __future__ import annotations

from typing import Final

from afterlog.api import operations
from afterlog.records.producer_sequence import ProducerSequence
from afterlog.server.endpoint import endpoints
from afterlog.server.request import Reply, Request, as_json
from afterlog.server.served import Served


async def next_sequence(served: Served, request: Request) -> Reply:
    asked = request.arguments

    def ask() -> Reply:
        topic = served.store.topic(request.topic)
        number = topic.checked_partition(asked["partition"])
        return as_json({"sequence": topic.next_sequence(number, asked["producer_id"], asked["producer_epoch"])})

    return await served.run(ask)


async def appended(served: Served, request: Request) -> Reply:
    asked = request.arguments
    sent = ProducerSequence(asked["producer_id"], asked["producer_epoch"], asked["sequence"])

    def ask() -> Reply:
        topic = served.store.topic(request.topic)
        number = topic.checked_partition(asked["partition"])
        return as_json({"offsets": topic.held_of(number, sent, asked["records"]).tolist()})

    return await served.run(ask)


ENDPOINTS: Final = endpoints(
    {
        operations.NEXT_SEQUENCE: next_sequence,
        operations.APPENDED: appended,
    }
)
