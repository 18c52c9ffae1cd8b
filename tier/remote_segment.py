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
from typing import Any, NamedTuple

import crc32c

from afterlog.errors import CorruptFile
from afterlog.files import Files, map_file
from afterlog.names import CANCEL_INDEX, DELIVER_AFTER_INDEX, LOG, OFFSET_INDEX, TIME_INDEX, is_attempt

REQUIRED = (LOG, OFFSET_INDEX, TIME_INDEX)
OPTIONAL = (DELIVER_AFTER_INDEX, CANCEL_INDEX)
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


class FileMark(NamedTuple):
    """What tells whether a file is whole."""

    size: int
    crc32c: int


def file_mark(files: Files, path: Path) -> FileMark:
    """Of a sealed file as it is now. FileNotFoundError."""
    data = map_file(files, path)
    return FileMark(len(data), crc32c.crc32c(data))


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFiles:
    """The files of a sealed segment on this machine. `marks`: what is known of some of them since they were sealed."""

    files: Files
    base_offset: int
    end_offset: int
    max_deliver_after: int
    max_timestamp: int
    paths: Mapping[str, Path]
    """By suffix: `.log`, `.index`, `.timeindex`, and where there are any `.deliverafterindex`, `.cancelindex`."""
    marks: Mapping[str, FileMark]

    def measured(self) -> dict[str, FileMark]:
        """Size and CRC-32C of each file. CorruptFile where they are not those that are known."""
        found = {}
        for suffix, path in self.paths.items():
            found[suffix] = file_mark(self.files, path)
            if self.marks.get(suffix, found[suffix]) != found[suffix]:
                raise CorruptFile("it is not as it was sealed, and is not uploaded", path=path)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSegment:
    """One attempt to upload the offsets [base_offset, end_offset). ValueError where the values cannot be.

    The sparse marks that a checkpoint needs are the marks of `.index` and `.timeindex`.
    """

    base_offset: int
    end_offset: int
    attempt: str
    """32 hex digits that nobody else has; in the keys of its objects."""
    state: SegmentState
    started_ms: int
    """When the attempt began, by the clock of who made it: tells what has been given up, decides nothing."""
    max_deliver_after: int
    max_timestamp: int
    files: Mapping[str, FileMark]
    """By suffix."""

    def __post_init__(self) -> None:
        _check(0 <= whole(self.base_offset) < whole(self.end_offset) <= _OFFSET_MAX, "offsets")
        _check(self.end_offset - self.base_offset <= _RECORDS_MAX, "number of records")
        _check(isinstance(self.attempt, str) and is_attempt(self.attempt), "attempt")
        _check(isinstance(self.state, SegmentState), "state")
        for name in ("started_ms", "max_deliver_after", "max_timestamp"):
            _check(-1 <= whole(getattr(self, name)) <= _INT64_MAX, name)
        _check(set(REQUIRED) <= set(self.files) <= {*REQUIRED, *OPTIONAL}, "files")
        for suffix, (size, crc) in self.files.items():
            _check(0 <= whole(size) <= _FILE_SIZE_MAX and 0 <= whole(crc) < 2**32, f"size or CRC of {suffix}")

    @staticmethod
    def of_json(row: dict[str, Any]) -> RemoteSegment:
        """LookupError, TypeError, ValueError where the row is not what `to_json` makes. It may be anybody's."""
        files = {suffix: FileMark(*mark) for suffix, mark in row["files"].items()}
        return RemoteSegment(**{**row, "state": SegmentState(row["state"]), "files": files})

    def to_json(self) -> dict[str, Any]:
        row = {name: getattr(self, name) for name in self.__slots__}
        return {**row, "files": {suffix: list(mark) for suffix, mark in self.files.items()}}

    def moved_to(self, state: SegmentState) -> RemoteSegment:
        """The row with its next state. ValueError where the life-cycle has no such step."""
        _check(state in _NEXT[self.state], f"step from {self.state} to {state}")
        return replace(self, state=state)

    def overlaps(self, other: RemoteSegment) -> bool:
        return self.base_offset < other.end_offset and other.base_offset < self.end_offset

    def has_the_log_of(self, other: RemoteSegment) -> bool:
        """Whether both are uploads of one segment. Its indexes may have been made anew in between."""
        return (self.base_offset, self.end_offset, self.files[LOG]) == (
            other.base_offset,
            other.end_offset,
            other.files[LOG],
        )


def whole(value: object) -> int:
    """An int, as JSON has them: no bool, no float."""
    if type(value) is not int:
        raise TypeError(f"{str(value)[:40]!r} is no whole number")
    return value


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"{what} cannot be")
