"""A running server of an open store, in this thread until it is stopped, or in a thread of its own.

    serving = Serving(store, Options(socket=True))
    serving.start()                                  a thread with an event loop; it listens when this returns
    serving.stop(); serving.join()                   no new work, what is under way is finished, then it ends

    listening ──stop──> draining ──────> ended       draining: new requests get 503, those that wait for a record are
                          └─stop again─> ended       answered with nothing, the others finish; a second stop cuts them

The store stays open: it is closed by who opened it.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from afterlog.base.environment import descriptors
from afterlog.base.errors import InvalidArgument, NotServed
from afterlog.base.files import OsFiles
from afterlog.base.listeners import (
    hold,
    is_loopback,
    is_unix,
    let_go,
    listening_at_host,
    listening_at_path,
    remove_socket,
)
from afterlog.base.locks import Thread
from afterlog.base.names import SERVER_SOCKET
from afterlog.server.access import OriginGuard
from afterlog.server.app import App
from afterlog.server.limits import Limits
from afterlog.server.served import Served
from afterlog.server.tokens import Authenticator, TokenFile
from afterlog.store.store import Store

if TYPE_CHECKING:
    from afterlog.server.connection import Connections

logger = logging.getLogger("afterlog.server")

BACKLOG: Final = 2_048
TIDY_S: Final = 5.0
"""Between looks at what nobody uses any more."""
LOOK_S: Final = 0.05
"""Between looks at connections of which the last answer is on its way, while the server stops."""
FINISH_S: Final = 30.0
"""A request that was begun is finished within that, or cut."""
BODY_FINISH_S: Final = 2.0
"""One whose body has not come by then is closed: nothing of it has been done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Where and for whom a store is served. socket: on the one in its folder; listen: (host, port), over TCP."""

    socket: bool = True
    listen: tuple[str, int] | None = None
    certificate: Path | None = None
    key: Path | None = None
    """For TLS, both."""
    tokens: Path | None = None
    no_auth: bool = False
    """Over TCP, and only to this machine: whoever comes may do everything."""
    names: tuple[str, ...] = ()
    """By which browsers and proxies call it, besides localhost and its address."""
    backups: Path | None = None
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        """Raises InvalidArgument."""
        if self.listen is not None and self.tokens is None and not self.no_auth:
            raise InvalidArgument("over TCP a server wants tokens: --tokens FILE, or --no-auth on 127.0.0.1")
        if self.tokens is not None and self.no_auth:
            raise InvalidArgument("either tokens or --no-auth")
        if (self.certificate is None) != (self.key is None):
            raise InvalidArgument("TLS needs a certificate and its key")
        if not self.socket and self.listen is None:
            raise InvalidArgument("a server listens somewhere")


class Serving:
    """Of one open store, once."""

    def __init__(self, store: Store, options: Options | None = None) -> None:
        """Raises NotServed where httptools is not installed, InvalidArgument, DiskFailed, CorruptFile of the tokens.

        It listens from now on, and answers once it is started.
        """
        check_installed()
        self._store = store
        self.options = options or Options()
        self._files = OsFiles()
        tokens = None if self.options.tokens is None else TokenFile(self._files, self.options.tokens)
        self._authenticate = Authenticator(tokens, store.clock, anybody=self.options.no_auth)
        self._socket_path = store.path / SERVER_SOCKET
        self._listeners: list[Any] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stops = 0
        self._stopped: asyncio.Event | None = None
        self._cut: asyncio.Event | None = None
        self._started: Future[None] = Future()
        self._thread: Thread | None = None
        self.app: App | None = None
        try:
            self._listen()
            if tokens is not None and not self._files.exists(tokens.path):
                raise InvalidArgument(
                    f"there is no {tokens.path}, and nobody could come in: afterlog tokens add makes it"
                )
        except BaseException:
            self._close_listeners()
            raise

    @property
    def addresses(self) -> list[str]:
        """Where it listens: as `afterlog.connect` takes them."""
        scheme = "http" if self.options.certificate is None else "https"
        return [
            f"unix:{self._socket_path}" if is_unix(each) else f"{scheme}://{_host_of(each)}" for each in self._listeners
        ]

    def start(self) -> None:
        """In a thread of its own."""
        thread = self._thread = Thread(target=self._run_in_thread, name="afterlog-server", daemon=True)
        thread.start()
        self._started.result()

    def run(self, on_started: Callable[[], None] = lambda: None) -> None:
        """In this thread, the main one, until SIGTERM or SIGINT; a second one is quicker."""
        _run(self._serve(on_started, signals=True))

    def stop(self) -> None:
        """No new work. From any thread; a second time, what is under way is cut."""
        self._stops += 1
        loop = self._loop
        if loop is not None:
            try:
                loop.call_soon_threadsafe(self._on_stop)
            except RuntimeError:  # it has ended
                pass

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; whether it has come."""
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # Inside.

    def _listen(self) -> None:
        options = self.options
        if options.socket:
            self._listeners.append(listening_at_path(self._socket_path, BACKLOG))
        if options.listen is not None:
            listener = listening_at_host(*options.listen, BACKLOG)
            self._listeners.append(listener)
            if options.no_auth and not is_loopback(listener):
                raise InvalidArgument("--no-auth is for this machine alone: listen on 127.0.0.1, or give --tokens")

        for each in self._listeners:
            hold(each.fileno())

    def _run_in_thread(self) -> None:
        try:
            _run(self._serve(lambda: None, signals=False))
        except BaseException as error:
            if self._started.done():
                logger.exception("the server of %s has failed", self._store.path)
            else:
                self._started.set_exception(error)

    async def _serve(self, on_started: Callable[[], None], *, signals: bool) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._stopped, self._cut = asyncio.Event(), asyncio.Event()
        options = self.options
        served = Served(self._store, backups=options.backups)
        names = options.names if options.listen is None else (*options.names, options.listen[0])
        app = self.app = App(served, self._authenticate, guard=OriginGuard(names), limits=options.limits)
        from afterlog.server.connection import Connections

        connections, tls = Connections(options.limits, descriptors()), _tls(options)
        tidying = asyncio.ensure_future(_tidy(served))
        try:
            servers = [await self._accept(loop, each, app, connections, tls) for each in self._listeners]
            if signals:
                for number in (signal.SIGTERM, signal.SIGINT):
                    loop.add_signal_handler(number, self.stop)
            for _ in range(self._stops):
                self._on_stop()
            self._started.set_result(None)
            on_started()
            await self._stopped.wait()
            app.stop()
            self._close_listeners()
            for server in servers:
                server.close()
            await self._finish(connections)
        finally:
            tidying.cancel()
            self._close_listeners()
            await served.close()

    async def _accept(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: Any,
        app: App,
        connections: Connections,
        tls: ssl.SSLContext | None,
    ) -> asyncio.AbstractServer:
        from afterlog.server.connection import Connection

        def connected() -> asyncio.Protocol:
            return Connection(app, connections, loop)

        if is_unix(listener):
            return await loop.create_unix_server(connected, sock=listener, backlog=BACKLOG)
        return await loop.create_server(connected, sock=listener, ssl=tls, backlog=BACKLOG)

    async def _finish(self, connections: Connections) -> None:
        """Requests that are under way are answered; connections without one are closed."""
        assert self._cut is not None, "it is being served"
        loop, cut = asyncio.get_running_loop(), asyncio.ensure_future(self._cut.wait())
        begun_s = loop.time()
        try:
            async with asyncio.timeout(FINISH_S):
                while (connections.tasks or connections.open) and not cut.done():
                    wait_for_body = loop.time() - begun_s < BODY_FINISH_S
                    for connection in [*connections.open]:  # with nothing under way it is closed once its answer is out
                        connection.shutdown(wait_for_body=wait_for_body)
                    await asyncio.wait({*connections.tasks, cut}, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            logger.warning("%d requests were not done within %g s, and are cut", len(connections.tasks), FINISH_S)
        cut.cancel()
        for connection in [*connections.open]:
            connection.transport.abort()
        for task in [*connections.tasks]:
            task.cancel()
        if connections.tasks:
            await asyncio.wait({*connections.tasks}, timeout=1.0)

    def _on_stop(self) -> None:
        assert self._stopped is not None, "it is being served"
        assert self._cut is not None, "it is being served"
        if self._stopped.is_set():
            self._cut.set()
        self._stopped.set()

    def _close_listeners(self) -> None:
        listeners, self._listeners = self._listeners, []
        for each in listeners:
            if is_unix(each):
                remove_socket(self._socket_path)
            let_go(each.fileno())
            each.close()


def serve_beside(store: Store) -> Serving:
    """Serve it on the socket in its folder, from a thread, until it is closed; where that fails, it is closed."""
    try:
        serving = Serving(store)
        serving.start()
    except BaseException:
        store.close()
        raise

    def end() -> None:
        serving.stop()
        serving.join(FINISH_S)

    store.before_close(end)
    return serving


def check_installed() -> None:
    """Raises NotServed."""
    try:
        import httptools  # noqa: F401
    except ImportError as error:
        raise NotServed(f"a server needs httptools: pip install 'afterlog[server]' ({error})") from None


def _tls(options: Options) -> ssl.SSLContext | None:
    """Raises OSError, ssl.SSLError of what the files hold."""
    if options.certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(options.certificate, options.key)
    return context


async def _tidy(served: Served) -> None:
    while True:
        await asyncio.sleep(TIDY_S)
        try:
            await served.tidy()
        except Exception:
            logger.exception("tidying up failed; it is tried again")


def _run(serving: Any) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(serving)
    else:
        uvloop.run(serving)


def _host_of(listener: Any) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
