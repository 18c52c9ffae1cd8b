"""The one module that builds and parses file names. Base offsets are padded to 20 digits, so that `ls` sorts.

<data>/server.sock                          the socket of the server, where there is one
<data>/lock                                 held for life by the process that has the store open
<data>/topics                               topics and their settings
<data>/later-topics/mail-0                  the same of a topic that was made later
<data>/later-topics/store.frontier-1        the lease that the partitions share, where one delivered
<data>/deleted                              what is being deleted
<data>/adopted                              what was adopted of that which jobs prepared, and what is about to be
<data>/adoption/                            what jobs prepared, to be appended: job, batch, when (ms), attempt
    mail-2030-00000000000000000000-00001700000000000000-0123456789abcdef0123456789abcdef.prepared
                                            by one task
    mail-2030-00000000000000000000-00001700000000000000-0123456789abcdef0123456789abcdef.handover
                                            names all files of a job that is left to who has the store open
<data>/schedules/journal                    what happened to recurring schedules, since the snapshot that it begins with
<data>/schedules/journal.2                  the same once more
<data>/remote-cache                         pages read from object storage; it has the name for an instant only
<data>/<topic>-<partition>/
    checkpoints                             recovery point, frontier, log start, sealed segments
    00000000000000050000.log                a segment, named by its base offset
    00000000000000050000.index              its offset index
    00000000000000050000.timeindex          its time index
    00000000000000050000.deliverafterindex  its run
    00000000000000050000.cancelindex        what its control batches cancelled, where there are any
    00000000000000050000.3.log              a segment that the third cleaning of the partition wrote; likewise its
                                            indexes
    00000000000000050000-00000000000000100000.uniquekeys
                                            who holds which unique key, of the offsets [first, end)
    producers-00000000000000050000          what each producer appended last, of the offsets below
    origins-00000000000000050000            what was replicated from where, of the offsets below
    buckets/00000000000000050000-00000000000000100000.deliverafterindex
                                            a bucket: a run of the offsets [first, end), either of a part of the
                                            active segment or of several sealed ones
    buckets/00000000000000050000-00000000000000100000.3.deliverafterindex
                                            one of segments of which the third cleaning was the last
    subscriptions/<group>/position          the committed position of a group
    subscriptions/<group>/position.copy     the same once more
    subscriptions/<name>/journal-00000000000000000003
                                            what happened to a subscription, since the snapshot that it begins with

<backups>/lock                              held by the process that makes a backup
<backups>/backup-000001-20231114T221320Z/   one backup: its number, and when it began (UTC)
    backup                                  what is in it, and by which stamps its files are known again
    store/                                  the store: to be copied, and the copy to be opened
<backups>/unfinished/                       one that is being made, or was interrupted

<remote>/<topic>-<partition>/               in object storage
    manifest                                the segments that are there
    00000000000000050000-0123456789abcdef0123456789abcdef.log
                                            a file of a segment as one attempt to upload it left it; likewise the others
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from afterlog.base.errors import InvalidTopic

LOCK = "lock"
SERVER_SOCKET = "server.sock"
TOPICS = "topics"
CONFIG = "config"
LATER_TOPICS = "later-topics"
FRONTIER = "store.frontier-1"
"""Where topics are named by their first partition, 0: no topic's, and read by versions that do not know it."""
SCHEDULES = "schedules"
SCHEDULE_JOURNALS = "journal", "journal.2"
DELETED = "deleted"
ADOPTED = "adopted"
ADOPTION = "adoption"
REMOTE_CACHE = "remote-cache"
CHECKPOINTS = "checkpoints"
BUCKETS = "buckets"
SUBSCRIPTIONS = "subscriptions"
REDRIVE = "afterlog-redrive"
"""The subscription by which dead letters are sent back: it holds nothing."""
POSITION = "position"
POSITION_COPY = "position.copy"
MANIFEST = "manifest"
BACKUP = "backup"
BACKED_UP_STORE = "store"
UNFINISHED = "unfinished"

LOG = ".log"
OFFSET_INDEX = ".index"
TIME_INDEX = ".timeindex"
DELIVER_AFTER_INDEX = ".deliverafterindex"
CANCEL_INDEX = ".cancelindex"
UNIQUE_KEYS = ".uniquekeys"
PREPARED = ".prepared"
HANDOVER = ".handover"

