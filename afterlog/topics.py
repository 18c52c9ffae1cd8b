"""The topics of an open store: recovered, made, and restored from object storage.

topics document ──> recover every partition ──> Topic ··· their logs
object storage ──> a folder for each partition ──> topics document, in a store that has none yet
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from afterlog.clock import Clock
from afterlog.config import Config
from afterlog.errors import InvalidTopic, TopicExists
from afterlog.fetch.partition import Partition
from afterlog.files import Files
from afterlog.log.context import LogContext
from afterlog.log.interceptors import interceptors_of
from afterlog.log.partition_log import PartitionLog
from afterlog.log.recovery import create_log, open_log
from afterlog.log.remote_copy import NO_REMOTE_LOG, RemoteLog
from afterlog.log.topic_settings import TopicSettings
from afterlog.log.topics_document import (
    add_topic,
    check_nothing_to_lose,
    check_owned,
    read_topics,
    sync_names,
    write_topics,
)
from afterlog.names import TOPICS, partition_folder
from afterlog.produce.topic import Topic
from afterlog.tier.tiering import Tiering


@dataclass(frozen=True, kw_only=True)
class OpenTopics:
    """Reading is thread-safe; `recover`, once, and `create` belong to one thread at a time."""

    files: Files
    path: Path
    """The store's folder."""
    config: Config
    clock: Clock
    now_ms: Callable[[], int]
    """The clock, with jumps held back where that is set."""
    changed: threading.Condition
    crowded: Callable[[], None]
    """As of `LogContext`."""
    tiering: Tiering | None = None
    by_name: dict[str, Topic] = field(default_factory=dict)

    def recover(self) -> None:
        """Recover all topics, in a new store those of its object storage.

        Raises CorruptFile, InvalidTopic where a topic names an interceptor that is not there, and as `Tiering` does.
        """
        if self.tiering is not None and not self.files.exists(self.path / TOPICS):
            self._restore(self.tiering)
        topics = read_topics(self.files, self.path)
        check_owned(self.files, self.path, topics)
        for name, settings in topics.items():
            interceptors_of(name, settings.interceptors)  # before anything is opened
        sync_names(self.files, self.path)
        if not topics:
            self.files.sync_folder(self.path.parent)
        for name, settings in topics.items():
            self._open(name, settings)

    def create(self, name: str, settings: TopicSettings) -> Topic:
        """Make a topic, durably; the one that is there, with the same settings. InvalidTopic, TopicExists."""
        there = self.by_name.get(name)
        if there is not None:
            if there.settings != settings:
                raise TopicExists(f"{name} is there with {there.settings}, not {settings}")
            return there
        interceptors_of(name, settings.interceptors)  # before anything is made
        if settings.remote_storage_enable:
            if self.tiering is None:
                raise InvalidTopic("remote_storage_enable needs object storage: afterlog.open(path, remote=…)")
            self.tiering.tell_topic(name, settings)
        for number in range(settings.partitions):
            create_log(self._context(name, number, settings))
        add_topic(self.files, self.path, name, settings)
        return self._open(name, settings, new=True)

    def partitions(self) -> Iterator[Partition]:
        """Of all topics that are open by now."""
        for topic in list(self.by_name.values()):
            yield from topic.partitions

    def logs(self) -> Iterator[PartitionLog]:
        """The same."""
        return (partition.log for partition in self.partitions())

    def _open(self, name: str, settings: TopicSettings, *, new: bool = False) -> Topic:
        partitions: list[Partition] = []
        try:
            for number in range(settings.partitions):
                partitions.append(Partition(name, number, open_log(self._context(name, number, settings), new=new)))
        except BaseException:
            for partition in partitions:
                partition.log.let_go()
            raise
        if self.tiering is not None and settings.remote_storage_enable and not settings.foreign:
            for partition in partitions:
                self.tiering.add(partition.log)
        self.by_name[name] = Topic(name, settings, partitions)
        return self.by_name[name]

    def _restore(self, tiering: Tiering) -> None:
        """Into a folder that has no topics yet, what object storage has."""
        check_nothing_to_lose(self.files, self.path)
        topics = tiering.topics()
        for name, settings in topics.items():
            interceptors_of(name, settings.interceptors)  # before anything is made
        for name, settings in topics.items():
            for number in range(settings.partitions):
                tiering.restore(self._context(name, number, settings))
        if topics:
            write_topics(self.files, self.path, topics)

    def _context(self, name: str, number: int, settings: TopicSettings) -> LogContext:
        folder, remote, sealed = partition_folder(name, number), _no_remote, _nothing
        if self.tiering is not None and settings.remote_storage_enable:
            remote, sealed = self.tiering.remote_log, self.tiering.wake
        interceptors = (
            *self.config.broker_entry_metadata_interceptors,
            *interceptors_of(name, settings.interceptors),
        )
        return LogContext(
            files=self.files,
            folder=self.path / folder,
            config=replace(self.config, broker_entry_metadata_interceptors=interceptors)
            if settings.interceptors
            else self.config,
            settings=settings,
            clock=self.clock,
            now_ms=self.now_ms,
            changed=self.changed,
            crowded=self.crowded,
            remote=remote(folder),
            sealed=sealed,
        )


def _no_remote(partition: str) -> RemoteLog:
    return NO_REMOTE_LOG


def _nothing() -> None:
    """Nobody wants to know."""
