"""Between clients and the socket in a folder: pieces of any size, a little late, cut off anywhere, and said again.

    client ──> request, request, …  ──> the server        one of either may be cut off; and once a request was answered,
                   └─ again, later  ──> the server        or cut off, it may come again over another connection

What is said again is what may be (promise D11): sends that name a producer and a sequence, and acks.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from afterlog.base.names import SERVER_SOCKET
from afterlog.fetch.record_id import RecordId

AGAIN = 0.1
"""The share of requests that are said again."""
LATER_S = (0.0, 0.0, 0.01, 0.1, 1.0)
"""By how much later. Also later than the requests behind it, and than who serves."""
PATIENCE_S = 10.0


class Requests:
    """What one end says over a connection, request by request; a reply is much the same."""

    def __init__(self) -> None:
        self._said = b""

    def said(self, data: bytes) -> Iterator[bytes]:
        """Those that end in these bytes."""
        self._said += data
        while (end := self._end()) is not None:
            yield self._said[:end]
            self._said = self._said[end:]

    @property
    def between(self) -> bool:
        """Whether nothing was said of another one yet."""
        return not self._said

    def _end(self) -> int | None:
        head, found, rest = self._said.partition(b"\r\n\r\n")
        if not found:
            return None
        lines = (line.split(b":", 1) for line in head.lower().split(b"\r\n")[1:])
        length = next((int(value) for name, value in lines if name == b"content-length"), 0)
        return len(head) + len(found) + length if len(rest) >= length else None


def may_come_again(request: bytes) -> bool:
    """Whether it does no harm: a send with a sequence, or an ack."""
    path = request.split(b" ", 2)[1]
    return path.endswith(b"/ack") or (path.endswith(b"/records") and "producer" in _body(request))


def sent_values(request: bytes) -> list[str]:
    """Of a send in JSON; none of anything else."""
    return [row["value"] for row in _body(request).get("records", ())]


def _body(message: bytes) -> dict[str, list[dict[str, str]]]:
    head, _, body = message.partition(b"\r\n\r\n")
    if b"application/json" not in head.lower():
        return {}
    found: dict[str, list[dict[str, str]]] = json.loads(body)
    return found


class Proxy:
    def __init__(self, folder: Path, path: Path, seed: int) -> None:
        self._to = str(folder / SERVER_SOCKET)
        self._chance = random.Random(seed)
        self.cuts = 0
        self.again: Counter[str] = Counter()
        """Requests that were said again, by what came of them."""
        self.answered_again: list[tuple[str, tuple[int, int]]] = []
        """(value, (partition, offset)): what was answered to sends that were said again."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._relay, args=(client,), daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server:
            try:
                server.connect(self._to)
            except OSError:
                return
            left = self._chance.choice((None, None, 500, 5_000, 50_000))
            budget = [None if left is None else self._chance.randrange(left)]
            back = threading.Thread(target=self._pump, args=(server, client, budget), daemon=True)
            back.start()
            self._pump(client, server, budget, Requests())
            back.join()

    def _pump(
        self, here: socket.socket, there: socket.socket, budget: list[int | None], requests: Requests | None = None
    ) -> None:
        """Until one end is reached, or so many bytes have gone in both directions."""
        last = None
        with contextlib.suppress(OSError):
            while data := here.recv(self._chance.choice((1, 7, 100, 4_096))):
                if requests is not None:
                    if last is not None and requests.between:  # another one begins: that one was answered
                        self._say_again(last)
                    last = next(iter([*requests.said(data)][-1:]), None)
                left = budget[0]
                if left is not None:
                    budget[0] = left - len(data)
                    if left < len(data):
                        there.sendall(data[:left])
                        self.cuts += 1
                        break
                if self._chance.random() < 0.02:
                    time.sleep(0.002)
                there.sendall(data)
        if last is not None:
            self._say_again(last)
        for each in (here, there):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR if budget[0] is not None and budget[0] < 0 else socket.SHUT_WR)

    def _say_again(self, request: bytes) -> None:
        if may_come_again(request) and self._chance.random() < AGAIN:
            later_s = self._chance.choice(LATER_S)
            threading.Thread(target=self._said_again, args=(request, later_s), daemon=True).start()

    def _said_again(self, request: bytes, later_s: float) -> None:
        time.sleep(later_s)
        kind, reply = "ack" if request.split(b" ", 2)[1].endswith(b"/ack") else "send", None
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as server:
            server.settimeout(PATIENCE_S)
            server.connect(self._to)
            server.sendall(request)
            replies = Requests()
            while reply is None and (data := server.recv(4_096)):
                reply = next(replies.said(data), None)
        if reply is None:
            self.again[f"{kind}, nobody there"] += 1
            return
        status = reply.split(b" ", 2)[1].decode()
        self.again[f"{kind}, {status}"] += 1
        if kind == "send" and status == "200":
            for value, text in zip(sent_values(request), _body(reply)["ids"], strict=True):
                record = RecordId.parse(str(text))
                self.answered_again.append((value, (record.partition, record.offset)))
