"""What waits, on disk, beside a list: in every order, over a reopening, and with a cache that is not to be believed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from afterlog.relay.instruction import ScheduledDelivery
from afterlog.relay.pending_records import BUFFERED, PendingRecords, packed, unpacked
from afterlog.relay.rectangle import BEGINNING, ENDLESS, DueKey, Rectangle
from tests import campaigns
from tests.relay.simulation import PendingList, scheduled

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize(
    "record",
    [
        ScheduledDelivery(0, 0, "t", None, None, (), -1),
        ScheduledDelivery(2**62, 2**62, "töpic", b"", b"", (("a", None), ("a", b"")), 2**60, b"id", 2**61),
        ScheduledDelivery(5, 6, "t", b"key", b"value" * 1_000, (("h", b"1"),), 7, b"x" * 1_024),
    ],
)
def test_a_record_comes_out_as_it_came(record: ScheduledDelivery) -> None:
    assert record == unpacked(packed(record))


@pytest.mark.parametrize("number", range(6))
@pytest.mark.share(3)
def test_it_is_a_list(tmp_path: Path, number: int) -> None:
    chance = random.Random(campaigns.SEED * 100 + number)
    on_disk, in_list = PendingRecords(tmp_path / "p"), PendingList()
    frontier, offset = BEGINNING, 0
    for _ in range(400):
        what = chance.random()
        if what < 0.6:
            offset += chance.randrange(1, 4)
            due_ms = max(frontier.due_ms, 0) + chance.randrange(0, 50)
            schedule_id = chance.choice((b"", b"", b"%d" % chance.randrange(6)))
            record = scheduled(offset, due_ms, schedule_id)
            for each in (on_disk, in_list):
                if schedule_id:
                    each.cancel(schedule_id, record.order)
                if record.due_key > frontier:
                    each.add(record)
        elif what < 0.7:
            schedule_id = b"%d" % chance.randrange(6)
            order = offset - chance.randrange(4)
            assert in_list.cancel(schedule_id, order) == on_disk.cancel(schedule_id, order)
        elif what < 0.8:
            before = chance.randrange(offset + 2)
            assert in_list.take_oldest(before, 3) == on_disk.take_oldest(before, 3)
        elif what < 0.97:
            upto_ms, most = max(frontier.due_ms, 0) + chance.randrange(8), chance.choice((2, 5, 100))
            while True:  # all of it, as a partition does before it takes anything in
                taken = in_list.take(upto_ms, most)
                assert taken == on_disk.take(upto_ms, most)
                if len(taken) < most:
                    break
            frontier = DueKey(upto_ms, ENDLESS)
        else:
            rectangle = Rectangle(offset + 1, frontier, 0)
            on_disk.save("topic", rectangle)
            on_disk = PendingRecords.cached(tmp_path / "p", "topic", rectangle)
            assert on_disk.is_cached
        next_ms, known_ms = in_list.next_due_ms(), on_disk.next_due_ms()
        assert (in_list.lowest(), len(in_list)) == (on_disk.lowest(), len(on_disk))
        assert (next_ms is None) == (known_ms is None)
        assert next_ms is None or known_ms is None or known_ms <= next_ms
    on_disk.close()


def test_many_are_appended_together(tmp_path: Path) -> None:
    pending = PendingRecords(tmp_path / "p")
    for offset in range(3 * BUFFERED):
        pending.add(scheduled(offset, 10 + offset % 7))
    assert [*range(3, 3 * BUFFERED, 7)] == [each.offset for each in pending.take(13, 10**6) if each.due_ms == 13]
    pending.close()


class TestCache:
    RECTANGLE = Rectangle(10, DueKey(5, ENDLESS), 0)

    def saved(self, folder: Path) -> None:
        pending = PendingRecords(folder)
        pending.take(5, 10)
        pending.add(scheduled(0, 8))
        pending.add(scheduled(3, 6))
        pending.save("topic", self.RECTANGLE)

    def test_it_goes_on(self, tmp_path: Path) -> None:
        self.saved(tmp_path)
        pending = PendingRecords.cached(tmp_path, "topic", self.RECTANGLE)
        assert pending.is_cached
        assert [3, 0] == [each.offset for each in pending.take(9, 10)]
        pending.close()

    @pytest.mark.parametrize(
        ("topic", "rectangle"),
        [
            ("another", RECTANGLE),
            ("topic", RECTANGLE._replace(next_offset=11)),
            ("topic", RECTANGLE._replace(frontier=DueKey(6, ENDLESS))),
            ("topic", RECTANGLE._replace(lowest=1)),
        ],
    )
    def test_of_something_else_it_is_empty(self, tmp_path: Path, topic: str, rectangle: Rectangle) -> None:
        self.saved(tmp_path)
        pending = PendingRecords.cached(tmp_path, topic, rectangle)
        assert (False, 0) == (pending.is_cached, len(pending))
        pending.close()

    def test_it_is_used_once(self, tmp_path: Path) -> None:
        """Who dies with it leaves what nobody knows the rectangle of."""
        self.saved(tmp_path)
        PendingRecords.cached(tmp_path, "topic", self.RECTANGLE).close()
        pending = PendingRecords.cached(tmp_path, "topic", self.RECTANGLE)
        assert not pending.is_cached
        pending.close()

    @pytest.mark.parametrize("name", ["cached", "log/pending-0/00000000000000000000.log", "log/topics"])
    def test_what_is_broken_is_empty(self, tmp_path: Path, name: str) -> None:
        self.saved(tmp_path)
        path = tmp_path / name
        assert path.exists(), sorted(map(str, tmp_path.rglob("*")))
        path.write_bytes(path.read_bytes()[:-3])
        pending = PendingRecords.cached(tmp_path, "topic", self.RECTANGLE)
        if not pending.is_cached:
            assert len(pending) == 0
        pending.close()
