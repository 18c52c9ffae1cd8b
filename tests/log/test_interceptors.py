"""Interceptors that a topic's settings name: found, missing, broken."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.errors import InvalidTopic, TopicExists, UnknownTopic
from afterlog.base.names import LOG, segment_file
from afterlog.log import interceptors
from afterlog.log.interceptors import interceptors_of
from afterlog.records.entry import AppendBrokerTimestamp, AppendIndex, decode_entry, protobuf_field
from afterlog.store.store import Store
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, PATH, content, drained, open_small

ROOM = 1 << 20


class Region:
    def intercept(self, first_offset: int, broker_timestamp: int, entries: int) -> bytes:
        return protobuf_field(32, b"eu")


class Broken:
    def __init__(self) -> None:
        raise ZeroDivisionError


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, EntryPoint]:
    """What is registered, by name; a test may take some of it away."""
    places = {
        "region": "ours:Region",
        "broken": "ours:Broken",
        "none": "builtins:object",
        "gone": "gone:X",
    }
    found = {name: EntryPoint(name, place, interceptors.GROUP) for name, place in places.items()}
    monkeypatch.setattr(interceptors, "entry_point", lambda group, name: found.get(name))
    monkeypatch.setattr(EntryPoint, "load", _load)
    return found


def _load(entry: EntryPoint) -> object:
    return {"Region": Region, "Broken": Broken, "object": object}[entry.value.split(":")[1]]


def metadata(disk: SimulatedFiles, topic: str) -> object:
    return decode_entry(content(disk, PATH / f"{topic}-0" / segment_file(0, LOG)), 0).metadata


def test_those_of_this_package_are_always_there() -> None:
    made = interceptors_of("t", ("AppendIndex", "AppendBrokerTimestamp"))
    assert [AppendIndex, AppendBrokerTimestamp] == [type(each) for each in made]


def test_one_topic_has_them_and_another_has_not_also_after_a_reopen() -> None:
    disk = SimulatedFiles()
    with open_small(disk, ManualClock(NOW_MS), segment_bytes=ROOM) as store:
        store.create_topic("t", delayed=False, interceptors=["AppendBrokerTimestamp", "region"])
        store.create_topic("u", delayed=False)
    with open_small(disk, ManualClock(NOW_MS), segment_bytes=ROOM) as store:
        assert ("AppendBrokerTimestamp", "region") == store.topic("t").settings.interceptors
        for topic in "tu":
            store.send(topic, b"a")
        store.create_topic("t", delayed=False, interceptors=["AppendBrokerTimestamp", "region"])
        with pytest.raises(TopicExists):
            store.create_topic("t", delayed=False)
    stamped = metadata(disk, "t")
    assert (NOW_MS, protobuf_field(32, b"eu")) == (stamped.broker_timestamp, stamped.extra)  # type: ignore[attr-defined]
    assert metadata(disk, "u") is None


@pytest.mark.parametrize("delayed", [False, True])
def test_they_can_be_altered(delayed: bool) -> None:
    """Entries that are there keep what they have; a seek by broker time finds both."""
    disk, clock = SimulatedFiles(), ManualClock(NOW_MS)

    def extra(store: Store) -> list[bytes | None]:
        """Of each entry, the fields that "region" adds."""
        log, found, position = store.topic("t").log(0), list[bytes | None](), 0
        data = content(disk, log.version.active.path)
        while position < len(data):
            entry = decode_entry(data, position)
            found.append(None if entry.metadata is None else entry.metadata.extra)
            position += entry.size
        return found

    with open_small(disk, clock, segment_bytes=ROOM) as store:
        store.create_topic("t", delayed=delayed)
        store.send("t", b"a")
        store.alter_topic("t", interceptors=["region"])
        store.send("t", b"b")
        store.alter_topic("t", retention_ms=10**9)
    with open_small(disk, clock, segment_bytes=ROOM) as store:
        assert ("region",) == store.topic("t").settings.interceptors
        store.send("t", b"c")
        with pytest.raises(InvalidTopic, match="not registered here"):
            store.alter_topic("t", interceptors=["unknown"])
        store.alter_topic("t", interceptors=["AppendBrokerTimestamp", "region"])
        clock.advance(10)
        store.send("t", b"d")
        assert 3 == store.topic("t").partition(0).offset_at_broker_time(NOW_MS + 5)
        store.alter_topic("t", interceptors=[])
        store.send("t", b"e")
        own, without = protobuf_field(32, b"eu"), b"" if delayed else None
        assert [without, own, own, own, without] == extra(store)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("unknown", "install the package that has it among its entry points 'afterlog.interceptors'"),
        ("broken", "cannot be made: ZeroDivisionError"),
        ("gone", "cannot be made"),
        ("none", "has no method intercept"),
    ],
)
def test_one_that_is_not_there_is_told_and_nothing_is_made(name: str, told: str) -> None:
    disk = SimulatedFiles()
    with open_small(disk, ManualClock(NOW_MS), segment_bytes=ROOM) as store:
        before = len(disk.operations)
        with pytest.raises(InvalidTopic, match=told):
            store.create_topic("t", interceptors=["region", name])
        assert before == len(disk.operations)
        with pytest.raises(UnknownTopic):
            store.topic("t")


def test_one_that_is_not_installed_any_more_is_told_at_open_and_nothing_is_lost(
    installed: dict[str, EntryPoint],
) -> None:
    disk = SimulatedFiles()
    with open_small(disk, ManualClock(NOW_MS), segment_bytes=ROOM) as store:
        for topic, names in (("t", ["region"]), ("a", [])):
            store.create_topic(topic, interceptors=names)
            store.send(topic, b"v")
    region = installed.pop("region")
    before = disk.image().contents
    with pytest.raises(InvalidTopic, match="topic t has the interceptor 'region', which is not registered here"):
        open_small(disk, ManualClock(NOW_MS), segment_bytes=ROOM)
    assert before == disk.image().contents
    installed["region"] = region
    with open_small(disk, ManualClock(NOW_MS), segment_bytes=ROOM) as store:
        assert [b"v"] == drained(store.topic("t").partition(0)) == drained(store.topic("a").partition(0))


@pytest.mark.parametrize("wrong", ["region", [1], 5, [None], ["region", "region"], [""]])
def test_what_is_no_list_of_names(wrong: object) -> None:
    with open_small(SimulatedFiles(), ManualClock(NOW_MS), segment_bytes=ROOM) as store, pytest.raises(InvalidTopic):
        store.create_topic("t", interceptors=wrong)  # type: ignore[arg-type]
