"""A record that rotted: what is intact comes first, and then the error that names it; nothing is skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import afterlog
from afterlog.base.errors import CorruptFile
from afterlog.records.header import HEADER_BYTES, TRANSACTIONAL, BatchHeader, with_crc
from afterlog.store.store import Store

ROTTEN = 6


@pytest.fixture(params=["one by one", "together"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    """Ten records, of which one rots: each a batch by itself, or the rotten one and those behind it in one."""
    path, values = tmp_path / "data", [b"record %d" % number for number in range(10)]
    with afterlog.open(path, config=afterlog.Config(durability=afterlog.OS)) as store:
        store.create_topic("mail", partitions=2)
        for value in values if request.param == "one by one" else values[:ROTTEN]:
            store.send("mail", value, partition=0)
        if request.param == "together":
            store.send_many("mail", values[ROTTEN:], partition=0)
        store.send("mail", b"of the other partition", partition=1)
    log = path / "mail-0" / f"{0:020}.log"
    data = bytearray(log.read_bytes())
    data[data.index(values[ROTTEN]) + 3] ^= 1
    log.write_bytes(data)
    with afterlog.open(path) as store:
        yield store


@pytest.mark.parametrize("at_once", [1, 4, 100])
def test_a_consumer_gets_what_is_intact(store: Store, at_once: int) -> None:
    with store.consumer("mail", group="g", partitions=[0]) as consumer:
        found: list[bytes | None] = []
        while len(found) < ROTTEN:
            found += [message.value for message in consumer.poll(at_once)]
        assert [b"record %d" % number for number in range(ROTTEN)] == found
        for _ in range(2):
            with pytest.raises(CorruptFile, match="mail-0"):
                consumer.poll(at_once)
        consumer.seek(10, 0)
        store.send("mail", b"behind", partition=0)
        assert [b"behind"] == [message.value for message in consumer.poll(at_once)]


@pytest.mark.parametrize("at_once", [1, 4, 100])
def test_a_subscription_gets_what_is_intact(store: Store, at_once: int) -> None:
    with store.subscribe("mail", "s", partitions=[0]) as subscription:
        messages = []
        while len(messages) < ROTTEN:
            messages += [*subscription.receive(at_once)]
        assert [b"record %d" % number for number in range(ROTTEN)] == [message.value for message in messages]
        with pytest.raises(CorruptFile, match="mail-0"):
            subscription.receive(at_once)
        subscription.release(messages[:2])
        again = [*subscription.receive(1), *subscription.receive(1)]
        assert [b"record 0", b"record 1"] == [message.value for message in again], "what came back is not held up"
        subscription.ack_many(again)
        with pytest.raises(CorruptFile, match="mail-0"):
            subscription.receive(at_once)


def test_other_partitions_go_on(store: Store) -> None:
    with store.consumer("mail", group="g") as consumer:
        found = set[bytes | None]()
        for _ in range(20):
            try:
                found |= {message.value for message in consumer.poll(3)}
            except CorruptFile:
                continue
        assert {b"of the other partition", *(b"record %d" % number for number in range(ROTTEN))} == found
    with store.subscribe("mail", "s") as subscription:
        got = set[bytes | None]()
        for _ in range(20):
            try:
                got |= {message.value for message in subscription.receive(3)}
            except CorruptFile:
                continue
        assert found == got


@pytest.mark.parametrize("at_once", [1, 4, 100])
def test_a_fetch_gets_what_is_intact(store: Store, at_once: int) -> None:
    partition, position, found = store.topic("mail").partition(0), 0, 0
    while position < ROTTEN:
        result = partition.fetch(position, max_records=at_once)
        found += len(result.batches)
        position = result.next_position
    assert (ROTTEN, ROTTEN) == (found, position)
    with pytest.raises(CorruptFile, match="mail-0"):
        partition.fetch(position, max_records=at_once)


def not_decodable(attributes: int) -> bytes:
    """A batch with offset 2 and a checksum that is right."""
    header = BatchHeader(2, 57, 0, 2, 0, attributes, 0, 1_700_000_000_000, 1_700_000_000_000, -1, -1, -1, 1)
    return with_crc(header, b"\xff" * (header.size - HEADER_BYTES))


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_a_batch_that_cannot_be_decoded_is_named(tmp_path: Path, codec: int) -> None:
    with afterlog.open(tmp_path / "data") as store:
        store.create_topic("t", delayed=False)
        store.send_many("t", [b"a", b"b"])
        path = store.topic("t").log(0).version.active.path
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + not_decodable(codec))
    with afterlog.open(tmp_path / "data") as store:
        assert 3 == store.topic("t").partition(0).log_end_offset
        consumer, subscription = store.consumer("t", group="g"), store.subscribe("t", "s")
        for read in (consumer.poll, subscription.receive):
            found: list[bytes | None] = []
            while len(found) < 2:
                found += [message.value for message in read(10)]
            assert [b"a", b"b"] == found
            with pytest.raises(CorruptFile, match=r"cannot be decoded: .*, in the entry of offset 2") as raised:
                read(10)
            assert (path, size) == (raised.value.path, raised.value.position)


def test_a_transactional_batch_is_nobodys(tmp_path: Path) -> None:
    """No marker of ours would ever say what became of it."""
    with afterlog.open(tmp_path / "data") as store:
        store.create_topic("t", delayed=False)
        store.send_many("t", [b"a", b"b"])
        path = store.topic("t").log(0).version.active.path
    path.write_bytes(path.read_bytes() + not_decodable(TRANSACTIONAL))
    with pytest.raises(CorruptFile, match="the batch at offset 2 is transactional"):
        afterlog.open(tmp_path / "data").close()
