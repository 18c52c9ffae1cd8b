"""What each rival can do. A rival is one class in one module; `run.RIVALS` lists them.

    rival = SomeRival(folder, fsync=True, size=100)
    rival.open()                                # makes it, or recovers what a kill has left
    rival.fill(batch)                           # one append; durable when it returns, as far as `fsync` says
    handed = rival.lease(now_ms, 1_000)         # the earliest due records that nobody has, in due order
    rival.ack(handed)                           # as durable as a fill
    rival.close()

Durability comes in two kinds. With `fsync` a call returns when the device has it. Without, when the operating system
has it: it survives the death of the process, not a power cut.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from bench.rivals.load import Batch, Bytes

POLL_S = 0.001
"""How often somebody looks who cannot be woken."""


@dataclass(frozen=True)
class Handed:
    """Leased records. bodies: a list of bytes objects, or one column; token: what the rival acks them by."""

    bodies: list[bytes] | Bytes
    token: Any
    count: int

    def __len__(self) -> int:
        return self.count


class Rival(ABC):
    """A store of delayed records in `folder`."""

    name: ClassVar[str]
    package: ClassVar[str | None] = None
    """The module that must be there to run it."""
    served: ClassVar[bool] = False
    """Runs in processes of its own."""
    objects: ClassVar[bool] = True
    """Takes and gives a bytes object for each body; else columns."""
    real_time = False
    """By the real clock: set by who wants that, before it is opened."""
    fsync_records_max: ClassVar[int | None] = None
    """How many records it is given where each fsync is waited for; None: as many as the others."""
    live: ClassVar[bool] = True
    """Takes appends while it is drained."""
    setting: ClassVar[str] = ""
    """How it is set up, for the page."""

    def __init__(self, folder: Path, fsync: bool, size: int) -> None:
        """size: bytes of each body, for who lays out its table by that."""
        self.folder = folder
        self.fsync = fsync
        self.size = size

    @classmethod
    def missing(cls) -> str | None:
        """Why it cannot run here; None: it can."""
        if cls.package is None:
            return None
        try:
            __import__(cls.package)
        except ImportError:
            return f"no package {cls.package}"
        return None

    @classmethod
    def version(cls) -> str:
        return ""

    @abstractmethod
    def open(self) -> None: ...

    @abstractmethod
    def fill(self, batch: Batch) -> None: ...

    @abstractmethod
    def lease(self, now_ms: int, limit: int) -> Handed:
        """Up to `limit` records; an empty one where nothing is due."""

    def first(self, now_ms: int) -> list[bytes] | Bytes:
        """The body of the first due record, without a lease that would outlive this process."""
        return self.lease(now_ms, 1).bodies

    @abstractmethod
    def ack(self, handed: Handed) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def beside(self) -> Rival:
        """For the reader's thread, where another one fills: this, or another connection to the same."""
        return self

    def lease_soon(self, limit: int) -> Handed:
        """The same by the real clock; waits a little where nothing is due."""
        handed = self.lease(time.time_ns() // 1_000_000, limit)
        if not len(handed):
            time.sleep(POLL_S)
        return handed

    def processes(self) -> list[int]:
        """The processes of its server, children included."""
        return []

    def kill(self) -> None:  # noqa: B027, most have nothing to do
        """kill -9 of its server; of what runs in this process the caller takes care."""
