"""Bugs to plant into the engine, one at a time: each is an order of writes, or a check, that looks as if it could go.

Where the crash explorer does not catch one of them it proves nothing about the others that may be there by themselves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from afterlog.base import document
from afterlog.base.errors import CorruptFile
from afterlog.base.files import TEMPORARY_SUFFIX, Data, Files
from afterlog.base.names import (
    BUCKETS,
    FRONTIER,
    LATER_TOPICS,
    LOG,
    UNIQUE_KEYS,
    Span,
    is_producer_file,
    segment_file,
)
from afterlog.index import buckets, merge
from afterlog.index.buckets import Buckets
from afterlog.index.cancel_index import Cancelled
from afterlog.index.entries import Entries, Key
from afterlog.index.key_rows import KeyRows
from afterlog.index.producer_states import facts
from afterlog.index.run import Run
from afterlog.index.unique_key_file import KeyFileMark, UniqueKeyFile
from afterlog.index.unique_keys import RecentKeys, to_merge
from afterlog.log import cleaning, producer_files, recovery, run_files, unique_key_files, unique_key_scan
from afterlog.log.append import Appender
from afterlog.log.checkpoints import CheckpointFile, Checkpoints, FrontierLease, SealedMark
from afterlog.log.cleaning import Cleaner
from afterlog.log.commit import Commit
from afterlog.log.log_clock import LogClock
from afterlog.log.maintenance import Maintenance
from afterlog.log.partition_log import PartitionLog
from afterlog.log.producer_files import ProducerFiles
from afterlog.log.scan import read, steps
from afterlog.log.segment import ActiveSegment
from afterlog.log.store_frontier import SharedLease, StoreFrontier
from afterlog.log.unique_appends import UniqueAppends
from afterlog.log.unique_key_files import UniqueKeyFiles, UnsavedKeys, opened_file
from afterlog.log.version import End, Version
from afterlog.records.control import Control, Controls, ControlType
from afterlog.records.encode import Batches
from afterlog.records.header import CONTROL
from afterlog.records.producer_sequence import ProducerRows, ProducerSequence
from afterlog.records.single import SingleRecord
from afterlog.store.cleanup import Cleanup
from afterlog.store.topics import OpenTopics
from afterlog.subscription.backlog import AckedByAll, Backlogs
from tests.campaigns.crashes import PATH, SCENARIOS, Scenario
from tests.campaigns.failing_files import FailingFiles
from tests.campaigns.simulated_disk import SimulatedFiles

NAMED = {scenario.name: scenario for scenario in SCENARIOS}
Planted = contextlib.AbstractContextManager[Any]


@dataclass(frozen=True, slots=True)
class Bug:
    """`wrap` plants it into the disk of the workload, `planted` into the engine. `kill`: seen after a kill only."""

    name: str
    scenario: Scenario
    wrap: Callable[[SimulatedFiles], Files] | None = None
    planted: Callable[[], Planted] = contextlib.nullcontext
    kill: bool = False


# In the calls to the disk: syncs that are left out.


def without(left_out: Callable[[str, Path], bool]) -> Callable[[SimulatedFiles], Files]:
    """A disk for an engine that leaves out the syncs that `left_out` says of."""

    def answer(operation: str, path: Path, _: int) -> int | None:
        return 0 if operation in ("sync", "sync_folder") and left_out(operation, path) else None

    return lambda files: FailingFiles(files, answer)


def after_rename() -> Callable[[SimulatedFiles], Files]:
    """No sync of the folder behind a rename."""
    last = [""]

    def answer(operation: str, path: Path, _: int) -> int | None:
        before, last[0] = last[0], operation
        return 0 if (before, operation) == ("rename", "sync_folder") else None

    return lambda files: FailingFiles(files, answer)


def rename_before_sync(files: Files, path: Path, data: Sequence[Data]) -> None:
    """`publish` with two lines swapped."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    with contextlib.suppress(FileNotFoundError):
        files.unlink(temporary)
    file = files.create(temporary)
    file.append(data)
    files.rename(temporary, path)
    file.sync()
    file.close()
    files.sync_folder(path.parent)


