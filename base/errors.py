"""Every error that afterlog raises on purpose. One root, narrow leaves.

    AfterlogError                       catch this to catch all of them
    ├── InvalidRecord(ValueError)       the caller's record cannot be taken; nothing was written
    │   ├── InvalidDeliverAfter         negative, not a number, naive, both delay and deliver_after, beyond max_delay_ms
    │   ├── RecordTooLarge              larger than a batch or a segment may be
    │   └── InvalidBatch                not a well-formed RecordBatch v2: length, CRC, counts, codec
    │       └── UnsupportedCodec        a compression codec that is not one of Kafka's five
    ├── InvalidArgument(ValueError)     an argument that the call cannot work with; nothing was done
    │   └── WrongType(TypeError)        not even of a type that it could
    ├── InvalidTopic(ValueError)        a name that cannot be a topic's, or settings that contradict each other
    │   └── ReadOnlyTopic               a Kafka broker's log in object storage: it is read, and never changed
    ├── InvalidSubscription(ValueError)  a retry policy, lease or delay that a subscription cannot have
    │   └── NoDeadLetterTopic           reject, by a reader that has no dead letters
    ├── InvalidSchedule(ValueError)     a cron expression, interval or policy that a schedule cannot have
    ├── InvalidReceipt(ValueError)      to ack or nack: no message that was received, or another subscription's
    ├── NameTaken(ValueError)           a consumer group and a subscription cannot have one name
    ├── InvalidOption(ValueError)       an option of the Spark data source that it does not have, or cannot serve
    ├── TopicExists(ValueError)         create_topic of a name that is there with other settings
    ├── ScheduleExists(ValueError)      a schedule of a name that is there with other settings
    ├── UnknownTopic(LookupError)       no such topic
    ├── UnknownPartition(LookupError)   no such partition of the topic
    ├── UnknownSchedule(LookupError)    no such schedule
    ├── UnknownSubscription(LookupError)  no such subscription to the topic
    ├── UnknownGroup(LookupError)       no consumer group of this name has committed a position in the topic
    ├── OffsetOutOfRange(IndexError)    a position below the log start or beyond the log end
    │   └── PositionPending             a position among what is pending, where no rank is final
    ├── UniqueKeyConflict(ValueError)   a pending record holds the unique key; nothing was written
    ├── ProducerFenced(RuntimeError)    the producer id goes on under a higher epoch; nothing was written
    ├── ReplicationDiverged             another cluster's topic ends before what was replicated from it
    ├── OutOfOrderSequence(ValueError)  not what the producer appends next, and no retry that is remembered
    ├── NotPending(LookupError)         a record that cannot be rescheduled: delivered, cancelled, or not there
    ├── StorageError(OSError)           what the disk did not do; only its leaves are raised
    │   ├── CorruptFile                 bytes on disk fail their checks: file, position and reason are named
    │   ├── StorageFull                 no room; what was acknowledged stays; retry when there is room
    │   ├── OutOfResources              no descriptor or memory left to ask the disk; retry when there is
    │   ├── DiskFailed                  a call to the disk failed otherwise; errno and filename say how and where
    │   │   ├── FileMissing(FileNotFoundError)  a file of the store, or a folder, is gone
    │   │   ├── FileTaken(FileExistsError)  something lies where a new file should
    │   │   ├── NotAFolder(NotADirectoryError)  a file lies where a folder should
    │   │   └── IsAFolder(IsADirectoryError)  a folder lies where a file should
    │   ├── PartitionPoisoned           an fsync or a rollback failed; reopen the store to recover
    │   ├── SubscriptionPoisoned        its journal could not be synced or mended; reopen the store
    │   ├── StoreLocked                 another process, or another handle here, has the folder open
    │   ├── StoreReplaced               the folder was moved or restored while it was open here
    │   ├── IsABackup                   the folder is a backup, which is copied, and never opened
    │   └── RemoteError                 what the object storage did not do; only its leaves are raised
    │       ├── RemoteUnavailable       no answer, or not now: nobody knows whether a change was made
    │       ├── RemoteRefused           credentials, permissions, settings: it will not
    │       ├── RemoteConflict          somebody else was there first; nothing was changed
    │       ├── RemoteMissing(FileNotFoundError)  no such object
    │       └── CorruptRemote           what it gave fails its checks: key, position and reason are named
    ├── BacklogQuotaExceeded(RuntimeError)  readers have not acked enough of the topic
    ├── TopicFull(RuntimeError)             a partition holds as much as its topic lets it
    ├── StoreClosed(ValueError)         used after close
    │   └── TopicDeleted                used after the topic was deleted
    ├── StoreForked(RuntimeError)       used in a forked child
    ├── ClockBehind(RuntimeError)       the wall clock is far behind the log's frontier; no deliveries until it is not
    ├── Interrupted(RuntimeError)       a send under way when Ctrl-C or the like struck; it may have happened or not
    ├── NotInMainThread(RuntimeError)   signals, heeded by another thread
    ├── GroupBusy(RuntimeError)         the group's partition is read by another open consumer
    ├── TopicBusy(RuntimeError)         somebody reads what is to be deleted or purged
    ├── SparkUnavailable(RuntimeError)  pyspark, pyarrow or Java is missing
    ├── RelayStopped(RuntimeError)      a relay, or a partition of its input, does not go on before somebody looks
    ├── InvalidRequest(ValueError)      what a client sent to a server cannot be read: path, parameter, JSON, Arrow
    │   └── RequestTooLarge             more than the server takes in one request
    ├── NotAllowed(PermissionError)     the server does not let this client do that
    │   └── NotAuthenticated            no token, or none that the server knows
    ├── ServerNotTrusted(ConnectionError)  no certificate that this client trusts; nothing was said to it
    ├── ServerBusy(RuntimeError)        the client has as much under way as the server lets it
    ├── ServerFailed(RuntimeError)      the server failed in a way that it did not expect; its log says how
    ├── ServerUnavailable(ConnectionError)  nobody answers there, or the server is stopping; nothing was done
    │   └── AnswerLost                  it was asked, and the answer never came: it may have been done or not
    └── NotServed(RuntimeError)         only the process that has the store open can do that

Each also derives from the builtin that a caller would reach for. `retriable` says whether the same call may succeed
later without anybody changing anything in the program.
"""

