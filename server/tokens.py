"""Tokens: who may do what, in a file that holds no token but its hash.

    tokens.json     afterlog-tokens document (`afterlog.base.document`), {"tokens":[{"name":"worker",
                    "sha256":"…64 hex digits…","scopes":{"receive":["mail"],"look":["mail"]},
                    "expires_ms":1795970539260}]}      where it does

Scopes by name, each with the prefixes of the topics that it is for; "" of all topics, and of what concerns the store. A
token is 256 random bits, so its hash gives nothing away, and needs no salt. It is shown once, when it is made. A server
looks at the file's stamp every LOOK_S, so a token that is removed is refused from then on, and what waits by it gets
nothing more.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from afterlog.api.operation import Scope
from afterlog.base import document
from afterlog.base.clock import Clock
from afterlog.base.environment import random_token
from afterlog.base.errors import AfterlogError, CorruptFile, InvalidArgument, NotAuthenticated
from afterlog.base.files import Files, FileStamp, publishing
from afterlog.server.access import TRUSTED_SCOPES, Caller, RequestHeaders
from afterlog.server.exchange import Peer

logger = logging.getLogger("afterlog.server")

FORMAT: Final = "afterlog-tokens"
VERSION: Final = 1
PREFIX: Final = "afterlog_"
LOOK_S: Final = 1.0
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,100}\Z")
_HASH = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One of the file. scopes: topic prefixes by scope. expires_ms: from when on it is refused."""

    name: str
    sha256: str
    scopes: Mapping[Scope, tuple[str, ...]]
    expires_ms: int | None = None

    def to_json(self) -> dict[str, Any]:
        scopes = {scope.value: list(prefixes) for scope, prefixes in self.scopes.items()}
        row: dict[str, Any] = {"name": self.name, "sha256": self.sha256, "scopes": scopes}
        return row if self.expires_ms is None else {**row, "expires_ms": self.expires_ms}

    @staticmethod
    def of_json(row: Any) -> Token:
        """ValueError, KeyError, TypeError, AttributeError where it is none."""
        scopes = {Scope(name): tuple(map(_text, prefixes)) for name, prefixes in row["scopes"].items()}
        expires_ms = row.get("expires_ms")
        if "expires_ms" in row and (type(expires_ms) is not int or expires_ms < 0):
            raise ValueError("no time at which it expires")
        if (
            row.keys() - {"expires_ms"} != {"name", "sha256", "scopes"}
            or not _NAME.match(row["name"])
            or not _HASH.match(row["sha256"])
        ):
            raise ValueError("neither name nor hash")
        return Token(name=row["name"], sha256=row["sha256"], scopes=scopes, expires_ms=expires_ms)


