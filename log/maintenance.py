"""The edits of a partition besides appends: checkpoints, rolls, merges of runs, retention, cleanings.

    appends ──> active ──┬── checkpoint: bucket sealed into a run, sparse indexes saved (log/recovery_point.py)
                         └── roll: sealed, one run for all of it ──> sealed ──> retention: gone
                                                     runs of either ──> merges, in the background

Each of these is an edit: files are made durable, then the checkpoints that speak of them, then one swap of the version
makes it true in memory, and only then does what no version names any more go. Whatever interrupts an edit leaves the
version as it was, and on disk what a kill there would have left.

*Obsolete* is a file that no version names any more: it is deleted when the last version that names it is released.
Whoever reads holds the version that it reads, and so the segments in it; Python counts who does. A run needs none of
this: it is mapped when it is opened, so its name may go at once, and its bytes go with whoever has it open. What waits
here when the process ends is removed by recovery, which knows from the checkpoints what is in use.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from weakref import ref

from afterlog.base.clock import INT64_MAX
from afterlog.base.errors import ClockBehind, StorageFull
from afterlog.base.files import Files
from afterlog.base.names import CANCEL_INDEX
from afterlog.index import buckets
from afterlog.index.acked_ranges import AckedRange, AckedRanges
from afterlog.index.buckets import Buckets
from afterlog.index.delayed_index import DelayedIndex
from afterlog.index.entries import Key
from afterlog.index.run import Run
from afterlog.log import retention
from afterlog.log.broker_time import first_appended_ms, last_stamp_ms
from afterlog.log.checkpoints import CheckpointFile, RemoteMark, SealedMark
from afterlog.log.cleaning import Cleaned, Cleaner, Guard
from afterlog.log.commit import Commit
from afterlog.log.context import LogContext
from afterlog.log.held import HeldBytes, held_bytes
from afterlog.log.log_clock import LogClock
from afterlog.log.origin_files import OriginFiles, check_origins
from afterlog.log.producer_files import ProducerFiles, check_producers
from afterlog.log.recovery_point import RecoveryPoint, Stored
from afterlog.log.retention import ANYTHING, Floor, LetsGo, Rule, by_rule_alone, nothing_goes
from afterlog.log.segment import ActiveSegment, Loaded, SealedSegment
from afterlog.log.side_tables import SideTables
from afterlog.log.unique_key_files import UniqueKeyFiles, check_unique_keys
from afterlog.log.version import End, Version, VersionSet

logger = logging.getLogger("afterlog.log")


class _Waiting(NamedTuple):
    files: ref[Loaded]
    attempt: str | None
    """To upload it, where what that left in object storage goes, too."""
    paths: tuple[Path, ...]
    log_bytes: int
    """On the local disk."""


class Obsolete:
    """Of one partition. The log adds and sweeps under its append lock; any thread may ask `held`."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._waiting: tuple[_Waiting, ...] = ()

    def add(self, segment: SealedSegment, paths: Iterable[Path], attempt: str | None = None) -> None:
        """These files of the segment, in this order, once nobody holds it."""
        log_bytes = segment.size if segment.is_local() else 0
        self._waiting += (_Waiting(ref(segment.loaded), attempt, tuple(paths), log_bytes),)

    @property
    def log_bytes(self) -> int:
        """Of the logs that wait: somebody reads them, or did until the last sweep."""
        return sum(each.log_bytes for each in self._waiting)

    def held(self) -> set[str]:
        """The attempts that somebody may still read."""
        return {each.attempt for each in self._waiting if each.attempt is not None and each.files() is not None}

    def sweep(self) -> bool:
        """Remove what nobody holds any more; whether there was anything."""
        going = [each for each in self._waiting if each.files() is None]
        for each in going:
            for path in each.paths:
                with contextlib.suppress(FileNotFoundError):
                    self._files.unlink(path)
        self._waiting = tuple(each for each in self._waiting if each not in going)
        return bool(going)


