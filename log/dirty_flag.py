"""The dirty flag of an operation that changes files: set while it is under way, and still set where it was interrupted.

An exception may strike between any two instructions, so no operation can promise to clean up after itself. It sets the
flag before it touches anything, and clears it after its swap. Whoever comes next and finds it set mends.
"""

from __future__ import annotations

from types import TracebackType

from afterlog.base.errors import AfterlogError, StorageFull


class DirtyFlag:
    """Of one partition, or of one of its subscriptions: set and cleared under the lock of who changes it."""

    def __init__(self) -> None:
        self.is_set = False
        """Whether what is in memory may not be what is on disk."""

    def guard(self, unchanged: type[AfterlogError] = StorageFull) -> Changing:
        """The block changes files, and ends after its swap. `unchanged`: errors that leave nothing half done."""
        return Changing(self, unchanged)


class Changing:
    """A block that changes files. No generator: one record by itself goes through it."""

    __slots__ = ("_flag", "_unchanged")

    def __init__(self, flag: DirtyFlag, unchanged: type[AfterlogError]) -> None:
        self._flag = flag
        self._unchanged = unchanged

    def __enter__(self) -> None:
        self._flag.is_set = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, self._unchanged):
            self._flag.is_set = False