from __future__ import annotations

import enum
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


class InvalidArgument(AfterlogError, ValueError):
    """The call cannot work with this argument, and did nothing. The message says what it takes."""


class WrongType(InvalidArgument, TypeError):
    """The argument is of a type that the call cannot work with. The message says what it takes."""


class InvalidTopic(AfterlogError, ValueError):
    """The topic's name or settings cannot be used. Names: 1 to 249 of ``a-z A-Z 0-9 . _ -``, not ``-`` first."""


class ReadOnlyTopic(InvalidTopic):
    """The topic is a Kafka broker's log in object storage: it is only read. Change a topic of your own instead."""


class InvalidSubscription(AfterlogError, ValueError):
    """The subscription cannot have this retry policy, lease or delay. The message says what it can have."""


class NoDeadLetterTopic(InvalidSubscription):
    """The reader has no dead-letter topic. Subscribe with `dead_letter=`; the message is still leased: retry it."""


class InvalidSchedule(AfterlogError, ValueError):
    """The schedule cannot have this cron expression, time zone, interval or policy. The message says what it can."""


class InvalidReceipt(AfterlogError, ValueError):
    """No message of this subscription. Hand over what `receive` or the iteration gave, to the reader that gave it."""


class NameTaken(AfterlogError, ValueError):
    """A consumer group and a subscription to a topic cannot share a name. Take another one."""


class InvalidOption(AfterlogError, ValueError):
    """The Spark data source has no such option, or cannot serve this value. See docs/spark.md."""


class TopicExists(AfterlogError, ValueError):
    """A topic of this name is there with other settings. Open it as it is, or take another name."""


class ScheduleExists(AfterlogError, ValueError):
    """A schedule of this name is there with other settings. Change it by `store.change_schedule`, or take another."""


class UnknownTopic(AfterlogError, LookupError):
    """There is no such topic. Create it with `store.create_topic(name)`."""


class UnknownPartition(AfterlogError, LookupError):
    """The topic has no such partition. Partitions are numbered from 0."""


class UnknownSchedule(AfterlogError, LookupError):
    """There is no such schedule. `store.schedules()` lists them, `store.schedule(topic, name=…)` makes one."""


class UnknownSubscription(AfterlogError, LookupError):
    """The topic has no such subscription. `store.subscriptions(topic)` lists them, `store.subscribe` makes one."""


class UnknownGroup(AfterlogError, LookupError):
    """No consumer group of this name has committed a position. `store.groups(topic)` lists those that have."""


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


class PositionPending(OffsetOutOfRange):
    """What is sent later may be due earlier, and take that rank. Seek to `afterlog.LATEST`, or to `AtTime(instant)`."""


class UniqueKeyConflict(AfterlogError, ValueError):
    """A pending record holds the unique key: `record` is its id, None where it is another one of the same call.

    Nothing was written. Cancel that one, or send with on_conflict="keep" or "replace".
    """

    def __init__(self, message: str, *, record: object = None) -> None:
        super().__init__(message)
        self.record = record

    def __reduce__(self) -> tuple[partial[UniqueKeyConflict], tuple[str]]:
        return partial(type(self), record=self.record), (str(self),)


