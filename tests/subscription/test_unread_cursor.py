from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from afterlog.base.clock import ManualClock
from afterlog.fetch.message_columns import Columns
from afterlog.subscription import unread_cursor as fresh_module
from afterlog.subscription.unread_cursor import UnreadCursor
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, open_small


class Setting:
    def __init__(self, delay_ms: int = 0) -> None:
        self.clock = ManualClock(NOW_MS)
        self.store = open_small(SimulatedFiles(), self.clock, segment_bytes=1 << 16)
        self.partition = self.store.create_topic("mail").partition(0)
        self.fresh = UnreadCursor(self.partition, delay_ms)

    def send(self, delays: Sequence[float], size: int = 1) -> None:
        self.store.send_many("mail", [bytes(size)] * len(delays), delay=np.array(delays))

    def read(self, position: int, max_records: int, max_bytes: int = 1 << 20) -> tuple[list[int], int]:
        reading = self.partition.reading()
        high_watermark = self.fresh.high_watermark(reading)
        columns, behind = self.fresh.read(position, high_watermark, max_records, max_bytes, reading)
        assert len(columns) <= max_records
        return columns.delivery_offset.tolist(), behind


def test_one_decoding_serves_many_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    setting, calls = Setting(), list[int]()
    setting.send([0.0] * 1_200)
    columns = setting.partition.columns

    def counted(position: int, *arguments: Any) -> tuple[Columns, int]:
        calls.append(position)
        return columns(position, *arguments)

    monkeypatch.setattr(fresh_module, "READ_AHEAD_RECORDS", 500)
    monkeypatch.setattr(fresh_module, "RECORD_BYTES", 100)
    monkeypatch.setattr(setting.partition, "columns", counted)
    for position in range(500):
        assert ([position], position + 1) == setting.read(position, 1)
    once = len(calls)
    assert ([*range(100, 200)], 200) == setting.read(100, 100)
    assert once == len(calls) < 10
    assert ([*range(500, 1_200)], 1_200) == setting.read(500, 5_000)


def test_separate_appends_are_read_together() -> None:
    setting = Setting()
    for count in range(1, 6):
        setting.send([0.0])
        assert ([*range(count)], count) == setting.read(0, 10) or count > 1
    fresh = UnreadCursor(setting.partition, 0)
    assert [0, 1, 2, 3, 4] == fresh.read(0, 5, 10, 1 << 20, setting.partition.reading())[0].delivery_offset.tolist()


def test_what_is_read_ahead_is_limited_and_what_is_wanted_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh_module, "READ_AHEAD_BYTES", 4_200)
    setting = Setting()
    for _ in range(40):
        setting.send([0.0], size=1_000)
    assert ([0], 1) == setting.read(0, 1)
    assert 4 == setting.fresh._end
    assert ([*range(4, 24)], 24) == setting.read(4, 20)
    assert 24 == setting.fresh._end
    assert ([24], 25) == setting.read(24, 1)
    assert 28 == setting.fresh._end


def test_nothing_is_decoded_twice_where_the_same_is_wanted_again() -> None:
    setting = Setting()
    setting.send([0.0] * 12_000, size=900)
    for wanted in (100, 700, 1_000):
        for position in range(0, 11 * wanted, wanted):
            assert ([*range(position, position + wanted)], position + wanted) == setting.read(position, wanted, 1 << 24)
            assert 0 == setting.fresh._end % wanted


def test_bytes_are_limited() -> None:
    setting = Setting()
    for _ in range(20):
        setting.send([0.0], size=1_000)
    found, behind = setting.read(0, 20, max_bytes=4_000)
    assert 1 <= len(found) <= 6
    assert behind == found[-1] + 1


def test_cancelled_ones_are_stepped_over() -> None:
    setting = Setting()
    setting.send([1.0] * 6)
    setting.store.cancel_many("mail", 0, np.array([0, 1, 3, 5]))
    setting.clock.advance(1_000)
    assert ([2], 4) == setting.read(0, 1)
    assert ([4], 7) == setting.read(4, 1)
    assert ([], 7) == setting.read(5, 9)


def test_later_than_others() -> None:
    setting = Setting(delay_ms=500)
    setting.send([0.0, 0.0, 1.0, 1.0])
    setting.store.cancel_many("mail", 0, np.array([2]))
    reading = setting.partition.reading()
    assert (0, NOW_MS + 500) == (setting.fresh.high_watermark(reading), setting.fresh.next_due_ms(reading))
    for after, expected in [(499, ([], 0)), (500, ([0, 1], 2)), (1_499, ([0, 1], 2)), (1_500, ([0, 1, 3], 5))]:
        setting.clock.set(NOW_MS + after)
        setting.fresh._end = 0
        assert expected == setting.read(0, 9)


def test_stepping_over_does_not_lead_beyond_what_is_due_here() -> None:
    setting = Setting(delay_ms=500)
    setting.send([1.0, 1.0, 1.0, 1.2])
    setting.store.cancel_many("mail", 0, np.array([1]))
    setting.clock.advance(1_500)
    assert ([0, 2], 4) == setting.read(0, 9)
    setting.clock.advance(200)
    assert ([4], 5) == setting.read(4, 9)