# In the engine.


def patched(owner: Any, name: str, function: Any) -> Callable[[], Planted]:
    return lambda: patch.object(owner, name, function)


def unchecked_steps(*arguments: Any, **settings: Any) -> Any:
    """A recovery that believes the length and looks at no CRC of the records."""
    return steps(*arguments, **settings, bodies=False)


def stamp_by_wall_clock(clock: LogClock, end_offset: int) -> int:
    clock._in_flight.append((clock._now_ms(), end_offset))
    return clock._now_ms()


def stamp_without_lease(clock: LogClock, now_ms: Any, frontier: Any, last_stamp_ms: int, *more: Any) -> None:
    ORIGINAL_CLOCK(clock, now_ms, frontier, last_stamp_ms, *more)
    clock._stamp_ms = last_stamp_ms


def own_alone(shared: StoreFrontier, partition: str, own: FrontierLease) -> FrontierLease:
    return own


def joined_at_the_open_alone(topics: OpenTopics) -> None:
    ORIGINAL_RECOVER(topics)
    topics.frontier._found = SharedLease()


def taken_back_first(log: PartitionLog) -> None:
    assert log.context.frontier is not None
    log.context.frontier.end(())
    ORIGINAL_CLOSE(log)


def uncut(active: ActiveSegment, scan: Any) -> int:
    active.sync()
    return 0


def unsynced(active: ActiveSegment, scan: Any) -> int:
    cut_bytes = active.size - scan.stop
    if cut_bytes:
        active.cut(scan.stop)
    return cut_bytes


def shown_unsynced(commit: Commit, *_: object) -> None:
    versions: Any = commit._of
    versions.show(versions.current)


def shown_at_once(appender: Appender, end: End, cancelled: Cancelled | None, due_ms: int) -> None:
    ORIGINAL_WROTE(appender, end, cancelled, due_ms)
    appender._versions.show(appender._versions.current)


def unlinks_first(checkpoints: CheckpointFile, **changes: Any) -> None:
    """Retention takes the files away before it is durable that they are gone."""
    if "log_start" in changes:
        for gone in set(checkpoints.current.sealed) - set(changes["sealed"]):
            checkpoints._files.unlink(checkpoints._path.parent / segment_file(gone.base_offset, LOG))
    ORIGINAL_UPDATE(checkpoints, **changes)


def cleaned_unlinks_first(checkpoints: CheckpointFile, **changes: Any) -> None:
    """A cleaning takes the files away that it has read before it is durable which it has written."""
    if "cleanings" in changes:
        for gone in set(checkpoints.current.sealed) - set(changes["sealed"]):
            checkpoints._files.unlink(checkpoints._path.parent / gone.file(LOG))
    ORIGINAL_UPDATE(checkpoints, **changes)


def cleaned_counts_by_offsets(checkpoints: CheckpointFile, **changes: Any) -> None:
    """A cleaning counts what it takes by the ends of segments."""
    if "cleanings" in changes:
        before = sum(mark.end_offset - mark.base_offset for mark in checkpoints.current.sealed)
        after = sum(mark.end_offset - mark.base_offset for mark in changes["sealed"])
        changes["removed_records"] = checkpoints.current.removed_records + before - after
    ORIGINAL_UPDATE(checkpoints, **changes)


def cleaned_unsynced(maintenance: Maintenance, *arguments: Any, **settings: Any) -> Any:
    """What a cancelled record held goes before the cancel is durable."""
    with patch.object(Commit, "sync", nothing):
        return ORIGINAL_CLEAN(maintenance, *arguments, **settings)


