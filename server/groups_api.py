"""Endpoints of consumer groups: positions, claims of partitions, commits."""

from __future__ import annotations

from typing import Any, Final

from afterlog.api.position_text import position_of
from afterlog.api.schema import ByName, Fields, Text, Whole, answer
from afterlog.api.shapes import COUNT, OFFSETS, PARTITIONS, position
from afterlog.base import errors
from afterlog.fetch.group import GroupPosition
from afterlog.server.endpoint import Endpoint, Scope
from afterlog.server.request import NO_CONTENT, Reply, Request, as_json
from afterlog.server.served import Served
from afterlog.server.topics_api import FORCE

_CLAIM = Text(most=64, about="random, by the client: what tells its claim from others")
CLAIM: Final = Fields({"claim": _CLAIM, "partitions": PARTITIONS, "ttl_ms": Whole(1_000, 3_600_000, default=45_000)})
COMMIT: Final = Fields({"claim": _CLAIM, "positions": ByName(Whole(), names="^[0-9]{1,10}$")})
RESET: Final = Fields({"position": position()})


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


_GROUPS = "/v1/topics/{topic}/groups"
_G = f"{_GROUPS}/{{group}}"
_COMMITTED = {"type": "object", "additionalProperties": {"type": ["integer", "null"]}}
_UNKNOWN = (errors.UnknownTopic, errors.UnknownPartition)

ENDPOINTS: Final = (
    Endpoint(method="GET", path=_GROUPS, scope=Scope.LOOK, summary="The groups that have committed a position",
             handler=list_groups, answer=answer({"groups": {"type": "array", "items": {"type": "string"}}}),
             errors=_UNKNOWN),
    Endpoint(method="GET", path=_G, scope=Scope.LOOK, summary="Where a group stands", handler=show_group,
             answer=answer({"committed": _COMMITTED, "high_watermarks": OFFSETS, "lag": COUNT}),
             errors=(*_UNKNOWN, errors.UnknownGroup)),
    Endpoint(method="PUT", path=f"{_G}/claim", scope=Scope.RECEIVE, summary="Read partitions for a group, for a while",
             handler=claim, body=CLAIM, answer=answer({"committed": _COMMITTED, "ttl_ms": COUNT}),
             errors=(*_UNKNOWN, errors.GroupBusy, errors.NameTaken, errors.InvalidTopic)),
    Endpoint(method="DELETE", path=f"{_G}/claim", scope=Scope.RECEIVE, summary="Read for it no more",
             handler=release_claim, parameters={"claim": Text(most=64)}, errors=_UNKNOWN),
    Endpoint(method="POST", path=f"{_G}/commit", scope=Scope.RECEIVE, summary="Commit positions, and renew the claim",
             handler=commit, body=COMMIT, errors=(*_UNKNOWN, errors.GroupBusy, errors.OffsetOutOfRange)),
    Endpoint(method="POST", path=f"{_G}/reset", scope=Scope.MANAGE, summary="Let a group go on at a position",
             handler=reset_group, body=RESET,
             errors=(*_UNKNOWN, errors.UnknownGroup, errors.GroupBusy, errors.OffsetOutOfRange)),
    Endpoint(method="DELETE", path=_G, scope=Scope.MANAGE, summary="Delete a group's positions",
             handler=delete_group, parameters=FORCE, errors=(*_UNKNOWN, errors.UnknownGroup, errors.GroupBusy),
             repeatable=False),
)  # fmt: skip
