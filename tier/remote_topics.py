"""The `topics` document of object storage: the topics that have segments there, and their settings, as in a store.

A store adds its topics before their first segment. Whoever has nothing else begins here.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from afterlog.base import document
from afterlog.base.errors import CorruptFile, CorruptRemote, RemoteConflict, RemoteMissing
from afterlog.base.names import TOPICS, check_name, manifest_key, parse_remote_segment_file, partition_folder
from afterlog.log.topic_settings import TopicSettings, settings_to_json, topics_of_json
from afterlog.log.topics_document import FORMAT, VERSION
from afterlog.tier.manifest import Manifest
from afterlog.tier.remote_store import RemoteStore

_SIZE_MAX = 16 << 20
_ROUNDS = 100
PARTITIONS_MAX = 100_000
"""Of a topic. What has more is not ours: each would become a folder."""


def read_remote_topics(remote: RemoteStore) -> dict[str, TopicSettings]:
    """The topics; none where there is no such document. CorruptRemote."""
    return _read(remote)[0]


def tell_topic(
    remote: RemoteStore, name: str, settings: TopicSettings, before: TopicSettings | None = None
) -> TopicSettings:
    """See to it that the document has the topic; as it has it then, with the id of who told first.

    before: with these it is altered. RemoteConflict where it has the topic with others.

    Of a Kafka broker's it has the most partitions that were ever told: each broker has only some of them.
    """
    check_name(name)
    for _ in range(_ROUNDS):
        topics, version = _read(remote)
        there = topics.get(name)
        grows = there is not None and there.foreign and settings.foreign
        if there is not None and grows:
            settings = replace(settings, partitions=max(settings.partitions, there.partitions))
        if there == settings and there is not None:
            return there
        if there is not None and not grows and there != before:
            raise RemoteConflict(
                f"{name} is there with {there}, not {settings}: is it another store's?",
                path=TOPICS,
            )
        topics[name] = settings if there is None else replace(settings, topic_id=there.topic_id)
        if _put(remote, topics, version):
            return topics[name]
    raise RemoteConflict(f"others were first {_ROUNDS} times", path=TOPICS)


def forget_topic(remote: RemoteStore, name: str, settings: TopicSettings) -> None:
    """Remove a topic and all that is of it; can be called again. What is another topic's of that name stays.

    The document first, so that nobody begins with it; then each manifest, and the objects behind it. Of a Kafka
    broker's topic only the document forgets.
    """
    for _ in range(_ROUNDS):
        topics, version = _read(remote)
        there = topics.get(name)
        if there is None:
            break
        if there.topic_id != settings.topic_id:
            return
        del topics[name]
        if _put(remote, topics, version):
            break
    else:
        raise RemoteConflict(f"others were first {_ROUNDS} times", path=TOPICS)
    for number in range(settings.partitions) if not settings.foreign else ():
        _forget_partition(remote, partition_folder(name, number), settings.topic_id)


def _forget_partition(remote: RemoteStore, partition: str, topic_id: str | None) -> None:
    try:
        there = Manifest(remote, partition).content().topic_id
    except CorruptRemote:
        there = topic_id
    if there not in (None, topic_id):
        return
    remote.delete(manifest_key(partition))
    for found in list(remote.list_objects(partition)):
        folder, _, last = found.key.rpartition("/")
        if folder == partition and parse_remote_segment_file(last) is not None:
            remote.delete(found.key)


def _put(remote: RemoteStore, topics: dict[str, TopicSettings], version: str | None) -> bool:
    """Whether nobody else was first."""
    body = {name: settings_to_json(settings) for name, settings in topics.items()}
    try:
        remote.put_if(TOPICS, document.encode(FORMAT, VERSION, body), version)
    except RemoteConflict:
        return False
    return True


def _read(remote: RemoteStore) -> tuple[dict[str, TopicSettings], str | None]:
    try:
        data, version = remote.get(TOPICS, _SIZE_MAX)
    except RemoteMissing:
        return {}, None
    try:
        topics = topics_of_json(document.decode(FORMAT, VERSION, data, Path(TOPICS)), Path(TOPICS))
    except CorruptFile as error:
        raise CorruptRemote(error.message, path=Path(TOPICS), position=error.position) from error
    for name, settings in topics.items():
        if settings.partitions > PARTITIONS_MAX:
            raise CorruptRemote(f"{settings.partitions} partitions of {name} are more than a store has", path=TOPICS)
    return topics, version
