from __future__ import annotations

import itertools
import sys
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch
from zoneinfo import ZoneInfo, available_timezones

import pytest

from afterlog.base.errors import InvalidSchedule, WrongType
from afterlog.base.recurrence import Cron, Every, cron_of, every_ms_of, plain
from tests import campaigns

ZURICH = "Europe/Zurich"


def ms_of(text: str, zone: str = ZURICH, fold: int = 0) -> int:
    at = datetime.fromisoformat(text)
    at = at if at.tzinfo else at.replace(tzinfo=ZoneInfo(zone), fold=fold)
    return int(at.timestamp() * 1_000)


def coming(expression: str, start: str, count: int, zone: str = ZURICH) -> list[str]:
    """Local times with their distance from UTC, each asked for anew, from the one before."""
    ms, found = ms_of(start, zone), []
    for _ in range(count):
        following = Cron(expression, zone).after(ms)
        assert (following or 0) > ms
        ms = following or 0
        found.append(datetime.fromtimestamp(ms / 1_000, ZoneInfo(zone)).isoformat(timespec="minutes"))
    return found


class TestCron:
    def test_it_keeps_to_the_clock_on_the_wall(self) -> None:
        assert [
            "2026-03-23T08:00+01:00",
            "2026-03-30T08:00+02:00",
            "2026-04-06T08:00+02:00",
        ] == coming("0 8 * * 1", "2026-03-20 00:00", 3)
        assert ["2026-10-19T08:00+02:00", "2026-10-26T08:00+01:00"] == coming("0 8 * * 1", "2026-10-18 00:00", 2)

    def test_a_time_that_a_day_skips_comes_behind_the_gap(self) -> None:
        assert ["2026-03-28T02:30+01:00", "2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"] == coming(
            "30 2 * * *", "2026-03-28 00:00", 3
        )

    def test_a_time_that_a_day_has_twice_comes_once(self) -> None:
        assert ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"] == coming("30 2 * * *", "2026-10-25 01:15", 2)

    def test_what_comes_every_hour_comes_in_both(self) -> None:
        assert [
            "2026-10-25T02:00+02:00",
            "2026-10-25T02:00+01:00",
            "2026-10-25T03:00+01:00",
        ] == coming("0 * * * *", "2026-10-25 01:15", 3)
        assert ["2026-03-29T01:00+01:00", "2026-03-29T03:00+02:00"] == coming("0 * * * *", "2026-03-29 00:15", 2)

    def test_asked_within_the_repeated_hour(self) -> None:
        first, second = ms_of("2026-10-25 02:10", fold=0), ms_of("2026-10-25 02:10", fold=1)
        assert 3_600_000 == second - first
        assert ms_of("2026-10-25 02:30", fold=0) == Cron("30 2 * * *", ZURICH).after(first)
        assert ms_of("2026-10-26 02:30") == Cron("30 2 * * *", ZURICH).after(second)
        assert ms_of("2026-10-25 02:20", fold=1) == Cron("*/20 * * * *", ZURICH).after(second)

    @pytest.mark.parametrize("zone", [ZURICH, "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "UTC"])
    @pytest.mark.parametrize("expression", ["30 2 * * *", "*/20 * * * *", "0 8 * * 1", "0 0 1 * *", "15 1,2,3 * * *"])
    def test_whenever_it_is_asked_the_same_come(self, expression: str, zone: str) -> None:
        """Over a year: the next of any instant is the first that lies behind it of all that follow each other."""
        cron, ms = Cron(expression, zone), ms_of("2026-01-01 00:00", "UTC")
        end, all_of_them = ms_of("2026-12-31 00:00", "UTC"), []
        while (ms := cron.after(ms) or end) < end and len(all_of_them) < 3_000:
            all_of_them.append(ms)
        for left, right in list(itertools.pairwise(all_of_them))[:: max(len(all_of_them) // 90, 1)]:
            for asked in (left, (left + right) // 2, right - 1):
                assert right == cron.after(asked)

    def test_fractions_of_a_second(self) -> None:
        at = ms_of("2026-01-01 00:00:00", "UTC")
        assert at == Cron("* * * * *", "UTC").after(at - 1)
        assert at + 60_000 == Cron("* * * * *", "UTC").after(at)

    @pytest.mark.parametrize(
        ("expression", "zone", "error", "text"),
        [
            ("0 8 * *", ZURICH, InvalidSchedule, "no cron expression: Wrong number"),
            ("0 0 30 2 *", ZURICH, InvalidSchedule, "no cron expression"),
            ("0 8 * * 1", "Europe/Nowhere", InvalidSchedule, "no time zone"),
            ("0 8 * * 1", "Europe", InvalidSchedule, "no time zone"),
            ("0 8 * * 1", "../etc/passwd", InvalidSchedule, "no time zone"),
            (5, ZURICH, WrongType, "cron must be a text"),
            ("0 8 * * 1", None, WrongType, "timezone must be a name"),
        ],
    )
    def test_what_cannot_be(self, expression: Any, zone: Any, error: type[Exception], text: str) -> None:
        with pytest.raises(error, match=text):
            cron_of(expression, zone)

    def test_without_cronsim_it_says_what_to_install(self) -> None:
        with patch.dict(sys.modules, {"cronsim": None}), pytest.raises(ImportError, match=r"afterlog\[schedules\]"):
            cron_of("0 8 * * 1", ZURICH)


class TestEvery:
    def test_it_counts_from_its_anchor(self) -> None:
        every = Every(1_000, 5_500)
        assert [6_500, 6_500, 7_500, 7_500] == [every.after(ms) for ms in (0, 6_499, 6_500, 7_499)]

    def test_an_interval(self) -> None:
        assert 90_000 == every_ms_of(timedelta(minutes=1, seconds=30))

    @pytest.mark.parametrize(
        "every", [timedelta(0), timedelta(seconds=-5), timedelta(milliseconds=999), timedelta.max,
                  timedelta(seconds=1, microseconds=1)]
    )  # fmt: skip
    def test_what_cannot_be(self, every: timedelta) -> None:
        with pytest.raises(InvalidSchedule, match="from a second to a century"):
            every_ms_of(every)

    def test_a_number_is_none(self) -> None:
        with pytest.raises(WrongType, match="timedelta"):
            every_ms_of(60)


def test_both_are_values() -> None:
    assert Every(1, 2) == Every(1, 2)
    assert Cron("0 8 * * 1", "UTC") == Cron("0 8 * * 1", "UTC")
    assert datetime(2026, 1, 5, 8, tzinfo=UTC).timestamp() * 1_000 == Cron("0 8 * * 1", "UTC").after(
        ms_of("2026-01-01 00:00", "UTC")
    )


MINUTE = timedelta(minutes=1)


def shifts(zone: ZoneInfo) -> list[datetime]:
    """When its distance from UTC changes in two years."""
    found, at = [], datetime(2025, 1, 1, tzinfo=UTC)
    for _ in range(2 * 365 * 4):
        following = at + timedelta(hours=6)
        if at.astimezone(zone).utcoffset() != following.astimezone(zone).utcoffset():
            found.append(at)
        at = following
    return found


def minutes(zone: ZoneInfo, at: datetime) -> list[tuple[datetime, datetime]]:
    """Every minute of three days around an instant, and what the clock on the wall shows."""
    start = at - timedelta(days=1)
    return [(each, each.astimezone(zone).replace(tzinfo=None)) for each in (start + n * MINUTE for n in range(4_320))]


def every_time(shown: list[tuple[datetime, datetime]], hours: set[int], of_hour: set[int]) -> list[datetime]:
    return [at for at, wall in shown if wall.hour in hours and wall.minute in of_hour]


def once_a_day(shown: list[tuple[datetime, datetime]], hour: int, minute: int) -> list[datetime]:
    """The first minute that shows it; where none does, the first that shows a later one."""
    found = []
    for date in sorted({wall.date() for _, wall in shown}):
        asked = datetime(date.year, date.month, date.day, hour, minute)
        exact = [at for at, wall in shown if wall == asked]
        found.append(exact[0] if exact else next((at for at, wall in shown if wall > asked), None))
    return sorted({at for at in found if at is not None and at != shown[0][0]})


@pytest.mark.parametrize("part", range(4))
@pytest.mark.share(4)
def test_every_zone_against_a_look_at_every_minute(part: int) -> None:
    """Lord Howe's days are shorter by half an hour, and Chatham is 45 minutes off: times of theirs were left out."""
    chosen = {"Australia/Lord_Howe", "Pacific/Chatham", "Africa/Casablanca", "America/St_Johns"}
    for number, name in enumerate(sorted(available_timezones())):
        if number % 4 != part or not (name in chosen or campaigns.is_chosen(number, 200)):
            continue
        zone = ZoneInfo(name)
        for at in shifts(zone)[:2]:
            shown = minutes(zone, at)
            begin, end = shown[0][0], shown[-1][0] - timedelta(hours=27)
            for expression, expected in (
                ("30 * * * *", every_time(shown, {*range(24)}, {30})),
                ("0 */2 * * *", every_time(shown, {*range(0, 24, 2)}, {0})),
                ("*/20 * * * *", every_time(shown, {*range(24)}, {0, 20, 40})),
                ("15 2 * * *", once_a_day(shown, 2, 15)),
                ("45 1 * * *", once_a_day(shown, 1, 45)),
                ("0 0 * * *", once_a_day(shown, 0, 0)),
            ):
                cron, ms, found = Cron(expression, name), int(begin.timestamp() * 1_000), []
                while (ms := cron.after(ms) or 0) < end.timestamp() * 1_000:
                    found.append(datetime.fromtimestamp(ms / 1_000, UTC))
                assert [each for each in expected if begin < each < end] == found, (name, expression, at)
                campaigns.count("schedules around a shift of a zone")


class TestWhatPeopleWrite:
    @pytest.mark.parametrize(
        ("written", "means"),
        [
            ("@daily", "0 0 * * *"),
            ("@Hourly", "0 * * * *"),
            ("@weekly", "0 0 * * 0"),
            ("0 8 * * FRI-MON", "0 8 * * 5,6,0,1"),
            ("0 8 * * 5-1", "0 8 * * 5,6,0,1"),
            ("0 22-2 * * *", "0 22,23,0,1,2 * * *"),
            ("0 0 1 NOV-feb *", "0 0 1 11,12,1,2 *"),
            ("0 20-4/2 * * *", "0 20,22,0,2,4 * * *"),
            ("0 8 * * MON-FRI", "0 8 * * MON-FRI"),
            ("5-1", "5-1"),
        ],
    )
    def test_names_and_ranges_that_go_round(self, written: str, means: str) -> None:
        assert means == plain(written)
        if " " in means:
            assert Cron(means, "UTC").after(0) == cron_of(written, "UTC").after(0)

    @pytest.mark.parametrize("written", ["@reboot", "0 8 * * FRI-XXX", "70-3 * * * *", "0 0 30-2/0 * *"])
    def test_what_names_no_times(self, written: str) -> None:
        with pytest.raises(InvalidSchedule):
            cron_of(written, "UTC")

    def test_the_end_of_the_calendar(self) -> None:
        ms = ms_of("9999-12-31 22:00", "UTC")
        assert ms_of("9999-12-31 23:00", "UTC") == Cron("0 * * * *", "UTC").after(ms)
        for late in (ms_of("9999-12-31 23:30", "UTC"), ms + 86_400_000, 2**62, 2**63 - 1):
            assert Cron("0 * * * *", "Europe/Zurich").after(late) is None
