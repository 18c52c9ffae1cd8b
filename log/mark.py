"""The mark of an operation that changes a partition's files: there while it is under way, and left where it was
interrupted.

An exception may strike between any two instructions, so no operation can promise to clean up behind itself. It sets the
mark before it touches anything, and takes it away behind its swap. Whoever comes next and finds the mark mends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from afterlog.errors import StorageFull


class Mark:
    """Of one partition: set and cleared under its append lock."""

    def __init__(self) -> None:
        self.there = False

    def set(self) -> None:
        """From now on what is in memory may not be what is on disk."""
        self.there = True

    def clear(self) -> None:
        """It is again."""
        self.there = False

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """The block changes files, and ends behind its swap. StorageFull comes before anything is changed."""
        self.set()
        try:
            yield
        except StorageFull:
            self.clear()
            raise
        self.clear()
