from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from afterlog.base.errors import InvalidArgument, OffsetOutOfRange
from afterlog.produce.topic import Topic
from afterlog.server import record_search
from afterlog.server.record_search import ListPlace, RecordPage, due_page, listed, pending_page, shortened
from afterlog.store.store import Store
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, SteppedClock, open_small

PARTITIONS = 3


class Setting:
    """A topic of three partitions. Records are sent to them in turn, each value its number."""

    def __init__(self) -> None:
        self.clock = SteppedClock(NOW_MS)
        self.store: Store = open_small(SimulatedFiles(), self.clock)
        self.topic: Topic = self.store.create_topic("mail", partitions=PARTITIONS)
        self.sent = 0

    def send(self, after_ms: int, key: bytes | None = None, value: bytes | None = None) -> None:
        value = b"%d" % self.sent if value is None else value
        self.store.send("mail", value, key=key, partition=self.sent % PARTITIONS, deliver_after=NOW_MS + after_ms)
        self.sent += 1

    def pending(self, limit: int = 100, **asked: object) -> RecordPage:
        asked = {"key": None, "from_ms": None, "after": None, **asked}
        return pending_page(self.topic, range(PARTITIONS), limit=limit, **asked)  # type: ignore[arg-type]

    def due(self, partition: int = 0, limit: int = 100, **asked: object) -> RecordPage:
        asked = {"key": None, "from_ms": None, "after": None, **asked}
        return due_page(self.topic.partition(partition), limit=limit, **asked)  # type: ignore[arg-type]


@pytest.fixture
def setting() -> Iterator[Setting]:
    setting = Setting()
    yield setting
    setting.store.close()


def values(page: RecordPage) -> list[int]:
    return [int(record.value or b"-1") for record in page.records]


class TestPending:
    DELAYS = (50, 30, 30, 30, 90, 10, 30, 70, 50, 50, 20)

    def fill(self, setting: Setting) -> list[int]:
        """The numbers of the records in the order of (due, partition, offset)."""
        for after_ms in self.DELAYS:
            setting.send(after_ms, key=b"odd" if setting.sent % 2 else b"even")
        return sorted(range(len(self.DELAYS)), key=lambda row: (self.DELAYS[row], row % PARTITIONS, row))

    @pytest.mark.parametrize("limit", [1, 2, 3, 10, 11, 12])
    def test_page_by_page(self, setting: Setting, limit: int) -> None:
        expected, found, after = self.fill(setting), [], None
        for start in range(0, len(expected), limit):
            page = setting.pending(limit, after=after)
            assert expected[start : start + limit] == values(page)
            found += values(page)
            after = page.after
            assert len(found) == len(expected) or after is not None
        assert expected == found
        assert after is None or ([], None) == (values(setting.pending(limit, after=after)), None)

    @pytest.mark.parametrize("limit", [1, 2, 6])
    @pytest.mark.parametrize("once", [1, 2, 100])
    def test_of_a_key(self, setting: Setting, limit: int, once: int) -> None:
        expected = [row for row in self.fill(setting) if row % 2]
        found, page = [], RecordPage([], "", 0)
        with patch.object(record_search, "LOOKED_AT_ONCE", once):
            while page.after is not None:
                page = setting.pending(limit, key=b"odd", after=page.after or None)
                assert len(page.records) <= limit
                found += values(page)
        assert expected == found
        assert ([], None) == setting.pending(key=b"nobody")[:2]

    def test_it_looks_at_so_many_and_says_where_to_go_on(self, setting: Setting) -> None:
        expected = self.fill(setting)
        with patch.object(record_search, "LOOKED_AT", 4), patch.object(record_search, "LOOKED_AT_ONCE", 2):
            first = setting.pending(key=b"nobody")
            assert ([], 4) == (first.records, first.looked_at)
            assert expected[4:5] == values(setting.pending(1, after=first.after))

    def test_from_an_instant(self, setting: Setting) -> None:
        expected = self.fill(setting)
        for ms in (0, 9, 10, 11, 30, 31, 90, 91):
            late = [row for row in expected if self.DELAYS[row] >= ms]
            assert late == values(setting.pending(from_ms=NOW_MS + ms))
        setting.clock.advance(30)
        assert [row for row in expected if self.DELAYS[row] > 30] == values(setting.pending(from_ms=0))

    def test_large_values_end_a_page_early_and_lose_nothing(self, setting: Setting) -> None:
        expected = self.fill(setting)
        found, after = [], None
        with patch.object(record_search, "VALUE_BYTES", 1):
            while after is not None or not found:
                page = setting.pending(5, after=after)
                found += values(page)
                after = page.after
        assert expected == found

    @pytest.mark.parametrize("after", ["", "1", "1.2", "1.2.3.4", "a.b.c", "-1.0.0", "1.2.³", f"1.2.{'9' * 20}"])
    def test_what_is_no_place(self, setting: Setting, after: str) -> None:
        with pytest.raises(InvalidArgument, match="what the page before gave"):
            setting.pending(after=after)

    def test_a_place_as_text(self) -> None:
        assert ListPlace(5, 1, 7) == ListPlace.parse("5.1.7")
        assert "5.1.7" == str(ListPlace(5, 1, 7))


