"""What the tests of the server share: a store on a simulated disk, its application, a client that needs no socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from afterlog.server.access import OriginGuard
from afterlog.server.app import App
from afterlog.server.exchange import ClientGone, Peer, RequestHead
from afterlog.server.limits import Limits
from afterlog.server.served import Served
from afterlog.server.tokens import Authenticator, TokenFile
from afterlog.store.store import Store, open_store
from afterlog.tier.remote_store import RemoteStore
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, PATH, PATIENCE_S, small
from tests.test_aio import PatientClock

OWNER = Peer("user 0", trusted=True, tcp=False)
STRANGER = Peer("10.0.0.7", trusted=False, tcp=True)
ARROW = "application/vnd.apache.arrow.stream"


class TurnedClock(PatientClock):
    """Patience runs by it, too."""

    def monotonic_s(self) -> float:
        return self.now_ms() / 1_000


@dataclass
class Said:
    """What the server answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def title(self) -> str:
        """The name of the error."""
        assert "application/problem+json" == self.headers["content-type"], self
        title: str = self.json["title"]
        return title


@dataclass
class Call:
    """One request to the application: what it is sent, piece by piece, and when its client goes."""

    head: RequestHead
    peer: Peer
    pieces: list[bytes]
    stalls: bool = False
    is_gone: bool = False
    said: Said | None = None
    _left: asyncio.Event = field(default_factory=asyncio.Event)
    _on_gone: Callable[[], object] | None = None

    @property
    def is_whole(self) -> bool:
        return not self.pieces and not self.stalls

    async def body(self) -> bytes:
        if self.pieces:
            return self.pieces.pop(0)
        await self._left.wait()
        raise ClientGone

    def when_gone(self, call: Callable[[], object] | None) -> None:
        self._on_gone = call
        if call is not None and self.is_gone:
            asyncio.get_running_loop().call_soon(call)

    def go(self) -> None:
        """The client does."""
        self.is_gone = True
        self._left.set()
        if self._on_gone is not None:
            asyncio.get_running_loop().call_soon(self._on_gone)

    async def answer(self, status: int, fields: bytes, body: bytes, *, closes: bool) -> None:
        lines = (line.partition(": ") for line in fields.decode().splitlines())
        headers = {name: value for name, _, value in lines}
        self.said = Said(status, {**headers, "connection": "close"} if closes else headers, body)


class Client:
    """Calls the application as a server would, with no socket in between."""

    def __init__(self, app: App, peer: Peer = OWNER) -> None:
        self.app = app
        self.peer = peer

    def call(
        self, method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None,
        pieces: list[bytes] | None = None, peer: Peer | None = None, stalls: bool = False,
    ) -> tuple[Call, asyncio.Task[None]]:  # fmt: skip
        """Begin one."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        kind = ARROW if isinstance(body, bytes) else "application/json"
        given = {"host": "localhost", "content-type": kind, **(headers or {})}
        path, _, query = path.partition("?")
        headers = {name.lower().encode(): value.encode() for name, value in given.items()}
        head = RequestHead(method, path, query.encode(), headers)
        call = Call(head, peer or self.peer, [data] if pieces is None else list(pieces), stalls)
        return call, asyncio.ensure_future(self.app(call))

    async def ask(self, method: str, path: str, body: Any = None, **more: Any) -> Said:
        call, task = self.call(method, path, body, **more)
        await asyncio.wait_for(task, PATIENCE_S)
        assert call.said is not None, "it was answered"
        return call.said

    async def get(self, path: str, **more: Any) -> Any:
        return self._good(await self.ask("GET", path, **more))

    async def post(self, path: str, body: Any = None, **more: Any) -> Any:
        return self._good(await self.ask("POST", path, {} if body is None else body, **more))

    async def put(self, path: str, body: Any) -> Any:
        return self._good(await self.ask("PUT", path, body))

    async def delete(self, path: str) -> None:
        assert 204 == (await self.ask("DELETE", path)).status

    async def refused(self, title: str, method: str, path: str, body: Any = None, **more: Any) -> dict[str, Any]:
        """The problem, which is one of that name."""
        said = await self.ask(method, path, body, **more)
        assert title == said.title, said
        problem: dict[str, Any] = said.json
        return problem

    def _good(self, said: Said) -> Any:
        assert said.status in (200, 204), said
        return said.json if said.headers.get("content-type") == "application/json" else said.body


@dataclass
class Setting:
    """A store with a topic `mail`, served; a clock that is turned by hand."""

    store: Store
    app: App
    client: Client
    clock: TurnedClock

    async def send(self, *values: str, topic: str = "mail", **more: Any) -> list[str]:
        records = [{"value": value, **more} for value in values]
        ids: list[str] = (await self.client.post(f"/v1/topics/{topic}/records", {"records": records}))["ids"]
        return ids

    async def receive(self, count: int = 100, name: str = "sender", **more: Any) -> list[dict[str, Any]]:
        body = {"max_records": count, **more}
        path = f"/v1/topics/mail/subscriptions/{name}/receive"
        messages: list[dict[str, Any]] = (await self.client.post(path, body))["messages"]
        return messages

    async def waiting(self, count: int) -> None:
        """Return when so many requests wait for records."""
        await soon(lambda: len(self.app.served.waits) == count)


async def soon(condition: Callable[[], bool]) -> None:
    """Return once another task or thread has made the condition true."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0)


def run(test: Callable[[Setting], Awaitable[None]], **settings: Any) -> None:
    """Run a test on a store of its own, which is whole afterwards."""

    async def main() -> None:
        async with setting(**settings) as made:
            await asyncio.wait_for(test(made), PATIENCE_S)

    asyncio.run(main())


@asynccontextmanager
async def setting(
    *, limits: Limits | None = None, tokens: TokenFile | None = None, peer: Peer = OWNER, names: tuple[str, ...] = (),
    remote: RemoteStore | None = None, **settings: Any,
) -> AsyncIterator[Setting]:  # fmt: skip
    clock = TurnedClock(NOW_MS)
    with open_store(PATH, small(**settings), clock, SimulatedFiles(), remote, background=False) as store:
        store.create_topic("mail")
        served = Served(store)
        app = App(served, Authenticator(tokens, clock), guard=OriginGuard(names), limits=limits)
        try:
            yield Setting(store, app, Client(app, peer), clock)
            store.check()
        finally:
            await served.close()
