"""The committed positions of a consumer group: one small file to a partition, and a copy of it.

    subscriptions/<group>/position      afterlog-position document, {"partition":"mail-0","group":"g","position":1024}
    subscriptions/<group>/position.copy the same bytes: where the other is gone or rotten it is taken, and that is said

A position is a delivery offset that only means something together with its log, so it lives in the partition's folder;
the names of both are in it, so that a file in the wrong place is seen. The first file counts wherever it is intact, so
a crash between the two leaves the position of before or the new one; the next commit writes both. A store of before the
copy has none, which is no fault.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from afterlog.base import document
from afterlog.base.clock import INT64_MAX
from afterlog.base.errors import CorruptFile
from afterlog.base.files import Files, publishing
from afterlog.base.names import position_files

FORMAT = "afterlog-position"
VERSION = 1


logger = logging.getLogger("afterlog.fetch")


class GroupPosition:
    """Where one group stands in one partition."""

    def __init__(self, files: Files, partition_folder: Path, group: str) -> None:
        """Raises CorruptFile where neither file tells, and one is there."""
        self._files = files
        self._paths = position_files(partition_folder, group)
        self.path = self._paths[0]
        self._owner = {"partition": partition_folder.name, "group": group}
        self.damage: CorruptFile | None = None
        """What is wrong with one of the two files, while the other one serves; a commit makes it good."""
        self._whole = False
        self._committed = self._read()
        self._durable = False

    @property
    def committed(self) -> int | None:
        """The position as last committed; None before the first commit."""
        return self._committed

    def commit(self, position: int) -> None:
        """Make `position` durable. Does nothing where it is already."""
        if position == self._committed and self._whole:
            if not self._durable:  # a process that was killed may have left a name behind that is not
                self._files.sync_folder(self.path.parent)
                self._durable = True
            return
        if self._committed is None:
            for folder in (self.path.parent.parent, self.path.parent):  # a copy may have left out the empty first one
                with contextlib.suppress(FileExistsError):
                    self._files.make_folder(folder)
                self._files.sync_folder(folder.parent)
        content = document.encode(FORMAT, VERSION, self._owner | {"position": position})
        self._whole = False
        for path in self._paths:
            with publishing(self._files, path, sync_name=False) as file:
                file.append([content])
        self._files.sync_folder(self.path.parent)
        self._committed, self._whole, self._durable, self.damage = position, True, True, None

    def _read(self) -> int | None:
        found = [self._read_one(path) for path in self._paths]
        self._whole = found[0] == found[1]
        first, copy = found
        if isinstance(first, int):
            self.damage = copy if isinstance(copy, CorruptFile) else None
            return first
        if isinstance(copy, int):
            self.damage = first or CorruptFile("the position is gone, its copy is there", path=self.path)
            logger.warning("%s; its copy says %d, and is taken", self.damage, copy)
            return copy
        if error := first or copy:
            raise error
        if self._files.exists(self.path.parent):  # or it was killed in its first commit
            logger.warning("%s: there is no position in it: the group begins anew", self.path.parent)
        return None

    def _read_one(self, path: Path) -> int | CorruptFile | None:
        try:
            body = document.read(self._files, path, FORMAT, VERSION)
        except FileNotFoundError:
            return None
        except CorruptFile as error:
            return error
        position = body.pop("position", None)
        if body != self._owner or type(position) is not int or not 0 <= position <= INT64_MAX:
            return CorruptFile(f"holds no position of {self._owner}", path=path)
        return position
