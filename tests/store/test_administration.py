"""Topics that are altered, deleted and purged, readers that are deleted and reset; at a crash anywhere, and forced."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.errors import (
    AfterlogError,
    CorruptFile,
    GroupBusy,
    InvalidDeliverAfter,
    InvalidTopic,
    OffsetOutOfRange,
    RemoteRefused,
    StorageFull,
    StoreClosed,
    TopicBusy,
    TopicDeleted,
    UnknownGroup,
    UnknownSubscription,
    UnknownTopic,
    WrongType,
)
from afterlog.base.files import Files, remove_tree
from afterlog.base.names import DELETED, parse_partition_folder
from afterlog.fetch.positions import EARLIEST, LATEST, AtTime, Position
from afterlog.log import recovery
from afterlog.log.partition_log import PartitionLog
from afterlog.log.tombstones import Tombstones, read_tombstones, write_tombstones
from afterlog.log.topic_settings import TopicSettings
from afterlog.produce.adoption import hand_over, handed_over
from afterlog.produce.prepared import Prepared
from afterlog.store import deletions
from afterlog.store.administration import Administration
from afterlog.store.deletions import Deletions
from afterlog.store.store import Store, open_store
from tests import campaigns
from tests.campaigns.crash_states import PowerCut, crash_states
from tests.campaigns.failing_files import FailingFiles
from tests.campaigns.simulated_disk import Image, SimulatedFiles, os_error
from tests.support import NOW_MS, PATH, Calls, HeldFiles, eventually, open_small, power_cut, small
from tests.tier.memory_store import MemoryStore


@pytest.fixture
def disk() -> SimulatedFiles:
    return SimulatedFiles()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


def values(store: Store, topic: str = "t", group: str = "look") -> list[bytes | None]:
    with store.consumer(topic, group=group, auto_commit=False) as consumer:
        return [message.value for message in consumer.poll(10_000)]


def folders(files: Files, topic: str) -> list[str]:
    parsed = {name: parse_partition_folder(name) for name in files.names(PATH)}
    return [name for name, of in parsed.items() if of is not None and of[0] == topic]


def filled(disk: SimulatedFiles, clock: ManualClock, **options: Any) -> Store:
    """Two topics of two partitions, of which `t` has a bit of everything: a segment, something pending, readers."""
    store = open_small(disk, clock)
    for name in ("t-0", "t"):
        store.create_topic(name, 2, **options)
        store.send_many(name, [b"old"] * 3, partition=0)
        store.topic(name).log(0).roll()
        store.send(name, b"now", partition=0)
        store.send(name, b"later", partition=1, delay=10)
    with store.consumer("t", group="g") as consumer:
        consumer.poll(1)
        consumer.commit()
    with store.subscribe("t", "s") as subscription:
        subscription.ack(subscription.receive(1)[0])
    store.schedule("t", name="hourly", every=timedelta(hours=1), value=b"again")
    store.schedule("t-0", name="other", every=timedelta(hours=1), value=b"again")
    return store


# Deleting topics.


def test_a_deleted_topic_leaves_nothing(disk: SimulatedFiles, clock: ManualClock) -> None:
    with filled(disk, clock) as store:
        store.delete_topic("t")
        assert ["t-0"] == [topic.name for topic in store.topics()]
        assert ([], ["t-0-0", "t-0-1"]) == (folders(disk, "t"), folders(disk, "t-0"))
        assert not disk.exists(PATH / DELETED)
        assert ["other"] == [each.name for each in store.schedules()]
        with pytest.raises(UnknownTopic):
            store.delete_topic("t")
        assert 4 == len(values(store, "t-0"))
        store.check()
    with open_small(disk, clock) as store:
        assert ["t-0"] == [topic.name for topic in store.topics()]


def test_a_topic_made_again_shares_nothing_with_the_old_one(disk: SimulatedFiles, clock: ManualClock) -> None:
    with filled(disk, clock) as store:
        before = store.topic("t").settings.topic_id
        store.delete_topic("t")
        store.create_topic("t", 2)
        assert store.topic("t").settings.topic_id not in (None, before)
        assert ([], [], []) == (values(store), store.groups("t"), store.subscriptions("t"))
        store.send("t", b"new", partition=0)
        clock.advance(20_000)
        with store.subscribe("t", "s") as subscription:
            assert [b"new"] == [message.value for message in subscription.receive()]
        store.check()
    with open_small(disk, clock) as store:
        assert [b"new"] == values(store)


def test_files_of_an_earlier_topic_of_its_name_are_refused(disk: SimulatedFiles, clock: ManualClock) -> None:
    """As a copy of the old folder that was put back."""
    with open_small(disk, clock) as store:
        store.create_topic("t")
        store.send("t", b"old")
    old = disk.image()
    with open_small(disk, clock) as store:
        store.delete_topic("t")
        store.create_topic("t")
    new, folder = disk.image(), f"{PATH}/t-0/".lstrip("/")
    mixed = {path: data for path, data in new.contents.items() if folder not in path}
    mixed |= {path: data for path, data in old.contents.items() if folder in path}
    with pytest.raises(CorruptFile, match="earlier topic"):
        open_small(SimulatedFiles(Image(new.folders, mixed)), clock).check()


def test_who_has_a_deleted_topic_is_told(disk: SimulatedFiles, clock: ManualClock) -> None:
    with filled(disk, clock) as store:
        topic, producer = store.topic("t"), store.producer("t")
        partition = topic.partition(0)
        store.delete_topic("t")
        store.create_topic("t", 2)
        for call in (lambda: producer.send(b"x", partition=0).result(), lambda: partition.fetch(0), partition.pending):
            with pytest.raises(TopicDeleted):
                call()
        assert [] == values(store)


def test_a_store_closes_behind_a_deletion_that_was_struck(disk: SimulatedFiles, clock: ManualClock) -> None:
    """Between the mark that a log is deleted and its being closed: `close` raised TopicDeleted."""
    store = filled(disk, clock)
    expected = values(store)
    with patch.object(PartitionLog, "let_go", side_effect=MemoryError), pytest.raises(MemoryError):
        store.delete_topic("t")
    store.close()
    with open_small(disk, clock) as store:
        assert expected == values(store)


def test_readers_are_in_the_way_unless_it_is_forced(disk: SimulatedFiles, clock: ManualClock) -> None:
    with filled(disk, clock) as store:
        consumer, subscription = store.consumer("t", group="g"), store.subscribe("t", "s")
        for call in (
            lambda: store.delete_topic("t"),
            lambda: store.purge("t"),
            lambda: store.delete_subscription("t", "s"),
        ):
            with pytest.raises(TopicBusy):
                call()
        with pytest.raises(GroupBusy):
            store.delete_group("t", "g")
        with pytest.raises(GroupBusy):
            store.reset_group("t", "g", EARLIEST)
        store.delete_topic("t", force=True)
        assert (True, True) == (consumer.closed, subscription.ended)
        assert [] == folders(disk, "t")


def steps(
    disk: SimulatedFiles, clock: ManualClock, change: Callable[[Store], object], of: int
) -> Iterator[SimulatedFiles]:
    """What a power cut or a kill leaves, at every step of a change to a store that was closed; one in `of`."""
    return (state.files() for state in campaigns.share(crashes(disk, clock, change), of))


def crashes(disk: SimulatedFiles, clock: ManualClock, change: Callable[[Store], object]) -> Iterator[PowerCut]:
    store = open_small(disk, clock)
    begin = len(disk.operations)
    change(store)
    for upto in range(begin, len(disk.operations) + 1):
        yield from crash_states(disk.operations, upto, start=disk.start)


def check_deleted(files: SimulatedFiles, clock: ManualClock) -> bool:
    """The topic is there as it was, or gone with all that is of it. Whether it is there."""
    with open_small(files, clock) as store:
        is_there = "t" in [topic.name for topic in store.topics()]
        assert 4 == len(values(store, "t-0"))
        if is_there:
            assert 4 == len(values(store))
            assert (["s"], ["g"]) == (store.subscriptions("t"), store.groups("t"))
        else:
            assert [] == folders(files, "t")
            assert ["other"] == [each.name for each in store.schedules()]
            store.create_topic("t", 2)
            assert ([], [], []) == (values(store), store.subscriptions("t"), store.groups("t"))
        assert Tombstones() == read_tombstones(files, PATH)
        store.check()
    return is_there


def test_a_crash_amid_a_deletion(disk: SimulatedFiles, clock: ManualClock) -> None:
    filled(disk, clock).close()
    states = steps(disk, clock, lambda store: store.delete_topic("t"), 80)
    assert {True, False} == {check_deleted(files, clock) for files in states}


def test_a_power_cut_behind_a_deletion_that_was_killed(disk: SimulatedFiles, clock: ManualClock) -> None:
    """Who ends it finds names gone that are not so durably: a schedule of the topic was back, without its tombstone."""
    filled(disk, clock).close()
    with open_small(disk, clock) as store:
        begin = len(disk.operations)
        hand_over(disk, PATH, Prepared(job="job", batch=0, topic="t", files=()), NOW_MS, "0" * 32)
        store.delete_topic("t")
        end = len(disk.operations)
    gone = 0
    for upto in range(begin, end + 1):
        left = SimulatedFiles(disk.start, disk.operations[:upto])
        open_small(left, clock).close()
        cut = power_cut(left)
        if not check_deleted(cut, clock):
            gone += 1
            assert [] == handed_over(cut, PATH)
    assert gone > 10


def unsynced(files: Files, path: Path, content: Tombstones) -> None:
    """The tombstone is renamed, and the folder not synced."""
    write_tombstones(
        FailingFiles(files, lambda operation, *_: 0 if operation == "sync_folder" else None), path, content
    )


def files_first(deletions: Deletions, name: str, settings: TopicSettings) -> None:
    for folder in deletions._folders(name):
        remove_tree(deletions.files, deletions.path / folder)
    deletions._write(Tombstones(topics={name: settings}))


@pytest.mark.parametrize(
    ("owner", "name", "planted"),
    [(deletions, "write_tombstones", unsynced), (Deletions, "begin_topic", files_first)],
)
def test_planted_bug_is_caught(
    owner: Any, name: str, planted: Any, disk: SimulatedFiles, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(disk, clock).close()
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, planted)
        if planted is unsynced:
            patched.setattr(Deletions, "has_begun", lambda self, topic: topic in self._known.topics)
        states = [*crashes(disk, clock, lambda store: store.delete_topic("t"))]
    for number in campaigns.known_first(range(len(states))):
        try:
            check_deleted(states[number].files(), clock)
        except (AssertionError, CorruptFile, FileNotFoundError):
            campaigns.shown(number)
            return
    pytest.fail("nobody saw it")


def test_planted_bug_is_caught_old_files_under_a_new_topic(
    disk: SimulatedFiles, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(disk, clock) as store, monkeypatch.context() as patched:
        for owner in (deletions, recovery):
            patched.setattr(owner, "remove_tree", lambda *_: None)
        patched.setattr(SimulatedFiles, "make_folder", lambda *_: None)
        store.delete_topic("t")
        store.create_topic("t", 2)
        assert ["s"] == store.subscriptions("t")


def nothing(operation: str, path: Path) -> OSError | None:
    """Fails no more."""
    return None


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_failing_call_amid_a_deletion(error: int) -> None:
    """The topic is there as it was, or gone; and the call can be made again, or a reopen ends it."""
    for at in campaigns.share(range(1, 60), 8):
        disk, clock, calls = SimulatedFiles(), ManualClock(NOW_MS), Calls()
        filled(disk, clock).close()
        store = open_small(HeldFiles(disk, calls), clock)
        left = iter(range(at - 1, -1, -1))

        def failing(operation: str, path: Path, left: Iterator[int] = left) -> OSError | None:
            return os_error(error, path) if next(left, None) == 0 else None

        calls.failing = failing
        try:
            store.delete_topic("t")
        except AfterlogError:
            calls.failing = nothing
            try:
                store.delete_topic("t")
            except UnknownTopic:
                pass
        calls.failing = nothing
        assert ["t-0"] == [topic.name for topic in store.topics()]
        assert 4 == len(values(store, "t-0"))
        store.create_topic("t", 2)
        assert [] == values(store)
        store.close()
        with open_small(disk, clock) as store:
            assert [] == values(store)
            store.check()


def test_a_tombstone_that_could_not_be_written(disk: SimulatedFiles, clock: ManualClock) -> None:
    filled(disk, clock).close()
    calls = Calls()
    with open_small(HeldFiles(disk, calls), clock) as store:
        calls.fail("append", "deleted.tmp", os_error(errno.ENOSPC, PATH / DELETED))
        with pytest.raises(StorageFull):
            store.delete_topic("t")
        assert 4 == len(values(store))
        store.send("t", b"goes on", partition=0)
    with open_small(disk, clock) as store:
        assert 5 == len(values(store))


def test_a_topic_with_segments_in_object_storage(disk: SimulatedFiles, clock: ManualClock) -> None:
    remote = MemoryStore()
    config = small()
    with open_store(PATH, config, clock, disk, remote, background=False) as store:
        for name in ("t", "u"):
            store.create_topic(name, remote_storage_enable=True)
            store.send_many(name, [b"old"] * 3)
            store.topic(name).log(0).roll()
        store.offload()
    assert {"t-0", "u-0"} == {each.key.partition("/")[0] for each in remote.list_objects() if "/" in each.key}
    with open_store(PATH, config, clock, disk, None, background=False) as store:
        with pytest.raises(RemoteRefused, match="deleted but for"):
            store.delete_topic("t")
        with pytest.raises(UnknownTopic):
            store.topic("t")
        with pytest.raises(RemoteRefused, match="deleted but for"):
            store.create_topic("t")
    with open_store(PATH, config, clock, disk, remote, background=False) as store:
        assert {"u-0"} == {each.key.partition("/")[0] for each in remote.list_objects() if "/" in each.key}
        store.create_topic("t", remote_storage_enable=True)
        assert [] == values(store)
        assert 3 == len(values(store, "u"))
    with open_store(Path("/fresh"), config, clock, SimulatedFiles(), remote, background=False) as store:
        assert ["t", "u"] == [topic.name for topic in store.topics()]
        assert ([], 3) == (values(store), len(values(store, "u")))


# Readers.


def test_a_deleted_subscription_begins_anew(disk: SimulatedFiles, clock: ManualClock) -> None:
    with filled(disk, clock) as store:
        store.delete_subscription("t", "s")
        assert ([], ["g"]) == (store.subscriptions("t"), store.groups("t"))
        with pytest.raises(UnknownSubscription):
            store.delete_subscription("t", "g")
        with store.subscribe("t", "s") as subscription:
            assert 4 == len(subscription.receive())
        with pytest.raises(UnknownGroup):
            store.delete_group("t", "s")
        store.delete_group("t", "g")
        assert 4 == len(values(store, group="g"))


def test_a_subscription_that_nobody_reads_expires(disk: SimulatedFiles, clock: ManualClock) -> None:
    """By elapsed time since its last reader closed, or the store was opened: a clock that is set tells nothing."""
    store = open_small(disk, clock)
    store.create_topic("t", 2, subscription_expiration_ms=60_000, retention_by_subscriptions=True)
    store.create_topic("u")
    for topic in ("t", "u"):
        store.subscribe(topic, "left").close()
        store.subscribe(topic, "afterlog-redrive").close()
    store.subscribe("t", "elsewhere", replicated=True).close()
    with store.subscribe("t", "read"), store.subscribe("t", "left", partitions=[1]):
        clock.advance(60_000)
        store.enforce_retention()
        assert ["afterlog-redrive", "elsewhere", "left", "read"] == store.subscriptions("t")
    clock.advance(59_999)
    clock.step(10**9)
    store.enforce_retention()
    assert ["afterlog-redrive", "elsewhere", "left", "read"] == store.subscriptions("t")
    store.subscribe("t", "left").close()
    clock.advance(1)
    store.enforce_retention()
    assert ["afterlog-redrive", "elsewhere", "left"] == store.subscriptions("t")
    store.close()
    store = open_small(disk, clock)
    clock.advance(59_999)
    store.enforce_retention()
    assert ["afterlog-redrive", "elsewhere", "left"] == store.subscriptions("t"), "the store was closed meanwhile"
    clock.advance(1)
    store.enforce_retention()
    assert ["afterlog-redrive", "elsewhere"] == store.subscriptions("t")
    assert ["afterlog-redrive", "left"] == store.subscriptions("u")
    store.subscribe("u", "left").close()
    assert [("u", "left")] == [*store._subscriptions._left_ms], "nothing is known of what is deleted"
    store.delete_topic("u")
    assert not store._subscriptions._left_ms
    store.subscribe("t", "left").close()
    store.alter_topic("t", subscription_expiration_ms=None)
    clock.advance(10**9)
    store.enforce_retention()
    assert "left" in store.subscriptions("t")
    store.close()


def test_what_is_paused_does_not_expire(disk: SimulatedFiles, clock: ManualClock) -> None:
    """By itself, or with its topic; in another life, too."""
    store = open_small(disk, clock)
    for topic in ("t", "u"):
        store.create_topic(topic, 2, subscription_expiration_ms=60_000)
        store.subscribe(topic, "s", delay_ms=5).close()
    store.pause("t", "s")
    store.pause("u")
    store.close()
    store = open_small(disk, clock)
    clock.advance(60_000)
    store.enforce_retention()
    assert ["s"] == store.subscriptions("t") == store.subscriptions("u")
    store.resume("t", "s")
    store.resume("u")
    clock.advance(60_000)
    store.enforce_retention()
    assert [] == store.subscriptions("t") == store.subscriptions("u")
    store.close()


def test_a_reader_with_a_delay_is_paused(disk: SimulatedFiles, clock: ManualClock) -> None:
    with open_small(disk, clock) as store:
        store.create_topic("t", 2)
        with store.subscribe("t", "s", delay_ms=5, partitions=[1]) as reader:
            store.pause("t", "s")
            assert reader.stats().paused
        with store.subscribe("t", "s") as reader:
            assert [True, True] == [part.paused for part in reader.stats().partitions.values()]


def test_a_thread_looks_for_what_expires(disk: SimulatedFiles, clock: ManualClock) -> None:
    with open_store(PATH, small(retention_check_interval_ms=10), clock, disk) as store:
        store.create_topic("u")
        assert store._cleaner is None
        store.create_topic("t", subscription_expiration_ms=60_000)
        store.subscribe("t", "s").close()
        assert store._cleaner is not None
        clock.advance(60_000)
        eventually(lambda: not store.subscriptions("t"))


def test_who_comes_to_read_it_is_in_time(disk: SimulatedFiles, clock: ManualClock) -> None:
    store = open_small(disk, clock)
    store.create_topic("t", subscription_expiration_ms=60_000)
    store.subscribe("t", "s").close()
    clock.advance(60_000)
    known = Administration._check_known

    def comes(self: Administration, topic: str, name: str, *more: Any) -> None:
        known(self, topic, name, *more)
        store.subscribe(topic, name).close()

    with patch.object(Administration, "_check_known", comes):
        store.enforce_retention()
    assert ["s"] == store.subscriptions("t")
    store.close()


def test_a_handler_of_a_deleted_subscription_acks_nothing_of_the_next(disk: SimulatedFiles, clock: ManualClock) -> None:
    with filled(disk, clock) as store:
        message = store.subscribe("t", "s").receive(1)[0]
        with pytest.raises(StoreClosed), message:
            store.delete_subscription("t", "s", force=True)
        with store.subscribe("t", "s") as subscription:
            received = subscription.receive()
            assert 4 == subscription.ack_many(received).acked
    with open_small(disk, clock) as store, store.subscribe("t", "s") as subscription:
        assert [] == list(subscription.receive())


def test_a_crash_amid_the_deletion_of_a_subscription(disk: SimulatedFiles, clock: ManualClock) -> None:
    filled(disk, clock).close()
    found = set()
    for files in steps(disk, clock, lambda store: store.delete_subscription("t", "s"), 80):
        with open_small(files, clock) as store, store.subscribe("t", "s") as subscription:
            found.add(len(subscription.receive()))
            assert Tombstones() == read_tombstones(files, PATH)
    assert {3, 4} == found


def test_an_interrupted_deletion_takes_no_reader_of_later(disk: SimulatedFiles, clock: ManualClock) -> None:
    """The tombstone of a subscription that is made again must not be read at the next open."""
    with filled(disk, clock) as store:
        write_tombstones(disk, PATH, Tombstones(readers=frozenset({("t", "s")})))
        store._topics.deletions._known = Tombstones(readers=frozenset({("t", "s")}))
        with store.subscribe("t", "s") as subscription:
            assert 4 == subscription.ack_many(subscription.receive()).acked
    with open_small(disk, clock) as store, store.subscribe("t", "s") as subscription:
        assert [] == list(subscription.receive())


def test_resets(disk: SimulatedFiles, clock: ManualClock) -> None:
    with filled(disk, clock) as store:
        clock.advance(20_000)
        store.reset_group("t", "g", AtTime(NOW_MS + 1))
        assert [b"later"] == values(store, group="g")
        store.reset_group("t", "g", EARLIEST)
        assert 5 == len(values(store, group="g"))
        store.reset_subscription("t", "s", AtTime(NOW_MS + 1))
        with store.subscribe("t", "s") as subscription:
            assert [b"later"] == [message.value for message in subscription.receive()]
            store.reset_subscription("t", "s", EARLIEST)
            assert 5 == len(subscription.receive())
        with pytest.raises(UnknownGroup):
            store.reset_group("t", "x", EARLIEST)
        with pytest.raises(UnknownSubscription):
            store.reset_subscription("t", "x", EARLIEST)


# Purging.


def test_purged_records_are_gone(disk: SimulatedFiles, clock: ManualClock) -> None:
    with filled(disk, clock) as store:
        assert 4 == store.purge("t")
        assert ([], 2) == (values(store, group="g"), len(store.pending("t")))
        assert 0 == store.purge("t")
        store.send("t", b"new", partition=0)
        clock.advance(20_000)
        assert [b"later", b"new"] == sorted(v for v in values(store, group="g") if v)
        with store.subscribe("t", "s") as subscription:
            assert 2 == len(subscription.receive())
        store.check()
    with open_small(disk, clock) as store:
        assert [b"later", b"new"] == sorted(v for v in values(store, group="g") if v)
        assert 4 == store.topic("t").partition(0).log_start
        store.check()


def test_a_purge_lists_the_groups_once(disk: SimulatedFiles, clock: ManualClock) -> None:
    """It listed the groups of all partitions for each of them, under the store's lock: hours, of ten thousand."""
    with open_small(disk, clock) as store:
        store.create_topic("t", 20)
        store.send_many("t", [b"v"] * 100)
        clock.advance(10)
        with store.consumer("t", group="g") as consumer:
            assert 50 == len(consumer.poll(50))
        looks = patch.object(Administration, "_names", autospec=True, side_effect=Administration._names)
        with looks as looked:
            assert 100 == store.purge("t")
        assert 1 == looked.call_count
        assert [] == values(store, group="g")


