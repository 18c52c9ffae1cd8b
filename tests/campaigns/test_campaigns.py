"""A run's share of a campaign: every few runs cover all of it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests import campaigns
from tests.campaigns.crash_states import CrashModel

ITEMS = range(100)
TAKES_SEEDS = "import tests.conftest, hypothesis; assert not hypothesis.settings().derandomize"


def seeded(monkeypatch: pytest.MonkeyPatch, seed: int, *, whole: bool = False, depth: int = 1) -> None:
    monkeypatch.setattr(campaigns, "SEED", seed)
    monkeypatch.setattr(campaigns, "WHOLE", whole)
    monkeypatch.setattr(campaigns, "DEPTH", depth)


def test_hypothesis_takes_seeds_in_continuous_integration() -> None:
    subprocess.run([sys.executable, "-c", TAKES_SEEDS], env={**os.environ, "CI": "true"}, check=True)


@pytest.mark.parametrize("of", [1, 7, 64, 1_000])
def test_as_many_seeds_as_shares_cover_all_of_it_once(of: int, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    for seed in range(900_000, 900_000 + of):
        seeded(monkeypatch, seed)
        taken += campaigns.share(ITEMS, of)
        assert [each for each in ITEMS if campaigns.is_chosen(each, of)] == [*campaigns.share(ITEMS, of)]
    assert [*ITEMS] == sorted(taken)


@pytest.mark.parametrize(("depth", "seeds"), [(1, 12), (3, 4), (5, 2), (12, 1), (99, 1)])
def test_a_deeper_run_takes_as_many_times_the_share(depth: int, seeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    for seed in range(seeds):
        seeded(monkeypatch, seed, depth=depth)
        taken += campaigns.share(ITEMS, 12)
        assert 7 * depth == campaigns.examples(7)
    assert [*ITEMS] == sorted(taken)


def test_three_whole_runs_take_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    items, less, cuts = list[int](), list[int](), set[int]()
    for seed in range(3, 9):
        seeded(monkeypatch, seed, whole=True)
        items += campaigns.share(ITEMS, 7) if seed < 6 else ()
        less += campaigns.share(ITEMS, 7, whole=2)
        cuts |= {*CrashModel(every_byte_max=64, of=16).cuts(0, 40)}
    assert [*ITEMS] == sorted(items) == sorted(less)
    assert {*range(40)} == cuts
    assert [*ITEMS] == [*campaigns.share(ITEMS, 1)]
    assert (20, 2) == (campaigns.examples(5), campaigns.examples(5, whole=2))


def test_a_share_of_the_places_to_tear_a_write_has_the_edges_always(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: set[int] = set()
    for seed in range(16):
        seeded(monkeypatch, seed)
        cuts = CrashModel(every_byte_max=64, of=16).cuts(0, 40)
        assert {0, 1, 20, 39} <= {*cuts}
        assert cuts == sorted({*cuts})
        assert 4 <= len(cuts) <= 7
        taken |= {*cuts}
    assert {*range(40)} == taken
    assert [0] == CrashModel(every_byte_max=64, of=16).cuts(0, 1)


def test_counts_are_added_up_and_taken_once() -> None:
    before = campaigns.take_counted()
    campaigns.count("toys", 2)
    campaigns.count("toys")
    assert {"toys": 3} == campaigns.take_counted()
    assert {} == campaigns.take_counted()
    for what, number in before.items():
        campaigns.count(what, number)
