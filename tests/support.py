"""What the tests of the engine share: small stores on a simulated disk, calls that are counted, threads that end."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar
from unittest.mock import patch

import numpy as np

from afterlog.base.clock import ManualClock
from afterlog.base.config import OS, Config
from afterlog.base.files import Files
from afterlog.base.locks import Condition
from afterlog.base.names import CHECKPOINTS
from afterlog.fetch import ranks
from afterlog.fetch.partition import Partition
from afterlog.log.checkpoints import CheckpointFile, FrontierLease
from afterlog.log.lookup import find_entries
from afterlog.log.partition_log import PartitionLog
from afterlog.log.store_frontier import read_frontier
from afterlog.store import cleanup, topics
from afterlog.store.backup import Backup
from afterlog.store.store import Store, open_store
from tests.campaigns.crash_states import CrashModel, crash_states
from tests.campaigns.failing_files import FailingFiles
from tests.campaigns.simulated_disk import Image, SimulatedFiles

PATH = Path("/store")
NOW_MS = 1_700_000_000_000
PATIENCE_S = 60
"""How long a test waits for something that comes at once, unless it is broken."""

Answer = TypeVar("Answer")


def small(**settings: Any) -> Config:
    """Settings under which a few dozen records make segments, runs and chunks."""
    defaults = {
        "durability": OS,
        "segment_bytes": 4_096,
        "batch_bytes_max": 2_048,
        "index_interval_bytes": 256,
        "min_index_count_per_bucket": 8,
        "max_indexes_per_bucket_snapshot_segment": 4,
        "cleaning_slack_bytes": 0,
    }
    return Config(**{**defaults, **settings})


def open_small(disk: Files, clock: ManualClock, **settings: Any) -> Store:
    return open_store(PATH, small(**settings), clock, disk, background=False)


@contextlib.contextmanager
def numbered_ids() -> Iterator[None]:
    """Topics are given ids by number, for stores that are compared."""
    numbers = itertools.count()
    with patch.object(topics, "unused_name", lambda: f"{next(numbers):032x}"):
        yield


def killed(disk: SimulatedFiles) -> SimulatedFiles:
    """The disk as a kill of the process leaves it, with no lock held and everything durable."""
    return SimulatedFiles(disk.image())


def restored(disk: SimulatedFiles, made: Backup | Path) -> SimulatedFiles:
    """Another disk, with a copy of a backup in the place of the store."""
    path = made if isinstance(made, Path) else made.path
    image, prefix = disk.image(), f"{path}/"
    folders = [f"{PATH}", *(f"{PATH}/{name.removeprefix(prefix)}" for name in image.folders if name.startswith(prefix))]
    files = image.contents.items()
    return SimulatedFiles(
        Image(folders, {f"{PATH}/{name.removeprefix(prefix)}": data for name, data in files if name.startswith(prefix)})
    )


def power_cut(disk: SimulatedFiles) -> SimulatedFiles:
    """The disk after a power cut that took all that was not synced."""
    model = CrashModel(every_byte_max=0)  # of no moment: the first state has nothing of what was not synced
    return next(crash_states(disk.operations, len(disk.operations), start=disk.start, model=model)).files()


def durable_frontier(disk: Files, log: PartitionLog) -> FrontierLease:
    """Of a partition, by its checkpoints and the store's document as they are on the disk now."""
    own = CheckpointFile.open(disk, log.context.folder / CHECKPOINTS).current.frontier
    return read_frontier(disk, log.context.folder.parent).joined(log.context.folder.name, own)


def drained(partition: Partition, position: int | None = None) -> list[bytes | None]:
    """The values of all that is due, in delivery order."""
    at = partition.log_start if position is None else position
    values: list[bytes | None] = []
    while True:
        columns, behind = partition.columns(at, 1_000, 1 << 20)
        if not len(columns):
            return values
        values += [message.value for message in columns.to_messages()]
        at = behind


@contextlib.contextmanager
def ranges_of_one() -> Iterator[None]:
    """What goes from behind what is not acked may be a single record."""
    with patch.object(ranks, "RANGE_RECORDS_MIN", 1), patch.object(cleanup, "RANGE_RECORDS_MIN", 1):
        yield


def due_of(partition: Partition, offset: int) -> int | None:
    """The effective deliver_after of the record of an offset, as the log has it; None where it has no such record."""
    found = find_entries(partition.log.version.all_written(), np.array([offset])).entry(0)
    return found.deliver_after if found.records else None


