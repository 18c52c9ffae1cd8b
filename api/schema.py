"""Schemas of requests and answers: they check a value, and describe themselves as JSON Schema.

    OPTIONS = Fields({"max_records": Whole(1, 65_536, default=100), "wait_ms": Whole(0, 600_000, default=0)})
    OPTIONS.checked({"wait_ms": 5}, "the body")   {"max_records": 100, "wait_ms": 5}
    OPTIONS.told()                                {"type": "object", "properties": {…}, "additionalProperties": False}

A check costs a look at each part. What a module of its own reads anyway (records, receipts, positions) is `Told` here
and checked there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from afterlog.base.arguments import INT64_MAX
from afterlog.base.errors import InvalidRequest

NEEDED: Final[Any] = object()
"""In place of a default: it has to be there."""
LEFT_OUT: Final[Any] = object()
"""The same: it may be missing, and is missing then."""


class Shape:
    """Of one value. default: what it is where it is left out."""

    def __init__(self, *, default: Any = NEEDED, about: str = "") -> None:
        self.default = default
        self.about = about

    def checked(self, value: Any, what: str) -> Any:
        """The value, as handlers want it. Raises InvalidRequest."""
        raise NotImplementedError

    def of_text(self, text: str, what: str) -> Any:
        """The same of a parameter in a path or a query."""
        return self.checked(text, what)

    def schema(self) -> dict[str, Any]:
        raise NotImplementedError

    def told(self) -> dict[str, Any]:
        """As JSON Schema."""
        told = self.schema()
        if self.default not in (NEEDED, LEFT_OUT, None):
            told = {**told, "default": self.default}
        return {**told, "description": self.about} if self.about else told


class Whole(Shape):
    """An integer. null: may be null, too."""

    def __init__(self, least: int = 0, most: int = INT64_MAX, *, null: bool = False, **more: Any) -> None:
        super().__init__(**more)
        self.least, self.most, self.null = least, most, null

    def checked(self, value: Any, what: str) -> int | None:
        if type(value) is int and self.least <= value <= self.most:
            return value
        if value is None and self.null:
            return None
        raise InvalidRequest(f"{what} is an integer from {self.least} to {self.most}, not {value!r:.60}")

    def of_text(self, text: str, what: str) -> int | None:
        digits = text.removeprefix("-")
        is_number = digits.isascii() and digits.isdigit() and len(digits) <= 19
        return self.checked(int(text) if is_number else text, what)

    def schema(self) -> dict[str, Any]:
        kind = ["integer", "null"] if self.null else "integer"
        return {"type": kind, "minimum": self.least, "maximum": self.most}


class Number(Shape):
    """Any number that is one, not negative."""

    def __init__(self, *, null: bool = False, **more: Any) -> None:
        super().__init__(**more)
        self.null = null

    def checked(self, value: Any, what: str) -> float | None:
        if value is None and self.null:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise InvalidRequest(f"{what} is a number from 0 on, not {value!r:.60}")
        return value

    def of_text(self, text: str, what: str) -> float | None:
        try:
            return self.checked(float(text), what)
        except ValueError:
            raise InvalidRequest(f"{what} is a number from 0 on, not {text!r:.60}") from None

    def schema(self) -> dict[str, Any]:
        return {"type": ["number", "null"] if self.null else "number", "minimum": 0}


class Flag(Shape):
    """true or false."""

    def checked(self, value: Any, what: str) -> bool:
        if not isinstance(value, bool):
            raise InvalidRequest(f"{what} is true or false, not {value!r:.60}")
        return value

    def of_text(self, text: str, what: str) -> bool:
        if text not in ("true", "false"):
            raise InvalidRequest(f"{what} is true or false, not {text!r:.60}")
        return text == "true"

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


class Text(Shape):
    """A string; one of some. null: may be null, too."""

    def __init__(self, *choices: str, most: int = 1_000, null: bool = False, **more: Any) -> None:
        super().__init__(**more)
        self.choices, self.most, self.null = choices, most, null

    def checked(self, value: Any, what: str) -> str | None:
        if value is None and self.null:
            return None
        if not isinstance(value, str) or len(value) > self.most:
            raise InvalidRequest(f"{what} is a string of up to {self.most} characters, not {value!r:.60}")
        if self.choices and value not in self.choices:
            raise InvalidRequest(f"{what} is one of {', '.join(self.choices)}, not {value!r:.60}")
        return value

    def schema(self) -> dict[str, Any]:
        if self.choices:
            return {"enum": [*self.choices, *([None] if self.null else [])]}
        return {"type": ["string", "null"] if self.null else "string", "maxLength": self.most}


class Listing(Shape):
    """A list of values of one shape."""

    def __init__(self, of: Shape, *, least: int = 0, most: int = 1 << 20, null: bool = False, **more: Any) -> None:
        super().__init__(**more)
        self.of, self.least, self.most, self.null = of, least, most, null

    def checked(self, value: Any, what: str) -> list[Any] | None:
        if value is None and self.null:
            return None
        if not isinstance(value, list) or not self.least <= len(value) <= self.most:
            raise InvalidRequest(f"{what} is a list of {self.least} to {self.most}, not {value!r:.60}")
        if isinstance(self.of, Told):
            return value
        return [self.of.checked(each, f"{what}[{row}]") for row, each in enumerate(value)]

    def schema(self) -> dict[str, Any]:
        kind = ["array", "null"] if self.null else "array"
        return {"type": kind, "items": self.of.told(), "minItems": self.least, "maxItems": self.most}


class ByName(Shape):
    """An object of any names, all of one shape."""

    def __init__(self, of: Shape, *, names: str | None = None, most: int = 100_000, **more: Any) -> None:
        """names: a regular expression for people; who reads them checks them."""
        super().__init__(**more)
        self.of, self.names, self.most = of, names, most

    def checked(self, value: Any, what: str) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) > self.most:
            raise InvalidRequest(f"{what} is an object of up to {self.most} names, not {value!r:.60}")
        return {name: self.of.checked(each, f"{what}.{name:.60}") for name, each in value.items()}

    def schema(self) -> dict[str, Any]:
        told = {"type": "object", "additionalProperties": self.of.told()}
        return told if self.names is None else {**told, "propertyNames": {"pattern": self.names}}


class Fields(Shape):
    """An object of these names; null: may be null, too."""

    def __init__(self, fields: Mapping[str, Shape], *, null: bool = False, **more: Any) -> None:
        super().__init__(**more)
        self.fields, self.null = dict(fields), null
        self._defaults = {
            name: shape.default for name, shape in fields.items() if shape.default not in (NEEDED, LEFT_OUT)
        }
        self._needed = frozenset(name for name, shape in fields.items() if shape.default is NEEDED)

    def defaults(self) -> dict[str, Any]:
        """Of those that may be left out."""
        return dict(self._defaults)

    def of_text(self, text: str, what: str) -> dict[str, Any] | None:
        """In a query it is JSON."""
        try:
            return self.checked(json.loads(text), what)
        except (ValueError, RecursionError) as error:
            if isinstance(error, InvalidRequest):
                raise
            raise InvalidRequest(f"{what} is no JSON: {error}") from None

    def checked(self, value: Any, what: str) -> dict[str, Any] | None:
        if value is None and self.null:
            return None
        if not isinstance(value, dict):
            raise InvalidRequest(f"{what} is an object of {', '.join(self.fields)}, not {value!r:.60}")
        found = dict(self._defaults)
        for name, each in value.items():
            shape = self.fields.get(name)
            if shape is None:
                raise InvalidRequest(f"{what} has no {name!r:.60}; it has {', '.join(self.fields) or 'nothing'}")
            found[name] = shape.checked(each, name)
        if not self._needed <= value.keys():
            raise InvalidRequest(f"{what} lacks {', '.join(sorted(self._needed - value.keys()))}")
        return found

    def schema(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "type": ["object", "null"] if self.null else "object",
            "properties": {name: shape.told() for name, shape in self.fields.items()},
            "additionalProperties": False,
        }
        return {**told, "required": sorted(self._needed)} if self._needed else told


class Told(Shape):
    """What is only described here."""

    def __init__(self, schema: Mapping[str, Any], **more: Any) -> None:
        super().__init__(**more)
        self._schema = dict(schema)

    def checked(self, value: Any, what: str) -> Any:
        return value

    def schema(self) -> dict[str, Any]:
        return self._schema


def rows_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON Schema of a list."""
    return {"type": "array", "items": dict(schema)}


def answer(properties: Mapping[str, Any], *, needed: Sequence[str] | None = None) -> dict[str, Any]:
    """The JSON Schema of an object that is answered: all of it is there unless `needed` says what is."""
    return {
        "type": "object", "properties": dict(properties), "required": list(properties if needed is None else needed)
    }  # fmt: skip
