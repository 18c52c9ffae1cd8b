"""The settings of a topic: what is fixed of it when it is made, checked, and as documents have it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypedDict

from afterlog.arguments import flag
from afterlog.document import well_typed
from afterlog.errors import CorruptFile, InvalidTopic, WrongType
from afterlog.names import check_name

_LOCAL_RETENTION = ("local_retention_ms", "local_retention_bytes")
_WHERE_SET = ("remote_storage_enable", *_LOCAL_RETENTION, "check_instants", "foreign", "interceptors")
"""A document has these where they are not what they are by default: it may be older than they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """What is fixed of a topic when it is made."""

    partitions: int = 1
    delayed: bool = True
    max_delay_ms: int | None = None
    retention_ms: int | None = None
    retention_bytes: int | None = None
    remote_storage_enable: bool = False
    """Sealed segments are uploaded to the store's object storage."""
    local_retention_ms: int | None = None
    """Of segments that were uploaded: how long the local copy stays behind the last record that became due."""
    local_retention_bytes: int | None = None
    check_instants: bool = True
    """Refuse what asks for an instant that is surely wrong (`afterlog.records.window`)."""
    foreign: bool = False
    """Its segments are a Kafka broker's, in object storage: the topic is only read (docs/decisions/0032)."""
    interceptors: tuple[str, ...] = ()
    """What adds to the metadata of its entries, by the names registered (`afterlog.log.interceptors`)."""

    @property
    def has_retention(self) -> bool:
        """Whether records ever go by themselves."""
        return self.retention_ms is not None or self.retention_bytes is not None


class TopicChanges(TypedDict, total=False):
    """The settings that a topic can be given later, too, as keyword arguments. `TopicSettings` says what they are."""

    max_delay_ms: int | None
    retention_ms: int | None
    retention_bytes: int | None
    remote_storage_enable: bool
    local_retention_ms: int | None
    local_retention_bytes: int | None
    check_instants: bool


class TopicOptions(TopicChanges, total=False):
    """The same with those that are fixed when it is made."""

    interceptors: Sequence[str]


_DEFAULT = TopicSettings()
FOREIGN = TopicSettings(remote_storage_enable=True, foreign=True)
"""Of a Kafka broker's log in object storage; such topics differ by their partitions alone."""


def checked(settings: TopicSettings) -> TopicSettings:
    """`settings` themselves. Raises InvalidTopic where one cannot be, or two contradict each other."""
    for name in ("partitions", "max_delay_ms", "retention_ms", "retention_bytes", *_LOCAL_RETENTION):
        value, least = getattr(settings, name), int(name == "partitions")
        if value is None and name != "partitions":
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InvalidTopic(f"{name} must be an integer of at least {least}, not {value!r}")
    for name in ("check_instants", "foreign"):
        if not isinstance(getattr(settings, name), bool):
            raise InvalidTopic(f"{name} must be True or False, not {getattr(settings, name)!r}")
    if settings.foreign and replace(settings, partitions=1) != FOREIGN:
        raise InvalidTopic("a Kafka broker's log is only read, from object storage: it has no other settings")
    names = settings.interceptors
    if not isinstance(names, tuple) or not all(isinstance(name, str) and name for name in names):
        raise InvalidTopic(f"interceptors are a list of registered names, not {names!r:.100}")
    if len(set(names)) != len(names):
        raise InvalidTopic(f"each interceptor is named once, not as in {', '.join(names)}")
    if settings.max_delay_ms is not None and not settings.delayed:
        raise InvalidTopic("max_delay_ms is for delayed topics: leave it out, or make the topic with delayed=True")
    for name in _LOCAL_RETENTION:
        if getattr(settings, name) is not None and not settings.remote_storage_enable:
            raise InvalidTopic(f"{name} is for topics with remote_storage_enable=True: elsewhere nothing has a copy")
    return settings


def asked_settings(partitions: int, delayed: bool, options: Mapping[str, Any]) -> TopicSettings:
    """What a caller asks for in `TopicOptions`, checked. Raises InvalidTopic, WrongType."""
    asked = asked_values(options, TopicOptions.__annotations__)
    return checked(TopicSettings(partitions=partitions, delayed=flag("delayed", delayed), **asked))


def asked_values(options: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """As `TopicSettings` has them. WrongType where one is none of those known, or has no truth and should."""
    for name in options.keys() - known:
        raise WrongType(f"there is no setting {name!r} here; there are {', '.join(known)}")
    asked = dict(options)
    for name, value in options.items():
        if isinstance(getattr(_DEFAULT, name), bool):
            asked[name] = flag(name, value)
        elif isinstance(value, list):
            asked[name] = tuple(value)
    return asked


def topics_of_json(body: dict[str, Any], path: Path) -> dict[str, TopicSettings]:
    """What a document says that was read from `path`. Raises CorruptFile."""
    try:
        return {
            check_name(name): checked(well_typed(TopicSettings(**_tuples(settings)))) for name, settings in body.items()
        }
    except (AttributeError, TypeError, InvalidTopic) as error:
        raise CorruptFile(f"settings of an unknown kind: {error}", path=path) from error


def _tuples(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}


def settings_to_json(settings: TopicSettings) -> dict[str, Any]:
    """As the document has them."""
    values = ((field.name, getattr(settings, field.name)) for field in fields(settings))
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values
        if name not in _WHERE_SET
        or (value is not getattr(_DEFAULT, name) and value != ())  # a local retention of 0 is one
    }
