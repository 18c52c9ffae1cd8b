"""Replay of a subscription: from its newest journal on disk to a state.

snapshot ──> frames, each applied ──> the end, or the first frame that
                                        fails its checks: torn and cut, or rotten (`frames.py`)
                                        has seen more of the log than there is: given up (`journal.py`)
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from afterlog.base.errors import CorruptFile
from afterlog.base.files import Files, read_file
from afterlog.base.names import journal_file
from afterlog.subscription.events import Kind, decode
from afterlog.subscription.frames import Frame, frame_at, proof_of_rot
from afterlog.subscription.journal import numbers
from afterlog.subscription.state import Owner, SubscriptionState

logger = logging.getLogger("afterlog.subscription")


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a journal brought back."""

    number: int
    state: SubscriptionState
    cut_bytes: int = 0
    """Torn end that was cut."""
    given_up_bytes: int = 0
    """Frames that had seen more of the log than there is."""


def replay(files: Files, folder: Path, owner: Owner, log_end_offset: int) -> Replayed | None:
    """What the newest journal brings back, of a log that ends at `log_end_offset`; None where there is none.

    Changes nothing on disk. Raises CorruptFile.
    """
    found = numbers(files, folder)
    if not found:
        return None
    path = folder / journal_file(found[-1])
    data = read_file(files, path)
    number, view = found[-1], memoryview(data)
    frame = frame_at(view, number, 0)
    if frame is None or frame.kind != Kind.SNAPSHOT:
        raise CorruptFile("no whole snapshot at its beginning", path=path, position=0)
    if frame.log_end_offset > log_end_offset:
        reason = f"of a log of {frame.log_end_offset} records or more, but there are {log_end_offset}"
        raise CorruptFile(reason, path=path, position=0)
    state = _snapshot(frame, owner, path)
    position = frame.end
    while position < len(data):
        frame = frame_at(view, number, position)
        if frame is None:
            _check_torn(data, number, position, path)
            logger.warning("%s: %d bytes behind byte %d are torn, and cut", path, len(data) - position, position)
            return Replayed(number, state, cut_bytes=len(data) - position)
        if frame.log_end_offset > log_end_offset:
            logger.warning("%s: the log ends before what byte %d speaks of; given up from there", path, position)
            return Replayed(number, state, given_up_bytes=len(data) - position)
        _apply(state, frame, path)
        position = frame.end
    return Replayed(number, state)


def _snapshot(frame: Frame, owner: Owner, path: Path) -> SubscriptionState:
    try:
        state = SubscriptionState.of_bytes(frame.body, owner)
        if state.position > frame.log_end_offset:
            raise ValueError(f"its position {state.position} lies beyond the log's end")
    except (ValueError, LookupError, TypeError, OverflowError) as error:
        raise CorruptFile(f"the snapshot is not one of {owner}: {error}", path=path, position=0) from error
    return state


def _apply(state: SubscriptionState, frame: Frame, path: Path) -> None:
    try:
        state.apply(decode(Kind(frame.kind), frame.body))
    except (ValueError, LookupError, TypeError, OverflowError) as error:
        raise CorruptFile(f"a frame that cannot be: {error}", path=path, position=frame.position) from error


def _check_torn(data: bytes, number: int, position: int, path: Path) -> None:
    proof = proof_of_rot(data, number, position)
    if proof is not None:
        reason = f"a frame fails its checks, though byte {proof.position} says that it was durable"
        raise CorruptFile(reason, path=path, position=position)
