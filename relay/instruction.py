"""What a record of an input asks for: deliver it, cancel another one, or neither, and why. A pure function of it.

    deliver-after   when: RFC 3339, or a number: milliseconds since the epoch from 100,000,000,000 on, seconds below
    delay           or how long after the record's own timestamp: seconds, or 250ms 30s 5m 2h 1d 1w 1h30m
    deliver-to      the topic; without it the default one
    deliver-key     the key there, of a null value none; without it the record's own
    schedule-id     by which a later record of the same partition replaces this one, or cancels it, while it waits
    cancel          of a record that asks for nothing else: the schedule-id to cancel; empty: that which is the key

The names can be others (`HeaderNames`), as programs that sent to another scheduler have them. With `identity="key"` a
record is known by its key, as there: a newer one replaces an older one, and one without a value cancels it.

All headers of these names are taken off, the others go along. What can be read in two ways is refused: both a time and
a delay, a header twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, Literal, NamedTuple, TypeAlias

from afterlog.base.clock import INT64_MAX
from afterlog.base.errors import InvalidArgument, InvalidDeliverAfter
from afterlog.base.time_text import duration_ms
from afterlog.records.times import moment_ms
from afterlog.relay.rectangle import DueKey

MILLISECONDS_FROM: Final = 10**11
"""A number from here on is milliseconds: 1973 on. Below it is seconds, up to the year 5138."""
ID_BYTES_MAX: Final = 1_024

KafkaHeaders: TypeAlias = Sequence[tuple[str, bytes | None]]


class KafkaRecord(NamedTuple):
    """A record of an input, as Kafka has it. timestamp_ms: -1 where it has none."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: KafkaHeaders = ()


class ScheduledDelivery(NamedTuple):
    """A record to be delivered. headers: those that go along; id: empty where it has none.

    origin: of what was carried, the offset that it had in its input; -1: it is there. What is newer under an id has the
    higher one, wherever it is read.
    """

    offset: int
    due_ms: int
    target: str
    key: bytes | None
    value: bytes | None
    headers: KafkaHeaders
    timestamp_ms: int
    id: bytes = b""
    origin: int = -1

    @property
    def order(self) -> int:
        """Of its id."""
        return self.offset if self.origin < 0 else self.origin

    @property
    def due_key(self) -> DueKey:
        return DueKey(self.due_ms, self.offset)


class Cancellation(NamedTuple):
    """What waits under this id is not to be delivered, if it is older. origin: as of a record. is_final: nothing that
    it names can come behind it."""

    offset: int
    id: bytes
    is_final: bool = False
    origin: int = -1

    @property
    def order(self) -> int:
        return self.offset if self.origin < 0 else self.origin


class Refusal(NamedTuple):
    """A record that asks for nothing that can be done, and why."""

    record: KafkaRecord
    reason: str

    @property
    def offset(self) -> int:
        return self.record.offset


Instruction: TypeAlias = ScheduledDelivery | Cancellation | Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderNames:
    """The names of the headers; an empty one: there is no such header. identity: what a record is known by."""

    deliver_after: str = "deliver-after"
    delay: str = "delay"
    deliver_to: str = "deliver-to"
    deliver_key: str = "deliver-key"
    schedule_id: str = "schedule-id"
    cancel: str = "cancel"
    identity: Literal["header", "key"] = "header"

    def __post_init__(self) -> None:
        if self.identity not in ("header", "key"):
            raise InvalidArgument(f"identity is header or key, not {self.identity!r}")
        names = self.all()
        if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
            raise InvalidArgument(f"each header has a name of its own: {', '.join(map(str, names))}")
        if not (self.deliver_after or self.delay):
            raise InvalidArgument("name deliver_after, delay or both: else nothing says when a record is due")

    def all(self) -> list[str]:
        """Those that there are."""
        names = (
            self.deliver_after, self.delay, self.deliver_to, self.deliver_key, self.schedule_id, self.cancel,
        )  # fmt: skip
        return [name for name in names if name != ""]


KNOWN_NAMES: Final = {
    "afterlog": HeaderNames(),
    # https://github.com/etf1/kafka-message-scheduler
    "etf1": HeaderNames(
        deliver_after="scheduler-epoch", delay="", deliver_to="scheduler-target-topic",
        deliver_key="scheduler-target-key", schedule_id="", cancel="", identity="key",
    ),
    # https://karafka.io/docs/Pro-Scheduled-Messages
    "karafka": HeaderNames(
        deliver_after="schedule_target_epoch", delay="", deliver_to="schedule_target_topic",
        deliver_key="schedule_target_key", schedule_id="", cancel="", identity="key",
    ),
    # https://github.com/andy722/kafka-timebridge and others of that name
    "timebridge": HeaderNames(
        deliver_after="X-Timebridge-When", delay="", deliver_to="X-Timebridge-Where", deliver_key="", schedule_id="",
        cancel="",
    ),
}  # fmt: skip
"""The names that other schedulers have."""


class _Unreadable(Exception):
    """Its text is the reason."""


