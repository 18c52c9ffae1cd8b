"""Settings: what is refused, and that the page in the source names every one of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from afterlog.base import config
from afterlog.base.config import ALWAYS, OS, Config, Durability

SOURCE = Path(config.__file__).read_text("utf-8")


class TestConfig:
    def test_defaults_are_accepted(self) -> None:
        assert ALWAYS == Config().durability
        assert Config() == Config(segment_bytes=1 << 30)

    def test_it_is_frozen_and_by_keyword_only(self) -> None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            Config().linger_ms = 1  # type: ignore[misc]
        with pytest.raises(TypeError):
            Config(ALWAYS)  # type: ignore[call-arg]

    @pytest.mark.parametrize(
        "settings",
        [
            {"segment_bytes": 2**31 - 1},
            {"segment_bytes": 4_096, "batch_bytes_max": 4_096},
            {"batch_bytes_max": 62},
            {"linger_ms": 0, "deliver_after_spread_ms": 0},
            {"clock_jump_limit_ms": 0},
            {"checkpoint_ms": None},
            {"min_index_count_per_bucket": 1, "max_indexes_per_bucket_snapshot_segment": 1},
            {"max_num_buckets": -1},
            {"max_num_buckets": 1},
            {"max_indexes_per_bucket_snapshot_segment": -1},
            *({"compression": codec} for codec in ("none", "gzip", "snappy", "lz4", "zstd")),
        ],
        ids=repr,
    )
    def test_the_last_of_the_good(self, settings: dict[str, Any]) -> None:
        made = Config(**settings)
        assert settings == {name: getattr(made, name) for name in settings}

    @pytest.mark.parametrize(
        "settings",
        [
            {"segment_bytes": 2**31},
            {"segment_bytes": 4_095},
            {"segment_bytes": 4_096},
            {"batch_bytes_max": 61},
            {"batch_bytes_max": 2**30 + 1},
            {"clock_jump_limit_ms": -1},
            {"checkpoint_ms": 0},
            {"linger_ms": -1},
            {"deliver_after_spread_ms": -1},
            {"max_num_buckets": 0},
            {"max_num_buckets": -2},
            {"max_indexes_per_bucket_snapshot_segment": -2},
            {"compression": "brotli"},
            *(
                {name: 0}
                for name in (
                    "batch_bytes",
                    "index_interval_bytes",
                    "min_index_count_per_bucket",
                    "max_indexes_per_bucket_snapshot_segment",
                    "max_time_step_per_bucket_snapshot_segment_s",
                    "decompressed_bytes_max",
                    "recovery_bytes",
                    "frontier_lease_ms",
                )
            ),
        ],
        ids=repr,
    )
    def test_the_first_of_the_bad_is_named(self, settings: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="|".join(settings)):
            Config(**settings)

    @pytest.mark.parametrize("field", dataclasses.fields(Config), ids=lambda field: field.name)
    def test_each_setting_says_what_it_is_and_those_of_performance_what_more_costs(
        self, field: dataclasses.Field[Any]
    ) -> None:
        declared = SOURCE.index(f"    {field.name}: ")
        text = SOURCE[declared:].splitlines()[1].strip()
        assert text.startswith('"""')
        if declared > SOURCE.index("# Performance") and isinstance(field.default, int):
            assert "Larger: " in text or "How long" in text


class TestDurability:
    def test_the_three(self) -> None:
        assert ("always", "os") == (ALWAYS.kind, OS.kind)
        assert Durability("interval", 20) == Durability.interval(20)

    @pytest.mark.parametrize("ms", [0, -1])
    def test_an_interval_has_a_length(self, ms: int) -> None:
        with pytest.raises(ValueError, match="take ALWAYS"):
            Durability.interval(ms)
        with pytest.raises(ValueError, match="take ALWAYS"):
            Durability("interval", ms)

    def test_another_kind_is_refused(self) -> None:
        with pytest.raises(ValueError, match="always, interval or os"):
            Durability("fsync")  # type: ignore[arg-type]
