"""Heads that came before, by their bytes: a client says the same again and again, and one look-up is all that its
next request takes to be read.

Nothing is read otherwise than the parser has read it: what is kept is what it made of the same bytes, and only of a
head that leaves no doubt where it ends and how long its body is. Whose head it is makes no difference: who asks is
looked at for each request.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from afterlog.server.exchange import RequestHead

KNOWN_HEADS: Final = 1_024
KNOWN_HEAD_BYTES: Final = 1_024
"""Longer ones come from nobody who comes often."""
_END: Final = b"\r\n\r\n"
_LENGTH_DIGITS: Final = 9


class KnownHead(NamedTuple):
    """length: of the body."""

    head: RequestHead
    length: int


class KnownHeads:
    """Of one server."""

    def __init__(self) -> None:
        self._known: dict[bytes, KnownHead] = {}

    def __len__(self) -> int:
        return len(self._known)

    def read(self, data: bytes) -> tuple[RequestHead, bytes] | None:
        """A request that is the whole of `data`, with its body; None: it is for the parser."""
        end = data.find(_END) + len(_END)
        known = self._known.get(data[:end])
        if known is None or known.length != len(data) - end:
            return None
        return known.head, data[end:]

    def keep(self, data: bytes, head: RequestHead, lines: int) -> None:
        """data: from the first byte of a request on; lines: of headers, as the parser has found them, with their
        repetitions."""
        end = data.find(_END) + len(_END)
        if end < len(_END) or end > KNOWN_HEAD_BYTES or not head.keep_alive or head.expects:
            return
        text, headers = data[:end], head.headers
        ends = text.count(b"\r\n")
        if ends != lines + 2 or ends != text.count(b"\n") or ends != text.count(b"\r") or len(headers) != lines:
            return  # it ends elsewhere, has folded lines, or says something twice
        if b"transfer-encoding" in headers or b"upgrade" in headers:
            return
        digits = headers.get(b"content-length", b"0")
        if not digits.isdigit() or len(digits) > _LENGTH_DIGITS:
            return
        if len(self._known) == KNOWN_HEADS:
            self._known.clear()
        self._known[text] = KnownHead(head, int(digits))
