"""A connection over HTTP/1.1, kept alive: a request is one write, and its answer is read by `http_answer`."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from os import PathLike

from afterlog._version import __version__
from afterlog.api.operation import JSON
from afterlog.base import sockets
from afterlog.base.errors import AnswerLost, InvalidArgument, NotAllowed, ServerNotTrusted, ServerUnavailable
from afterlog.client.address import Address
from afterlog.client.call import HttpReply, HttpRequest
from afterlog.client.http_answer import NoAnswer, read_answer

HEADS_MAX = 64
"""Heads that are kept, as they are asked for again and again."""
JOINED_BYTES = 64 << 10
"""A body up to that is written with its head, copied; a larger one behind it."""
_NO_PATH = re.compile("[^\x21-\x7e]")


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


class HttpConnection:
    """One request at a time; see `transport.Connection`."""

    def __init__(self, address: Address, headers: Mapping[str, str], tls: ssl.SSLContext | None) -> None:
        self._address = address
        self._tls = tls
        fixed = {"Host": address.netloc, **headers}
        if address.socket is None:
            fixed["Accept-Encoding"] = "identity"  # no proxy on the way shall compress
        self._fixed = "".join(f"{name}: {value}\r\n" for name, value in fixed.items())
        self._heads: dict[tuple[str, str, str, str], bytes] = {}
        """Of requests, as far as their length."""
        self._wire: sockets.Wire | None = None

    def connect(self, timeout_s: float) -> None:
        """What was kept alive may have been closed by the server meanwhile: that is no lost answer yet."""
        if self._wire is not None:
            if not self._wire.is_over():
                return
            self.close()
        try:
            self._wire = self._connected(timeout_s)
        except PermissionError as error:
            raise NotAllowed(f"{self._address} is another user's, and does not let this process in: {error}") from error
        except ssl.SSLCertVerificationError as error:
            raise ServerNotTrusted(f"{self._address} is not trusted: {error.verify_message}") from error
        except OSError as error:
            raise ServerUnavailable(f"nobody answers at {self._address}: {error}") from error

    def exchange(self, request: HttpRequest, timeout_s: float) -> HttpReply:
        wire, body = self._wire, request.body
        assert wire is not None, "it is connected"
        head = self._head(request)
        if body or request.method not in ("GET", "HEAD", "DELETE"):
            head += b"Content-Length: %d\r\n" % len(body)
        try:
            wire.wait_for(timeout_s)
            if len(body) > JOINED_BYTES:
                wire.write(head + b"\r\n")
                wire.write(body)
            else:
                wire.write(head + b"\r\n" + body)
            reply, keeps = read_answer(wire.read)
        except BlockingIOError as error:
            self.close()
            raise AnswerLost(f"no answer from {self._address} within {timeout_s:g} s") from error
        except (OSError, NoAnswer) as error:
            self.close()
            raise AnswerLost(f"no answer from {self._address}: {error!r}") from error
        except BaseException:  # half a reply is in it
            self.close()
            raise
        if not keeps:
            self.close()
        return reply

    def hang_up(self) -> None:
        wire = self._wire
        if wire is not None:
            wire.hang_up()

    def is_over(self, timeout_s: float) -> bool:
        """Whether the server closes it within that time, while nothing is asked, or it is cut."""
        wire = self._wire
        return wire is None or wire.is_over(timeout_s)

    def cut(self) -> None:
        """Who waits for a reply, or for its end, hears that it is over. From any thread."""
        wire = self._wire
        if wire is not None:
            wire.cut()

    def close(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()

    def _connected(self, timeout_s: float) -> sockets.Wire:
        if self._address.socket is not None:
            return sockets.Wire(sockets.to_path(self._address.socket, timeout_s))
        plain = sockets.to_host(self._address.host, self._address.port, timeout_s)
        if self._tls is None:
            return sockets.Wire(plain)
        return sockets.Wire(self._tls.wrap_socket(plain, server_hostname=self._address.host))

    def _head(self, request: HttpRequest) -> bytes:
        """All of it but for the length and the empty line. Raises InvalidArgument."""
        key = request.method, request.path, request.kind if request.body else "", request.accept
        head = self._heads.get(key)
        if head is None:
            method, path, kind, accept = key
            if _NO_PATH.search(path) or _NO_PATH.search(method):
                raise InvalidArgument(f"a path is of ASCII, percent-encoded, unlike {path!r:.200}")
            text = f"{method} {self._address.prefix}{path} HTTP/1.1\r\n{self._fixed}"
            if kind:
                text += f"Content-Type: {kind}\r\n"
            if accept != JSON:
                text += f"Accept: {accept}\r\n"
            head = text.encode("latin-1")
            if "?" not in path:
                if len(self._heads) == HEADS_MAX:
                    self._heads.clear()
                self._heads[key] = head
        return head
