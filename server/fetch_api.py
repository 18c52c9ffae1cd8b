"""Endpoints that read a topic by position and keep no state, for clients that track their own position."""

from __future__ import annotations

from typing import Any, Final

from afterlog.api.position_text import position_of
from afterlog.api.record_json import message_row
from afterlog.api.schema import ByName, Fields, Shape, Text, Whole, answer
from afterlog.api.shapes import INSTANT, MESSAGE, OFFSETS, POSITION_SCHEMA, RECORDS_MAX, WAIT_MS
from afterlog.base import errors
from afterlog.server.endpoint import Endpoint, Scope
from afterlog.server.fetches import Fetch
from afterlog.server.request import Reply, Request, as_json
from afterlog.server.served import Served

BYTES_MAX: Final = 64 << 20
"""Of one answer, but for its first batch."""
_MAX_RECORDS = Whole(1, RECORDS_MAX, default=500)
FETCH: Final = Fields(
    {
        "positions": ByName(Whole(), names="^[0-9]{1,10}$", about="delivery offsets by partition, as text"),
        "max_records": _MAX_RECORDS,
        "max_bytes": Whole(1, BYTES_MAX, default=16 << 20),
        "wait_ms": WAIT_MS,
    }
)


async def fetch(served: Served, request: Request) -> Reply:
    body = request.body
    positions = {_partition(text): position for text, position in body["positions"].items()}
    return await _fetched(served, request, positions, body["max_records"], body["max_bytes"], body["wait_ms"])


async def records(served: Served, request: Request) -> Reply:
    """The same of one partition, from wherever a position leads."""
    number, wanted = request.arguments["partition"], position_of(request.arguments["position"])
    topic = served.store.topic(request.topic)
    position = (
        wanted if isinstance(wanted, int) else await served.run(lambda: topic.partition(number).beginning(wanted))
    )
    arguments = request.arguments
    return await _fetched(served, request, {number: position}, arguments["max_records"], 16 << 20, arguments["wait_ms"])


async def _fetched(
    served: Served, request: Request, positions: dict[int, int], max_records: int, max_bytes: int, wait_ms: int
) -> Reply:
    if not positions:
        raise errors.InvalidRequest("no partition to fetch from: name one in positions")
    topic = served.store.topic(request.topic)
    fetching = served.fetches.fetch(topic, positions, max_records, max_bytes, wait_ms / 1_000)
    found = await (served.waits.until(fetching, request.receive) if wait_ms else fetching)
    if found is None:  # the server stops: come back
        found = await served.fetches.fetch(topic, positions, max_records, max_bytes, 0)
    if request.wants_arrow:
        return await served.run(lambda: _as_arrow(found))
    return _as_json(found) if len(found.columns) <= 50 else await served.run(lambda: _as_json(found))


def _as_json(found: Fetch) -> Reply:
    return as_json({"records": [message_row(message) for message in found.columns.to_messages()], **_said(found)})


def _as_arrow(found: Fetch) -> Reply:
    from afterlog.api.arrow_message import MEDIA_TYPE
    from afterlog.api.arrow_stream import delivered_stream

    return Reply(delivered_stream(found.columns, _said(found)), media_type=MEDIA_TYPE)


def _said(found: Fetch) -> dict[str, Any]:
    return {
        "positions": {str(number): position for number, position in found.positions.items()},
        "high_watermarks": {str(number): mark for number, mark in found.high_watermarks.items()},
        "now_ms": found.now_ms,
    }


def _partition(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise errors.InvalidRequest(f"positions are by the number of a partition, not {text!r:.60}")
    return int(text)


_ANSWER = answer(
    {
        "records": {"type": "array", "items": MESSAGE},
        "positions": OFFSETS,
        "high_watermarks": OFFSETS,
        "now_ms": INSTANT,
    }
)
_ERRORS = (errors.UnknownTopic, errors.UnknownPartition, errors.OffsetOutOfRange, errors.ClockBehind)
_BY_HAND: Final[dict[str, Shape]] = {
    "partition": Whole(0, 2**31 - 1, default=0),
    "position": Text(default="earliest", about=POSITION_SCHEMA["description"]),
    "max_records": _MAX_RECORDS,
    "wait_ms": WAIT_MS,
}

ENDPOINTS: Final = (
    Endpoint(method="POST", path="/v1/topics/{topic}/fetch", scope=Scope.LOOK,
             summary="Due records from delivery offsets on, in due order; waits where nothing is due",
             handler=fetch, body=FETCH, answer=_ANSWER, gives_arrow=True, errors=_ERRORS),
    Endpoint(method="GET", path="/v1/topics/{topic}/records", scope=Scope.LOOK,
             summary="Due records of one partition, from a position on",
             handler=records, parameters=_BY_HAND, answer=_ANSWER, gives_arrow=True, errors=_ERRORS),
)  # fmt: skip
