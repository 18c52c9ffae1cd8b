"""One row of the table of endpoints: what routes, guards, checks and describes a request, and who answers it.

    Endpoint("POST", "/v1/topics/{topic}/purge", Scope.MANAGE, "Remove what is due", purge, body=PURGE, answer=…)

A path is made of words and of names in braces. Whose path has {topic} is allowed by the topic's name; the others by a
token for all topics, unless they are `open` or filter by themselves.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from afterlog.api.schema import Fields, Shape
from afterlog.base.errors import AfterlogError
from afterlog.server.request import Reply, Request

ARROW: Final = "application/vnd.apache.arrow.stream"

Handler = Callable[[Any, Request], Awaitable[Reply]]
"""Of a `Served`, which stands above."""


class Scope(enum.Enum):
    """What a token may do."""

    LOOK = "look"
    """Read, and change nothing."""
    SEND = "send"
    """Send, cancel, reschedule; schedules."""
    RECEIVE = "receive"
    """Subscriptions, and the positions of groups."""
    MANAGE = "manage"
    """Topics, purges, resets, deletions, and what concerns the store as a whole."""
    REPLICATE = "replicate"
    """Give what was appended here to other clusters, take what they have, make their topics."""


NOTHING = Fields({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """scope: None for who needs no token. parameters: of the query. body: of the JSON; None: no body is read."""

    method: str
    path: str
    scope: Scope | None
    summary: str
    handler: Handler
    parameters: Mapping[str, Shape] = field(default_factory=dict)
    body: Fields | None = None
    answer: Mapping[str, Any] | None = None
    """JSON Schema; None: 204, nothing."""
    media_type: str = "application/json"
    arrow: Mapping[str, Shape] | None = None
    """It takes an Arrow stream, too, with these parameters of the query in place of a body; None: it does not."""
    data_type: str = ARROW
    """Of what it takes so, where that is something else."""
    gives_arrow: bool = False
    filters: bool = False
    """It tells only what the token may see, by itself."""
    repeatable: bool = True
    """Asking again, where the answer was lost, does nothing more."""
    errors: tuple[type[AfterlogError], ...] = ()
    """Besides those that every endpoint has."""