class TestDue:
    def test_the_last_ones_and_from_an_instant(self, setting: Setting) -> None:
        for after_ms in (10, 20, 30, 40, 50):
            for _ in range(PARTITIONS):
                setting.send(after_ms)
        setting.clock.advance(40)
        assert ([0, 3, 6, 9], None) == (values(setting.due()), setting.due().after)
        assert [7, 10] == values(setting.due(1, 2))
        assert [6, 9] == values(setting.due(from_ms=NOW_MS + 21))
        page = setting.due(0, 1, from_ms=NOW_MS + 20)
        assert ([3], "2") == (values(page), page.after)
        page = setting.due(0, 9, after=page.after)
        assert ([6, 9], None) == (values(page), page.after)

    @pytest.mark.parametrize("once", [1, 3, 100])
    def test_of_a_key(self, setting: Setting, once: int) -> None:
        for row in range(12):
            setting.send(row + 1, key=b"a" if row % 2 else b"b")
        setting.clock.advance(100)
        with patch.object(record_search, "LOOKED_AT_ONCE", once):
            assert [3, 9] == values(setting.due(0, key=b"a"))
            first = setting.due(0, 1, key=b"a")
            assert [3] == values(first)
            assert [9] == values(setting.due(0, 5, key=b"a", after=first.after))
        with patch.object(record_search, "LOOKED_AT", 1), patch.object(record_search, "LOOKED_AT_ONCE", 1):
            assert ([], "1", 1) == setting.due(0, key=b"a")

    def test_what_is_no_position(self, setting: Setting) -> None:
        for after in ("", "x", "-1", "1.0", "9" * 20):
            with pytest.raises(InvalidArgument, match="what the page before gave"):
                setting.due(after=after)
        with pytest.raises(OffsetOutOfRange):
            setting.due(after="1")


class TestList:
    def test_values_are_cut(self, setting: Setting) -> None:
        setting.send(5, key=b"k" * 300, value=b"x" * 300)
        [row] = setting.pending().to_row()["records"]
        assert ("x" * 256, 300, "k" * 256) == (row["value"], row["value_bytes"], row["key"])
        assert listed(setting.pending().records[0]) == row

    @pytest.mark.parametrize(
        ("data", "expected"),
        [
            (None, None),
            (b"short", "short"),
            ("é".encode() * 128, "é" * 128),
            (b"x" + "é".encode() * 200, "x" + "é" * 127 + "…"),
            (b"\xff", {"base64": "/w=="}),
        ],
    )
    def test_letters_stay_whole(self, data: bytes | None, expected: object) -> None:
        assert expected == shortened(data)

    def test_bytes_are_cut_as_bytes(self) -> None:
        shown = shortened(b"\xff" * 300)
        assert isinstance(shown, dict)
        assert 4 * 86 == len(shown["base64"])
