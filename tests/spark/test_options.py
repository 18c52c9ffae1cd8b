from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from afterlog.base.errors import InvalidOption
from afterlog.fetch.positions import EARLIEST, LATEST, AtBrokerTime, AtTime
from afterlog.spark.options import COLUMNS, ReadOptions, WriteOptions

LEAST = {"path": "/data", "topic": "t"}


def test_by_default() -> None:
    options = ReadOptions.parse(LEAST)
    assert ReadOptions(location=Path("/data"), topic="t") == options == ReadOptions.parse_stream(LEAST)
    assert (EARLIEST, LATEST, True) == (options.start, options.end, options.due_only)
    assert [*COLUMNS][:-1] == [*options.columns]


def test_each() -> None:
    options = ReadOptions.parse(
        {
            "LOCATION": "/data", "topic": "t", "startingposition": "7", "endingTime": "1970-01-01T00:00:01+00:00",
            "columns": "value, headers,due", "partitionBytes": "1000", "settleMs": "-1", "maxRecordsPerTrigger": "5",
        }
    )  # fmt: skip
    assert (7, AtTime(1_000), None, 5, 1_000) == (
        options.start, options.end, options.settle_ms, options.max_records, options.partition_bytes,
    )  # fmt: skip
    assert "value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, due BIGINT" == options.ddl
    assert AtTime(5) == ReadOptions.parse({**LEAST, "startingTime": "5", "dueOnly": "FALSE"}).start
    assert LATEST == ReadOptions.parse({**LEAST, "startingPosition": "Latest"}).start
    assert AtBrokerTime(5) == ReadOptions.parse({**LEAST, "startingBrokerTime": "5"}).start
    year = ReadOptions.parse({**LEAST, "startingTime": "2030-01-31T08:00:00Z"}).start
    assert AtTime(int(datetime(2030, 1, 31, 8, tzinfo=UTC).timestamp()) * 1000) == year


@pytest.mark.parametrize(
    "options",
    [
        {"topic": "t"},
        {"path": "/data"},
        {**LEAST, "location": "/data"},
        {**LEAST, "topics": "t"},
        {**LEAST, "columns": "value,values"},
        {**LEAST, "columns": "value,value"},
        {**LEAST, "dueOnly": "yes"},
        {**LEAST, "startingPosition": "-1"},
        {**LEAST, "startingPosition": "first"},
        {**LEAST, "endingPosition": "earliest"},
        {**LEAST, "endingPosition": '{"0": "earliest"}'},
        {**LEAST, "startingPosition": '{"a": 1}'},
        {**LEAST, "startingPosition": '{"0": -1}'},
        {**LEAST, "startingPosition": '{"0": 1'},
        {**LEAST, "minPartitions": "0"},
        {**LEAST, "startingPosition": "1", "startingTime": "1"},
        {**LEAST, "startingTime": "2030-01-31T08:00:00"},
        {**LEAST, "startingTime": "-5"},
        {**LEAST, "startingTime": "tomorrow"},
        {**LEAST, "startingBrokerTime": "tomorrow"},
        {**LEAST, "startingBrokerTime": "1", "startingTime": "1"},
        {**LEAST, "endingBrokerTime": "1"},
        {**LEAST, "partitionBytes": "0"},
        {**LEAST, "settleMs": "-2"},
        {**LEAST, "maxRecordsPerTrigger": "0"},
        {**LEAST, "maxRecordsPerTrigger": str(2**63)},
        {**LEAST, "dueOnly": "false", "startingPosition": "3"},
        {**LEAST, "dueOnly": "false", "endingPosition": "3"},
    ],
)
def test_what_is_no_option(options: dict[str, str]) -> None:
    with pytest.raises(InvalidOption):
        ReadOptions.parse(options)


def test_a_position_for_each_partition() -> None:
    given = {
        "startingPosition": '{"0": 7, "1": "latest", "2": "Earliest"}',
        "endingPosition": ' {"0": 9, "1": 3, "2": "9"}',
    }
    parsed = ReadOptions.parse({**LEAST, **given, "minPartitions": "12"})
    assert ({0: 7, 1: LATEST, 2: EARLIEST}, {0: 9, 1: 3, 2: 9}) == (parsed.start, parsed.end)
    assert (12, 1) == (parsed.min_partitions, ReadOptions.parse(LEAST).min_partitions)


def test_what_kafkas_source_calls_otherwise() -> None:
    for name, here in (("subscribe", "topic"), ("startingOffsets", "startingPosition"), ("assign", "topic")):
        with pytest.raises(InvalidOption, match=f"no option '{name}'; what Kafka's source calls so is {here} here"):
            ReadOptions.parse({**LEAST, name: "x"})


@pytest.mark.parametrize("option", [{"dueOnly": "false"}, {"endingTime": "5"}, {"endingPosition": "5"}])
def test_what_is_no_option_of_a_stream(option: dict[str, str]) -> None:
    ReadOptions.parse({**LEAST, **option})
    with pytest.raises(InvalidOption):
        ReadOptions.parse_stream({**LEAST, **option})


def test_of_a_write() -> None:
    least = WriteOptions(location=Path("/data"), topic="t")
    assert least == WriteOptions.parse(LEAST) == WriteOptions.parse_stream({**LEAST, "checkpointlocation": "/c"})
    each = WriteOptions.parse(
        {
            **LEAST,
            "writeid": "mail-2030",
            "adopt": "False",
            "compression": "ZSTD",
            "spreadMs": "9",
            "lockTimeoutMs": "0",
        }
    )
    assert ("mail-2030", False, 0) == (each.write_id, each.adopt, each.lock_timeout_ms)
    assert ("zstd", 9) == (each.config.compression, each.config.deliver_after_spread_ms)


@pytest.mark.parametrize(
    "options",
    [
        {"topic": "t"},
        {"path": "/data"},
        {**LEAST, "writeId": ""},
        {**LEAST, "writeId": "a/b"},
        {**LEAST, "writeId": "a" * 101},
        {**LEAST, "adopt": "later"},
        {**LEAST, "compression": "brotli"},
        {**LEAST, "spreadMs": "-1"},
        {**LEAST, "dueOnly": "true"},
    ],
)
def test_what_is_no_option_of_a_write(options: dict[str, str]) -> None:
    with pytest.raises(InvalidOption):
        WriteOptions.parse(options)


def test_what_is_no_option_of_a_stream_that_is_written() -> None:
    with pytest.raises(InvalidOption):
        WriteOptions.parse_stream({**LEAST, "writeId": "a"})
    with pytest.raises(InvalidOption):
        WriteOptions.parse({**LEAST, "checkpointLocation": "/c"})
