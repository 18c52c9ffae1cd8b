"""The settings of a relay: as arguments, or a file in TOML."""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast

from afterlog.base.arguments import whole
from afterlog.base.config import shows_field_docs
from afterlog.base.errors import InvalidArgument, InvalidDeliverAfter, WrongType
from afterlog.base.files import OsFiles, read_file
from afterlog.base.time_text import duration_ms
from afterlog.relay.instruction import KNOWN_NAMES, HeaderNames

librdkafka = logging.getLogger("afterlog.relay.librdkafka")
OnInvalid: TypeAlias = Literal["dead_letter", "drop", "stop"]
TRANSACTION_MS: Final = 10_000
_OURS: Final = {
    "bootstrap.servers", "group.id", "enable.auto.commit", "enable.auto.offset.store", "isolation.level",
    "partition.assignment.strategy", "transactional.id", "transaction.timeout.ms", "enable.idempotence",
    "enable.partition.eof", "auto.offset.reset",
}  # fmt: skip


@shows_field_docs
@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """Raises InvalidArgument, WrongType."""

    bootstrap: str
    """Of the cluster, host:port, several with commas."""
    inputs: tuple[str, ...]
    """The topics whose records say when they are due."""
    group: str
    """The consumer group, and how the relay's own topics begin."""
    worker: str = ""
    """The name of this worker, one of its kind in the group and the same after a restart: of its transactions, so that
    those which a killed one has left open end at once. Empty: the name of the machine."""
    names: HeaderNames = field(default_factory=HeaderNames)
    default_target: str = ""
    """Where a record goes that does not say. Empty: it has to."""
    allowed_targets: tuple[str, ...] = ("*",)
    """Patterns of the topics that may be delivered to; the relay's own and its inputs never may."""
    max_delay_ms: int | None = None
    """How long after its own timestamp a record may be due."""
    on_invalid: OnInvalid = "dead_letter"
    """What becomes of a record that cannot be read, or whose target refuses it: it goes to `dead_letter_topic`, or is
    dropped and counted, or its partition stops."""
    dead_letter: str = ""
    """Empty: GROUP.dead."""
    timestamps: Literal["delivery", "record"] = "delivery"
    """Of what is delivered: of when it was, or the record's own."""
    start: Literal["earliest", "latest"] = "earliest"
    """Where a partition begins that the group never read."""
    on_loss: Literal["stop", "continue"] = "stop"
    """What if Kafka has removed records that were not delivered yet."""
    trim_inputs: bool = False
    """Let Kafka delete what was delivered at the front of the inputs (DeleteRecords up to L): for inputs that keep
    everything (retention.ms=-1)."""
    carry_after_ms: int | None = None
    """What has waited for so long is appended to GROUP.carry, so that the input need not keep it. None: never."""
    cache: Path | None = None
    """The folder of what waits, made anew from Kafka where it is not there. None: one that goes with the process."""
    tick_ms: int = 20
    """Between two transactions. Larger: fewer of them, later deliveries."""
    batch: int = 20_000
    """Records of a transaction. Larger: fewer transactions in a burst, more memory, and more to do again."""
    kafka: Mapping[str, Any] = field(default_factory=dict)
    """More settings of librdkafka, for every client: SASL, TLS. Those of the consumer or producer alone begin with
    `consumer.` and `producer.`."""

    def __post_init__(self) -> None:
        for name in ("bootstrap", "group"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise InvalidArgument(f"a relay needs {name}")
        for name in ("inputs", "allowed_targets"):
            value = getattr(self, name)
            is_list = isinstance(value, Sequence) and not isinstance(value, str)
            if not is_list or not all(isinstance(one, str) for one in value):
                raise WrongType(f"{name} is a list of texts, not {value!r:.100}")
            object.__setattr__(self, name, tuple(value))
        if not self.inputs or len(set(self.inputs)) < len(self.inputs):
            raise InvalidArgument("name the inputs of the relay, each once")
        for name, choices in (
            ("on_invalid", ("dead_letter", "drop", "stop")), ("timestamps", ("delivery", "record")),
            ("start", ("earliest", "latest")), ("on_loss", ("stop", "continue")),
        ):  # fmt: skip
            if getattr(self, name) not in choices:
                raise InvalidArgument(f"{name} is one of {', '.join(choices)}, not {getattr(self, name)!r:.100}")
        whole("tick_ms", self.tick_ms, 1)
        whole("batch", self.batch, 1)
        for name in ("max_delay_ms", "carry_after_ms"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), 1)
        if self.trim_inputs and self.carry_after_ms is not None:
            raise InvalidArgument("either the inputs keep everything and are trimmed, or what waits long is carried")
        taken = sorted(_OURS & {key.removeprefix("consumer.").removeprefix("producer.") for key in self.kafka})
        if taken:
            raise InvalidArgument(f"{', '.join(taken)}: the relay sets these itself")

    @property
    def dead_letter_topic(self) -> str:
        return self.dead_letter or f"{self.group}.dead"

    @property
    def frontier_topic(self) -> str:
        """Where rectangles are beside the group's offsets, which Kafka forgets of a group that was away for a week."""
        return f"{self.group}.frontier"

    @property
    def carry_topic(self) -> str:
        return f"{self.group}.carry"

    @property
    def read_topics(self) -> list[str]:
        """What the relay reads."""
        return [*self.inputs, *([self.carry_topic] if self.carry_after_ms is not None else [])]

    @property
    def own_topics(self) -> set[str]:
        """To which nothing is delivered."""
        return {*self.inputs, self.carry_topic, self.frontier_topic}

    def client(self, role: Literal["consumer", "producer", "admin"]) -> dict[str, Any]:
        """What a client of librdkafka is given."""
        others = {"consumer.", "producer."} - {f"{role}."}
        asked = {
            key.removeprefix(f"{role}."): value
            for key, value in self.kafka.items()
            if not key.startswith(tuple(others))
        }
        name = f"afterlog-relay-{self.group}"
        ours = {"bootstrap.servers": self.bootstrap, "client.id": name, "logger": librdkafka}
        return {**ours, **asked}


