"""One frozen Config for a store, in two groups: what it promises, and what that costs.

>>> Config(durability=Durability.interval(20)).durability
Durability(kind='interval', interval_ms=20)
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Literal, TypeVar, get_args

from afterlog.base.arguments import whole
from afterlog.base.errors import InvalidArgument, WrongType

Documented = TypeVar("Documented", bound=type)

Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]


def shows_field_docs(cls: Documented) -> Documented:
    """A decorator: the docstring of the class goes on with its fields, and the text below each.

    The source is read when somebody asks, and where it is not there the docstring is what it was.
    """
    cls.__doc__ = FieldDocs(cls.__doc__ or "")  # type: ignore[assignment]  # a descriptor, which gives text
    return cls


class FieldDocs:
    """The docstring of a class, made when it is asked for."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __get__(self, instance: object, owner: type) -> str:
        try:
            source = textwrap.dedent(inspect.getsource(owner))
        except (OSError, TypeError):
            return self._text
        lines = [f"{field}\n{textwrap.indent(text, '    ')}" for field, text in _fields(ast.parse(source))]
        return "\n\n".join([self._text, *lines])


def _fields(source: ast.Module) -> Iterator[tuple[str, str]]:
    """Each field with a text below it, as it is written, and the text."""
    [definition] = source.body
    assert isinstance(definition, ast.ClassDef)
    for above, below in pairwise(definition.body):
        match above, below:
            case ast.AnnAssign(), ast.Expr(value=ast.Constant(value=str(text))):
                yield ast.unparse(above), inspect.cleandoc(text)


@dataclass(frozen=True, slots=True)
class Durability:
    """When an acknowledged append is safe, and from what (promise D7).

    Made as `ALWAYS`, `OS` or `Durability.interval(ms)`.
    """

    kind: Literal["always", "interval", "os"]
    interval_ms: int = 0

    @staticmethod
    def interval(ms: int) -> Durability:
        """Survives a kill; a power cut may take a suffix no older than `ms`, between two fdatasyncs.

        Larger: fewer syncs, a longer suffix at risk, later visibility of records due at once.
        """
        return Durability("interval", ms)

    def __str__(self) -> str:
        return f"interval({self.interval_ms} ms)" if self.kind == "interval" else self.kind

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in ("always", "interval", "os"):
            raise InvalidArgument(f"durability is always, interval or os, not {self.kind!r}")
        whole("interval_ms", self.interval_ms, -1)
        if self.kind == "interval" and self.interval_ms < 1:
            raise InvalidArgument("interval needs at least 1 ms; for every append take ALWAYS")


ALWAYS = Durability("always")
"""Survives process kill and power cut: acknowledged after an fdatasync, which all who wait share."""
OS = Durability("os")
"""Survives a kill; a power cut may take whatever the kernel had not yet written."""


