"""Sends with unique keys against a model in dicts, and what a bug there would look like."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from afterlog import CancelResult, ManualClock, RecordId, Store, UniqueKeyConflict, encode_batch
from afterlog.base.errors import InvalidArgument, InvalidRecord, InvalidTopic, RecordTooLarge
from afterlog.fetch.partition import Partition
from afterlog.log import unique_appends, unique_key_scan
from afterlog.log.unique_appends import Holders, UniqueAppends
from afterlog.records.batch import Record
from afterlog.store.store import open_store
from tests import campaigns
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, PATH, drained, killed, open_small, small
from tests.tier.memory_store import MemoryStore

pytestmark = pytest.mark.usefixtures("quiet")
WAYS = ("raise", "keep", "replace")


class Unique:
    """A store with one topic, and what should be in it."""

    def __init__(self, partitions: int = 1, **settings: Any) -> None:
        self.disk = SimulatedFiles()
        self.clock = ManualClock(NOW_MS)
        self.settings = settings
        self.open()
        self.store.create_topic("t", partitions)

    def open(self) -> None:
        self.store: Store = open_small(self.disk, self.clock, **self.settings)

    def kill(self) -> None:
        self.disk = killed(self.disk)
        self.open()

    @property
    def partition(self) -> Partition:
        return self.store.topic("t").partition(0)

    def send(self, key: bytes | None, after_ms: int = 100, way: Any = "raise", value: bytes = b"v") -> int:
        at = self.clock.now_ms() + after_ms
        return self.store.send("t", value, deliver_after=at, unique_key=key, on_conflict=way).offset

    def send_many(self, keys: list[bytes | None], after_ms: list[int], way: Any = "raise", **more: Any) -> list[int]:
        at = [self.clock.now_ms() + each for each in after_ms]
        values = [b"%d" % row for row in range(len(keys))]
        sent = self.store.send_many("t", values, deliver_after=at, unique_keys=keys, on_conflict=way, **more)
        found: list[int] = sent.tolist()
        return found

    def pending(self) -> dict[int, bytes | None]:
        return {record.offset: record.value for record in self.store.pending("t", limit=1_000)}


@pytest.fixture
def unique() -> Iterator[Unique]:
    unique = Unique()
    yield unique
    unique.store.check()
    unique.store.close()


class TestOne:
    def test_raise_names_the_holder_and_writes_nothing(self, unique: Unique) -> None:
        holder = unique.send(b"k")
        with pytest.raises(UniqueKeyConflict, match=r"t-0@0 is pending.*b'k'") as raised:
            unique.send(b"k")
        assert RecordId("t", 0, holder) == raised.value.record
        assert not raised.value.retriable
        assert 1 == unique.partition.log_end_offset

    def test_keep_answers_with_the_holder(self, unique: Unique) -> None:
        assert unique.send(b"k") == unique.send(b"k", way="keep")
        assert 1 == unique.partition.log_end_offset

    def test_replace_is_cancel_and_append(self, unique: Unique) -> None:
        holder = unique.send(b"k", value=b"old")
        taker = unique.send(b"k", 50, "replace", b"new")
        assert (holder + 2, {taker: b"new"}) == (taker, unique.pending())
        assert CancelResult.ALREADY_CANCELLED == unique.store.cancel(RecordId("t", 0, holder))
        unique.clock.advance(1_000)
        assert [b"new"] == drained(unique.partition)

    def test_replace_where_nobody_holds_it_is_a_send(self, unique: Unique) -> None:
        assert 0 == unique.send(b"k", way="replace")
        assert 1 == unique.partition.log_end_offset

    def test_due_or_cancelled_the_key_is_free(self, unique: Unique) -> None:
        first = unique.send(b"k", 10)
        unique.clock.advance(10)
        second = unique.send(b"k", 10)
        assert CancelResult.CANCELLED == unique.store.cancel(RecordId("t", 0, second))
        third = unique.send(b"k", 10)
        assert first < second < third
        assert third == unique.send(b"k", way="keep")

    def test_due_at_once_holds_nothing(self, unique: Unique) -> None:
        assert [0, 1, 2] == [unique.send(b"k", after, way) for after, way in ((0, "raise"), (-5, "keep"), (9, "keep"))]

    def test_a_reschedule_takes_it_along(self, unique: Unique) -> None:
        holder = unique.send(b"k")
        again = unique.store.reschedule(RecordId("t", 0, holder), delay=60)
        assert again.offset == unique.send(b"k", way="keep")
        unique.kill()
        assert again.offset == unique.send(b"k", way="keep")

    def test_other_headers_stay_behind_it(self, unique: Unique) -> None:
        unique.store.send("t", b"v", headers=[("a", b"b")], unique_key=b"k")
        unique.clock.advance(1)
        with unique.store.consumer("t", group="g") as consumer:
            assert (("unique-key", b"k"), ("a", b"b")) == consumer.poll()[0].headers

    def test_over_a_kill_a_close_and_a_roll(self, unique: Unique) -> None:
        held = {b"k%d" % number: unique.send(b"k%d" % number, 1_000 + number) for number in range(40)}
        for life in (unique.kill, unique.store.close, unique.kill):
            life()
            unique.disk = killed(unique.disk)
            unique.open()
            unique.partition.log.roll()
            unique.partition.log.merge_buckets()
            assert held == {key: unique.send(key, way="keep") for key in held}
            unique.store.check()

    @pytest.mark.parametrize("settings", [{"compression": "zstd"}, {"deliver_after_spread_ms": 50}], ids=str)
    def test_with_other_settings(self, settings: dict[str, Any]) -> None:
        unique = Unique(**settings)
        first = unique.send(b"k", value=b"v" * 500)
        assert first == unique.send(b"k", way="keep")
        many = unique.send_many([b"a", b"b", b"k"], [10, 20, 90], "keep")
        assert first == many[2]
        taken = unique.send_many([b"a", None, b"k"], [10, 20, 90], "replace")
        assert sorted(unique.pending()) == sorted([many[1], *taken])
        unique.kill()
        assert taken[::2] == [unique.send(key, way="keep") for key in (b"a", b"k")]
        unique.store.check()


class TestRefused:
    def test_topics_that_have_none(self, unique: Unique) -> None:
        unique.store.create_topic("fifo", delayed=False)
        with pytest.raises(InvalidTopic, match="nothing is pending"):
            unique.store.send("fifo", b"v", unique_key=b"k")

    def test_a_topic_that_uploads(self) -> None:
        with open_store(PATH, small(), ManualClock(NOW_MS), SimulatedFiles(), MemoryStore(), background=False) as store:
            store.create_topic("far", remote_storage_enable=True)
            with pytest.raises(InvalidTopic, match="uploads"):
                store.send_many("far", [b"v"], unique_keys=[b"k"])

    def test_what_cannot_be_a_key_or_a_way(self, unique: Unique) -> None:
        for wrong in (b"", b"x" * 1_025, "x"):
            with pytest.raises(InvalidRecord):
                unique.send(wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="give one"):
            unique.send(None, way="keep")
        with pytest.raises(InvalidArgument, match="replace"):
            unique.send(b"k", way="never")
        with pytest.raises(InvalidRecord, match="1 values but 2 unique keys"):
            unique.store.send_many("t", [b"v"], unique_keys=[b"k", b"l"])
        with pytest.raises(RecordTooLarge):
            unique.send(b"k", value=bytes(4_000))
        with pytest.raises(RecordTooLarge):
            unique.store.send_many("t", [b"v", bytes(4_000)], unique_keys=[b"k", b"l"])
        assert 0 == unique.partition.log_end_offset

    def test_no_values_are_no_conflict(self, unique: Unique) -> None:
        assert [] == unique.store.send_many("t", [], unique_keys=[]).tolist()


class TestMany:
    def test_conflicts_within_the_call(self, unique: Unique) -> None:
        keys = [b"a", None, b"a", b"b", b"a"]
        after = [10, 10, 20, 10, 30]
        with pytest.raises(UniqueKeyConflict, match="record 0 has the unique key b'a' of record 2") as raised:
            unique.send_many(keys, after)
        assert raised.value.record is None
        assert 0 == unique.partition.log_end_offset
        assert [0, 1, 0, 2, 0] == unique.send_many(keys, after, "keep")
        replaced = unique.send_many(keys, after, "replace")
        assert replaced[0] == replaced[2] == replaced[4]
        assert {1, replaced[0], replaced[1], replaced[3]} == unique.pending().keys()

    def test_a_conflict_with_one_that_is_pending(self, unique: Unique) -> None:
        holder = unique.send(b"b")
        with pytest.raises(UniqueKeyConflict, match=r"t-0@0 is pending.*b'b' of record 1") as raised:
            unique.send_many([b"a", b"b"], [10, 10])
        assert RecordId("t", 0, holder) == raised.value.record

    def test_equal_times_share_a_batch_that_replaces_at_once(self, unique: Unique) -> None:
        unique.send_many([b"%d" % n for n in range(9)], [50] * 9)
        taken = unique.send_many([b"%d" % n if n != 4 else None for n in range(9)], [60] * 9, "replace")
        assert [*range(10, 19)] == taken
        assert {4, *taken} == unique.pending().keys()
        unique.kill()
        assert {4, *taken} == unique.pending().keys()

    def test_each_goes_by_its_unique_key(self) -> None:
        unique = Unique(partitions=4)
        keys: list[bytes | None] = [b"k%d" % number for number in range(40)]
        unique.send_many(keys, [100] * 40)
        topic = unique.store.topic("t")
        assert all(partition.log_end_offset for partition in topic.partitions)
        for key in keys:
            at = unique.store.send("t", b"", unique_key=key, on_conflict="keep", delay=5)
            assert at.partition == topic.partition_of(key)
        ends = [partition.log_end_offset for partition in topic.partitions]
        with pytest.raises(UniqueKeyConflict):
            unique.send_many([*[b"new%d" % number for number in range(20)], b"k7"], [100] * 21)
        assert ends == [partition.log_end_offset for partition in topic.partitions], "of none a part"
        with pytest.raises(InvalidRecord, match="name the partition"):
            unique.send_many([b"x", None], [100] * 2)
        unique.store.send_many("t", [b"1", b"2"], keys=[b"a", b"b"], unique_keys=[b"x", None], delay=5)
        assert 0 <= unique.send_many([b"k7"], [100], partition=3)[0]
        unique.store.check()

    def test_more_than_a_segment(self, unique: Unique) -> None:
        keys: list[bytes | None] = [b"k%d" % number for number in range(300)]
        first = unique.send_many(keys, [*range(1_000, 1_300)])
        assert len(unique.partition.log.sealed) > 3
        assert first == unique.send_many(keys, [9] * 300, "keep")
        taken = unique.send_many(keys[::2], [*range(2_000, 2_150)], "replace")
        assert sorted([*first[1::2], *taken]) == sorted(unique.pending())


class TestOtherWaysIn:
    def test_a_batch_with_the_header_holds_the_key(self, unique: Unique) -> None:
        unique.send(b"first use")
        batch = encode_batch([Record(value=b"v", headers=[("unique-key", b"k")], timestamp=NOW_MS)])
        at = unique.partition.append(batch, deliver_after=NOW_MS + 50)
        assert at == unique.send(b"k", way="keep")
        second = unique.partition.append(batch, deliver_after=NOW_MS + 60)
        assert second not in {at, unique.send(b"k", way="keep")}
        taken = unique.send(b"k", way="replace")
        assert {0, taken} == unique.pending().keys(), "both went"
        unique.kill()
        assert taken == unique.send(b"k", way="keep")

    def test_a_plain_send_with_the_header_holds_it(self, unique: Unique) -> None:
        unique.send(b"first use")
        at = unique.store.send("t", b"v", headers=[("unique-key", b"k")], delay=5).offset
        unique.store.send("t", b"v", headers=[("a", b"k"), ("unique-key", b"l")], delay=5)
        assert at == unique.send(b"k", way="keep")
        assert 3 == unique.send(b"l")


def test_two_threads_cannot_both_win(unique: Unique) -> None:
    won, lost = list[int](), list[int]()

    def work() -> None:
        for number in range(30):
            try:
                won.append(unique.send(b"k%d" % number, 100_000))
            except UniqueKeyConflict:
                lost.append(number)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (30, 90) == (len(won), len(lost))
    assert sorted(won) == sorted(unique.pending())


def test_a_topic_that_never_used_them_pays_nothing(unique: Unique) -> None:
    unique.store.send_many("t", [b"v"] * 20, headers=[("unique-key", b"k")], deliver_after=[NOW_MS + 9] * 20)
    unique.partition.log.roll()
    unique.store.send("t", b"v", delay=9)
    with patch.object(unique_key_scan, "_rows", side_effect=AssertionError("the log is read for keys")):
        unique.kill()
        assert unique.partition.log.version.unique_keys is None
    assert not [path for path in unique.disk.image().contents if path.endswith(".uniquekeys")]


# --- Against a model


def lived(seed: int, **settings: Any) -> None:
    """Random sends, cancels, reschedules, checkpoints and kills; the model is a dict."""
    chance, unique = random.Random(seed), Unique(**settings)
    keys = [b"a", b"b", b"c", b"d"]
    holders: dict[bytes, int] = {}
    due: dict[int, int] = {}

    def now() -> int:
        """The clock that decides. After a kill it is ahead of the wall clock for as long as the frontier's lease."""
        return unique.partition.log.versions.stamp_reading()

    def at_ms(after_ms: int) -> int:
        return unique.clock.now_ms() + after_ms

    def holder(key: bytes) -> int | None:
        at = holders.get(key)
        return at if at is not None and due[at] > now() else None

    def send() -> None:
        key, after, way = chance.choice(keys), chance.choice([0, 5, 30, 200]), chance.choice(WAYS)
        held, conflict, at = holder(key), None, -1
        try:
            at = unique.send(key, after, way)
        except UniqueKeyConflict as error:
            conflict = error.record
        if conflict is not None:
            assert ("raise", RecordId("t", 0, held or 0)) == (way, conflict)
            return
        assert (way == "keep" and at == held) or held is None or way == "replace"
        if at != held:
            holders[key], due[at] = at, at_ms(after)

    def send_many() -> None:
        count, way = chance.randrange(1, 9), chance.choice(WAYS)
        chosen = [chance.choice([*keys, None]) for _ in range(count)]
        after = [chance.choice([0, 5, 30, 30, 200]) for _ in range(count)]
        before, end = {key: holder(key) for key in keys}, unique.partition.log.written
        conflict, standing = False, {key for key in keys if before[key] is not None}
        for key, each in zip(chosen, after, strict=True):
            conflict = conflict or key in standing
            standing |= {key} if key is not None and at_ms(each) > now() else set()
        try:
            sent = unique.send_many(chosen, after, way)
        except UniqueKeyConflict:
            assert way == "raise"
            assert conflict
            assert end == unique.partition.log.written
            return
        assert way != "raise" or not conflict
        for row, (key, each, at) in enumerate(zip(chosen, after, sent, strict=True)):
            later = [other for other in range(row + 1, count) if chosen[other] == key]
            if key is None:
                assert at >= end
            elif way == "keep" and holder(key) is not None:
                assert at == holder(key)
            elif way == "replace" and at_ms(each) > now() and later:
                assert at == sent[later[0]]
            else:
                assert at >= end
                holders[key], due[at] = at, at_ms(each)
        assert len({at for at in sent if at >= end}) + end <= unique.partition.log.written

    def cancel() -> None:
        key = chance.choice(keys)
        at = holder(key)
        if at is not None:
            assert CancelResult.CANCELLED == unique.store.cancel(RecordId("t", 0, at))
            del holders[key]

    def reschedule() -> None:
        key = chance.choice(keys)
        at = holder(key)
        if at is not None:
            again = unique.store.reschedule(RecordId("t", 0, at), deliver_after=at_ms(40)).offset
            holders[key], due[again] = again, at_ms(40)

    def reopen() -> None:
        unique.store.close()
        unique.open()

    does = [
        send, send, send, send_many, send_many, cancel, reschedule,
        lambda: unique.clock.advance(chance.choice([1, 9, 50])),
        lambda: unique.partition.log.checkpoint(), lambda: unique.partition.log.roll(), unique.kill, reopen,
        lambda: unique.partition.log.merge_buckets(),
    ]  # fmt: skip
    for _ in range(60):
        chance.choice(does)()
        unique.store.check()
        for key in keys:
            at = holder(key)
            shown = [each for each in unique.partition.scheduled(1_000).to_messages() if each.due > now()]
            held = [each.offset for each in shown if dict(each.headers).get("unique-key") == key]
            assert [at] * (at is not None) == held, key
    unique.store.close()


