from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.base.errors import InvalidSubscription
from afterlog.subscription.policy import RetryPolicy


def test_delays_grow_up_to_the_largest() -> None:
    policy = RetryPolicy(first_ms=1_000, factor=2, max_ms=600_000, jitter=0)
    expected = [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000, 512_000, 600_000, 600_000]
    assert expected == policy.delays_ms(np.arange(1, 13)).tolist()
    assert expected == [policy.delay_ms(attempt) for attempt in range(1, 13)]
    assert 600_000 == policy.delay_ms(2**31)


@given(
    first_ms=st.integers(0, 10_000),
    factor=st.floats(1, 1_000),
    grown=st.integers(0, 10**9),
    jitter=st.floats(0, 1),
    attempt=st.integers(1, 2**31),
    seed=st.integers(0, 99),
)
def test_jitter_only_shortens(first_ms: int, factor: float, grown: int, jitter: float, attempt: int, seed: int) -> None:
    policy = RetryPolicy(first_ms=first_ms, factor=factor, max_ms=first_ms + grown, jitter=jitter)
    longest = policy.delay_ms(attempt)
    delay = policy.delay_ms(attempt, np.random.default_rng(seed))
    assert int(longest * (1 - jitter)) - 1 <= delay <= longest <= first_ms + grown
    assert longest >= first_ms


def test_delays_are_spread_by_jitter() -> None:
    delays = RetryPolicy(factor=2, jitter=0.5).delays_ms(np.full(1_000, 30), np.random.default_rng(1))
    assert len(set(delays.tolist())) > 900
    assert 300_000 <= delays.min() <= delays.max() <= 600_000


def test_attempts_are_limited_or_not() -> None:
    failures = np.array([0, 7, 8, 9])
    assert [False, False, True, True] == RetryPolicy(attempts=8).exhausted(failures).tolist()
    assert not RetryPolicy(attempts=None).exhausted(failures).any()


@pytest.mark.parametrize(
    "settings",
    [
        {"first_ms": -1},
        {"first_ms": 2_000, "max_ms": 1_000},
        {"max_ms": 2**62},
        {"factor": 0.5},
        {"factor": float("nan")},
        {"factor": float("inf")},
        {"jitter": -0.1},
        {"jitter": 1.5},
        {"jitter": float("nan")},
        {"attempts": 0},
        {"attempts": True},
        {"first_ms": 0.5},
        {"factor": "2"},
    ],
    ids=str,
)
def test_numbers_that_make_no_sense(settings: dict[str, float]) -> None:
    with pytest.raises(InvalidSubscription):
        RetryPolicy(**settings)  # type: ignore[arg-type]
