"""A connection over HTTP/1.1, kept alive: a request is one write; an answer is read to its end, strictly, within
bounds.

    HTTP/1.1 200 OK                    three digits; 1xx are passed over
    content-type: application/json     of which the media type is kept
    content-length: 12                 or transfer-encoding: chunked, as a proxy may have it
                                       an answer without either has no known end, and is none
    {"ids": [1]}                       nothing stands behind it: nothing was asked yet

`http.client` reads heads by the parser of mails, which takes as long as all else that a client does for a send.
"""

from __future__ import annotations

import functools
import re
import ssl
from collections.abc import Callable, Mapping
from os import PathLike
from typing import NamedTuple

from afterlog._version import __version__
from afterlog.api.operation import JSON
from afterlog.base import sockets
from afterlog.base.errors import AnswerLost, InvalidArgument, NotAllowed, ServerNotTrusted, ServerUnavailable
from afterlog.client.address import Address
from afterlog.client.call import HttpReply, HttpRequest

HEAD_BYTES_MAX = 64 << 10
"""Of one head, and of what stands between chunks."""
BODY_BYTES_MAX = 4 << 30
"""Larger: an answer may have more, and is kept in memory as a whole."""
READ_BYTES = 16 << 10
"""At a time, as long as it is not known how much there is."""
MORE_BYTES = 256 << 10
"""At a time, of a body."""

Read = Callable[[int], bytes]
"""Some bytes, up to so many; b"" at the end. Raises OSError."""

HEADS_MAX = 64
"""Heads that are kept, as they are asked for again and again."""
JOINED_BYTES = 64 << 10
"""A body up to that is written with its head, copied; a larger one behind it."""
_NO_PATH = re.compile("[^\x21-\x7e]")


class NoAnswer(Exception):
    """What came is none: cut off, too large, or not HTTP as a server speaks it."""


class Head(NamedTuple):
    """What is kept of one. length: None: it comes in chunks."""

    status: int
    kind: str
    length: int | None
    keeps: bool
    """Whether the connection stays open behind it."""


def read_answer(read: Read) -> tuple[HttpReply, bool]:
    """(the answer, whether the connection can be used again). Raises NoAnswer, OSError."""
    data = b""
    while True:
        text, data = _head_text(read, data)
        head = head_of(text)
        if head.status >= 200:
            break
    if head.length is None:
        body, data = _chunks(read, data)
    else:
        body, data = _exactly(read, data, head.length)
    if data:
        raise NoAnswer(f"{len(data)} bytes stand behind the answer")
    return HttpReply(head.status, head.kind, body), head.keeps


@functools.lru_cache(64)
def head_of(text: bytes) -> Head:
    """Of a head without its empty line; most say what one before said. Raises NoAnswer."""
    first, *lines = text.split(b"\r\n")
    digits = first[9:12]
    if first[:8] not in (b"HTTP/1.1", b"HTTP/1.0") or first[8:9] != b" " or not _is_number(digits, 3):
        raise NoAnswer(f"an answer begins with its status, not with {first[:60]!r}")
    status, kind, keeps = int(digits), "", first[7:8] == b"1"
    length: int | None = None
    chunked = False
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name or name[-1:] in b" \t" or name[:1] in b" \t":
            raise NoAnswer(f"a header has a name and a value, unlike {line[:60]!r}")
        name = name.lower()
        if name == b"content-length":
            said = _length(value.strip())
            if length not in (None, said):
                raise NoAnswer("the answer has two lengths")
            length = said
        elif name == b"content-type":
            kind = value.partition(b";")[0].strip().decode("latin-1")
        elif name == b"transfer-encoding":
            if value.strip().lower() != b"chunked":
                raise NoAnswer(f"the answer is encoded as {value[:60]!r}")
            chunked = True
        elif name == b"connection":
            keeps = keeps and b"close" not in value.lower()
    if status < 200 or status in (204, 304):
        return Head(status, kind, 0, keeps)
    if chunked == (length is not None):
        raise NoAnswer("the answer has to have one length")
    return Head(status, kind, length, keeps)


def _head_text(read: Read, data: bytes) -> tuple[bytes, bytes]:
    """(a head without its empty line, what has come behind it)."""
    while (end := data.find(b"\r\n\r\n")) < 0:
        if len(data) > HEAD_BYTES_MAX:
            raise NoAnswer("the head of the answer is too large")
        data += _some(read, READ_BYTES)
    return data[:end], data[end + 4 :]


def _exactly(read: Read, data: bytes, length: int) -> tuple[bytes, bytes]:
    """(so many bytes, what has come behind them)."""
    if len(data) >= length:
        return data[:length], data[length:]
    parts, left = [data], length - len(data)
    while left:
        parts.append(_some(read, min(left, MORE_BYTES)))
        left -= len(parts[-1])
    return b"".join(parts), b""


def _chunks(read: Read, data: bytes) -> tuple[bytes, bytes]:
    """(a body in chunks, what has come behind it)."""
    parts, size = list[bytes](), 0
    while True:
        line, data = _line(read, data)
        digits = line.partition(b";")[0].strip()
        if not digits or len(digits) > 8 or digits.strip(b"0123456789abcdefABCDEF"):
            raise NoAnswer(f"a chunk has a size, unlike {line[:60]!r}")
        more = int(digits, 16)
        size += more
        if size > BODY_BYTES_MAX:
            raise NoAnswer(f"the answer has more than {BODY_BYTES_MAX} bytes")
        if not more:
            break
        part, data = _exactly(read, data, more + 2)
        if part[-2:] != b"\r\n":
            raise NoAnswer("a chunk is longer than its size")
        parts.append(part[:-2])
    trailers = HEAD_BYTES_MAX
    while line := (found := _line(read, data))[0]:
        data, trailers = found[1], trailers - len(line)
        if trailers < 0:
            raise NoAnswer("the trailers of the answer are too large")
    return b"".join(parts), found[1]


def _line(read: Read, data: bytes) -> tuple[bytes, bytes]:
    while (end := data.find(b"\r\n")) < 0:
        if len(data) > HEAD_BYTES_MAX:
            raise NoAnswer("a line of the answer is too long")
        data += _some(read, READ_BYTES)
    return data[:end], data[end + 2 :]


def _some(read: Read, size: int) -> bytes:
    data = read(size)
    if not data:
        raise NoAnswer("the answer is cut off")
    return data


def _length(digits: bytes) -> int:
    if not _is_number(digits, 10) or (length := int(digits)) > BODY_BYTES_MAX:
        raise NoAnswer(f"an answer has up to {BODY_BYTES_MAX} bytes, not {digits[:60]!r}")
    return length


def _is_number(digits: bytes, most: int) -> bool:
    return digits.isdigit() and len(digits) <= most


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
