"""The durable steps of a deletion: of a topic, a subscription, a consumer group.

    tombstone ──> topics, schedules, handovers ──> folders ──> frontier ──> object storage ──> tombstone gone
        └ from here on it has happened, durably: each other step can be taken again, by whoever opens the store next

Object storage may not answer, or the store may be opened without it: then the tombstone stays, the name is taken, and
the next open, or the next that wants the name, tries again.

Who calls holds the store's lock, and nobody has anything of it open.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from afterlog.base.errors import AfterlogError, RemoteRefused
from afterlog.base.files import Files, remove_tree
from afterlog.base.names import ADOPTION, DELETED, SCHEDULES, SUBSCRIPTIONS, parse_partition_folder, subscription_folder
from afterlog.log.store_frontier import StoreFrontier
from afterlog.log.tombstones import Tombstones, read_tombstones, write_tombstones
from afterlog.log.topic_settings import TopicSettings
from afterlog.log.topics_document import forget_topic

if TYPE_CHECKING:  # only a store with object storage has it
    from afterlog.tier.tiering import Tiering

logger = logging.getLogger("afterlog.store.store")


@dataclass(kw_only=True)
class Deletions:
    """Of one open store."""

    files: Files
    path: Path
    """The store's folder."""
    frontier: StoreFrontier
    tiering: Tiering | None
    _known: Tombstones = field(default_factory=Tombstones)
    """What the document says, and what it may say since a write of it was interrupted or failed."""

    def recover(self) -> None:
        """End what a crash left. Where that fails it is logged, and the names stay taken. Raises CorruptFile."""
        if not self.files.exists(self.path / DELETED):
            return
        self._known = read_tombstones(self.files, self.path)
        for topic in list(self._known.topics):
            with _told(topic):
                self._end_topic(topic)
        for topic, name in self._known.readers:
            with _told(f"{name} of {topic}"):
                self._end_reader(topic, name)

    def begin_topic(self, name: str, settings: TopicSettings) -> None:
        """From now on the topic is gone, durably. Where it raises, `has_begun` tells."""
        self._write(replace(self._known, topics={**self._known.topics, name: settings}))

    def has_begun(self, topic: str) -> bool:
        """Whether it is gone, durably. Raises StorageError where that cannot be told."""
        self._read()
        return topic in self._known.topics

    def settle(self, topic: str, reader: str | None = None) -> None:
        """End the deletion of a topic, or of one of its readers, if there is one that is not ended: the name is free.

        Raises StorageError, RemoteUnavailable, RemoteRefused.
        """
        if topic in self._known.topics:
            self._end_topic(topic)
        if reader is not None and (topic, reader) in self._known.readers:
            self._read()
            if (topic, reader) in self._known.readers:
                self._end_reader(topic, reader)

    def delete_reader(self, topic: str, name: str) -> None:
        """Delete what a subscription or consumer group has in all partitions, which nobody has open."""
        self._known = replace(self._known, readers=self._known.readers | {(topic, name)})  # the mark
        self._write(self._known)
        self._end_reader(topic, name)

    def _end_topic(self, name: str) -> None:
        settings = self._known.topics[name]
        forget_topic(self.files, self.path, name)
        if self.files.exists(self.path / SCHEDULES):
            from afterlog.store.schedule_journal import forget_schedules

            forget_schedules(self.files, self.path, name)
        if self.files.exists(self.path / ADOPTION):
            from afterlog.produce.adoption import forget_handovers

            forget_handovers(self.files, self.path, name)
        folders = self._folders(name)
        for folder in folders:
            remove_tree(self.files, self.path / folder)
        self.files.sync_folder(self.path)
        self.frontier.forget(folders)
        if settings.remote_storage_enable:
            if self.tiering is None:
                raise RemoteRefused(
                    f"{name} is deleted but for what is in object storage: open the store with remote=…", path=self.path
                )
            self.tiering.forget_topic(name, settings)
        topics = {each: own for each, own in self._known.topics.items() if each != name}
        readers = frozenset(row for row in self._known.readers if row[0] != name)
        self._write(Tombstones(topics=topics, readers=readers))

    def _end_reader(self, topic: str, name: str) -> None:
        for folder in self._folders(topic):
            with contextlib.suppress(FileNotFoundError):
                remove_tree(self.files, subscription_folder(self.path / folder, name))
                self.files.sync_folder(self.path / folder / SUBSCRIPTIONS)
        self._write(replace(self._known, readers=self._known.readers - {(topic, name)}))

    def _folders(self, topic: str) -> list[str]:
        """Of its partitions, those too that a creation left which was not ended."""
        parsed = ((name, parse_partition_folder(name)) for name in self.files.names(self.path))
        return [name for name, of in parsed if of is not None and of[0] == topic]

    def _read(self) -> None:
        """Take the document for the truth again, and make it durable: a write of it may have been interrupted."""
        self._known = read_tombstones(self.files, self.path)
        self.files.sync_folder(self.path)

    def _write(self, content: Tombstones) -> None:
        write_tombstones(self.files, self.path, content)
        self._known = content


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except (AfterlogError, OSError) as error:
        logger.error("%s: its deletion is not ended: %s", what, error)
