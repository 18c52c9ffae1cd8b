"""What a backup copies from an open store, and in which order, so that the copy opens as after a kill.

What tells of something is taken before that of which it tells:

    1  beside all   sealed segments and runs are linked; partitions that nobody has opened are taken as they lie
    2  held still   topics, what is adopted, schedules ── journals and positions ── each partition: its checkpoints,
                    runs, indexes, and how far its log is visible ── the frontier that the partitions share
    3  beside all   the active logs, up to there

So an ack is never ahead of the log, nor after what went by acks (nothing does meanwhile), a schedule never ahead of
its record, and the frontier never behind a delivery. In 2 appends to a partition wait while its few files are linked,
schedules and adoptions as long as it takes. What is moved from one partition to another at that instant, as a dead
letter, may be in both: at least once.

A version of each partition is held until its log is copied, so that this does not go, though it be rolled and let go
meanwhile. Of what goes while a partition is held still nothing is needed: a merge of runs removes its sources when no
version has them any more, without a lock, so they may be there when names are read, and be gone then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from afterlog.base.errors import CorruptFile, FileMissing, NotAFolder, TopicDeleted
from afterlog.base.files import TEMPORARY_SUFFIX, Files
from afterlog.base.locks import within
from afterlog.base.names import (
    ADOPTED,
    ADOPTION,
    BUCKETS,
    CHECKPOINTS,
    CONFIG,
    DELETED,
    DELIVER_AFTER_INDEX,
    FRONTIER,
    LATER_TOPICS,
    LOCK,
    LOG,
    POSITION,
    POSITION_COPY,
    REMOTE_CACHE,
    SCHEDULE_JOURNALS,
    SCHEDULES,
    SERVER_SOCKET,
    SUBSCRIPTIONS,
    TOPICS,
    is_origin_file,
    is_producer_file,
    is_unique_key_file,
    journal_file,
    origin_file,
    parse_bucket_file,
    parse_journal_file,
    parse_partition_folder,
    parse_segment_file,
    partition_folder,
    producer_file,
    segment_file,
    unique_key_file,
)
from afterlog.log.checkpoints import CheckpointFile, Checkpoints
from afterlog.log.partition_log import PartitionLog
from afterlog.log.version import Version
from afterlog.produce.topic import Topic
from afterlog.store.backup_writer import BackupWriter
from afterlog.store.topics import OpenTopics

TRIES = 8
_NOT_TAKEN = (LOCK, SERVER_SOCKET, REMOTE_CACHE)
_DOCUMENTS = (TOPICS, CONFIG, DELETED, ADOPTED)
_FOLDERS = (LATER_TOPICS, ADOPTION, SCHEDULES)
_OF_A_PARTITION = (CHECKPOINTS, BUCKETS, SUBSCRIPTIONS)
_GIVEN_UP = (FileMissing,)
"""What a job has handed over it may take back, without a lock."""


class Pinned(NamedTuple):
    """Of one partition: what is held until its log is copied, and how far that goes."""

    version: Version
    name: str
    size: int


@dataclass(frozen=True, kw_only=True)
class StoreImage:
    """Of one open store."""

    files: Files
    path: Path
    """Of the store."""
    topics: OpenTopics
    lock: contextlib.AbstractContextManager[Any]
    """Of the store: held while topics are made."""
    documents: Callable[[], tuple[contextlib.AbstractContextManager[Any], contextlib.AbstractContextManager[Any]]]
    """The locks of those that write documents of the store and logs, which must agree: schedules, adoptions."""
    usable: Callable[[], None]
    """Raises where the store is not."""

    def take(self, writer: BackupWriter) -> None:
        """Into a backup, durably. Raises CorruptFile, StorageFull, DiskFailed, PartitionPoisoned, StoreClosed."""
        writer.make_folder("")
        self._make_visible()
        taken = self._take_at_rest(writer)
        schedules, adoptions = self.documents()
        with schedules, adoptions:
            pinned = self._take_still(writer, taken)
        for _, name, size in pinned:
            writer.copy(name, size)
        del pinned
        writer.make_durable()

    def _make_visible(self) -> None:
        """What was sent before is in it, also where it has not been synced yet (`Durability.interval`)."""
        for topic in list(self.topics.by_name.values()):
            for log in list(topic.opened_logs.values()):
                with contextlib.suppress(TopicDeleted):
                    log.commit.sync()

    # 1: beside all.

    def _take_at_rest(self, writer: BackupWriter) -> set[str]:
        """The partitions that nobody has opened, by their folders, as they lie; of the others what never changes.

        Where one is opened meanwhile what was taken of it is no proof, and it is taken again.
        """
        taken = set[str]()
        for topic in list(self.topics.by_name.values()):
            for number in range(topic.partition_count):
                self.usable()
                folder = partition_folder(topic.name, number)
                log = topic.opened_logs.get(number)
                with contextlib.suppress(FileMissing, CorruptFile):  # it has been opened, or removed, meanwhile
                    if log is None:
                        self._take_readers(writer, folder)
                        known = CheckpointFile.open(self.files, self.path / folder / CHECKPOINTS).current
                        self._take_files(writer, folder, known, whole=True)
                        taken.add(folder)
                    else:
                        self._take_sealed(writer, folder, log.version)
        return taken

    def _take_sealed(self, writer: BackupWriter, folder: str, version: Version) -> None:
        held = {(segment.base_offset, segment.mark.generation) for segment in version.sealed if segment.is_local()}
        for name in self.files.names(self.path / folder):
            parsed = parse_segment_file(name)
            if parsed is not None and (parsed.base_offset, parsed.generation) in held:
                with contextlib.suppress(FileMissing):  # merged away, or let go
                    writer.link(f"{folder}/{name}")

    # 2: held still.

    def _take_still(self, writer: BackupWriter, taken: set[str]) -> list[Pinned]:
        with self.lock:
            topics = list(self.topics.by_name.values())
            self._take_documents(writer)
        opened: list[tuple[str, PartitionLog]] = []
        for topic in topics:
            opened += self._opened(writer, topic, taken)
        letting_go = [log.letting_go for _, log in opened if log.context.settings.retention_by_subscriptions]
        # What a reader has not acked, as it is taken, is taken, too.
        pinned = within(letting_go, lambda: self._taken_with_readers(writer, opened))
        self._take_frontier(writer)
        wanted = {partition_folder(topic.name, number) for topic in topics for number in range(topic.partition_count)}
        for folder in taken - wanted:  # its topic is gone
            for name in writer.names_in(folder):
                writer.discard(f"{folder}/{name}")
        return pinned

    def _taken_with_readers(self, writer: BackupWriter, opened: list[tuple[str, PartitionLog]]) -> list[Pinned]:
        for folder, _ in opened:
            self._take_readers(writer, folder)
        pinned = []
        for folder, log in opened:
            self.usable()
            pinned.append(self._take_still_files(writer, folder, log))
        return pinned

    def _opened(self, writer: BackupWriter, topic: Topic, taken: set[str]) -> Iterator[tuple[str, PartitionLog]]:
        """The partitions of a topic that are open by now, and those that were not yet taken, which are opened."""
        topic.wait_for_openings()
        for number in range(topic.partition_count):
            folder = partition_folder(topic.name, number)
            log = topic.opened_logs.get(number)
            if log is None and folder not in taken:
                log = topic.log(number)
            if log is not None:
                yield folder, log

    def _take_documents(self, writer: BackupWriter) -> None:
        """All that lies in the store beside partitions. What is not known here is copied: it may grow."""
        for name in self.files.names(self.path):
            if name in _NOT_TAKEN or parse_partition_folder(name) is not None:
                continue
            if name in _DOCUMENTS:
                writer.link(name)
            elif name in _FOLDERS:
                self._take_folder(writer, name)
            else:
                self._take_unknown(writer, name)

    def _take_folder(self, writer: BackupWriter, folder: str) -> None:
        """Of documents, which are never changed in place, but for journals, which grow."""
        writer.make_folder(folder)
        for name in self.files.names(self.path / folder):
            if folder == SCHEDULES and name in SCHEDULE_JOURNALS:
                writer.copy(f"{folder}/{name}")
            elif name != FRONTIER and not name.endswith(TEMPORARY_SUFFIX):
                with contextlib.suppress(*_GIVEN_UP if folder == ADOPTION else ()):
                    writer.link(f"{folder}/{name}")

    def _take_unknown(self, writer: BackupWriter, name: str) -> None:
        """A file, or a folder with all that is in it."""
        if name.endswith(TEMPORARY_SUFFIX):
            return
        try:
            inner = self.files.names(self.path / name)
        except NotAFolder:
            writer.copy(name)
            return
        writer.make_folder(name)
        for each in inner:
            self._take_unknown(writer, f"{name}/{each}")

    def _take_frontier(self, writer: BackupWriter) -> None:
        name = f"{LATER_TOPICS}/{FRONTIER}"
        if self.files.exists(self.path / name):
            writer.link(name)

    def _take_readers(self, writer: BackupWriter, folder: str) -> None:
        """Positions, and of each subscription the newest journal, as far as it goes now."""
        base = f"{folder}/{SUBSCRIPTIONS}"
        if not self.files.exists(self.path / base):
            return
        writer.make_folder(base)
        for reader in self.files.names(self.path / base):
            writer.make_folder(f"{base}/{reader}")
            for _ in range(TRIES):
                with contextlib.suppress(FileMissing):  # it was begun anew
                    self._take_reader(writer, f"{base}/{reader}")
                    break
            else:
                raise CorruptFile("it is begun anew again and again", path=self.path / base / reader)

    def _take_reader(self, writer: BackupWriter, folder: str) -> None:
        names = self.files.names(self.path / folder)
        numbers = [number for name in names if (number := parse_journal_file(name)) is not None]
        for name in writer.names_in(folder):  # as they were before
            writer.discard(f"{folder}/{name}")
        for name in (POSITION, POSITION_COPY):
            if name in names:
                writer.link(f"{folder}/{name}")
        if numbers:
            writer.copy(f"{folder}/{journal_file(max(numbers))}")

    def _take_still_files(self, writer: BackupWriter, folder: str, log: PartitionLog) -> Pinned:
        """Of a partition that is open, while nothing in it changes."""

        def look(version: Version) -> Pinned:
            self._take_files(writer, folder, log.checkpoints.current, whole=False)
            name = f"{folder}/{segment_file(version.active.base_offset, LOG)}"
            return Pinned(version, name, version.visible.position)

        return log.while_still(look)

    def _take_files(self, writer: BackupWriter, folder: str, known: Checkpoints, *, whole: bool) -> None:
        """All of a partition but for its readers. whole: the active log, too, as it lies."""
        sealed = {(mark.base_offset, mark.generation) for mark in known.sealed if mark.local}
        links, copies, runs, unknown = {CHECKPOINTS}, set[str](), set[str](), list[str]()
        held = () if known.unique_keys is None else known.unique_keys.files
        tables = {unique_key_file(mark.first, mark.end) for mark in held}
        if known.producers is not None and known.producers.file is not None:
            tables.add(producer_file(known.producers.file.offset))
        if known.origins is not None and known.origins.file is not None:
            tables.add(origin_file(known.origins.file.offset))
        for name in self.files.names(self.path / folder):
            base, suffix, generation = parse_segment_file(name) or (-1, "", 0)
            if (base, generation) in sealed:
                (runs if suffix == DELIVER_AFTER_INDEX else links).add(name)
            elif (base, generation) == (known.active.base_offset, 0) and (whole or suffix != LOG):
                copies.add(name)
            elif is_unique_key_file(name) or is_producer_file(name) or is_origin_file(name):
                if name in tables:
                    links.add(name)
            elif not suffix and name not in _OF_A_PARTITION:
                unknown.append(name)
        writer.make_folder(f"{folder}/{BUCKETS}")
        for name in sorted(links):
            writer.link(f"{folder}/{name}")
        for name in sorted(copies):
            writer.copy(f"{folder}/{name}")
        buckets = [name for name in self.files.names(self.path / folder / BUCKETS) if parse_bucket_file(name)]
        runs.update(f"{BUCKETS}/{name}" for name in buckets)
        kept = links | copies | self._take_runs(writer, folder, runs)
        for name in writer.names_in(folder):
            if name not in kept and not name.startswith(f"{SUBSCRIPTIONS}/"):
                writer.discard(f"{folder}/{name}")
        for name in unknown:
            self._take_unknown(writer, f"{folder}/{name}")

    def _take_runs(self, writer: BackupWriter, folder: str, names: set[str]) -> set[str]:
        """Those of them that are there still: in the place of one that was merged away another is, and is among them.

        A partition at rest that is opened meanwhile is taken again.
        """
        taken = set[str]()
        for name in sorted(names):
            with contextlib.suppress(FileMissing):
                writer.link(f"{folder}/{name}")
                taken.add(name)
        return taken
