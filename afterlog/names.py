"""The one module that builds and parses file names. Base offsets are padded to 20 digits, so that `ls` sorts.

<data>/lock                                 held for life by the process that has the store open
<data>/topics                               the topics and their settings
<data>/<topic>-<partition>/
    checkpoints                             recovery point, frontier, log start, sealed segments
    00000000000000050000.log                a segment, named by its base offset
    00000000000000050000.index              its offset index
    00000000000000050000.timeindex          its time index
    00000000000000050000.deliverafterindex  its run
    buckets/00000000000000050000-00000000000000100000.deliverafterindex
                                            a run of the offsets [first, end) of the active segment
    subscriptions/<group>/position          the committed position of a group
"""

from __future__ import annotations

import re
from pathlib import Path

from afterlog.errors import InvalidTopic

LOCK = "lock"
TOPICS = "topics"
CHECKPOINTS = "checkpoints"
BUCKETS = "buckets"
SUBSCRIPTIONS = "subscriptions"
POSITION = "position"

LOG = ".log"
OFFSET_INDEX = ".index"
TIME_INDEX = ".timeindex"
DELIVER_AFTER_INDEX = ".deliverafterindex"

_DOTS = (".", "..")
_OFFSET_MAX = 2**63 - 1
"""Twenty digits hold more than an int64: such a name is not one of ours."""
_NAME = re.compile(r"(?!-)[a-zA-Z0-9._-]{1,249}\Z")
_PARTITION = re.compile(r"(?P<topic>(?!-)[a-zA-Z0-9._-]{1,249})-(?P<partition>0|[1-9][0-9]{0,9})\Z")
_SEGMENT = re.compile(r"(?P<base>[0-9]{20})(?P<suffix>\.[a-z]+)\Z")
_BUCKET = re.compile(r"(?P<first>[0-9]{20})-(?P<end>[0-9]{20})\.deliverafterindex\Z")


def check_name(name: str, what: str = "topic") -> str:
    """`name` itself, or InvalidTopic where Kafka's rule forbids it, or a leading dash (to a shell an option)."""
    if not isinstance(name, str) or not _NAME.match(name) or name in _DOTS:
        raise InvalidTopic(f"{name!r} cannot name a {what}: use 1 to 249 of a-z A-Z 0-9 . _ -, not starting with -")
    return name


def partition_folder(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def parse_partition_folder(name: str) -> tuple[str, int] | None:
    """(topic, partition), or None where the name is no partition's."""
    match = _PARTITION.match(name)
    return (match["topic"], int(match["partition"])) if match and match["topic"] not in _DOTS else None


def segment_file(base_offset: int, suffix: str) -> str:
    return f"{base_offset:020d}{suffix}"


def parse_segment_file(name: str) -> tuple[int, str] | None:
    """(base offset, suffix), or None where the name is no segment file's."""
    match = _SEGMENT.match(name)
    return (int(match["base"]), match["suffix"]) if match and int(match["base"]) <= _OFFSET_MAX else None


def bucket_file(first_offset: int, end_offset: int) -> str:
    return f"{first_offset:020d}-{end_offset:020d}{DELIVER_AFTER_INDEX}"


def parse_bucket_file(name: str) -> tuple[int, int] | None:
    """(first offset, end offset), or None where the name is no bucket's."""
    match = _BUCKET.match(name)
    if match is None:
        return None
    first, end = int(match["first"]), int(match["end"])
    return (first, end) if first < end <= _OFFSET_MAX else None


def position_file(partition_folder: Path, group: str) -> Path:
    return partition_folder / SUBSCRIPTIONS / check_name(group, "group") / POSITION