_EARLIER_SCHEDULE = ".schedule", ".copy"
_DOTS = (".", "..")
_OFFSET_MAX = 2**63 - 1
"""Twenty digits hold more than an int64: such a name is not one of ours."""
_NAME = re.compile(r"(?!-)[a-zA-Z0-9._-]{1,249}\Z")
_PARTITION = re.compile(r"(?P<topic>(?!-)[a-zA-Z0-9._-]{1,249})-(?P<partition>0|[1-9][0-9]{0,9})\Z")
_SEGMENT = re.compile(r"(?P<base>[0-9]{20})(\.(?P<generation>[1-9][0-9]{0,17}))?(?P<suffix>\.[a-z]+)\Z")
_ATTEMPT = re.compile(r"[0-9a-f]{32}\Z")
_REMOTE = re.compile(r"(?P<base>[0-9]{20})-(?P<attempt>[0-9a-f]{32})(?P<suffix>\.[a-z]+)\Z")
_JOURNAL = re.compile(r"journal-(?P<number>[0-9]{20})\Z")
_BACKUP = re.compile(r"backup-(?P<number>[0-9]{6,12})-[0-9]{8}T[0-9]{6}Z\Z")
_JOB = re.compile(r"[a-zA-Z0-9._-]{1,120}\Z")
_PREPARED = re.compile(
    r"(?P<job>[a-zA-Z0-9._-]{1,120})-(?P<batch>[0-9]{20})-(?P<created_ms>[0-9]{20})-(?P<attempt>[0-9a-f]{32})"
    r"(?P<suffix>\.prepared|\.handover)\Z"
)
_PRODUCERS = re.compile(r"producers-[0-9]{20}\Z")
_ORIGINS = re.compile(r"origins-[0-9]{20}\Z")
_UNIQUE_KEYS = re.compile(r"[0-9]{20}-[0-9]{20}\.uniquekeys\Z")
_BUCKET = re.compile(
    r"(?P<first>[0-9]{20})-(?P<end>[0-9]{20})(\.(?P<generation>[1-9][0-9]{0,17}))?\.deliverafterindex\Z"
)


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


class SegmentFile(NamedTuple):
    """What the name of a file of a segment says."""

    base_offset: int
    suffix: str
    generation: int = 0
    """The cleaning of the partition that wrote it; 0: it is as it was sealed."""


class Span(NamedTuple):
    """What the name of a bucket says: it holds the offsets [first, end)."""

    first: int
    end: int
    generation: int = 0
    """It was made of segments that no later cleaning wrote."""


def segment_file(base_offset: int, suffix: str, generation: int = 0) -> str:
    return f"{base_offset:020d}{_cleaned(generation)}{suffix}"


def parse_segment_file(name: str) -> SegmentFile | None:
    """None where the name is no segment file's."""
    match = _SEGMENT.match(name)
    if match is None or int(match["base"]) > _OFFSET_MAX:
        return None
    return SegmentFile(int(match["base"]), match["suffix"], int(match["generation"] or 0))


def bucket_file(first_offset: int, end_offset: int, generation: int = 0) -> str:
    return f"{first_offset:020d}-{end_offset:020d}{_cleaned(generation)}{DELIVER_AFTER_INDEX}"


def run_key(base_offset: int, generation: int = 0) -> str:
    """Of the run of one segment, in its partition's folder."""
    return segment_file(base_offset, DELIVER_AFTER_INDEX, generation)


def bucket_key(first_offset: int, end_offset: int, generation: int = 0) -> str:
    """Of a bucket, in its partition's folder."""
    return f"{BUCKETS}/{bucket_file(first_offset, end_offset, generation)}"


def parse_bucket_file(name: str) -> Span | None:
    """None where the name is no bucket's."""
    match = _BUCKET.match(name)
    if match is None:
        return None
    span = Span(int(match["first"]), int(match["end"]), int(match["generation"] or 0))
    return span if span.first < span.end <= _OFFSET_MAX else None


def _cleaned(generation: int) -> str:
    return f".{generation}" if generation else ""


def unique_key_file(first_offset: int, end_offset: int) -> str:
    return f"{first_offset:020d}-{end_offset:020d}{UNIQUE_KEYS}"