class ProducerFenced(AfterlogError, RuntimeError):
    """Somebody goes on as this producer, under the higher `epoch`. Nothing was written. Stop, or take another id."""

    def __init__(self, message: str, *, epoch: int) -> None:
        super().__init__(message)
        self.epoch = epoch

    def __reduce__(self) -> tuple[partial[ProducerFenced], tuple[str]]:
        return partial(type(self), epoch=self.epoch), (str(self),)


class ReplicationDiverged(AfterlogError):
    """A topic of another cluster ends before what was replicated from it: it was put back to an earlier state.

    Nothing was written. What it has appended since would have offsets that others had here. Make the topic there anew.
    """


class OutOfOrderSequence(AfterlogError, ValueError):
    """The sequence is neither the next, `expected` (None: the producer is not known), nor one that is remembered.

    Nothing was written. Send what is missing first. Where that is lost, or was acknowledged, begin anew: sequence 0,
    under a higher epoch or another producer id; what is sent again then may be there twice.
    """

    def __init__(self, message: str, *, expected: int | None) -> None:
        super().__init__(message)
        self.expected = expected

    def __reduce__(self) -> tuple[partial[OutOfOrderSequence], tuple[str]]:
        return partial(type(self), expected=self.expected), (str(self),)


class NotPending(AfterlogError, LookupError):
    """The record is not pending; `answer`, a `CancelResult`, says why. Nothing was written; send it anew."""

    def __init__(self, message: str, *, answer: enum.IntEnum) -> None:
        super().__init__(message)
        self.answer = answer

    def __reduce__(self) -> tuple[partial[NotPending], tuple[str]]:
        return partial(type(self), answer=self.answer), (str(self),)


class StorageError(AfterlogError, OSError):
    """What the disk did not do. Never raised itself, only its leaves."""

    number: ClassVar[int] = errno.EIO

    def __init__(
        self, message: str, *, path: Path | str, position: int | None = None, number: int | None = None
    ) -> None:
        """number: the errno, where it is not the one that all of the class have."""
        place = f"{path}" if position is None else f"{path} at byte {position}"
        super().__init__(self.number if number is None else number, f"{message} ({place})")
        self.filename = str(path)
        self.message = message
        self.path = Path(path)
        self.position = position

    def __str__(self) -> str:
        return str(self.strerror)

    def __reduce__(self) -> tuple[partial[StorageError], tuple[str]]:
        return partial(type(self), path=self.path, position=self.position, number=self.errno), (self.message,)


class CorruptFile(StorageError):
    """Bytes on disk fail their checks. Run `afterlog verify`, restore it, or see what `afterlog repair` would do."""


class StorageFull(StorageError):
    """No room. Everything acknowledged is kept; the same call works again once there is room."""

    number = errno.ENOSPC
    retriable = True


class OutOfResources(StorageError):
    """No descriptor or memory was left to ask the disk. Close files or raise the limit; then the same call works again.

    What was acknowledged is kept. What the call was to do may be done: an append that fails so may be in the log.
    """

    number = errno.EMFILE
    retriable = True


class DiskFailed(StorageError):
    """A call to the disk failed: `errno` and `filename` say how. Look at the disk, and reopen the store."""


class FileMissing(DiskFailed, FileNotFoundError):
    """A file or folder of the store is gone. Run `afterlog verify`, or restore it from a copy."""

    number = errno.ENOENT


class FileTaken(DiskFailed, FileExistsError):
    """Something lies where a new file should. Whoever put it there should take it away."""

    number = errno.EEXIST


class NotAFolder(DiskFailed, NotADirectoryError):
    """A file lies where a folder should. Take another path, or move the file away."""

    number = errno.ENOTDIR


class IsAFolder(DiskFailed, IsADirectoryError):
    """A folder lies where a file should. Take another path, or move the folder away."""

    number = errno.EISDIR


class PartitionPoisoned(StorageError):
    """An fsync, or a rollback, failed: nobody knows what is on disk. Close and reopen the store to recover."""


class SubscriptionPoisoned(StorageError):
    """A sync, or a rollback, of its journal failed: nobody knows what is on disk. Close and reopen the store."""


class StoreLocked(StorageError):
    """The folder is open elsewhere. One process writes a store; close the other handle, or ask that process."""

    number = errno.EWOULDBLOCK
    retriable = True


