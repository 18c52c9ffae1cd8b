"""Bodies of requests: read as far as the limits go, and then as JSON. That they come in time sees the connection to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, NoReturn

from afterlog.base.errors import InvalidRequest, RequestTooLarge, ServerBusy
from afterlog.server.limits import Limits
from afterlog.server.request import ClientGone, Receive

DISCARDED_S = 2.0
"""For so long a client may go on sending what is not taken, so that it reads why."""


class Bodies:
    """Of one server: what all that are under way may have."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.held_bytes = 0

    async def read(self, receive: Receive, headers: Mapping[bytes, bytes], most: int) -> bytes:
        """A body of up to `most` bytes; its bytes are the caller's to `free`.

        Raises InvalidRequest, RequestTooLarge, ServerBusy, ClientGone.
        """
        said = headers.get(b"content-length", b"0")
        length = int(said) if said.isdigit() and len(said) <= 18 else 0
        if length > most:
            await self._refuse(receive, most)
        self._check_room(length)
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body: bytes = message["body"]
        if message["more_body"]:
            body = await self._rest(receive, body, most)
        elif len(body) > most:
            raise RequestTooLarge(f"a body of {len(body)} bytes; {most} are taken")
        self.held_bytes += len(body)
        return body

    def free(self, body: bytes) -> None:
        self.held_bytes -= len(body)

    async def _rest(self, receive: Receive, first: bytes, most: int) -> bytes:
        parts, size = [first], len(first)
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            parts.append(message["body"])
            size += len(parts[-1])
            if size > most:
                await self._refuse(receive, most)
            self._check_room(size)
            if not message["more_body"]:
                return b"".join(parts)

    def _check_room(self, size: int) -> None:
        if self.held_bytes + size > self._limits.bodies_bytes:
            raise ServerBusy(f"bodies of {self.held_bytes} bytes are under way; wait for some of it")

    async def _refuse(self, receive: Receive, most: int) -> NoReturn:
        try:
            async with asyncio.timeout(DISCARDED_S):
                while (await receive()).get("more_body"):
                    pass
        except TimeoutError:
            pass
        raise RequestTooLarge(f"a body of more than {most} bytes, which is all that is taken")


def json_of(body: bytes) -> Any:
    """Raises InvalidRequest."""
    try:
        return _decode(body.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the body is no JSON: {error}") from None


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


_decode = json.JSONDecoder(parse_constant=_no_number).decode
"""Kept: `json.loads` makes one for each call that wants more than the usual."""
