"""A store's folder that is locked but not opened: what `afterlog verify` and `afterlog repair` work on.

Opening recovers, and refuses what is corrupt; here the folder is looked at as it lies. The parts are checked where they
are known: partitions by `afterlog.offline.verify` and `afterlog.offline.repair`, journals of subscriptions by
`afterlog.offline.journals`, committed positions and topics here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from afterlog.base.clock import Clock
from afterlog.base.config import Config
from afterlog.base.errors import CorruptFile, RemoteError, StorageError, UnknownTopic
from afterlog.base.files import Files, map_file, opened
from afterlog.base.kept_config import kept_settings
from afterlog.base.names import (
    CHECKPOINTS,
    LOCK,
    SUBSCRIPTIONS,
    TOPICS,
    parse_partition_folder,
    partition_folder,
    position_file,
    position_files,
    subscription_folder,
)
from afterlog.fetch.group import GroupPosition
from afterlog.log.checkpoints import CheckpointFile, SealedMark
from afterlog.log.context import LogContext
from afterlog.log.log_clock import BEHIND_MS_MAX
from afterlog.log.remote_copy import NO_REMOTE_LOG, RemoteLog
from afterlog.log.scan import Advance, logs_in, steps, unheard
from afterlog.log.store_frontier import SharedLease, frontier_path, read_frontier, write_frontier
from afterlog.log.topic_settings import FOREIGN, TopicSettings
from afterlog.log.topics_document import is_store, legible_topics, write_topics
from afterlog.offline import journals
from afterlog.offline.repair import apply, plan
from afterlog.offline.repair_plan import ListedMarks, RepairPlan
from afterlog.offline.verify import CLOCK, REPAIR, Finding, checkpoint_fault, log_end, verify
from afterlog.store.schedule_journal import journal_damages
from afterlog.subscription.journal import numbers
from afterlog.subscription.stats import subscription_names
from afterlog.tier.manifest import Manifest
from afterlog.tier.remote_store import RemoteStore
from afterlog.tier.restore import mark_in
from afterlog.tier.tiering import Tiering

ASIDE = ".corrupt"
COPY = "restore it from a copy"
SCHEDULE_REMEDY = "open the store and pause a schedule, which writes both journals anew, if one of them serves"


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionChange:
    """What becomes of a group's committed position. None: the file is put aside, and the group begins anew."""

    folder: Path
    group: str
    position: int | None
    damage: CorruptFile | None = None
    """Of one of its two files, where the position itself may stay."""

    def __str__(self) -> str:
        if self.damage is not None:
            return f"{self.damage.path}: {self.damage.message}: written anew, delivery offset {self.position}"
        path = position_file(self.folder, self.group)
        if self.position is None:
            return f"{path}: unreadable: put aside as {path.name}{ASIDE}; the group begins anew and sees records again"
        return f"{path}: outside the log: set to delivery offset {self.position}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalsAside:
    """What becomes of a subscription whose journal cannot be read: it begins anew."""

    journals: tuple[Path, ...]
    fault: CorruptFile

    def __str__(self) -> str:
        path = self.fault.path
        aside = f"put aside as {path.name}{ASIDE}; the subscription begins anew and sees records again"
        return f"{path}: {self.fault.message}: {aside}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierChange:
    """What becomes of the frontier that the partitions share."""

    path: Path
    reason: str
    content: SharedLease

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.reason}. Given up: promise D2 for positions beyond it: records may sort in front of "
            "what was delivered, and are then skipped"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePlan:
    """What repair would do to a store, in order."""

    topics: dict[str, TopicSettings] | None
    """To be written with those that can be read; None: all can."""
    partitions: tuple[RepairPlan, ...]
    positions: tuple[PositionChange, ...]
    subscriptions: tuple[JournalsAside, ...]
    frontier: FrontierChange | None
    beyond_repair: tuple[StorageError, ...]

    @property
    def steps(self) -> list[str]:
        """What is done and what is given up, a line each."""
        steps = [step for partition in self.partitions for step in partition.steps]
        steps += [str(change) for change in (*self.positions, *self.subscriptions)]
        if self.frontier is not None:
            steps.append(str(self.frontier))
        if self.topics is not None:
            named = ", ".join(f"{name} ({_kind(settings)})" for name, settings in self.topics.items())
            given_up = f"{named}. Given up: max_delay_ms and retention settings"
            steps.append(f"topics: made anew from the folders: {given_up if named else 'none; no other held records'}")
        return steps


