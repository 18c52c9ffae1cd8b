"""The topics of an open store: partitions at rest that are opened at their first use, and topics made together."""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.config import Config
from afterlog.base.errors import (
    CorruptFile,
    InvalidTopic,
    OutOfResources,
    StorageFull,
    StoreClosed,
    StoreForked,
    TopicExists,
    WrongType,
)
from afterlog.base.files import PROCESS, OsFiles
from afterlog.base.names import BUCKETS, CHECKPOINTS, LOG
from afterlog.log.topics_document import read_topics
from afterlog.store.store import Store, open_store
from tests.campaigns.crash_states import crash_states
from tests.campaigns.failing_files import FailingFiles
from tests.campaigns.simulated_disk import Image, SimulatedFiles, os_error
from tests.support import (
    NOW_MS,
    PATH,
    Background,
    Calls,
    Gate,
    HeldFiles,
    content,
    drained,
    eventually,
    flipped,
    killed,
    open_small,
    small,
    with_file,
)
from tests.tier.memory_store import MemoryStore

TOPICS = ("a", "b", "c")


class Rest:
    """A store of three topics, a record each, that was closed, and is open again: nobody has asked for any yet."""

    def __init__(self, disk: SimulatedFiles | None = None, *, background: bool = False) -> None:
        self.disk = disk or at_rest()
        self.calls = Calls()
        self.clock = ManualClock(NOW_MS + 10)
        self.files = HeldFiles(self.disk, self.calls)
        self.store = open_store(PATH, small(), self.clock, self.files, background=background)

    @property
    def opened(self) -> list[str]:
        return [log.context.folder.name for log in self.store._topics.logs()]


def at_rest() -> SimulatedFiles:
    return SimulatedFiles(image())


@functools.cache
def image() -> Image:
    disk = SimulatedFiles()
    with open_small(disk, ManualClock(NOW_MS)) as store:
        for name in TOPICS:
            store.create_topic(name, 2, retention_ms=1 if name == "b" else None)
            store.send(name, name.encode(), partition=1)
            store.topic(name).partition(1).log.roll()
    return disk.image()


@pytest.fixture
def rest() -> Iterator[Rest]:
    rest = Rest()
    yield rest
    rest.store.close()


def test_a_partition_at_rest_is_opened_when_somebody_asks_for_it(rest: Rest) -> None:
    assert ([], 0) == (rest.opened, rest.calls.count("sync_folder", "-0") + rest.calls.count("sync_folder", "-1"))
    assert [("a", 2), ("b", 2), ("c", 2)] == [(topic.name, topic.partition_count) for topic in rest.store.topics()]
    assert 1 == rest.store.send("b", b"more", partition=1).offset
    assert ["b-1"] == rest.opened
    assert [b"c"] == drained(rest.store.topic("c").partition(1))
    with rest.store.consumer("a", group="g", partitions=[1]) as consumer:
        assert [b"a"] == [message.value for message in consumer.poll()]
    rest.store.sync()
    assert {"a-1", "b-1", "c-1"} <= {*rest.opened}
    assert "c-0" not in rest.opened


def test_one_that_was_made_is_opened_at_its_first_use_too(rest: Rest) -> None:
    rest.store.create_topic("new")
    assert [] == rest.opened
    assert (0, ["new-0"]) == (rest.store.send("new", b"first").offset, rest.opened)


def test_what_a_kill_left_behind_is_recovered_at_the_open() -> None:
    rest = Rest()
    rest.store.send("b", b"torn", partition=1)
    [path] = [PATH / "b-1" / name for name in rest.disk.names(PATH / "b-1") if name.endswith(f"1{LOG}")]
    data = content(rest.disk, path)
    again = Rest(with_file(rest.disk, path, data[:-1]))
    assert (["b-1"], {("b", 1): len(data) - 1}) == (again.opened, again.store.cut_bytes)


def test_what_asks_for_all_opens_all(rest: Rest) -> None:
    rest.store.check()
    assert 6 == len(rest.opened)


def test_retention_opens_what_it_may_take_from(rest: Rest) -> None:
    rest.clock.advance(1_000)
    assert (1, ["b-1"]) == (rest.store.enforce_retention(), rest.opened)


def test_object_storage_is_seen_to_without_anybody_asking() -> None:
    disk, storage, clock = SimulatedFiles(), MemoryStore(), ManualClock(NOW_MS)
    for seen_to in ([], ["far-0"]):
        with open_store(PATH, small(), clock, disk, storage, background=False) as store:
            for name, remote in (("far", True), ("near", False)):
                store.create_topic(name, remote_storage_enable=remote)
            assert seen_to == [*store.offload()] == [log.context.folder.name for log in store._topics.logs()]
            store.send("far", b"value")
            assert ["far-0"] == [*store.offload()]


