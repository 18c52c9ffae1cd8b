"""Endpoints of numbered producers: the next sequence number of one, and which of its appends are in the log."""

from __future__ import annotations

from typing import Final

from afterlog.api.schema import Shape, Whole, answer
from afterlog.api.shapes import COUNT, RECORDS_MAX
from afterlog.base import errors
from afterlog.index.producer_states import SEQUENCES
from afterlog.records.producer_sequence import EPOCH_MAX, ProducerSequence
from afterlog.server.endpoint import Endpoint, Scope
from afterlog.server.request import Reply, Request, as_json
from afterlog.server.served import Served

_WHO: Final[dict[str, Shape]] = {
    "partition": Whole(),
    "producer_id": Whole(),
    "producer_epoch": Whole(0, EPOCH_MAX),
}
APPENDED: Final[dict[str, Shape]] = {
    **_WHO,
    "sequence": Whole(0, SEQUENCES - 1),
    "records": Whole(1, RECORDS_MAX, default=1),
}


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


_ERRORS = (errors.UnknownTopic, errors.UnknownPartition, errors.ProducerFenced, errors.TopicDeleted)

ENDPOINTS: Final = (
    Endpoint(method="GET", path="/v1/topics/{topic}/next-sequence", scope=Scope.SEND,
             summary="What a producer appends next to a partition", handler=next_sequence, parameters=_WHO,
             answer=answer({"sequence": COUNT}), errors=_ERRORS),
    Endpoint(method="GET", path="/v1/topics/{topic}/appended", scope=Scope.SEND,
             summary="Where those records of an idempotent send are that are there",
             handler=appended, parameters=APPENDED,
             answer=answer({"offsets": {"type": "array", "items": COUNT}}),
             errors=(*_ERRORS, errors.OutOfOrderSequence)),
)  # fmt: skip
