"""Endpoints for looking: the overview of all topics, records found by key, time or id, and one record."""

from __future__ import annotations

from typing import Any, Final

from afterlog.api.schema import Flag, Shape, Text, Whole, answer
from afterlog.api.shapes import BYTES, COUNT, INSTANT, PARTITION, RECORD_ID, SCHEDULED
from afterlog.base import errors
from afterlog.fetch.lateness import EDGES_MS
from afterlog.fetch.record_id import RecordId
from afterlog.server.endpoint import Endpoint, Scope
from afterlog.server.overview import SORTS
from afterlog.server.record_search import due_page, pending_page, record_of
from afterlog.server.request import Reply, Request, as_json
from afterlog.server.scheduled_api import key_of_text
from afterlog.server.served import Served

ROWS_MAX: Final = 500
"""Of one page."""
OVERVIEW: Final[dict[str, Shape]] = {
    "filter": Text(default="", most=249, about="only topics whose name has it"),
    "topic": Text(default=None, null=True, most=249, about="only this one"),
    "sort": Text(*SORTS, default="name"),
    "descending": Flag(default=False),
    "offset": Whole(default=0),
    "limit": Whole(1, ROWS_MAX, default=50),
}
FIND: Final[dict[str, Shape]] = {
    "state": Text("pending", "due", default="pending"),
    "key": Text(default=None, null=True, most=4_000, about="text, or base64:…"),
    "from": Whole(default=None, null=True, about="due at or after, ms since the epoch"),
    "partition": PARTITION,
    "after": Text(default=None, null=True, most=64, about="as the page before gave it"),
    "limit": Whole(1, ROWS_MAX, default=50),
}


async def show_overview(served: Served, request: Request) -> Reply:
    asked = dict(request.arguments)
    filter_text = asked.pop("filter")

    def may_look(topic: str) -> bool:
        return topic.startswith(request.prefixes)

    return as_json(await served.run(lambda: served.overview.page(may_look=may_look, filter_text=filter_text, **asked)))


async def find(served: Served, request: Request) -> Reply:
    asked = request.arguments
    number, key = asked["partition"], None if asked["key"] is None else key_of_text(asked["key"])
    options: dict[str, Any] = {"key": key, "from_ms": asked["from"], "after": asked["after"], "limit": asked["limit"]}

    def ask() -> dict[str, Any]:
        topic = served.store.topic(request.topic)
        if asked["state"] == "pending":
            found = pending_page(topic, range(topic.partition_count) if number is None else [number], **options)
        else:
            chosen = number if number is not None else 0 if key is None else topic.partition_of(key)
            found = due_page(topic.partition(chosen), **options)
        return {**found.to_row(), "now_ms": served.store.now_ms()}

    return as_json(await served.run(ask))


async def show_record(served: Served, request: Request) -> Reply:
    record = RecordId.parse(request.arguments["id"])
    if record.topic != request.topic:
        raise errors.InvalidRequest(f"{record} is no record of {request.topic}")

    def ask() -> dict[str, Any]:
        found = record_of(served.store.topic(record.topic), record.partition, record.offset)
        return {**found, "now_ms": served.store.now_ms()}

    return as_json(await served.run(ask))


_COUNTS: Final = {
    "next_due": {"type": ["integer", "null"]},
    "lateness_up_to": {
        "type": "array", "items": COUNT, "minItems": len(EDGES_MS) + 1,
        "description": "how many records were handed out no later than each edge; last, how many there were",
    },
    **dict.fromkeys(("pending", "due", "sent", "became_due", "handed_out", "bytes", "segments"), COUNT),
    **{name: {**COUNT, "description": "of subscriptions with a reader"} for name in ("leased", "retrying", "dead")},
}  # fmt: skip
_ROW: Final = answer(
    {
        "topic": {"type": "string"},
        "partitions": COUNT,
        "delayed": {"type": "boolean"},
        "lag": {"type": ["integer", "null"]},
        "unreadable": {"type": ["string", "null"]},
        **_COUNTS,
    }
)
_PAGE: Final = answer(
    {
        "now_ms": INSTANT,
        "all": COUNT,
        "matching": COUNT,
        "totals": answer(_COUNTS),
        "lateness_edges_ms": {"type": "array", "items": COUNT},
        "topics": {"type": "array", "items": _ROW},
    }
)
_LISTED: Final = answer(
    {
        "id": RECORD_ID,
        "partition": COUNT,
        "offset": COUNT,
        "due": INSTANT,
        "key": BYTES,
        "value": BYTES,
        "value_bytes": {"type": ["integer", "null"], "description": "of the whole value, which is cut here"},
    }
)
_FOUND: Final = answer(
    {
        "records": {"type": "array", "items": _LISTED},
        "after": {"type": ["string", "null"]},
        "looked_at": COUNT,
        "now_ms": INSTANT,
    }
)
_RECORD: Final = answer({"record": SCHEDULED, "state": {"enum": ["pending", "due", "cancelled"]}, "now_ms": INSTANT})
_T: Final = "/v1/topics/{topic}"
_UNKNOWN: Final = (errors.UnknownTopic, errors.UnknownPartition)

ENDPOINTS: Final = (
    Endpoint(method="GET", path="/v1/overview", scope=Scope.LOOK, summary="How all topics stand, a page at a time",
             handler=show_overview, parameters=OVERVIEW, answer=_PAGE, filters=True, errors=(errors.UnknownTopic,)),
    Endpoint(method="GET", path=f"{_T}/find", scope=Scope.LOOK,
             summary="Records that are pending or due, by key or time, a page at a time, with values cut",
             handler=find, parameters=FIND, answer=_FOUND,
             errors=(*_UNKNOWN, errors.InvalidArgument, errors.OffsetOutOfRange)),
    Endpoint(method="GET", path=f"{_T}/record", scope=Scope.LOOK, summary="One record, whole, and its state",
             handler=show_record, parameters={"id": Text(most=300)}, answer=_RECORD,
             errors=(*_UNKNOWN, errors.InvalidRecord, errors.OffsetOutOfRange)),
)  # fmt: skip
