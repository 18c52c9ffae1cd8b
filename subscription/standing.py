"""How a subscription to one partition stands: counted from its state, which may be open, or lie on disk.

    journal ──replay──> state ─┐
    open: its own       state ─┴─ and what is due by the partition's reading ──> PartitionStats

Looking writes nothing, and needs no reader. What was leased when a process died still counts as leased: what is held
until its deadline, and the rest goes out again as soon as somebody subscribes.
"""

from __future__ import annotations

from pathlib import Path

from afterlog.base.clock import INT64_MAX
from afterlog.base.errors import CorruptFile
from afterlog.base.files import FileStamp
from afterlog.base.names import journal_file, subscription_folder
from afterlog.fetch.partition import Partition
from afterlog.fetch.timeline import Reading
from afterlog.index.entries import Key
from afterlog.subscription.answers import PartitionStats
from afterlog.subscription.journal import numbers
from afterlog.subscription.replay import replay
from afterlog.subscription.state import Owner, SubscriptionState

_EVERYTHING = Key(INT64_MAX - 1, INT64_MAX)


class ClosedSubscriptions:
    """Those that nobody has open, for who asks again and again: a journal that has not changed is read once. One thread
    at a time.
    """

    def __init__(self) -> None:
        self._states: dict[Path, tuple[int, FileStamp, SubscriptionState]] = {}

    def stats(self, partition: Partition, name: str) -> PartitionStats:
        """How one stands, by the times of the topic: without a delay of its own. Raises CorruptFile."""
        context = partition.log.context
        files, folder = context.files, subscription_folder(context.folder, name)
        number = numbers(files, folder)[-1]
        stamp, known = files.stamp(folder / journal_file(number)), self._states.get(folder)
        if known is None or known[:2] != (number, stamp):
            replayed = replay(files, folder, Owner(context.folder.name, name), partition.log_end_offset)
            if replayed is None:
                raise CorruptFile("its journals went while they were read", path=folder)
            known = self._states[folder] = number, stamp, replayed.state
        reading = partition.look()
        state = known[2].behind_retention(reading.log_start)
        return standing(state, partition, reading, reading.high_watermark, reading.upto)


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
        due=max(high_watermark - state.position, 0) - hidden_due,
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
        position=state.position,
        mark_delete=state.acks.mark_delete,
        high_watermark=high_watermark,
    )
