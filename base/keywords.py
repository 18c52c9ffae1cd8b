"""Keywords that several calls take: a TypedDict names them, and a dataclass says what they are by default, and checks.

    class ReaderOptions(TypedDict, total=False): ...      what a type checker knows of ``**options``
    class ReaderSettings: ...                             the same names, with defaults

    @spelled_out(ReaderOptions, ReaderSettings)
    def subscribe(self, topic: str, name: str, **options: Unpack[ReaderOptions]) -> Subscription: ...

`help` and `inspect.signature` show every keyword then, as if it stood there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from afterlog.base.errors import WrongType

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
