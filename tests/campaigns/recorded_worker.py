"""The process whose calls `tests/campaigns/test_recorded.py` records: workloads of the simulated disk, on a real
folder.

    LD_PRELOAD=recorder.so python -m tests.campaigns.recorded_worker   `folder trace name bug` comes in, a line out

A worker is forked for each, of a process that has imported everything.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from afterlog import ALWAYS, ManualClock
from afterlog.base import document
from afterlog.base.files import Data, Files, OsFile, OsFiles
from tests.campaigns import crashes, life
from tests.campaigns.crashed_life import Crashing
from tests.campaigns.life import OPERATIONS, Life, Told
from tests.campaigns.planted_bugs import rename_before_sync
from tests.campaigns.recorder import Recorder
from tests.support import NOW_MS, numbered_ids
from tests.tier.memory_store import MemoryStore

SCENARIOS = {scenario.name: scenario for scenario in crashes.SCENARIOS}
LIVES = [name for name in OPERATIONS if name not in ("offload", "backup")]
"""Not of an offload: its object storage does not crash with the rest. Nor of a backup, which lies elsewhere."""


class MarkedFiles(OsFiles):
    """The real files, with the marks of a simulated disk."""

    def __init__(self, recorder: Recorder) -> None:
        self.mark = recorder.mark


def work(name: str, files: Any, store: Path) -> None:
    """A scenario of `tests/campaigns/crashes.py`; or a store with something of everything, opened again, and one
    operation.
    """
    with patch.object(crashes, "PATH", store), patch.object(life, "PATH", store), numbered_ids():
        if name in SCENARIOS:
            SCENARIOS[name](files, files)
            return
        lived = Life(ALWAYS, files, ManualClock(NOW_MS), MemoryStore(), Told())
        lived.begin()
        lived.store.close()
        crashing = Crashing(name, ALWAYS)
        crashing.run(lived, files.mark)
        files.mark((crashing.before, crashing.behind))
        lived.store.close()


# Bugs, planted in a worker to see that they are caught: most in the seam, of which a simulated disk takes the place.


def nothing_planted() -> None:
    """The worker as it is."""


def sync_does_nothing() -> None:
    patch.object(OsFile, "sync", lambda file: None).start()


def folders_are_not_synced() -> None:
    patch.object(OsFiles, "sync_folder", lambda files, folder: None).start()


def parent_is_synced() -> None:
    real = OsFiles.sync_folder
    patch.object(OsFiles, "sync_folder", lambda files, folder: real(files, folder.parent)).start()


def rename_comes_first() -> None:
    patch.object(document, "publish", rename_before_sync).start()


def writes_in_place() -> None:
    """No temporary name: seen after a kill, too."""

    def publish(files: Files, path: Path, data: Sequence[Data]) -> None:
        if files.exists(path):
            files.unlink(path)
        file = files.create(path)
        file.append(data)
        file.sync()
        file.close()
        files.sync_folder(path.parent)

    patch.object(document, "publish", publish).start()


def writes_through_a_mapping() -> None:
    """No bug of the product: what the recorder cannot see."""

    def append(file: OsFile, data: Sequence[Data]) -> None:
        joined = b"".join(bytes(part) for part in data)
        end = file.size()
        os.posix_fallocate(file._descriptor, end, len(joined))
        with mmap.mmap(file._descriptor, end + len(joined)) as mapped:
            mapped[end:] = joined

    patch.object(OsFile, "append", append).start()


BUGS: dict[str, Callable[[], None]] = {
    bug.__name__: bug
    for bug in (
        nothing_planted,
        sync_does_nothing,
        folders_are_not_synced,
        parent_is_synced,
        rename_comes_first,
        writes_in_place,
        writes_through_a_mapping,
    )
}


def serve() -> None:
    """Fork a worker for each line that comes in, and say how it ended."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # where nobody listens any more, die without a word
    for line in sys.stdin:
        folder, trace, name, bug = line.rstrip("\n").split("\t")
        child = os.fork()
        if not child:
            status = 1
            try:
                BUGS[bug]()
                recorder = Recorder()
                recorder.begin(Path(folder), Path(trace))
                work(name, MarkedFiles(recorder), Path(folder) / "store")
                recorder.end()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        _, waited = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(waited), flush=True)


if __name__ == "__main__":
    serve()
