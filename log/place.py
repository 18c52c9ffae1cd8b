"""Where a partition lives and by what rules: what the modules of the log are handed instead of a dozen arguments."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from afterlog.clock import Clock
from afterlog.config import Config
from afterlog.files import Files


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """What is fixed of a topic when it is made."""

    partitions: int = 1
    delayed: bool = True
    max_delay_ms: int | None = None
    retention_ms: int | None = None
    retention_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One partition's folder, and what is needed to work in it."""

    files: Files
    folder: Path
    config: Config
    settings: TopicSettings
    clock: Clock
    """For waiting."""
    now_ms: Callable[[], int]
    """For deciding: the clock's wall time, with jumps held back where that is set."""
    changed: threading.Condition
    """Notified when the visible end moves."""
