"""Sends that their producers number: each is there once, whoever sends it again and however it is cut."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.base.clock import ManualClock
from afterlog.base.config import ALWAYS
from afterlog.base.errors import (
    AfterlogError,
    InvalidArgument,
    InvalidDeliverAfter,
    InvalidRecord,
    OutOfOrderSequence,
    PartitionPoisoned,
    ProducerFenced,
    RecordTooLarge,
    StorageFull,
    WrongType,
)
from afterlog.base.names import LOG, segment_file
from afterlog.log.append import Appender
from afterlog.produce import numbered
from afterlog.produce.numbered import AppendRequest
from afterlog.records.producer_sequence import ProducerSequence
from afterlog.records.single import SingleRecord, columns_of
from afterlog.records.times import AS_SOON_AS_POSSIBLE
from afterlog.store.store import Store
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, Background, Calls, HeldFiles, content, drained, killed, open_small, with_file

pytestmark = pytest.mark.usefixtures("quiet")


class Setting:
    def __init__(self, disk: SimulatedFiles | None = None, **config: Any) -> None:
        self.calls = Calls()
        self.disk = disk or SimulatedFiles()
        self.files = HeldFiles(self.disk, self.calls)
        self.clock = ManualClock(NOW_MS)
        self.config = config
        self.store: Store = open_small(self.files, self.clock, **config)
        self.topic = self.store.create_topic("t", partitions=2)

    @property
    def log(self) -> Any:
        return self.topic.log(0)

    def send(self, sequence: int, value: bytes = b"v", producer_id: int = 7, epoch: int = 0, **more: Any) -> int:
        sent = ProducerSequence(producer_id, epoch, sequence)
        return self.store.send("t", value, partition=0, sequence=sent, **more).offset

    def send_many(self, sequence: int, values: list[bytes], **more: Any) -> list[int]:
        return self.store.send_many(
            "t", values, partition=0, sequence=ProducerSequence(7, 0, sequence), **more
        ).tolist()  # type: ignore[no-any-return]

    def together(self, *requests: AppendRequest) -> list[Any]:
        answers = self.topic.append_together(0, requests)
        return [answer if isinstance(answer, AfterlogError) else answer.tolist() for answer in answers]

    def values(self) -> list[bytes | None]:
        return drained(self.topic.partition(0))


def one(value: bytes, *sent: int, at: int = AS_SOON_AS_POSSIBLE, headers: bytes = b"") -> AppendRequest:
    return AppendRequest(SingleRecord(value, None, headers, NOW_MS, at), ProducerSequence(*sent) if sent else None)


def many(values: list[bytes], *sent: int, at: int = AS_SOON_AS_POSSIBLE) -> AppendRequest:
    columns = columns_of([SingleRecord(value, None, b"", NOW_MS, at) for value in values])
    return AppendRequest(columns, ProducerSequence(*sent) if sent else None)


@pytest.fixture
def setting() -> Iterator[Setting]:
    setting = Setting()
    yield setting
    setting.store.check()
    setting.store.close()


class TestSend:
    def test_again_is_where_it_was(self, setting: Setting) -> None:
        """Whatever else differs: the sequence alone says which record it is."""
        assert 0 == setting.send(0, b"a", delay=5)
        assert 1 == setting.send(1, b"b")
        assert 0 == setting.send(0, b"other", delay=9, key=b"k")
        assert 1 == setting.send(1, b"b")
        setting.clock.advance(6_000)
        assert [b"b", b"a"] == setting.values()

    def test_gaps_and_old_epochs(self, setting: Setting) -> None:
        with pytest.raises(OutOfOrderSequence, match="not known here"):
            setting.send(1)
        setting.send(0)
        with pytest.raises(OutOfOrderSequence, match="1 is next") as gap:
            setting.send(2)
        assert (1, False) == (gap.value.expected, gap.value.retriable)
        with pytest.raises(OutOfOrderSequence, match="begin with sequence 0"):
            setting.send(1, epoch=1)
        assert 1 == setting.send(0, epoch=1)
        with pytest.raises(ProducerFenced, match="epoch 1") as fenced:
            setting.send(0)
        assert (1, False) == (fenced.value.epoch, fenced.value.retriable)
        assert 2 == setting.log.written

    def test_what_is_refused_or_there_does_not_touch_the_disk(self, setting: Setting) -> None:
        setting.send(0)
        made = setting.calls.made.copy()
        setting.send(0)
        setting.send_many(0, [b"v"])
        setting.together(one(b"v", 7, 0, 0), one(b"v", 7, 0, 9), one(b"v", 8, 0, 9))
        with pytest.raises(OutOfOrderSequence):
            setting.send(9)
        assert made == setting.calls.made

    def test_partitions_count_by_themselves(self, setting: Setting) -> None:
        for partition in (0, 1):
            record = setting.store.send("t", b"v", partition=partition, sequence=ProducerSequence(7, 0, 0))
            assert (partition, 0) == (record.partition, record.offset)

    def test_what_it_must_be_given_with(self, setting: Setting) -> None:
        sent, wrong = ProducerSequence(7, 0, 0), [7, 0, 0]
        for call in (setting.store.send, setting.store.send_many):
            value: Any = b"v" if call == setting.store.send else [b"v"]
            keys: Any = {"unique_key": b"k"} if call == setting.store.send else {"unique_keys": [b"k"]}
            with pytest.raises(InvalidArgument, match="give `partition`"):
                call("t", value, sequence=sent)  # type: ignore[operator]
            with pytest.raises(InvalidArgument, match="not both"):
                call("t", value, partition=0, sequence=sent, delay=1, **keys)  # type: ignore[operator]
            with pytest.raises(WrongType, match="ProducerSequence"):
                call("t", value, partition=0, sequence=wrong)  # type: ignore[operator]
        assert 0 == setting.log.written

    def test_a_compressed_topic_has_no_short_way(self) -> None:
        setting = Setting(compression="gzip")
        assert [0, 1, 0] == [setting.send(0, b"v" * 99), setting.send(1, b"v"), setting.send(0, b"v" * 99)]
        setting.store.check()

    @pytest.mark.parametrize("durability", ["send", "many", "together"])
    def test_a_retry_returns_when_it_is_safe(self, durability: str) -> None:
        """The first was written, and its sync has not ended."""
        setting = Setting(durability=ALWAYS)
        again = {
            "send": lambda: setting.send(0),
            "many": lambda: setting.send_many(0, [b"v"]),
            "together": lambda: setting.together(one(b"v", 7, 0, 0)),
        }[durability]
        gate = setting.files.hold("sync", LOG)
        first = Background(lambda: setting.send(0))
        gate.came()
        retry = Background(again)
        retry.join(0.05)
        assert retry.is_alive()
        assert 0 == setting.log.log_end_offset
        gate.open()
        assert 0 == first.answer()
        assert retry.answer() in (0, [0], [[0]])
        setting.store.close()

    def test_threads_that_send_the_same(self) -> None:
        setting = Setting(durability=ALWAYS)
        found, barrier = list[int](), threading.Barrier(4)

        def send() -> None:
            barrier.wait()
            for sequence in range(20):
                found.append(setting.send(sequence, b"%d" % sequence))

        threads = [Background(send) for _ in range(4)]
        for thread in threads:
            thread.answer()
        assert [b"%d" % sequence for sequence in range(20)] == setting.values()
        setting.store.close()


class TestSendMany:
    def test_the_rest_of_what_was_cut(self) -> None:
        """A crash left whole batches of a call; sent again, the rest goes behind, and all have their offsets."""
        setting = Setting()
        values = [b"%d" % row for row in range(9)]
        due = [NOW_MS + row // 2 for row in range(9)]
        assert [*range(9)] == setting.send_many(0, values, deliver_after=due)
        scanned = [*setting.log.index.bucket.entries()]
        for cut in range(1, len(scanned)):
            image = killed(setting.disk)
            path = setting.log.path / segment_file(0, LOG)
            again = Setting(with_file(image, path, content(image, path)[: scanned[cut].position]))
            assert scanned[cut].offset == again.log.written
            again.store.send("t", b"between", partition=0)
            left = scanned[cut].offset
            expected = [*range(left), *range(left + 1, 10)]
            assert expected == again.send_many(0, values, deliver_after=due)
            assert expected == again.send_many(0, values, deliver_after=due)
            assert expected[3:] == again.send_many(3, values[3:], deliver_after=due[3:])
            again.clock.advance(100)
            assert sorted([*values, b"between"]) == sorted(value or b"" for value in again.values())
            again.store.check()
            again.store.close()

    @pytest.mark.parametrize("compression", ["none", "gzip"])
    @pytest.mark.parametrize("spread_ms", [0, 10])
    def test_the_disk_is_full_in_the_middle(self, compression: str, spread_ms: int) -> None:
        """Of a call over segments, what went before the failure stays, and a retry appends the rest."""
        setting = Setting(compression=compression, deliver_after_spread_ms=spread_ms, batch_bytes=300)
        chance = np.random.default_rng(5)
        values = [b"%d " % row + chance.bytes(200) for row in range(60)]
        due = [NOW_MS + int(at) for at in chance.integers(0, 50, 60)]
        room = [3]
        roll = Appender._append_to_segment

        def rolled(appender: Appender, *arguments: Any) -> Any:
            room[0] -= 1
            if room[0] < 0:
                raise StorageFull("no room", path=setting.log.path)
            return roll(appender, *arguments)

        with patch.object(Appender, "_append_to_segment", rolled), pytest.raises(StorageFull):
            setting.send_many(0, values, deliver_after=due)
        left = setting.log.written
        assert 0 < left < 60
        setting.store.send("t", b"between", partition=0)
        offsets = setting.send_many(0, values, deliver_after=due)
        assert 61 == setting.log.written
        assert sorted(offsets) == [offset for offset in range(61) if offset != left]
        assert offsets == setting.send_many(0, values, deliver_after=due)
        setting.clock.advance(100)
        columns, _ = setting.topic.partition(0).columns(0, 100, 1 << 20)
        held = {message.offset: message.value for message in columns.to_messages()}
        assert values == [held[offset] for offset in offsets]
        setting.store.check()

    def test_in_parts(self, setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("afterlog.records.encode.PART_RECORDS", 4)
        values = [b"%d" % row for row in range(10)]
        assert [*range(10)] == setting.send_many(0, values)
        assert [*range(10)] == setting.send_many(0, values)
        assert [5, 6, 10] == setting.send_many(5, [*values[5:7], b"x"])[:2] + setting.send_many(10, [b"x"])

    def test_the_order_given(self) -> None:
        """With a spread records are numbered as they are written, and the answers are in the order given."""
        setting = Setting(deliver_after_spread_ms=5)
        values, due = [b"late", b"early", b"soon"], [NOW_MS + 90, NOW_MS + 1, NOW_MS + 3]
        expected = [2, 0, 1]
        assert expected == setting.send_many(0, values, deliver_after=due)
        assert expected == setting.send_many(0, values, deliver_after=due)
        assert 3 == setting.log.written

    def test_nothing(self, setting: Setting) -> None:
        assert [] == setting.send_many(5, [])

    @given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 9)), max_size=12))
    def test_any_overlap(self, calls: list[tuple[int, int]]) -> None:
        """Each call begins so many before the next: what is there stays where it is, and each value is there once."""
        setting, where = Setting(), list[int]()
        for back, count in calls:
            sequence = max(len(where) - back, 0)
            values = [b"%d" % row for row in range(sequence, sequence + count)]
            offsets = setting.send_many(sequence, values)
            known = where[sequence : sequence + count]
            assert known == offsets[: len(known)]
            where += offsets[len(known) :]
        assert [b"%d" % row for row in range(len(where))] == setting.values()
        setting.store.check()
        setting.store.close()


@pytest.mark.parametrize("few", [0, 32], ids=["columns", "singly"])
class TestTogether:
    @pytest.fixture(autouse=True)
    def _way(self, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(numbered, "FEW", few)

    def test_each_fails_by_itself(self, setting: Setting) -> None:
        setting.send(0)
        answers = setting.together(
            one(b"plain"),
            one(b"again", 7, 0, 0),
            one(b"b", 7, 0, 1),
            one(b"b", 7, 0, 1),
            one(b"gap", 7, 0, 5),
            many([b"c", b"d"], 7, 0, 2),
            many([b"d", b"e"], 7, 0, 3),
            one(b"other", 8, 2, 0),
            one(b"fenced", 8, 1, 0),
            many([b"x", b"y"]),
        )
        assert [[1], [0], [2], [2]] == answers[:4]
        assert isinstance(answers[4], OutOfOrderSequence)
        assert [[3, 4], [4, 5], [6]] == answers[5:8]
        assert isinstance(answers[8], ProducerFenced)
        assert [7, 8] == answers[9]
        expected = [b"v", b"plain", b"b", b"c", b"d", b"e", b"other", b"x", b"y"]
        assert expected == setting.values()
        again = Setting(killed(setting.disk))
        assert [[5], [4, 5]] == again.together(one(b"e", 7, 0, 4), many([b"d", b"e"], 7, 0, 3))

    def test_one_sync_and_of_columns_one_write(self, few: int) -> None:
        setting = Setting(durability=ALWAYS, segment_bytes=1 << 20, min_index_count_per_bucket=1_000)
        setting.send(0)
        made = setting.calls.made.copy()
        requests = [one(b"%d" % row, 100 + row, 0, 0, at=NOW_MS + row) for row in range(30)]
        assert [[1 + row] for row in range(30)] == setting.together(*requests)
        assert {("append", LOG): 30 if few else 1, ("sync", LOG): 1} == {
            (operation, name[-4:]): count for (operation, name), count in (setting.calls.made - made).items()
        }
        setting.store.close()

    def test_the_same_bytes_as_one_by_one(self) -> None:
        requests = [one(b"a", 7, 0, 0), one(b"b"), one(b"c", 7, 0, 1, at=NOW_MS + 9), many([b"d", b"e"], 7, 0, 2)]
        logs = []
        for apart in (True, False):
            setting = Setting()
            for chosen in [[each] for each in requests] if apart else [requests]:
                setting.together(*chosen)
            segment = setting.log.version.active
            logs.append(segment.tail(0).tobytes())
            setting.store.close()
        setting = Setting()
        setting.send(0, b"a")
        setting.store.send("t", b"b", partition=0)
        setting.send(1, b"c", deliver_after=NOW_MS + 9)
        setting.send_many(2, [b"d", b"e"])
        logs.append(setting.log.version.active.tail(0).tobytes())
        assert 1 == len({*logs})

    def test_what_cannot_be_taken(self, setting: Setting) -> None:
        answers = setting.together(
            one(bytes(9_000)), one(b"a", headers=b"\x05"), one(b"b", 7, 0, 0), many([bytes(9_000)], 7, 0, 1), one(b"c")
        )
        assert [RecordTooLarge, InvalidRecord, list, RecordTooLarge, list] == [type(answer) for answer in answers]
        assert [b"b", b"c"] == setting.values()
        assert [] == setting.together()
        nothing = AppendRequest(many([b"v"]).records[0:0], ProducerSequence(7, 0, 9))  # type: ignore[arg-type]
        assert [[], [2]] == setting.together(nothing, one(b"c"))
        fifo = setting.store.create_topic("fifo", delayed=False)
        [refused, taken] = fifo.append_together(0, [one(b"a", at=NOW_MS), one(b"b", 7, 0, 0)])
        assert "delayed=False" in str(refused)
        assert [0] == taken.tolist()  # type: ignore[union-attr]
        assert [0] == fifo.append_together(0, [one(b"b", 7, 0, 0)])[0].tolist()  # type: ignore[union-attr]

    def test_beyond_max_delay(self, setting: Setting) -> None:
        topic = setting.store.create_topic("near", max_delay_ms=5)
        refused, taken = topic.append_together(0, [one(b"a", 7, 0, 0, at=NOW_MS + 9), one(b"b", 8, 0, 0)])
        assert isinstance(refused, InvalidDeliverAfter)
        assert [0] == taken.tolist()  # type: ignore[union-attr]

    def test_the_disk_is_full(self, setting: Setting, few: int) -> None:
        """What does not fit fails, what is there already does not; and it can be sent again."""
        setting.send(0)
        setting.calls.fail("append", LOG, StorageFull("no room", path=setting.log.path))
        again, full, refused = setting.together(one(b"v", 7, 0, 0), one(b"a", 7, 0, 1), one(b"b", 7, 0, 9))
        assert [0] == again
        assert isinstance(full, StorageFull)
        assert isinstance(refused, StorageFull if few else OutOfOrderSequence)
        assert [[1], [2]] == setting.together(one(b"a", 7, 0, 1), one(b"b", 7, 0, 2))

    def test_full_behind_a_segment(self, setting: Setting) -> None:
        """Those of the segment before are there."""
        values = [b"%d" % row + bytes(500) for row in range(12)]
        requests = [one(value, 7, 0, row) for row, value in enumerate(values)]
        setting.calls.fail("create", LOG, StorageFull("no room", path=setting.log.path))
        answers = setting.together(*requests)
        left = setting.log.written
        assert 0 < left < 12
        assert [[row] for row in range(left)] == answers[:left]
        assert {StorageFull} == {type(answer) for answer in answers[left:]}
        assert [[row] for row in range(12)] == setting.together(*requests)
        assert values == setting.values()

    def test_nobody_knows_what_came_of_them(self, setting: Setting) -> None:
        setting.calls.fail("append", LOG, OSError(5, "broken"))
        with pytest.raises(PartitionPoisoned):
            setting.together(one(b"a", 7, 0, 0))
        with pytest.raises(PartitionPoisoned):
            setting.send(0)
        again = Setting(killed(setting.disk))
        assert [[0], [1]] == again.together(one(b"a", 7, 0, 0), one(b"b", 7, 0, 1))
        again.store.close()
        setting.store.close()
        setting.store = open_small(SimulatedFiles(), setting.clock)

    def test_from_threads(self) -> None:
        """Groups of several callers, who all come again."""
        setting = Setting(durability=ALWAYS)

        def group(producer_id: int) -> list[Any]:
            found = []
            for sequence in range(8):
                request = one(b"%d %d" % (producer_id, sequence), producer_id, 0, sequence)
                first, again = setting.together(request, request)
                assert first == again
                found += first
            return found

        groups = [Background(lambda number=number: group(number)) for number in range(4)]
        found = [offset for each in groups for offset in each.answer()]
        assert [*range(32)] == sorted(found)
        assert 32 == len({*setting.values()})
        setting.store.close()
