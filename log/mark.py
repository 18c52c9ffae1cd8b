"""The mark of an operation that changes files: there while it is under way, and left where it was interrupted.

An exception may strike between any two instructions, so no operation can promise to clean up behind itself. It sets the
mark before it touches anything, and takes it away behind its swap. Whoever comes next and finds the mark mends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from afterlog.errors import AfterlogError, StorageFull


class Mark:
    """Of one partition, or of one of its subscriptions: set and cleared under the lock of who changes it."""

    def __init__(self) -> None:
        self.there = False
        """Whether what is in memory may not be what is on disk."""

    @contextlib.contextmanager
    def held(self, unchanged: type[AfterlogError] = StorageFull) -> Iterator[None]:
        """The block changes files, and ends behind its swap. `unchanged`: errors that leave nothing half done."""
        self.there = True
        try:
            yield
        except unchanged:
            self.there = False
            raise
        self.there = False
