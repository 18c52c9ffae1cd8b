"""The log of one partition: append, roll, checkpoint, retention.

    append ──> stamp ──> write ──> index ──> swap: written ──> sync (shared) ──> swap: visible
               in flight ·················································┘

Locks, always taken in this order: that of letting go (what the readers have acked), the merge lock (one merge of runs
at a time), the checkpoint lock (one checkpoint at a time), the append lock (one writer: offsets, clock, write, indexes,
roll), the files lock (log/recovery_point.py), the sync lock (one fdatasync at a time), the lock of the versions (a few
pointers, no I/O; the only one that readers take).
A merge does its work without the append lock, and so does a checkpoint.

*Interruptions.* An exception may strike between any two instructions: Ctrl-C, a signal's handler, MemoryError. An
operation sets a dirty flag before it touches anything, and clears it after its swap. Whoever comes next and finds one
heals: the file is cut at the end that the version tells, and the log begins anew from what is on disk, as after a kill.
Nothing of an operation that did not reach its swap is believed; it may not have happened, or as a whole where its edit
was durable already.

Invariants (`check`):

1. log start <= recovery point <= log end; segments are dense in offsets, but for what retention removed whole.
2. The runs together with the mutable bucket hold every entry after the log start exactly once (delayed topics).
3. A run, a sparse index or a checkpoint is made durable only after the bytes of log that it speaks of.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from afterlog.base.errors import (
    AfterlogError,
    ClockBehind,
    InvalidDeliverAfter,
    InvalidRecord,
    InvalidTopic,
    NotPending,
    OutOfOrderSequence,
    PartitionPoisoned,
    ProducerFenced,
    ReadOnlyTopic,
    RecordTooLarge,
    StorageFull,
    StoreClosed,
)
from afterlog.index.acked_ranges import AckedRange
from afterlog.index.delayed_index import DelayedIndex
from afterlog.index.entries import Entries, Key
from afterlog.log.append import Appender
from afterlog.log.cancel_result import CancelResult
from afterlog.log.cancellation import Int8Array
from afterlog.log.checkpoints import CheckpointFile, LogStart, RemoteMark
from afterlog.log.cleaning import Cleaned
from afterlog.log.commit import Commit
from afterlog.log.context import LogContext
from afterlog.log.dirty_flag import DirtyFlag
from afterlog.log.held import HeldBytes
from afterlog.log.log_clock import LogClock
from afterlog.log.lookup import find_entries
from afterlog.log.maintenance import Maintenance
from afterlog.log.retention import Floor
from afterlog.log.segment import SealedSegment
from afterlog.log.topic_limits import TopicLimits
from afterlog.log.topic_settings import TopicSettings
from afterlog.log.version import Version, VersionSet
from afterlog.records.columns import Int64Array
from afterlog.records.control import OVERHEAD_BYTES, TARGET_BYTES, Control, ControlType
from afterlog.records.encode import Batches
from afterlog.records.producer_sequence import ProducerSequence
from afterlog.records.single import SingleRecord
from afterlog.records.times import AS_SOON_AS_POSSIBLE

if TYPE_CHECKING:
    from afterlog.log.replicated_appends import ReplicatedAppends
    from afterlog.log.sequenced_appends import NumberedAppend, Placed, PlacedOrError, SequencedAppends
    from afterlog.log.unique_appends import UniqueAppends

logger = logging.getLogger("afterlog.log")

_OF_ONE_RECORD = (InvalidRecord, RecordTooLarge, ProducerFenced, OutOfOrderSequence)
"""They say that a record cannot be taken, and nothing of the log."""
_NO_APPENDS = "nothing is appended to it; send to a topic of your own"


class RecoveredLog(NamedTuple):
    """What recovery found: everything that a `PartitionLog` starts from."""

    checkpoints: CheckpointFile
    version: Version
    last_stamp_ms: int
    cut_bytes: int
    """Length of the torn tail that was cut; 0 for none."""


FromVersion = TypeVar("FromVersion")
Sent = TypeVar("Sent")
Recover = Callable[[LogContext, CheckpointFile | None], RecoveredLog]
"""Makes of what is on disk what a log starts from. The checkpoints are read from their file, into those given."""


class PartitionLog:
    """One partition, open for appends. `recovery.open_log` makes it. Thread-safe."""

    def __init__(self, context: LogContext, recovered: RecoveredLog, recover: Recover | None = None) -> None:
        """recover: how to begin anew after an interruption; None for a log that is only read."""
        self.context = context
        self.checkpoints = recovered.checkpoints
        self.cut_bytes = recovered.cut_bytes
        self._config = context.config
        version = recovered.version
        frontier = recovered.checkpoints.current.frontier
        if context.frontier is not None and context.settings.delayed:
            frontier = context.frontier.joined(context.folder.name, frontier)
        used_ms = max(frontier.used_ms, version.log_start.deliver_after)  # what retention removed stays due
        self._clock = LogClock(context.now_ms, replace(frontier, used_ms=used_ms), recovered.last_stamp_ms)
        self.opened_upto = Key(used_ms, version.visible.offset - 1)
        """What was due by the durable frontier when the log was opened, where the first reader's delivery order begins.

        Not by the frontier of now, which retention may have moved meanwhile, without a lease.
        """
        self.versions = VersionSet(version, self._clock)
        self.commit = Commit(self.versions, context.folder, context.config.durability, PartitionPoisoned, context.clock)
        self._dirty = DirtyFlag()
        self._maintenance = Maintenance(
            context, self.checkpoints, self.versions, self.commit, self._clock, self._dirty.guard
        )
        self._appender = Appender(
            context, self.versions, self.commit, self._maintenance, self._dirty, weakref.WeakMethod(self.checkpoint)
        )
        self.letting_go = threading.RLock()
        """Held from where it is asked what the readers have acked until what that lets go is gone; and by a reader that
        is new, or goes back, until it counts as such. Taken before all other locks."""
        self.refused: Callable[[], None] | None = None
        """Raises where nothing may be appended for now, though the log could: its readers are too far behind."""
        self._limits = TopicLimits(context, self.checkpoints, self.versions)
        self.evicted_records = 0
        """That went since the log was opened, though somebody had not acked them."""
        self._sequenced_appends: SequencedAppends | None = None
        self._replicated_appends: ReplicatedAppends | None = None
        self._recover = recover
        self._append_lock = threading.Lock()
        self._merge_lock = threading.Lock()
        self._checkpoint_lock = threading.Lock()
        self._closing = False

    @property
    def delayed(self) -> bool:
        return self.context.settings.delayed

    @property
    def read_only(self) -> bool:
        """Whether its segments are a Kafka broker's: then nothing changes them, and every rank is final."""
        return self.context.settings.foreign

    # Versions.

    def pin(self) -> Version:
        """The version of now, for one look. Raises StoreClosed, StoreForked."""
        self.commit.owned()
        return self.versions.current

    def due_reading(self) -> tuple[int, Version]:
        """A reading of the log clock for one fetch, and the version at it. Raises ClockBehind, and as `pin` does."""
        self.commit.owned()
        if not self._append_lock.locked():  # what was interrupted holds readers back, until somebody looks after it
            if self._dirty.is_set:
                with self._append_lock, self.commit.poisoning():
                    self._mend()
            self.commit.sync_if_forsaken()
        return self.versions.due_reading()

    @property
    def version(self) -> Version:
        """The version of now, or the last one of a log that is closed."""
        return self.versions.current

    @property
    def index(self) -> DelayedIndex:
        return self.version.delayed_index

    @property
    def log_start(self) -> LogStart:
        """Where delivery order begins, as retention left it."""
        return self.version.log_start

    @property
    def log_start_offset(self) -> int:
        """Offset of the first record that is still in the log."""
        return self.version.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset after the last visible record: all below it is safe under the durability."""
        return self.versions.current.visible.offset

    @property
    def frontier_ms(self) -> int:
        """The largest reading of the log clock that decided "due" so far."""
        return self._clock.used_ms

    @property
    def opened_lease_ms(self) -> int:
        """No fetch used a larger reading before the log was opened."""
        return self._clock.opened_lease_ms

    @property
    def has_own_frontier(self) -> bool:
        """Whether its checkpoints say all of it, so that the store's says nothing more."""
        return not self.delayed or self.checkpoints.current.frontier == self._clock.frontier()

    def read_clock(self) -> None:
        """Move the frontier to what is due now, if the clock can be trusted. Nothing is delivered by that."""
        if self.delayed:
            with contextlib.suppress(ClockBehind):
                self.due_reading()

    def leases(self, reading_ms: int) -> bool:
        """Whether `lease` has nothing to write for it."""
        shared = self.context.frontier
        lease_ms = self.checkpoints.current.frontier.lease_ms
        return reading_ms <= (lease_ms if shared is None else max(lease_ms, shared.lease_ms))

    def lease(self, reading_ms: int) -> None:
        """Make the frontier durable as far as `reading_ms`, before anything is delivered by that reading."""
        if reading_ms > self.checkpoints.current.frontier.lease_ms:
            shared = self.context.frontier
            with self.commit.poisoning():
                if shared is not None:
                    shared.lease(self.context.folder.name, reading_ms)
                else:
                    self.checkpoints.move_frontier(reading_ms, reading_ms + self._config.frontier_lease_ms)

    @property
    def path(self) -> Path:
        """The partition's folder."""
        return self.context.folder

    @property
    def written(self) -> int:
        """The offset after the last record that is written, visible or not."""
        return self.versions.current.written.offset

    def find(self, offsets: Int64Array, version: Version) -> Entries:
        """The entries that hold `offsets`, one row for each in the order given; `records` is 0 where there is none.

        Offsets may come in any order and more than once. Raises CorruptFile.
        """
        found = find_entries(version.all_written(), offsets)
        if self.read_only:  # its index leaves out what readers may not see
            shown = [version.delayed_index.contains(offset) for offset in offsets.tolist()]
            found.records[~np.array(shown, np.bool_)] = 0
        return found

    # Operations.

    def append(self, batches: Batches) -> int:
        """Append whole batches, which `check_batches` has passed; the offset of the first record.

        Returns when they are safe under the durability. Raises StorageFull with nothing written of the segment that ran
        out of room; PartitionPoisoned when only a reopen can tell what is on disk; ReadOnlyTopic. Of batches that their
        producers have numbered those at the front that are there already are not appended again; also raises
        ProducerFenced, OutOfOrderSequence.
        """
        self._check_own(_NO_APPENDS)
        with self._append_lock, self._writing():
            if batches.producers is not None:
                first_offset = self._sequenced.append_foreign(batches)
            else:
                first_offset = self.versions.current.written.offset
                self._appender.append(batches)
            end_offset = self.versions.current.written.offset
        self.commit.committed(end_offset)
        return first_offset

    def append_one(self, record: SingleRecord, sent: ProducerSequence | None = None) -> int:
        """`append` of one record, for which `takes_one` is true; its offset.

        sent: which of its producer's it is; where it is there already it is not appended again. Then also raises
        ProducerFenced, OutOfOrderSequence.
        """
        self.check_asked(record.deliver_after)
        with self._append_lock:
            offset = self._write_one(record, sent)
        self.commit.committed(offset + 1)
        return offset

    def append_few(
        self, records: Sequence[SingleRecord], sent: Sequence[ProducerSequence | None]
    ) -> list[int | AfterlogError]:
        """Records for which `takes_one` is true, each by itself, in this order, with one sync for all of them.

        For each its offset, or its error as of `append_one` where that touches no other. Raises as `append_one` does
        where nobody can tell what came of them.
        """
        answers, end, full = list[int | AfterlogError](), 0, None
        with self._append_lock:
            for record, sequence in zip(records, sent, strict=True):
                try:
                    self.check_asked(record.deliver_after)
                except AfterlogError as error:
                    answers.append(error)
                    continue
                try:
                    answers.append(offset := self._write_one(record, sequence))
                    end = max(end, offset + 1)
                except StorageFull as error:
                    full = error
                    answers.append(error)
                except _OF_ONE_RECORD as error:  # a gap is what one before left that found no room
                    answers.append(full if full is not None and isinstance(error, OutOfOrderSequence) else error)
        self.commit.committed(end)
        return answers

    def _write_one(self, record: SingleRecord, sent: ProducerSequence | None) -> int:
        """Under the append lock."""
        self.commit.usable()
        try:
            if self._dirty.is_set:
                self._mend()
            if sent is None:
                return self._appender.append_one(record)
            return self._sequenced.append_one(record, sent)
        except OSError as error:
            self.commit.failed(error)

    # What producers have numbered.

    def append_numbered(self, append: NumberedAppend) -> Placed:
        """`append` of what of it is not there: where all of it is. Also raises ProducerFenced, OutOfOrderSequence."""
        self._check_own(_NO_APPENDS)
        with self._append_lock, self._writing():
            placed = self._sequenced.append(append)
        self.commit.committed(placed.end_offset)
        return placed

    def append_together(self, appends: Sequence[NumberedAppend]) -> list[PlacedOrError]:
        """Several appends in this order, with nothing in between, in one write and one sync: what came of each.

        Where they are, or ProducerFenced, OutOfOrderSequence, StorageFull. Raises as `append` does where nobody can
        tell.
        """
        self._check_own(_NO_APPENDS)
        with self._append_lock, self._writing():
            answers = self._sequenced.append_together(appends)
        self.commit.committed(max((one.end_offset for one in answers if not isinstance(one, AfterlogError)), default=0))
        return answers

    def held_of(self, sent: ProducerSequence, records: int) -> Placed:
        """Where the first records of an append are that are there, safe under the durability; nothing is appended.

        Raises ProducerFenced, OutOfOrderSequence, and as `append`.
        """
        with self._append_lock, self._writing():
            placed = self._sequenced.held(sent, records)
        self.commit.committed(placed.end_offset)
        return placed

    def next_sequence(self, producer_id: int, epoch: int) -> int:
        """What a producer appends next under an epoch. Raises ProducerFenced, and as `append`."""
        with self._append_lock, self._writing():
            return self._sequenced.next_sequence(producer_id, epoch)

    @property
    def _sequenced(self) -> SequencedAppends:
        """Made with the first use, of who needs it."""
        if self._sequenced_appends is None:
            from afterlog.log.sequenced_appends import SequencedAppends

            self._sequenced_appends = SequencedAppends(self.versions, self._appender)
        return self._sequenced_appends

    def replicate(self, append: Callable[[ReplicatedAppends], Sent]) -> Sent:
        """What `append` gives, which appends what another cluster has, with nobody in between.

        It is safe after `commit.committed(written)`. Raises as `append` does; StorageFull, with some of it appended.
        """
        self._check_own(_NO_APPENDS)
        with self._append_lock, self._writing():
            return append(self._replicated)

    def append_note(self, kind: ControlType, value: bytes) -> int:
        """Append a control batch without targets; its offset. It is safe after `commit.committed(written)`.

        Raises as `append` does.
        """
        self._check_own(_NO_APPENDS)
        with self._append_lock, self._writing():
            self._appender.append_control(Control.of_note(kind, value))
            return self.written - 1

    @property
    def _replicated(self) -> ReplicatedAppends:
        """Made with the first use, of who needs it."""
        if self._replicated_appends is None:
            from afterlog.log.replicated_appends import ReplicatedAppends

            self._replicated_appends = ReplicatedAppends(self.versions, self._appender)
        return self._replicated_appends

    def append_unique(self, send: Callable[[UniqueAppends], Sent]) -> Sent:
        """What `send` gives, which looks who holds some unique keys and appends, with nobody in between.

        All that it has seen or appended is safe under the durability then. Raises as `append` does; InvalidTopic where
        the topic can have no unique keys.
        """
        self._check_own(_NO_APPENDS)
        self.context.settings.check_unique_keys()
        from afterlog.log.unique_appends import UniqueAppends

        with self._append_lock, self._writing():
            appends = UniqueAppends(
                self.context, self.versions, self._appender, self._maintenance.unique_keys, self._maintenance.file_edit
            )
            sent = send(appends)
            end_offset = self.versions.current.written.offset
        self.commit.committed(end_offset)
        return sent

    def holder(self, key: bytes) -> int | None:
        """The append offset of the pending record that holds a unique key. Raises CorruptFile, InvalidTopic."""
        self.context.settings.check_unique_keys()
        if self.version.unique_keys is None:  # nobody ever sent one, and a look makes no files
            return None
        found = self.append_unique(lambda appends: appends.holders_of_one(key).offset)
        return int(found[0]) if len(found) else None

    def alter(self, settings: TopicSettings, interceptors: tuple[object, ...]) -> None:
        """The topic has other settings from now on: the next append, and no half of one."""
        with self._append_lock:
            self.context.alter(settings, interceptors)
        self.versions.notifier.notify()  # it may be paused no longer

    def takes_one(self, record: SingleRecord) -> bool:
        """Whether `append_one` can take it; else `append` does, or says why not."""
        return self._appender.takes_one and record.batch_bytes_max <= self._config.batch_bytes_max

    @contextlib.contextmanager
    def appending(self) -> Iterator[Callable[[Batches], None]]:
        """For appends that follow each other with nothing in between: all others wait until the block ends.

        The call that it gives appends batches that `check_batches` has passed, and raises as `append` does. They are
        safe after `commit.sync`.
        """
        self._check_own(_NO_APPENDS)
        with self._append_lock, self._writing():
            yield self._appender.append

    def cancel(self, offsets: Int64Array) -> Int8Array:
        """Cancel the pending among the records of these offsets, which differ: a `CancelResult` for each, int8[n].

        Returns when it is safe under the durability. Raises CorruptFile, PartitionPoisoned, and StorageFull, where what
        fitted into the control batches before stays cancelled; ReadOnlyTopic.
        """
        return self._cancel(ControlType.CANCEL, offsets, None)[0]

    def reschedule(self, offset: int, follower: Batches | SingleRecord, found: Entries | None = None) -> int:
        """Cancel a pending record and append another in its place, or neither; the offset of the other.

        follower: a record that it `takes_one`, or a batch. found: what `find` gave, of somebody who has asked. Raises
        NotPending with a `CancelResult` that says why, and as `append` and `cancel` do.
        """
        if isinstance(follower, SingleRecord):
            self.check_asked(follower.deliver_after)
        else:
            self.check_batches(follower)
        answers, end_offset = self._cancel(ControlType.RESCHEDULE, np.array([offset]), follower, found)
        answer = CancelResult(int(answers[0]))
        if answer is not CancelResult.CANCELLED:
            raise NotPending(f"the record of offset {offset} cannot be rescheduled: {answer.name}", answer=answer)
        return end_offset - 1

    def check_batches(self, batches: Batches) -> None:
        """Raises RecordTooLarge, and as `check_asked`, where they cannot be taken."""
        largest = int((batches.positions[1:] - batches.positions[:-1]).max(initial=0))
        if largest > self._config.batch_bytes_max:
            raise RecordTooLarge(
                f"a batch of {largest} bytes is larger than batch_bytes_max ({self._config.batch_bytes_max})"
            )
        self.check_asked(int(batches.deliver_after.max(initial=AS_SOON_AS_POSSIBLE)))

    def check_own(self) -> None:
        """Raises ReadOnlyTopic where the log is a Kafka broker's, and as `Commit.usable` does."""
        self._check_own(_NO_APPENDS)

    def check_asked(self, deliver_after: int) -> None:
        """Raises InvalidTopic, ReadOnlyTopic, InvalidDeliverAfter, BacklogQuotaExceeded, TopicFull or StorageFull where
        a record of this time cannot be taken.
        """
        settings = self.context.settings
        if settings.foreign:
            self._check_own(_NO_APPENDS)
        refused = self.refused  # which another thread may just be taking back
        if refused is not None:
            refused()
        self.context.room()
        if settings.max_pending is not None or settings.max_bytes is not None:
            self._limits.check(deliver_after)
        if deliver_after == AS_SOON_AS_POSSIBLE:
            return
        if not settings.delayed:
            raise InvalidTopic("the topic was made with delayed=False: send without delay or deliver_after")
        limit_ms = settings.max_delay_ms
        if limit_ms is not None and deliver_after > self.context.now_ms() + limit_ms:
            raise InvalidDeliverAfter(f"deliver_after {deliver_after} lies more than max_delay_ms ({limit_ms}) ahead")

    def _check_own(self, otherwise: str) -> None:
        """Raises ReadOnlyTopic where the log is a Kafka broker's, and as `Commit.usable` does, before any lock.

        otherwise: what is not done, and what to do.
        """
        self.commit.usable()
        if self.read_only:
            raise ReadOnlyTopic(f"{self.context.folder.name} is a Kafka broker's log, and only read: {otherwise}")

    @property
    def local_bytes(self) -> int:
        """Of its log, on the local disk."""
        return self._limits.held_bytes()

    @property
    def clamped_records(self) -> int:
        """Appended since the log was opened with another time than was asked for."""
        return self._appender.clamped_records

    def roll(self) -> None:
        """Seal the active segment and begin another. An empty one stays."""
        with self._append_lock, self._writing():
            if self.version.written.position:
                self._maintenance.roll()

    def checkpoint(self) -> None:
        """Move the recovery point to where the log ends now. Appends go on while files are written.

        Raises StorageFull with nothing changed.
        """
        point = self._maintenance.recovery_point
        with self._checkpoint_lock:
            with self._append_lock, self._writing():
                moment = point.begin()
            self.commit.sync()
            with self.commit.poisoning():
                stored = None if moment is None else point.store(moment)
            if stored is not None:
                with self._append_lock, self._writing():
                    self._maintenance.finish_checkpoint(stored)

    @property
    def late_checkpoints(self) -> int:
        """Made since the log was opened by an append that had to wait for it: the thread for them was behind."""
        return self._appender.late_checkpoints

    @property
    def behind(self) -> bool:
        """Whether anything was appended after the recovery point."""
        return self.written != self.checkpoints.current.recovery.offset

    def enforce_retention(self, floor: Floor | None = None) -> int:
        """Remove what the topic's retention says, and nothing that is pending; the number of segments removed.

        floor: what the subscriptions leave of it, where the topic's retention goes by them; else nothing goes there.
        Raises ReadOnlyTopic.
        """
        self._check_own("nothing is removed from it; remove the objects of the bucket where they are")
        self._read_far_ranks(floor)
        with self._append_lock, self._writing():
            return self._maintenance.enforce_retention(floor)

    def purge(self, upto: Key) -> int:
        """Put all up to this key out of reach, which is due, and remove the segments that hold nothing else.

        Of a FIFO log, where the key's offset counts, only whole segments go. The number of records out of reach for it.
        Raises ReadOnlyTopic, StorageFull.
        """
        self._check_own("nothing is removed from it; remove the objects of the bucket where they are")
        if self.delayed:
            self.pin().delayed_index.rank(upto)  # what is far away is read before the lock is held
        with self._append_lock, self._writing():
            return self._maintenance.purge(upto)

    @property
    def cleaned(self) -> Cleaned:
        """What was cleaned since the log was opened."""
        return self._maintenance.cleaned

    def weigh(self, beyond: Sequence[AckedRange] = ()) -> None:
        """Read what a cleaning has to know of segments in which something became due. Raises StoreClosed.

        beyond: ranges that all readers have acked, which `begin_cleaning` will be told.
        """
        self._maintenance.weigh(beyond, self._going_on)

    def rule_upto(self) -> int:
        """The last instant of which the topic's retention lets go all, were all of it acked; -1 of none.

        Raises ClockBehind.
        """
        return self._maintenance.rule_upto(self.due_reading()[0])

    def begin_cleaning(
        self, floor: Floor | None = None, beyond: Sequence[AckedRange] = (), *, thorough: bool = False
    ) -> None:
        """Move the log start as far as the topic's retention lets go, where that lets `clean` write something anew.

        floor: as of `enforce_retention`. beyond: ranges behind it that all readers have acked, and that go then, too.
        thorough: as of `clean`. Raises StorageFull.
        """
        key = self._maintenance.cleaning_key(floor, beyond, thorough=thorough)
        if key is not None:
            with self._append_lock, self._writing():
                self._maintenance.move_log_start(key, beyond)

    def clean(self, pause: Callable[[int], object] = lambda size: None, *, thorough: bool = False) -> Cleaned:
        """Write segments anew with what of them lies after the log start, until no more than twice that is held.

        Appends and fetches go on meanwhile. pause: called with the bytes that were just written. thorough: all of which
        a fifth or more lies before it. Where it raises StorageFull, StorageError or OSError, or StoreClosed because of
        a `close` meanwhile, the log is as before. While runs are merged nothing is cleaned, unless thoroughly: another
        time does, and a pass has more to do.
        """
        if self._merge_lock.locked() and not thorough:
            return Cleaned()
        with self._merge_lock:
            return self._maintenance.clean(self._append_lock, self._writing, self._going_on, pause, thorough=thorough)

    def held(self, floor: Floor | None = None) -> HeldBytes:
        """What holds the bytes of its logs on the local disk, by the rules by which they go, at this instant.

        floor: as of `enforce_retention`. Deletes nothing. Raises CorruptFile.
        """
        self.commit.owned()
        return self._maintenance.held(floor)

    def is_ripe(self, floor: Floor | None = None) -> bool:
        """Whether the active segment should be sealed: by its age, its size, or since retention could free it then.

        floor: as of `enforce_retention`. Raises CorruptFile.
        """
        return not self.read_only and self._maintenance.is_ripe(floor)

    def _read_far_ranks(self, floor: Floor | None) -> None:
        """What retention needs of runs far away is cached when the lock is held."""
        index = self.pin().delayed_index
        if self.delayed and any(run.remote for run in index.runs):
            for segment in self._maintenance.expired(floor):
                index.rank(Key(segment.mark.max_deliver_after, segment.end_offset - 1))

    @property
    def sealed(self) -> tuple[SealedSegment, ...]:
        """The sealed segments, in offset order."""
        return self.version.sealed

    def uploaded(self, remote: Mapping[int, RemoteMark | None]) -> None:
        """Note where the sealed segments of these base offsets lie in object storage; None: nowhere any more.

        Their copies there were verified. What is in the folder stays there. A segment that is not is left as it is.
        """
        with self._append_lock, self._writing():
            self._maintenance.uploaded(remote)

    @property
    def removals(self) -> tuple[str, ...]:
        """Attempts of segments that retention removed, and nobody reads any more: they may go from object storage."""
        held = self._maintenance.obsolete.held()
        return tuple(attempt for attempt in self.checkpoints.current.removals if attempt not in held)

    def removed(self, attempts: Collection[str]) -> None:
        """Note that segments which retention removed are not in object storage any more, under these attempts."""
        with self._append_lock, self._writing():
            self._maintenance.removed(attempts)

    def enforce_local_retention(self, ask: Callable[[], Collection[str]]) -> int:
        """Remove the local files that the topic's local retention lets go, of segments that are due as a whole.

        `ask`: which attempts to upload object storage lists; what is not among them stays. Called where something would
        go, just before it does. The number of segments that were removed: from now on they are read from there.
        """
        listed = ask() if self._maintenance.expired_here() else ()
        with self._append_lock, self._writing():
            return self._maintenance.enforce_local_retention(listed)

    @property
    def crowded(self) -> bool:
        """Whether there may be something for `merge_buckets` to do."""
        return self._maintenance.crowded

    def merge_buckets(self) -> int:
        """Merge runs until there are no more than `max_num_buckets` of sealed segments, nor of the active one.

        The number of merges. Appends and fetches go on meanwhile. Where it raises StorageFull, CorruptFile or OSError,
        or StoreClosed because of a `close` meanwhile, the log is as good as before: nothing is gone that has no copy.
        """
        with self._merge_lock:
            return self._maintenance.merge_buckets(self._append_lock, self._writing, self._going_on)

    def while_still(self, look: Callable[[Version], FromVersion]) -> FromVersion:
        """What `look` makes of its folder, while nothing in it is changed but for files that nobody needs any more.

        Appends wait meanwhile, and readers do not. Raises as `append` does, and whatever `look` does.
        """
        with self._append_lock:
            with self._writing():
                pass  # what was interrupted is mended; what `look` fails at is not this log's disk
            with self._maintenance.recovery_point.files_lock:
                return look(self.version)

    def close(self) -> None:
        """Move the recovery point to the end, and the lease back to what was used. A poisoned log is only let go, and
        one whose deletion was interrupted.

        Where there is no room for that, everything is durable all the same, and the next one to open it recovers.
        """
        self._closing = True
        with self._merge_lock, self._append_lock, self.commit.poisoning():
            if self.commit.closed:
                return
            try:
                if not (self.commit.poisoned or self.commit.deleted):
                    self._mend()
                    try:
                        self._maintenance.merge_parts()
                        self._maintenance.checkpoint()
                        self.checkpoints.update(frontier=self._clock.frontier())
                    except StorageFull as error:
                        self.commit.sync()
                        logger.warning("%s: closed without a checkpoint: %s", self.context.folder, error)
            finally:
                self.let_go()

    def delete(self) -> None:
        """Close it for good, as it is: its topic is being deleted, and who has it still gets TopicDeleted."""
        self._closing = True
        with self._merge_lock, self._append_lock:
            self.commit.deleted = True
            self.let_go()

    def let_go(self) -> None:
        """Close it as it is: what is not durable yet is left to the next one who opens it."""
        with self._maintenance.recovery_point.files_lock:  # nothing is written into the folder any more
            self.commit.close()
        self.version.active.close()
        self.versions.notifier.notify()

    def check(self) -> None:
        """Prove the invariants, those of the versions and the index too."""
        self.commit.owned()
        with self._append_lock:
            self._mend()
            self.versions.check()
            self._maintenance.check()

    # Interruptions.

    def halt(self, error: BaseException) -> None:
        """Within `appending`: nothing may come after what was appended so far, until a reopen has looked."""
        try:
            self._mend()
        finally:
            self.commit.poison(error)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """For the one writer. What was interrupted before is mended first. Raises as `commit.usable` does.

        Within the append lock, and not around it: Python sees to it that a lock's own block ends, whatever strikes.
        """
        self.commit.usable()
        try:
            if self._dirty.is_set:
                self._mend()
            yield
        except OSError as error:
            self.commit.failed(error)

    def _mend(self) -> None:
        """Where an operation was interrupted: cut what it wrote, and begin anew from what is on disk."""
        if not self._dirty.is_set or self._recover is None or self.commit.poisoned:
            return
        logger.warning("%s: an operation was interrupted; beginning anew from what is on disk", self.path)
        with self._maintenance.recovery_point.files_lock, self.commit.sync_lock:
            before = self.version
            before.active.rollback(before.written.position)
            recovered = self._recover(self.context, self.checkpoints)
            given, left = before.written.offset, recovered.version.written.offset
            if left != given:
                self.commit.poison(RuntimeError(f"offsets up to {given} were given, up to {left} are left"))
                self.commit.usable()
            self.versions.begin_anew(recovered.version)
            self._dirty.is_set = False

    def _going_on(self) -> None:
        """For a merge: raises where the log cannot be written or is to be closed."""
        self.commit.usable()
        if self._closing:
            raise StoreClosed("the store is being closed; a merge of runs is given up, and begins anew another time")

    # Cancel.

    def _cancel(
        self,
        kind: ControlType,
        offsets: Int64Array,
        follower: Batches | SingleRecord | None,
        found: Entries | None = None,
    ) -> tuple[Int8Array, int]:
        """What came of each, and the end of the log behind it."""
        self._check_own("nothing in it is cancelled or given another time; have its producer send it anew")
        found = self.find(offsets, self.pin()) if found is None else found
        targets_max = max((self._config.batch_bytes_max - OVERHEAD_BYTES) // TARGET_BYTES, 1)
        with self._append_lock, self._writing():
            cancellations, log_start = self.version.cancellations, self.log_start.key
            answers = cancellations.answers(found, offsets, log_start, self.context.now_ms())
            pending = np.flatnonzero(answers == CancelResult.CANCELLED)
            for first in range(0, len(pending), targets_max):
                rows = pending[first : first + targets_max]
                stamp_ms = self._appender.append_control(
                    Control(kind, offsets[rows], found.deliver_after[rows], follower)
                )
                answers[rows[found.deliver_after[rows] <= stamp_ms]] = CancelResult.ALREADY_DELIVERED
            end_offset = self.written
        self.commit.committed(end_offset)
        return answers, end_offset
