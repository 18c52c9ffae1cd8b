"""What a manifest says of the log as a whole: what a machine must know that has nothing else."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from afterlog.base.document import whole
from afterlog.log.checkpoints import Checkpoints, LogStart

_MAX = 2**62
"""Whoever goes on from here has room to count and to add times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """As its store told them last. ValueError where the values cannot be."""

    end_offset: int
    """After the last sealed segment, uploaded or not."""
    removed_records: int
    """That retention has removed, ever."""
    log_start: LogStart
    """Of a FIFO topic, whose checkpoints have none: its first offset, and the one before."""
    frontier_ms: int
    """The largest reading of the log clock that decided what is due."""
    stamp_ms: int
    """Of the last append."""

    def __post_init__(self) -> None:
        numbers = asdict(self) | asdict(self.log_start)
        del numbers["log_start"]
        for name, number in numbers.items():
            if not -1 <= whole(number) <= _MAX:
                raise ValueError(f"{name} cannot be {number}")
        if not 0 <= self.removed_records <= self.end_offset:
            raise ValueError(f"{self.removed_records} of {self.end_offset} records cannot be gone")
        if self.log_start.deliver_after > self.frontier_ms:
            raise ValueError(f"what is due at {self.log_start.deliver_after} cannot be gone at {self.frontier_ms}")

    @staticmethod
    def of(known: Checkpoints, *, delayed: bool) -> LogFacts:
        """What the checkpoints of a partition tell."""
        log_start = known.log_start
        if not delayed:
            offset = (known.sealed[0] if known.sealed else known.active).base_offset
            log_start = LogStart(delivery_offset=offset, offset=offset - 1)
        return LogFacts(
            end_offset=known.active.base_offset,
            removed_records=known.removed_records,
            log_start=log_start,
            frontier_ms=max(known.frontier.used_ms, known.log_start.deliver_after),  # what was removed stays due
            stamp_ms=known.recovery.stamp_ms,
        )

    @staticmethod
    def of_json(body: dict[str, Any]) -> LogFacts:
        """LookupError, TypeError, ValueError where it is not what `to_json` makes."""
        return LogFacts(**{**body, "log_start": LogStart(**body["log_start"])})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
