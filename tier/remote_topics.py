"""The `topics` document of object storage: the topics that have segments there, and their settings, as in a store.

A store adds its topics before their first segment. Whoever has nothing else begins here.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from afterlog import document
from afterlog.errors import CorruptFile, CorruptRemote, RemoteConflict, RemoteMissing
from afterlog.log.topic_settings import TopicSettings, settings_to_json, topics_of_json
from afterlog.log.topics_document import FORMAT, VERSION
from afterlog.names import TOPICS, check_name
from afterlog.tier.remote_store import RemoteStore

_SIZE_MAX = 16 << 20
_ROUNDS = 100
PARTITIONS_MAX = 100_000
"""Of a topic. What has more is not ours: each would become a folder."""


def read_remote_topics(remote: RemoteStore) -> dict[str, TopicSettings]:
    """The topics; none where there is no such document. CorruptRemote."""
    return _read(remote)[0]


def tell_topic(remote: RemoteStore, name: str, settings: TopicSettings) -> None:
    """See to it that the document has the topic. RemoteConflict where it has it with other settings.

    Of a Kafka broker's it has the most partitions that were ever told: each broker has only some of them.
    """
    check_name(name)
    for _ in range(_ROUNDS):
        topics, version = _read(remote)
        there = topics.get(name)
        grows = there is not None and there.foreign and settings.foreign
        if there is not None and grows:
            settings = replace(settings, partitions=max(settings.partitions, there.partitions))
        if there == settings:
            return
        if there is not None and not grows:
            raise RemoteConflict(
                f"{name} is there with {there}, not {settings}: is it another store's?",
                path=TOPICS,
            )
        topics[name] = settings
        body = {each: settings_to_json(own) for each, own in topics.items()}
        try:
            remote.put_if(TOPICS, document.encode(FORMAT, VERSION, body), version)
        except RemoteConflict:
            continue
        return
    raise RemoteConflict(f"others were first {_ROUNDS} times", path=TOPICS)


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
