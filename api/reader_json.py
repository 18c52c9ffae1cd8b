"""A reader's settings in JSON: how `store.subscribe`'s keywords are sent to a server, checked and read.

    subscribe("mail", "sender", lease_ms=60_000)   ──>   {"lease_ms": 60000}   ──>   lease_ms=60_000, and the defaults

Each field of `ReaderSettings` that is not the reader's own affair is in it, by its name; left out is what is as by
default. So readers that say the same say it in the same words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, asdict, fields
from typing import Any, Final, get_args

from afterlog.api.position_text import position_of, position_text
from afterlog.api.schema import Fields, Flag, Number, Shape, Text, Whole
from afterlog.api.shapes import PARTITIONS, RETRY, position
from afterlog.base.arguments import INT64_MAX
from afterlog.subscription.policy import RetryPolicy
from afterlog.subscription.reader_settings import AT_READER, LEAST_MS, OrderedBy, ReaderOptions, ReaderSettings

_TOLD: Final = [each for each in fields(ReaderSettings) if each.init and each.metadata.get("at") != AT_READER["at"]]


def _shape(each: Field[Any]) -> Shape:
    """Of a keyword, by its type."""
    more = {"default": each.default, "about": each.metadata.get("about", "")}
    match each.name, each.type:
        case "retry", _:
            return RETRY
        case "ordered_by", _:
            return Text(*get_args(OrderedBy), null=True, **more)
        case "partitions", _:
            return PARTITIONS
        case "start", _:
            return position(**{**more, "default": position_text(ReaderSettings().start)})
        case name, "int":
            return Whole(LEAST_MS.get(str(name), 0), INT64_MAX, **more)
        case _, "float | None":
            return Number(null=True, **more)
        case _, "str | None":
            return Text(null=True, **more)
        case _, "bool" | "bool | None":
            return Flag(**more)
    raise AssertionError(f"say how JSON has {each.name}: {each.type}")


READER: Final = Fields(
    {each.name: _shape(each) for each in _TOLD},
    default=None,
    null=True,
    about="how the subscription is read; readers that say the same share one",
)


def reader_row(settings: ReaderSettings) -> dict[str, Any]:
    """As a server is told. Raises InvalidArgument of a position that is none."""
    row = {each.name: getattr(settings, each.name) for each in _TOLD}
    row["start"] = position_text(settings.start)
    if settings.retry is not None:
        row["retry"] = asdict(settings.retry)
    if settings.partitions is not None:
        row["partitions"] = [*settings.partitions]
    defaults = READER.defaults()
    return {name: value for name, value in row.items() if value != defaults[name]}


def reader_options(row: Mapping[str, Any]) -> ReaderOptions:
    """What `store.subscribe` takes, of JSON that was checked. Raises InvalidArgument, InvalidSubscription."""
    options: Any = {name: value for name, value in row.items() if value is not None}
    if "retry" in options:
        options["retry"] = RetryPolicy(**options["retry"])
    if "start" in options:
        options["start"] = position_of(options["start"])
    given: ReaderOptions = options
    return given
