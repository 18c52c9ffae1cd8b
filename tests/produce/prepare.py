"""What a task prepares, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from afterlog.base.config import Config
from afterlog.base.files import Files
from afterlog.base.names import prepared_file
from afterlog.produce.prepared import PreparedFile, adoption_folder, preparing
from afterlog.records.encode import RecordColumns, ragged
from tests.support import NOW_MS, small


def columns(rows: Sequence[tuple[bytes, int]], timestamp_ms: int = NOW_MS) -> RecordColumns:
    """Records of (value, deliver_after)."""
    values, _ = ragged([value for value, _ in rows])
    return RecordColumns(
        values=values,
        timestamps=np.full(len(rows), timestamp_ms),
        deliver_after=np.array([at for _, at in rows], np.int64),
    )


def prepare(
    files: Files,
    store: Path,
    job: str,
    batch: int,
    rows: Mapping[int, Sequence[tuple[bytes, int]]],
    config: Config | None = None,
    timestamp_ms: int = NOW_MS,
) -> PreparedFile:
    """A file with a section for each partition."""
    attempt = f"{len(files.names(adoption_folder(files, store))):032x}"
    name = prepared_file(job, batch, NOW_MS, attempt)
    with preparing(files, store, name, config or small()) as writer:
        for partition, each in rows.items():
            writer.add(partition, columns(each, timestamp_ms))
    return PreparedFile(name=name, sections=tuple(writer.sections))
