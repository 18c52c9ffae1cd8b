"""The mark of an operation that changes files: set while it is under way, and still set where it was interrupted.

An exception may strike between any two instructions, so no operation can promise to clean up behind itself. It sets the
mark before it touches anything, and takes it away behind its swap. Whoever comes next and finds the mark mends.
"""

from __future__ import annotations

from types import TracebackType

from afterlog.base.errors import AfterlogError, StorageFull


class Mark:
    """Of one partition, or of one of its subscriptions: set and cleared under the lock of who changes it."""

    def __init__(self) -> None:
        self.there = False
        """Whether what is in memory may not be what is on disk."""

    def held(self, unchanged: type[AfterlogError] = StorageFull) -> Marking:
        """The block changes files, and ends behind its swap. `unchanged`: errors that leave nothing half done."""
        return Marking(self, unchanged)


class Marking:
    """A block that changes files. No generator: one record by itself goes through it."""

    __slots__ = ("_mark", "_unchanged")

    def __init__(self, mark: Mark, unchanged: type[AfterlogError]) -> None:
        self._mark = mark
        self._unchanged = unchanged

    def __enter__(self) -> None:
        self._mark.there = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, self._unchanged):
            self._mark.there = False