def test_what_is_pending_is_purged_when_asked(disk: SimulatedFiles, clock: ManualClock) -> None:
    with filled(disk, clock) as store:
        assert 2 == store.purge("t", EARLIEST, pending=True)
        clock.advance(20_000)
        assert 4 == len(values(store))
        assert 4 == store.purge("t", pending=True, partition=0)
        store.check()


@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize("upto", [LATEST, AtTime(NOW_MS + 1_000)])
def test_what_falls_due_while_it_is_purged_goes_too(
    disk: SimulatedFiles, clock: ManualClock, partitions: int, upto: Position
) -> None:
    """Between the call and the stamp by which it would have been cancelled, in each partition."""
    cancel = PartitionLog.cancel

    def slowly(log: PartitionLog, offsets: Any) -> Any:
        clock.advance(40)
        return cancel(log, offsets)

    with open_small(disk, clock) as store:
        store.create_topic("t", partitions)
        for number in range(partitions):
            store.send_many("t", [b"x"] * 100, deliver_after=range(NOW_MS, NOW_MS + 200, 2), partition=number)
        with patch.object(PartitionLog, "cancel", slowly):
            assert 100 * partitions <= store.purge("t", upto, pending=True) <= 201 * partitions
        clock.advance(10_000)
        assert [] == values(store)
        store.send("t", b"after")
        assert [b"after"] == values(store)
        store.check()


