"""Endpoints that read a topic by position and keep no state, for clients that track their own position."""

from __future__ import annotations

from typing import Any, Final

from afterlog.api import operations
from afterlog.api.position_text import position_of
from afterlog.api.record_json import message_row
from afterlog.base import errors
from afterlog.server.endpoint import endpoints
from afterlog.server.fetches import Fetch
from afterlog.server.request import Reply, Request, as_json
from afterlog.server.served import Served


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


ENDPOINTS: Final = endpoints(
    {
        operations.FETCH: fetch,
        operations.RECORDS: records,
    }
)
