"""A topic of a served store, as its server describes it: name, settings, and the partition of a key."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from afterlog.base.arguments import flag
from afterlog.base.errors import UnknownPartition

if TYPE_CHECKING:
    from afterlog.log.topic_settings import TopicSettings


class ServedTopic:
    """`store.topic(name)`: as things were then. Thread-safe."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        """row: as the server writes it."""
        self.name: str = row["name"]
        self._row = dict(row)
        self.partition_count: int = row["partitions"]
        self._next = 0
        self._lock = threading.Lock()

    @property
    def settings(self) -> TopicSettings:
        from dataclasses import fields

        from afterlog.log.topic_settings import TopicSettings

        known = {field.name for field in fields(TopicSettings)}
        settings: dict[str, Any] = {name: value for name, value in self._row.items() if name in known}
        settings["interceptors"] = tuple(settings.get("interceptors") or ())
        return TopicSettings(**settings)

    @property
    def check_instants(self) -> bool:
        """Whether an instant that is surely wrong is refused, unless a call says otherwise."""
        return bool(self._row.get("check_instants", True))

    def checks_instants(self, asked: bool | None) -> bool:
        return self.check_instants if asked is None else flag("check_instants", asked)

    def partition_of(self, key: bytes | None) -> int:
        """Where a record of this key goes, as an embedded store has it; without a key the partitions in turn."""
        if self.partition_count == 1:
            return 0
        if key is not None:
            return zlib.crc32(key) % self.partition_count
        with self._lock:
            self._next = (self._next + 1) % self.partition_count
            return self._next

    def checked_partition(self, number: int) -> int:
        """`number` itself. Raises UnknownPartition."""
        if not isinstance(number, int) or not 0 <= number < self.partition_count:
            raise UnknownPartition(f"{self.name} has the partitions 0 to {self.partition_count - 1}, not {number!r}")
        return number

    def __repr__(self) -> str:
        return f"<Topic {self.name}, {self.partition_count} partitions, served>"