def test_a_part_is_purged(disk: SimulatedFiles, clock: ManualClock) -> None:
    with open_small(disk, clock) as store:
        store.create_topic("t")
        for number in range(20):
            store.send_many("t", [b"%d" % number] * 2)
            clock.advance(1_000)
            if number % 4 == 3:
                store.topic("t").log(0).roll()
        before = len(disk.names(PATH / "t-0"))
        assert 6 == store.purge("t", 7)
        assert 34 == len(values(store))
        assert 10 == store.purge("t", AtTime(NOW_MS + 8_000))
        assert b"8" == values(store)[0]
        assert len(disk.names(PATH / "t-0")) < before
        with pytest.raises(OffsetOutOfRange):
            store.purge("t", 41)
        store.check()
    with open_small(disk, clock) as store:
        assert 24 == len(values(store))
        store.check()


def test_what_the_retention_takes_in_the_roll_of_a_purge_is_counted(disk: SimulatedFiles, clock: ManualClock) -> None:
    with open_small(disk, clock) as store:
        store.create_topic("t", retention_ms=0)
        store.send_many("t", [b"old"] * 5)
        clock.advance(1)
        store.topic("t").partition(0).high_watermark()
        assert 5 == store.purge("t", 5)
        store.check()


def test_a_fifo_topic_is_purged_by_segments(disk: SimulatedFiles, clock: ManualClock) -> None:
    with open_small(disk, clock) as store:
        store.create_topic("t", delayed=False)
        store.send_many("t", [b"a"] * 4)
        store.topic("t").log(0).roll()
        store.send_many("t", [b"b"] * 4)
        assert 4 == store.purge("t", 6)
        assert [b"b"] * 4 == values(store)
        assert 4 == store.purge("t")
        assert [] == values(store)
        store.send("t", b"c")
        store.check()
    with open_small(disk, clock) as store:
        assert [b"c"] == values(store)


