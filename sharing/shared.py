"""A store that the processes of one machine share: `afterlog.open(path, shared=True)` in each of them.

    process  handle ──┐                             whoever has the folder's lock serves the others, from a thread
    process  handle ──┼── server.sock ── the store  (`standby.py`); when it goes, another one takes over
    process  handle ──┘

A handle is always a client of the socket in the folder, also in the process that serves it: so there is one way for a
request to go, and who took over since the last one is no concern of it. It asks again until it is answered: a fail-over
is a pause. The names, types and errors are those of `afterlog.Store`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afterlog.base.clock import Clock, SystemClock
from afterlog.base.config import Config
from afterlog.base.errors import NotServed, ServerUnavailable
from afterlog.base.files import ReadOnlyFiles
from afterlog.base.kept_config import kept_config
from afterlog.base.names import SERVER_SOCKET
from afterlog.client.address import Address
from afterlog.client.call import Connecting, HttpReply, HttpRequest
from afterlog.client.http_connection import HttpConnection, fixed_headers
from afterlog.client.served_store import ServedStore, checked_timeout
from afterlog.server.running import check_installed
from afterlog.sharing.standby import OpenedWith, Standby, join, leave
from afterlog.store.store import Store, open_store

if TYPE_CHECKING:
    from afterlog.tier.remote_store import RemoteStore

logger = logging.getLogger("afterlog.sharing.shared")

Opener = Callable[[], Store]


class SharedStore(ServedStore):
    """A store that several processes have open. `afterlog.open(path, shared=True)` makes it."""

    def __init__(self, standby: Standby, clock: Clock, timeout_s: float) -> None:
        super().__init__(connecting(standby), clock=clock, timeout_s=timeout_s, name=f"{standby.path}, shared")
        self._standby = standby

    def __enter__(self) -> SharedStore:
        return self

    @property
    def serves(self) -> bool:
        """Whether this process is the one that has the folder, at the moment."""
        return self._standby.serves

    def close(self) -> None:
        """Close the readers, give back what they have leased, and leave.

        Where this was the last handle of the process that serves, another process takes over. In a forked child it only
        forgets.
        """
        if self._pool.closed:
            return
        try:
            super().close()
        finally:
            leave(self._standby)


def open_shared(
    path: Path,
    config: Config | None,
    clock: Clock | None,
    remote: RemoteStore | str | None,
    timeout: float,
    opening: Opener | None = None,
) -> SharedStore:
    """What `afterlog.open(path, shared=True)` does. opening: how the store is opened, where this process is the one."""
    timeout_s = checked_timeout(timeout)
    standby = joined(path, config, clock, remote, opening)
    try:
        standby.wait(timeout_s)
        store = SharedStore(standby, clock or SystemClock(), timeout_s)
    except BaseException:
        leave(standby)
        raise
    if not standby.serves:
        warn_of(store.info(), config or kept_config(ReadOnlyFiles(), path), path)
    return store


def joined(
    path: Path, config: Config | None, clock: Clock | None, remote: RemoteStore | str | None, opening: Opener | None
) -> Standby:
    """The standby of this process for the folder. Raises ImportError, WrongType."""
    check_extra()
    return join(
        path,
        OpenedWith(config, clock, remote),
        opening or (lambda: open_store(path, config, clock, None, remote, serves=True, keeps=True)),
    )


def warn_of(told: dict[str, Any], config: Config, path: Path) -> None:
    """Where whoever serves goes by other settings, as far as it tells: they hold until another process takes over."""
    mine = {
        "durability": {"kind": config.durability.kind, "interval_ms": config.durability.interval_ms},
        "batch_bytes_max": config.batch_bytes_max,
    }
    for name, value in mine.items():
        if name in told and told[name] != value:
            logger.warning("%s is served with %s=%s, and here it is %s", path, name, told[name], value)


def check_extra() -> None:
    """Raises ImportError."""
    try:
        check_installed()
    except NotServed as error:
        raise ImportError(f"shared=True needs the extra `server`: {error}") from error


class _SharedConnection(HttpConnection):
    """To whoever serves now; its errors say who does."""

    def __init__(self, standby: Standby, address: Address) -> None:
        super().__init__(address, fixed_headers(None), None)
        self._standby = standby

    def connect(self, timeout_s: float) -> None:
        with self._explained():
            super().connect(timeout_s)

    def exchange(self, request: HttpRequest, timeout_s: float) -> HttpReply:
        with self._explained():
            return super().exchange(request, timeout_s)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except ServerUnavailable as error:
            raise type(error)(f"{error} ({self._standby.explained()})") from error


def connecting(standby: Standby) -> Connecting:
    """What makes connections to whoever serves."""
    address = Address(socket=standby.path / SERVER_SOCKET)
    return lambda: _SharedConnection(standby, address)
