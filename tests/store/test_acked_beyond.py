"""What all readers have acked beyond what one of them has not: it goes, and delivery offsets stay what they were."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from pyroaring import BitMap64

from afterlog.base.clock import ManualClock
from afterlog.base.config import Config
from afterlog.base.errors import AfterlogError, InvalidTopic
from afterlog.fetch.export import export
from afterlog.fetch.partition import Partition
from afterlog.fetch.positions import EARLIEST
from afterlog.fetch.timeline import EntryBefore
from afterlog.index.acked_ranges import AckedRanges
from afterlog.index.hidden_keys import HiddenKeys
from afterlog.index.merge import MergeIterator
from afterlog.log import cleaning
from afterlog.log.cancel_result import CancelResult
from afterlog.log.context import LogContext
from afterlog.log.partition_log import PartitionLog
from afterlog.log.snapshot import open_snapshot
from afterlog.log.topic_settings import TopicSettings
from afterlog.offline.locked_store import OfflineStore
from afterlog.store.store import Store, open_store
from afterlog.subscription.backlog import AckedByAll, Backlogs
from afterlog.tier.directory_store import DirectoryStore
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, PATH, killed, open_small, small, with_file

COUNT = 3_000
SEGMENT_BYTES = 1 << 16


def opened(disk: SimulatedFiles, clock: ManualClock) -> Store:
    return open_small(
        disk, clock, segment_bytes=SEGMENT_BYTES, max_num_buckets=4, cleaning_slack_bytes=1 << 16,
        min_index_count_per_bucket=256,
    )  # fmt: skip


class Scene:
    """A topic whose records became due in another order than they came, all read by `slow`."""

    def __init__(self, seed: int = 1, **topic: Any) -> None:
        self.draw = np.random.default_rng(seed)
        self.disk, self.clock = SimulatedFiles(), ManualClock(NOW_MS)
        self.store = opened(self.disk, self.clock)
        self.store.create_topic("t", **(topic or {"retention_by_subscriptions": True}))
        self.sent: dict[int, bytes] = {}
        """By offset, in delivery order once all are due."""
        self.order: list[int] = []
        self.hidden: set[int] = set()
        """Of these, what is cancelled, and the control batches that say so."""

    @property
    def partition(self) -> Partition:
        return self.store.topic("t").partition(0)

    @property
    def log(self) -> PartitionLog:
        return self.partition.log

    def send(self, count: int = COUNT, spread_ms: int = 1_000, *, together: int = 1) -> None:
        """together: so many that follow each other are due at once, and one batch."""
        due = self.clock.now_ms() + np.repeat(self.draw.integers(1, spread_ms, count // together), together)
        values = [b"%07d" % number * 14 for number in range(count)]
        offsets = self.store.send_many("t", values, deliver_after=due)
        self.order += offsets[np.lexsort([offsets, due])].tolist()
        self.sent |= dict(zip(offsets.tolist(), values, strict=True))

    def ack(self, name: str, count: int, but: Collection[int] = ()) -> None:
        """Receive so many, and ack all but some delivery offsets."""
        subscription = self.store.subscribe("t", name, lease_ms=10**9)
        received = subscription.receive(count)
        assert count == len(received)
        subscription.ack_many([message for message in received if message.delivery_offset not in but])

    def clean(self, after_ms: int = 2_000, *, thorough: bool = False) -> None:
        self.clock.advance(after_ms)
        self.store.enforce_retention()
        self.log.merge_buckets()  # of several runs a segment is not cleaned
        self.store.enforce_retention()
        if thorough:
            self.store.clean("t")
        self.check()

    def gone(self) -> list[range]:
        return [range(row.first, row.end) for row in self.log.index.acked.rows]

    def there(self, position: int = 0) -> list[int]:
        """The delivery offsets of what is due, in reach, and behind a position."""
        gone = {rank for each in self.gone() for rank in each}
        gone |= {rank for rank, offset in enumerate(self.order) if offset in self.hidden}
        return [rank for rank in range(max(position, self.partition.log_start), len(self.order)) if rank not in gone]

    def check(self) -> None:
        self.store.check()
        expected, high_watermark = self.delivered(self.store), self.partition.high_watermark()
        assert [(rank, self.order[rank], self.sent[self.order[rank]]) for rank in self.there()] == expected
        assert len(self.order) == high_watermark
        left = killed(self.disk)
        with opened(left, ManualClock(self.clock.now_ms())) as again:
            again.check()
            partition = again.topic("t").partition(0)
            assert (expected, high_watermark) == (self.delivered(again), partition.high_watermark())
            assert partition.log.index.acked.rows == self.log.index.acked.rows
        with OfflineStore(PATH, left, ManualClock(self.clock.now_ms())) as offline:
            assert [] == [*offline.verify()]

    @staticmethod
    def delivered(store: Store) -> list[tuple[int, int, bytes]]:
        return all_of(store.topic("t").partition(0))


def all_of(partition: Partition) -> list[tuple[int, int, bytes]]:
    """What is due and in reach: (delivery offset, offset, value)."""
    found, position = list[tuple[int, int, bytes]](), partition.log_start
    while position < partition.high_watermark():
        columns, behind = partition.columns(position, 700, 1 << 20)
        assert behind > position
        position = behind
        found += [(each.delivery_offset, each.offset, each.value or b"") for each in columns.to_messages()]
    return found


def two_left() -> Scene:
    """All was read and acked but two records, and a pass was made."""
    scene = Scene()
    scene.send()
    scene.clock.advance(2_000)
    scene.ack("slow", COUNT, but={100, 2_000})
    scene.clean(10_000_000)
    return scene


def a_life(seed: int = 1) -> None:
    """Batches, two readers, one of which closes, cancelled records, and in the end acks of all."""
    scene = Scene(seed)
    scene.send(400, together=4)
    targets = np.array([scene.order[each] for each in (40, 41, 42, 43, 200, 390)])
    scene.store.cancel_many("t", 0, targets)
    scene.order.append(400)
    scene.sent[400] = b""
    scene.hidden = {*targets.tolist(), 400}
    scene.clock.advance(2_000)
    first, second = (scene.store.subscribe("t", name, lease_ms=10**9) for name in ("first", "second"))
    received = {each.delivery_offset: each for each in first.receive(500)}
    first.ack_many([each for rank, each in received.items() if rank not in (39, 110, 206)])
    second.ack_many([each for each in second.receive(500) if each.delivery_offset not in (44, 300)])
    second.close()
    scene.clean(10_000_000, thorough=True)
    assert {rank for each in scene.gone() for rank in each}.isdisjoint({39, 44, 110, 206, 300})
    assert len(scene.gone()) > 2
    scene.send(100)
    scene.clock.advance(2_000)
    scene.clean(10_000_000)
    first.ack_many([received[39], received[110]])
    with scene.store.subscribe("t", "second") as again:
        again.ack_many(again.receive(500))
    scene.clean(10_000_000, thorough=True)
    assert scene.partition.log_start >= 204


def held(log: PartitionLog) -> int:
    return sum(segment.size for segment in log.version.sealed)


def test_one_that_is_not_acked_holds_itself() -> None:
    scene = Scene()
    scene.send()
    scene.clock.advance(2_000)
    scene.ack("slow", COUNT, but={100, 2_000})
    scene.log.roll()
    before = scene.store.held_bytes("t")
    scene.clean(10_000_000)
    scene.clean()
    after = scene.store.held_bytes("t")
    assert before.backlog > 8 * (after.backlog + after.worn)
    assert 98 == scene.partition.log_start, "of an instant all goes, or nothing"
    assert [range(101, 2_000), range(2_001, COUNT)] == scene.gone()
    assert [98, 99, 100, 2_000] == scene.there()
    assert held(scene.log) < 70_000


@pytest.mark.parametrize("seed", range(3))
def test_again_and_again(seed: int) -> None:
    """Of what comes some is never acked; all else is delivered once, at its place."""
    scene, draw, position = Scene(seed), np.random.default_rng(seed), 0
    for _ in range(4):
        scene.send(1_000, spread_ms=int(draw.integers(1, 3_000)))
        scene.clock.advance(5_000)
        scene.ack("slow", 1_000, but={*draw.choice(1_000, int(draw.integers(0, 6)), replace=False) + position})
        position += 1_000
        scene.clean(10_000_000, thorough=bool(draw.random() < 0.5))
        assert held(scene.log) < 130_000


def test_readers_who_come_later_step_over_it() -> None:
    scene = two_left()
    late = scene.store.subscribe("t", "late", start=EARLIEST)
    assert 4 == late.stats().due
    assert [98, 99, 100, 2_000] == [message.delivery_offset for message in late.receive(COUNT)]
    with scene.store.consumer("t", group="g") as consumer:
        consumer.seek(500)
        assert 1 == consumer.lag()
        assert [2_000] == [message.delivery_offset for message in consumer.poll(COUNT)]
    assert (4, 2) == (scene.partition.due(), scene.partition.due(100))
    assert 1 == scene.partition.due(101) == scene.partition.due(500) == scene.partition.due(2_000)
    assert 0 == scene.partition.due(2_001) == scene.partition.due(2_500)


def test_what_is_cancelled_in_a_range_is_gone_with_it_and_what_is_not_stays_cancelled() -> None:
    """A control batch stays where its range goes: what it cancelled may lie elsewhere."""
    scene = Scene()
    scene.send()
    gone = [scene.order[each] for each in (5, 50, 99, 500, 2_500)]
    scene.store.cancel_many("t", 0, np.array(gone))
    scene.order.append(COUNT)
    scene.clock.advance(2_000)
    subscription = scene.store.subscribe("t", "slow", lease_ms=10**9)
    kept = {1, 98, 100, 2_000}
    received = subscription.receive(COUNT)
    subscription.ack_many([message for message in received if message.delivery_offset not in kept])
    scene.clock.advance(10_000_000)
    scene.store.enforce_retention()
    scene.store.clean("t")
    scene.store.check()
    for disk in (scene.disk, killed(scene.disk)):
        if disk is scene.disk:
            found = scene.delivered(scene.store)
        else:
            with opened(disk, ManualClock(scene.clock.now_ms())) as again:
                again.check()
                found = scene.delivered(again)
        assert not {offset for _, offset, _ in found} & {*gone}
        assert [1, 98, 100, 2_000] == [rank for rank, _, _ in found]
    answers = scene.partition.cancel(np.array([scene.order[200], scene.order[100], scene.order[500]]))
    assert [CancelResult.UNKNOWN, CancelResult.ALREADY_DELIVERED, CancelResult.UNKNOWN] == answers.tolist()


def test_a_seek_back_finds_what_is_left() -> None:
    scene = two_left()
    subscription = scene.store.subscribe("t", "slow")
    subscription.seek(700)
    assert [2_000] == [message.delivery_offset for message in subscription.receive(COUNT)]


def test_the_rest_of_the_retention_is_heeded() -> None:
    """What all have acked stays as long as the topic says."""
    scene = Scene(retention_by_subscriptions=True, retention_ms=100_000)
    scene.send()
    scene.clock.advance(2_000)
    scene.ack("slow", COUNT, but={100, 2_000})
    scene.clean(50_000, thorough=True)
    assert [] == scene.gone()
    scene.clean(100_000, thorough=True)
    assert [range(101, 2_000), range(2_001, COUNT)] == scene.gone()


def test_who_has_not_read_so_far_holds_it() -> None:
    scene = Scene()
    scene.send()
    scene.clock.advance(2_000)
    scene.ack("slow", COUNT, but={100})
    scene.ack("other", 1_500, but={700})
    scene.clean(10_000_000, thorough=True)
    assert [range(101, 700), range(701, 1_500)] == scene.gone()
    with scene.store.consumer("t", group="g") as consumer:
        consumer.poll(10)
    assert [range(101, 700), range(701, 1_500)] == scene.gone()


def test_once_it_is_acked_the_log_start_passes_the_ranges() -> None:
    scene = Scene()
    scene.send()
    scene.clock.advance(2_000)
    subscription = scene.store.subscribe("t", "slow", lease_ms=10**9)
    received = {message.delivery_offset: message for message in subscription.receive(COUNT)}
    subscription.ack_many([message for rank, message in received.items() if rank not in (100, 2_000)])
    scene.clean(10_000_000)
    subscription.ack(received[100])
    scene.clean(10_000_000, thorough=True)
    assert (2_000, [range(2_001, COUNT)]) == (scene.partition.log_start, scene.gone())
    subscription.ack(received[2_000])
    scene.clean(10_000_000, thorough=True)
    assert (COUNT, [], []) == (scene.partition.log_start, scene.gone(), scene.there())


def test_a_histogram_tells_of_what_is_in_reach() -> None:
    scene = Scene()
    scene.send()
    due = np.sort(np.array([each.due for each in scene.store.pending("t", limit=COUNT)]))
    scene.clock.advance(2_000)
    scene.ack("slow", COUNT, but={100, 2_000})
    edges = np.arange(NOW_MS - 5, NOW_MS + 1_100, 7)
    scene.clean(10_000_000, thorough=True)
    expected = np.histogram(due[[98, 99, 100, 2_000]], edges)[0]
    assert expected.tolist() == scene.partition.due_histogram(edges).tolist()


@pytest.mark.parametrize("seed", range(3))
def test_a_life(seed: int) -> None:
    a_life(seed)


def test_object_storage_begins_where_no_range_is_left() -> None:
    scene = two_left()
    scene.store.close()
    scene.disk.make_folder(Path("/remote"))
    remote = DirectoryStore(scene.disk, Path("/remote"))
    with open_store(PATH, small(), scene.clock, scene.disk, remote, background=False) as store:
        with pytest.raises(InvalidTopic, match="what is left before that, or purge"):
            store.alter_topic("t", remote_storage_enable=True)
        assert not store.topic("t").settings.remote_storage_enable
        store.purge("t")
        store.alter_topic("t", remote_storage_enable=True)
        store.check()


def test_whoever_looks_from_elsewhere_sees_what_is_left() -> None:
    """A snapshot of the folder, and what is exported of it in either order."""
    scene = two_left()
    for delivery_order in (False, True):
        out = Path(f"/out-{delivery_order}")
        assert 4 == export(scene.disk, scene.partition, out, delivery_order=delivery_order).records
    expected = scene.delivered(scene.store)
    scene.store.close()
    context = LogContext(
        files=scene.disk, folder=PATH / "t-0", config=Config(), settings=TopicSettings(retention_by_subscriptions=True),
        clock=scene.clock, now_ms=scene.clock.now_ms,
    )  # fmt: skip
    partition = Partition("t", 0, open_snapshot(context, settle_ms=0))
    assert expected == all_of(partition)
    assert (COUNT, 98) == (partition.high_watermark(), partition.log_start)


def test_a_repair_keeps_ranges() -> None:
    """Of a healthy folder there is nothing to do; of one that lost a segment the rest is there, in its order."""
    scene = two_left()
    scene.send(500)
    scene.clock.advance(2_000)
    scene.log.roll()
    expected = scene.delivered(scene.store)
    first = scene.log.version.sealed[0]
    lost = range(first.base_offset, first.end_offset)
    scene.store.close()
    with OfflineStore(PATH, scene.disk, scene.clock) as offline:
        assert [] == offline.plan().steps
    damaged = with_file(scene.disk, first.path, None)
    with OfflineStore(PATH, damaged, scene.clock) as offline:
        assert [*offline.verify()]
        offline.apply(offline.plan())
        [finding] = offline.verify()
        assert "not acked" in finding.message, "the one at 100 is lost"
    with opened(damaged, scene.clock) as store:
        store.check()
        assert [row[1:] for row in expected if row[1] not in lost] == [row[1:] for row in scene.delivered(store)]


def some_lives() -> None:
    for seed in range(3):
        a_life(seed)


def of_one_alone(backlogs: Backlogs, log: PartitionLog, **asked: Any) -> AckedByAll | None:
    """What one reader has acked counts as acked by all, beyond the log start."""
    acks: AckedByAll | None = ACKS(backlogs, log, **asked)
    if acks is None or len(acks.unacked) < 2:
        return acks
    return AckedByAll(acks.position, BitMap64(list(acks.unacked)[::2]))


ACKS = Backlogs.acks


def nothing_around(before: EntryBefore) -> range:
    return range(before.position, before.position)


@pytest.mark.parametrize(
    ("planted", "shown"),
    [
        (lambda: patch.object(AckedRanges, "less", lambda ranges, removed: ranges), a_life),
        (lambda: patch.object(AckedRanges, "removed_up_to", lambda ranges, key: ranges.removed), a_life),
        (
            lambda: patch.object(AckedRanges, "passed_by", lambda ranges, key, rank: key),
            test_once_it_is_acked_the_log_start_passes_the_ranges,
        ),
        (
            lambda: patch.object(AckedRanges, "last_before", lambda ranges, position: None),
            test_readers_who_come_later_step_over_it,
        ),
        (
            lambda: patch.object(cleaning, "CONTROL", 0),
            test_what_is_cancelled_in_a_range_is_gone_with_it_and_what_is_not_stays_cancelled,
        ),
        (lambda: patch.object(EntryBefore, "batch_around", property(nothing_around)), some_lives),
        (lambda: patch.object(MergeIterator, "_step_over_removed", lambda *_: None), some_lives),
        (lambda: patch.object(Backlogs, "acks", of_one_alone), some_lives),
        (lambda: patch.object(HiddenKeys, "with_acked", lambda keys, acked: keys), a_life),
    ],
    ids=[
        "what goes of a range is not counted", "it counts in front of it", "the log start in a range",
        "what lies behind a range counts from before it", "control batches go",
        "batches in part", "an end that nothing is left of", "acked by one", "in reach",
    ],
)  # fmt: skip
def test_planted_bug_is_caught(planted: Callable[[], Any], shown: Callable[[], None]) -> None:
    shown()
    with planted(), pytest.raises((AssertionError, AfterlogError, IndexError)):
        shown()