def test_a_crash_amid_a_purge(disk: SimulatedFiles, clock: ManualClock) -> None:
    filled(disk, clock).close()
    found = set()
    for files in steps(disk, clock, lambda store: store.purge("t", partition=0), 160):
        with open_small(files, clock) as store:
            with store.subscribe("t", "new") as subscription:
                found.add(len(subscription.receive()))
            store.send("t", b"new", partition=0)
            clock.advance(0)
            store.check()
    assert {0, 4} == found


# Altering.


def test_settings_are_altered_while_it_is_used(disk: SimulatedFiles, clock: ManualClock) -> None:
    with filled(disk, clock) as store:
        topic, producer = store.topic("t"), store.producer("t")
        with store.consumer("t", group="x") as consumer:
            assert topic is store.alter_topic("t", max_delay_ms=1_000, retention_ms=5_000)
            assert 4 == len(consumer.poll())
            producer.send(b"more", partition=0).result()
            with pytest.raises(InvalidDeliverAfter):
                store.send("t", b"x", delay=2)
        for options in ({"remote_storage_enable": True}, {"local_retention_ms": 1}, {"partitions": 1}):
            with pytest.raises(InvalidTopic):
                store.alter_topic("t", **options)  # type: ignore[arg-type]
        with pytest.raises(WrongType):
            store.alter_topic("t", delayed=False)  # type: ignore[call-arg]
        clock.advance(20_000)
        assert 0 < store.enforce_retention()
    with open_small(disk, clock) as store:
        settings = store.topic("t").settings
        assert (1_000, 5_000, 2) == (settings.max_delay_ms, settings.retention_ms, settings.partitions)
        assert store.alter_topic("t", max_delay_ms=None).settings.max_delay_ms is None