def without_controls(cleaner: Cleaner, *arguments: Any) -> Iterator[Any]:
    """A cleaning leaves control batches out: it takes what they cancelled for gone."""
    with patch.object(cleaning, "steps", steps_without_controls):
        yield from ORIGINAL_SURVIVORS(cleaner, *arguments)


def steps_without_controls(*arguments: Any, **settings: Any) -> Iterator[Any]:
    for step in steps(*arguments, **settings):
        due = np.where(step.found.attributes & CONTROL, -1, step.found.deliver_after)
        yield step._replace(found=step.found._replace(deliver_after=due))


def any_bucket(span: Span, known: Checkpoints) -> tuple[SealedMark, ...]:
    """A bucket is in use whatever was cleaned since."""
    return ORIGINAL_SEGMENTS_IN(span._replace(generation=1 << 60), known)


def acked_as_it_is(backlogs: Backlogs, log: PartitionLog, *, durable: bool = True) -> AckedByAll | None:
    """Acks count before they are durable."""
    acks: AckedByAll | None = ORIGINAL_ACKS(backlogs, log, durable=False)
    return acks


@contextlib.contextmanager
def evicting_anything() -> Iterator[None]:
    """The quota counts records, whenever they are due."""
    with (
        patch.object(Maintenance, "_retention_ms", lambda _: 1 << 60),
        patch.object(Cleanup, "_evicted", lambda *_: 1 << 60),
    ):
        yield


def deletes_sources_first(buckets: Buckets, sources: Sequence[Run], *more: Any, **settings: Any) -> Run:
    for run in sources:
        buckets.delete(run)
    return ORIGINAL_MERGE(buckets, sources, *more, **settings)


def deletes_sources_anyway(buckets: Buckets, sources: Sequence[Run], *more: Any, **settings: Any) -> Run:
    """Pulsar's bug: errors are values, and what follows the merge does not look at them (apache/pulsar#26239)."""
    try:
        return ORIGINAL_MERGE(buckets, sources, *more, **settings)
    except OSError:
        for run in sources:
            buckets.delete(run)
        raise


def merged_but_one(runs: Sequence[Run], *more: Any, **settings: Any) -> Iterator[Entries]:
    return merge.merged(runs[1:] if len(runs) > 1 else runs, *more, **settings)


def merged_from_the_log_start(runs: Sequence[Run], *more: Any, after: Key | None = None) -> Iterator[Entries]:
    """Off by a little: the entries right after the log start go, too."""
    return merge.merged(runs, *more, after=after and Key(after.deliver_after + 30, after.offset))


def cancelled_unsynced(log: PartitionLog, *arguments: Any) -> Any:
    with patch.object(log.commit, "committed", nothing):
        return ORIGINAL_CANCEL(log, *arguments)


def rescheduled_in_two(log: PartitionLog, offset: int, follower: Batches | SingleRecord, _: object = None) -> int:
    log.cancel(np.array([offset]))
    return log.append_one(follower) if isinstance(follower, SingleRecord) else log.append(follower)


def replaced_in_two(appends: UniqueAppends, offset: Any, due: Any, sent: Batches | SingleRecord) -> int:
    appends._appender.append_control(Control(ControlType.CANCEL, offset, due))
    return appends.append_one(sent) if isinstance(sent, SingleRecord) else appends.append(sent)


@contextlib.contextmanager
def keys_in_memory_only() -> Iterator[None]:
    """The checkpoints say that files tell of all, and what is in memory stays there and is in none."""
    original = UniqueKeyFiles.saved

    def saved(files: UniqueKeyFiles, unsaved: UnsavedKeys | None, end: int, stamp_ms: int) -> Any:
        return original(files, unsaved and UnsavedKeys((), unsaved.cancelled), end, stamp_ms)

    with (
        patch.object(UniqueKeyFiles, "saved", saved),
        patch.object(RecentKeys, "behind", lambda keys, offset: keys),
    ):
        yield


