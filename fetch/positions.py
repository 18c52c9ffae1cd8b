"""Positions that a reader may ask for: by offset, by time, by record. All lead to one integer, a delivery offset.

1024                  the record of delivery rank 1024
EARLIEST              the log start: the oldest record that retention left
LATEST                the high watermark: only what becomes due from now on
AtTime(instant)       the first record due at or after the instant
AtBrokerTime(instant) the first record, in delivery order, that was appended at or after the instant (PIP-70)
AfterOffset(offset)   after the record of that append offset (KIP-1277: the log looks up that record's key)

A reader that seeks can have no rank among what is pending, nor behind a pending record: what is sent later and due
earlier would take it, and be skipped. LATEST comes before all that is pending; an instant says what is not wanted.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from afterlog.records.times import Instant


class Edge(enum.Enum):
    """The two ends of what can be read."""

    EARLIEST = "earliest"
    LATEST = "latest"


EARLIEST: Final = Edge.EARLIEST
LATEST: Final = Edge.LATEST


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record due at or after `instant`: epoch ms, aware datetime or ISO 8601."""

    instant: Instant


@dataclass(frozen=True, slots=True)
class AtBrokerTime:
    """The first record, in delivery order, that was appended at or after `instant`, which is as that of `AtTime`.

    Nothing that was appended from then on lies before it, nor will. Where none of that is due it is LATEST.
    """

    instant: Instant


@dataclass(frozen=True, slots=True)
class AfterOffset:
    """After the record with this append offset."""

    offset: int


Position: TypeAlias = int | Edge | AtTime | AtBrokerTime | AfterOffset
