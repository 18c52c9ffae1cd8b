"""Statistics of a subscription to one partition: counted from its state, whether that is open or on disk.

    journal ──replay──> state ─┐
    open: its own       state ─┴─ and what is due by the partition's reading ──> PartitionStats

Looking writes nothing, and needs no reader: `Standings` has those that somebody reads beside those that lie on disk,
for `stats`, the overview and the metrics alike. What was leased when a process died still counts as leased: what is
held until its deadline, and the rest goes out again as soon as somebody subscribes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol

from afterlog.base.clock import INT64_MAX
from afterlog.base.errors import CorruptFile
from afterlog.base.files import FileStamp
from afterlog.base.names import SUBSCRIPTIONS, journal_file, subscription_folder
from afterlog.fetch.partition import Partition
from afterlog.fetch.timeline import Reading
from afterlog.index.entries import Key
from afterlog.log.context import LogContext
from afterlog.subscription.answers import PartitionStats
from afterlog.subscription.journal import numbers
from afterlog.subscription.leased_record import LeasedRecord, leased_records
from afterlog.subscription.replay import replay
from afterlog.subscription.state import Owner, SubscriptionState

_EVERYTHING = Key(INT64_MAX - 1, INT64_MAX)


class OpenSubscription(Protocol):
    """A partition of a subscription that has a reader."""

    @property
    def name(self) -> str: ...
    @property
    def partition(self) -> Partition: ...
    def stats(self) -> PartitionStats: ...
    def leased(self, limit: int) -> list[LeasedRecord]: ...


class Standings:
    """How subscriptions stand, for who asks again and again: a journal that has not changed is read once. One thread at
    a time.
    """

    def __init__(self) -> None:
        self._states: dict[Path, tuple[int, FileStamp, SubscriptionState]] = {}
        self._opened: dict[tuple[str, int], list[OpenSubscription]] = {}

    def look(self, opened: Iterable[OpenSubscription]) -> None:
        """From now on these are open, and no others: `store.open_subscriptions()`."""
        found = defaultdict[tuple[str, int], list[OpenSubscription]](list)
        for each in opened:
            found[each.partition.topic, each.partition.number].append(each)
        self._opened = found

    def of(
        self, partition: Partition, *, closed: bool = True, passed_over: tuple[type[Exception], ...] = ()
    ) -> Iterator[tuple[str, PartitionStats]]:
        """The subscriptions to a partition, those that nobody reads first, by name, and how each stands.

        closed: those that nobody reads, too. passed_over: errors of subscriptions that are left out then; one may just
        be closed, or its disk have failed. Raises what is not: CorruptFile, StoreClosed, DiskFailed.
        """
        asked: dict[str, Callable[[], PartitionStats]] = {}
        if closed:
            with suppress(*passed_over):
                context = partition.log.context
                asked |= {name: partial(self.closed, partition, name) for name in subscription_names(context)}
        asked |= {each.name: each.stats for each in self._opened.get((partition.topic, partition.number), ())}
        for name, ask in asked.items():
            try:
                stats = ask()
            except passed_over:
                continue
            yield name, stats

    def closed(self, partition: Partition, name: str) -> PartitionStats:
        """How one stands that nobody reads, by the times of the topic, without its own delay. Raises CorruptFile."""
        reading, state = partition.look(), self._at_rest(partition, name)
        state = state.behind_retention(reading.log_start)
        return standing(state, partition, reading, reading.high_watermark, reading.upto)

    def leased(self, partition: Partition, name: str, limit: int) -> list[LeasedRecord]:
        """Up to so many records that readers have of one, open or not, the first to end first. Raises CorruptFile,
        StoreClosed."""
        for each in self._opened.get((partition.topic, partition.number), ()):
            if each.name == name:
                return each.leased(limit)
        state = self._at_rest(partition, name)
        return leased_records(partition, state, state.held.items(), partition.look(), limit)

    def _at_rest(self, partition: Partition, name: str) -> SubscriptionState:
        """As the journal of one has it that nobody reads."""
        context = partition.log.context
        files, folder = context.files, subscription_folder(context.folder, name)
        number = numbers(files, folder)[-1]
        stamp, known = files.stamp(folder / journal_file(number)), self._states.get(folder)
        if known is None or known[:2] != (number, stamp):
            replayed = replay(files, folder, Owner(context.folder.name, name), partition.log_end_offset)
            if replayed is None:
                raise CorruptFile("its journals went while they were read", path=folder)
            known = self._states[folder] = number, stamp, replayed.state
        return known[2]


def subscription_names(context: LogContext) -> list[str]:
    """The subscriptions to a partition, ascending."""
    files, folder = context.files, context.folder / SUBSCRIPTIONS
    if not files.exists(folder):
        return []
    return sorted(name for name in files.names(folder) if numbers(files, subscription_folder(context.folder, name)))


def standing(
    state: SubscriptionState, partition: Partition, reading: Reading, high_watermark: int, upto: Key
) -> PartitionStats:
    """Exact counts at one reading, of which this subscription sees what is due up to a key: so many records."""
    counts = state.counts
    hidden_due = partition.hidden_between(state.position, upto, reading)
    hidden_pending = reading.hidden.count - reading.hidden.rank(upto)
    if state.position > high_watermark:  # sought beyond what is due: not all that is pending lies ahead
        hidden_pending = partition.hidden_between(state.position, _EVERYTHING, reading._replace(upto=_EVERYTHING))
    return PartitionStats(
        pending=reading.end_offset - max(high_watermark, state.position) - hidden_pending,
        due=max(high_watermark - state.position, 0) - hidden_due + state.queued_count,
        leased=state.leased_count + len(state.dying),
        retrying=state.retrying_count,
        acked=counts.acked,
        dead=counts.dead,
        nacked=counts.nacked,
        expired=counts.expired,
        crashed=counts.crashed,
        released=counts.released,
        redelivered=counts.redelivered,
        stepped_over=counts.stepped_over,
        removed=counts.removed,
        lapsed=counts.lapsed,
        position=state.position,
        mark_delete=state.acks.mark_delete,
        high_watermark=high_watermark,
        paused=state.is_paused or partition.is_paused,
    )
