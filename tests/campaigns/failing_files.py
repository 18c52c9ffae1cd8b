"""Any `Files`, with chosen calls that fail, write short, or lie."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from afterlog.base.files import Bytes, Data, File, Files, FileStamp, Lock, ScratchFile, failed_call
from tests.campaigns.simulated_disk import join_data, os_error

Fail = Callable[[str, Path, int], OSError | int | None]
"""Asked before each call: (name of the method, path, number of the call from 1). None: go on. An OSError: raise it,
having done nothing. An int: of append, write this many bytes (negative: all but so many), then fail; of sync and
sync_folder, return as if done."""

_TRUTHFUL = ("sync", "sync_folder")


def fail_at(call: int, number: int, *, for_ever: bool = False) -> Fail:
    """The `call`-th call fails with errno `number`, and where `for_ever` all calls behind it too.

    To fail each call of some work once, count `call` up until the work runs through with `FailingFiles.calls < call`.
    """

    def fail(operation: str, path: Path, at: int) -> OSError | None:
        return os_error(number, path) if at == call or (for_ever and at > call) else None

    return fail


def lying_syncs(operation: str, path: Path, call: int) -> int | None:
    """Every sync returns without doing anything."""
    return 0 if operation in _TRUTHFUL else None


class FailingFiles:
    """Any Files, with calls that fail as `fail` says. `exists`, `size` and `close` never do."""

    def __init__(self, files: Files, fail: Fail, *, short_write_error: int = errno.ENOSPC) -> None:
        self.calls = 0
        self.short_write_error = short_write_error
        self._files = files
        self._fail = fail
        self._lock = threading.Lock()

    def ask(self, operation: str, path: Path) -> int | None:
        """Count the call and raise what it is to raise."""
        with self._lock:
            self.calls += 1
            answer = self._fail(operation, path, self.calls)
        if isinstance(answer, OSError):
            raise _as_real_files_would(operation, answer, path)
        if answer is not None and operation not in ("append", *_TRUTHFUL):
            raise TypeError(f"{operation} cannot be done in part: fail with an OSError")
        return answer

    def create(self, path: Path) -> FailingFile:
        self.ask("create", path)
        return FailingFile(self._files.create(path), self)

    def open(self, path: Path) -> FailingFile:
        self.ask("open", path)
        return FailingFile(self._files.open(path), self)

    def scratch(self, path: Path) -> FailingScratchFile:
        self.ask("scratch", path)
        return FailingScratchFile(self._files.scratch(path), path, self)

    def names(self, folder: Path) -> list[str]:
        self.ask("names", folder)
        return self._files.names(folder)

    def exists(self, path: Path) -> bool:
        return self._files.exists(path)

    def free_bytes(self, folder: Path) -> int:
        self.ask("free_bytes", folder)
        return self._files.free_bytes(folder)

    def stamp(self, path: Path) -> FileStamp:
        self.ask("stamp", path)
        return self._files.stamp(path)

    def make_folder(self, path: Path) -> None:
        self.ask("make_folder", path)
        self._files.make_folder(path)

    def rename(self, source: Path, target: Path) -> None:
        self.ask("rename", source)
        self._files.rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        self.ask("link", source)
        self._files.link(source, target)

    def unlink(self, path: Path) -> None:
        self.ask("unlink", path)
        self._files.unlink(path)

    def remove_folder(self, path: Path) -> None:
        self.ask("remove_folder", path)
        self._files.remove_folder(path)

    def sync_folder(self, folder: Path) -> None:
        if self.ask("sync_folder", folder) is None:
            self._files.sync_folder(folder)

    def lock(self, path: Path) -> Lock:
        self.ask("lock", path)
        return self._files.lock(path)


class FailingFile:
    """A file of FailingFiles."""

    def __init__(self, file: File, files: FailingFiles) -> None:
        self.path = file.path
        self._file = file
        self._files = files

    def size(self) -> int:
        return self._file.size()

    def append(self, data: Sequence[Data]) -> None:
        size = self._files.ask("append", self.path)
        if size is None:
            return self._file.append(data)
        self._file.append([join_data(data)[:size]])
        raise _as_real_files_would("append", os_error(self._files.short_write_error, self.path), self.path)

    def pread(self, size: int, position: int) -> bytes:
        self._files.ask("pread", self.path)
        return self._file.pread(size, position)

    def sync(self) -> None:
        if self._files.ask("sync", self.path) is None:
            self._file.sync()

    def truncate(self, size: int) -> None:
        self._files.ask("truncate", self.path)
        self._file.truncate(size)

    def map(self, size: int) -> Bytes:
        self._files.ask("map", self.path)
        return self._file.map(size)

    def close(self) -> None:
        self._file.close()


class FailingScratchFile:
    """A scratch file of FailingFiles; its calls are "scratch pread" and "scratch pwrite"."""

    def __init__(self, file: ScratchFile, path: Path, files: FailingFiles) -> None:
        self._file = file
        self._path = path
        self._files = files

    def pread(self, parts: Sequence[tuple[memoryview, int]]) -> int:
        self._files.ask("scratch pread", self._path)
        return self._file.pread(parts)

    def pwrite(self, data: Data, position: int) -> None:
        self._files.ask("scratch pwrite", self._path)
        self._file.pwrite(data, position)

    def close(self) -> None:
        self._file.close()


def _as_real_files_would(operation: str, error: OSError, path: Path) -> OSError:
    """What OsFiles raises where the system says that."""
    typed = failed_call(operation, error, path)
    typed.__cause__ = error
    return typed
