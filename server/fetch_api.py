"""Endpoints that read by position: fetches that keep no state, and consumer groups: positions, claims, commits."""

from __future__ import annotations

from typing import Any, Final

from afterlog.api import operations
from afterlog.api.position_text import position_of
from afterlog.api.record_json import message_row
from afterlog.base import errors
from afterlog.fetch.group import GroupPosition
from afterlog.server.endpoint import endpoints
from afterlog.server.fetches import Fetch
from afterlog.server.request import NO_CONTENT, Reply, Request, as_json
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
    found = await (served.waits.until(fetching, request.exchange) if wait_ms else fetching)
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


async def list_groups(served: Served, request: Request) -> Reply:
    return as_json({"groups": await served.run(lambda: served.store.groups(request.topic))})


async def show_group(served: Served, request: Request) -> Reply:
    group = request.arguments["group"]

    def ask() -> dict[str, Any]:
        topic = served.store.topic(request.topic)
        if group not in served.store.groups(request.topic):
            raise errors.UnknownGroup(f"no group {group!r} has committed a position in {request.topic}")
        committed, marks, lag = dict[str, int | None](), dict[str, int](), 0
        for partition in topic.partitions:
            context = partition.log.context
            position = GroupPosition(context.files, context.folder, group).committed
            mark = partition.high_watermark()
            committed[str(partition.number)], marks[str(partition.number)] = position, mark
            lag += max(mark - (partition.log_start if position is None else position), 0)
        return {"committed": committed, "high_watermarks": marks, "lag": lag}

    return as_json(await served.run(ask))


async def claim(served: Served, request: Request) -> Reply:
    body, group = request.body, request.arguments["group"]
    committed = await served.claims.claim(request.topic, group, body["claim"], body["partitions"], body["ttl_ms"])
    return as_json({"committed": {str(number): each for number, each in committed.items()}, "ttl_ms": body["ttl_ms"]})


async def release_claim(served: Served, request: Request) -> Reply:
    served.store.topic(request.topic)
    await served.claims.release(request.topic, request.arguments["group"], request.arguments["claim"])
    return NO_CONTENT


async def commit(served: Served, request: Request) -> Reply:
    served.store.topic(request.topic)
    positions = {_partition(text): position for text, position in request.body["positions"].items()}
    await served.claims.commit(request.topic, request.arguments["group"], request.body["claim"], positions)
    return NO_CONTENT


async def reset_group(served: Served, request: Request) -> Reply:
    wanted = position_of(request.body["position"])
    await served.run(lambda: served.store.reset_group(request.topic, request.arguments["group"], wanted))
    return NO_CONTENT


async def delete_group(served: Served, request: Request) -> Reply:
    arguments = request.arguments
    await served.run(lambda: served.store.delete_group(request.topic, arguments["group"], force=arguments["force"]))
    return NO_CONTENT


ENDPOINTS: Final = endpoints(
    {
        operations.FETCH: fetch,
        operations.RECORDS: records,
        operations.LIST_GROUPS: list_groups,
        operations.SHOW_GROUP: show_group,
        operations.CLAIM: claim,
        operations.RELEASE_CLAIM: release_claim,
        operations.COMMIT: commit,
        operations.RESET_GROUP: reset_group,
        operations.DELETE_GROUP: delete_group,
    }
)
