"""All that is known of recurring schedules, durably: a journal of what changed, twice.

    schedules/journal       frames: one line that is checked, and one of JSON (`afterlog.base.document`); shortened:
    schedules/journal.2     the same frames once more: what one of the two has lost, the other serves

    afterlog-schedules 1 8f3ab01c
    {"number":7,"begins":true,"rows":[{"name":"weekly","id":"0123456789abcdef0123456789abcdef","topic":"report",…}]}
    afterlog-schedules 1 02c4d1aa
    {"number":8,"rows":[{"name":"weekly","upto_ms":1700467200000,"occurrence":{"due_ms":1700467200000,…}}]}
    afterlog-schedules 1 77a0c35e
    {"number":8,"is_note":true,"rows":[{"name":"weekly","occurrence":{"due_ms":1700467200000,…,"offset":40}}]}
    afterlog-schedules 1 5be0f192
    {"number":9,"rows":[{"name":"weekly","gone":true}]}

A frame that begins a journal has every schedule whole; the others have of each what is not as it was before, so that
what a thousand of them come to is one write, and one sync. When what was appended is more than that, and more than
LIMIT_BYTES, both files are made anew; the first write of each opening does so, too. A note says what the log says
already, with the number of the frame before it: it is not synced, and whoever misses it looks there.

*What counts* is what either file has intact, by the numbers of the frames, from the last that begins a journal. A frame
is told of once it is durable in the first file; the second has it by then, and the disk when the system writes it back.
A crash amid a frame leaves it, or a torn end that is none, and nobody was told. Where one is missing between two, or
all of them, both files are damaged: nothing is believed (`damage`), nothing written, and the schedules stand still.

Before, each schedule was a document of its own, `weekly.schedule`, and a copy of it, `weekly.copy`. They become a
journal when the store is opened, and go; where there is one already they are what a crash has left of that. A copy may
be one write older than a document that rotted: that occurrence may come twice then.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from afterlog.base import document
from afterlog.base.document import whole
from afterlog.base.errors import CorruptFile
from afterlog.base.files import Files, opened, publishing, read_file
from afterlog.base.names import SCHEDULE_JOURNALS, SCHEDULES, earlier_schedule_files, parse_earlier_schedule_file
from afterlog.store.schedule_document import ScheduleDocument

logger = logging.getLogger("afterlog.store.schedules")

FORMAT = "afterlog-schedules"
VERSION = 1
LIMIT_BYTES = 256 << 10
"""So much is appended, or as much as the journal began with, before it begins anew. Larger: rarer, slower opening."""
_EARLIER_FORMAT = "afterlog-schedule"


class ScheduleJournal:
    """Of one store. By one thread at a time."""

    def __init__(self, files: Files, store: Path) -> None:
        """Reads it, and makes what it reads durable; documents of earlier versions become one."""
        self.documents: dict[str, ScheduleDocument] = {}
        """By name."""
        self.damage: CorruptFile | None = None
        """Why nothing is known."""
        self._files = files
        self._folder = store / SCHEDULES
        self._paths = [self._folder / name for name in SCHEDULE_JOURNALS]
        self._number = 0
        """Of the last frame."""
        self._size: int | None = None
        """Of either file, as far as it is believed; None: whoever writes next begins anew."""
        self._begun_bytes = 0
        try:
            self._read()
        except CorruptFile as error:
            self.documents, self.damage = {}, error

    def write(self, changed: Iterable[ScheduleDocument], gone: Iterable[str] = ()) -> None:
        """What these are from now on, and which are no more: durable, in one frame, once it returns.

        Raises CorruptFile with all as it was; StorageFull and the like, where the next reader may find it so or so.
        """
        self._put(changed, gone, is_note=False)

    def note(self, found: Iterable[ScheduleDocument]) -> None:
        """With offsets of last occurrences, which are in the log, durably. Raises as `write` does."""
        self._put(found, (), is_note=True)

    def _put(self, changed: Iterable[ScheduleDocument], gone: Iterable[str], *, is_note: bool) -> None:
        if self.damage is not None:
            raise self.damage
        before = self.documents
        documents = {each.name: each for each in changed if before.get(each.name) != each}
        removed = [name for name in gone if name in before]
        rows = [each.to_json(before.get(name)) for name, each in documents.items()]
        rows += [{"name": name, "gone": True} for name in removed]
        if not rows:
            return
        number = self._number if is_note else self._number + 1
        frame = _frame(number, rows, "is_note" if is_note else "")
        limit = self._begun_bytes + max(self._begun_bytes, LIMIT_BYTES)
        if self._size is None or self._size + len(frame) > limit:
            after = {name: each for name, each in {**before, **documents}.items() if name not in removed}
            self._begin([each.to_json() for each in after.values()])
        else:
            self._append(frame, self._size, durable=not is_note)
            self._number = number
        before.update(documents)
        for name in removed:
            del before[name]

    def _begin(self, rows: list[dict[str, Any]]) -> None:
        self._size = None
        if not self._files.exists(self._folder):
            with contextlib.suppress(FileExistsError):
                self._files.make_folder(self._folder)
            self._files.sync_folder(self._folder.parent)
        frame = _frame(self._number + 1, rows, "begins")
        for path in self._paths:
            with publishing(self._files, path, sync_name=False) as file:
                file.append([frame])
        self._files.sync_folder(self._folder)
        self._number += 1
        self._size = self._begun_bytes = len(frame)

    def _append(self, frame: bytes, size: int, *, durable: bool) -> None:
        self._size = None
        for path in self._paths:
            with opened(self._files, path) as file:
                try:
                    file.append([frame])
                    if durable and path is self._paths[0]:
                        file.sync()
                except BaseException:
                    with contextlib.suppress(OSError):  # what did not fit must not keep the room
                        file.truncate(size)
                    raise
        self._size = size + len(frame)

    def _sync(self) -> None:
        """Who was killed may have written what is not durable, and whoever reads it acts by it."""
        there = [path for path in self._paths if self._files.exists(path)]
        for path in there:
            with opened(self._files, path) as file:
                file.sync()
        if there:
            self._files.sync_folder(self._folder)

    def _read(self) -> None:
        self._sync()
        found = [each for path in self._paths if (each := _frames_of(self._files, path)) is not None]
        earlier = _earlier_names(self._files, self._folder)
        if not found:
            self.documents = {name: _earlier(self._files, self._folder, name) for name in earlier}
            if earlier:
                self._begin([each.to_json() for each in self.documents.values()])
        else:
            frames = _together(found)
            self._number = max(frames, default=0)
            self.documents = _replayed(frames, self._paths[0])
            for each in found:
                if each.damage is not None:
                    logger.warning("%s; the other one is taken", each.damage)
            if len(found) < len(self._paths):
                logger.warning("of the two journals in %s one is gone; the other one is taken", self._folder)
        for name in earlier:
            for path in earlier_schedule_files(self._folder, name):
                with contextlib.suppress(FileNotFoundError):
                    self._files.unlink(path)
        if earlier:
            self._files.sync_folder(self._folder)


def journal_damages(files: Files, store: Path) -> Iterator[CorruptFile]:
    """What is wrong with either file, also where the other one serves; of documents of earlier versions, too."""
    folder = store / SCHEDULES
    found = {folder / name: _frames_of(files, folder / name) for name in SCHEDULE_JOURNALS}
    there = [each for each in found.values() if each is not None]
    if there:
        for path, each in found.items():
            if each is None:
                yield CorruptFile("it is gone, and the other one is there", path=path)
            elif each.damage is not None:
                yield each.damage
        try:
            _replayed(_together(there), folder / SCHEDULE_JOURNALS[0])
        except CorruptFile as error:
            yield error
        return
    for name in _earlier_names(files, folder):
        for path in earlier_schedule_files(folder, name):
            damage = _earlier_one(files, path, name)
            if isinstance(damage, CorruptFile):
                yield damage


def forget_schedules(files: Files, store: Path, topic: str) -> None:
    """Of a topic that is deleted, durably."""
    journal = ScheduleJournal(files, store)
    if journal.damage is None:
        journal.write([], [name for name, each in journal.documents.items() if each.topic == topic])


Body = dict[str, Any]


class _Frames(NamedTuple):
    """Of one file, the intact ones."""

    frames: list[Body]
    """In the order in which they are there."""
    damage: CorruptFile | None
    """What is wrong before the last of them, or with all."""


def _frame(number: int, rows: list[Body], kind: str = "") -> bytes:
    """kind: `begins`, `is_note` or neither."""
    return document.encode(FORMAT, VERSION, {"number": number, **({kind: True} if kind else {}), "rows": rows})


def _together(found: Iterable[_Frames]) -> dict[int, list[Body]]:
    """By number, first the frame, then its notes, perhaps twice. A number without its frame is not there."""
    frames, notes = dict[int, Body](), dict[int, list[Body]]()
    for each in found:
        for body in each.frames:
            if body.get("is_note"):
                notes.setdefault(body["number"], []).append(body)
            else:
                frames[body["number"]] = body
    return {number: [body, *notes.get(number, ())] for number, body in frames.items()}


def _frames_of(files: Files, path: Path) -> _Frames | None:
    """None where it is not there. What lies behind the last intact frame may be of one that a crash has torn."""
    try:
        data = read_file(files, path)
    except FileNotFoundError:
        return None
    frames, position, intact_to, damage = list[Body](), 0, 0, None
    start = FORMAT.encode() + b" "
    while (position := _line_from(data, start, position)) >= 0:
        end = data.find(b"\n", data.find(b"\n", position) + 1) + 1
        try:
            body = document.decode(FORMAT, VERSION, data[position:end] if end else data[position:], path)
            whole(body["number"])
        except (CorruptFile, LookupError, TypeError):
            position += 1
            continue
        if position != intact_to:
            damage = CorruptFile("a frame is not intact", path=path, position=intact_to)
        frames.append(body)
        position = intact_to = end
    if not frames:
        damage = CorruptFile("no frame is intact", path=path, position=0)
    return _Frames(frames, damage)


def _line_from(data: bytes, start: bytes, position: int) -> int:
    """Where the next line begins so; -1: none does."""
    if data.startswith(start, position) and (position == 0 or data[position - 1 : position] == b"\n"):
        return position
    found = data.find(b"\n" + start, position)
    return found + 1 if found >= 0 else -1


def _replayed(frames: dict[int, list[Body]], path: Path) -> dict[str, ScheduleDocument]:
    """The schedules behind all of them. Raises CorruptFile where one is missing, or means nothing."""
    first = max((number for number, (body, *_) in frames.items() if body.get("begins")), default=None)
    if first is None or not all(number in frames for number in range(first, max(frames) + 1)):
        raise CorruptFile(
            "both journals have lost the same: take them from a backup, or remove both, and make the schedules anew",
            path=path,
        )
    rows: dict[str, Body] = {}
    try:
        for number in range(first, max(frames) + 1):
            for row in chain.from_iterable(body["rows"] for body in frames[number]):
                name = row["name"]
                if row.get("gone"):
                    del rows[name]
                else:
                    rows[name] = {**rows.get(name, {}), **row}
    except (LookupError, TypeError, AttributeError) as error:
        raise CorruptFile(f"frame {number} is none of schedules: {error!r}", path=path) from error
    return {str(name): ScheduleDocument.of_json(body, path) for name, body in rows.items()}


# Of earlier versions.


def _earlier_names(files: Files, folder: Path) -> list[str]:
    try:
        names = files.names(folder)
    except FileNotFoundError:
        return []
    return sorted({name for file in names if (name := parse_earlier_schedule_file(file)) is not None})


def _earlier(files: Files, folder: Path, name: str) -> ScheduleDocument:
    """Raises CorruptFile where neither file is a document: then nothing has changed."""
    first, copy = (_earlier_one(files, path, name) for path in earlier_schedule_files(folder, name))
    for found in (first, copy):
        if isinstance(found, ScheduleDocument):
            return found
    damage = first or copy
    assert isinstance(damage, CorruptFile), "one of them is there"
    raise CorruptFile(f"{damage.message}; its copy is no better: remove both", path=damage.path)


def _earlier_one(files: Files, path: Path, name: str) -> ScheduleDocument | CorruptFile | None:
    try:
        body = document.read(files, path, _EARLIER_FORMAT, 1)
        if body.get("name") != name:
            raise CorruptFile(f"this is the schedule {body.get('name')!r:.40}", path=path)
        return ScheduleDocument.of_json(body, path)
    except FileNotFoundError:
        return None
    except CorruptFile as error:
        return error
