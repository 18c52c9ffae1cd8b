"""Which partition of its topic a record goes to: by its priority, and by its key.

    partition = slot x priorities + priority     of partitions / priorities slots
    slot      = the CRC-32 of the key            as librdkafka's `consistent` partitioner; without a key in turn

So each priority has partitions of its own, and the log of each is what it is elsewhere: its order, positions and lag.
What is due of a higher one goes first where a subscription takes it (`subscription/receiver.py`). Partitions are added
by multiples of the priorities, and leave each record the priority that it has.
"""

from __future__ import annotations

import threading
import zlib
from typing import TYPE_CHECKING

from afterlog.base.errors import InvalidArgument, InvalidRecord, UnknownPartition

if TYPE_CHECKING:
    from afterlog.records.columns import Int64Array, Ragged


class Partitioner:
    """Of one topic. Thread-safe."""

    def __init__(self, topic: str, partitions: int, priorities: int) -> None:
        """partitions: a multiple of the priorities."""
        self._topic = topic
        self.partitions = partitions
        self._priorities = priorities
        self._slots = partitions // priorities
        self._next = 0
        self._lock = threading.Lock()

    def partition_of(self, key: bytes | None, priority: int | None = None) -> int:
        """Where a record of this key and priority goes. Raises InvalidRecord of a priority that the topic has not."""
        level = 0 if priority is None else self._checked_priority(priority)
        if self._slots == 1:
            return level
        if key is not None:
            return zlib.crc32(key) % self._slots * self._priorities + level
        with self._lock:
            self._next = (self._next + 1) % self._slots
            return self._next * self._priorities + level

    def partitions_of(self, keys: Ragged, priority: int | None = None) -> Int64Array:
        """The same for each of these keys, int64[n]."""
        import numpy as np

        level = 0 if priority is None else self._checked_priority(priority)
        offsets, data = keys
        each = map(memoryview(data).__getitem__, map(slice, offsets[:-1].tolist(), offsets[1:].tolist()))
        return np.fromiter(map(zlib.crc32, each), np.int64, len(offsets) - 1) % self._slots * self._priorities + level

    def partitions_for(self, key: bytes) -> list[int]:
        """Where records of this key may be: a partition of each priority, the highest first."""
        lowest = self.partition_of(key)
        return [lowest + level for level in reversed(range(self._priorities))]

    def in_turn(self, count: int, turn: int) -> Int64Array:
        """Where so many records without keys go from a turn on, each to another slot, int64[count]."""
        import numpy as np

        return (turn + np.arange(count, dtype=np.int64)) % self._slots * self._priorities

    def priority_of(self, partition: int) -> int:
        """Of the records of a partition. Raises UnknownPartition."""
        return self.checked_partition(partition) % self._priorities

    def checked_partition(self, number: int, priority: int | None = None) -> int:
        """`number` itself. Raises UnknownPartition, and InvalidArgument where a priority is named with it."""
        if not isinstance(number, int) or not 0 <= number < self.partitions:
            raise UnknownPartition(f"{self._topic} has the partitions 0 to {self.partitions - 1}, not {number!r}")
        if priority is not None:
            raise InvalidArgument("a partition or a priority, not both: what is in a partition is of one priority")
        return number

    def _checked_priority(self, priority: int) -> int:
        if isinstance(priority, int) and not isinstance(priority, bool) and 0 <= priority < self._priorities:
            return priority
        if self._priorities == 1:
            raise InvalidRecord(
                f"{self._topic} has no priorities: give it some, with alter_topic({self._topic!r}, priorities=3)"
            )
        raise InvalidRecord(f"{self._topic} has the priorities 0 to {self._priorities - 1}, not {priority!r:.100}")
