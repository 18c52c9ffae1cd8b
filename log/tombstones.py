"""Deletions under way: recorded before the first file is removed, cleared after the last.

    afterlog-deleted 1 8f3ab01c\\n
    {"topics":{"mail":{"partitions":1,"delayed":true,…}},"readers":[["orders","billing"]]}\\n

So a deletion has happened as a whole, or not at all: what a crash interrupts, whoever opens the store next ends. The
document `deleted` in the store's folder is there while something is left to do, which may be in object storage that
does not answer. What stands here is there no more for anybody: no document names such a topic (`topics_document.py`),
and its name is free when its row is gone. By its settings a row says where a topic's files are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from afterlog.base import document
from afterlog.base.errors import CorruptFile, InvalidTopic
from afterlog.base.files import Files
from afterlog.base.names import DELETED, check_name
from afterlog.log.topic_settings import TopicSettings, settings_to_json, topics_of_json

FORMAT = "afterlog-deleted"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstones:
    """The content of the document."""

    topics: Mapping[str, TopicSettings] = field(default_factory=dict)
    readers: frozenset[tuple[str, str]] = frozenset()
    """(topic, subscription or consumer group)"""


def read_tombstones(files: Files, store: Path) -> Tombstones:
    """Of the store in the folder `store`; none where there is no document. Raises CorruptFile."""
    path = store / DELETED
    try:
        body = document.read(files, path, FORMAT, VERSION)
    except FileNotFoundError:
        return Tombstones()
    try:
        readers = frozenset((check_name(topic), check_name(name)) for topic, name in body["readers"])
        return Tombstones(topics=topics_of_json(body["topics"], path), readers=readers)
    except (LookupError, TypeError, ValueError, AttributeError, InvalidTopic) as error:
        raise CorruptFile(f"the document holds something unknown: {error}", path=path) from error


def write_tombstones(files: Files, store: Path, content: Tombstones) -> None:
    """Durably; without any there is no document."""
    if content.topics or content.readers:
        topics = {name: settings_to_json(settings) for name, settings in content.topics.items()}
        body = {"topics": topics, "readers": sorted(map(list, content.readers))}
        document.write(files, store / DELETED, FORMAT, VERSION, body)
        return
    with contextlib.suppress(FileNotFoundError):
        files.unlink(store / DELETED)
    files.sync_folder(store)