class TokenFile:
    """The file, as people change it. Not meant for two who do so at once: the last one counts."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self.path = path

    def read(self) -> list[Token]:
        """By name; none where there is no file. Raises CorruptFile."""
        try:
            body = document.read(self._files, self.path, FORMAT, VERSION)
        except FileNotFoundError:
            return []
        try:
            tokens = [Token.of_json(row) for row in body["tokens"]]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptFile(f"holds no tokens: {error}", path=self.path) from None
        return sorted(tokens, key=lambda token: token.name)

    def add(self, name: str, scopes: Iterable[Scope], prefixes: Iterable[str], *, expires_ms: int | None = None) -> str:
        """Make a token; what to give to who is to use it. Raises InvalidArgument, CorruptFile, StorageFull."""
        tokens, chosen, of = self.read(), list(dict.fromkeys(scopes)), tuple(dict.fromkeys(prefixes)) or ("",)
        if not isinstance(name, str) or not _NAME.match(name):
            raise InvalidArgument(f"a token's name has 1 to 100 of a-z A-Z 0-9 . _ -, unlike {name!r:.100}")
        if any(token.name == name for token in tokens):
            raise InvalidArgument(f"there is a token {name!r}; remove it first, or take another name")
        if not chosen:
            raise InvalidArgument("a token needs a scope: look, send, receive, manage or replicate")
        text = PREFIX + random_token()
        made = Token(name=name, sha256=hashed(text), scopes=dict.fromkeys(chosen, of), expires_ms=expires_ms)
        self._write([*tokens, made])
        return text

    def remove(self, name: str) -> None:
        """Raises InvalidArgument where there is none of that name, CorruptFile, StorageFull."""
        tokens = self.read()
        left = [token for token in tokens if token.name != name]
        if len(left) == len(tokens):
            raise InvalidArgument(f"there is no token {name!r} in {self.path}")
        self._write(left)

    def rotate(self, name: str, *, expires_ms: int | None = None) -> str:
        """Another token in the place of one, for the same; whoever has the old one is refused from then on.

        expires_ms: of the new one, by default never.

        Raises InvalidArgument where there is none of that name, CorruptFile, StorageFull.
        """
        text, tokens = PREFIX + random_token(), self.read()
        if not any(token.name == name for token in tokens):
            raise InvalidArgument(f"there is no token {name!r} in {self.path}")
        self._write(
            replace(token, sha256=hashed(text), expires_ms=expires_ms) if token.name == name else token
            for token in tokens
        )
        return text

    def stamp(self) -> FileStamp | None:
        return self._files.stamp(self.path) if self._files.exists(self.path) else None

    def _write(self, tokens: Iterable[Token]) -> None:
        rows = [token.to_json() for token in sorted(tokens, key=lambda token: token.name)]
        with publishing(self._files, self.path) as file:
            file.append([document.encode(FORMAT, VERSION, {"tokens": rows})])


class Authenticator:
    """Who asks, by the peer and its token. tokens: None: whoever is not trusted already is refused.

    anybody: whoever comes may do everything (`--no-auth`).
    """

    def __init__(self, tokens: TokenFile | None, clock: Clock, *, anybody: bool = False) -> None:
        """Raises CorruptFile."""
        self._file = tokens
        self._clock = clock
        self._anybody = anybody
        self._stamp: FileStamp | None = None
        self._looked_s = clock.monotonic_s()
        self._known: dict[str, tuple[Caller, int | None]] = {}
        """By hash, and when it expires."""
        if tokens is not None:
            self._stamp = tokens.stamp()
            self._known = _callers(tokens.read())

    def __call__(self, peer: Peer, headers: RequestHeaders) -> Caller:
        """Raises NotAuthenticated."""
        said = headers.get(b"authorization")
        if said is None:
            if peer.trusted or self._anybody:
                return Caller(peer.name, TRUSTED_SCOPES)
            raise NotAuthenticated("send the header Authorization: Bearer and a token")
        kind, _, text = said.partition(b" ")
        self._look_again()
        known = self._known.get(hashed(text.strip().decode("latin-1"))) if kind.lower() == b"bearer" else None
        if known is None:
            raise NotAuthenticated("there is no such token")
        caller, expires_ms = known
        if expires_ms is not None and self._clock.now_ms() >= expires_ms:
            raise NotAuthenticated(f"the {caller.name} has expired: afterlog tokens rotate makes another")
        return caller

    def _look_again(self) -> None:
        """Where the file has changed. What cannot be read lets nobody in who was not known."""
        now_s = self._clock.monotonic_s()
        if self._file is None or 0 <= now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        stamp = self._file.stamp()
        if stamp != self._stamp:
            self._known = {}
            try:
                self._known = _callers(self._file.read())
            except AfterlogError as error:  # not for who asks to know
                logger.error("%s: nobody is let in by a token", error)
            else:
                self._stamp = stamp


def hashed(text: str) -> str:
    return sha256(text.encode("utf-8", "replace")).hexdigest()


def _callers(tokens: Iterable[Token]) -> dict[str, tuple[Caller, int | None]]:
    return {token.sha256: (Caller(f"token {token.name}", token.scopes), token.expires_ms) for token in tokens}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"no prefix: {value!r}")
    return value
