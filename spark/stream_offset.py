"""How far a stream has come: a position in each partition, and what it saw there.

    {"topic_id": "0f3c…", "positions": {"0": 1024, "1": 980}, "seen": {"0": [1700000000000, 1023], "1": […]}}

A position is a delivery offset, and names the same record for good, of this topic and this history of it. Of another
topic of the name, or of a store that was restored from an older backup, it does not: so an offset names the topic (its
`topic_id`, KIP-516), and of each partition the record before the position: when it was due, and its append offset; in a
FIFO log its timestamp, and its offset. A partition of which nothing was read has seen nothing.

Spark compares offsets as text, so the same offset is written the same again: numbers in order, and what was seen at a
position that did not move is not looked up anew. Checkpoints of before say {"0": 1024, "1": 980}; they are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from afterlog.base.errors import InvalidOption

Seen = tuple[int, int]
"""When the record before a position was due, and its append offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """By the number of a partition, as text."""

    positions: Mapping[str, int]
    topic_id: str | None = None
    """None: of a checkpoint of before, or of a topic that has none."""
    seen: Mapping[str, Seen] = field(default_factory=dict)

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> StreamOffset:
        """Raises InvalidOption where it is none of ours."""
        if "positions" not in row:
            row = {"positions": row}
        try:
            return cls(
                positions={str(int(name)): int(position) for name, position in row["positions"].items()},
                topic_id=row.get("topic_id"),
                seen={str(int(name)): (int(due), int(offset)) for name, (due, offset) in row.get("seen", {}).items()},
            )
        except (AttributeError, TypeError, ValueError) as error:
            raise InvalidOption(f"the checkpoint has no offset of afterlog: {row!r:.200}") from error

    def to_row(self) -> dict[str, Any]:
        """The same text for the same offset."""
        return {
            "topic_id": self.topic_id,
            "positions": {name: self.positions[name] for name in sorted(self.positions, key=int)},
            "seen": {name: [*self.seen[name]] for name in sorted(self.seen, key=int)},
        }
