"""One operation on a store with something of everything (`tests/campaigns/life.py`), and what judges a crash in it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

from afterlog.base.clock import ManualClock
from afterlog.base.config import Durability
from afterlog.base.files import Files
from tests.campaigns.crash_states import CrashState
from tests.campaigns.life import OPERATIONS, Life, Told, first_life
from tests.campaigns.simulated_disk import SimulatedFiles

BEGINS = "begins"
ENDED = "ended"


class Crashing:
    """The workload: one operation. And what judges a crash in it, by what was told before and behind it."""

    def __init__(self, name: str, durability: Durability) -> None:
        self.image, self.now_ms, self._storage, self._told = first_life(durability)
        self._name = name
        self._durability = durability

    def __call__(self, files: Files, disk: SimulatedFiles) -> None:
        self.run(self._life(disk, self._told), disk.mark)

    def run(self, life: Life, mark: Callable[[object], None]) -> None:
        life.ready()
        self.before = life.told.copy()
        mark(BEGINS)
        OPERATIONS[self._name](life)
        mark(ENDED)
        life.flushed()
        self.behind = life.told.copy()
        self.storage = life.storage

    def verify(self, disk: SimulatedFiles, marks: Sequence[object], state: CrashState) -> None:
        told = self.behind if ENDED in marks else interrupted(self.before, self.behind)
        if state.explored:  # what is done on this disk may be cut off again: a recovery, and nothing that would be told
            recovered = self._recovered(disk, told)
            recovered.store.check()
            recovered.store.close()
            disk = SimulatedFiles(disk.image())
        life = self._recovered(disk, told)
        life.store.check()
        life.goes_on()
        life.store.close()
        life.open()
        life.verify()
        life.store.close()

    def _recovered(self, disk: SimulatedFiles, told: Told) -> Life:
        life = self._life(disk, told)
        life.storage = self.storage.copy()
        life.open()
        return life

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
