"""Endpoints of consumer groups: positions, claims of partitions, commits."""

from __future__ import annotations

from typing import Any, Final

from afterlog.api import operations
from afterlog.api.position_text import position_of
from afterlog.base import errors
from afterlog.fetch.group import GroupPosition
from afterlog.server.endpoint import endpoints
from afterlog.server.request import NO_CONTENT, Reply, Request, as_json
from afterlog.server.served import Served


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


def _partition(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise errors.InvalidRequest(f"positions are by the number of a partition, not {text!r:.60}")
    return int(text)


ENDPOINTS: Final = endpoints(
    {
        operations.LIST_GROUPS: list_groups,
        operations.SHOW_GROUP: show_group,
        operations.CLAIM: claim,
        operations.RELEASE_CLAIM: release_claim,
        operations.COMMIT: commit,
        operations.RESET_GROUP: reset_group,
        operations.DELETE_GROUP: delete_group,
    }
)
