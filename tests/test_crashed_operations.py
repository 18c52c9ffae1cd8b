"""A power cut or a kill at every step of every public operation, on a store with something of everything.

The store and the oracle are those of `tests/test_interrupted.py`: what had returned before the crash is there, what the
crash interrupted is there as a whole, or not at all, and the store goes on.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

from afterlog.clock import ManualClock
from afterlog.config import ALWAYS, OS, Durability
from afterlog.files import Files
from afterlog.log.commit import Commit
from tests.campaigns import WHOLE
from tests.crash_states import CrashModel, CrashState
from tests.explorer import Explored, explore, first_failure
from tests.life import OPERATIONS, Life, Told, first_life
from tests.simulated_disk import SimulatedFiles

BEGINS = "begins"
ENDED = "ended"


class Crashing:
    """The workload: one operation. And what judges a crash in it, by what was told before and behind it."""

    def __init__(self, name: str, durability: Durability) -> None:
        self.image, self.now_ms, self._storage, self._told = first_life(durability)
        self._name = name
        self._durability = durability

    def __call__(self, files: Files, disk: SimulatedFiles) -> None:
        life = self._life(disk, self._told).ready()
        self.before = life.told.copy()
        disk.mark(BEGINS)
        OPERATIONS[self._name](life)
        disk.mark(ENDED)
        life.flushed()
        self.behind = life.told.copy()
        self.storage = life.storage

    def verify(self, disk: SimulatedFiles, marks: Sequence[object], state: CrashState) -> None:
        life = self._life(disk, self.behind if ENDED in marks else interrupted(self.before, self.behind))
        life.storage = self.storage.copy()
        life.open()
        if not state.explored:
            life.store.check()
            life.goes_on()
            life.store.close()
            life.open()
        life.verify()
        life.store.close()

    def _life(self, disk: SimulatedFiles, told: Told) -> Life:
        return Life(self._durability, disk, ManualClock(self.now_ms), self._storage.copy(), told.copy())


def interrupted(before: Told, behind: Told) -> Told:
    """Asked for, but not known to be done."""
    told = behind.copy()
    told.acknowledged = copy.copy(before.acknowledged)
    told.gone = copy.copy(before.gone)
    told.perhaps |= before.acked | behind.acked
    told.acked = before.acked & behind.acked
    return told


def explored(name: str, durability: Durability, **share: Any) -> Explored:
    crashing = Crashing(name, durability)
    settings: dict[str, Any] = {"model": CrashModel(every_byte_max=64, of=16), "image": crashing.image, "begin": BEGINS}
    return explore(crashing, crashing.verify, **settings | share)


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "offload"])
def test_power_cut(name: str) -> None:
    """Not of an offload: `tests/tier/test_crashes.py` has object storage that crashes with the rest."""
    found = explored(name, ALWAYS, of=200)
    print(found)
    assert not found.failures, str(found)


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "offload"])
def test_kill_then_power_cut(name: str) -> None:
    found = explored(name, OS, kill=True, of=200, again_every=3 if WHOLE else 0)
    print(found)
    assert not found.failures, str(found)


def not_synced(name: str) -> AbstractContextManager[object]:
    """What has this in its path is not synced where it should be."""
    committed = Commit.committed
    return patch.object(
        Commit, "committed", lambda commit, end: None if name in commit.path.name else committed(commit, end)
    )


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("send", "t-0"),
        ("flush", "t-0"),
        ("reschedule", "t-0"),
        ("ack", "journal-"),
        ("dead letter", "dead-0"),
    ],
)
def test_planted_bug_is_caught(name: str, path: str) -> None:
    with not_synced(path):
        found = first_failure(partial(explored, name, ALWAYS))
    assert found.failures, "nobody saw it"
