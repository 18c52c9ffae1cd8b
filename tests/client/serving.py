"""A server of an open store, on the socket in its folder, in a thread of the test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from afterlog.base.clock import Clock
from afterlog.server.running import Serving
from afterlog.store.store import Store, open_store
from tests.support import PATIENCE_S, small


@contextmanager
def serving(store: Store) -> Iterator[str]:
    """Its address."""
    server = Serving(store)
    server.start()
    try:
        yield server.addresses[0]
    finally:
        server.stop()
        assert server.join(PATIENCE_S)


class Served:
    """A store in a folder with its server, which are stopped and started again."""

    def __init__(self, folder: Path, clock: Clock, **settings: Any) -> None:
        self.folder = folder
        self._clock = clock
        self._settings = settings
        self.start()

    def start(self) -> None:
        self.store = open_store(self.folder, small(**self._settings), self._clock, None, background=False)
        self._server = Serving(self.store)
        self._server.start()

    def stop(self) -> None:
        self._server.stop()
        assert self._server.join(PATIENCE_S)
        self.store.close()
