"""Idempotent producers: whatever strikes an append, each record is there once, and its future says so."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import afterlog.aio
from afterlog.base.clock import ManualClock
from afterlog.base.errors import (
    Interrupted,
    InvalidArgument,
    InvalidDeliverAfter,
    OutOfOrderSequence,
    OutOfResources,
    PartitionPoisoned,
    ProducerFenced,
    StorageFull,
    WrongType,
)
from afterlog.base.names import LOG
from afterlog.fetch.record_id import RecordId
from afterlog.log.append import Appender
from afterlog.log.commit import Commit
from afterlog.log.partition_log import PartitionLog
from afterlog.produce.producer import Producer
from afterlog.produce.topic import Topic
from afterlog.records.producer_sequence import EPOCH_MAX, ProducerSequence
from afterlog.store.store import Store
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, Calls, HeldFiles, drained, killed, open_small

NEVER_MS = 3_600_000
DAY_MS = 86_400_000

pytestmark = pytest.mark.usefixtures("quiet")


class Setting:
    def __init__(self, disk: SimulatedFiles | None = None) -> None:
        self.calls = Calls()
        self.disk = disk or SimulatedFiles()
        self.clock = ManualClock(NOW_MS)
        self.store: Store = open_small(HeldFiles(self.disk, self.calls), self.clock)
        self.topic = self.store.create_topic("t", partitions=2)

    def producer(self, producer_id: int | None = 7, epoch: int = 0) -> Producer[RecordId]:
        return self.store.producer("t", linger_ms=NEVER_MS, idempotent=True, producer_id=producer_id, epoch=epoch)

    def send(self, producer: Producer[RecordId], *values: bytes) -> list[Future[RecordId]]:
        return [producer.send(value, partition=0) for value in values]

    def values(self) -> list[bytes | None]:
        return drained(self.topic.partition(0))


def offsets(futures: list[Future[RecordId]]) -> list[int]:
    return [future.result(0).offset for future in futures]


@pytest.fixture
def setting() -> Iterator[Setting]:
    setting = Setting()
    yield setting
    setting.store.check()
    setting.store.close()


def test_its_batches_are_numbered(setting: Setting) -> None:
    with setting.producer() as producer:
        first = setting.send(producer, b"a", b"b")
        producer.flush()
        other = producer.send(b"c", partition=1)
        second = setting.send(producer, b"d")
    assert [0, 1, 2] == offsets([*first, *second])
    assert 0 == other.result(0).offset
    assert [3, 1] == [setting.topic.next_sequence(number, 7, 0) for number in (0, 1)]


def test_each_has_an_id_of_its_own(setting: Setting) -> None:
    known = set[int]()
    for _ in range(5):
        with setting.producer(None) as producer:
            setting.send(producer, b"v")
        known |= {*setting.topic.log(0).version.producers.ids()}  # type: ignore[union-attr]
    assert 5 == len(known)


def test_goes_on_as_a_known_producer(setting: Setting) -> None:
    with setting.producer() as producer:
        setting.send(producer, b"a", b"b")
    again = Setting(killed(setting.disk))
    with again.producer() as producer:
        futures = again.send(producer, b"c")
    assert [2] == offsets(futures)
    assert 3 == again.topic.next_sequence(0, 7, 0)
    again.store.close()


def test_a_higher_epoch_fences_the_one_before(setting: Setting) -> None:
    zombie = setting.producer()
    setting.send(zombie, b"a")
    zombie.flush()
    with setting.producer(epoch=1) as producer:
        futures = setting.send(producer, b"b")
    assert [1] == offsets(futures)
    for _ in range(2):
        [future] = setting.send(zombie, b"c")
        zombie.flush()
        with pytest.raises(ProducerFenced):
            future.result(0)
    zombie.close()
    assert [b"a", b"b"] == setting.values()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), OutOfResources("none left", path="x")])
@pytest.mark.parametrize("where", [(Commit, "committed"), (Appender, "append"), (PartitionLog, "append_numbered")])
def test_what_struck_is_resolved(setting: Setting, where: tuple[type, str], error: BaseException) -> None:
    """After the write its records are there, and before it they are not; the next append goes on behind them."""
    owner, name = where
    producer = setting.producer()
    setting.send(producer, b"before")
    producer.flush()
    futures = setting.send(producer, b"a", b"b")
    original, failed = getattr(owner, name), list[object]()

    def once(*arguments: Any) -> Any:
        if not failed:
            failed.append(error)
            raise error
        return original(*arguments)

    with patch.object(owner, name, once):
        try:
            producer.flush()
        except KeyboardInterrupt:
            assert isinstance(error, KeyboardInterrupt)
        behind = setting.send(producer, b"c")
        producer.flush()
    assert failed
    if name == "committed":
        assert [1, 2] == offsets(futures)
        assert [3] == offsets(behind)
        assert [b"before", b"a", b"b", b"c"] == setting.values()
    else:
        for future in futures:
            with pytest.raises(Interrupted if isinstance(error, KeyboardInterrupt) else type(error)):
                future.result(0)
        assert [1] == offsets(behind)
        assert [b"before", b"c"] == setting.values()
    producer.close()


def test_a_part_that_is_there(setting: Setting) -> None:
    """The disk was full after the first segment: those in it have their offsets, and the others can be sent again."""
    values = [b"%d" % row + bytes(500) for row in range(12)]
    producer = setting.producer()
    futures = setting.send(producer, *values)
    setting.calls.fail("create", LOG, StorageFull("no room", path="x"))
    producer.flush()
    left = setting.topic.log(0).written
    assert 0 < left < 12
    assert [*range(left)] == offsets(futures[:left])
    for future in futures[left:]:
        with pytest.raises(StorageFull):
            future.result(0)
    again = setting.send(producer, *values[left:])
    producer.close()
    assert [*range(left, 12)] == offsets(again)
    assert values == setting.values()


def test_nobody_can_tell(setting: Setting) -> None:
    """The partition is poisoned: the futures fail. The producer asks the log before it goes on."""
    producer = setting.producer()
    [first] = setting.send(producer, b"a")
    setting.calls.fail("append", LOG, OSError(5, "broken"))
    producer.flush()
    [second] = setting.send(producer, b"b")
    producer.close()
    for future in (first, second):
        with pytest.raises(PartitionPoisoned):
            future.result(0)
    again = Setting(killed(setting.disk))
    with again.producer() as producer:
        futures = again.send(producer, b"a", b"b")
    assert [0, 1] == offsets(futures)
    again.store.close()
    setting.store.close()
    setting.store = open_small(SimulatedFiles(), setting.clock)


def test_the_log_is_asked_where_the_look_fails_too(setting: Setting) -> None:
    """No number is used for two records: what is next is never assumed."""
    producer = setting.producer()
    struck = setting.send(producer, b"a", b"b")
    with (
        patch.object(Commit, "committed", side_effect=KeyboardInterrupt),
        patch.object(Topic, "held_of", side_effect=MemoryError),
        pytest.raises(MemoryError),
    ):
        producer.flush()
    for future in struck:
        with pytest.raises(Interrupted):
            future.result(0)
    futures = setting.send(producer, b"c")
    producer.close()
    assert [2] == offsets(futures)
    assert [b"a", b"b", b"c"] == setting.values()


def test_one_that_was_idle_for_long(setting: Setting) -> None:
    """The log has forgotten it: it goes on under another epoch, and nothing is refused or twice."""
    producer = setting.producer()
    setting.send(producer, b"a")
    producer.flush()
    setting.topic.log(0).checkpoint()
    setting.clock.advance(DAY_MS + 5_000)
    setting.store.send("t", b"plain", partition=0)
    setting.topic.log(0).checkpoint()
    assert 0 == len(setting.topic.log(0).version.producers or ())
    for value in (b"b", b"c"):
        futures = setting.send(producer, value)
        producer.flush()
        offsets(futures)
    producer.close()
    assert [b"a", b"plain", b"b", b"c"] == setting.values()
    assert 2 == setting.topic.next_sequence(0, 7, 1)


def test_idle_under_the_last_epoch(setting: Setting) -> None:
    producer = setting.producer(epoch=EPOCH_MAX)
    with patch.object(PartitionLog, "append_numbered", side_effect=OutOfOrderSequence("not known here", expected=None)):
        [future] = setting.send(producer, b"a")
        producer.flush()
    with pytest.raises(OutOfOrderSequence):
        future.result(0)
    producer.close()


def test_a_record_that_cannot_be_taken_uses_no_number(setting: Setting) -> None:
    topic = setting.store.create_topic("near", max_delay_ms=5_000)
    with setting.store.producer("near", linger_ms=NEVER_MS, idempotent=True, producer_id=7) as producer:
        refused = producer.send(b"a", delay=4)
        setting.clock.advance(-3_000)
        producer.flush()
        taken = producer.send(b"b")
    with pytest.raises(InvalidDeliverAfter):
        refused.result(0)
    assert 0 == taken.result(0).offset
    assert 1 == topic.next_sequence(0, 7, 0)


def test_arguments(setting: Setting) -> None:
    for arguments in ({"producer_id": 7}, {"epoch": 1}, {"idempotent": True, "epoch": -1}):
        with pytest.raises(InvalidArgument):
            setting.store.producer("t", **arguments)  # type: ignore[arg-type]
    with pytest.raises(WrongType):
        setting.store.producer("t", idempotent=True, producer_id="7")  # type: ignore[arg-type]


def test_from_the_event_loop(tmp_path: Path) -> None:
    async def main() -> list[int]:
        async with afterlog.aio.open(tmp_path) as store:
            await store.create_topic("t")
            async with store.producer("t", idempotent=True, producer_id=7) as producer:
                futures = [await producer.send(b"%d" % number) for number in range(3)]
            found = [(await future).offset for future in futures]
            for sequence in (3, 1):
                sent = ProducerSequence(7, 0, sequence)
                found.append((await store.send("t", b"v", partition=0, sequence=sent)).offset)
            sent = ProducerSequence(7, 0, 2)
            return found + (await store.send_many("t", [b"v"] * 3, partition=0, sequence=sent)).tolist()

    assert [0, 1, 2, 3, 1, 2, 3, 4] == asyncio.run(main())