@pytest.mark.parametrize("number", range(12 * campaigns.DEPTH))
def test_whatever_happens_it_is_what_a_dict_would_do(number: int) -> None:
    seed = 1_000 * campaigns.SEED + number
    lived(seed, compression=("none", "gzip")[number % 2], min_index_count_per_bucket=(8, 3, 1_000)[number % 3])


@pytest.mark.parametrize("number", range(3))
def test_keys_of_one_hash_are_told_apart(number: int) -> None:
    with one_hash():
        lived(1_000 * campaigns.SEED + number)


def one_hash() -> Any:
    """Every key has the same."""

    class Both:
        def __enter__(self) -> None:
            self.patches = [
                patch.object(unique_appends, "hash_of", lambda key: 7),
                patch.object(unique_appends, "hashes_of", lambda keys: np.full(len(keys), 7)),
                patch.object(unique_key_scan, "hashes_in", lambda data, start, end: np.full(len(start), 7)),
                patch("afterlog.records.unique_key.hash_of", lambda key: 7),
            ]
            for each in self.patches:
                each.start()

        def __exit__(self, *_: object) -> None:
            for each in self.patches:
                each.stop()

    return Both()


def unconfirmed(appends: UniqueAppends, found: Holders, keys: list[bytes]) -> Holders:
    """A hash is taken for the key."""
    offset, first = np.unique(found.offset, return_index=True)
    return Holders(found.which[first], offset, found.due[first])


def never_freed(appends: UniqueAppends, found: Holders) -> Holders:
    """A record that is cancelled goes on holding its key."""
    is_pending = found.due > appends.reading_ms
    return Holders(*(column[is_pending] for column in found))


def held_for_ever(appends: UniqueAppends, found: Holders) -> Holders:
    """So does one that is due."""
    cancelled = appends._versions.current.cancellations.targets.holds(found.due, found.offset)
    return Holders(*(column[~cancelled] for column in found))


@pytest.mark.parametrize(
    ("method", "bug", "collide"),
    [("_confirmed", unconfirmed, True), ("_pending", never_freed, False), ("_pending", held_for_ever, False)],
    ids=["a hash is taken for the key", "cancel does not free it", "due does not free it"],
)
def test_planted_bug_is_caught(method: str, bug: Any, collide: bool) -> None:
    with patch.object(UniqueAppends, method, bug):
        for seed in range(20):
            try:
                if collide:
                    with one_hash():
                        lived(seed)
                else:
                    lived(seed)
            except (AssertionError, UniqueKeyConflict):
                campaigns.count("planted bugs, caught", 1)
                return
    raise AssertionError("nobody saw it")
