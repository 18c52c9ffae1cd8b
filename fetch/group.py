"""The committed positions of a consumer group: one small file to a partition.

    subscriptions/<group>/position      afterlog-position document, {"partition":"mail-0","group":"g","position":1024}

A position is a delivery offset that only means something together with its log, so it lives in the partition's folder;
the names of both are in it, so that a file in the wrong place is seen.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from afterlog import document
from afterlog.errors import CorruptFile
from afterlog.files import Files
from afterlog.names import position_file

FORMAT = "afterlog-position"
VERSION = 1


class GroupPosition:
    """Where one group stands in one partition."""

    def __init__(self, files: Files, partition_folder: Path, group: str) -> None:
        self._files = files
        self.path = position_file(partition_folder, group)
        self._owner = {"partition": partition_folder.name, "group": group}
        self._committed = self._read()
        self._durable = False

    @property
    def committed(self) -> int | None:
        """The position as last committed; None before the first commit."""
        return self._committed

    def commit(self, position: int) -> None:
        """Make `position` durable. Does nothing where it is already."""
        if position == self._committed:
            if not self._durable:  # a process that was killed may have left a name behind that is not
                self._files.sync_folder(self.path.parent)
                self._durable = True
            return
        if self._committed is None:
            for folder in (self.path.parent.parent, self.path.parent):  # a copy may have left out the empty first one
                with contextlib.suppress(FileExistsError):
                    self._files.make_folder(folder)
                self._files.sync_folder(folder.parent)
        document.write(self._files, self.path, FORMAT, VERSION, self._owner | {"position": position})
        self._committed, self._durable = position, True

    def _read(self) -> int | None:
        try:
            body = document.read(self._files, self.path, FORMAT, VERSION)
        except FileNotFoundError:
            return None
        position = body.pop("position", None)
        if body != self._owner or not isinstance(position, int):
            raise CorruptFile(f"holds no position of {self._owner}", path=self.path)
        return position
