"""Endpoints of the store as a whole: what it is, syncs, retention, uploads, schedules, the clock, backups."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from afterlog._version import __version__
from afterlog.api.schema import Fields, Text, answer
from afterlog.api.shapes import COUNT, INSTANT
from afterlog.base import errors
from afterlog.server.endpoint import NOTHING, Endpoint, Scope
from afterlog.server.request import NO_CONTENT, Reply, Request, as_json
from afterlog.server.served import Served

BACKUP: Final = Fields({"dest": Text(most=255, about="a folder in the one that the server was started with")})


async def show_store(served: Served, request: Request) -> Reply:
    store, config = served.store, served.store.config
    told = {
        "version": __version__,
        "durability": {"kind": config.durability.kind, "interval_ms": config.durability.interval_ms},
        "now_ms": store.now_ms(),
        "topics": sum(topic.name.startswith(request.prefixes) for topic in store.topics()),
        "batch_bytes_max": config.batch_bytes_max,
        "clock_jumps": store.clock_jumps,
        "scopes": {scope.value: list(prefixes) for scope, prefixes in request.scopes.items()},
    }
    return as_json(told)


async def sync(served: Served, request: Request) -> Reply:
    await served.run(served.store.sync)
    return NO_CONTENT


async def retention(served: Served, request: Request) -> Reply:
    return as_json({"removed": await served.run(served.store.enforce_retention)})


async def offload(served: Served, request: Request) -> Reply:
    done = await served.run(served.store.offload)
    return as_json({"partitions": {name: asdict(each) for name, each in done.items()}})


async def run_schedules(served: Served, request: Request) -> Reply:
    return as_json({"appended": await served.run(served.store.run_schedules)})


async def confirm_clock(served: Served, request: Request) -> Reply:
    await served.run(served.store.confirm_clock)
    return NO_CONTENT


async def backup(served: Served, request: Request) -> Reply:
    """Who is local names any folder by its path, and is told one; others one in the folder of the backups."""
    name = request.body["dest"]
    if request.local and name.startswith("/") and "\0" not in name:
        made = await served.run(lambda: served.store.backup(name))
        return as_json({**asdict(made), "path": str(made.path)})
    if served.backups is None:
        raise errors.NotServed("backups are made where the server was started with --backups FOLDER")
    if "/" in name or "\\" in name or name in ("", ".", "..") or "\0" in name:
        raise errors.InvalidRequest(f"dest is the name of a folder in that of the backups, not {name!r:.60}")
    dest = served.backups / name
    made = await served.run(lambda: served.store.backup(dest))
    return as_json({**asdict(made), "path": str(made.path.relative_to(served.backups))})


def _post(
    path: str, summary: str, handler: Any, said: dict[str, Any] | None, *more: type[errors.AfterlogError]
) -> Endpoint:
    return Endpoint(method="POST", path=path, scope=Scope.MANAGE, summary=summary, handler=handler, body=NOTHING,
                    answer=said, errors=more)  # fmt: skip


_STORE = answer(
    {
        "version": {"type": "string"},
        "durability": answer({"kind": {"type": "string"}, "interval_ms": {"type": ["integer", "null"]}}),
        "now_ms": INSTANT,
        "topics": COUNT,
        "batch_bytes_max": COUNT,
        "clock_jumps": COUNT,
        "scopes": {
            "type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}},
            "description": "what who asks may do, each for the topics of these prefixes",
        },
    }
)  # fmt: skip

ENDPOINTS: Final = (
    Endpoint(method="GET", path="/v1/store", scope=Scope.LOOK, summary="What is served here",
             handler=show_store, answer=_STORE, filters=True),
    _post("/v1/sync", "Make everything durable that was appended so far", sync, None),
    _post("/v1/retention", "Apply the topics' retention now", retention, answer({"removed": COUNT})),
    _post("/v1/offload", "Upload what is sealed now", offload, answer({"partitions": {"type": "object"}}),
          errors.RemoteRefused, errors.RemoteUnavailable, errors.RemoteConflict),
    _post("/v1/run-schedules", "Append now what schedules have to append", run_schedules, answer({"appended": COUNT})),
    _post("/v1/confirm-clock", "The wall clock is right after a jump", confirm_clock, None),
    Endpoint(method="POST", path="/v1/backup", scope=Scope.MANAGE, summary="Make a backup", handler=backup, body=BACKUP,
             answer=answer({"path": {"type": "string"}, "number": COUNT, "at_ms": INSTANT, "files": COUNT,
                            "copied_bytes": COUNT}),
             repeatable=False, errors=(errors.NotServed, errors.InvalidArgument, errors.StoreLocked)),
)  # fmt: skip
