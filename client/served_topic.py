"""A topic of a served store, as its server describes it: name, settings, and the partition of a key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from afterlog.base.arguments import flag
from afterlog.records.partitioner import Partitioner

if TYPE_CHECKING:
    from afterlog.log.topic_settings import TopicSettings


class ServedTopic:
    """`store.topic(name)`: as things were then. Thread-safe."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        """row: as the server writes it."""
        self.name: str = row["name"]
        self._row = dict(row)
        self.partition_count: int = row["partitions"]
        self.partitioner = Partitioner(self.name, self.partition_count, row.get("priorities", 1))

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

    def partition_of(self, key: bytes | None, priority: int | None = None) -> int:
        """Where a record of this key and priority goes, as an embedded store has it. Raises InvalidRecord."""
        if priority is None and self.partition_count == 1:
            return 0
        return self.partitioner.partition_of(key, priority)

    def checked_partition(self, number: int, priority: int | None = None) -> int:
        """`number` itself. Raises UnknownPartition, and InvalidArgument where a priority is named with it."""
        return self.partitioner.checked_partition(number, priority)

    def priority_of(self, partition: int) -> int:
        """Of the records of a partition. Raises UnknownPartition."""
        return self.partitioner.priority_of(partition)

    def __repr__(self) -> str:
        return f"<Topic {self.name}, {self.partition_count} partitions, served>"
