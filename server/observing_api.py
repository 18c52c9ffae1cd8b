"""Endpoints for monitoring: metrics, liveness, readiness, and what this server supports."""

from __future__ import annotations

from typing import Final

from afterlog.api import operations
from afterlog.base import errors
from afterlog.server.endpoint import endpoints
from afterlog.server.request import Reply, Request, as_json
from afterlog.server.served import Served


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
        operations.LIVE: live,
        operations.READY: ready,
        operations.METRICS: metrics,
    }
)
