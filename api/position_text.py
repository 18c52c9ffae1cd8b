"""Positions as text, in paths and in JSON.

earliest    latest    1024                  the two ends, and a delivery offset
time:2030-01-31T08:00:00Z                   AtTime; epoch ms as well
broker-time:1700000000000                   AtBrokerTime
after:1042                                  AfterOffset: after the record of that append offset
"""

from __future__ import annotations

import re
from datetime import datetime

from afterlog.base.errors import InvalidArgument
from afterlog.fetch.positions import AfterOffset, AtBrokerTime, AtTime, Edge, Position

_DIGITS = re.compile(r"[0-9]{1,19}\Z", re.ASCII)
_INT64_MAX = 2**63 - 1


def position_text(position: Position | datetime) -> str:
    """Raises InvalidArgument where it is no position."""
    match position:
        case Edge():
            return position.value
        case bool():
            pass
        case int():
            return str(position)
        case datetime():
            return f"time:{position.isoformat()}"
        case AtTime(instant):
            return f"time:{_instant_text(instant)}"
        case AtBrokerTime(instant):
            return f"broker-time:{_instant_text(instant)}"
        case AfterOffset(offset):
            return f"after:{offset}"
    raise InvalidArgument(f"not a position: {position!r:.100}")


def position_of(text: object) -> Position:
    """Raises InvalidArgument. What the instant of a time says is read by who asks for it."""
    if isinstance(text, int) and not isinstance(text, bool) and 0 <= text <= _INT64_MAX:
        return text
    if isinstance(text, str):
        word, colon, rest = text.partition(":")
        if not colon and word in (edge.value for edge in Edge):
            return Edge(word)
        if not colon and (offset := _number(word)) is not None:
            return offset
        if word == "after" and (offset := _number(rest)) is not None:
            return AfterOffset(offset)
        ms = _number(rest)
        if word == "time" and rest:
            return AtTime(rest if ms is None else ms)
        if word == "broker-time" and rest:
            return AtBrokerTime(rest if ms is None else ms)
    raise InvalidArgument(
        f"not a position: {text!r:.100}; write earliest, latest, a delivery offset, time:…, broker-time:… or after:…"
    )


def _number(text: str) -> int | None:
    """A number from 0 to the largest of 64 bits."""
    number = int(text) if _DIGITS.match(text) else -1
    return number if 0 <= number <= _INT64_MAX else None


def _instant_text(instant: object) -> str:
    return instant.isoformat() if isinstance(instant, datetime) else str(instant)
