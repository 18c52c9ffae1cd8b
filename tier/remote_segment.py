"""A segment in object storage: what a row of the manifest says of it, and its life-cycle, in KIP-405's words.

    COPY_STARTED ──> COPY_FINISHED ──> DELETE_STARTED ──> DELETE_FINISHED
         └───────────────────────────────^

    COPY_STARTED      an attempt to upload it has begun: its objects are not there, or in part, or not yet verified
    COPY_FINISHED     all its objects are there and were read back; the segment is listed, and may be read
    DELETE_STARTED    nobody may begin to read it, and its objects go; also what becomes of an attempt that was given up
    DELETE_FINISHED   its objects are gone, and the row with them: a manifest never holds this state

A segment has as many rows as there are attempts, of which one at most is COPY_FINISHED. Who wants to end another's
attempt moves its row to DELETE_STARTED: the attempt cannot finish any more, however late it wakes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from afterlog.base.document import whole
from afterlog.base.errors import CorruptFile
from afterlog.base.files import Files, map_file
from afterlog.base.names import CANCEL_INDEX, DELIVER_AFTER_INDEX, LOG, OFFSET_INDEX, TIME_INDEX, is_attempt
from afterlog.log.facts import NO_FILE, FileMark, SegmentFacts

_FIELDS = {OFFSET_INDEX: "index", TIME_INDEX: "time_index", CANCEL_INDEX: "cancel_index", DELIVER_AFTER_INDEX: "run"}
"""What each file but the log is called here."""
_INT64_MAX = 2**63 - 1
_OFFSET_MAX = 2**62
"""Whoever goes on from here has room to count."""
_RECORDS_MAX = 2**31 - 1
"""In a segment: offsets in its indexes are relative."""
_FILE_SIZE_MAX = 2**31 - 1


class SegmentState(StrEnum):
    COPY_STARTED = "COPY_STARTED"
    COPY_FINISHED = "COPY_FINISHED"
    DELETE_STARTED = "DELETE_STARTED"
    DELETE_FINISHED = "DELETE_FINISHED"


_NEXT = {
    SegmentState.COPY_STARTED: (SegmentState.COPY_FINISHED, SegmentState.DELETE_STARTED),
    SegmentState.COPY_FINISHED: (SegmentState.DELETE_STARTED,),
    SegmentState.DELETE_STARTED: (SegmentState.DELETE_FINISHED,),
    SegmentState.DELETE_FINISHED: (),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFiles:
    """The files of a sealed segment on this machine, and what has been known of them since they were sealed."""

    files: Files
    facts: SegmentFacts
    paths: Mapping[str, Path]
    """By suffix: `.log`, `.index`, `.timeindex`, and where there are any `.cancelindex`, `.deliverafterindex`."""

    def measured(self) -> dict[str, FileMark]:
        """Size and CRC-32C of each file. CorruptFile where they are not those that are known."""
        found = {suffix: FileMark.of(map_file(self.files, path)) for suffix, path in self.paths.items()}
        known = {**self.facts.indexes, LOG: FileMark(self.facts.log_bytes, found[LOG].crc)}
        for suffix, mark in known.items():
            if found[suffix] != mark:
                raise CorruptFile("it is not as it was sealed, and is not uploaded", path=self.paths[suffix])
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSegment(SegmentFacts):
    """One attempt to upload the offsets [base_offset, end_offset). ValueError where the values cannot be."""

    attempt: str
    """32 hex digits that nobody else has; in the keys of its objects."""
    state: SegmentState
    started_ms: int
    """When the attempt began, by the clock of who made it: tells what has been given up, decides nothing."""
    log_crc: int
    run: FileMark = NO_FILE
    """A segment of a FIFO topic has none."""

    def __post_init__(self) -> None:
        _check(0 <= whole(self.base_offset) < whole(self.end_offset) <= _OFFSET_MAX, "offsets")
        _check(self.end_offset - self.base_offset <= _RECORDS_MAX, "number of records")
        _check(isinstance(self.attempt, str) and is_attempt(self.attempt), "attempt")
        _check(isinstance(self.state, SegmentState), "state")
        _check(-1 <= whole(self.held_records) <= self.end_offset - self.base_offset, "number of records held")
        _check((whole(self.generation) > 0) == self.has_gaps, "cleaning")
        for name in ("started_ms", "max_deliver_after", "max_timestamp", "last_stamp_ms"):
            _check(-1 <= whole(getattr(self, name)) <= _INT64_MAX, name)
        for mark in (FileMark(self.log_bytes, self.log_crc), self.index, self.time_index, self.cancel_index, self.run):
            _check(0 <= whole(mark.size) <= _FILE_SIZE_MAX and 0 <= whole(mark.crc) < 2**32, "size or CRC of a file")
            _check(mark.size > 0 or mark.crc == 0, "CRC of an empty file")

    @property
    def files(self) -> dict[str, FileMark]:
        """All of its objects, by suffix."""
        files = {LOG: FileMark(self.log_bytes, self.log_crc), **self.indexes}
        return {**files, DELIVER_AFTER_INDEX: self.run} if self.run.size else files

    @staticmethod
    def of_json(row: dict[str, Any]) -> RemoteSegment:
        """LookupError, TypeError, ValueError where the row is not what `to_json` makes. It may be anybody's."""
        row = dict(row)
        files = {suffix: FileMark(*mark) for suffix, mark in row.pop("files").items()}
        log = files.pop(LOG)
        marks: dict[str, Any] = {_FIELDS[suffix]: mark for suffix, mark in files.items()}
        row["state"] = SegmentState(row["state"])
        return RemoteSegment(**row, **marks, log_bytes=log.size, log_crc=log.crc)

    def to_json(self) -> dict[str, Any]:
        return {
            "base_offset": self.base_offset,
            "end_offset": self.end_offset,
            "attempt": self.attempt,
            "state": self.state,
            "started_ms": self.started_ms,
            "max_deliver_after": self.max_deliver_after,
            "max_timestamp": self.max_timestamp,
            **({} if self.last_stamp_ms < 0 else {"last_stamp_ms": self.last_stamp_ms}),
            **({"generation": self.generation, "held_records": self.held_records} if self.has_gaps else {}),
            "files": {suffix: list(mark) for suffix, mark in self.files.items()},
        }

    def moved_to(self, state: SegmentState) -> RemoteSegment:
        """The row with its next state. ValueError where the life-cycle has no such step."""
        _check(state in _NEXT[self.state], f"step from {self.state} to {state}")
        return replace(self, state=state)

    def overlaps(self, other: RemoteSegment) -> bool:
        return self.base_offset < other.end_offset and other.base_offset < self.end_offset

    def has_the_log_of(self, other: RemoteSegment) -> bool:
        """Whether both are uploads of one segment. Its indexes may have been made anew in between."""
        return self._log() == other._log()

    def _log(self) -> tuple[int, int, int, int]:
        return self.base_offset, self.end_offset, self.log_bytes, self.log_crc


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"{what} cannot be")
