"""The `topics` document of a store: which topics there are, and the settings that each was made with.

    afterlog-topics 1 8f3ab01c\\n
    {"mail":{"partitions":1,"delayed":true,"max_delay_ms":null,"retention_ms":null,"retention_bytes":null}}\\n

The settings of tiered storage (`remote_storage_enable` and those of local retention) are there where one is set.

A topic is there when the document names it: its partitions are made first, and what an unfinished creation left behind
holds no records. So a folder with records that no topic owns means that the document is lost, or an older copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from afterlog import document
from afterlog.errors import CorruptFile, InvalidTopic
from afterlog.files import Files
from afterlog.log.place import TopicSettings
from afterlog.log.recovery import holds_bytes, holds_records
from afterlog.names import TOPICS, check_name, parse_partition_folder, partition_folder

FORMAT = "afterlog-topics"
VERSION = 1
_LOCAL_RETENTION = ("local_retention_ms", "local_retention_bytes")
_TIERED = ("remote_storage_enable", *_LOCAL_RETENTION)


def checked(settings: TopicSettings) -> TopicSettings:
    """`settings` themselves. Raises InvalidTopic where one cannot be, or two contradict each other."""
    for name in ("partitions", "max_delay_ms", "retention_ms", "retention_bytes", *_LOCAL_RETENTION):
        value, least = getattr(settings, name), int(name == "partitions")
        if value is None and name != "partitions":
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InvalidTopic(f"{name} must be an integer of at least {least}, not {value!r}")
    if settings.max_delay_ms is not None and not settings.delayed:
        raise InvalidTopic("max_delay_ms is for delayed topics: leave it out, or make the topic with delayed=True")
    for name in _LOCAL_RETENTION:
        if getattr(settings, name) is not None and not settings.remote_storage_enable:
            raise InvalidTopic(f"{name} is for topics with remote_storage_enable=True: elsewhere nothing has a copy")
    return settings


def read_topics(files: Files, store: Path) -> dict[str, TopicSettings]:
    """The topics of the store in the folder `store`; none where it is new. Raises CorruptFile."""
    path = store / TOPICS
    try:
        body = document.read(files, path, FORMAT, VERSION)
    except FileNotFoundError:
        return {}
    return topics_of_json(body, path)


def topics_of_json(body: dict[str, Any], path: Path) -> dict[str, TopicSettings]:
    """What a document says that was read from `path`. Raises CorruptFile."""
    try:
        return {check_name(name): checked(TopicSettings(**settings)) for name, settings in body.items()}
    except (TypeError, InvalidTopic) as error:
        raise CorruptFile(f"settings of an unknown kind: {error}", path=path) from error


def write_topics(files: Files, store: Path, topics: dict[str, TopicSettings]) -> None:
    """Make the document say `topics`, durably."""
    body = {name: settings_to_json(settings) for name, settings in topics.items()}
    document.write(files, store / TOPICS, FORMAT, VERSION, body)


def settings_to_json(settings: TopicSettings) -> dict[str, Any]:
    """As the document has them."""
    return {
        name: value
        for name, value in asdict(settings).items()
        if name not in _TIERED or (value is not None and value is not False)  # a local retention of 0 is one
    }


def check_owned(files: Files, store: Path, topics: dict[str, TopicSettings]) -> None:
    """Raises CorruptFile where a folder has records and no topic."""
    known = {folder for name, settings in topics.items() for folder in _folders(name, settings)}
    for name in files.names(store):
        if parse_partition_folder(name) and name not in known and holds_records(files, store / name):
            raise CorruptFile(f"no topic for {name}, which holds records; restore it from a copy", path=store / TOPICS)


def check_nothing_to_lose(files: Files, store: Path) -> None:
    """Raises CorruptFile where a folder has records: before a store is made anew from object storage."""
    for name in files.names(store):
        if parse_partition_folder(name) and holds_bytes(files, store / name):
            raise CorruptFile(
                f"the document is gone, and {name} holds records; restore it from a copy", path=store / TOPICS
            )


def _folders(name: str, settings: TopicSettings) -> Iterable[str]:
    return (partition_folder(name, number) for number in range(settings.partitions))
