"""Where an adapter's store is, and the one handle to it that a process has.

    afterlog:///srv/data                     a folder, which the processes of this machine share
    afterlog+unix:///srv/data/server.sock    the socket of `afterlog serve`
    afterlog+http://host:7654                its port; afterlog+https://host, with TLS

Frameworks fork, and import before they fork: nothing is opened before it is asked for, and a child opens for itself.
Those of one process that name the same place have one handle, which is closed with the last of them.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit
from weakref import WeakSet

from afterlog.base.environment import after_fork, folder_of
from afterlog.base.errors import InvalidArgument, TopicExists, UnknownTopic, WrongType
from afterlog.base.locks import Condition

if TYPE_CHECKING:
    from afterlog.surface import StoreSurface

WEB: Final = ("afterlog+http", "afterlog+https")
KNOWN_S: Final = 5.0
"""For so long what a topic was like is taken for what it is like."""
PATIENCE_S: Final = 30.0
"""For so long a call is tried again while nobody serves the store."""


@dataclass(frozen=True, slots=True)
class StorePlace:
    """What a URL names: a folder, or a server and a token for it."""

    folder: Path | None
    server: str = ""
    token: str | None = field(default=None, repr=False)
    timeout_s: float = PATIENCE_S

    @classmethod
    def of(cls, url: str | PathLike[str], token: str | None = None, timeout_s: float = PATIENCE_S) -> StorePlace:
        """Of a URL, or the path of a folder. Raises InvalidArgument, WrongType."""
        if not isinstance(url, str) or ":" not in url:
            return cls(folder_of(url), timeout_s=timeout_s)
        parts = urlsplit(url)
        path = unquote(parts.path)
        is_path = path.startswith("/") and not parts.netloc
        if parts.scheme == "afterlog" and is_path:
            return cls(Path(path), timeout_s=timeout_s)
        if parts.scheme == "afterlog+unix" and is_path:
            return cls(None, f"unix:{path}", token, timeout_s)
        if parts.scheme in WEB and parts.netloc:
            return cls(None, url.removeprefix("afterlog+"), token, timeout_s)
        raise InvalidArgument(
            "write afterlog:///FOLDER, afterlog+unix:///SOCKET, afterlog+http://host:port or afterlog+https://host, not"
            f" {url!r:.200}"
        )

    def store(self) -> StoreSurface:
        """Open. Raises as `afterlog.open` and `afterlog.connect` do."""
        from afterlog import connect
        from afterlog import open as open_folder

        if self.folder is None:
            return connect(self.server, token=self.token, timeout=self.timeout_s)
        return open_folder(self.folder, shared=True, timeout=self.timeout_s)


class _Handles:
    """Of one process."""

    def __init__(self) -> None:
        self.lock = Condition()
        self.opened: dict[StorePlace, StoreSurface] = {}
        self.users: dict[StorePlace, WeakSet[StoreHandle]] = {}

    def get(self, place: StorePlace, user: StoreHandle) -> StoreSurface:
        with self.lock:
            found = self.opened.get(place)
            if found is None:
                found = self.opened[place] = place.store()
            self.users.setdefault(place, WeakSet()).add(user)
            return found

    def let_go(self, place: StorePlace, user: StoreHandle) -> None:
        with self.lock:
            users = self.users.setdefault(place, WeakSet())
            users.discard(user)
            store = None if users else self.opened.pop(place, None)
        if store is not None:
            store.close()


_handles = _Handles()


def _in_child() -> None:
    """What the parent had open is the parent's; its lock may have been held by a thread that is not here."""
    global _handles
    _handles = _Handles()


after_fork(_in_child)


def made(store: StoreSurface, topic: str, **settings: Any) -> str:
    """A topic, made where it is missing; one that is there may have been altered by its owner, and stays as it is."""
    try:
        store.topic(topic)
    except UnknownTopic:
        with contextlib.suppress(TopicExists):  # made meanwhile
            store.create_topic(topic, **settings)
    return topic


class Priorities:
    """How many the topics of a store have, as of the last few seconds: their owners may give them others, and to ask a
    server for each send would cost as much as the send. Thread-safe."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], tuple[int, float]] = {}

    def of(self, store: StoreSurface, topic: str) -> int:
        """Raises UnknownTopic, and as the store does."""
        now_s = store.clock.monotonic_s()
        known = self._known.get((id(store), topic))
        if known is None or now_s - known[1] >= KNOWN_S:
            known = self._known[id(store), topic] = store.topic(topic).settings.priorities, now_s
        return known[0]


class StoreHandle:
    """What one adapter has of a store: that of a place, or one that its caller has open, and closes."""

    def __init__(
        self, store: str | PathLike[str] | StoreSurface, token: str | None = None, timeout_s: float = PATIENCE_S
    ) -> None:
        """Opens nothing. Raises InvalidArgument, WrongType."""
        self._given: Any = None
        if hasattr(store, "subscribe") and hasattr(store, "send"):
            self._given = store
        elif isinstance(store, (str, PathLike)):
            self._place = StorePlace.of(store, token, timeout_s)
        else:
            raise WrongType(f"a URL as afterlog:///FOLDER, or an open store, and not {store!r:.100}")

    def get(self) -> StoreSurface:
        """Open, in this process. Raises as `StorePlace.store`."""
        if self._given is not None:
            store: StoreSurface = self._given
            return store
        return _handles.get(self._place, self)

    def close(self) -> None:
        """The last of a place closes the store. It is opened again where it is asked for."""
        if self._given is None:
            _handles.let_go(self._place, self)
