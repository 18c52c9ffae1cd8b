"""Every error that afterlog raises on purpose. One root, narrow leaves.

    AfterlogError                       catch this to catch all of them
    ├── InvalidRecord(ValueError)       the caller's record cannot be taken; nothing was written
    │   ├── InvalidDeliverAfter         negative, not a number, naive, both delay and deliver_after, beyond max_delay_ms
    │   ├── RecordTooLarge              larger than a batch or a segment may be
    │   └── InvalidBatch                not a well-formed RecordBatch v2: length, CRC, counts, codec
    │       └── UnsupportedCodec        a compression codec that is not one of Kafka's five
    ├── InvalidTopic(ValueError)        a name that cannot be a topic's, or settings that contradict each other
    ├── TopicExists(ValueError)         create_topic of a name that is there with other settings
    ├── UnknownTopic(LookupError)       no such topic
    ├── UnknownPartition(LookupError)   no such partition of the topic
    ├── OffsetOutOfRange(IndexError)    a position below the log start or beyond the log end
    ├── StorageError(OSError)           what the disk did not do; only its leaves are raised
    │   ├── CorruptFile                 bytes on disk fail their checks: file, position and reason are named
    │   ├── StorageFull                 no room; what was acknowledged stays; retry when there is room
    │   ├── PartitionPoisoned           an fsync or a rollback failed; reopen the store to recover
    │   └── StoreLocked                 another process, or another handle here, has the folder open
    ├── StoreClosed(ValueError)         used after close
    ├── StoreForked(RuntimeError)       used in a forked child
    ├── ClockBehind(RuntimeError)       the wall clock is far behind the log's frontier; no deliveries until it is not
    └── GroupBusy(RuntimeError)         the group's partition is read by another open consumer

Each also derives from the builtin that a caller would reach for. `retriable` says whether the same call may succeed
later without anybody changing anything in the program.
"""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path
from typing import ClassVar


class AfterlogError(Exception):
    """The root. `retriable`: the same call may succeed later."""

    retriable: ClassVar[bool] = False


class InvalidRecord(AfterlogError, ValueError):
    """The record cannot be taken as it is; nothing was written. Mend the record and send it again."""


class InvalidDeliverAfter(InvalidRecord):
    """No usable delivery time. Give one: `delay` (seconds, timedelta), `deliver_after` (aware datetime, epoch ms)."""


class RecordTooLarge(InvalidRecord):
    """The record or batch is larger than `batch_bytes_max`. Send less, or raise the setting and reopen."""


class InvalidBatch(InvalidRecord):
    """The bytes are not one well-formed Kafka RecordBatch v2. Make them again from the records; nothing was written."""


class UnsupportedCodec(InvalidBatch):
    """The compression codec is not none, gzip, snappy, lz4 or zstd. Choose one of these."""


class InvalidTopic(AfterlogError, ValueError):
    """The topic's name or settings cannot be used. Names: 1 to 249 of ``a-z A-Z 0-9 . _ -``, not ``-`` first."""


class TopicExists(AfterlogError, ValueError):
    """A topic of this name is there with other settings. Open it as it is, or take another name."""


class UnknownTopic(AfterlogError, LookupError):
    """There is no such topic. Create it with `store.create_topic(name)`."""


class UnknownPartition(AfterlogError, LookupError):
    """The topic has no such partition. Partitions are numbered from 0."""


class OffsetOutOfRange(AfterlogError, IndexError):
    """A position outside [log start, log end]. Seek to `afterlog.EARLIEST`, or to a position inside."""

    def __init__(self, message: str, *, position: int, log_start: int, log_end: int) -> None:
        super().__init__(message)
        self.position = position
        self.log_start = log_start
        self.log_end = log_end

    def __reduce__(self) -> tuple[partial[OffsetOutOfRange], tuple[str]]:
        again = partial(type(self), position=self.position, log_start=self.log_start, log_end=self.log_end)
        return again, (str(self),)


class StorageError(AfterlogError, OSError):
    """What the disk did not do. Never raised itself, only its leaves."""

    number: ClassVar[int] = errno.EIO

    def __init__(self, message: str, *, path: Path | str, position: int | None = None) -> None:
        place = f"{path}" if position is None else f"{path} at byte {position}"
        super().__init__(self.number, f"{message} ({place})")
        self.message = message
        self.path = Path(path)
        self.position = position

    def __str__(self) -> str:
        return str(self.strerror)

    def __reduce__(self) -> tuple[partial[StorageError], tuple[str]]:
        return partial(type(self), path=self.path, position=self.position), (self.message,)


class CorruptFile(StorageError):
    """Bytes on disk fail their checks. Run `afterlog verify`, restore it, or see what `afterlog repair` would do."""


class StorageFull(StorageError):
    """No room. Everything acknowledged is kept; the same call works again once there is room."""

    number = errno.ENOSPC
    retriable = True


class PartitionPoisoned(StorageError):
    """An fsync, or a rollback, failed: nobody knows what is on disk. Close and reopen the store to recover."""


class StoreLocked(StorageError):
    """The folder is open elsewhere. One process writes a store; close the other handle, or ask that process."""

    number = errno.EWOULDBLOCK
    retriable = True


class StoreClosed(AfterlogError, ValueError):
    """The store is closed. Open it again with `afterlog.open(path)`."""


class StoreForked(AfterlogError, RuntimeError):
    """This process is a forked child and does not own the store. Open stores after the fork, or start by spawn."""


class ClockBehind(AfterlogError, RuntimeError):
    """The wall clock is over an hour behind the log's frontier. Set it right, or see `afterlog repair --clock`."""

    retriable = True


class GroupBusy(AfterlogError, RuntimeError):
    """Another open consumer of this group reads the partition. Close it, or take other partitions or another group."""

    retriable = True