def test_runs_that_are_too_many_are_merged_once_they_are_read() -> None:
    disk, config = SimulatedFiles(), small(max_num_buckets=-1)
    with open_store(PATH, config, ManualClock(NOW_MS), disk, background=False) as store:
        for number in range(40):
            store.create_topic("t")
            store.send("t", b"%d" % number, delay=number)
    with open_store(PATH, small(max_num_buckets=2), ManualClock(NOW_MS), disk) as store:
        assert [] == [*store._topics.logs()]
        log = store.topic("t").partition(0).log
        eventually(lambda: not log.crowded)


# --- Threads, signals, children


def opening(rest: Rest) -> tuple[Gate, Background[int]]:
    """Somebody who is just opening a-1, and is held back in the middle."""
    gate = rest.files.hold("open", CHECKPOINTS)
    sending = Background(lambda: rest.store.send("a", b"first", partition=1).offset)
    gate.came()
    return gate, sending


def test_two_threads_open_one_once(rest: Rest) -> None:
    assert 0 == rest.store.send("b", b"is open", partition=0).offset
    gate, first = opening(rest)
    second = Background(lambda: rest.store.send("a", b"second", partition=1).offset)
    assert 1 == rest.store.send("b", b"meanwhile", partition=0).offset
    gate.open()
    assert {1, 2} == {first.answer(), second.answer()}
    assert (1, 1) == (rest.opened.count("a-1"), rest.calls.count("sync_folder", "a-1"))


def test_a_close_waits_for_who_is_opening(rest: Rest) -> None:
    gate, sending = opening(rest)
    closing = Background(rest.store.close)
    eventually(lambda: rest.store._closed)
    assert closing.is_alive()
    gate.open()
    closing.answer()
    expected = [b"a", b"first"]
    try:
        assert 1 == sending.answer()
    except StoreClosed:  # the close was quicker than the append
        expected = [b"a"]
    assert [True] == [log.commit.closed for log in rest.store._topics.logs()]
    assert expected == drained(Rest(rest.disk).store.topic("a").partition(1))


def test_nothing_is_opened_behind_a_close(rest: Rest) -> None:
    topic = rest.store.topic("a")
    rest.store.close()
    with pytest.raises(StoreClosed):
        topic.partition(0)
    assert [] == rest.opened


