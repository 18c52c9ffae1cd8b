"""A prepared file: what was put in comes out, and nothing else is taken for it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from afterlog.base.config import Config
from afterlog.base.errors import CorruptFile, RecordTooLarge
from afterlog.base.files import TEMPORARY_SUFFIX
from afterlog.base.names import ADOPTION
from afterlog.produce.prepared import Prepared, PreparedFile, Section, adoption_folder, preparing, read_sections
from afterlog.records.batch import decode_batch
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.produce.prepare import columns, prepare
from tests.support import NOW_MS, PATH, content

ROWS = st.lists(
    st.tuples(st.binary(max_size=40), st.integers(NOW_MS, NOW_MS + 3) | st.just(-1)), min_size=1, max_size=30
)
TWO: dict[int, list[tuple[bytes, int]]] = {1: [(b"hello", NOW_MS), (b"hello", NOW_MS + 9)]}


def disk() -> SimulatedFiles:
    files = SimulatedFiles()
    files.make_folder(PATH)
    return files


@given(st.dictionaries(st.integers(0, 3), ROWS, min_size=1), st.sampled_from(["none", "zstd"]))
def test_what_was_prepared_is_read(rows: dict[int, list[tuple[bytes, int]]], codec: Any) -> None:
    files = disk()
    file = prepare(files, PATH, "job", 0, rows, Config(batch_bytes=200, compression=codec))
    read: dict[int, list[tuple[bytes, int]]] = {}
    for section, batches in zip(file.sections, read_sections(files, PATH, file), strict=True):
        assert (section.batches, section.records) == (len(batches), int(batches.records.sum()))
        for row, due in enumerate(batches.deliver_after.tolist()):
            data, positions = batches.encoded(row, row + 1)
            records = decode_batch(data[: int(positions[-1])].tobytes(), limit_bytes=1 << 20)
            assert (int(batches.records[row]), NOW_MS) == (len(records), int(batches.max_timestamp[row]))
            read.setdefault(section.partition, []).extend((record.value or b"", due) for record in records)
    assert rows == read


def test_the_example() -> None:
    file = prepare(disk(), PATH, "job", 0, TWO)
    assert [(1, 0, 224, 2, 2)] == [section[:-1] for section in file.sections]


def test_a_section_for_each_part() -> None:
    files = disk()
    with preparing(files, PATH, "name", Config()) as writer:
        for _ in range(2):
            writer.add(1, columns(TWO[1]))
    assert [(1, 0, 224), (1, 224, 224)] == [section[:3] for section in writer.sections]


def test_a_task_that_fails_leaves_nothing() -> None:
    files = disk()
    tasks = preparing(files, PATH, "name", Config(batch_bytes_max=200))
    writer = tasks.__enter__()
    writer.add(0, columns([(b"", -1)]))
    assert [f"name{TEMPORARY_SUFFIX}"] == files.names(PATH / ADOPTION)
    with pytest.raises(RecordTooLarge):
        writer.add(0, columns([(b"x" * 200, -1)]))
    assert not tasks.__exit__(RecordTooLarge, RecordTooLarge(""), None)
    assert [] == files.names(adoption_folder(files, PATH))


def test_as_json() -> None:
    prepared = Prepared(job="job", batch=3, topic="mail", files=(prepare(disk(), PATH, "job", 3, TWO),))
    assert prepared == Prepared.of_json(json.loads(json.dumps(prepared.to_json())))
    assert 2 == prepared.records


@pytest.mark.parametrize(
    "change", [{"job": "a/b"}, {"job": None}, {"batch": -1}, {"files": [{"name": "../topics", "sections": []}]},
    {"files": [{"name": "x"}]}, {"files": None}, {"batch": "three"}, {"batch": float("inf")}, {"batch": 3.0},
    {"topic": 7}, {"topic": None}],
)  # fmt: skip
def test_what_is_no_job(change: dict[str, Any]) -> None:
    prepared = Prepared(job="job", batch=3, topic="mail", files=(prepare(disk(), PATH, "job", 3, TWO),))
    with pytest.raises((ValueError, TypeError, LookupError)):
        Prepared.of_json(prepared.to_json() | change)


@pytest.mark.parametrize(
    "change",
    [
        {"position": 8},
        {"position": -8},
        {"position": 4},
        {"size": 216},
        {"size": 1 << 60},
        {"size": -8},
        {"batches": 0},
        {"batches": -1},
        {"batches": 3},
        {"batches": 1 << 60},
        {"records": 3},
        {"crc32c": 0},
    ],
)
def test_what_is_no_section(change: dict[str, int]) -> None:
    files = disk()
    file = prepare(files, PATH, "job", 0, TWO)
    with pytest.raises(CorruptFile):
        read_sections(files, PATH, replace(file, sections=(file.sections[0]._replace(**change),)))


@pytest.mark.parametrize(("row", "number"), [(0, 1), (1, 60), (1, 1 << 60), (2, 200), (3, 0), (3, 3), (5, -2), (7, -9)])
def test_columns_that_no_batches_have(row: int, number: int) -> None:
    """positions 0 1 2, records 3 4, deliver_after 5 6, max_timestamp 7 8. The checksum is right."""
    files = disk()
    file = prepare(files, PATH, "job", 0, TWO)
    data = np.frombuffer(content(files, PATH / ADOPTION / file.name), np.uint8).copy()
    data[-72:].view("<i8")[row] = number
    files.create(PATH / ADOPTION / "forged").append([data])
    section = file.sections[0]._replace(crc32c=crc32c(data.tobytes()))
    with pytest.raises(CorruptFile):
        read_sections(files, PATH, PreparedFile(name="forged", sections=(section,)))


def test_what_is_gone() -> None:
    file = PreparedFile(name="gone", sections=(Section(0, 0, 0, 0, 0, 0),))
    with pytest.raises(CorruptFile, match="gone"):
        read_sections(disk(), PATH, file)
