from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from afterlog.log.checkpoints import Checkpoints, FrontierLease, LogStart, Recovery
from afterlog.tier.log_facts import LogFacts

FACTS = LogFacts(
    end_offset=2_000,
    removed_records=500,
    log_start=LogStart(delivery_offset=510, deliver_after=1_700_000_000_000, offset=499),
    frontier_ms=1_700_000_000_900,
    stamp_ms=1_700_000_000_800,
)


def test_json_and_back() -> None:
    assert FACTS == LogFacts.of_json(FACTS.to_json())
    assert {"delivery_offset": 510, "deliver_after": 1_700_000_000_000, "offset": 499} == FACTS.to_json()["log_start"]


@pytest.mark.parametrize("name", ["end_offset", "removed_records", "frontier_ms", "stamp_ms"])
@pytest.mark.parametrize("value", [-2, 2**62 + 1, 1.0, True, "1", None])
def test_numbers_that_cannot_be(name: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        LogFacts.of_json({**FACTS.to_json(), name: value})


@pytest.mark.parametrize(
    "change", [
        {"removed_records": 2_001}, {"removed_records": -1}, {"frontier_ms": 1_699_999_999_999}, {"end_offset": 499},
        {"log_start": LogStart(offset=-2)}, {"log_start": LogStart(delivery_offset=2**63)},
    ]
)  # fmt: skip
def test_what_contradicts_itself(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        replace(FACTS, **change)


@pytest.mark.parametrize(
    "body", [{}, {**FACTS.to_json(), "more": 1}, {**FACTS.to_json(), "log_start": {}, "x": 1},
             {**FACTS.to_json(), "log_start": [1]}, {**FACTS.to_json(), "log_start": {"key": 1}}]
)  # fmt: skip
def test_other_shapes(body: dict[str, Any]) -> None:
    with pytest.raises((LookupError, TypeError, ValueError)):
        LogFacts.of_json(body)


def test_of_checkpoints() -> None:
    known = replace(
        Checkpoints.of_new_log(2_000),
        removed_records=500,
        log_start=FACTS.log_start,
        frontier=FrontierLease(used_ms=1_700_000_000_900, lease_ms=1_700_000_001_900),
        recovery=Recovery(segment=2_000, position=9, offset=2_004, stamp_ms=1_700_000_000_800),
    )
    assert FACTS == LogFacts.of(known, delayed=True)
    assert LogStart(delivery_offset=2_000, offset=1_999) == LogFacts.of(known, delayed=False).log_start
    behind = replace(known, frontier=FrontierLease())
    assert FACTS.log_start.deliver_after == LogFacts.of(behind, delayed=True).frontier_ms