class InstructionReader:
    """Reads records. Pure: the same record says the same, whoever reads it and when."""

    def __init__(
        self,
        names: HeaderNames = KNOWN_NAMES["afterlog"],
        *,
        default_target: str = "",
        allowed_targets: Sequence[str] = ("*",),
        forbidden_targets: Iterable[str] = (),
        max_delay_ms: int | None = None,
    ) -> None:
        """allowed_targets: patterns with * and ?. forbidden_targets: topics that are never one, such as the inputs.

        max_delay_ms: how long after its own timestamp a record may be due.
        """
        self._names = names
        self._ours = frozenset(names.all())
        self._default_target = default_target
        self._patterns = tuple(allowed_targets)
        self._forbidden = frozenset(forbidden_targets)
        self._max_delay_ms = max_delay_ms
        self._allowed: dict[str, bool] = {}

    def read(self, record: KafkaRecord) -> Instruction:
        try:
            return self._read(record)
        except _Unreadable as error:
            return Refusal(record, str(error))

    def _read(self, record: KafkaRecord) -> Instruction:
        names, ours = self._names, self._ours
        said: dict[str, bytes] = {}
        has_no_key = False
        others: list[tuple[str, bytes | None]] = []
        for name, value in record.headers:
            if name not in ours:
                others.append((name, value))
            elif name in said:
                raise _Unreadable(f"two headers {name!r}")
            else:
                said[name] = value or b""
                has_no_key |= value is None and name == names.deliver_key
        if names.identity == "key":
            if record.value is None and record.key:
                return Cancellation(record.offset, _id("key", record.key))
            identity = b"" if record.key is None else _id("key", record.key, empty=True)
        else:
            if names.cancel in said:
                return Cancellation(record.offset, _id(names.cancel, said[names.cancel] or record.key or b""))
            identity = _id(names.schedule_id, said[names.schedule_id]) if names.schedule_id in said else b""
        key = said.get(names.deliver_key, record.key)
        target = _text(said, names.deliver_to) or self._default_target
        self._check_target(target)
        due_ms = self._due_ms(record, said)
        return ScheduledDelivery(
            record.offset, due_ms, target, None if has_no_key else key, record.value, tuple(others),
            record.timestamp_ms, identity,
        )  # fmt: skip

    def _due_ms(self, record: KafkaRecord, said: dict[str, bytes]) -> int:
        names = self._names
        has_time, has_delay = names.deliver_after in said, names.delay in said
        if has_time and has_delay:
            raise _Unreadable(f"both {names.deliver_after!r} and {names.delay!r}")
        if has_time:
            due_ms = _instant_ms(names.deliver_after, _text(said, names.deliver_after))
        elif has_delay:
            if record.timestamp_ms < 0:
                raise _Unreadable(f"{names.delay!r} counts from the record's timestamp, which it does not have")
            due_ms = record.timestamp_ms + _delay_ms(names.delay, _text(said, names.delay))
        else:
            wanted = " or ".join(repr(name) for name in (names.deliver_after, names.delay) if name)
            raise _Unreadable(f"no header {wanted}")
        if due_ms > INT64_MAX:
            raise _Unreadable("due later than int64 milliseconds can name")
        limit_ms = self._max_delay_ms
        if limit_ms is not None and due_ms - max(record.timestamp_ms, 0) > limit_ms:
            raise _Unreadable(f"due more than {limit_ms} ms after its timestamp")
        return due_ms

    def _check_target(self, target: str) -> None:
        is_allowed = self._allowed.get(target)
        if is_allowed is None:
            is_allowed = any(fnmatchcase(target, each) for each in self._patterns) and target not in self._forbidden
            if len(self._allowed) < 10_000:
                self._allowed[target] = is_allowed
        if not target:
            raise _Unreadable(f"no header {self._names.deliver_to!r}, and there is no default target")
        if not is_allowed:
            raise _Unreadable(f"{target!r:.300} is no topic that may be delivered to")


def _text(said: dict[str, bytes], name: str) -> str:
    return _decoded(name, said[name]) if name in said else ""


def _decoded(name: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise _Unreadable(f"{name!r} is no text: {value!r:.100}") from None


def _id(name: str, value: bytes, *, empty: bool = False) -> bytes:
    if len(value) > ID_BYTES_MAX or not (value or empty):
        raise _Unreadable(f"{name!r} has {len(value)} bytes, where an id has 1 to {ID_BYTES_MAX}")
    return value


def _instant_ms(name: str, text: str) -> int:
    number = _number(text)
    if number is not None:
        return number if number >= MILLISECONDS_FROM else number * 1_000
    return _checked(name, text, moment_ms)


def _delay_ms(name: str, text: str) -> int:
    number = _number(text)
    return number * 1_000 if number is not None else _checked(name, text, duration_ms)


def _checked(name: str, text: str, read: Callable[[str], int]) -> int:
    try:
        ms = read(text)
    except InvalidDeliverAfter as error:
        raise _Unreadable(f"{name!r}: {error}") from None
    return max(ms, 0)


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 19 else None