class OfflineStore:
    """Holds the store's lock from the start to `close`. Raises StoreLocked, FileNotFoundError."""

    def __init__(self, path: Path, files: Files, clock: Clock, remote: RemoteStore | None = None) -> None:
        """`remote`: what `plan` may ask for segments that are broken here; nothing is asked before that."""
        self.path = path
        self._files = files
        self._clock = clock
        if not is_store(files, path):
            raise FileNotFoundError(f"there is no store in {path}")
        self._lock = files.lock(path / LOCK)
        self._tiering: Tiering | None = None
        self._topics_error: CorruptFile | None = None
        try:
            if remote is not None:
                self._tiering = Tiering(remote, files, path, Config(), clock, background=False)
            self._legible, faults = legible_topics(files, path)
            self._guessed: dict[str, TopicSettings] = {}
            if faults or not files.exists(path / TOPICS):
                found = _found_topics(files, path)
                self._guessed = {name: settings for name, settings in found.items() if name not in self._legible}
            if self._guessed and not faults:
                faults.append(CorruptFile("the document is gone, and there are records", path=path / TOPICS))
            self._topics_error = faults[0] if faults else None
            self._topics = self._legible | self._guessed
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> OfflineStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._tiering is not None:
            self._tiering.close()
        self._lock.release()

    def log_bytes(self, topic: str | None = None) -> int:
        """What `verify` has to read of logs."""
        total = 0
        for context in self._contexts(topic):
            with contextlib.suppress(FileNotFoundError):
                for path in logs_in(self._files, context.folder).values():
                    with opened(self._files, path) as file:
                        total += file.size()
        return total

    def only_remote(self, topic: str | None = None) -> tuple[int, int]:
        """(segments, bytes of log) that are in object storage and not here, so that `verify` cannot tell of them."""
        marks = [
            mark for context in self._contexts(topic) for mark in _sealed(self._files, context.folder) if not mark.local
        ]
        return len(marks), sum(mark.log_bytes for mark in marks)

    def verify(self, topic: str | None = None, advance: Advance = unheard) -> Iterator[Finding]:
        """Everything that is wrong in the store, or in one topic. Raises UnknownTopic."""
        contexts = self._contexts(topic)
        if self._topics_error is not None:
            yield Finding.of(self._topics_error, REPAIR)
        try:
            kept_settings(self._files, self.path)
        except CorruptFile as rotten:
            yield Finding.of(rotten, "`afterlog config --reset` keeps other settings; no log is touched")
        yield from self._verify_frontier()
        for error in journal_damages(self._files, self.path):
            yield Finding.of(error, SCHEDULE_REMEDY)
        for context in contexts:
            if not self._files.exists(context.folder):
                yield Finding(path=context.folder, message="the partition is gone", remedy=COPY)
                continue
            yield from verify(self._files, context.folder, context.settings.delayed, self._clock.now_ms(), advance)
            yield from self._verify_readers(context)

    def plan(self, *, put_clock_back: bool = False) -> StorePlan:
        """What would make the store whole."""
        plans: list[RepairPlan] = []
        positions: list[PositionChange] = []
        subscriptions: list[JournalsAside] = []
        beyond_repair: list[StorageError] = []
        for context in self._contexts(None):
            try:
                if not self._files.exists(context.folder):
                    raise CorruptFile(f"the partition is gone: {COPY}", path=context.folder)
                made = plan(context, put_clock_back=put_clock_back, listed=self._listed(context))
            except (CorruptFile, RemoteError) as error:
                beyond_repair.append(error)
                continue
            plans.append(made)
            positions += self._position_changes(context.folder, made.log_start if made.steps else 0, made.end_offset)
            subscriptions += self._journals_aside(context, made.end_offset)
        return StorePlan(
            topics=None if self._topics_error is None else self._guessed,
            partitions=tuple(plans),
            positions=tuple(positions),
            subscriptions=tuple(subscriptions),
            frontier=self._frontier_change(put_clock_back),
            beyond_repair=tuple(beyond_repair),
        )

    def apply(self, store_plan: StorePlan) -> None:
        """Do what the plan says."""
        for made in store_plan.partitions:
            if made.steps:
                apply(made)
        for change in store_plan.positions:
            if change.position is None:
                for path in position_files(change.folder, change.group):
                    if self._files.exists(path):
                        self._put_aside(path)
            else:
                GroupPosition(self._files, change.folder, change.group).commit(change.position)
        for unreadable in store_plan.subscriptions:
            for path in unreadable.journals:
                self._put_aside(path)
        if store_plan.frontier is not None:  # after the partitions: until then it holds for all of them
            write_frontier(self._files, self.path, store_plan.frontier.content)
        if store_plan.topics is not None:
            write_topics(self._files, self.path, dict(sorted((self._legible | store_plan.topics).items())))

    def _verify_frontier(self) -> Iterator[Finding]:
        path, now_ms = frontier_path(self.path), self._clock.now_ms()
        try:
            lease_ms = read_frontier(self._files, self.path).lease_ms
        except CorruptFile as error:
            yield Finding.of(error, REPAIR)
            return
        if lease_ms - now_ms > BEHIND_MS_MAX:
            message = f"the store's frontier, {lease_ms} ms, lies over an hour ahead of the wall clock, {now_ms} ms"
            yield Finding(path=path, message=message, remedy=CLOCK)

    def _frontier_change(self, put_clock_back: bool) -> FrontierChange | None:
        path, now_ms = frontier_path(self.path), self._clock.now_ms()
        try:
            known = read_frontier(self._files, self.path)
        except CorruptFile as error:
            reason = f"{error.message}: the store's frontier becomes the wall clock"
            return FrontierChange(path=path, reason=reason, content=SharedLease(lease_ms=now_ms))
        content = known.put_back(now_ms)
        if not put_clock_back or content == known:
            return None
        ahead_ms = max([known.lease_ms, *known.used_ms.values()]) - now_ms
        reason = f"the store's frontier, {ahead_ms} ms ahead of the wall clock, is put back to it"
        return FrontierChange(path=path, reason=reason, content=content)

    def _contexts(self, topic: str | None) -> list[LogContext]:
        if topic is not None and topic not in self._topics:
            raise UnknownTopic(f"no topic {topic!r} here")
        return [
            LogContext(
                files=self._files,
                folder=self.path / partition_folder(name, number),
                config=Config(),
                settings=settings,
                clock=self._clock,
                now_ms=self._clock.now_ms,
                remote=self._remote_log(name, number, settings),
            )
            for name, settings in sorted(self._topics.items())
            if topic in (None, name)
            for number in range(settings.partitions)
        ]

    def _remote_log(self, name: str, number: int, settings: TopicSettings) -> RemoteLog:
        if self._tiering is None or not settings.remote_storage_enable:
            return NO_REMOTE_LOG
        return self._tiering.remote_log(partition_folder(name, number))

    def _listed(self, context: LogContext) -> ListedMarks | None:
        """How to ask object storage for the segments of a partition."""
        if self._tiering is None or not context.settings.remote_storage_enable:
            return None
        manifest = Manifest(self._tiering.remote, context.folder.name)
        return lambda: [mark_in(context, row) for row in manifest.listed()]

    def _put_aside(self, path: Path) -> None:
        self._files.rename(path, path.with_name(path.name + ASIDE))
        self._files.sync_folder(path.parent)

    def _groups(self, folder: Path) -> list[str]:
        """Consumer groups, and folders of nobody; a subscription has no position."""
        subscriptions = folder / SUBSCRIPTIONS
        names = self._files.names(subscriptions) if self._files.exists(subscriptions) else []
        return [
            name for name in names
            if any(map(self._files.exists, position_files(folder, name)))
            or not numbers(self._files, subscription_folder(folder, name))
        ]  # fmt: skip

    def _verify_readers(self, context: LogContext) -> Iterator[Finding]:
        try:
            known = CheckpointFile.open(self._files, context.folder / CHECKPOINTS).current
            if checkpoint_fault(self._files, context.folder, known):
                return
        except CorruptFile:
            return  # a finding already
        end = log_end(self._files, context.folder, known)
        for change in self._position_changes(context.folder, 0, end):
            if change.damage is not None:
                yield Finding.of(change.damage, "the other copy serves; the group's next commit writes both")
                continue
            message = "an unreadable position" if change.position is None else f"a position beyond the log end, {end}"
            yield Finding(path=position_file(context.folder, change.group), message=message, remedy=REPAIR)
        for aside in self._journals_aside(context, end):
            yield Finding.of(aside.fault, REPAIR)
        for name in subscription_names(context):
            with contextlib.suppress(CorruptFile):  # told above
                if cut := journals.torn(context, name, end):
                    message = f"its last {cut} bytes are torn, or speak of records that are gone"
                    path = journals.journals(context, name)[-1]
                    yield Finding(path=path, message=message, remedy="the subscription's next opening cuts them")
                if count := journals.hidden(context, name, end):
                    message = f"{count} records that it has not acked are cancelled, or markers, which nobody is given"
                    path = journals.journals(context, name)[-1]
                    yield Finding(
                        path=path, message=message, remedy="the subscription's next receive is done with them"
                    )

    def _journals_aside(self, context: LogContext, end: int) -> Iterator[JournalsAside]:
        """Subscriptions that cannot be opened on a log of this end."""
        for name in subscription_names(context):
            fault = journals.fault(context, name, end)
            if fault is not None:
                yield JournalsAside(journals=tuple(journals.journals(context, name)), fault=fault)

    def _position_changes(self, folder: Path, log_start: int, end: int) -> list[PositionChange]:
        """Positions that a log of these ends cannot serve."""
        changes = []
        for group in self._groups(folder):
            try:
                known = GroupPosition(self._files, folder, group)
            except CorruptFile:
                changes.append(PositionChange(folder=folder, group=group, position=None))
                continue
            committed = known.committed
            if committed is not None and not log_start <= committed <= end:
                changes.append(PositionChange(folder=folder, group=group, position=min(max(committed, log_start), end)))
            elif known.damage is not None:
                changes.append(PositionChange(folder=folder, group=group, position=committed, damage=known.damage))
        return changes


