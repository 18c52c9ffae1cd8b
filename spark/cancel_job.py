"""Cancels by a DataFrame: the pending records that it names, in a store's folder or through its server.

    records ── to the driver, as Arrow: 12 bytes a record and its topic ──> by partition ──> cancel_many ──> a row each

What is cancelled is durable as the store's own cancels are. A job that failed is run again: what it had cancelled comes
back as `already_cancelled`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from afterlog.base.clock import SystemClock
from afterlog.base.errors import InvalidOption, InvalidRecord
from afterlog.base.files import ReadOnlyFiles
from afterlog.base.names import TOPICS
from afterlog.client.served_store import connect
from afterlog.log.cancel_result import CancelResult
from afterlog.spark.location import is_url, open_when_free
from afterlog.spark.options import LOCK_TIMEOUT_MS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from afterlog.surface import StoreSurface

CALL_RECORDS = 100_000
"""Offsets to a call. Larger: fewer calls, of which each holds the partition's append lock for longer."""
TIMEOUT_S = 60.0
"""For so long a call is tried again where a server does not answer, as through its restart."""
SCHEMA = "topic STRING, partition INT, offset BIGINT, result STRING"
_ID = r"^(?P<topic>.+)-(?P<partition>[0-9]{1,5})@(?P<offset>[0-9]{1,19})$"
_PLACE = ("topic", "partition", "offset")
_RESULTS = [each.name.lower() for each in CancelResult]
_SERVERS = ("http://", "https://", "unix:")


def cancel(
    spark: SparkSession,
    location: Path | str,
    records: DataFrame,
    *,
    token: str | None = None,
    remote: str | None = None,
    remote_options: Mapping[str, Any] | None = None,
    lock_timeout_ms: int = LOCK_TIMEOUT_MS,
) -> DataFrame:
    """Cancel the pending records that a DataFrame names; when it returns, it is done.

    `location`: a store's folder, which is opened, with the object storage `remote`, as soon as nobody else has it open;
    or the URL of its server (https://…, unix:…), with a `token` that may send. `records`: a column `id`
    ("mail-0@1042", as `send` returns them), or `topic`, `partition` and `offset`, as a read has them; more columns are
    passed over, records that are named twice are cancelled once.
    A row for each record, by topic, partition and offset: `cancelled`, `already_delivered`, `already_cancelled`,
    `unknown`.
    Raises InvalidOption of other columns, InvalidRecord of nulls and what is no id, and before anything is cancelled
    UnknownTopic, UnknownPartition, StoreLocked, what `afterlog.connect` does.
    """
    named = _named(records)
    results = np.empty(len(named), np.int8)
    with _opened(location, token, remote, remote_options, lock_timeout_ms) as store:
        spans = list(_spans(named))
        for topic, partition, _, _ in spans:
            store.cancel_many(topic, partition, np.empty(0, np.int64))
        offsets = named["offset"].to_numpy()
        for topic, partition, first, end in spans:
            for start in range(first, end, CALL_RECORDS):
                stop = min(start + CALL_RECORDS, end)
                results[start:stop] = store.cancel_many(topic, partition, offsets[start:stop])
    told = named.append_column("result", pa.array(_RESULTS).take(pa.array(results)))
    return spark.createDataFrame(told, SCHEMA)


def _named(records: DataFrame) -> pa.Table:
    """topic, partition, offset: in this order, each once."""
    if "id" in records.columns:
        ids = records.select(records["id"].cast("string")).toArrow().column(0).combine_chunks()
        parsed = pc.extract_regex(ids, _ID)
        if parsed.null_count:
            strange = ids.filter(parsed.is_null())[0].as_py()
            raise InvalidRecord(f"{strange!r:.300} names no record: write <topic>-<partition>@<offset>, mail-0@1042")
        columns = {name: parsed.field(name) for name in _PLACE}
    elif set(_PLACE) <= set(records.columns):
        table = records.select(*_PLACE).toArrow()
        columns = {name: table[name] for name in _PLACE}
        if any(column.null_count for column in columns.values()):
            raise InvalidRecord("a topic, partition or offset is null: each row names a record")
    else:
        raise InvalidOption(f"records are named by a column id, or by {', '.join(_PLACE)}, not {records.columns}")
    types = {"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64()}
    try:
        table = pa.table({name: columns[name].cast(kind) for name, kind in types.items()})
    except pa.ArrowInvalid as error:
        raise InvalidRecord(f"a partition and an offset are numbers: {error}") from None
    return table.group_by(list(_PLACE)).aggregate([]).sort_by([(name, "ascending") for name in _PLACE]).combine_chunks()


def _spans(named: pa.Table) -> Iterator[tuple[str, int, int, int]]:
    """(topic, partition, first row, end) of each partition."""
    if not len(named):
        return
    codes = named["topic"].combine_chunks().dictionary_encode().indices.to_numpy()
    numbers = named["partition"].to_numpy()
    bounds = np.flatnonzero((np.diff(codes) != 0) | (np.diff(numbers) != 0)) + 1
    for first, end in pairwise([0, *bounds.tolist(), len(named)]):
        yield named["topic"][first].as_py(), int(numbers[first]), first, end


@contextmanager
def _opened(
    location: Path | str,
    token: str | None,
    remote: str | None,
    remote_options: Mapping[str, Any] | None,
    lock_timeout_ms: int,
) -> Iterator[StoreSurface]:
    if str(location).startswith(_SERVERS):
        with connect(str(location), token=token, timeout=TIMEOUT_S, ca=None, clock=None) as served:
            yield served
        return
    if is_url(location):
        raise InvalidOption(f"records are cancelled in a store's folder or through its server, not in {location}")
    folder = Path(location).absolute()
    if not ReadOnlyFiles().exists(folder / TOPICS):
        raise InvalidOption(f"there is no store in {folder}")
    with open_when_free(folder, remote, dict(remote_options or {}), lock_timeout_ms, SystemClock()) as store:
        yield store
