"""Checks of arguments: a typed error that says what would do."""

from __future__ import annotations

import math
import operator
from typing import Any

from afterlog.base.errors import InvalidArgument, WrongType

INT64_MAX = 2**63 - 1


class _AsItIs:
    """One value; see `KEEP`."""

    def __repr__(self) -> str:
        return "<as it is>"


KEEP: Any = _AsItIs()
"""What a call leaves as it is that changes the rest."""


def whole(name: str, value: Any, least: int = 0) -> int:
    """An integer from `least` to what an int64 holds; those of numpy too, but no bool."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise WrongType(f"{name} must be an integer, not {value!r:.100}")
    if not least <= number <= INT64_MAX:
        raise InvalidArgument(f"{name} must be an integer of at least {least}, not {number!r:.100}")
    return number


def seconds(name: str, value: Any) -> float | None:
    """How long to wait at most; None: as long as it takes."""
    if type(value) is float and value <= 2**31:  # as a rule
        return value
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WrongType(f"{name} must be seconds, or None for as long as it takes, not {value!r:.100}")
    if math.isnan(value):
        raise InvalidArgument(f"{name} must be seconds, or None for as long as it takes, not {value!r}")
    return float(min(value, 2**31))  # ints of any size there are; 68 years will do


def flag(name: str, value: Any) -> bool:
    """Yes or no."""
    try:
        return bool(value)
    except MemoryError:
        raise
    except Exception as error:  # what others' truth raises may be anything
        raise WrongType(f"{name} must be True or False, not {value!r:.100}") from error