def _found_topics(files: Files, path: Path) -> dict[str, TopicSettings]:
    """Topics as their folders tell them: partitions that hold records, delayed or not by these; tiered if one is."""
    found: dict[str, TopicSettings] = {}
    for name in files.names(path):
        parsed = parse_partition_folder(name)
        sealed = () if parsed is None else _sealed(files, path / name)
        due_ms = None if parsed is None else _first_due(files, path / name)
        if parsed is None or (due_ms is None and not sealed):
            continue
        topic, number = parsed
        before = found.get(topic, TopicSettings(partitions=1, delayed=False))
        if any(mark.remote is not None and mark.remote.records is not None for mark in sealed):
            found[topic] = replace(FOREIGN, partitions=max(before.partitions, number + 1))
            continue
        delayed = due_ms is not None and due_ms >= 0
        found[topic] = TopicSettings(
            partitions=max(before.partitions, number + 1),
            delayed=before.delayed or delayed or any(mark.max_deliver_after > 0 for mark in sealed),
            remote_storage_enable=before.remote_storage_enable or any(mark.remote is not None for mark in sealed),
        )
    return found


def _sealed(files: Files, folder: Path) -> tuple[SealedMark, ...]:
    """The sealed segments by a partition's checkpoints; none where these are gone."""
    try:
        return CheckpointFile.open(files, folder / CHECKPOINTS).current.sealed
    except (CorruptFile, NotADirectoryError):
        return ()


def _first_due(files: Files, folder: Path) -> int | None:
    """When the first entry that is found at a log's beginning is due; -1 where it does not say."""
    for path in logs_in(files, folder).values():
        data = map_file(files, path)
        first = next(steps([(0, data)], 0, len(data), bodies=False, limit=1), None)
        if first is not None and len(first.found.offset):
            return int(first.found.deliver_after[0])
    return None


def _kind(settings: TopicSettings) -> str:
    return (
        f"{settings.partitions} partition{'s' * (settings.partitions > 1)}, {'delayed' if settings.delayed else 'FIFO'}"
    )
