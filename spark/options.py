"""The options of the data source `afterlog`, read and checked in one place.

Of a read, batch or stream:

    location              the store's folder, under the same path on driver and workers, or the URL of object
                          storage (s3://bucket/prefix, file:///mnt/backup); also as .load(location)
    remote                the URL of the store's object storage, for what is no longer in the folder
    remoteOptions         what obstore needs to know of it, as a JSON object: {"region": "eu-west-1"}
    topic                 one topic
    dueOnly               true: what is due, in delivery order that is final. false: what is pending, too (batch only)
    startingPosition      earliest (default), latest, or a delivery offset, for every partition; or one for each, as
                          JSON: {"0": 1024, "1": "latest"}
    endingPosition        latest (default), or a delivery offset, or one for each (batch only); never beyond what is due
    startingTime          instead: the first record due at or after it. Epoch ms, or ISO 8601 with a zone
    startingBrokerTime    instead: the first record in delivery order that was appended at or after it
    endingTime            instead: the first record due at or after it is no longer read (batch only)
    columns               comma separated, of COLUMNS; all but headers by default. Spark does not tell a source which
                          it needs, so those that are left out here are what is not carried to the JVM
    partitionBytes        bytes of log to a Spark partition, 64 MiB by default. Larger: fewer tasks, coarser retries
    minPartitions         Spark partitions, at least about; smaller than partitionBytes where need be
    settleMs              how long an append may take (`afterlog.log.snapshot`), 10000 by default; -1: go by the store's
                          frontier alone
    maxRecordsPerTrigger  records to a micro-batch, about (streaming only)
    failOnDataLoss        true (default): what cannot be read any more is an error. false: a warning, and the read goes
                          on with what can be (`afterlog.spark.ranges`)

Of a write, batch or stream:

    location, topic       as of a read, but no URL; also as .save(location). The topic is there already
    remote, remoteOptions as of a read: what the store is opened with, where it has object storage
    writeId               what a topic remembers a write by, so that it can be run again and is there once: 1 to 100
                          of a-z A-Z 0-9 . _ - (batch only; a stream has its query's id)
    adopt                 true (default): the commit appends to the store, which nobody else may have open. false: it
                          hands over to the process that has it open, which calls store.adopt()
    lockTimeoutMs         how long a commit waits for who has the store open, 30000 by default
    compression           none (default), gzip, snappy, lz4, zstd
    spreadMs              records whose times lie no further apart share a batch, due with its last; 0 by default

Names are case-insensitive, as Spark's are. What is not known here raises InvalidOption.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

from afterlog.base.clock import INT64_MAX
from afterlog.base.config import Codec, Config
from afterlog.base.errors import InvalidDeliverAfter, InvalidOption
from afterlog.base.names import is_job
from afterlog.fetch.positions import EARLIEST, LATEST, AtBrokerTime, AtTime, Position
from afterlog.log.snapshot import SETTLE_MS
from afterlog.records.times import instant_ms

COLUMNS = {
    "topic": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "delivery_offset": "BIGINT",
    "due": "BIGINT",
    "deliver_after": "BIGINT",
    "timestamp": "BIGINT",
    "broker_timestamp": "BIGINT",
    "key": "BINARY",
    "value": "BINARY",
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
}
"""Times are ms since the epoch: due is effective, deliver_after as asked for, timestamp the producer's,
broker_timestamp that of the append."""
DEFAULT_COLUMNS = tuple(name for name in COLUMNS if name != "headers")
PARTITION_BYTES = 64 << 20
LOCK_TIMEOUT_MS = 30_000
_NAMES = (
    "location", "path", "remote", "remoteOptions", "topic", "dueOnly", "startingPosition", "endingPosition",
    "startingTime", "startingBrokerTime", "endingTime", "columns", "partitionBytes", "minPartitions", "settleMs",
    "maxRecordsPerTrigger", "failOnDataLoss",
)  # fmt: skip
_OF_KAFKAS_SOURCE = {
    "subscribe": "topic", "assign": "topic", "startingoffsets": "startingPosition", "endingoffsets": "endingPosition",
    "startingtimestamp": "startingTime", "endingtimestamp": "endingTime", "includeheaders": "columns",
    "maxoffsetspertrigger": "maxRecordsPerTrigger", "kafka.bootstrap.servers": "path",
}  # fmt: skip
"""What Spark's Kafka source calls an option, and what it is called here."""
_WRITE_NAMES = (
    "location", "path", "remote", "remoteOptions", "topic", "writeId", "adopt", "lockTimeoutMs", "compression",
    "spreadMs",
)  # fmt: skip
_SPARKS_OWN = ("checkpointLocation", "queryName")
"""Options that Spark hands on to the sink of a stream."""
_BATCH_ONLY = ("endingPosition", "endingTime")
_CATALOGS_OWN = ("provider", "owner", "comment", "external", "is_managed_location")
"""What Spark's catalog adds where a table is made: that, the path once more as `location`, and each option once more as
`option.…`."""
NO_OPTIONS = (
    "Spark gave no options, since it keeps those of a table to itself: name them with it, SELECT … FROM t "
    "WITH (path = '…', topic = '…'), or read by a temporary view: CREATE TEMPORARY VIEW v USING afterlog "
    "OPTIONS (path '…', topic '…')"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What to read."""

    location: Path | None
    """None: there is object storage alone."""
    topic: str
    remote: str | None = None
    remote_options: Mapping[str, Any] = field(default_factory=dict)
    due_only: bool = True
    start: Position | Mapping[int, Position] = EARLIEST
    end: Position | Mapping[int, Position] = LATEST
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    partition_bytes: int = PARTITION_BYTES
    min_partitions: int = 1
    settle_ms: int | None = SETTLE_MS
    max_records: int | None = None
    fail_on_data_loss: bool = True

    @staticmethod
    def parse(options: Mapping[str, str]) -> ReadOptions:
        """Raises InvalidOption."""
        given = _by_name(options)
        is_url = "://" in _located(given)
        if is_url and "remote" in given:
            raise InvalidOption("the location is object storage: leave the option remote out")
        parsed = ReadOptions(
            location=None if is_url else _location(given),
            remote=_located(given) if is_url else given.get("remote"),
            remote_options=_object(given, "remoteOptions"),
            topic=_required(given, "topic"),
            due_only=_flag(given, "dueOnly", True),
            start=_position(given, "starting", EARLIEST),
            end=_position(given, "ending", LATEST),
            columns=_columns(given.get("columns", "")),
            partition_bytes=_number(given, "partitionBytes", PARTITION_BYTES, least=1),
            min_partitions=_number(given, "minPartitions", 1, least=1),
            settle_ms=_settle(given),
            max_records=_number(given, "maxRecordsPerTrigger", 0, least=1) or None,
            fail_on_data_loss=_flag(given, "failOnDataLoss", True),
        )
        if not parsed.due_only and any(name in given for name in ("startingPosition", "endingPosition")):
            raise InvalidOption("a pending record has no delivery offset for good: with dueOnly=false give times")
        return parsed

    @staticmethod
    def parse_stream(options: Mapping[str, str]) -> ReadOptions:
        """The same for a stream. Raises InvalidOption."""
        parsed, given = ReadOptions.parse(options), _by_name(options)
        for name in _BATCH_ONLY:
            if name in given:
                raise InvalidOption(f"{name} is not for a stream, which goes on")
        if not parsed.due_only:
            raise InvalidOption("a stream reads what is due: delivery order of what is pending may still change")
        return parsed

    @property
    def ddl(self) -> str:
        """The schema of the rows."""
        return ", ".join(f"{name} {COLUMNS[name]}" for name in self.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Where to write, and how."""

    location: Path
    topic: str
    remote: str | None = None
    remote_options: Mapping[str, Any] = field(default_factory=dict)
    write_id: str | None = None
    adopt: bool = True
    lock_timeout_ms: int = LOCK_TIMEOUT_MS
    compression: Codec = "none"
    spread_ms: int = 0

    @staticmethod
    def parse(options: Mapping[str, str]) -> WriteOptions:
        """Raises InvalidOption."""
        return WriteOptions._of(_by_name(options, _WRITE_NAMES))

    @staticmethod
    def parse_stream(options: Mapping[str, str]) -> WriteOptions:
        """The same for a stream. Raises InvalidOption."""
        given = _by_name(options, (*_WRITE_NAMES, *_SPARKS_OWN))
        if "writeId" in given:
            raise InvalidOption("writeId is not for a stream, which the store knows by its query's id")
        return WriteOptions._of(given)

    @staticmethod
    def _of(given: Mapping[str, str]) -> WriteOptions:
        write_id = given.get("writeId")
        if write_id is not None and not (is_job(write_id) and len(write_id) <= 100):
            raise InvalidOption(f"writeId is 1 to 100 of a-z A-Z 0-9 . _ -, not {write_id!r}")
        return WriteOptions(
            location=_location(given),
            topic=_required(given, "topic"),
            remote=given.get("remote"),
            remote_options=_object(given, "remoteOptions"),
            write_id=write_id,
            adopt=_flag(given, "adopt", True),
            lock_timeout_ms=_number(given, "lockTimeoutMs", LOCK_TIMEOUT_MS, least=0),
            compression=_codec(given),
            spread_ms=_number(given, "spreadMs", 0, least=0),
        )

    @property
    def config(self) -> Config:
        """How a task encodes."""
        return Config(compression=self.compression, deliver_after_spread_ms=self.spread_ms)


def _by_name(options: Mapping[str, str], known: Collection[str] = _NAMES) -> dict[str, str]:
    """The options under their names as written here."""
    names = {name.lower(): name for name in known}
    if not options:
        raise InvalidOption(NO_OPTIONS)
    given = {}
    for name, value in _users(options).items():
        if name.lower() not in names:
            here = _OF_KAFKAS_SOURCE.get(name.lower())
            hint = f"what Kafka's source calls so is {here} here" if here else f"there are {', '.join(known)}"
            raise InvalidOption(f"no option {name!r}; {hint}")
        given[names[name.lower()]] = value
    return given


def _users(options: Mapping[str, str]) -> dict[str, str]:
    """Those that a user gave, without what a catalog adds."""
    if "provider" not in options:
        return dict(options)
    left = {
        name: value
        for name, value in options.items()
        if name.lower() not in _CATALOGS_OWN and not name.startswith("option.")
    }
    if "path" in left:
        left.pop("location", None)
        left["path"] = left["path"].removeprefix("file:") if left["path"].startswith("file:/") else left["path"]
    return left


def _located(given: Mapping[str, str]) -> str:
    if "location" in given and "path" in given:
        raise InvalidOption("give the location as an option or to load() or save(), not both")
    return _required(given, "path" if "path" in given else "location")


def _location(given: Mapping[str, str]) -> Path:
    location = _located(given)
    if "://" in location:
        raise InvalidOption(f"a store is written in its folder, not in {location}")
    return Path(location).absolute()


def _object(given: Mapping[str, str], name: str) -> dict[str, Any]:
    try:
        value = json.loads(given.get(name, "{}"))
    except ValueError as error:
        raise InvalidOption(f"{name} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidOption(f"{name} is a JSON object, not {value!r}")
    return value


def _required(given: Mapping[str, str], name: str) -> str:
    if not given.get(name):
        raise InvalidOption(f"option {name!r} is missing")
    return given[name]


def _flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    value = given.get(name, str(default)).lower()
    if value not in ("true", "false"):
        raise InvalidOption(f"{name} is true or false, not {value!r}")
    return value == "true"


def _number(given: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    if name not in given:
        return default
    try:
        number = int(given[name])
    except ValueError:
        number = least - 1
    if not least <= number <= INT64_MAX:
        raise InvalidOption(f"{name} is an integer of at least {least}, not {given[name]!r}")
    return number


def _codec(given: Mapping[str, str]) -> Codec:
    codecs: dict[str, Codec] = {name: name for name in get_args(Codec)}
    codec = codecs.get(given.get("compression", "none").lower())
    if codec is None:
        raise InvalidOption(f"compression is one of {', '.join(codecs)}, not {given['compression']!r}")
    return codec


def _settle(given: Mapping[str, str]) -> int | None:
    settle_ms = _number(given, "settleMs", SETTLE_MS, least=-1)
    return None if settle_ms == -1 else settle_ms


def _position(given: Mapping[str, str], which: str, default: Position) -> Position | Mapping[int, Position]:
    position, time, broker_time = f"{which}Position", f"{which}Time", f"{which}BrokerTime"
    named = [name for name in (position, time, broker_time) if name in given]
    if len(named) > 1:
        raise InvalidOption(f"give {' or '.join(named)}, not both")
    if broker_time in given:
        return AtBrokerTime(_instant_ms(broker_time, given[broker_time]))
    if time in given:
        return AtTime(_instant_ms(time, given[time]))
    if not given.get(position):
        return default
    if not given[position].lstrip().startswith("{"):
        return _one_position(given, position, which)
    of_each = {name: str(value) for name, value in _object(given, position).items()}
    strange = [name for name in of_each if not (name.isascii() and name.isdigit())]
    if strange:
        raise InvalidOption(f"{position} names partitions by their numbers, not {strange[0]!r:.60}")
    return {int(name): _one_position({position: value}, position, which) for name, value in of_each.items()}


def _one_position(given: Mapping[str, str], name: str, which: str) -> Position:
    match given[name].lower():
        case "earliest" if which == "starting":
            return EARLIEST
        case "latest":
            return LATEST
    return _number(given, name, 0, least=0)


def _instant_ms(name: str, text: str) -> int:
    try:
        return instant_ms(int(text) if text.lstrip("-").isdigit() else datetime.fromisoformat(text))
    except (InvalidDeliverAfter, ValueError) as error:
        raise InvalidOption(f"{name} is epoch ms, or ISO 8601 with a zone, not {text!r}: {error}") from None


def _columns(text: str) -> tuple[str, ...]:
    if not text:
        return DEFAULT_COLUMNS
    names = tuple(name.strip() for name in text.split(","))
    unknown = [name for name in names if name not in COLUMNS]
    if unknown or len(set(names)) != len(names):
        raise InvalidOption(f"columns are some of {', '.join(COLUMNS)}, each once, not {text!r}")
    return names
