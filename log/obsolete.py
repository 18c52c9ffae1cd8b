"""Files that no version names any more: each is deleted when the last version that names it is released.

Whoever reads holds the version that it reads, and so the segments in it; Python counts who does. A run needs none of
this: it is mapped when it is opened, so its name may go at once, and its bytes go with whoever has it open.

What waits here when the process ends is removed by recovery, which knows from the checkpoints what is in use.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from weakref import ref

from afterlog.base.files import Files
from afterlog.log.segment import Loaded, SealedSegment


class _Waiting(NamedTuple):
    files: ref[Loaded]
    attempt: str | None
    """To upload it, where what that left in object storage goes, too."""
    paths: tuple[Path, ...]
    log_bytes: int
    """On the local disk."""


class Obsolete:
    """Of one partition. The log adds and sweeps under its append lock; any thread may ask `held`."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._waiting: tuple[_Waiting, ...] = ()

    def add(self, segment: SealedSegment, paths: Iterable[Path], attempt: str | None = None) -> None:
        """These files of the segment, in this order, once nobody holds it."""
        log_bytes = segment.size if segment.is_local() else 0
        self._waiting += (_Waiting(ref(segment.loaded), attempt, tuple(paths), log_bytes),)

    @property
    def log_bytes(self) -> int:
        """Of the logs that wait: somebody reads them, or did until the last sweep."""
        return sum(each.log_bytes for each in self._waiting)

    def held(self) -> set[str]:
        """The attempts that somebody may still read."""
        return {each.attempt for each in self._waiting if each.attempt is not None and each.files() is not None}

    def sweep(self) -> bool:
        """Remove what nobody holds any more; whether there was anything."""
        going = [each for each in self._waiting if each.files() is None]
        for each in going:
            for path in each.paths:
                with contextlib.suppress(FileNotFoundError):
                    self._files.unlink(path)
        self._waiting = tuple(each for each in self._waiting if each not in going)
        return bool(going)
