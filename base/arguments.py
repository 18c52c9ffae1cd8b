"""Arguments: checks with a typed error that says what would do, and keywords that several calls take.

A TypedDict names such keywords, and a dataclass says what they are by default, and checks them:

    class ReaderOptions(TypedDict, total=False): ...      what a type checker knows of ``**options``
    class ReaderSettings: ...                             the same names, with defaults

    @spelled_out(ReaderOptions, ReaderSettings)
    def subscribe(self, topic: str, name: str, **options: Unpack[ReaderOptions]) -> Subscription: ...

`help` and `inspect.signature` show every keyword then, as if it stood there.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

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


Spelled = TypeVar("Spelled", bound="Callable[..., Any]")


def spelled_out(options: type, settings: type) -> Callable[[Spelled], Spelled]:
    """A decorator of what takes ``**options``. Types and defaults are those of the dataclass's fields."""

    def spelled(function: Spelled) -> Spelled:
        signature = inspect.signature(function)
        *named, last = signature.parameters.values()
        assert last.kind is inspect.Parameter.VAR_KEYWORD, signature
        shown = [
            inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type)
            for each in fields(settings)
            if each.name in options.__annotations__
        ]
        function.__signature__ = signature.replace(parameters=[*named, *shown])  # type: ignore[attr-defined]
        return function

    return spelled


def check_known(call: str, given: Mapping[str, Any], options: type) -> None:
    """Raises WrongType, which is a TypeError, of a keyword that a call does not take."""
    for name in given.keys() - options.__annotations__:
        raise WrongType(f"{call} takes no {name!r}; it takes {', '.join(options.__annotations__)}")
