"""Bugs to plant into what moves between log and object storage, one at a time; the explorer must catch each of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from afterlog.base.clock import INT64_MAX
from afterlog.base.files import unused_name
from afterlog.base.names import LOG, segment_file
from afterlog.log import retention
from afterlog.log.checkpoints import CheckpointFile, Checkpoints, RemoteMark
from afterlog.log.maintenance import Maintenance
from afterlog.log.segment import SealedSegment
from afterlog.tier.log_facts import LogFacts
from afterlog.tier.offload import Offloader
from afterlog.tier.remove import remove, start_removal
from tests.tier.crashes import SCENARIOS, TieredScenario

NAMED = {scenario.name: scenario for scenario in SCENARIOS}
Planted = contextlib.AbstractContextManager[Any]


@dataclass(frozen=True, slots=True)
class Bug:
    name: str
    scenario: TieredScenario
    planted: Callable[[], Planted]


def patched(owner: Any, name: str, function: Any) -> Callable[[], Planted]:
    return lambda: patch.object(owner, name, function)


def unlinks_first(checkpoints: CheckpointFile, *frontier: int, **changes: Any) -> None:
    """The local copy goes before it is durable that it may."""
    for mark in set(changes.get("sealed", ())) - set(checkpoints.current.sealed):
        if not mark.local:
            checkpoints._files.unlink(checkpoints._path.parent / segment_file(mark.base_offset, LOG))
    MOVE_FRONTIER(checkpoints, *frontier, **changes)


def noted_first(offloader: Offloader, segment: SealedSegment, facts: LogFacts | None) -> bool:
    """It is in the checkpoints that a segment is there before it is."""
    offloader.log.uploaded({segment.base_offset: RemoteMark(attempt=unused_name())})
    return UPLOADED(offloader, segment, facts)


def pending_too(segments: Sequence[SealedSegment], active: Any, rule: Any, frontier_ms: int, **how: Any) -> Any:
    return REMOVABLE(segments, active, rule, INT64_MAX, **how)


def without_frontier(maintenance: Maintenance, marks: Any, *, used_ms: int = 0) -> None:
    MARK(maintenance, marks)


def with_the_cancel_index(segment: SealedSegment, *, kept: Collection[str] = ()) -> list[Path]:
    return FILES_OF(segment)


@contextlib.contextmanager
def told_last() -> Iterator[None]:
    """The objects of what retention removed go before the manifest says that they were removed."""

    def remove_and_tell(offloader: Offloader, removals: Set[str]) -> int:
        start_removal(offloader.manifest, *(row for row in offloader.manifest.listed() if row.attempt in removals))
        count = REMOVE_OBJECTS(offloader, removals)
        TELL(offloader, removals)
        return count

    with (
        patch.object(Offloader, "_tell", lambda offloader, removals: None),
        patch.object(Offloader, "_remove", remove_and_tell),
    ):
        yield


@contextlib.contextmanager
def forgotten_first() -> Iterator[None]:
    """What is to be removed from the storage is forgotten before it is."""

    def forget_and_tell(offloader: Offloader, removals: Set[str]) -> None:
        offloader.log.removed(removals)
        TELL(offloader, removals)

    with patch.object(Offloader, "_tell", forget_and_tell):
        yield


def without_replaced(body: dict[str, Any], path: Path) -> Checkpoints:
    """What object storage lists of a segment that was written anew is in memory alone."""
    return OF_JSON({name: value for name, value in body.items() if name != "replaced"}, path)


@contextlib.contextmanager
def ended_first() -> Iterator[None]:
    """What is replaced goes before that is listed which replaces it."""

    def upload_cleaned(offloader: Offloader, segments: Any, rows: Any) -> None:
        remove(offloader.manifest, *rows)
        UPLOAD_CLEANED(offloader, segments, rows)

    with patch.object(Offloader, "_upload_cleaned", upload_cleaned):
        yield


MARK = Maintenance._mark
OF_JSON = Checkpoints.of_json
UPLOAD_CLEANED = Offloader._upload_cleaned
MOVE_FRONTIER = CheckpointFile.move_frontier
REMOVABLE = retention.removable
FILES_OF = retention.files_of
REMOVE_OBJECTS = Offloader._remove
TELL = Offloader._tell
UPLOADED = Offloader._uploaded

BUGS = (
    Bug("local copy goes first", NAMED["goes"], patched(CheckpointFile, "move_frontier", unlinks_first)),
    Bug("noted before it is there", NAMED["goes"], patched(Offloader, "_uploaded", noted_first)),
    Bug("pending ones go too", NAMED["goes"], patched(retention, "removable", pending_too)),
    Bug("frontier not written", NAMED["goes"], patched(Maintenance, "_mark", without_frontier)),
    Bug("cancel index goes too", NAMED["cancelled goes"], patched(retention, "files_of", with_the_cancel_index)),
    Bug("manifest told last", NAMED["expires"], told_last),
    Bug("what is replaced is forgotten", NAMED["cleaned there"], patched(Checkpoints, "of_json", without_replaced)),
    Bug("what is replaced goes first", NAMED["cleaned there"], ended_first),
    Bug("removals forgotten first", NAMED["expires"], forgotten_first),
)
