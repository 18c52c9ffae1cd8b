"""What the data source reads from: a store's folder, with its object storage or without, or that alone.

    folder            a snapshot of each partition (`afterlog.log.snapshot`); with `remote` also of what is only there
    storage alone     a folder made of its manifest for as long as it takes (`afterlog.tier.restore`), and its snapshot

Of object storage alone, what is due is what was due when the last record that is there was appended: whatever has not
been uploaded was stamped later, and so is due later. What is in view grows with every segment that is uploaded. How
much is due by the clock, and not in view yet, is told.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path

from afterlog.base.clock import INT64_MAX, Clock
from afterlog.base.config import Config
from afterlog.base.errors import AfterlogError, TopicDeleted, UnknownTopic
from afterlog.base.files import Files, OsFiles, temporary_folder
from afterlog.base.names import partition_folder
from afterlog.fetch.partition import Partition
from afterlog.index.entries import Key
from afterlog.log.context import LogContext
from afterlog.log.scan import walk
from afterlog.log.segment import SealedSegment
from afterlog.log.snapshot import open_snapshot
from afterlog.log.topic_settings import TopicSettings
from afterlog.log.topics_document import read_topics
from afterlog.spark.options import ReadOptions
from afterlog.tier.remote_url import open_remote
from afterlog.tier.tiering import Tiering


class Readable:
    """`readable` makes it. One thread at a time."""

    def __init__(
        self, files: Files, clock: Clock, options: ReadOptions, tiering: Tiering | None, scratch: Path
    ) -> None:
        self._files = files
        self._clock = clock
        self._location = options.location
        self._topic = options.topic
        self._tiering = tiering
        self._scratch = scratch
        self.held_back: dict[int, int] = {}
        """Of object storage alone, by partition: records there that are due by the clock, and not in view."""

    def topics(self) -> dict[str, TopicSettings]:
        """All that there are. FileNotFoundError, CorruptFile; of object storage as `Tiering.topics`."""
        if self._location is not None:
            self._files.names(self._location)
            return dict(read_topics(self._files, self._location))
        assert self._tiering is not None, "there is a folder or object storage"
        return dict(self._tiering.topics())

    def of(self, topic: str) -> Readable:
        """The same of another topic."""
        other = copy(self)
        other._topic, other.held_back = topic, {}
        return other

    def settings(self) -> TopicSettings:
        """Of the topic. UnknownTopic, and as `topics`."""
        topics = self.topics()
        if self._topic not in topics:
            raise UnknownTopic(f"no topic {self._topic!r} in {self._location or 'object storage'}")
        return topics[self._topic]

    def check_same(self, settings: TopicSettings) -> None:
        """TopicDeleted where the topic is not there any more that had these, or another one has its name."""
        try:
            there = self.settings()
        except (UnknownTopic, FileNotFoundError):
            raise TopicDeleted(f"the topic {self._topic!r} was deleted, or its store was") from None
        if None not in (there.topic_id, settings.topic_id) and there.topic_id != settings.topic_id:
            raise TopicDeleted(f"the topic {self._topic!r} was deleted, and made again")

    def partition(
        self, number: int, settings: TopicSettings, *, at_ms: int | None, settle_ms: int | None = None
    ) -> Partition:
        """A snapshot of one partition (`open_snapshot`). CorruptFile, TopicDeleted, what the object storage raises."""
        try:
            return self._snapshot(number, settings, at_ms, settle_ms)
        except (AfterlogError, OSError):
            self.check_same(settings)  # what goes meanwhile reads as corrupt, or not there
            raise

    def _snapshot(self, number: int, settings: TopicSettings, at_ms: int | None, settle_ms: int | None) -> Partition:
        if self._location is not None:
            context = self._context(self._files, self._location, number, settings)
            log = open_snapshot(context, at_ms=at_ms, settle_ms=settle_ms)
        else:
            assert self._tiering is not None, "there is a folder or object storage"
            context = self._context(OsFiles(), self._scratch, number, settings)
            self._tiering.restore(context)
            log = open_snapshot(context, at_ms=0 if at_ms is None else at_ms)
            if at_ms is None:
                now_ms = self._clock.now_ms()
                log = open_snapshot(context, at_ms=min(last_stamp_ms(log.sealed), now_ms))
                if log.delayed:
                    due, shown = (log.index.rank(Key(ms, INT64_MAX)) for ms in (now_ms, log.frontier_ms))
                    self.held_back[number] = max(due - shown, 0)
        return Partition(self._topic, number, log)

    def _context(self, files: Files, folder: Path, number: int, settings: TopicSettings) -> LogContext:
        context = LogContext(
            files=files,
            folder=folder / partition_folder(self._topic, number),
            config=Config(),
            settings=settings,
            clock=self._clock,
            now_ms=self._clock.now_ms,
        )
        return (
            context if self._tiering is None else replace(context, remote=self._tiering.remote_log(context.folder.name))
        )


@contextlib.contextmanager
def readable(files: Files, clock: Clock, options: ReadOptions) -> Iterator[Readable]:
    """For as long as the block lasts. RemoteRefused, ImportError where the object storage cannot be opened."""
    if options.remote is None:
        yield Readable(files, clock, options, None, Path())
        return
    with temporary_folder() as scratch:
        remote = open_remote(options.remote, **options.remote_options)
        tiering = Tiering(remote, OsFiles(), scratch, Config(), clock, background=False)
        try:
            yield Readable(files, clock, options, tiering, scratch)
        finally:
            tiering.close()


def last_stamp_ms(sealed: Sequence[SealedSegment]) -> int:
    """When the last of these entries was appended; the end of time where entries do not say so, 0 without any."""
    if not sealed:
        return 0
    segment, stamp_ms = sealed[-1], -1
    start = segment.sparse.offsets.floor(segment.end_offset - 1)
    for found in walk(segment, start, segment.size, bodies=False):
        stamp_ms = max(stamp_ms, int(found.broker_timestamp.max()))
    return INT64_MAX if stamp_ms < 0 else stamp_ms
