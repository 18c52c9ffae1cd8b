"""Endpoints of the store as a whole: what it is, syncs, retention, uploads, the clock, backups; and for monitoring."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Final

from afterlog._version import __version__
from afterlog.api import operations
from afterlog.base import errors
from afterlog.server.endpoint import endpoints
from afterlog.server.request import NO_CONTENT, Reply, Request, as_json
from afterlog.server.served import Served


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
    done = await served.run(partial(served.store.offload, roll=request.body["roll"]))
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


async def live(served: Served, request: Request) -> Reply:
    return as_json({"live": True})


async def ready(served: Served, request: Request) -> Reply:
    """It answers where it takes work: one that stops is refused before it comes here."""
    served.store.topics()
    return as_json({"ready": True})


async def metrics(served: Served, request: Request) -> Reply:
    from afterlog.metrics import exposition

    try:
        text = await served.run(lambda: exposition(served.store, request.arguments["detail"]))
    except ImportError as error:
        raise errors.NotServed(str(error)) from None
    return Reply(f"{text}{served.counted()}".encode(), media_type=operations.METRICS.media_type)


ENDPOINTS: Final = endpoints(
    {
        operations.SHOW_STORE: show_store,
        operations.SYNC: sync,
        operations.ENFORCE_RETENTION: retention,
        operations.OFFLOAD: offload,
        operations.RUN_SCHEDULES: run_schedules,
        operations.CONFIRM_CLOCK: confirm_clock,
        operations.BACKUP: backup,
        operations.LIVE: live,
        operations.READY: ready,
        operations.METRICS: metrics,
    }
)
