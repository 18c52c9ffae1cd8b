"""A store that processes share, in asyncio: `afterlog.aio.open(path, shared=True)`. See `shared.py`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from afterlog.base.clock import Clock, SystemClock
from afterlog.base.config import Config
from afterlog.base.errors import ServerUnavailable
from afterlog.base.files import ReadOnlyFiles
from afterlog.base.kept_config import kept_config
from afterlog.base.names import SERVER_SOCKET
from afterlog.client.address import Address
from afterlog.client.async_pool import AsyncPool
from afterlog.client.async_store import AsyncServedStore
from afterlog.client.call import HttpReply, HttpRequest
from afterlog.client.http_connection import fixed_headers
from afterlog.client.pool import Pool
from afterlog.client.served_store import checked_timeout
from afterlog.client.server_time import ServerTime
from afterlog.sharing.shared import Opener, connecting, joined, warn_of
from afterlog.sharing.standby import Standby, leave
from afterlog.store.aio_calls import Calls

if TYPE_CHECKING:
    from afterlog.tier.remote_store import RemoteStore


class AsyncSharedStore(AsyncServedStore):
    """A store that several processes have open. `afterlog.aio.open(path, shared=True)` makes it."""

    def __init__(self, standby: Standby, clock: Clock, timeout_s: float) -> None:
        server_time = ServerTime(clock)
        blocking = Pool(connecting(standby), clock, server_time, timeout_s)
        pool = _SharedPool(standby, clock, server_time, timeout_s)
        super().__init__(pool, blocking, clock, server_time, f"{standby.path}, shared")
        self._standby = standby

    @property
    def serves(self) -> bool:
        """Whether this process is the one that has the folder, at the moment."""
        return self._standby.serves

    async def close(self) -> None:
        """As of the blocking one."""
        if self._pool.closed:
            return
        try:
            await super().close()
        finally:
            await _left(self._standby)


async def open_shared(
    path: Path,
    config: Config | None,
    clock: Clock | None,
    remote: RemoteStore | str | None,
    timeout: float,
    opening: Opener | None = None,
) -> AsyncSharedStore:
    """What `afterlog.aio.open(path, shared=True)` does."""
    timeout_s = checked_timeout(timeout)
    standby = joined(path, config, clock, remote, opening)
    calls = Calls()
    try:
        await calls.run(lambda: standby.wait(timeout_s))
        store = AsyncSharedStore(standby, clock or SystemClock(), timeout_s)
    except BaseException:
        await _left(standby)
        raise
    finally:
        calls.close()
    if not standby.serves:
        warn_of(await store.info(), config or kept_config(ReadOnlyFiles(), path), path)
    return store


async def _left(standby: Standby) -> None:
    """It may take as long as what is under way for others."""
    calls = Calls()
    try:
        await calls.run(lambda: leave(standby))
    finally:
        calls.close()


class _SharedPool(AsyncPool):
    """To whoever serves now; its errors say who does."""

    def __init__(self, standby: Standby, clock: Clock, server_time: ServerTime, timeout_s: float) -> None:
        address = Address(socket=standby.path / SERVER_SOCKET)
        super().__init__(address, fixed_headers(None), None, clock, server_time, timeout_s)
        self._standby = standby

    async def _exchange(self, request: HttpRequest, timeout_s: float) -> HttpReply:
        try:
            return await super()._exchange(request, timeout_s)
        except ServerUnavailable as error:
            raise type(error)(f"{error} ({self._standby.explained()})") from error
