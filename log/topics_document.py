"""The `topics` document of a store: which topics there are, and the settings that each was made with.

    afterlog-topics 1 8f3ab01c\\n
    {"mail":{"partitions":1,"delayed":true,"max_delay_ms":null,"retention_ms":null,"retention_bytes":null}}\\n

The settings of tiered storage (`remote_storage_enable` and those of local retention) are there where one is set, and
`check_instants` where it is false.

A topic is there when the document names it: its partitions are made first, and what an unfinished creation left behind
holds no records. So a folder with records that no topic owns means that the document is lost, or an older copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from afterlog import document
from afterlog.errors import CorruptFile
from afterlog.files import Files
from afterlog.log.recovery import holds_bytes, holds_records
from afterlog.log.topic_settings import TopicSettings, settings_to_json, topics_of_json
from afterlog.names import TOPICS, parse_partition_folder, partition_folder

FORMAT = "afterlog-topics"
VERSION = 1


def read_topics(files: Files, store: Path) -> dict[str, TopicSettings]:
    """The topics of the store in the folder `store`; none where it is new. Raises CorruptFile."""
    path = store / TOPICS
    try:
        body = document.read(files, path, FORMAT, VERSION)
    except FileNotFoundError:
        return {}
    return topics_of_json(body, path)


def write_topics(files: Files, store: Path, topics: dict[str, TopicSettings]) -> None:
    """Make the document say `topics`, durably."""
    body = {name: settings_to_json(settings) for name, settings in topics.items()}
    document.write(files, store / TOPICS, FORMAT, VERSION, body)


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
