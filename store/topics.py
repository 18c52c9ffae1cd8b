"""The topics of an open store: recovered, made, and restored from object storage.

topics document ──> a look at every partition ──┬── at rest ──> opened when somebody asks for it ──> its log
                                                └── the others: recovered ─────────────────────────> its log
object storage ──> a folder for each partition ──> topics document, in a store that has none yet

A partition is at rest whose last life ended with all of it after a checkpoint (`log/clean_check.py`). Everything else
is recovered when the store is opened, and so is what may have segments in object storage, since a thread looks after
it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from afterlog.base.clock import Clock
from afterlog.base.config import Config
from afterlog.base.errors import AfterlogError, CorruptFile, InvalidTopic, StorageError, TopicExists
from afterlog.base.files import Files, unused_name
from afterlog.base.locks import Thread, within
from afterlog.base.names import CHECKPOINTS, TOPICS, partition_folder
from afterlog.log.checkpoints import CheckpointFile, Checkpoints
from afterlog.log.clean_check import is_at_rest
from afterlog.log.context import DueCheckpoint, LogContext
from afterlog.log.interceptors import interceptors_of
from afterlog.log.partition_log import PartitionLog
from afterlog.log.recovery import create_log, open_log
from afterlog.log.remote_copy import NO_REMOTE_LOG, RemoteLog
from afterlog.log.store_frontier import StoreFrontier
from afterlog.log.topic_settings import TopicSettings, differences
from afterlog.log.topics_document import (
    add_topics,
    alter_topic,
    check_nothing_to_lose,
    check_owned,
    make_room,
    read_topics,
    sync_names,
    write_topics,
)
from afterlog.produce.topic import Topic
from afterlog.store.deletions import Deletions
from afterlog.store.room import StoreRoom

if TYPE_CHECKING:  # only a store with object storage has it
    from afterlog.tier.tiering import Tiering

logger = logging.getLogger("afterlog.store.store")

MAKERS = 16
"""Threads that make partitions, where there are more of them than that."""


@dataclass(frozen=True, kw_only=True)
class OpenTopics:
    """Reading, and opening partitions, is thread-safe; `recover`, once, and `create` belong to one thread at a time."""

    files: Files
    path: Path
    """The store's folder."""
    config: Config
    clock: Clock
    now_ms: Callable[[], int]
    """The clock, with jumps held back where that is set."""
    leapt_ms: Callable[[], int]
    """As of `LogContext`."""
    on_merge_needed: Callable[[], None]
    """As of `LogContext`."""
    checkpoint_queue: Callable[[Path, DueCheckpoint], None] | None
    """As of `LogContext`."""
    usable: Callable[[], None]
    """Raises where the store is not."""
    room: StoreRoom
    frontier: StoreFrontier
    deletions: Deletions
    tiering: Tiering | None = None
    by_name: dict[str, Topic] = field(default_factory=dict)
    used: dict[str, Topic] = field(default_factory=dict)
    """Those of which a partition was opened, or is just being: what works in the background looks at no others."""
    leaving: dict[str, Topic] = field(default_factory=dict)
    """The mark of a deletion: those that are in `by_name` no more, and of which only the disk knows whether they went.
    """

    at_rest: WeakKeyDictionary[Topic, dict[int, int]] = field(default_factory=WeakKeyDictionary)
    """Bytes of the logs of partitions that nobody has opened, as far as they were counted, by their numbers."""
    making: set[str] = field(default_factory=set)
    """The mark of a creation: whether a document names these, with an id that then counts, only the disk knows."""

    def recover(self) -> None:
        """Recover what is not at rest, in a new store from its object storage.

        Raises CorruptFile, InvalidTopic where a topic names an interceptor that is not there, and as `Tiering` does.
        """
        if self.tiering is not None and not self.files.exists(self.path / TOPICS):
            self._restore(self.tiering)
        topics = read_topics(self.files, self.path)
        check_owned(self.files, self.path, topics)
        for name, settings in topics.items():
            interceptors_of(name, settings.interceptors)  # before anything is opened
        if topics:
            make_room(self.files, self.path)
        sync_names(self.files, self.path)
        self.frontier.recover()
        self.deletions.recover()
        if not topics:
            self.files.sync_folder(self.path.parent)
        for name, settings in topics.items():
            self._add(name, settings)

    def create(self, names: Sequence[str], settings: TopicSettings) -> list[Topic]:
        """Make topics of these settings, durably, all or none; those that are there with the same settings stay.

        Raises InvalidTopic, TopicExists, RemoteConflict, StorageError, with none made that was not there.
        """
        for name in names:
            there = self.by_name.get(name)
            if there is not None and there.settings != settings:
                raise TopicExists(f"{name} is there with {' and '.join(differences(there.settings, settings))}")
            interceptors_of(name, settings.interceptors)  # before anything is made
        stands = read_topics(self.files, self.path) if self.making.intersection(names) else {}
        missing = {
            name: replace(settings, topic_id=stands[name].topic_id if name in stands else unused_name())
            for name in dict.fromkeys(names)
            if name not in self.by_name
        }
        for name in missing:
            self.deletions.settle(name)  # nothing of an earlier one is left
            if settings.remote_storage_enable:
                missing[name] = self._tiering_of(name).tell_topic(name, missing[name])
        self._make_logs(
            [self._context(name, number, own) for name, own in missing.items() for number in range(own.partitions)]
        )
        if missing:
            make_room(self.files, self.path)
            self.files.sync_folder(self.path)
            self.making.update(missing)
            if len(missing) == 1 and stands.keys() & missing.keys():
                [(name, own)] = missing.items()
                alter_topic(self.files, self.path, name, own)
            else:
                add_topics(self.files, self.path, missing)
            self.making.difference_update(missing)
        for name, own in missing.items():
            self._add(name, own, new=True)
        return [self.by_name[name] for name in names]

    def alter(self, name: str, settings: TopicSettings) -> Topic:
        """Give a topic other settings, durably, and the partitions that come with them.

        Raises InvalidTopic, RemoteConflict, StorageError; then it has the settings of before, or the document has the
        new ones already, and the call may be made again.
        """
        interceptors_of(name, settings.interceptors)  # before anything is changed
        topic = self.by_name[name]
        before, count = topic.settings, topic.partition_count
        begins = settings.remote_storage_enable and not before.remote_storage_enable
        logs = [topic.log(number) for number in range(count) if begins]
        within([log.letting_go for log in logs], lambda: self._give(topic, settings, logs))
        for number in range(count) if begins else ():
            log = topic.partition(number).log
            if self.tiering is not None:
                self.tiering.add(log)
        return topic

    def _give(self, topic: Topic, settings: TopicSettings, beginning: Sequence[PartitionLog]) -> None:
        """Other settings, and their partitions, to a topic, of which these logs are to be in object storage from now
        on.
        """
        for log in beginning:
            _check_no_ranges(log)
        name, before, count = topic.name, topic.settings, topic.partition_count
        if settings.remote_storage_enable:
            settings = self._tiering_of(name).tell_topic(name, settings, before)
        self._make_logs([self._context(name, number, settings) for number in range(count, settings.partitions)])
        self.files.sync_folder(self.path)
        alter_topic(self.files, self.path, name, settings)
        topic.alter(settings)

    def delete(self, name: str) -> None:
        """Delete a topic: it is gone when this returns, whatever crashes, or there as it was where it raises before.

        Raises StorageError; RemoteUnavailable and its like where it is gone but for what is in object storage.
        """
        self.leaving[name] = topic = self.by_name[name]
        topic.delete()
        self.by_name.pop(name, None)
        self.used.pop(name, None)
        try:
            self.deletions.begin_topic(name, topic.settings)
        except AfterlogError:
            self.settle()
            raise
        self.settle()

    def settle(self) -> None:
        """What deletions left that were interrupted: what is on disk says whether they happened."""
        for name, topic in list(self.leaving.items()):
            topic.delete()
            self.by_name.pop(name, None)
            self.used.pop(name, None)
            if self.tiering is not None:
                for number in range(topic.partition_count):
                    self.tiering.leave(partition_folder(name, number))
            if self.deletions.has_begun(name):
                self.leaving.pop(name)
                self.deletions.settle(name)
            else:
                self._add(name, topic.settings)
                self.leaving.pop(name)

    def _tiering_of(self, name: str) -> Tiering:
        if self.tiering is None:
            raise InvalidTopic(f"{name}: remote_storage_enable needs object storage: afterlog.open(path, remote=…)")
        return self.tiering

    def _make_logs(self, contexts: Sequence[LogContext]) -> None:
        """Each costs two syncs; a disk does those of many threads together, where one after another would wait."""
        if len(contexts) <= MAKERS:
            for context in contexts:
                create_log(context, sync_name=False)
            return
        left, failed = iter(contexts), list[BaseException]()

        def make() -> None:
            for context in left:  # of which each thread takes the next
                if failed:
                    return
                try:
                    create_log(context, sync_name=False)
                except BaseException as error:
                    failed.append(error)

        threads = [Thread(target=make, name=f"afterlog-make_{number}") for number in range(MAKERS)]
        try:
            for thread in threads:
                thread.start()
        except BaseException as error:
            failed.append(error)
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        if failed:
            raise failed[0]

    def logs(self) -> Iterator[PartitionLog]:
        """Of all topics, as far as they are open by now: the others are at rest, and nothing is to be done for them."""
        for topic in list(self.used.values()):
            yield from topic.opened_logs.values()

    def last_logs(self) -> list[PartitionLog]:
        """All that there will ever be: for who closes the store, and has made it unusable."""
        for topic in [*self.by_name.values(), *self.leaving.values()]:
            topic.wait_for_openings()
        left = [log for topic in self.leaving.values() for log in topic.opened_logs.values()]
        return [*self.logs(), *left]

    def held_bytes(self) -> int:
        """Of the logs of all topics, on this disk."""
        held = 0
        for topic in list(self.by_name.values()):
            opened, known = topic.opened_logs, self.at_rest.setdefault(topic, {})
            for number in range(topic.partition_count):
                log = opened.get(number)
                if log is None and number not in known:
                    known[number] = self._bytes_at_rest(topic, number)
                held += known[number] if log is None else log.local_bytes
        return held

    def _bytes_at_rest(self, topic: Topic, number: int) -> int:
        try:
            known = self.checkpoints_of(topic, number)
        except (CorruptFile, StorageError):  # it is being opened, or deleted; or whoever opens it is told
            return 0
        return known.recovery.position + sum(mark.log_bytes for mark in known.sealed if mark.local)

    def checkpoints_of(self, topic: Topic, number: int) -> Checkpoints:
        """What is durably known of a partition. Raises CorruptFile, StorageError, FileNotFoundError."""
        path = self.path / partition_folder(topic.name, number) / CHECKPOINTS
        return CheckpointFile.open(self.files, path).current

    def end_frontier(self) -> None:
        """After the close of the last partition: the store's frontier is taken back, if each has its own.

        Where one has not, or the disk fails, it stays: then the next life stamps later than it need.
        """
        self.frontier.close()
        if not all(log.has_own_frontier for log in self.logs()):
            return
        try:
            self.frontier.end(self._at_rest())
        except OSError as error:
            logger.warning("%s: the store's frontier stays, as after a crash: %s", self.path, error)

    def _at_rest(self) -> set[str]:
        """The delayed partitions that nobody has opened."""
        return {
            partition_folder(name, number)
            for name, topic in self.by_name.items()
            if topic.settings.delayed
            for number in range(topic.settings.partitions)
            if number not in topic.opened_logs
        }

    def _add(self, name: str, settings: TopicSettings, *, new: bool = False) -> None:
        """A topic from now on. What is not at rest is opened at once. new: it has just been made, and holds nothing."""

        def opened(number: int) -> PartitionLog:
            return self._opened(name, number, topic.settings, new=new)

        topic = self.by_name[name] = Topic(name, settings, opened, self.usable)
        for number in () if new else range(settings.partitions):
            is_opened = settings.foreign or self._is_needed_open(settings)
            if is_opened or not is_at_rest(self.files, self.path / partition_folder(name, number)):
                topic.partition(number)

    def _opened(self, name: str, number: int, settings: TopicSettings, *, new: bool) -> PartitionLog:
        self.used[name] = self.by_name[name]
        log = open_log(self._context(name, number, settings), new=new)
        if self.tiering is not None and self._is_needed_open(settings):
            self.tiering.add(log)
        if log.crowded:
            self.on_merge_needed()
        return log

    def _is_needed_open(self, settings: TopicSettings) -> bool:
        """Whether a thread looks after its partitions, also while nobody uses them."""
        return self.tiering is not None and settings.remote_storage_enable and not settings.foreign

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
        if self.tiering is not None:  # it may be altered to use it
            remote, sealed = self.tiering.remote_log, self.tiering.wake
        return LogContext(
            files=self.files,
            folder=self.path / folder,
            config=self.config,
            settings=settings,
            interceptors=interceptors_of(name, settings.interceptors),
            clock=self.clock,
            now_ms=self.now_ms,
            leapt_ms=self.leapt_ms,
            on_merge_needed=self.on_merge_needed,
            checkpoint_queue=self.checkpoint_queue,
            remote=remote(folder),
            sealed=sealed,
            room=partial(self.room.check, self.held_bytes) if self.room.is_asked else _nothing,
            frontier=self.frontier,
        )


def _no_remote(partition: str) -> RemoteLog:
    return NO_REMOTE_LOG


def _nothing() -> None:
    """Nobody wants to know."""


def _check_no_ranges(log: PartitionLog) -> None:
    """InvalidTopic where ranges are gone from behind what is not acked: a fresh machine would know nothing of them."""
    if ranges := log.index.acked.rows:
        raise InvalidTopic(
            f"{log.path.name}: what all readers have acked is gone from behind delivery offset "
            f"{log.log_start.delivery_offset}, up to {ranges[-1].end}, which object storage could not tell: first ack "
            "what is left before that, or purge the topic up to there; then alter it"
        )
