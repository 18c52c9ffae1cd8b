"""Durations and instants as people write them: on the command line, in headers of other systems, in settings."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from afterlog.base.errors import InvalidDeliverAfter

_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION: Final = re.compile(r"(?:[0-9]{1,18}(?:\.[0-9]{1,9})?(?:ms|s|m|h|d|w))+")
_PART: Final = re.compile(r"([0-9.]+)(ms|s|m|h|d|w)")
_INT64_MAX: Final = 2**63 - 1


def duration_ms(text: str) -> int:
    """`250ms`, `30s`, `5m`, `2h`, `1d`, `1w`, `1h30m` as milliseconds, rounded up. Raises InvalidDeliverAfter."""
    from decimal import ROUND_CEILING, Decimal

    if not _DURATION.fullmatch(text):
        raise InvalidDeliverAfter(f"{text!r} is no duration: write 250ms, 30s, 5m, 2h, 1d, 1w or 1h30m")
    parts = (Decimal(number) * _UNIT_MS[unit] for number, unit in _PART.findall(text))
    ms = int(sum(parts, Decimal()).to_integral_value(ROUND_CEILING))
    if ms > _INT64_MAX:
        raise InvalidDeliverAfter(f"{text!r} is longer than int64 milliseconds can name")
    return ms


def instant(text: str) -> int | datetime:
    """Epoch milliseconds, or ISO 8601 with a zone. Raises InvalidDeliverAfter."""
    if text.isascii() and text.isdigit() and len(text) <= 19:
        return int(text)
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidDeliverAfter(f"{text!r} is no instant: write 2030-01-31T08:00:00Z or epoch milliseconds") from None
    if parsed.tzinfo is None:
        raise InvalidDeliverAfter(f"{text!r} has no time zone: write {text}Z or {text}+01:00")
    return parsed
