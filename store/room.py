"""What a store leaves free: below that it takes no more records, and everything else goes on.

    append ──> min_free_bytes: room on the disk ────────────┬── enough ──> goes on
           └─> max_bytes: logs of all topics, on this disk ─┴── else   ──> StorageFull, before anything is written

Acks, leases, cancels, checkpoints, retention, cleaning and deletions are not asked: they need little, and make room. So
a disk that sends have filled is got out of by what makes room, where one that is full to the last byte takes not even
the note that something is to be deleted (docs/decisions/0072).

What there is is looked at now and then, not for each record: for LOOK_S it is believed, and for twenty times what the
look took. So appends may go beyond a limit by what fits in between.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from afterlog.base.clock import Clock
from afterlog.base.config import Config
from afterlog.base.errors import StorageError, StorageFull
from afterlog.base.files import Files

LOOK_S = 0.05
"""What was seen is believed for so long, at least. Larger: less to do, appends go further beyond."""
_SHARE = 20


class StoreRoom:
    """Of one store. Thread-safe."""

    def __init__(self, files: Files, path: Path, config: Config, clock: Clock) -> None:
        self._files = files
        self._path = path
        self._config = config
        self._clock = clock
        self._seen: tuple[float, str] = (0.0, "")
        """Until when it is believed, and why nothing is taken; empty: there is room."""

    @property
    def is_asked(self) -> bool:
        """Whether there is a limit."""
        return self._config.min_free_bytes > 0 or self._config.max_bytes is not None

    def check(self, held_bytes: Callable[[], int]) -> None:
        """Raises StorageFull where no record is taken. held_bytes: of all logs, on this disk."""
        until_s, refusal = self._seen
        began_s = self._clock.monotonic_s()
        if began_s >= until_s:
            refusal = self._refusal(held_bytes)
            now_s = self._clock.monotonic_s()
            self._seen = now_s + max(LOOK_S, _SHARE * (now_s - began_s)), refusal
        if refusal:
            raise StorageFull(refusal, path=self._path)

    def _refusal(self, held_bytes: Callable[[], int]) -> str:
        config = self._config
        try:
            free = self._files.free_bytes(self._path) if config.min_free_bytes else 0
        except StorageError:  # whoever writes is told
            free = config.min_free_bytes
        if free < config.min_free_bytes:
            return (
                f"{free} bytes are free on the disk, and min_free_bytes is {config.min_free_bytes}: purge or delete "
                "topics, let readers ack what retention waits for, or make room otherwise"
            )
        held = 0 if config.max_bytes is None else held_bytes()
        if config.max_bytes is not None and held >= config.max_bytes:
            return (
                f"the logs hold {held} bytes, and the store's max_bytes is {config.max_bytes}: purge or delete topics, "
                "give them a retention, or raise it"
            )
        return ""
