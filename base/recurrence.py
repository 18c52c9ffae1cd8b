"""Recurrence rules: a cron expression in a time zone, or an interval in milliseconds.

    Cron("0 8 * * 1", "Europe/Zurich").after(ms)     the first Monday, 08:00 there, later than ms
    Every(3_600_000, anchor_ms).after(ms)            anchor + 1 h, + 2 h, …: the first later than ms

Both are values, and `after` a function of them and an instant: whoever asks again gets the same answer, in any process.

*Daylight saving*, as in Debian's cron. A time that a day skips (02:30 in March) comes at the
first instant after the gap. One that a day has twice comes once, the first time, where the hour is named; what comes
every hour, or every few minutes, comes in both. `Every` counts elapsed time, and knows nothing of clocks on walls.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any, Protocol

from afterlog.base.errors import InvalidSchedule, WrongType

EVERY_MS_MIN = 1_000
EVERY_MS_MAX = 100 * 365 * 86_400_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_DAY = timedelta(hours=26)
"""No zone's distance from UTC is further from another's."""
_LAST = datetime(9999, 12, 29, tzinfo=UTC)


class Recurrence(Protocol):
    """What has instants, in ms since the epoch, one after another."""

    def after(self, ms: int) -> int | None:
        """The first one later than `ms`; None where there is none any more."""


@dataclass(frozen=True, slots=True)
class Every:
    """anchor_ms + every_ms, + 2 every_ms, …"""

    every_ms: int
    anchor_ms: int

    def after(self, ms: int) -> int:
        return self.anchor_ms + max((ms - self.anchor_ms) // self.every_ms + 1, 1) * self.every_ms


@dataclass(frozen=True, slots=True)
class Cron:
    """By an expression of five fields, or six with seconds first, in a time zone of the IANA database.

    Or by a name (`@daily`); a range may go round (FRI-MON, 22-2). cronsim says which times on the wall it names, and
    the zone which instants these are: of days that are shorter or longer by half an hour cronsim leaves some out.
    """

    expression: str
    timezone: str

    def after(self, ms: int) -> int | None:
        """Raises InvalidSchedule, and ImportError where cronsim is not installed."""
        cronsim, zone, text = _installed(), zone_of(self.timezone), plain(self.expression)
        fields = text.split()
        is_fixed = len(fields) == 5 and not fields[0].startswith("*") and not fields[1].startswith("*")
        try:
            at = _EPOCH + ms * _MILLISECOND
            shift = _shift(at, zone)
            found: datetime | None = None
            for wall in cronsim.CronSim(text, (at.astimezone(zone) - shift).replace(tzinfo=UTC)):
                for instant in _instants(wall.replace(tzinfo=None), zone, is_fixed):
                    if instant > at and (found is None or instant < found):
                        found = instant
                if found is not None and (not _shift(found, zone) or _utc(wall, zone, 0) > found + _DAY):
                    return int((found - _EPOCH) // _MILLISECOND)
        except cronsim.CronSimError as error:
            raise InvalidSchedule(f"{self.expression!r:.100} is no cron expression: {error}") from error
        except OverflowError:  # beyond the year 9999
            return None
        return None if found is None else int((found - _EPOCH) // _MILLISECOND)


def _shift(at: datetime, zone: tzinfo) -> timedelta:
    """By how much the zone's distance from UTC differs around an instant: so much of a day comes twice, or never."""
    if not _EPOCH <= at <= _LAST:
        return timedelta()
    around = [(at + days * _DAY).astimezone(zone).utcoffset() or timedelta() for days in (-1, 0, 1)]
    return max(around) - min(around)


def _instants(wall: datetime, zone: tzinfo, is_fixed: bool) -> list[datetime]:
    """When the clock on the wall shows that: once, twice or never. is_fixed: then once, and after the gap."""
    found = [
        at for at in (_utc(wall, zone, 0), _utc(wall, zone, 1)) if at.astimezone(zone).replace(tzinfo=None) == wall
    ]
    if not is_fixed or found:
        return found[:1] if is_fixed else found
    before, behind = _utc(wall, zone, 1), _utc(wall, zone, 0)
    offset = behind.astimezone(zone).utcoffset()
    while behind - before > timedelta(seconds=1):
        middle = before + (behind - before) // 2
        before, behind = (before, middle) if middle.astimezone(zone).utcoffset() == offset else (middle, behind)
    return [behind.replace(microsecond=0)]


def _utc(wall: datetime, zone: tzinfo, fold: int) -> datetime:
    return wall.replace(tzinfo=zone, fold=fold).astimezone(UTC)


_NAMED = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}  # fmt: skip
_MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
_DAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
_FIELDS: tuple[tuple[int, int, list[str]], ...] = (
    (0, 59, []), (0, 59, []), (0, 23, []), (1, 31, []), (1, 12, _MONTHS), (0, 6, _DAYS)
)  # fmt: skip
"""The first and the last value of each, and names."""
_ROUND = re.compile(r"(\w+)-(\w+)(?:/(\d+))?")


@lru_cache(maxsize=256)
def plain(expression: str) -> str:
    """An expression in fields, without ranges that go round."""
    fields = _NAMED.get(expression.strip().lower(), expression).split()
    if len(fields) not in (5, 6):
        return expression
    return " ".join(
        ",".join(_straight(term, *kind) for term in field.split(","))
        for field, kind in zip(fields, _FIELDS[-len(fields) :], strict=True)
    )


def _straight(term: str, first: int, last: int, names: list[str]) -> str:
    """A range that goes round as its values; all else as it is."""
    match = _ROUND.fullmatch(term)
    if match is None or match[3] == "0":
        return term
    ends = [names.index(each.upper()) + first if each.upper() in names else each for each in match.groups()[:2]]
    try:
        start, end = map(int, ends)
    except ValueError:
        return term
    if not first <= end < start <= last:
        return term
    values = [*range(start, last + 1), *range(first, end + 1)][:: int(match[3] or 1)]
    return ",".join(map(str, values))


def cron_of(expression: object, timezone: object) -> Cron:
    """Checked. Raises WrongType, InvalidSchedule, and ImportError where cronsim is not installed."""
    if not isinstance(expression, str):
        raise WrongType(f'cron must be a text such as "0 8 * * 1", not {expression!r:.100}')
    if not isinstance(timezone, str):
        raise WrongType(f'timezone must be a name such as "Europe/Zurich", not {timezone!r:.100}')
    cron = Cron(expression, timezone)
    if cron.after(0) is None:
        raise InvalidSchedule(f"{expression!r:.100} never comes")
    return cron


def every_ms_of(every: object) -> int:
    """A timedelta of whole milliseconds, from a second to a century. Raises WrongType, InvalidSchedule."""
    if not isinstance(every, timedelta):
        raise WrongType(f"every must be a timedelta, not {every!r:.100}")
    every_ms, rest = divmod(every, _MILLISECOND)
    if rest or not EVERY_MS_MIN <= every_ms <= EVERY_MS_MAX:
        raise InvalidSchedule(f"every must be whole milliseconds, from a second to a century, not {every}")
    return every_ms


def zone_of(name: str) -> tzinfo:
    """Raises InvalidSchedule."""
    from zoneinfo import ZoneInfo  # for who has schedules

    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (LookupError, ValueError, OSError) as error:  # "Europe" is a folder
        raise InvalidSchedule(
            f"no time zone {name!r:.100} on this machine: pip install tzdata has all of them"
        ) from error


def _installed() -> Any:
    try:
        import cronsim
    except ImportError as error:
        raise ImportError("cron expressions need cronsim: pip install 'afterlog[schedules]'") from error
    return cronsim