def test_a_forked_child_opens_nothing(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = rest.store.topic("a")
    with monkeypatch.context() as child, topic._opening:  # a thread of the parent has it, for ever
        child.setattr(PROCESS, "id", -1)
        with pytest.raises(StoreForked):
            Background(lambda: topic.partition(0)).answer()


# --- What fails


@pytest.mark.parametrize(("operation", "suffix"), [("open", CHECKPOINTS), ("sync_folder", "a-1"), ("names", BUCKETS)])
def test_a_failed_opening_is_tried_again(rest: Rest, operation: str, suffix: str) -> None:
    rest.calls.fail(operation, suffix, OSError(errno.EMFILE, "too many"))
    with pytest.raises(OutOfResources):
        rest.store.send("a", b"no", partition=1)
    assert 1 == rest.store.send("a", b"yes", partition=1).offset
    rest.store.check()


def test_corruption_that_no_look_could_see_is_told_to_who_asks_and_to_nobody_else(rest: Rest) -> None:
    """A run is gone, and the log is rotten of which it would be made anew."""
    rotten = PATH / "a-1" / f"{0:020d}.log"
    disk = with_file(rest.disk, rotten, flipped(content(rest.disk, rotten), 30))
    for name in disk.names(PATH / "a-1"):
        if name.endswith(".deliverafterindex"):
            disk.unlink(PATH / "a-1" / name)
    again = Rest(disk)
    asked: tuple[Callable[[], object], ...] = (
        lambda: again.store.send("a", b"no", partition=1),
        lambda: again.store.consumer("a", group="g"),
        lambda: again.store.subscribe("a", "s"),
        lambda: again.store.pending("a"),
        again.store.check,
    )
    for call in asked:
        with pytest.raises(CorruptFile) as raised:
            call()
        assert rotten == raised.value.path
    assert 0 == again.store.send("a", b"of another partition", partition=0).offset
    assert 1 == again.store.send("c", b"of another topic", partition=1).offset
    again.store.close()


def test_corruption_that_a_look_sees_is_told_at_the_open(rest: Rest) -> None:
    path = PATH / "a-1" / f"{0:020d}.log"
    with pytest.raises(CorruptFile, match="sealed at") as raised:
        Rest(with_file(rest.disk, path, content(rest.disk, path)[:-1]))
    assert path == raised.value.path


# --- Topics made together


def test_topics_are_made_together(rest: Rest) -> None:
    before = rest.calls.made.copy()
    made = rest.store.create_topics(("x", "y", "a", "x"), 2)
    assert ["x", "y", "a", "x"] == [topic.name for topic in made]
    assert rest.store.topic("a") is made[2]
    syncs = {key: n - before[key] for key, n in rest.calls.made.items() if "sync" in key[0] and n > before[key]}
    per_partition = {("sync", "checkpoints.tmp"): 4, **{("sync_folder", f"{t}-{n}"): 1 for t in "xy" for n in (0, 1)}}
    assert per_partition | {("sync_folder", "store"): 2, ("sync", "topics.tmp"): 1} == syncs
    assert {"a", "b", "c", "x", "y"} == {topic.name for topic in Rest(killed(rest.disk)).store.topics()}
    assert [] == rest.store.create_topics([])


def test_topics_that_cannot_be_made_together(rest: Rest) -> None:
    before = rest.disk.image()
    for names, error in (("xy", WrongType), (["x", "../y"], InvalidTopic), (["x", "a"], TopicExists)):
        with pytest.raises(error):
            rest.store.create_topics(names)
    with pytest.raises(InvalidTopic):
        rest.store.create_topics(["x", "y"], remote_storage_enable=True)
    assert before == rest.disk.image()


def test_a_power_cut_leaves_all_of_them_or_none() -> None:
    disk = at_rest()
    store = open_small(disk, ManualClock(NOW_MS))
    begin = len(disk.operations)
    store.create_topics(["x", "y"])
    made, states = {*TOPICS, "x", "y"}, 0
    for upto in range(begin, len(disk.operations) + 1):
        for state in crash_states(disk.operations, upto, start=disk.start):
            names = {*read_topics(state.files(), PATH)}
            assert names == made or (names == {*TOPICS} and upto < len(disk.operations)), state
            if names == made:
                with open_small(state.files(), ManualClock(NOW_MS)) as again:
                    assert [0, 0] == [again.send(name, b"value").offset for name in "xy"]
            states += 1
    assert states > 30


@pytest.mark.parametrize("at", [1, 60, 200])
def test_a_failing_call_in_one_of_many_threads(at: int) -> None:
    """What was begun is done when it raises, so that nobody is in the way of who tries again."""
    rest, names, calls = Rest(), [f"t{number}" for number in range(30)], count()

    def failing(operation: str, path: Path) -> OSError | None:
        return os_error(errno.ENOSPC, path) if operation != "sync" and next(calls) == at else None

    rest.calls.failing = failing
    with pytest.raises((StorageFull, OSError)):
        rest.store.create_topics(names)
    made = rest.files.calls
    assert {*TOPICS} == {topic.name for topic in rest.store.topics()}
    assert made == rest.files.calls
    assert names == [topic.name for topic in rest.store.create_topics(names)]
    assert {0} == {rest.store.send(name, b"value").offset for name in names}
    assert {*names} < {*read_topics(killed(rest.disk), PATH)}
    rest.store.close()


def test_every_failing_call_leaves_them_to_be_made_again() -> None:
    for at in range(1, 200):
        rest = Rest()
        last = rest.files.calls + at

        def failing(operation: str, path: Path, last: int = last, files: FailingFiles = rest.files) -> OSError | None:
            return os_error(errno.ENOSPC, path) if files.calls == last else None

        rest.calls.failing = failing
        try:
            rest.store.create_topics(["x", "y"])
        except (StorageFull, OSError):
            assert {*TOPICS} == {topic.name for topic in rest.store.topics()}
            rest.store.create_topics(["x", "y"])
            assert [0, 0] == [rest.store.send(name, b"value").offset for name in "xy"]
            rest.store.close()
        else:
            assert at > 10
            return
    raise AssertionError("it never ran through")


def test_many_topics_hold_no_descriptor_each(tmp_path: Path) -> None:
    def descriptors() -> int:
        return len([*Path("/dev/fd").iterdir()])

    before = descriptors()
    with Store(tmp_path, Config(), ManualClock(NOW_MS), OsFiles()) as store:
        store.create_topics([f"t{number}" for number in range(20)])
        assert before + 1 == descriptors()
    with Store(tmp_path, Config(), ManualClock(NOW_MS), OsFiles()) as store:
        assert before + 1 == descriptors()
        store.check()
        assert before + 1 == descriptors()
