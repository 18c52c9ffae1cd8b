"""What one operation is over HTTP: one row, from which a server has its endpoint and a client its request.

    PURGE = HttpOperation(
        method="POST", path="/v1/topics/{topic}/purge", scope=Scope.MANAGE, summary="Remove what is due before …",
        body=…, answer=…, errors=…, repeatable=False,
    )
    PURGE.path_of(topic="mail")            /v1/topics/mail/purge

A path is made of words and of names in braces. Whose path has {topic} is allowed by the topic's name; the others by a
token for all topics, unless they are open (no scope) or filter by themselves.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode

from afterlog.api.schema import Fields, Shape
from afterlog.base.errors import AfterlogError

JSON: Final = "application/json"
ARROW: Final = "application/vnd.apache.arrow.stream"
NOTHING: Final = Fields({})

PATHS: Final = 1_024
"""That are remembered, quoted: who sends to a topic sends there again."""


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HttpOperation:
    """scope: None for who needs no token. parameters: of the query. body: of the JSON; None: no body is read."""

    method: str
    path: str
    scope: Scope | None
    summary: str
    parameters: Mapping[str, Shape] = field(default_factory=dict)
    body: Fields | None = None
    answer: Mapping[str, Any] | None = None
    """JSON Schema; None: 204, nothing."""
    media_type: str = JSON
    arrow: Mapping[str, Shape] | None = None
    """It takes an Arrow stream, too, with these parameters of the query in place of a body; None: it does not."""
    data_type: str = ARROW
    """Of what it takes so, where that is something else."""
    gives_arrow: bool = False
    filters: bool = False
    """It tells only what the token may see, by itself."""
    repeatable: bool = True
    """Asking again, where the answer was lost, does nothing more. Else the client raises AnswerLost."""
    errors: tuple[type[AfterlogError], ...] = ()
    """Besides those that every operation has."""

    def path_of(self, query: Mapping[str, Any] | None = None, /, **names: str) -> str:
        """With these names; parameters of the query that are None are left out."""
        path = _path(self.path, *names.items())
        if not query:
            return path
        asked = {name: _text(value) for name, value in query.items() if value is not None}
        return f"{path}?{urlencode(asked)}" if asked else path


@functools.lru_cache(PATHS)
def _path(path: str, *names: tuple[str, str]) -> str:
    for name, value in names:
        path = path.replace(f"{{{name}}}", quote(str(value), safe=""))
    return path


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
