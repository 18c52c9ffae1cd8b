"""afterlog: a delayed-message log in a plain folder.

Append records with a time before which nobody may see them; get them once they are due, in due order. A topic is an
ordinary log whose high watermark is driven by the clock: a consumer's position is one integer that only grows.

One process writes a folder; others share it, or use it over a server. A record is never early.

>>> import tempfile, afterlog
>>> folder, clock = tempfile.TemporaryDirectory(), afterlog.ManualClock(1_000)
>>> with afterlog.open(folder.name, clock=clock) as store:
...     _ = store.create_topic("mail")
...     _ = store.send("mail", b"second", delay=60)
...     _ = store.send("mail", b"first", delay=30)
...     clock.advance(60_000)
...     with store.consumer("mail", group="sender") as consumer:
...         [message.value for message in consumer.poll()]
[b'first', b'second']
>>> folder.cleanup()

Importing the package costs nothing: numpy and the engine are loaded with the first name that needs them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Literal, overload

from afterlog._version import __version__

if TYPE_CHECKING:
    from os import PathLike

    from afterlog.base.clock import Clock, ManualClock, ScaledClock, SystemClock
    from afterlog.base.config import ALWAYS, OS, Config, Durability
    from afterlog.base.errors import (
        AfterlogError,
        AnswerLost,
        BacklogQuotaExceeded,
        ClockBehind,
        CorruptFile,
        CorruptRemote,
        DiskFailed,
        FileMissing,
        FileTaken,
        GroupBusy,
        Interrupted,
        InvalidArgument,
        InvalidBatch,
        InvalidDeliverAfter,
        InvalidOption,
        InvalidReceipt,
        InvalidRecord,
        InvalidRequest,
        InvalidSchedule,
        InvalidSubscription,
        InvalidTopic,
        IsABackup,
        IsAFolder,
        NameTaken,
        NoDeadLetterTopic,
        NotAFolder,
        NotAllowed,
        NotAuthenticated,
        NotInMainThread,
        NotPending,
        NotServed,
        OffsetOutOfRange,
        OutOfOrderSequence,
        OutOfResources,
        PartitionPoisoned,
        PositionPending,
        ProducerFenced,
        ReadOnlyTopic,
        RecordTooLarge,
        RelayStopped,
        RemoteConflict,
        RemoteMissing,
        RemoteRefused,
        RemoteUnavailable,
        ReplicationDiverged,
        RequestTooLarge,
        ScheduleExists,
        ServerBusy,
        ServerFailed,
        ServerNotTrusted,
        ServerUnavailable,
        SparkUnavailable,
        StorageFull,
        StoreClosed,
        StoreForked,
        StoreLocked,
        StoreReplaced,
        SubscriptionPoisoned,
        TopicBusy,
        TopicDeleted,
        TopicExists,
        TopicFull,
        UniqueKeyConflict,
        UnknownGroup,
        UnknownPartition,
        UnknownSchedule,
        UnknownSubscription,
        UnknownTopic,
        UnsupportedCodec,
        WrongType,
    )
    from afterlog.base.payload import json
    from afterlog.client.served_store import ServedStore
    from afterlog.fetch.consumer import Consumer
    from afterlog.fetch.message import Message, ScheduledRecord, StoredRecord
    from afterlog.fetch.message_columns import Columns
    from afterlog.fetch.partition import FetchResult, Partition
    from afterlog.fetch.positions import EARLIEST, LATEST, AfterOffset, AtBrokerTime, AtTime
    from afterlog.fetch.record_id import RecordId
    from afterlog.log.cancel_result import CancelResult
    from afterlog.produce.producer import Producer
    from afterlog.produce.topic import Topic
    from afterlog.records.batch import Record, decode_batch, encode_batch
    from afterlog.records.producer_sequence import ProducerSequence
    from afterlog.sharing.shared import SharedStore
    from afterlog.store.backup import Backup
    from afterlog.store.schedule_document import Schedule
    from afterlog.store.store import Store
    from afterlog.subscription.leased_message import LeasedMessage
    from afterlog.subscription.policy import RetryPolicy
    from afterlog.subscription.received import Receipts, Received
    from afterlog.subscription.subscription import Subscription
    from afterlog.tier.remote_store import RemoteStore
    from afterlog.worker import Worker

_HOME = {
    "afterlog.base.clock": ("Clock", "ManualClock", "ScaledClock", "SystemClock"),
    "afterlog.base.config": ("ALWAYS", "OS", "Config", "Durability"),
    "afterlog.base.errors": (
        "AfterlogError", "AnswerLost", "BacklogQuotaExceeded", "ClockBehind", "CorruptFile", "CorruptRemote",
        "DiskFailed", "FileMissing", "FileTaken", "GroupBusy", "Interrupted", "InvalidArgument", "InvalidBatch",
        "InvalidDeliverAfter", "InvalidOption", "InvalidReceipt", "InvalidRecord", "InvalidRequest", "InvalidSchedule",
        "InvalidSubscription", "InvalidTopic", "IsABackup", "IsAFolder", "NameTaken", "NoDeadLetterTopic", "NotAFolder",
        "NotAllowed", "NotAuthenticated", "NotInMainThread", "NotPending", "NotServed", "OffsetOutOfRange",
        "OutOfOrderSequence", "OutOfResources", "PartitionPoisoned", "PositionPending", "ProducerFenced",
        "ReadOnlyTopic", "RecordTooLarge", "RelayStopped", "RemoteConflict", "RemoteMissing", "RemoteRefused",
        "RemoteUnavailable", "ReplicationDiverged",
        "RequestTooLarge", "ScheduleExists", "ServerBusy", "ServerFailed", "ServerNotTrusted",
        "ServerUnavailable", "SparkUnavailable", "StorageFull", "StoreClosed", "StoreForked", "StoreLocked",
        "StoreReplaced", "SubscriptionPoisoned", "TopicBusy", "TopicDeleted", "TopicExists", "TopicFull",
        "UniqueKeyConflict", "UnknownGroup",
        "UnknownPartition", "UnknownSchedule", "UnknownSubscription", "UnknownTopic", "UnsupportedCodec", "WrongType",
    ),
    "afterlog.fetch.message_columns": ("Columns",),
    "afterlog.fetch.consumer": ("Consumer",),
    "afterlog.fetch.message": ("Message", "ScheduledRecord", "StoredRecord"),
    "afterlog.fetch.record_id": ("RecordId",),
    "afterlog.fetch.partition": ("FetchResult", "Partition"),
    "afterlog.fetch.positions": ("EARLIEST", "LATEST", "AfterOffset", "AtBrokerTime", "AtTime"),
    "afterlog.produce.topic": ("Topic",),
    "afterlog.records.batch": ("Record", "decode_batch", "encode_batch"),
    "afterlog.log.cancel_result": ("CancelResult",),
    "afterlog.records.producer_sequence": ("ProducerSequence",),
    "afterlog.produce.producer": ("Producer",),
    "afterlog.store.backup": ("Backup",),
    "afterlog.base.payload": ("json",),
    "afterlog.client.served_store": ("ServedStore",),
    "afterlog.store.schedule_document": ("Schedule",),
    "afterlog.sharing.shared": ("SharedStore",),
    "afterlog.store.store": ("Store",),
    "afterlog.subscription.leased_message": ("LeasedMessage",),
    "afterlog.subscription.policy": ("RetryPolicy",),
    "afterlog.subscription.received": ("Receipts", "Received"),
    "afterlog.subscription.subscription": ("Subscription",),
    "afterlog.worker": ("Worker",),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "ALWAYS", "EARLIEST", "LATEST", "OS", "AfterOffset", "AfterlogError", "AnswerLost", "AtBrokerTime", "AtTime",
    "BacklogQuotaExceeded", "Backup", "CancelResult", "Clock", "ClockBehind", "Columns", "Config", "Consumer",
    "CorruptFile", "CorruptRemote", "DiskFailed", "Durability", "FetchResult", "FileMissing", "FileTaken", "GroupBusy",
    "Interrupted", "InvalidArgument", "InvalidBatch", "InvalidDeliverAfter", "InvalidOption", "InvalidReceipt",
    "InvalidRecord", "InvalidRequest", "InvalidSchedule", "InvalidSubscription", "InvalidTopic", "IsABackup",
    "IsAFolder", "LeasedMessage", "ManualClock", "Message", "NameTaken", "NoDeadLetterTopic", "NotAFolder",
    "NotAllowed", "NotAuthenticated", "NotInMainThread", "NotPending", "NotServed", "OffsetOutOfRange",
    "OutOfOrderSequence", "OutOfResources", "Partition", "PartitionPoisoned", "PositionPending", "Producer",
    "ProducerFenced", "ProducerSequence", "ReadOnlyTopic", "Receipts", "Received", "Record", "RecordId",
    "RecordTooLarge", "RelayStopped", "RemoteConflict", "RemoteMissing", "RemoteRefused", "RemoteUnavailable",
    "ReplicationDiverged",
    "RequestTooLarge", "RetryPolicy", "ScaledClock", "Schedule", "ScheduleExists", "ScheduledRecord", "ServedStore",
    "ServerBusy", "ServerFailed", "ServerNotTrusted", "ServerUnavailable", "SharedStore", "SparkUnavailable",
    "StorageFull", "Store", "StoreClosed", "StoreForked", "StoreLocked", "StoreReplaced", "StoredRecord",
    "Subscription",
    "SubscriptionPoisoned", "SystemClock", "Topic", "TopicBusy", "TopicDeleted", "TopicExists", "TopicFull",
    "UniqueKeyConflict", "UnknownGroup",
    "UnknownPartition", "UnknownSchedule", "UnknownSubscription", "UnknownTopic", "UnsupportedCodec", "Worker",
    "WrongType", "__version__", "connect", "decode_batch", "encode_batch", "json", "open",
]  # fmt: skip


@overload
def open(
    path: str | PathLike[str],
    *,
    config: Config | None = None,
    clock: Clock | None = None,
    remote: str | RemoteStore | None = None,
    serve: bool = False,
    shared: Literal[False] = False,
    timeout: float = 30.0,
) -> Store: ...
@overload
def open(
    path: str | PathLike[str],
    *,
    config: Config | None = None,
    clock: Clock | None = None,
    remote: str | RemoteStore | None = None,
    shared: Literal[True],
    timeout: float = 30.0,
) -> SharedStore: ...
def open(
    path: str | PathLike[str],
    *,
    config: Config | None = None,
    clock: Clock | None = None,
    remote: str | RemoteStore | None = None,
    serve: bool = False,
    shared: bool = False,
    timeout: float = 30.0,
) -> Store | SharedStore:
    """Open the store in the folder `path`, made if it is not there, and recover what a crash left.

    config: what is given first is kept with the store, but for `durability` and interceptors: who opens it later and
    gives none goes by that (`afterlog config` shows and changes it). Who gives one goes by it.

    remote: object storage for topics with `remote_storage_enable`, as a URL (``s3://bucket/prefix``, ``/mnt/backup``;
    see `afterlog.tier.remote_url`) or a `RemoteStore`. A folder without topics gets those that are there.

    serve: let other processes of this user use it, too, over a socket in the folder, for as long as it is open here
    (docs/serving.md). Needs the extra `server`: NotServed.

    shared: any number of processes of one user open it, each of them like this, behind a fork. One of them serves the
    others, and when it goes another takes over; calls are tried again for `timeout` seconds until somebody answers.
    `config`, `clock` and `remote` are those of the process that serves: give the same everywhere. Needs the extra
    `server`: ImportError.

    Raises StoreLocked if another process (or another handle in this one) has it open, and does not share it;
    CorruptFile where bytes that were durable fail their checks, NotAllowed where a shared one is another user's.
    """
    from afterlog.base.arguments import flag
    from afterlog.base.environment import folder_of
    from afterlog.base.errors import InvalidArgument
    from afterlog.store.store import open_store

    folder = folder_of(path)
    serve, shared = flag("serve", serve), flag("shared", shared)
    if shared and serve:
        raise InvalidArgument("a store that is shared is served already: leave `serve` out")
    if shared:
        from afterlog.sharing.shared import open_shared

        return open_shared(folder, config, clock, remote, timeout)
    store = open_store(folder, config, clock, None, remote, serves=serve, keeps=True)
    if serve:
        from afterlog.server.running import serve_beside

        serve_beside(store)
    return store


def connect(
    url: str | PathLike[str],
    *,
    token: str | None = None,
    timeout: float = 30.0,
    ca: str | PathLike[str] | None = None,
    clock: Clock | None = None,
) -> ServedStore:
    """Connect to the server of a store (`afterlog serve`): the names, types and errors of `Store`, from any process.

    url: the path of a store's folder, whose socket is taken, ``unix:PATH``, ``http://host:port`` or ``https://host``.
    token: as `afterlog tokens add` gave it, for TCP. timeout: seconds for which a call is tried again while nobody
    answers. ca: a file of the certificates to trust (PEM), in place of the system's.

    Nothing is asked before the first call. Raises InvalidArgument, WrongType.
    """
    from afterlog.client.served_store import connect as connected

    return connected(url, token=token, timeout=timeout, ca=ca, clock=clock)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'afterlog' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