def test_partitions_are_added(disk: SimulatedFiles, clock: ManualClock) -> None:
    with filled(disk, clock) as store:
        topic = store.alter_topic("t", partitions=4)
        assert 4 == topic.partition_count == len(topic.partitions)
        store.send("t", b"there", partition=3)
        assert 5 == len(values(store))
    with open_small(disk, clock) as store:
        assert 4 == store.topic("t").partition_count
        assert 5 == len(values(store))
        store.check()


def test_a_crash_amid_an_alteration(disk: SimulatedFiles, clock: ManualClock) -> None:
    filled(disk, clock).close()
    found = set()
    for files in steps(disk, clock, lambda store: store.alter_topic("t", partitions=4, retention_ms=9_000), 160):
        with open_small(files, clock) as store:
            settings = store.topic("t").settings
            found.add((settings.partitions, settings.retention_ms))
            assert 4 == len(values(store))
            store.alter_topic("t", partitions=5)
            store.send("t", b"there", partition=4)
            store.check()
    assert {(2, None), (4, 9_000)} == found


def test_a_topic_begins_to_use_object_storage(disk: SimulatedFiles, clock: ManualClock) -> None:
    remote = MemoryStore()
    with open_store(PATH, small(), clock, disk, remote, background=False) as store:
        store.create_topic("t")
        store.send_many("t", [b"old"] * 3)
        store.alter_topic("t", remote_storage_enable=True, local_retention_ms=0)
        assert [0, 1, 0] == [store.offload(roll=roll)["t-0"].uploaded for roll in (False, True, True)]
        clock.advance(10)
        store.offload()
        assert 3 == len(values(store))
        with pytest.raises(InvalidTopic):
            store.alter_topic("t", remote_storage_enable=False, local_retention_ms=None)
        store.alter_topic("t", retention_ms=10**9)
    with open_store(Path("/fresh"), small(), clock, SimulatedFiles(), remote, background=False) as store:
        assert 10**9 == store.topic("t").settings.retention_ms
        assert 3 == len(values(store))


def test_a_topic_that_is_deleted_during_a_sync_fails_it_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_small(SimulatedFiles(), ManualClock(NOW_MS)) as store:
        store.create_topic("a")
        store.send("a", b"a")
        commits = list(store._commits())
        store.delete_topic("a")
        monkeypatch.setattr(store, "_commits", lambda: commits)
        store.sync()


@pytest.mark.parametrize("before", [True, False])
def test_topics_and_topic_agree_after_a_deletion_that_was_struck(
    disk: SimulatedFiles, clock: ManualClock, before: bool
) -> None:
    """Before it has happened, or behind it: what the one names the other finds, and it can be read."""
    begin_topic = Deletions.begin_topic

    def struck(deletions: Deletions, name: str, settings: TopicSettings) -> None:
        if not before:
            begin_topic(deletions, name, settings)
        raise KeyboardInterrupt

    with open_small(disk, clock) as store:
        store.create_topics(["a", "b"])
        with patch.object(Deletions, "begin_topic", struck), pytest.raises(KeyboardInterrupt):
            store.delete_topic("a")
        assert (["a", "b"] if before else ["b"]) == [topic.name for topic in store.topics()]
        assert before == ("a" in store.topics())
        store.check()
