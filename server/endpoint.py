"""An operation, and who answers it: what routes, guards, checks and describes a request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from afterlog.api.operation import HttpOperation
from afterlog.server.request import Reply, Request

Handler: TypeAlias = Callable[[Any, Request], Awaitable[Reply]]
"""Of a `Served`, which stands above."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Endpoint(HttpOperation):
    """Of one server's table."""

    handler: Handler


def endpoints(answered: Mapping[HttpOperation, Handler]) -> tuple[Endpoint, ...]:
    """Of operations that stand in `api/operations.py`."""
    return tuple(
        Endpoint(**{each.name: getattr(operation, each.name) for each in fields(operation)}, handler=handler)
        for operation, handler in answered.items()
    )
