"""Where a server is: what a user writes, and what is to be connected to.

http://host:7654            TCP; a path behind it is in front of all others, as behind a proxy
https://host                TCP with TLS, port 443
unix:/data/server.sock      the socket of a server
/data                       the folder of a store: the socket in it
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from afterlog.base.environment import folder_of, is_folder
from afterlog.base.errors import InvalidArgument, ServerUnavailable, WrongType
from afterlog.base.names import SERVER_SOCKET

if TYPE_CHECKING:
    from os import PathLike

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Either a socket's path, or a host and a port."""

    socket: Path | None = None
    host: str = "localhost"
    port: int = 0
    tls: bool = False
    prefix: str = ""
    """In front of each path."""

    def __str__(self) -> str:
        if self.socket is not None:
            return f"unix:{self.socket}"
        return f"{'https' if self.tls else 'http'}://{self.netloc}{self.prefix}"

    @property
    def netloc(self) -> str:
        """As the header `Host` has it."""
        if self.socket is not None:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS["https" if self.tls else "http"] else f"{host}:{self.port}"


def address_of(url: str | PathLike[str]) -> Address:
    """Raises InvalidArgument, WrongType."""
    if isinstance(url, str) and "://" in url:
        return _web_address(url)
    if isinstance(url, str) and url.startswith("unix:"):
        return Address(socket=Path(url.removeprefix("unix:")).absolute())
    try:
        folder = folder_of(url)
    except WrongType as error:
        raise WrongType(f"connect takes http://…, https://…, unix:PATH, or the folder of a store: {error}") from None
    return Address(socket=folder / SERVER_SOCKET)


def address_there(url: str | PathLike[str]) -> Address:
    """The same, of a socket whose folder is there: where none is there will be no server, however long one waits.

    Raises ServerUnavailable, too.
    """
    address = address_of(url)
    if address.socket is not None and not is_folder(address.socket.parent):
        raise ServerUnavailable(
            f"there is no folder {address.socket.parent}: look at the path, or start `afterlog serve` there first"
        )
    return address


def _web_address(url: str) -> Address:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidArgument(f"{url!r:.200} is no address: {error}") from None
    if parts.scheme == "unix":
        return Address(socket=Path(parts.path).absolute())
    if parts.scheme not in _PORTS or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise InvalidArgument(
            f"write http://host:port, https://host, unix:PATH or the path of a store, not {url!r:.200}"
        )
    return Address(
        host=parts.hostname,
        port=_PORTS[parts.scheme] if port is None else port,
        tls=parts.scheme == "https",
        prefix=parts.path.rstrip("/"),
    )