def is_unique_key_file(name: str) -> bool:
    return _UNIQUE_KEYS.match(name) is not None


def producer_file(offset: int) -> str:
    return f"producers-{offset:020d}"


def is_producer_file(name: str) -> bool:
    return _PRODUCERS.match(name) is not None


def origin_file(offset: int) -> str:
    return f"origins-{offset:020d}"


def is_origin_file(name: str) -> bool:
    return _ORIGINS.match(name) is not None


def position_file(partition_folder: Path, group: str) -> Path:
    return partition_folder / SUBSCRIPTIONS / check_name(group, "group") / POSITION


def position_files(partition_folder: Path, group: str) -> tuple[Path, Path]:
    """The position, and its copy."""
    path = position_file(partition_folder, group)
    return path, path.with_name(POSITION_COPY)


def subscription_folder(partition_folder: Path, name: str) -> Path:
    return partition_folder / SUBSCRIPTIONS / check_name(name, "subscription")


def journal_file(number: int) -> str:
    return f"journal-{number:020d}"


def parse_journal_file(name: str) -> int | None:
    """The journal's number, or None where the name is no journal's."""
    match = _JOURNAL.match(name)
    return int(match["number"]) if match and int(match["number"]) <= _OFFSET_MAX else None


def earlier_schedule_files(folder: Path, name: str) -> tuple[Path, Path]:
    """The document of a schedule, and its copy, as versions before the journal had them."""
    document, copy = (folder / f"{name}{suffix}" for suffix in _EARLIER_SCHEDULE)
    return document, copy


def parse_earlier_schedule_file(name: str) -> str | None:
    """The schedule's name, or None where the file is none's."""
    for suffix in _EARLIER_SCHEDULE:
        schedule = name.removesuffix(suffix)
        if schedule != name and _NAME.match(schedule) and schedule not in _DOTS:
            return schedule
    return None


def backup_folder(number: int, at: datetime) -> str:
    return f"backup-{number:06d}-{at:%Y%m%dT%H%M%SZ}"


def parse_backup_folder(name: str) -> int | None:
    """The backup's number, or None where the name is no backup's."""
    match = _BACKUP.match(name)
    return int(match["number"]) if match else None


class PreparedName(NamedTuple):
    """What the name of a file in the folder of adoptions says."""

    job: str
    batch: int
    created_ms: int
    suffix: str


def is_job(name: str) -> bool:
    """Whether it can name a job: 1 to 120 of a-z A-Z 0-9 . _ -"""
    return _JOB.match(name) is not None


def prepared_file(job: str, batch: int, created_ms: int, attempt: str, suffix: str = PREPARED) -> str:
    return f"{job}-{batch:020d}-{created_ms:020d}-{attempt}{suffix}"


def parse_prepared_file(name: str) -> PreparedName | None:
    """None where the name is no file's in the folder of adoptions."""
    match = _PREPARED.match(name)
    if match is None or max(int(match["batch"]), int(match["created_ms"])) > _OFFSET_MAX:
        return None
    return PreparedName(match["job"], int(match["batch"]), int(match["created_ms"]), match["suffix"])


def manifest_key(partition: str) -> str:
    """Of the manifest of a partition, in object storage."""
    return f"{partition}/{MANIFEST}"


def is_attempt(name: str) -> bool:
    """Whether it can name an attempt to upload: 32 hex digits."""
    return _ATTEMPT.match(name) is not None


def remote_segment_key(partition: str, base_offset: int, attempt: str, suffix: str) -> str:
    """Of a segment's file, in object storage."""
    return f"{partition}/{base_offset:020d}-{attempt}{suffix}"


def parse_remote_segment_file(name: str) -> tuple[int, str, str] | None:
    """(base offset, attempt, suffix), or None where the last part of the key is no segment file's."""
    match = _REMOTE.match(name)
    if match is None or int(match["base"]) > _OFFSET_MAX:
        return None
    return int(match["base"]), match["attempt"], match["suffix"]


class Named(Protocol):
    """What has a name."""

    @property
    def name(self) -> str: ...


NamedThing = TypeVar("NamedThing", bound=Named)


class NamedList(list[NamedThing]):
    """A list of what has names, in which a name is found, too."""

    def __contains__(self, asked: object) -> bool:
        return any(asked is each or asked == each.name for each in self)
