"""Markers of replicated subscriptions (PIP-33): notes in the logs, between the records that they refer to.

    SNAPSHOT_REQUEST      I begin round `round` of snapshot `id`: how far are you?
    SNAPSHOT_RESPONSE     to `to`: all that you had before your request is in my log before `position`; in it are
                          records of `origins`, too
    SNAPSHOT              what is acked of mine before `local` is acked of yours before `remote`, of these `origins`;
                          for nobody but its own cluster, which finds it again when it begins anew
    SUBSCRIPTION_UPDATE   of `subscription` all is acked before `remote` that came from `origins`, of each from
                          an offset on
    ACKED                 of `subscription` these records are acked, also where others before them are not

Each is one line of JSON. Clusters are named by the topic's id there, positions are append offsets. ACKED has Roaring
bitmaps in base64, of offsets where the records were appended first; the others are Pulsar's, whose reading of a
mark_delete stands still while one record waits (docs/decisions/0058).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pyroaring import BitMap64

from afterlog.base.errors import InvalidBatch
from afterlog.records.control import ControlType, Note


class SnapshotRequest(NamedTuple):
    id: str
    round: int


class SnapshotResponse(NamedTuple):
    id: str
    round: int
    to: str
    position: int
    origins: Sequence[str]


class Snapshot(NamedTuple):
    id: str
    local: int
    remote: Mapping[str, int]
    origins: Sequence[str] = ()
    """Who answered, and who asked: of others there may be records before `remote` that are not before `local`."""


class SubscriptionUpdate(NamedTuple):
    subscription: str
    remote: Mapping[str, int]
    origins: Mapping[str, int]
    """From which of its own offsets on all that one had came here: of what went before it came nobody here can tell."""


class AcksUpdate(NamedTuple):
    subscription: str
    acked: Mapping[str, BitMap64]


Marker = SnapshotRequest | SnapshotResponse | Snapshot | SubscriptionUpdate | AcksUpdate
_KINDS: Mapping[type[Marker], ControlType] = {
    SnapshotRequest: ControlType.SNAPSHOT_REQUEST,
    SnapshotResponse: ControlType.SNAPSHOT_RESPONSE,
    Snapshot: ControlType.SNAPSHOT,
    SubscriptionUpdate: ControlType.SUBSCRIPTION_UPDATE,
    AcksUpdate: ControlType.ACKED,
}


def encoded(marker: Marker) -> tuple[ControlType, bytes]:
    said = marker._asdict()
    if isinstance(marker, AcksUpdate):
        said["acked"] = {
            origin: base64.b64encode(offsets.serialize()).decode() for origin, offsets in marker.acked.items()
        }
    return _KINDS[type(marker)], json.dumps(said, separators=(",", ":")).encode()


def decoded(note: Note) -> Marker | None:
    """None where it is no marker. InvalidBatch where it is not what `encoded` makes."""
    kind = next((kind for kind, number in _KINDS.items() if number == note.type), None)
    if kind is None:
        return None
    try:
        said: Any = json.loads(note.value)
        if kind is AcksUpdate:
            said["acked"] = {
                str(origin): BitMap64.deserialize(base64.b64decode(text, validate=True))
                for origin, text in said["acked"].items()
            }
        marker = kind(**said)
        _check(marker)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise InvalidBatch(f"the marker at offset {note.offset} is none that is known here: {error}") from error
    return marker


def _check(marker: Marker) -> None:
    """ValueError where a field is of something else."""
    for name, value in marker._asdict().items():
        if name in ("round", "position", "local"):
            good = type(value) is int and value >= 0
        elif name == "remote" or (name == "origins" and isinstance(marker, SubscriptionUpdate)):
            good = isinstance(value, dict) and all(type(each) is int and each >= 0 for each in value.values())
        elif name == "origins":
            good = isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)
        else:
            good = name == "acked" or isinstance(value, str)
        if not good:
            raise ValueError(f"{name} is {value!r:.60}")