def answered_at_once(log: PartitionLog, record: SingleRecord, sent: ProducerSequence | None = None) -> int:
    """Who sends again is told where its record is, safe or not."""
    held = None if sent is None else log._sequenced._states().state(sent.producer_id)
    if sent is not None and held is not None and facts(held)[1] > sent.sequence:
        return log._sequenced.append_one(record, sent)
    return ORIGINAL_ONE(log, record, sent)


def noted_before_it_is_written(appender: Appender, record: SingleRecord, sent: ProducerSequence | None = None) -> int:
    version = appender._versions.current
    if sent is not None and version.producers is not None:
        version.producers.appended(sent.producer_id, sent.epoch, sent.sequence, 1, version.written.offset, 0)
    return ORIGINAL_APPEND_ONE(appender, record, sent)


def without_the_tail(*arguments: Any) -> Any:
    return producer_files.recovered_producers(*arguments[:-1], ProducerRows.empty())


def never_stored_anew(files: ProducerFiles, version: Version) -> Any:
    """The file that was made first is taken for good."""
    unsaved = ORIGINAL_UNSAVED(files, version)
    return unsaved and unsaved._replace(is_stored=unsaved.of.file is not None)


def sources_go_first(files: UniqueKeyFiles, *arguments: Any) -> int:
    """A merge that has its sources in memory before it begins, and on the disk no more."""
    mark, held = files._checkpoints.current.unique_keys, dict[KeyFileMark, UniqueKeyFile]()
    for each in to_merge(mark.files) if mark else ():
        with contextlib.suppress(CorruptFile):
            file = opened_file(files._context, each)
            file.rows()
            held[each] = file
            files._context.files.unlink(files._path(each))
    opened = patch.object(
        unique_key_files, "opened_file", lambda context, each: held.get(each) or opened_file(context, each)
    )
    with opened:
        return ORIGINAL_KEY_MERGE(files, *arguments)


def blind_to_cancels(*arguments: Any, **settings: Any) -> Any:
    return replace(read(*arguments, **settings), cancelled=Cancelled.empty())


@contextlib.contextmanager
def control_due_at_once() -> Iterator[None]:
    """A control batch that retention may take before its targets."""

    def batches(control: Control, stamp_ms: int) -> Batches:
        made = ORIGINAL_BATCHES(control, stamp_ms)
        return replace(made, deliver_after=np.zeros_like(made.deliver_after))

    with patch.object(Control, "is_one", property(lambda control: False)), patch.object(Control, "batches", batches):
        yield


@contextlib.contextmanager
def recovery_without_folder_sync() -> Iterator[None]:
    """A process that trusts names which another one, killed since, had no time to make durable."""
    original = SimulatedFiles.sync_folder
    recovering = [False]

    def recover(context: Any, *checkpoints: Any, **how: Any) -> Any:
        recovering[0] = True
        try:
            return original_recover(context, *checkpoints, **how)
        finally:
            recovering[0] = False

    original_recover = recovery.recover
    with (
        patch.object(recovery, "recover", recover),
        patch.object(
            SimulatedFiles,
            "sync_folder",
            lambda files, folder: None if recovering[0] else original(files, folder),
        ),
    ):
        yield


ORIGINAL_ACKS = Backlogs.acks
ORIGINAL_BATCHES = Control.batches
ORIGINAL_CANCEL = PartitionLog._cancel
ORIGINAL_CLOSE = PartitionLog.close
ORIGINAL_RECOVER = OpenTopics.recover
ORIGINAL_CLOCK = LogClock.__init__
ORIGINAL_KEY_MERGE = UniqueKeyFiles.merge
ORIGINAL_MERGE = Buckets.merge
ORIGINAL_UPDATE = CheckpointFile.update
ORIGINAL_APPEND_ONE = Appender.append_one
ORIGINAL_CLEAN = Maintenance.clean
ORIGINAL_SURVIVORS = Cleaner._survivors
ORIGINAL_SEGMENTS_IN = run_files._segments_in
ORIGINAL_ONE = PartitionLog.append_one
ORIGINAL_UNSAVED = ProducerFiles.unsaved
ORIGINAL_WROTE = Appender._wrote


