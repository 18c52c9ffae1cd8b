"""Every crash of the real system calls of a process: `base/files.py` itself, where others have a simulated disk.

A worker does the workloads of the crash tests on a real folder (`tests/campaigns/recorded_worker.py`), its calls are
recorded (`tests/campaigns/recorder.py`), and what a power cut or a kill may leave of them is judged as always. The
trace must make the folder as it is, and a simulated disk would have been asked for the same things in the same order.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from afterlog.base.config import ALWAYS
from afterlog.base.files import Files
from tests import campaigns
from tests.campaigns.crash_states import CrashModel
from tests.campaigns.crashed_life import BEGINS, Crashing
from tests.campaigns.crashes import Verifier
from tests.campaigns.explorer import Explored, explore, first_failure
from tests.campaigns.recorded_worker import LIVES, SCENARIOS
from tests.campaigns.recorder import Recording, compiled
from tests.campaigns.simulated_disk import Mark, SimulatedFiles
from tests.support import numbered_ids

ROOT = Path(__file__).parent.parent.parent
LOCK = "lock"
"""Its pid is for people, and would only multiply the states."""


class Recordings:
    """What a worker does, of the name of a workload and of a bug: recorded once, and checked."""

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self._folder = folder
        self._process = process
        self._made: dict[tuple[str, str], Recording] = {}

    def __call__(self, name: str, bug: str = "nothing_planted") -> Recording:
        if (name, bug) not in self._made:
            self._made[name, bug] = self._record(self._folder / f"{name} {bug}", name, bug)
        return self._made[name, bug]

    def _record(self, folder: Path, name: str, bug: str) -> Recording:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        folder.mkdir()
        trace = folder.with_suffix(".trace")
        print(folder, trace, name, bug, sep="\t", file=self._process.stdin, flush=True)
        assert "0\n" == self._process.stdout.readline(), "the worker died; its last words are among what was captured"
        found = Recording.read(folder, trace)
        found.check_complete()
        campaigns.count("recorded system calls", len(found.calls))
        return found


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recordings]:
    folder = tmp_path_factory.mktemp("recorded")
    command = [sys.executable, "-m", "tests.campaigns.recorded_worker"]
    preloaded = {**os.environ, "LD_PRELOAD": str(compiled(folder))}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=preloaded
    ) as process:
        yield Recordings(folder, process)
        assert process.stdin is not None
        process.stdin.close()


class Replayed:
    """A recording as a workload of the explorer."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def __call__(self, files: Files, disk: SimulatedFiles) -> None:
        self._recording.replay(disk, without=[LOCK])


class ReplayedLife(Crashing):
    """One of a store with something of everything."""

    def __init__(self, recording: Recording, name: str) -> None:
        super().__init__(name, ALWAYS)
        self._recording = recording

    def __call__(self, files: Files, disk: SimulatedFiles) -> None:
        self._recording.replay(disk, without=[LOCK])
        [(self.before, self.behind)] = [
            each.event for each in disk.operations if isinstance(each, Mark) and isinstance(each.event, tuple)
        ]
        self.storage = self._storage


def explored(recording: Recording, name: str, **share: Any) -> Explored:
    share.setdefault("model", CrashModel(every_byte_max=64, of=16))
    found: Explored
    if name in SCENARIOS:
        scenario = SCENARIOS[name]
        verify = Verifier(scenario, scenario.survives_power_cut)
        found = explore(Replayed(recording), verify, **share)
    else:
        life = ReplayedLife(recording, name)
        found = explore(life, life.verify, begin=BEGINS, **share)
    campaigns.count("crash states of recorded system calls, verified", found.verified)
    return found


@pytest.mark.parametrize("name", [*campaigns.share(SCENARIOS, 6)])
def test_the_simulated_disk_is_asked_for_the_same(name: str, record: Recordings) -> None:
    """One operation after the other, and every byte: so what the others try on the simulated disk is the real thing."""
    simulated, real = SimulatedFiles(), SimulatedFiles()
    with numbered_ids():
        SCENARIOS[name](simulated, simulated)
    record(name).replay(real, without=[LOCK])
    assert simulated.operations == real.operations


@pytest.mark.parametrize("name", [*campaigns.share(SCENARIOS, 12), *campaigns.share(LIVES, 24)])
@pytest.mark.parametrize("kill", [False, True], ids=["power cut", "kill"])
def test_crash(name: str, kill: bool, record: Recordings) -> None:
    """Of the states a share, also in a whole run: the simulated disk has them all
    (`tests/campaigns/test_crashes.py`).
    """
    of = (4 if kill else 8) if name in SCENARIOS else 60
    if not campaigns.WHOLE:
        of = max(1, 5 * of // campaigns.DEPTH)
    found = explored(record(name), name, kill=kill, of=of, phase=campaigns.SEED % of)
    print(found)
    assert not found.failures, str(found)


@pytest.mark.parametrize(
    ("bug", "name", "kill"),
    [
        ("sync_does_nothing", "singles", False),
        ("folders_are_not_synced", "rolls", False),
        ("parent_is_synced", "rolls", False),
        ("rename_comes_first", "singles", False),
        ("sync_does_nothing", "send", False),
        ("writes_in_place", "many", True),
    ],
)
def test_planted_bug_is_caught(bug: str, name: str, kill: bool, record: Recordings) -> None:
    recording = record(name, bug)
    found = first_failure(partial(explored, recording, name, kill=kill))
    print(found)
    assert found.failures, f"not seen: {bug}"


def test_planted_bug_is_caught_by_comparing_the_folder(record: Recordings) -> None:
    """A write that the recorder does not see is seen."""
    with pytest.raises(AssertionError, match="the recorder missed what was written to"):
        record("singles", "writes_through_a_mapping")
