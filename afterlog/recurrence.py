"""When something comes again: by a cron expression in a time zone, or every so many milliseconds.

    Cron("0 8 * * 1", "Europe/Zurich").after(ms)     the first Monday, 08:00 there, later than ms
    Every(3_600_000, anchor_ms).after(ms)            anchor + 1 h, + 2 h, …: the first later than ms

Both are values, and `after` a function of them and an instant: whoever asks again gets the same answer, in any process.

*Daylight saving*, as cronsim has it, which follows Debian's cron. A time that a day skips (02:30 in March) comes at the
first instant behind the gap. One that a day has twice comes once, the first time, where the hour is named; what comes
every hour, or every few minutes, comes in both. `Every` counts elapsed time, and knows nothing of clocks on walls.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Protocol

from afterlog.errors import InvalidSchedule, WrongType

EVERY_MS_MIN = 1_000
EVERY_MS_MAX = 100 * 365 * 86_400_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class Recurrence(Protocol):
    """What has instants, in ms since the epoch, one behind another."""

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
    """By an expression of five fields, or six with seconds first, in a time zone of the IANA database."""

    expression: str
    timezone: str

    def after(self, ms: int) -> int | None:
        """Raises InvalidSchedule, and ImportError where cronsim is not installed."""
        cronsim, start = _installed(), (_EPOCH + ms * _MILLISECOND).astimezone(zone_of(self.timezone))
        try:
            # Asked within an hour that a day has twice, the second time, it may give what came the first time.
            found = next(each for each in cronsim.CronSim(self.expression, start) if each.astimezone(UTC) > start)
        except cronsim.CronSimError as error:
            raise InvalidSchedule(f"{self.expression!r:.100} is no cron expression: {error}") from error
        except (StopIteration, OverflowError):
            return None
        return int((found - _EPOCH) // _MILLISECOND)


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