def nothing(*_: object) -> None:
    return None


BUGS = (
    Bug("no sync of the log", NAMED["singles"], without(lambda operation, path: path.suffix == LOG)),
    Bug("no sync of a new position", NAMED["singles"], without(lambda operation, path: path.name == "position.tmp")),
    Bug("no sync of new checkpoints", NAMED["rolls"], without(lambda operation, path: path.name == "checkpoints.tmp")),
    Bug("no sync of the store's folder", NAMED["singles"], without(lambda operation, path: path == PATH)),
    Bug("no sync of a partition's folder", NAMED["rolls"], without(lambda operation, path: path.name == "mail-0")),
    Bug("no sync of the folder of groups", NAMED["singles"], without(lambda _, path: path.name == "subscriptions")),
    Bug("no sync of the folder behind a rename", NAMED["singles"], after_rename()),
    Bug("rename before sync", NAMED["singles"], planted=patched(document, "publish", rename_before_sync)),
    Bug("records' CRC not checked at recovery", NAMED["singles"], planted=patched(recovery, "steps", unchecked_steps)),
    Bug("lease not durable", NAMED["frontier"], planted=patched(PartitionLog, "lease", nothing)),
    Bug("stamps by the wall clock", NAMED["frontier"], planted=patched(LogClock, "stamp", stamp_by_wall_clock)),
    Bug("stamps below the lease after a crash", NAMED["frontier"],
        planted=patched(LogClock, "__init__", stamp_without_lease)),
    Bug("store's frontier not synced", NAMED["at rest"], without(lambda _, path: path.name == f"{FRONTIER}.tmp")),
    Bug("its name not synced", NAMED["at rest"], without(lambda _, path: path.name == LATER_TOPICS)),
    Bug("store's frontier not joined", NAMED["frontier"], planted=patched(StoreFrontier, "joined", own_alone)),
    Bug("store's frontier not joined at a first use", NAMED["at rest"],
        planted=patched(OpenTopics, "recover", joined_at_the_open_alone)),
    Bug("store's frontier taken back before the close", NAMED["at rest"],
        planted=patched(PartitionLog, "close", taken_back_first)),
    Bug("recovery does not sync", NAMED["singles"], planted=patched(recovery, "_cut_torn_tail", unsynced), kill=True),
    Bug("recovery does not sync the folder", NAMED["fifo"], planted=recovery_without_folder_sync, kill=True),
    Bug("torn tail not cut", NAMED["singles"], planted=patched(recovery, "_cut_torn_tail", uncut)),
    Bug("acknowledged before the sync", NAMED["singles"], planted=patched(Commit, "committed", shown_unsynced)),
    Bug("visible before the sync", NAMED["synced"], planted=patched(Appender, "_wrote", shown_at_once)),
    Bug("recovery point ahead of the log", NAMED["written"], planted=patched(Commit, "sync", shown_unsynced)),
    Bug("position ahead of the log", NAMED["written"], planted=patched(Commit, "make_delivered_durable", nothing)),
    Bug("no sync of the folder of buckets", NAMED["merges"], without(lambda _, path: path.name == BUCKETS)),
    Bug("sources of a merge deleted first", NAMED["merges"], planted=patched(Buckets, "merge", deletes_sources_first)),
    Bug("failed merge deletes its sources", NAMED["merges"], planted=patched(Buckets, "merge", deletes_sources_anyway)),
    Bug("a source left out of a merge", NAMED["merges"], planted=patched(buckets, "merged", merged_but_one)),
    Bug("too much left out of a merge", NAMED["merges"], planted=patched(buckets, "merged", merged_from_the_log_start)),
    Bug("cancelled before the sync", NAMED["cancels"], planted=patched(PartitionLog, "_cancel", cancelled_unsynced)),
    Bug("a reschedule in two appends", NAMED["cancels"],
        planted=patched(PartitionLog, "reschedule", rescheduled_in_two)),
    Bug("half a reschedule not cut", NAMED["cancels"], planted=patched(Controls, "unfollowed", lambda *_: False)),
    Bug("cancels in the tail not read", NAMED["cancels"], planted=patched(recovery, "read", blind_to_cancels)),
    Bug("cancel index not read", NAMED["cancels"],
        planted=patched(recovery, "load_cancelled", lambda *_: Cancelled.empty())),
    Bug("unique keys of the tail not read", NAMED["unique keys"],
        planted=patched(unique_key_scan, "rows_of_tail", lambda *_: KeyRows.empty())),
    Bug("unique keys not in the file", NAMED["unique keys"], planted=keys_in_memory_only),
    Bug("no sync of a file of unique keys", NAMED["unique keys"],
        without(lambda _, path: path.name.endswith(f"{UNIQUE_KEYS}.tmp"))),
    Bug("files of unique keys removed before they are merged", NAMED["unique keys"],
        planted=patched(UniqueKeyFiles, "merge", sources_go_first)),
    Bug("replaced in two appends", NAMED["unique keys"], planted=patched(UniqueAppends, "replace", replaced_in_two)),
    Bug("no sync of a file of producers", NAMED["numbered"],
        without(lambda _, path: is_producer_file(path.name.removesuffix(TEMPORARY_SUFFIX)))),
    Bug("producers of the tail not read", NAMED["numbered"],
        planted=patched(recovery, "recovered_producers", without_the_tail)),
    Bug("a file of producers that is not of the recovery point", NAMED["numbered in vain"],
        planted=patched(ProducerFiles, "unsaved", never_stored_anew)),
    Bug("a retry is answered before the first is durable", NAMED["numbered in vain"],
        planted=patched(PartitionLog, "append_one", answered_at_once)),
    Bug("a producer's state kept though the append failed", NAMED["numbered in vain"],
        planted=patched(Appender, "append_one", noted_before_it_is_written)),
    Bug("control batch due at once", NAMED["cancels go"], planted=control_due_at_once),
    Bug("an ack frees a segment before it is durable", NAMED["acked later"],
        planted=patched(Backlogs, "acks", acked_as_it_is)),
    Bug("a commit frees a segment before it is durable", NAMED["acked fifo"],
        planted=patched(Backlogs, "acks", acked_as_it_is), kill=True),
    Bug("a segment goes that a closed subscription has not acked", NAMED["acked"],
        planted=patched(Backlogs, "_of_closed", nothing)),
    Bug("eviction of what is pending", NAMED["evicted"], planted=evicting_anything),
    Bug("no sync of a cleaned log", NAMED["cleans"], without(lambda _, path: path.name.endswith(f".1{LOG}.tmp"))),
    Bug("a cleaning unlinks first", NAMED["cleans"],
        planted=patched(CheckpointFile, "update", cleaned_unlinks_first)),
    Bug("a cleaning counts by offsets", NAMED["cleans"],
        planted=patched(CheckpointFile, "update", cleaned_counts_by_offsets)),
    Bug("a cleaning without control batches", NAMED["cleans"],
        planted=patched(Cleaner, "_survivors", without_controls)),
    Bug("a bucket of before a cleaning in use", NAMED["cleans"],
        planted=patched(run_files, "_segments_in", any_bucket), kill=True),
    Bug("a cleaning takes what it was told to be cancelled too soon", NAMED["cleans written"],
        planted=patched(Maintenance, "clean", cleaned_unsynced)),
    Bug("retention unlinks first", NAMED["retention"], planted=patched(CheckpointFile, "update", unlinks_first)),
)  # fmt: skip
"""Left out, since they are no bugs here: no sync of the folder behind the files of a new segment (the checkpoints that
name it sync the same folder); a cleaning that begins before the log start is durable (its checkpoints say it, too)."""