@shows_field_docs
@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of a store. Topics carry their own (delayed, max_delay_ms, retention) in `create_topic`."""

    # Behaviour
    durability: Durability = ALWAYS
    """What an acknowledgement means."""
    clock_jump_limit_ms: int | None = None
    """Hold deliveries back when the wall clock jumps forward by more than this, until confirmed. None: report only."""
    batch_bytes_max: int = 1_048_588
    """Largest record batch, Kafka's message.max.bytes. Larger: larger records, more memory per fetch."""
    decompressed_bytes_max: int = 64 << 20
    """Largest decompressed batch. Larger: larger batches can be read, a hostile one costs more memory."""
    broker_entry_metadata_interceptors: tuple[object, ...] = ()
    """What a user adds to the metadata of each entry (PIP-70); see `afterlog.records.entry`."""
    min_free_bytes: int = 32 << 20
    """Sends are refused (StorageFull) while less is free on the disk, so that acks and deletions go on; 0: never.
    Larger: more room for those, for cleaning, and for others."""
    max_bytes: int | None = None
    """Sends are refused (StorageFull) while the logs of all topics hold more on this disk. None: no limit."""
    producer_id_expiration_ms: int = 86_400_000
    """How long a producer that appends nothing is remembered, at least. Larger: later retries are known, more memory:
    250 bytes a producer and partition."""

    # Performance
    segment_bytes: int = 1 << 30
    """Roll at this size, below 2 GiB. Larger: fewer files and runs, retention in larger steps, longer rebuilds."""
    batch_bytes: int = 65_536
    """The producer closes a batch at this size. Larger: better compression, more read per record wanted."""
    linger_ms: int = 5
    """How long a producer waits for company. Larger: fewer, larger batches, later acknowledgement."""
    deliver_after_spread_ms: int = 0
    """Records whose times lie no further apart share a batch and its last record's time. Larger: smaller log, later."""
    compression: Codec = "none"
    """Codec of the batches that the store's own producer makes."""
    index_interval_bytes: int = 4_096
    """One offset index entry per this many bytes. Larger: smaller index, longer scans."""
    min_index_count_per_bucket: int = 50_000
    """Entries at which the mutable bucket is sealed into a run. Larger: fewer runs, more memory, longer recovery.

    A thread seals it; where that is behind, appends wait at four times as many.
    """
    max_indexes_per_bucket_snapshot_segment: int = 5_000
    """Entries in a chunk of a run, -1: no limit but the time step. Larger: smaller directory, more memory a run."""
    max_time_step_per_bucket_snapshot_segment_s: int = 300
    """Span of deliver_after in a chunk that is at least a tenth full. Larger: fewer chunks."""
    delayed_delivery_tick_time_ms: int = 10
    """Precision of the time buckets in which retries wait. Larger: fewer buckets, less memory, later retries."""
    max_num_buckets: int = 16
    """Runs above which adjacent ones are merged in the background, -1: never. Larger: less is written, dearer reads.

    The runs of sealed segments count by themselves, and so do those of the active one.
    """
    recovery_bytes: int = 64 << 20
    """Bytes appended after which the recovery point moves. Larger: fewer checkpoints, longer recovery after a crash."""
    checkpoint_ms: int | None = 60_000
    """How often partitions that have grown are checkpointed, None: never. Larger: fewer small runs, Spark sees later.

    A checkpoint takes 3 ms of CPU and some fsyncs; a partition with nothing new costs a microsecond.
    """
    retention_check_interval_ms: int | None = 60_000
    """How often topics with retention, or segments of limited age, are looked at, None: never. Larger: freed later.

    A partition in which nothing is to do costs some microseconds.
    """
    cleaning_slack_bytes: int = 1 << 20
    """What a partition with retention may hold beyond twice what is to come. Larger: fewer bytes written again.

    A sixteenth of what it holds, from 64 KiB up to this; beyond that its segments are cleaned (docs/decisions/0070).
    """
    frontier_lease_ms: int = 1_000
    """How far ahead the frontier is written. Larger: fewer writes, later stamps right after a crash."""
    replicated_subscriptions_snapshot_frequency_ms: int = 1_000
    """How often positions are compared with other clusters, where something was acked (PIP-33). Larger: fewer markers;
    a position is told elsewhere later. What was acked is told by itself."""
    replicated_subscriptions_snapshot_timeout_ms: int = 30_000
    """How long all other clusters are waited for; who did not answer is then left out, until it is heard again."""
    replicated_subscriptions_snapshot_max_cached: int = 10
    """Snapshots kept of each subscription. Larger: finer positions after a record that waits long, more memory."""
    remote_cache_bytes: int = 1 << 30
    """Room on the local disk for what is read from object storage. Larger: less is fetched twice."""
    remote_log_manager_task_interval_ms: int = 30_000
    """How often to look for what should be uploaded or removed, at a roll anyway (KIP-405). Larger: later retries."""
    remote_page_bytes: int = 256 << 10
    """What is fetched at a time, and cached. Larger: fewer requests, more bytes fetched that nobody wants."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.type == "int" or (each.type == "int | None" and value is not None):
                whole(each.name, value, -1)
        for name, kind in (("durability", Durability), ("broker_entry_metadata_interceptors", tuple)):
            if not isinstance(getattr(self, name), kind):
                raise WrongType(f"{name} must be of {kind.__name__}, not {getattr(self, name)!r:.100}")
        if not 4_096 <= self.segment_bytes < 2**31:
            raise InvalidArgument("segment_bytes must be at least 4096 and below 2 GiB: an index has int32 positions")
        if not 61 < self.batch_bytes_max <= self.segment_bytes:
            raise InvalidArgument("batch_bytes_max must be larger than a batch header (61) and fit into segment_bytes")
        for name in ("batch_bytes", "index_interval_bytes", "min_index_count_per_bucket", "recovery_bytes",
                     "delayed_delivery_tick_time_ms", "max_time_step_per_bucket_snapshot_segment_s",
                     "decompressed_bytes_max", "frontier_lease_ms", "remote_page_bytes", "producer_id_expiration_ms",
                     "remote_log_manager_task_interval_ms", "replicated_subscriptions_snapshot_frequency_ms",
                     "replicated_subscriptions_snapshot_timeout_ms"):  # fmt: skip
            if getattr(self, name) < 1:
                raise InvalidArgument(f"{name} must be at least 1")
        if self.replicated_subscriptions_snapshot_max_cached < 2:
            raise InvalidArgument("replicated_subscriptions_snapshot_max_cached must be at least 2: oldest and newest")
        if self.remote_cache_bytes < 4 * self.remote_page_bytes:
            raise InvalidArgument("remote_cache_bytes must hold at least four pages of remote_page_bytes")
        if self.max_num_buckets != -1 and self.max_num_buckets < 1:
            raise InvalidArgument("max_num_buckets must be at least 1, or -1: runs are never merged")
        if self.max_indexes_per_bucket_snapshot_segment != -1 and self.max_indexes_per_bucket_snapshot_segment < 1:
            raise InvalidArgument("max_indexes_per_bucket_snapshot_segment must be at least 1, or -1: no limit")
        if self.max_bytes is not None and self.max_bytes < 1:
            raise InvalidArgument("max_bytes must be at least 1; None sets no limit")
        for name in ("linger_ms", "deliver_after_spread_ms", "cleaning_slack_bytes", "min_free_bytes"):
            if getattr(self, name) < 0:
                raise InvalidArgument(f"{name} must not be negative")
        if self.checkpoint_ms is not None and self.checkpoint_ms < 1:
            raise InvalidArgument("checkpoint_ms must be at least 1; None checkpoints by entries and bytes alone")
        if self.retention_check_interval_ms is not None and self.retention_check_interval_ms < 1:
            raise InvalidArgument(
                "retention_check_interval_ms must be at least 1; None leaves it to enforce_retention()"
            )
        if self.clock_jump_limit_ms is not None and self.clock_jump_limit_ms < 0:
            raise InvalidArgument("clock_jump_limit_ms must not be negative; None reports jumps and holds nothing back")
        if not isinstance(self.compression, str) or self.compression not in get_args(Codec):
            raise InvalidArgument(f"compression is one of {', '.join(get_args(Codec))}, not {self.compression!r}")