class Maintenance:
    """The edits of one partition. Its log calls all but `merge_buckets` under the append lock."""

    def __init__(
        self,
        context: LogContext,
        checkpoints: CheckpointFile,
        versions: VersionSet,
        commit: Commit,
        clock: LogClock,
        marked: Guard,
    ) -> None:
        """marked: a block that changes files, and ends after its swap."""
        self.obsolete = Obsolete(context.files)
        self._buckets = Buckets(context.bucket_storage(mending=True), max_num_buckets=context.config.max_num_buckets)
        self.unique_keys = UniqueKeyFiles(context, checkpoints, versions)
        producers, origins = (table(context, checkpoints, versions) for table in (ProducerFiles, OriginFiles))
        self._tables = SideTables(self.unique_keys, producers, origins)
        self.recovery_point = RecoveryPoint(
            self._buckets, checkpoints, versions, commit, clock, context.config, self._tables
        )
        self._checkpoints = checkpoints
        self._versions = versions
        self._commit = commit
        self._clock = clock
        self._marked = marked
        self._context = context
        self._files = context.files
        self._delayed = context.settings.delayed
        self._cleaner = Cleaner(context, checkpoints, versions, self._buckets, self.file_edit, self._let_go)
        self._began = (-1, 0)
        """Of which active segment is known when it began, and when."""

    # Checkpoints and rolls.

    def checkpoint(self) -> None:
        """Move the recovery point to the end of the log, in one go."""
        self._commit.sync()
        with self.recovery_point.files_lock:  # another may just be storing one
            moment = self.recovery_point.begin()
            if moment is not None:
                with self._marked():
                    stored = self.recovery_point.store(moment)
                    assert stored is not None, "nothing came between"
                    self.finish_checkpoint(stored)

    def finish_checkpoint(self, stored: Stored) -> None:
        """Of a move of the recovery point in steps, the last one."""
        self.recovery_point.finish(stored)
        self._merge_when_crowded()

    def roll(self) -> None:
        """Seal the active segment, which is not empty, and begin another."""
        self._commit.sync()
        with self.recovery_point.files_lock, self._marked():
            version = self._versions.current
            index, last_due_ms = self._sealed_index(version)
            stamp_ms = self._sealed_ms(version)
            folder, interval_bytes = self._context.folder, self._context.config.index_interval_bytes
            beginning = End(version.written.offset, 0)
            with self._undone(version.delayed_index, index):
                mark = version.active.seal(version.written.offset, last_due_ms, stamp_ms)
                active = ActiveSegment.create(self._files, folder, beginning.offset, interval_bytes)
                recovery = self.recovery_point.at(active, beginning)
                told = self._tables.saved(self._tables.unsaved(version), recovery.offset, recovery.stamp_ms)
                self._checkpoints.update(
                    sealed=(*self._checkpoints.current.sealed, mark), active=active.mark, recovery=recovery, **told
                )
            loaded = version.active.loaded
            segment = SealedSegment(self._files, folder, mark, interval_bytes, self._context.remote, loaded)
            sealed = (*version.sealed, segment)
            self._versions.swap(
                version, sealed=sealed, active=active, delayed_index=index, written=beginning, visible=beginning
            )
            self._buckets.delete_replaced(version.delayed_index, index)
            self._tables.reconcile()
        del version, segment, sealed, loaded  # what retention removes goes at once, where nobody else holds it
        if not self._context.settings.remote_storage_enable:  # there it may have to read what is far away
            self.enforce_retention()
        self._merge_when_crowded()
        self._context.sealed()

    def _sealed_index(self, version: Version) -> tuple[DelayedIndex, int]:
        """The index when the active segment is sealed, and when the last of that is due.

        Where a thread merges runs the segment keeps those that it has: to make one of them takes a second for a GiB.
        """
        index = version.delayed_index
        if not self._delayed:
            return index, 0
        is_left = self._context.checkpoint_queue is not None and len(index.active_runs) > 0
        seal = self._buckets.seal_parts if is_left else self._buckets.seal_segment
        sealed = seal(index, *version.written)
        first = version.active.base_offset
        runs = (run for run in sealed.runs if run.coverage.first_offset >= first)
        return sealed, max(run.last_key.deliver_after for run in runs)

    @contextlib.contextmanager
    def _undone(self, before: DelayedIndex, index: DelayedIndex) -> Iterator[None]:
        """Where there is no room to make an index true in the block, what was stored for it goes."""
        try:
            yield
        except StorageFull:
            self._buckets.delete_replaced(index, before)
            raise

    def _swap_index(self, since: Version, index: DelayedIndex) -> None:
        """Another index from now on, made of that of a version; the runs that it does not have go."""
        self._versions.swap(since, delayed_index=index)
        self._buckets.delete_replaced(since.delayed_index, index)

    # Merges.

    @property
    def in_parts(self) -> bool:
        """Whether a sealed segment has more than one run still."""
        return bool(buckets.in_parts(self._versions.current.delayed_index))

    @property
    def crowded(self) -> bool:
        """Whether there may be something for `merge_buckets` to do."""
        return self._buckets.crowded(self._versions.current.delayed_index) or self.unique_keys.crowded

    def merge_buckets(self, lock: threading.Lock, writing: Guard, proceed: Callable[[], object]) -> int:
        """Merge runs until no group has more than it should; the number of merges.

        `lock`, `writing`: of the writer.

        `proceed` is called again and again, and raises where the merge should end.
        """
        count = self.unique_keys.merge(lock, writing, self.file_edit, self._commit.sync, proceed)
        while True:
            proceed()
            with lock, writing():
                version = self._versions.current
                log_start, generation = version.log_start.key, self._checkpoints.current.cleanings
                index = buckets.without(version.delayed_index, log_start)
                if index is not version.delayed_index:
                    with self._marked():
                        self._swap_index(version, index)
                parts, sealed, active = buckets.in_parts(index), index.sealed_runs, index.active_runs
            del version
            if parts:
                sources: Sequence[Run] = parts[0]
                after: Key | None = None
            elif sources := self._buckets.to_merge(sealed):
                after = log_start
            elif sources := self._buckets.to_merge(active):
                after = None
            else:
                return count
            with self._context.operations.merge.measured(self._context.clock):
                run = (
                    self._buckets.merge_parts(sources, proceed)
                    if parts
                    else self._buckets.merge(sources, after=after, generation=generation, proceed=proceed)
                )
                with lock, writing():
                    version = self._versions.current
                    index = version.delayed_index
                    there = set(sources) <= set(index.runs)  # else a roll or retention took some meanwhile
                    if there:
                        self._versions.swap(version, delayed_index=index.replacing(sources, [run]))
                    del version
                for obsolete in sources if there else [run]:
                    self._buckets.delete(obsolete)
                count += there

    def merge_parts(self) -> None:
        """Give each sealed segment one run, before the log is closed. What fails is left to the next open."""
        for parts in buckets.in_parts(self._versions.current.delayed_index):
            with contextlib.suppress(StorageFull), self._marked():
                run = self._buckets.merge_parts(parts)
                version = self._versions.current
                self._swap_index(version, version.delayed_index.replacing(parts, [run]))

    @contextlib.contextmanager
    def file_edit(self) -> Iterator[None]:
        """A block that changes files of which the checkpoints tell, too."""
        with self.recovery_point.files_lock, self._marked():
            yield

    def _merge_when_crowded(self) -> None:
        if self.crowded:
            self._context.on_merge_needed()

    # Retention.

    def enforce_retention(self, floor: Floor | None = None) -> int:
        """Remove what the topic's retention says, and nothing that is pending; the number of segments removed.

        floor: of the subscriptions, where the topic's retention asks for it; without it nothing of such a topic goes.
        """
        count = self._retain(floor)
        self.sweep()
        if count:
            self._context.sealed()
        return count

    def _retain(self, floor: Floor | None) -> int:
        self._bound_times()
        removed = self.expired(floor)
        if removed:
            self._remove(removed)
        return len(removed)

    def purge(self, upto: Key) -> int:
        """Put all up to a key, which is due, out of reach; how many records were not before."""
        self._commit.sync()  # a log start speaks of what is durable alone
        version = self._versions.current
        before = version.log_start.delivery_offset if self._delayed else version.log_start_offset
        if version.written.position and self._ends_before(version, upto):
            self.roll()  # which lets go what the retention says, too
            version = self._versions.current
        if self._delayed:
            removed = [segment for segment in version.sealed if segment.mark.last_key <= upto]
        else:
            removed = [segment for segment in version.sealed if segment.end_offset <= upto.offset + 1]
        del version
        if removed or (self._delayed and upto > self._versions.current.log_start.key):
            self._remove(removed, upto)
        count = len(removed)
        del removed  # so that it goes at once, where nobody else holds it
        self.sweep()
        if count:
            self._context.sealed()
        version = self._versions.current
        return (version.log_start.delivery_offset if self._delayed else version.log_start_offset) - before

    # Cleaning.

    @property
    def cleaned(self) -> Cleaned:
        """What was cleaned since the log was opened."""
        return self._cleaner.done

    def weigh(self, beyond: Sequence[AckedRange], proceed: Callable[[], object]) -> None:
        """As of `Cleaner`, without a lock; of a log of which nothing ever goes nothing is read.

        beyond: ranges that all readers have acked, besides those that are out of reach already.
        """
        version = self._versions.current
        ever_goes = self._context.settings.has_retention or version.log_start.delivery_offset or version.hidden.count
        if self._delayed and ever_goes:
            self._cleaner.weigh(_with_ranges(version, beyond), proceed)

    def cleaning_key(self, floor: Floor | None, beyond: Sequence[AckedRange], *, thorough: bool) -> Key | None:
        """Up to where the log start has to move, so that something can be cleaned; None: nothing is to be. No lock.

        By the topic's retention, and no further than the readers leave it: floor, as of `enforce_retention`. Where it
        need not move it stays, if there are ranges beyond it, as of `weigh`.
        """
        if not self._delayed or not self._context.settings.has_retention or self._holds_all(floor):
            return None
        try:
            now_ms, version = self._versions.due_reading()
        except ClockBehind:
            return None
        last = version.visible.offset - 1  # what is appended from now on may be due at this very instant
        if not self._cleaner.is_due(Key(now_ms, last), thorough=thorough):
            return None
        key = max(Key(self._lets_go_upto(version, floor, now_ms), last), version.log_start.key)
        is_more = key > version.log_start.key or len(beyond) > 0
        return key if is_more and self._cleaner.is_due(key, thorough=thorough) else None

    def _holds_all(self, floor: Floor | None) -> bool:
        """Whether nothing goes, since nobody has ever read, and retention goes by who has."""
        return floor is None and self._context.settings.retention_by_subscriptions

    def _lets_go_upto(self, version: Version, floor: Floor | None, now_ms: int) -> int:
        """The last instant of which retention lets go all that became due by then; -1 of none."""
        settings, index, upto_ms = self._context.settings, version.delayed_index, self.rule_upto(now_ms)
        if settings.retention_by_subscriptions:
            assert floor is not None, "else nothing goes"
            begin_ms = version.log_start.deliver_after - 1  # of the instant itself a part may be left
            upto_ms = min(upto_ms, _last_before(index, floor.acked, begin_ms, now_ms))
            if floor.evicted:
                upto_ms = max(upto_ms, _last_before(index, floor.evicted, begin_ms, now_ms))
        return min(upto_ms, now_ms)

    def rule_upto(self, now_ms: int) -> int:
        """The same by the rule alone, whatever the readers leave. No lock."""
        settings = self._context.settings
        upto_ms = now_ms if settings.lets_go_at_once else -1
        if settings.retention_ms is not None:
            upto_ms = max(upto_ms, now_ms - settings.retention_ms)
        if settings.retention_bytes is not None:
            upto_ms = max(upto_ms, self._cleaner.ms_leaving(settings.retention_bytes, now_ms))
        return upto_ms

    def move_log_start(self, upto: Key, beyond: Sequence[AckedRange] = ()) -> None:
        """Put all up to a key out of reach, which retention lets go, and ranges that all readers have acked; segments
        that hold nothing else go, too.
        """
        self._commit.sync()  # a log start speaks of what is durable alone
        version = self._versions.current
        acked = _with_ranges(version, beyond)
        if acked is not version.delayed_index.acked:
            self._put_out_of_reach(version, acked)
            version = self._versions.current
        if upto > version.log_start.key:
            self._remove([segment for segment in version.sealed if segment.mark.last_key <= upto], upto)

    def _put_out_of_reach(self, version: Version, acked: AckedRanges) -> None:
        """Ranges that are due, and are so for good, whatever crashes. What is cached of them is as of a cleaning."""
        used_ms = self._clock.used_ms
        generation = self._checkpoints.current.cleanings + 1
        with self._marked():
            self._checkpoints.move_frontier(used_ms, used_ms, acked=acked.rows, cleanings=generation)
            index = version.delayed_index.replacing([], [], cleanings=generation, acked=acked)
            self._versions.swap(version, delayed_index=index)

    def clean(
        self,
        lock: threading.Lock,
        writing: Guard,
        proceed: Callable[[], object],
        pause: Callable[[int], object],
        *,
        thorough: bool,
    ) -> Cleaned:
        """As of `Cleaner`."""
        if not self._delayed:
            return Cleaned()
        hidden = self._cleaner.blankable(self._versions.current.hidden)
        if hidden.count:
            self._commit.sync()  # what a power cut takes the cancel of is to be delivered as it was
        done = self._cleaner.clean(lock, writing, proceed, pause, hidden, thorough=thorough)
        with lock, writing():
            self.sweep()
        return done

    def _let_go(self, segment: SealedSegment) -> None:
        self.obsolete.add(segment, retention.files_of(segment))

    def _ends_before(self, version: Version, upto: Key) -> bool:
        """Whether the active segment holds nothing after a key."""
        if not self._delayed:
            return version.written.offset <= upto.offset + 1
        bucket = version.delayed_index.bucket
        return bucket.records_up_to(upto) == bucket.records and all(
            run.last_key <= upto for run in version.delayed_index.active_runs
        )

    def _remove(self, removed: Sequence[SealedSegment], upto: Key | None = None) -> None:
        """Take segments out of the log, and what lies up to a key, too."""
        version = self._versions.current
        changes = retention.checkpoints_without(removed, self._checkpoints.current, version.delayed_index, upto)
        with self._marked():
            self._checkpoints.update(**changes)
            log_start = self._checkpoints.current.log_start
            index = buckets.without(version.delayed_index, log_start.key)
            acked = index.acked.behind(log_start.key)
            if acked is not index.acked:
                index = index.replacing([], [], acked=acked)
            sealed = tuple(each for each in version.sealed if each not in removed)
            self._versions.swap(version, sealed=sealed, delayed_index=index, log_start=log_start)
            self._buckets.delete_replaced(version.delayed_index, index)
            for segment in removed:
                remote = segment.mark.remote
                self.obsolete.add(segment, retention.files_of(segment), None if remote is None else remote.attempt)

    def sweep(self) -> None:
        """Remove the files that nobody reads any more."""
        if self.obsolete.sweep():
            self._files.sync_folder(self._context.folder)

    def expired(self, floor: Floor | None = None) -> list[SealedSegment]:
        """The segments that the topic's retention lets go now. floor: as of `enforce_retention`."""
        settings, version = self._context.settings, self._versions.current
        rule, at_once = Rule(settings.retention_ms, settings.retention_bytes), settings.lets_go_at_once
        return self._removable(version.sealed, rule, self._lets_go(version, floor), at_once=at_once)

    def held(self, floor: Floor | None = None) -> HeldBytes:
        """What holds the bytes of the log, by the rules by which it goes. floor: as of `enforce_retention`."""
        version = self._versions.current
        try:
            due_ms = self._retention_ms()
        except ClockBehind:  # then nothing goes, and it is seen that it could
            due_ms = self._versions.frontier_ms
        start = version.log_start.key
        if self._delayed and self._context.settings.has_retention and not self._holds_all(floor):
            start = max(start, Key(self._lets_go_upto(version, floor, due_ms), version.visible.offset - 1))
        dead = self._cleaner.dead_bytes(version, start) if self._delayed else {}
        return held_bytes(
            [segment.mark for segment in version.sealed],
            version.written.position,
            self._context.settings,
            due_ms,
            self._lets_go(version, floor),
            pinned_bytes=self.obsolete.log_bytes,
            dead_bytes=lambda mark: dead.get(mark.base_offset, 0),
        )

    def _lets_go(self, version: Version, floor: Floor | None) -> LetsGo:
        """What the subscriptions leave of a version, where the topic's retention goes by them."""
        if not self._context.settings.retention_by_subscriptions:
            return by_rule_alone
        if floor is None:
            return nothing_goes
        index, delayed = version.delayed_index, self._delayed
        return lambda mark, by_rule: floor.lets_go(index.rank(mark.last_key) if delayed else mark.end_offset, by_rule)

    def _removable(
        self,
        segments: Sequence[SealedSegment],
        rule: Rule,
        lets_go: LetsGo = by_rule_alone,
        *,
        at_once: bool = False,
    ) -> list[SealedSegment]:
        """Those that a rule lets go, by a reading of the clock; none while the clock cannot be trusted."""
        if lets_go is nothing_goes or (lets_go is by_rule_alone and rule == ANYTHING):
            return []
        try:
            now_ms = self._retention_ms()
        except ClockBehind:
            return []
        return retention.removable(
            segments,
            self._versions.current.written.position,
            rule,
            now_ms,
            delayed=self._delayed,
            lets_go=lets_go,
            at_once=at_once,
        )

    def _sealed_ms(self, version: Version) -> int:
        """When the last entry of a FIFO topic's active segment was appended; now, where that one does not say so, and a
        record tells of later; -1 where the records are believed, and in a delayed topic.
        """
        if self._delayed:
            return -1
        stamp_ms, told_ms = last_stamp_ms(version.active, version.written), version.active.sparse.latest[0]
        if stamp_ms < 0 and told_ms > self._clock.last_stamp_ms:
            now_ms = self._versions.stamp_reading()
            return now_ms if told_ms > now_ms else -1
        return stamp_ms

    def _bound_times(self) -> None:
        """Sealed segments of a FIFO topic whose records tell of times to come were appended by now: from now on that is
        what counts. Such were sealed by versions that believed any record.
        """
        if self._delayed or self._context.settings.foreign:
            return
        sealed, known_ms = self._versions.current.sealed, self._clock.last_stamp_ms
        if all(segment.mark.counted_from_ms <= known_ms for segment in sealed):
            return
        now_ms = self._versions.stamp_reading()
        marks = {
            segment.base_offset: replace(segment.mark, last_stamp_ms=now_ms)
            for segment in sealed
            if segment.mark.counted_from_ms > now_ms
        }
        if marks:
            logger.warning(
                "%s: %d sealed segments have records that tell of times to come; retention counts from now instead",
                self._context.folder, len(marks),
            )  # fmt: skip
            with self._marked():
                self._mark(marks)

    def _retention_ms(self) -> int:
        """What retention counts back from: for a delayed topic what is due, for a FIFO one the clock."""
        return self._versions.due_reading()[0] if self._delayed else self._context.now_ms()

    # Sealing what retention could free, or a reader elsewhere could see.

    def is_ripe(self, floor: Floor | None = None) -> bool:
        """Whether the active segment is to be sealed, for its age, its size, or since retention could free all of it.

        floor: as of `enforce_retention`. Raises CorruptFile.
        """
        version, settings = self._versions.current, self._context.settings
        if not version.written.position:
            return False
        age_ms, share_bytes = settings.segment_age_ms, settings.segment_share_bytes
        if share_bytes is not None and version.written.position >= share_bytes:
            return True
        if age_ms is not None and self._began_ms(version) <= self._context.now_ms() - age_ms:
            return True
        kept_ms = settings.retention_ms
        if settings.retention_by_subscriptions:
            if floor is None:
                return False
            kept_ms = 0 if kept_ms is None and settings.retention_bytes is None else kept_ms
        if kept_ms is None:
            return False
        try:
            until_ms = self._retention_ms() - kept_ms
        except ClockBehind:
            return False
        if not self._delayed:
            return self._last_ms(version) <= until_ms and (floor is None or floor.lets_go(version.written.offset, True))
        key = Key(until_ms, INT64_MAX)
        is_due = self._ends_before(version, key)
        return is_due and (floor is None or floor.lets_go(version.delayed_index.rank(key), True))

    def _began_ms(self, version: Version) -> int:
        """When the first entry of the active segment was appended, as far as it says so."""
        base_offset, began_ms = self._began
        if base_offset != version.active.base_offset:
            began_ms = min(first_appended_ms(version.active, version.written), self._clock.last_stamp_ms)
            self._began = version.active.base_offset, began_ms
        return began_ms

    def _last_ms(self, version: Version) -> int:
        """What retention counts from in the active segment of a FIFO topic, as in a sealed one."""
        stamp_ms = last_stamp_ms(version.active, version.written)
        return min(version.active.sparse.latest[0], self._clock.last_stamp_ms) if stamp_ms < 0 else stamp_ms

    # Object storage.

    def uploaded(self, remote: Mapping[int, RemoteMark | None]) -> None:
        """Note where the segments of these base offsets lie in object storage; None: nowhere any more.

        What is in the folder stays there. A segment that is gone meanwhile is left out.
        """
        with self._marked():
            self._mark({
                segment.base_offset: replace(segment.mark, remote=remote[segment.base_offset])
                for segment in self._versions.current.sealed
                if segment.base_offset in remote and segment.is_local()
            })  # fmt: skip

    def removed(self, attempts: Collection[str]) -> None:
        """Note that these are not in object storage any more."""
        known = self._checkpoints.current
        removals, replaced = (
            tuple(attempt for attempt in noted if attempt not in attempts) for noted in (known.removals, known.replaced)
        )
        with self._marked():
            self._checkpoints.update(removals=removals, replaced=replaced)

    def expired_here(self) -> list[SealedSegment]:
        """The uploaded segments whose local files the topic's local retention lets go now: due as a whole."""
        settings = self._context.settings
        sealed = self._versions.current.sealed
        held = [segment for segment in sealed if segment.is_local() and segment.mark.remote is not None]
        return self._removable(held, Rule(settings.local_retention_ms, settings.local_retention_bytes))

    def enforce_local_retention(self, listed: Collection[str]) -> int:
        """Remove these local files, of segments whose attempt is among `listed`. The number of segments."""
        count = self._retain_locally(listed)
        self._let_runs_go()
        self.sweep()
        return count

    def _retain_locally(self, listed: Collection[str]) -> int:
        gone = [
            segment
            for segment in self.expired_here()
            if segment.mark.remote is not None and segment.mark.remote.attempt in listed
        ]
        if gone:  # what is only in object storage is due for good, whatever crashes
            with self._marked():
                self._mark({each.base_offset: _not_here(each.mark) for each in gone}, used_ms=self._clock.used_ms)
                for segment in gone:
                    self.obsolete.add(segment, retention.files_of(segment, kept=[CANCEL_INDEX]))
        return len(gone)

    def _mark(self, marks: Mapping[int, SealedMark], *, used_ms: int = 0) -> None:
        """Change the marks of the sealed segments of these base offsets, durably first, and with them the frontier."""
        rows = tuple(marks.get(mark.base_offset, mark) for mark in self._checkpoints.current.sealed)
        self._checkpoints.move_frontier(used_ms, used_ms, sealed=rows)
        version = self._versions.current
        sealed = tuple(
            each.marked(marks[each.base_offset]) if each.base_offset in marks else each for each in version.sealed
        )
        self._versions.swap(version, sealed=sealed)

    def _let_runs_go(self) -> None:
        """Read the runs of segments that are not in the folder from object storage, and delete what holds no others."""
        if not self._delayed:
            return
        version = self._versions.current
        log_start = version.log_start.key
        in_parts = {run for parts in buckets.in_parts(version.delayed_index) for run in parts}
        for run in version.delayed_index.sealed_runs:
            first, end = run.coverage.first_offset, run.coverage.end_offset
            covered = [segment for segment in version.sealed if first <= segment.base_offset < end]
            if run in in_parts:
                continue
            if not run.remote and covered and not any(segment.is_local() for segment in covered):
                far = [segment.remote_copy().run() for segment in covered]
                with self._marked():
                    version = self._versions.current
                    kept = [each for each in far if each.last_key > log_start]
                    self._swap_index(version, version.delayed_index.replacing([run], kept))

    def check(self) -> None:
        """Prove that segments are dense but for what was removed, and that the index holds all after the log start."""
        version, known = self._versions.current, self._checkpoints.current
        buckets.check(version.delayed_index)
        if version.unique_keys is not None:
            check_unique_keys(version, known, self._context.config.decompressed_bytes_max, self._clock.last_stamp_ms)
        if version.producers is not None:
            check_producers(version, known, self._clock.last_stamp_ms - self._context.config.producer_id_expiration_ms)
        if version.origins is not None:
            check_origins(version)
        end, index = version.written, version.delayed_index
        assert version.active.size == end.position
        assert known.recovery.offset <= end.offset
        assert known.log_start == version.log_start
        assert known.sealed == tuple(segment.mark for segment in version.sealed)
        assert (known.active.base_offset, known.recovery.segment) == (version.active.base_offset,) * 2
        version.cancellations.check(version.log_start.key)
        bases = [segment.base_offset for segment in version.segments]
        ends = [*(segment.end_offset for segment in version.sealed), end.offset]
        assert all(base <= behind for base, behind in zip(bases, ends, strict=True))
        assert all(behind <= base for behind, base in zip(ends, bases[1:], strict=False))
        if self._delayed:
            held = sum(segment.mark.records for segment in version.sealed) + end.offset - bases[-1]
            assert end.offset == held + known.removed_records
            assert end.offset == index.records + index.removed_records
            assert known.log_start.delivery_offset == index.rank(known.log_start.key)
            assert known.acked == index.acked.rows == index.acked.behind(known.log_start.key).rows


def _with_ranges(version: Version, beyond: Sequence[AckedRange]) -> AckedRanges:
    """Those that are out of reach, and others, as far as they lie behind the log start as a whole."""
    acked, start = version.delayed_index.acked, version.log_start.delivery_offset
    more = [row for row in beyond if row.first >= start]
    return acked.including(more) if more else acked


def _last_before(index: DelayedIndex, rank: int, begin_ms: int, end_ms: int) -> int:
    """The last instant from one to another by which no more than so many records are due."""
    low, high = begin_ms, end_ms
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if index.rank(Key(middle, INT64_MAX)) <= rank else (low, middle - 1)
    return low


def _not_here(mark: SealedMark) -> SealedMark:
    """The mark of a segment whose local files go."""
    assert mark.remote is not None, "its copy is listed"
    return replace(mark, remote=replace(mark.remote, local=False))