_DURATIONS: Final = {"max_delay": "max_delay_ms", "carry_after": "carry_after_ms", "tick": "tick_ms"}


def read_settings(path: Path | None, **given: Any) -> RelaySettings:
    """The settings of a file in TOML, with those that are given (not None) in their place.

        bootstrap = "localhost:9092"
        inputs = ["later"]
        group = "relays"
        names = "afterlog"                 # or etf1, karafka, timebridge, or a table of names
        max_delay = "90d"                  # durations: 250ms 30s 5m 2h 1d 1w
        [kafka]
        "security.protocol" = "SASL_SSL"

    Raises InvalidArgument, WrongType, FileMissing.
    """
    told: dict[str, Any] = {}
    if path is not None:
        try:
            told = tomllib.loads(read_file(OsFiles(), path).decode())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"{path} is no TOML: {error}") from None
    told |= {name: value for name, value in given.items() if value is not None and value != ()}
    for text, name in _DURATIONS.items():
        if text in told:
            told[name] = _duration(text, told.pop(text))
    if "names" in told:
        told["names"] = _names(told["names"])
    if told.get("cache") is not None:
        told["cache"] = Path(cast("str", told["cache"]))
    known = {each.name for each in fields(RelaySettings)}
    unknown = sorted(told.keys() - known)
    if unknown:
        raise InvalidArgument(f"a relay has no setting {', '.join(unknown)}; it has {', '.join(sorted(known))}")
    missing = [name for name in ("bootstrap", "inputs", "group") if name not in told]
    if missing:
        raise InvalidArgument(f"a relay needs {', '.join(missing)}")
    return RelaySettings(**told)


def _duration(name: str, value: Any) -> int:
    if isinstance(value, int):
        return value
    try:
        return duration_ms(value)
    except (InvalidDeliverAfter, TypeError):
        raise InvalidArgument(f"{name} is a duration such as 30s or 90d, not {value!r:.100}") from None


def _names(value: Any) -> HeaderNames:
    if isinstance(value, HeaderNames):
        return value
    if isinstance(value, str) and value in KNOWN_NAMES:
        return KNOWN_NAMES[value]
    if isinstance(value, Mapping):
        table = dict(value)
        base = KNOWN_NAMES.get(str(table.pop("like", "afterlog")), KNOWN_NAMES["afterlog"])
        unknown = sorted(table.keys() - {each.name for each in fields(HeaderNames)})
        if not unknown:
            return replace(base, **table)
        raise InvalidArgument(f"names: there is no {', '.join(unknown)}")
    raise InvalidArgument(f"names is one of {', '.join(KNOWN_NAMES)}, or a table, not {value!r:.100}")
