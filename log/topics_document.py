"""Which topics a store has, and the settings that each was made with: the document `topics`, and one document a topic.

    afterlog-topics 1 8f3ab01c\\n
    {"mail":{"partitions":1,"delayed":true,"max_delay_ms":null,"retention_ms":null,"retention_bytes":null}}\\n

`topics` in the store's folder is made with the first topic. A topic that is made later has a document of its own, the
same with one name, in the folder `later-topics`: so it costs the same however many there are (docs/decisions/0028). The
store's frontier lies there, too (`log/store_frontier.py`).
Topics that are made together go into `topics`, which is written anew for them, once: so all of them are there or none.
Where both name a topic `topics` counts: repair and a restore write it, whole.

The settings of tiered storage (`remote_storage_enable` and those of local retention) are there where one is set, and
`check_instants` where it is false, `interceptors` where there are any.

A topic is there when one of them names it: its partitions are made first, and what an unfinished creation left behind
holds no records. One that is being deleted (`log/tombstones.py`) is there no more. So a folder with records that no
topic owns means that a document is lost, or an older copy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from afterlog.base import document
from afterlog.base.errors import CorruptFile
from afterlog.base.files import Files
from afterlog.base.names import FRONTIER, LATER_TOPICS, LOCK, TOPICS, parse_partition_folder, partition_folder
from afterlog.log.recovery import holds_bytes, holds_records
from afterlog.log.tombstones import read_tombstones
from afterlog.log.topic_settings import TopicSettings, settings_to_json, topics_of_json

FORMAT = "afterlog-topics"
VERSION = 1


def is_store(files: Files, path: Path) -> bool:
    """Whether a store was ever opened in the folder."""
    return files.exists(path / LOCK) or files.exists(path / TOPICS)


def read_topics(files: Files, store: Path) -> dict[str, TopicSettings]:
    """The topics of the store in the folder `store`; none where it is new. Raises CorruptFile."""
    topics, faults = legible_topics(files, store)
    if faults:
        raise faults[0]
    return topics


def legible_topics(files: Files, store: Path) -> tuple[dict[str, TopicSettings], list[CorruptFile]]:
    """The topics whose settings can be read, and what is wrong with the other documents."""
    topics: dict[str, TopicSettings] = {}
    faults: list[CorruptFile] = []
    with contextlib.suppress(FileNotFoundError):
        try:
            topics |= _read(files, store / TOPICS)
        except CorruptFile as error:
            faults.append(error)
    for name, path in _of_one_topic(files, store):
        if name in topics:
            continue
        try:
            read = _read(files, path)
            if list(read) != [name]:
                raise CorruptFile(f"this is the document of {', '.join(read) or 'no topic'}", path=path)
            topics |= read
        except CorruptFile as error:
            faults.append(error)
    try:
        deleted = read_tombstones(files, store).topics
    except CorruptFile as error:
        faults.append(error)
        deleted = {}
    return {name: settings for name, settings in topics.items() if name not in deleted}, faults


def write_topics(files: Files, store: Path, topics: dict[str, TopicSettings]) -> None:
    """Make the document say `topics`, and no other one say anything, durably."""
    _write(files, store / TOPICS, topics)
    paths = [path for _, path in _of_one_topic(files, store)]
    for path in paths:
        files.unlink(path)
    if paths:
        files.sync_folder(store / LATER_TOPICS)


def add_topics(files: Files, store: Path, topics: dict[str, TopicSettings]) -> None:
    """Name topics more, whose partitions are there, durably: all of them or none."""
    if len(topics) > 1 or not files.exists(store / TOPICS):
        with contextlib.suppress(FileNotFoundError):
            topics = _read(files, store / TOPICS) | topics
        _write(files, store / TOPICS, topics)
        return
    [(name, settings)] = topics.items()
    folder = store / LATER_TOPICS
    if not files.exists(folder):  # one that is there is durable: whoever made its partitions has synced the store
        files.make_folder(folder)
        files.sync_folder(store)
    _write(files, folder / partition_folder(name, 0), {name: settings})


def alter_topic(files: Files, store: Path, name: str, settings: TopicSettings) -> None:
    """Give a topic that is named other settings, durably. Partitions that come with them are there."""
    with contextlib.suppress(FileNotFoundError):
        topics = _read(files, store / TOPICS)
        if name in topics:
            _write(files, store / TOPICS, topics | {name: settings})
            return
    _write(files, store / LATER_TOPICS / partition_folder(name, 0), {name: settings})


def forget_topic(files: Files, store: Path, name: str) -> None:
    """Name a topic nowhere, durably; nothing where it is not named. Its tombstone is there."""
    with contextlib.suppress(FileNotFoundError):
        topics = _read(files, store / TOPICS)
        if topics.pop(name, None) is not None:
            _write(files, store / TOPICS, topics)
    if files.exists(store / LATER_TOPICS):
        with contextlib.suppress(FileNotFoundError):
            files.unlink(store / LATER_TOPICS / partition_folder(name, 0))
        files.sync_folder(store / LATER_TOPICS)  # whoever was killed in the middle of it may have unlinked it


def make_room(files: Files, store: Path) -> None:
    """Make the folder for what comes later, where it is missing; whoever calls syncs the store's folder."""
    with contextlib.suppress(FileExistsError):
        if not files.exists(store / LATER_TOPICS):
            files.make_folder(store / LATER_TOPICS)


def sync_names(files: Files, store: Path) -> None:
    """Make durable what is found: a process that was killed may have left names behind that are not."""
    files.sync_folder(store)
    with contextlib.suppress(FileNotFoundError):
        files.sync_folder(store / LATER_TOPICS)


def check_owned(files: Files, store: Path, topics: dict[str, TopicSettings]) -> None:
    """Raises CorruptFile where a folder has records and no topic."""
    topics = {**topics, **read_tombstones(files, store).topics}
    known = {folder for name, settings in topics.items() for folder in _folders(name, settings)}
    for name in files.names(store):
        if parse_partition_folder(name) and name not in known and holds_records(files, store / name):
            raise CorruptFile(f"no topic for {name}, which holds records; restore it from a copy", path=store / TOPICS)


def check_nothing_to_lose(files: Files, store: Path) -> None:
    """Raises CorruptFile where a folder has records: before a store is made anew from object storage."""
    for name in files.names(store):
        if parse_partition_folder(name) and holds_bytes(files, store / name):
            raise CorruptFile(
                f"the document is gone, and {name} holds records; restore it from a copy", path=store / TOPICS
            )


def _read(files: Files, path: Path) -> dict[str, TopicSettings]:
    return topics_of_json(document.read(files, path, FORMAT, VERSION), path)


def _write(files: Files, path: Path, topics: dict[str, TopicSettings]) -> None:
    body = {name: settings_to_json(settings) for name, settings in topics.items()}
    document.write(files, path, FORMAT, VERSION, body)


def _of_one_topic(files: Files, store: Path) -> Iterator[tuple[str, Path]]:
    """The topics that have a document of their own, and where. It is named as the first partition: that never ends as
    a temporary name does, and is not too long for one."""
    folder = store / LATER_TOPICS
    with contextlib.suppress(FileNotFoundError):
        for name in files.names(folder):
            parsed = parse_partition_folder(name)
            if parsed is not None and name != FRONTIER:
                yield parsed[0], folder / name


def _folders(name: str, settings: TopicSettings) -> Iterable[str]:
    return (partition_folder(name, number) for number in range(settings.partitions))
