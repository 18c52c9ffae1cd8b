"""The `checkpoints` file of a partition: what must be known before the log is read, in one small durable file.

A document (see `afterlog.base.document`) of one object; a body, shortened:

    {"partition":"mail-0",
     "recovery":{"segment":0,"position":8120,"offset":40,"stamp_ms":1699999999990},
     "frontier":{"used_ms":1700000000000,"lease_ms":1700000001000},
     "log_start":{"delivery_offset":0,"deliver_after":-1,"offset":-1},
     "removed_records":0,
     "sealed":[],
     "active":{"base_offset":0,"index":[16,305419896],"time_index":[24,2596069104],"latest":[1699999999990,39]}}

Meaning:

- `partition`: the folder whose checkpoints these are, so that a file in the wrong place is seen.
- `recovery`: all below is durable, checked and indexed. Above it a failed check is a torn tail, below it corruption.
- `frontier.used_ms`: a reading of the log clock that was used to decide "due". `frontier.lease_ms`: no fetch used a
  larger one. In between nobody knows: after a crash appends are stamped above the lease, and deliveries go on at the
  wall clock, so that nothing is skipped and nothing early. A clean close writes both equal.
- `log_start`: the last key that retention took away and the rank behind it: ranks are counted from here.
- `removed_records`: how many records retention removed with their segments, and cleanings, ever.
- `acked`: ranges of delivery order that all readers have acked beyond what they have not, and that are out of reach:
  the fields of `afterlog.index.acked_ranges.AckedRange`, how many of `removed_records` lay there among them. Left out
  where there is none.
- `sealed`: one row a sealed segment; a segment that is in no row and is not the active one holds nothing acknowledged.
- `index`, `time_index`: bytes and CRC-32C of the sparse index files, whose format is Kafka's and has no room for it.
- `cancel_index`: the same of the cancel index; left out where the segment has no control batches, and so no file.
- `last_stamp_ms`: the broker timestamp of a sealed segment's last entry, in a FIFO topic; left out where it has none.
- Size and CRC-32C of an index, when they are -1 and 0: repair cut the segment; whoever opens the log makes it anew.
- `remote`, of a sealed segment that was uploaded: the attempt that object storage lists it under, size and CRC-32C of
  its run there, and whether its files are in the folder, too. Left out where it was not. Of a segment that is not in
  the folder any more the cancel index is. Of a Kafka broker's segment also `records`, how many its run holds.
- `topic_id`: of the topic whose partition it is; left out where it has none. Another one: an earlier topic's files.
- `unique_keys`: where the partition was ever sent a unique key (log/unique_key_files.py): from which offset on there
  may be any, up to where files tell of them, and the files: the offsets [first, end) of each, its rows, when all of
  these are due, and its CRC-32C. Left out where nobody sent one.
- `producers`: where the partition has what a producer numbered (log/producer_files.py): from which offset on there may
  be any, up to where the file tells of them, and the file: its offset, how many producers, its CRC-32C; none where all
  were forgotten. Left out where no producer ever did.
- `origins`: where anything was replicated to the partition (log/origin_files.py): the offset after the highest of each
  origin, up to where the file tells of them, and the file: its offset and CRC-32C. Left out where nothing ever was.
- `generation`, `held_records`, of a segment that was cleaned (log/cleaning.py): the cleaning that wrote its files, of
  whose names it is a part, and how many records it left in them. Left out of one that is as it was sealed.
- `cleanings`: how many cleanings of the partition there were. Left out where there was none.
- `removals`: attempts of segments that retention has removed here, and that may still be in object storage.
- `replaced`: attempts of segments that a cleaning has written anew, which object storage lists until it has what was
  written. Left out where there is none.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from afterlog.base import document
from afterlog.base.document import well_typed, whole
from afterlog.base.errors import CorruptFile
from afterlog.base.files import Files
from afterlog.index.acked_ranges import AckedRange
from afterlog.index.entries import Key
from afterlog.index.origin_file import OriginFileMark
from afterlog.index.producer_file import ProducerFileMark
from afterlog.index.unique_key_file import KeyFileMark
from afterlog.log.facts import NO_FILE, FileMark, SegmentFacts

FORMAT = "afterlog-checkpoints"
VERSION = 1
BEFORE_ALL = Key(-1, -1)
"""Sorts before the key of any record."""
_ABSENT = {
    "acked": (),
    "cancel_index": NO_FILE,
    "cleanings": 0,
    "generation": 0,
    "held_records": -1,
    "last_stamp_ms": -1,
    "origins": None,
    "producers": None,
    "remote": None,
    "removals": (),
    "replaced": (),
    "records": None,
    "topic_id": None,
    "unique_keys": None,
}
"""Values that are not written."""
_MARKS = ("index", "time_index", "cancel_index", "run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """The recovery point: a place between two entries, and the stamp of the last append before it."""

    segment: int
    position: int
    offset: int
    stamp_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierLease:
    """The frontier as far as it is durable, ms since the epoch."""

    used_ms: int = 0
    lease_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStart:
    """Where delivery order begins: `delivery_offset` records with keys up to `key` are gone or out of reach."""

    delivery_offset: int = 0
    deliver_after: int = BEFORE_ALL.deliver_after
    offset: int = BEFORE_ALL.offset

    @property
    def key(self) -> Key:
        return Key(self.deliver_after, self.offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteMark:
    """Where a sealed segment lies in object storage."""

    attempt: str
    """The attempt to upload it that is listed."""
    run: FileMark = NO_FILE
    """Its run there; there is none of a segment of a FIFO topic."""
    local: bool = True
    """Whether its files are in the folder, too."""
    records: int | None = None
    """In its run, of a Kafka broker's segment, which may have fewer than offsets; of ours None: as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedMark(SegmentFacts):
    """A sealed segment, and where it lies."""

    remote: RemoteMark | None = None

    @property
    def local(self) -> bool:
        """Whether its files are in the folder."""
        return self.remote is None or self.remote.local

    @property
    def records(self) -> int:
        """How many its run holds."""
        of_kafka = None if self.remote is None else self.remote.records
        return self.kept if of_kafka is None else of_kafka

    @staticmethod
    def of_json(row: dict[str, Any]) -> SealedMark:
        remote = row.get("remote")
        mark = None if remote is None else well_typed(RemoteMark(**_marks(remote)))
        return well_typed(SealedMark(**{**_marks(row), "remote": mark}))


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveMark:
    """The active segment's indexes as far as they are durable.

    latest: the largest record timestamp so far and the last offset of its batch, which the time index may not hold yet.
    """

    base_offset: int
    index: FileMark = NO_FILE
    time_index: FileMark = NO_FILE
    latest: tuple[int, int] = (-1, -1)
    cancel_index: FileMark = NO_FILE

    @staticmethod
    def of_json(row: dict[str, Any]) -> ActiveMark:
        time, offset = row["latest"]
        return well_typed(ActiveMark(**{**_marks(row), "latest": (whole(time), whole(offset))}))


