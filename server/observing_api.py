"""Endpoints for monitoring: metrics, liveness, readiness, and what this server supports."""

from __future__ import annotations

from typing import Final

from afterlog.api.schema import Text, answer
from afterlog.base import errors
from afterlog.server.endpoint import Endpoint, Scope
from afterlog.server.request import Reply, Request, as_json
from afterlog.server.served import Served

_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"


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
    return Reply(f"{text}{served.counted()}".encode(), media_type=_TEXT)


ENDPOINTS: Final = (
    Endpoint(method="GET", path="/livez", scope=None, summary="It runs", handler=live,
             answer=answer({"live": {"type": "boolean"}})),
    Endpoint(method="GET", path="/readyz", scope=None, summary="It takes work", handler=ready,
             answer=answer({"ready": {"type": "boolean"}}), errors=(errors.StoreClosed,)),
    Endpoint(method="GET", path="/metrics", scope=Scope.LOOK, summary="Metrics for Prometheus", handler=metrics,
             parameters={"detail": Text("topic", "partition", default="topic", about="how much of each topic")},
             answer={"type": "string"}, media_type=_TEXT, errors=(errors.NotServed,)),
)  # fmt: skip
