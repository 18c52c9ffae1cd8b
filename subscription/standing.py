"""How a subscription to one partition stands: counted from its state, which may be open, or lie on disk.

    journal ──replay──> state ─┐
    open: its own       state ─┴─ and what is due by the partition's reading ──> PartitionStats

Looking writes nothing, and needs no reader. What was leased when a process died still counts as leased: what is held
until its deadline, and the rest goes out again as soon as somebody subscribes.
"""

from __future__ import annotations

from afterlog.clock import INT64_MAX
from afterlog.fetch.partition import Partition
from afterlog.fetch.timeline import Reading
from afterlog.index.entries import Key
from afterlog.names import subscription_folder
from afterlog.subscription.answers import PartitionStats
from afterlog.subscription.events import Skipped
from afterlog.subscription.replay import replay
from afterlog.subscription.state import Owner, SubscriptionState

_EVERYTHING = Key(INT64_MAX - 1, INT64_MAX)


def at_rest(partition: Partition, name: str) -> PartitionStats:
    """How a subscription that nobody has open stands, by the times of the topic: without a delay of its own.

    Raises CorruptFile.
    """
    context = partition.log.context
    folder, owner = subscription_folder(context.folder, name), Owner(context.folder.name, name)
    replayed = replay(context.files, folder, owner, partition.log_end_offset)
    assert replayed is not None, "who calls has seen its journal"
    state, reading = replayed.state, partition.look()
    if reading.log_start > state.acks.mark_delete:  # as the next receive will find out
        state.apply(Skipped(reading.log_start))
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