@dataclass(frozen=True, slots=True, kw_only=True)
class UniqueKeysMark:
    """The unique keys of the partition, as far as they are durable beside the log."""

    since: int
    """No record below holds one."""
    upto: int
    """The files tell of all from `since` up to here."""
    files: tuple[KeyFileMark, ...] = ()

    def forgotten(self) -> UniqueKeysMark:
        """With no files: whoever opens the log next reads all of it from the log."""
        return UniqueKeysMark(since=self.since, upto=self.since)

    @staticmethod
    def of_json(row: dict[str, Any]) -> UniqueKeysMark:
        files = tuple(KeyFileMark(*map(whole, file)) for file in row["files"])
        return well_typed(UniqueKeysMark(**{**row, "files": files}))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducersMark:
    """The producers of the partition, as far as they are durable beside the log."""

    since: int
    """No record below was numbered by its producer."""
    upto: int
    """The file tells of all from `since` up to here."""
    file: ProducerFileMark | None = None

    def forgotten(self) -> ProducersMark:
        """With no file: whoever opens the log next reads all of it from the log."""
        return ProducersMark(since=self.since, upto=-1)

    @staticmethod
    def of_json(row: dict[str, Any]) -> ProducersMark:
        file = None if row["file"] is None else ProducerFileMark(*map(whole, row["file"]))
        return well_typed(ProducersMark(**{**row, "file": file}))


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginsMark:
    """What was replicated to the partition, as far as it is durable beside the log."""

    highest: tuple[tuple[str, int], ...]
    """Origins, and the offset after the highest of each."""
    upto: int
    """The file tells of all up to here."""
    file: OriginFileMark | None = None

    def forgotten(self) -> OriginsMark:
        """With no file: whoever opens the log next reads the rows from the log."""
        return replace(self, upto=-1, file=None)

    @staticmethod
    def of_json(row: dict[str, Any]) -> OriginsMark:
        highest = tuple((str(name), whole(behind)) for name, behind in row["highest"])
        file = None if row["file"] is None else OriginFileMark(*map(whole, row["file"]))
        return well_typed(OriginsMark(**{**row, "highest": highest, "file": file}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """The content of the file."""

    recovery: Recovery
    active: ActiveMark
    frontier: FrontierLease = field(default_factory=FrontierLease)
    log_start: LogStart = field(default_factory=LogStart)
    removed_records: int = 0
    sealed: tuple[SealedMark, ...] = ()
    removals: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    topic_id: str | None = None
    unique_keys: UniqueKeysMark | None = None
    producers: ProducersMark | None = None
    origins: OriginsMark | None = None
    cleanings: int = 0
    acked: tuple[AckedRange, ...] = ()

    @staticmethod
    def of_new_log(base_offset: int = 0) -> Checkpoints:
        return Checkpoints(
            recovery=Recovery(segment=base_offset, position=0, offset=base_offset),
            active=ActiveMark(base_offset=base_offset),
        )

    @staticmethod
    def of_json(body: dict[str, Any], path: Path) -> Checkpoints:
        """Raises CorruptFile where the object is not what `asdict` makes."""
        try:
            return Checkpoints(
                recovery=well_typed(Recovery(**body["recovery"])),
                active=ActiveMark.of_json(body["active"]),
                frontier=well_typed(FrontierLease(**body["frontier"])),
                log_start=well_typed(LogStart(**body["log_start"])),
                removed_records=whole(body["removed_records"]),
                sealed=tuple(SealedMark.of_json(row) for row in body["sealed"]),
                removals=tuple(map(str, body.get("removals", ()))),
                replaced=tuple(map(str, body.get("replaced", ()))),
                topic_id=None if body.get("topic_id") is None else str(body["topic_id"]),
                unique_keys=None if (keys := body.get("unique_keys")) is None else UniqueKeysMark.of_json(keys),
                producers=None if (known := body.get("producers")) is None else ProducersMark.of_json(known),
                origins=None if (origins := body.get("origins")) is None else OriginsMark.of_json(origins),
                cleanings=whole(body.get("cleanings", 0)),
                acked=tuple(AckedRange(*map(whole, row)) for row in body.get("acked", ())),
            )
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise CorruptFile(f"checkpoints hold something unknown: {error}", path=path) from error


class CheckpointFile:
    """The file, and its content as last made durable. Thread-safe: the append and the fetch side both write it."""

    def __init__(self, files: Files, path: Path, current: Checkpoints) -> None:
        self._files = files
        self._path = path
        self.current = current
        self._rows = _SealedRows()
        self._lock = threading.Lock()

    @staticmethod
    def create(files: Files, path: Path, content: Checkpoints) -> CheckpointFile:
        checkpoints = CheckpointFile(files, path, content)
        checkpoints._write(content)
        return checkpoints

    @staticmethod
    def open(files: Files, path: Path) -> CheckpointFile:
        """Raises CorruptFile where the file is missing or fails its checks."""
        return CheckpointFile(files, path, _read(files, path))

    def reload(self) -> None:
        """Take the file for the truth again: a write of it was interrupted. Raises as `open` does."""
        with self._lock:
            self.current = _read(self._files, self._path)

    def update(self, **changes: Any) -> None:
        """Replace fields durably. Where it raises, `current` stays what it was."""
        with self._lock:
            self._replace(**changes)

    def move_frontier(self, used_ms: int, lease_ms: int, **changes: Any) -> None:
        """The same, with a frontier that goes on from wherever others have moved it meanwhile, and never back."""
        with self._lock:
            known = self.current.frontier
            frontier = FrontierLease(used_ms=max(used_ms, known.used_ms), lease_ms=max(lease_ms, known.lease_ms))
            self._replace(frontier=frontier, **changes)

    def _replace(self, **changes: Any) -> None:
        changed = replace(self.current, **changes)
        if changed != self.current:
            self._write(changed)
            self.current = changed

    def _write(self, content: Checkpoints) -> None:
        pieces = [b'{"partition":', document.json_text(self._path.parent.name)]
        for name, value in _held(content):
            pieces += [
                b',"%s":' % name.encode(),
                self._rows.text(value) if name == "sealed" else document.json_text(_plain(value)),
            ]
        document.write(self._files, self._path, FORMAT, VERSION, [*pieces, b"}"])


class _SealedRows:
    """The rows of the sealed segments as JSON: each encoded once, since all of them are in each document that is
    written.

    Of 10,000 segments they are 2 MB, written at each roll, and once a second while records are delivered. What is known
    changes by one swap: an exception may strike between any two lines.
    """

    def __init__(self) -> None:
        self._known: tuple[tuple[SealedMark, ...], list[bytes], bytes] = ((), [], b"[]")
        """The rows, each as JSON, and all of them."""

    def text(self, sealed: tuple[SealedMark, ...]) -> bytes:
        before, texts, text = self._known
        if sealed is not before:
            if before and sealed[: len(before)] == before:  # a roll
                more = [document.json_text(_plain(mark)) for mark in sealed[len(before) :]]
                texts, text = [*texts, *more], b",".join([text[:-1], *more]) + b"]"
            else:
                known = {id(mark): row for mark, row in zip(before, texts, strict=True)}
                texts = [known.get(id(mark)) or document.json_text(_plain(mark)) for mark in sealed]
                text = b"[%s]" % b",".join(texts)
            self._known = sealed, texts, text
        return text


def _read(files: Files, path: Path) -> Checkpoints:
    try:
        body = document.read(files, path, FORMAT, VERSION)
    except FileNotFoundError:
        raise CorruptFile("the partition's checkpoints are gone", path=path) from None
    if body.get("partition") != path.parent.name:
        raise CorruptFile(f"these are the checkpoints of {body.get('partition')!r}", path=path)
    return Checkpoints.of_json(body, path)


def _plain(value: Any) -> Any:
    """What JSON is made of: as `asdict` makes it, without what is absent."""
    if isinstance(value, tuple):
        return (
            value
            if isinstance(value, FileMark | KeyFileMark | ProducerFileMark | OriginFileMark)
            else list(map(_plain, value))
        )
    if not hasattr(value, "__dataclass_fields__"):
        return value
    return {name: _plain(part) for name, part in _held(value)}


def _held(value: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a dataclass that are written."""
    for name in value.__dataclass_fields__:
        part = getattr(value, name)
        if name not in _ABSENT or part != _ABSENT[name]:
            yield name, part


def _marks(row: dict[str, Any]) -> dict[str, Any]:
    return {name: FileMark(*map(whole, value)) if name in _MARKS else value for name, value in row.items()}