class Calls:
    """What FailingFiles asks: counts the calls as (operation, name of the file), and fails those that it is told to."""

    def __init__(self) -> None:
        self.made: Counter[tuple[str, str]] = Counter()
        self.failing: Callable[[str, Path], OSError | int | None] = lambda operation, path: None

    def __call__(self, operation: str, path: Path, number: int) -> OSError | int | None:
        self.made[operation, path.name] += 1
        return self.failing(operation, path)

    def count(self, operation: str, suffix: str = "") -> int:
        return sum(count for (made, name), count in self.made.items() if made == operation and name.endswith(suffix))

    def fail(self, operation: str, suffix: str, error: OSError | int, times: int = 1) -> None:
        """Fail the next calls of `operation` on files whose name ends so."""
        left = [error] * times

        def failing(made: str, path: Path) -> OSError | int | None:
            return left.pop() if left and made == operation and path.name.endswith(suffix) else None

        self.failing = failing


class HeldFiles(FailingFiles):
    """FailingFiles that can hold a caller back, in calls of one kind, while others go on."""

    def __init__(self, files: Files, fail: Calls) -> None:
        super().__init__(files, fail)
        self._held: tuple[str, str, Gate] | None = None

    def hold(self, operation: str, suffix: str) -> Gate:
        """Calls of `operation` on files whose name ends so wait at this gate."""
        gate = Gate()
        self._held = operation, suffix, gate
        return gate

    def ask(self, operation: str, path: Path) -> int | None:
        if self._held is not None:
            held, suffix, gate = self._held
            if held == operation and path.name.endswith(suffix):
                gate.passing()
        return super().ask(operation, path)


class Background(threading.Thread, Generic[Answer]):
    """A call in a thread of its own; `answer` waits for what it returns or raises."""

    def __init__(self, call: Callable[[], Answer]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._answer = self._call()
        except BaseException as error:
            self._error = error

    def answer(self) -> Answer:
        self.join(PATIENCE_S)
        assert not self.is_alive()
        if self._error is not None:
            raise self._error
        return self._answer


class Gate:
    """Holds callers of `passing` back until it is opened, and tells when the first has come."""

    def __init__(self) -> None:
        self._came = threading.Event()
        self._open = threading.Event()

    def passing(self) -> None:
        self._came.set()
        assert self._open.wait(PATIENCE_S)

    def came(self) -> None:
        assert self._came.wait(PATIENCE_S)

    def open(self) -> None:
        self._open.set()


class SteppedClock(ManualClock):
    """The thread that made it never waits: every `wait` takes the next of `steps` instead, on that thread.

    `waits` notes what was asked for; without a step the patience is over. Threads of a store wait to be notified.
    """

    def __init__(self, ms: int) -> None:
        super().__init__(ms)
        self.steps: list[Callable[[], object]] = []
        self.waits: list[tuple[int | None, float | None]] = []
        self.patience_s = 0.0
        self._thread = threading.get_ident()

    def monotonic_s(self) -> float:
        return self.patience_s

    def wait(self, condition: Condition, until_ms: int | None, timeout_s: float | None) -> None:
        if threading.get_ident() != self._thread:
            condition.wait(PATIENCE_S)
            return
        self.waits.append((until_ms, timeout_s))
        if self.steps:
            self.steps.pop(0)()
        else:
            assert timeout_s is not None, "nothing would ever wake this"
            self.patience_s += timeout_s


def eventually(condition: Callable[[], bool]) -> None:
    """Return once another thread has made the condition true."""
    pause = threading.Event()
    for _ in range(int(PATIENCE_S * 1000)):
        if condition():
            return
        pause.wait(0.001)
    raise AssertionError("it never happened")


def with_file(disk: SimulatedFiles, path: Path, data: bytes | None) -> SimulatedFiles:
    """The disk of a killed process, with one file of other content, or without it."""
    image = disk.image()
    contents = {name: held for name, held in image.contents.items() if name != str(path)}
    return SimulatedFiles(Image(image.folders, contents if data is None else {**contents, str(path): data}))


def content(disk: SimulatedFiles, path: Path) -> bytes:
    return disk.image().contents[str(path)]


def flipped(data: bytes, position: int) -> bytes:
    """The bytes with one bit wrong."""
    rotten = bytearray(data)
    rotten[position] ^= 0x10
    return bytes(rotten)
