"""A backup of an open store: complete, as of one instant, and made beside its appends.

    DEST/unfinished/ ── all files there, durable ── rename ──> DEST/backup-000002-20231114T221320Z/{backup, store/}

A kill in the middle leaves the backups of before, and what was unfinished is removed by the next one. Each backup is a
whole store: it is restored by copying `store`, and removed by removing its folder. The copy opens by normal recovery,
as after a kill at that instant.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from afterlog.base import document
from afterlog.base.errors import CorruptFile, FileMissing, InvalidArgument, IsABackup, StoreLocked
from afterlog.base.files import Files, remove_tree
from afterlog.base.names import (
    BACKED_UP_STORE,
    BACKUP,
    LOCK,
    UNFINISHED,
    backup_folder,
    parse_backup_folder,
)
from afterlog.store.backup_writer import BackupWriter
from afterlog.store.store_image import StoreImage

logger = logging.getLogger("afterlog.store.backup")

FORMAT = "afterlog-backup"
VERSION = 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """One that is complete."""

    path: Path
    """The store in it: copy it, and open the copy."""
    number: int
    at_ms: int
    """When it began, ms since the epoch: all that was safe by then is in it."""
    files: int
    copied_bytes: int
    """The rest is linked."""


@dataclass(frozen=True, kw_only=True)
class Backups:
    """What makes backups of one open store."""

    image: StoreImage
    now_ms: Callable[[], int]

    def make(self, dest: Path) -> Backup:
        """Another one in the folder `dest`, which is made if it is not there.

        Raises InvalidArgument, StoreLocked where another is being made there, StorageFull, DiskFailed, CorruptFile,
        PartitionPoisoned, StoreClosed: then the ones of before are as they were.
        """
        dest = _checked(dest, self.image.path)
        try:
            _make_folders(self.image.files, dest)
            lock = _locked(self.image.files, dest)
        except (FileMissing, NotADirectoryError) as error:  # a link that leads nowhere, or a file
            raise InvalidArgument(f"{dest} is no folder, and cannot be made one: {error}") from error
        try:
            return self._make(dest)
        finally:
            lock.release()

    def _make(self, dest: Path) -> Backup:
        at_ms, staging = self.now_ms(), dest / UNFINISHED
        before = _of_before(self.image.files, dest)
        remove_tree(self.image.files, staging)
        self.image.files.make_folder(staging)
        number = 1 if before is None else before.number + 1
        try:
            writer = BackupWriter(
                self.image.files,
                self.image.path,
                staging / BACKED_UP_STORE,
                None if before is None else before.path,
                {} if before is None else before.stamps,
            )
            self.image.take(writer)
            body = {"number": number, "at_ms": at_ms, "store": str(self.image.path), "files": writer.stamps}
            document.write(self.image.files, staging / BACKUP, FORMAT, VERSION, body)
            self.image.usable()  # who has closed it may have let go what was not copied yet
            folder = backup_folder(number, _EPOCH + timedelta(milliseconds=at_ms))
            self.image.files.rename(staging, dest / folder)
            self.image.files.sync_folder(dest)
        except Exception:
            with contextlib.suppress(OSError):  # the next one does it
                remove_tree(self.image.files, staging)
            raise
        return Backup(
            path=dest / folder / BACKED_UP_STORE,
            number=number,
            at_ms=at_ms,
            files=len(writer.stamps),
            copied_bytes=writer.copied_bytes,
        )


class Earlier(NamedTuple):
    """The backup before, as its document tells."""

    number: int
    path: Path
    stamps: dict[str, object]


def check_no_backup(files: Files, path: Path) -> None:
    """Raises IsABackup where the folder is the store of one."""
    if parse_backup_folder(path.parent.name) is not None and files.exists(path.parent / BACKUP):
        raise IsABackup("this is a backup: copy it to where the store is to be, and open the copy", path=path)


def _of_before(files: Files, dest: Path) -> Earlier | None:
    """The newest; a document that cannot be read costs nothing but copies."""
    found = [(number, name) for name in files.names(dest) if (number := parse_backup_folder(name)) is not None]
    if not found:
        return None
    number, name = max(found)
    stamps: object = {}
    try:
        stamps = document.read(files, dest / name / BACKUP, FORMAT, VERSION).get("files")
    except (CorruptFile, FileMissing) as error:
        logger.warning("%s: nothing is linked from it: %s", dest / name, error)
    return Earlier(number, dest / name / BACKED_UP_STORE, stamps if isinstance(stamps, dict) else {})


def _checked(dest: Path, store: Path) -> Path:
    if dest == store or store in dest.parents or dest in store.parents:
        raise InvalidArgument(f"a backup of {store} goes into a folder of its own, not to {dest}")
    return dest


def _locked(files: Files, dest: Path) -> Any:
    others = [
        name for name in files.names(dest) if name not in (LOCK, UNFINISHED) and parse_backup_folder(name) is None
    ]
    if others:
        raise InvalidArgument(f"{dest} holds something else ({others[0]}); give a folder for backups alone")
    try:
        return files.lock(dest / LOCK)
    except StoreLocked as error:
        raise StoreLocked("another backup is being made there; wait until it has ended", path=dest) from error


def _make_folders(files: Files, folder: Path) -> None:
    if not files.exists(folder):
        _make_folders(files, folder.parent)
        with contextlib.suppress(FileExistsError):
            files.make_folder(folder)
        files.sync_folder(folder.parent)
