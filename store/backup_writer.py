"""How files of a store get into a backup: linked, linked from the backup before, or copied.

    never changed in place  ── link ──> the same file, under one more name
      (sealed, documents)      └── another file system ──┬── as it was in the backup before ──> linked from there
    grows at its end        ───────────────── copy ──────┴── else ──> copied
      (active log, journal)

Whether a file is as it was in the backup before is told by its stamp (size, number, time of the last change), as the
backup's document has it. So a second backup costs what is new, wherever it lies.

What was copied is synced at the end (`make_durable`), and so are the names, folder by folder: until then nothing is
promised, and nobody is held up.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path

from afterlog.base.errors import DiskFailed, FileMissing, FileTaken
from afterlog.base.files import Files, FileStamp, copy_file, opened

Stamps = dict[str, tuple[int, int, int]]
"""(size, number, changed_ns) by the file's name within the store."""
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EACCES)


class BackupWriter:
    """Of one backup. By one thread."""

    def __init__(
        self, files: Files, source: Path, target: Path, before: Path | None, known: Mapping[str, object]
    ) -> None:
        """before: the store of the backup before; known: the stamps of its files."""
        self._files = files
        self._source = source
        self._target = target
        self._before = before
        self._known = known
        self._copied: dict[str, None] = {}
        self._folders = set[Path]()
        self._by_folder: dict[str, dict[str, None]] = {}
        """The names in it, by their outermost folder."""
        self._links = True
        self.stamps: Stamps = {}
        """Of the files that are in it."""
        self.copied_bytes = 0

    def names_in(self, folder: str) -> list[str]:
        """Of what is in it, below a folder."""
        return [name.removeprefix(f"{folder}/") for name in self._by_folder.get(folder.partition("/")[0], ())
                if name.startswith(f"{folder}/")]  # fmt: skip

    def link(self, name: str) -> None:
        """A file that is never changed in place. FileMissing. What came under that name before, and is not it, goes."""
        stamp = self._files.stamp(self._source / name)
        if self.stamps.get(name) == _noted(stamp):
            return
        self.discard(name)
        if not (self._links and self._linked(self._source, name)):
            self._carry(name, stamp, None)
        self._note(name, stamp)

    def copy(self, name: str, size: int | None = None) -> None:
        """A file that grows: its first `size` bytes, by default all that it has now. FileMissing."""
        self.discard(name)
        stamp = self._files.stamp(self._source / name)
        self._carry(name, stamp, stamp.size if size is None else size)
        self._note(name, stamp if size in (None, stamp.size) else None)

    def discard(self, name: str) -> None:
        """It is not in the backup, if it was."""
        if self.stamps.pop(name, None) is None:
            return
        del self._by_folder[name.partition("/")[0]][name]
        self._files.unlink(self._target / name)
        self._copied.pop(name, None)

    def make_folder(self, name: str) -> None:
        """A folder of the store, also where nothing is in it."""
        self._make_folder(self._target / name)

    def make_durable(self) -> None:
        """All that is in it, and the names."""
        for name in self._copied:
            with opened(self._files, self._target / name) as file:
                file.sync()
        for folder in sorted(self._folders, reverse=True):
            self._files.sync_folder(folder)

    def _carry(self, name: str, stamp: FileStamp, size: int | None) -> None:
        """As it was in the backup before, or copied."""
        is_known = size in (None, stamp.size) and self._known.get(name) == [*_noted(stamp)]
        if is_known and self._before is not None and self._linked(self._before, name):
            return
        self._make_folder((self._target / name).parent)
        self.copied_bytes += copy_file(self._files, self._source / name, self._target / name, size)
        self._copied[name] = None

    def _linked(self, source: Path, name: str) -> bool:
        self._make_folder((self._target / name).parent)
        try:
            self._files.link(source / name, self._target / name)
        except (FileMissing, FileTaken):
            if source == self._source:
                raise
            return False
        except DiskFailed as error:
            if error.errno in _NO_LINKS:
                self._links = self._links and source != self._source
                return False
            if error.errno == errno.EMLINK:
                return False
            raise
        return True

    def _note(self, name: str, stamp: FileStamp | None) -> None:
        """None: of which only a part is in it."""
        self._by_folder.setdefault(name.partition("/")[0], {})[name] = None
        self.stamps[name] = (-1, -1, -1) if stamp is None else _noted(stamp)

    def _make_folder(self, folder: Path) -> None:
        if folder in self._folders:
            return
        if folder != self._target:
            self._make_folder(folder.parent)
        if not self._files.exists(folder):
            self._files.make_folder(folder)
        self._folders.add(folder)


def _noted(stamp: FileStamp) -> tuple[int, int, int]:
    return stamp.size, stamp.number, stamp.changed_ns
