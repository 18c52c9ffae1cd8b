from __future__ import annotations

import pytest

from afterlog.base.errors import CorruptRemote, RemoteConflict, RemoteError, RemoteUnavailable
from afterlog.base.names import TOPICS
from afterlog.log.topic_settings import TopicSettings
from afterlog.tier.remote_topics import read_remote_topics, tell_topic
from tests.support import Background, Gate, flipped
from tests.tier.faulty_remote_store import Fault, FaultyRemoteStore, fault_at, hold
from tests.tier.memory_store import MemoryStore, Unreachable

MAIL = TopicSettings(remote_storage_enable=True, partitions=3, local_retention_ms=7)
FIFO = TopicSettings(remote_storage_enable=True, delayed=False)


def test_topics_are_told_and_read() -> None:
    remote = MemoryStore()
    assert {} == read_remote_topics(remote)
    tell_topic(remote, "mail", MAIL)
    tell_topic(remote, "fifo", FIFO)
    assert {"mail": MAIL, "fifo": FIFO} == read_remote_topics(remote)
    before = remote.versions[TOPICS]
    tell_topic(remote, "mail", MAIL)
    assert before == remote.versions[TOPICS]


def test_another_topic_of_that_name() -> None:
    remote = MemoryStore()
    tell_topic(remote, "mail", MAIL)
    with pytest.raises(RemoteConflict, match="another store's"):
        tell_topic(remote, "mail", FIFO)
    assert {"mail": MAIL} == read_remote_topics(remote)


def test_two_at_a_time() -> None:
    remote, gate = MemoryStore(), Gate()
    slow = Background(lambda: tell_topic(FaultyRemoteStore(remote, hold("put_if", gate)), "mail", MAIL))
    gate.came()
    tell_topic(remote, "fifo", FIFO)
    gate.open()
    slow.answer()
    assert {"mail": MAIL, "fifo": FIFO} == read_remote_topics(remote)


@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER, Fault.TWICE])
def test_whatever_fails_the_next_try_does_it(call: int, fault: Fault) -> None:
    remote = MemoryStore()
    try:
        tell_topic(FaultyRemoteStore(remote, fault_at(call, fault)), "mail", MAIL)
    except RemoteError:
        tell_topic(remote, "mail", MAIL)
    assert {"mail": MAIL} == read_remote_topics(remote)


def test_hostile_bytes() -> None:
    remote = MemoryStore()
    tell_topic(remote, "mail", MAIL)
    whole = remote.objects[TOPICS]
    for data in (b"junk", whole[:-1], flipped(whole, len(whole) - 3), whole.replace(b"mail", b"../x")):
        remote.objects[TOPICS] = data
        with pytest.raises(CorruptRemote):
            read_remote_topics(remote)
        with pytest.raises(CorruptRemote):
            tell_topic(remote, "fifo", FIFO)
        assert data == remote.objects[TOPICS]


def test_the_storage_is_down() -> None:
    with pytest.raises(RemoteUnavailable):
        read_remote_topics(Unreachable())
