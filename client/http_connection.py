"""A connection over HTTP/1.1, kept alive, by the standard library: 44 us of CPU a request over a Unix socket."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, IncompleteRead
from os import PathLike

from afterlog import sockets
from afterlog._version import __version__
from afterlog.client.address import Address
from afterlog.client.call import JSON, HttpReply, HttpRequest
from afterlog.errors import AnswerLost, InvalidArgument, NotAllowed, ServerNotTrusted, ServerUnavailable


def fixed_headers(token: str | None) -> dict[str, str]:
    """Those of every request. `X-Afterlog` is one that no form of a web page can set."""
    headers = {"X-Afterlog": "1", "User-Agent": f"afterlog/{__version__}"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return headers


def tls_context(ca: str | PathLike[str] | None) -> ssl.SSLContext:
    """ca: a file of the certificates to trust, in place of the system's. Raises InvalidArgument."""
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"ca must name a file of certificates (PEM), not {ca!r:.200}: {error}") from None


class _Wire(HTTPConnection):
    """Connected by the seam."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None) -> None:
        super().__init__(address.netloc)
        self._address = address
        self._tls = tls

    def connect(self) -> None:
        if self._address.socket is not None:
            self.sock = sockets.to_path(self._address.socket, self.timeout)
            return
        self.sock = sockets.to_host(self._address.host, self._address.port, self.timeout)
        if self._tls is not None:
            self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._address.host)


class HttpConnection:
    """One request at a time; see `transport.Connection`."""

    def __init__(self, address: Address, headers: Mapping[str, str], tls: ssl.SSLContext | None) -> None:
        self._address = address
        self._headers = dict(headers)
        self._wire = _Wire(address, tls)

    def connect(self, timeout_s: float) -> None:
        """What was kept alive may have been closed by the server meanwhile: that is no lost answer yet."""
        wire = self._wire
        if wire.sock is not None and sockets.is_over(wire.sock):
            wire.close()
        if wire.sock is not None:
            return
        wire.timeout = timeout_s
        try:
            wire.connect()
        except PermissionError as error:
            wire.close()
            raise NotAllowed(f"{self._address} is another user's, and does not let this process in: {error}") from error
        except ssl.SSLCertVerificationError as error:
            wire.close()
            raise ServerNotTrusted(f"{self._address} is not trusted: {error.verify_message}") from error
        except OSError as error:
            wire.close()
            raise ServerUnavailable(f"nobody answers at {self._address}: {error}") from error

    def exchange(self, request: HttpRequest, timeout_s: float) -> HttpReply:
        wire, headers = self._wire, self._headers
        if request.body:
            headers = {**headers, "Content-Type": request.kind}
        if request.accept != JSON:
            headers = {**headers, "Accept": request.accept}
        try:
            wire.sock.settimeout(timeout_s)
            wire.request(request.method, self._address.prefix + request.path, request.body or None, headers)
            response = wire.getresponse()
            if response.length is None and not response.chunked:  # a head that is cut off is taken for a short one
                raise IncompleteRead(b"")
            body = response.read()
            kind = response.getheader("Content-Type") or ""
        except (OSError, HTTPException) as error:
            wire.close()
            raise AnswerLost(f"no answer from {self._address}: {error!r}") from error
        except BaseException:  # half a reply is in it
            wire.close()
            raise
        return HttpReply(response.status, kind.partition(";")[0].strip(), body)

    def hang_up(self) -> None:
        sock = self._wire.sock
        if sock is not None:
            sockets.hang_up(sock)

    def is_over(self, timeout_s: float) -> bool:
        """Whether the server closes it within that time, while nothing is asked, or it is cut."""
        sock = self._wire.sock
        return sock is None or sockets.is_over(sock, timeout_s)

    def cut(self) -> None:
        """Who waits for a reply, or for its end, hears that it is over. From any thread."""
        sock = self._wire.sock
        if sock is not None:
            sockets.cut(sock)

    def close(self) -> None:
        self._wire.close()
