"""Limits of a server: for one request, for one client, and for all at one time. What comes from outside is bounded by
these."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Each is checked before anything of that size is allocated."""

    body_bytes: int = 64 << 20
    """Of a request. Larger: more records at once as Arrow, more memory for each client that is under way."""
    json_bytes: int = 4 << 20
    """Of one in JSON, a fifth of a second of a core a MiB where its rows are small: 20 times what columns cost."""
    bodies_bytes: int = 512 << 20
    """Of all requests that are under way."""
    head_bytes: int = 64 << 10
    """Of the request line and the headers."""
    body_s: float = 60.0
    """Within which a request has to be here, from its first byte on. Larger: slow clients hold more."""
    answer_s: float = 120.0
    """Within which a client takes what it was sent."""
    requests: int = 20_000
    """Of one client, at a time: those that wait for records, too."""
    connections: int = 20_000
    """Of all clients."""
    client_connections: int = 16_000
    """Of one client."""
    idle_s: float = 300.0
    """For which a connection stays that nobody uses."""
