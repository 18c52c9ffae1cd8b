"""Results of Celery's tasks in a store: a backend on the index of unique keys.

    app = Celery(broker="afterlog:///srv/data", backend="afterlog:///srv/data")     or afterlog+unix://…, afterlog+http://…
    app.conf.result_backend_transport_options = {"prefix": "celery", "token": …}

A result is a record of PREFIX-results that is due when it expires, with Celery's key as its unique key: a state
replaces the one before, it is found without reading others, and what has expired is let go of by retention. The entry
point `celery.result_backends` names the class, so nothing has to be imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from celery.backends.base import KeyValueStoreBackend

from afterlog.integrations.places import StoreHandle, made

KEPT_MS: Final = 3_600_000
"""What has expired."""
FOR_EVER_S: Final = 10 * 365 * 86_400
"""Of results that do not expire (`result_expires=None`)."""


class ResultBackend(KeyValueStoreBackend):  # type: ignore[misc]
    """Opens nothing before it is asked for something, so an app may be made before a fork."""

    persistent = True
    supports_autoexpire = True

    def __init__(self, *args: Any, url: str = "", **options: Any) -> None:
        """url: as of a broker, or of it what is behind `afterlog+`. Raises InvalidArgument where it names no store."""
        super().__init__(*args, url=url, **options)
        asked = dict(self.app.conf.get("result_backend_transport_options") or {})
        self._prefix = str(asked.get("prefix", "celery"))
        place = url if url.startswith("afterlog") else f"afterlog+{url}"
        self._handle = StoreHandle(asked.get("store", place), asked.get("token"))

    def get(self, key: bytes | str) -> bytes | None:
        """What was set and has not expired."""
        found = self._handle.get().get_unique(self._topic(), _key(key))
        return None if found is None else found.value

    def mget(self, keys: Iterable[bytes | str]) -> Iterator[bytes | None]:
        return map(self.get, keys)

    def set(self, key: bytes | str, value: bytes | str) -> None:
        expires_s = FOR_EVER_S if self.expires is None else self.expires
        self._handle.get().send(
            self._topic(), value.encode() if isinstance(value, str) else value,
            unique_key=_key(key), on_conflict="replace", delay=expires_s,
        )  # fmt: skip

    def delete(self, key: bytes | str) -> None:
        store = self._handle.get()
        found = store.get_unique(self._topic(), _key(key))
        if found is not None:
            store.cancel(found.id)

    def _topic(self) -> str:
        return made(self._handle.get(), f"{self._prefix}-results", retention_ms=KEPT_MS)


def _key(key: bytes | str) -> bytes:
    return key.encode() if isinstance(key, str) else key