class StoreReplaced(StorageError):
    """The folder, or its lock, was moved or restored while it was open here: its name is another's. Close this one.

    Nothing was written into what is there now. Stop who has a store open before its folder is touched.
    """

    number = errno.ESTALE


class IsABackup(StorageError):
    """The folder is a backup, which is only read. Copy it to where the store is to be, and open the copy."""

    number = errno.EROFS


class RemoteError(StorageError):
    """What the object storage did not do. `path` is the object's key. Never raised itself, only its leaves."""


class RemoteUnavailable(RemoteError):
    """The storage did not answer, or not now. A change may have been made, or not: look, and do it again."""

    retriable = True


class RemoteRefused(RemoteError):
    """The storage will not do it. Look at the credentials, the permissions there and the options."""

    number = errno.EACCES


class RemoteConflict(RemoteError):
    """Somebody else was there first, and nothing was changed. Read again, and decide again."""

    number = errno.EEXIST


class RemoteMissing(RemoteError, FileNotFoundError):
    """There is no such object. If the manifest lists it, run `afterlog scrub`."""

    number = errno.ENOENT


class CorruptRemote(RemoteError):
    """Bytes from the storage fail their checks; nothing was made of them. Run `afterlog scrub`."""


class BacklogQuotaExceeded(AfterlogError, RuntimeError):
    """Readers have not acked so much of the topic that it takes no more. Let them, or raise the quota of the topic."""

    retriable = True


class TopicFull(AfterlogError, RuntimeError):
    """The partition holds as much as the topic's `max_pending` or `max_bytes` lets it. Nothing was written.

    Wait until some of it is due, or gone by the topic's retention; cancel or purge some; or raise the limit.
    """

    retriable = True


class StoreClosed(AfterlogError, ValueError):
    """The store is closed. Open it again with `afterlog.open(path)`."""


class TopicDeleted(StoreClosed):
    """The topic was deleted meanwhile. Make it again with `store.create_topic(name)`, and ask the store for it anew."""


class StoreForked(AfterlogError, RuntimeError):
    """This process is a forked child and does not own the store. Open stores after the fork, or start by spawn."""


class ClockBehind(AfterlogError, RuntimeError):
    """The wall clock is over an hour behind the log's frontier. Set it right, or see `afterlog repair --clock`."""

    retriable = True


class Interrupted(AfterlogError, RuntimeError):
    """An exception struck while it was under way, Ctrl-C for one: nobody knows whether it happened."""


class NotInMainThread(AfterlogError, RuntimeError):
    """Only the main thread may heed signals. Enter `draining_on` there, or call `drain()` from any thread."""


class GroupBusy(AfterlogError, RuntimeError):
    """Another open consumer of this group reads the partition. Close it, or take other partitions or another group."""

    retriable = True


class TopicBusy(AfterlogError, RuntimeError):
    """Somebody reads the topic, or the subscription. Close the readers, or call again with force=True."""

    retriable = True


class SparkUnavailable(AfterlogError, RuntimeError):
    """No Spark here. `pip install "afterlog[spark]"`, and Java 17 or later: see docs/spark.md."""


class RelayStopped(AfterlogError, RuntimeError):
    """What was committed does not fit what Kafka has, or a setting has to be changed. The message says what to do."""


class InvalidRequest(AfterlogError, ValueError):
    """The server cannot read the request, and did nothing. The message says what it takes; see its /v1/openapi.json."""


class RequestTooLarge(InvalidRequest):
    """The server takes no request of that size. Send less at a time, or raise the limit where it is started."""


class NotAllowed(AfterlogError, PermissionError):
    """The server does not let this client do that. Ask for a token with the scope that the message names."""


class NotAuthenticated(NotAllowed):
    """The server wants a token, and got none that it knows. Connect with `token=`."""


class ServerNotTrusted(AfterlogError, ConnectionError):
    """Its certificate is not one that is trusted here, or of another name. Look at the address; give `ca=`, its own.

    Nothing was said to it, no token either.
    """


class ServerBusy(AfterlogError, RuntimeError):
    """This client has as much under way as the server lets one have. Wait for some of it, or use fewer connections."""

    retriable = True


class ServerFailed(AfterlogError, RuntimeError):
    """The server met an error that it did not expect. Its log has the traceback; please report it."""


class ServerUnavailable(AfterlogError, ConnectionError):
    """Nobody answers there, or the server is stopping: nothing was done. Start it, or look at the address."""

    retriable = True


class AnswerLost(ServerUnavailable):
    """The connection broke before the answer came: it may have been done or not. Look, then decide."""

    retriable = False


class NotServed(AfterlogError, RuntimeError):
    """Only the process that has the store open can do that. Do it there, or with the command line on the folder."""
