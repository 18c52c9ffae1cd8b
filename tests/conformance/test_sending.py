"""Records in: one, many, buffered; what is refused, and what becomes of a unique key."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from afterlog.base.errors import (
    InvalidArgument,
    InvalidDeliverAfter,
    InvalidRecord,
    InvalidTopic,
    ProducerFenced,
    RecordTooLarge,
    UniqueKeyConflict,
    UnknownPartition,
    UnknownTopic,
)
from afterlog.fetch.record_id import RecordId
from afterlog.records.producer_sequence import ProducerSequence
from tests.conformance.ways import Setting
from tests.support import NOW_MS


@pytest.fixture(autouse=True)
def mail(setting: Setting) -> None:
    setting.store.create_topic("mail")


def read(setting: Setting, topic: str = "mail", group: str = "reader") -> list[Any]:
    """All that is due, and was not read by the group."""
    with setting.store.consumer(topic, group=group) as consumer:
        messages = consumer.poll()
        consumer.commit()
        return list(messages)


class TestOne:
    def test_it_is_delivered_as_it_was_sent(self, setting: Setting) -> None:
        headers = (("a", b"1"), ("a", None), ("b", b"\xff"))
        sent = setting.store.send("mail", b"\x00\xff", key=b"k", headers=headers)
        [message] = read(setting)
        assert RecordId("mail", 0, 0) == sent == message.id
        assert (b"\x00\xff", b"k", headers) == (message.value, message.key, tuple(message.headers))
        assert (NOW_MS, NOW_MS, NOW_MS) == (message.timestamp, message.deliver_after, message.due)

    @pytest.mark.parametrize("value", [b"", None, b"text", bytearray(b"array"), memoryview(b"view")])
    def test_values(self, setting: Setting, value: Any) -> None:
        setting.store.send("mail", value, key=value)
        [message] = read(setting)
        assert (None if value is None else bytes(value)) == message.value == message.key

    @pytest.mark.parametrize(
        "given",
        [
            {"delay": 1.5},
            {"delay": timedelta(milliseconds=1_500)},
            {"delay": np.float32(1.5)},
            {"deliver_after": NOW_MS + 1_500},
            {"deliver_after": float(NOW_MS + 1_499.5)},
            {"deliver_after": np.int64(NOW_MS + 1_500)},
            {"deliver_after": np.datetime64(NOW_MS + 1_500, "ms")},
            {"deliver_after": datetime.fromtimestamp((NOW_MS + 1_500) / 1_000, UTC)},
            {"deliver_after": datetime.fromtimestamp((NOW_MS + 1_500) / 1_000, UTC).isoformat()},
        ],
    )
    def test_times(self, setting: Setting, given: dict[str, Any]) -> None:
        setting.store.send("mail", b"x", **given)
        setting.clock.advance(1_499)
        assert [] == read(setting)
        setting.clock.advance(1)
        [message] = read(setting)
        assert (NOW_MS + 1_500, NOW_MS + 1_500) == (message.deliver_after, message.due)

    @pytest.mark.parametrize(
        "given",
        [
            {"delay": 1, "deliver_after": NOW_MS},
            {"delay": -1},
            {"delay": float("nan")},
            {"delay": "1"},
            {"delay": True},
            {"deliver_after": -1},
            {"deliver_after": datetime(2030, 1, 1)},
            {"deliver_after": "tomorrow"},
            {"deliver_after": NOW_MS // 1_000},
            {"deliver_after": object()},
        ],
    )
    def test_what_is_no_time(self, setting: Setting, given: dict[str, Any]) -> None:
        with pytest.raises(InvalidDeliverAfter):
            setting.store.send("mail", b"x", **given)
        assert [] == read(setting)

    def test_an_instant_that_is_surely_wrong_is_taken_if_it_is_meant(self, setting: Setting) -> None:
        setting.store.send("mail", b"x", deliver_after=1, check_instants=False)
        assert 1 == len(read(setting))

    def test_what_a_record_tells_of_itself_is_judged_as_well(self, setting: Setting) -> None:
        microseconds = np.array([NOW_MS, NOW_MS * 1_000])
        with pytest.raises(InvalidRecord, match=r"row 1: timestamp .* looks like microseconds"):
            setting.store.send_many("mail", [b"x", b"y"], timestamps=microseconds)
        assert [] == read(setting)
        setting.store.send_many("mail", [b"x", b"y"], timestamps=microseconds, check_instants=False)
        assert microseconds.tolist() == [each.timestamp for each in read(setting)]

    def test_what_is_no_record(self, setting: Setting) -> None:
        for given in ({"value": "text"}, {"value": 1}, {"value": b"", "key": "text"}, {"value": b"", "headers": [1]},
                      {"value": b"", "headers": [("a", "b")]}, {"value": b"", "headers": [(b"a", b"b")]}):  # fmt: skip
            with pytest.raises(InvalidRecord):
                setting.store.send("mail", **given)
        with pytest.raises(RecordTooLarge):
            setting.store.send("mail", b"x" * 3_000)
        assert [] == read(setting)

    def test_where_it_goes(self, setting: Setting) -> None:
        setting.store.create_topic("four", partitions=4)
        assert {0, 1, 2, 3} == {setting.store.send("four", b"x").partition for _ in range(4)}
        assert 1 == len({setting.store.send("four", b"x", key=b"k").partition for _ in range(3)})
        assert 2 == setting.store.send("four", b"x", key=b"k", partition=2).partition
        for partition in (4, -1, "0"):
            with pytest.raises(UnknownPartition):
                setting.store.send("four", b"x", partition=partition)
        with pytest.raises(UnknownTopic):
            setting.store.send("five", b"x")

    def test_a_topic_says_what_it_takes(self, setting: Setting) -> None:
        setting.store.create_topic("soon", max_delay_ms=1_000)
        setting.store.create_topic("fifo", delayed=False)
        setting.store.send("soon", b"x", delay=1)
        with pytest.raises(InvalidDeliverAfter):
            setting.store.send("soon", b"x", delay=1.001)
        setting.store.send("fifo", b"x")
        with pytest.raises(InvalidTopic):
            setting.store.send("fifo", b"x", delay=1)


class TestUniqueKeys:
    def test_who_is_pending_holds_the_key(self, setting: Setting) -> None:
        held = setting.store.send("mail", b"first", unique_key=b"u", delay=60)
        with pytest.raises(UniqueKeyConflict) as raised:
            setting.store.send("mail", b"second", unique_key=b"u", delay=60)
        assert held == raised.value.record
        assert held == setting.store.send("mail", b"third", unique_key=b"u", delay=60, on_conflict="keep")
        moved = setting.store.send("mail", b"fourth", unique_key=b"u", delay=60, on_conflict="replace")
        assert [(moved, b"fourth")] == [(record.id, record.value) for record in setting.store.pending("mail")]
        setting.clock.advance(60_000)
        assert moved != setting.store.send("mail", b"fifth", unique_key=b"u", delay=60)

    def test_what_is_none(self, setting: Setting) -> None:
        for key in (b"", b"x" * 1_025, "text"):
            with pytest.raises(InvalidRecord):
                setting.store.send("mail", b"x", unique_key=key)
        with pytest.raises(InvalidArgument):
            setting.store.send("mail", b"x", on_conflict="keep")
        with pytest.raises(InvalidArgument):
            setting.store.send("mail", b"x", unique_key=b"u", on_conflict="maybe")

    def test_of_many(self, setting: Setting) -> None:
        first = setting.store.send_many("mail", [b"a", b"b"], unique_keys=[b"u", None], delay=60)
        assert [0, 1] == first.tolist()
        with pytest.raises(UniqueKeyConflict):
            setting.store.send_many("mail", [b"c", b"d"], unique_keys=[b"v", b"u"], delay=60)
        kept = setting.store.send_many("mail", [b"c", b"d"], unique_keys=[b"v", b"u"], delay=60, on_conflict="keep")
        assert 0 == kept[1]
        assert {b"a", b"b", b"c"} == {record.value for record in setting.store.pending("mail")}


class TestMany:
    def test_offsets_are_in_the_order_given(self, setting: Setting) -> None:
        offsets = setting.store.send_many("mail", [b"late", b"soon", None], delay=[2, 1, 0], headers=[("a", b"b")])
        assert [0, 1, 2] == offsets.tolist()
        assert np.int64 == offsets.dtype
        setting.clock.advance(2_000)
        messages = read(setting)
        assert [(2, None), (1, b"soon"), (0, b"late")] == [(each.offset, each.value) for each in messages]
        assert [(("a", b"b"),)] * 3 == [tuple(each.headers) for each in messages]

    @pytest.mark.parametrize("count", [1, 300, 2_000])
    def test_each_goes_to_the_partition_of_its_key(self, setting: Setting, count: int) -> None:
        topic = setting.store.create_topic("four", partitions=4)
        keys = [b"%d" % (number % 100) for number in range(count)]
        offsets = setting.store.send_many("four", [b"%d" % number for number in range(count)], keys=keys)
        with setting.store.consumer("four", group="g") as consumer:
            columns = consumer.poll_columns()
        found = {(message.partition, message.offset): message for message in columns.to_messages()}
        assert count == len(found)
        for number, (key, offset) in enumerate(zip(keys, offsets.tolist(), strict=True)):
            message = found[topic.partition_of(key), offset]
            assert (key, b"%d" % number) == (message.key, message.value)

    @pytest.mark.parametrize("count", [3, 1_000])
    def test_columns(self, setting: Setting, count: int) -> None:
        offsets = np.arange(count + 1, dtype=np.int64) * 2
        data = np.frombuffer(b"ab" * count, np.uint8)
        times = NOW_MS + np.arange(count)[::-1]
        timestamps = NOW_MS - np.arange(count, dtype=np.int64)
        setting.store.send_many("mail", (offsets, data), deliver_after=times, timestamps=timestamps)
        setting.clock.advance(count)
        messages = read(setting)[:count]
        with setting.store.consumer("mail", group="reader") as consumer:
            messages += consumer.poll(count)
        assert [b"ab"] * count == [each.value for each in messages]
        assert timestamps[::-1].tolist() == [each.timestamp for each in messages]
        assert times[::-1].tolist() == [each.due for each in messages]

    def test_nothing(self, setting: Setting) -> None:
        assert [] == setting.store.send_many("mail", []).tolist()

    def test_what_cannot_be_taken(self, setting: Setting) -> None:
        for given in (
            {"values": b"one"},
            {"values": ["text"]},
            {"values": [b"a"], "keys": [b"a", b"b"]},
            {"values": [b"a"], "delay": [1, 2]},
            {"values": [b"a"], "delay": -1},
            {"values": [b"a", b"b"], "timestamps": np.array([1])},
            {"values": [b"a", b"x" * 3_000]},
        ):
            with pytest.raises(InvalidRecord):
                setting.store.send_many("mail", **given)
        with pytest.raises(UnknownPartition):
            setting.store.send_many("mail", [b"a"], partition=1)
        assert [] == read(setting)


class TestProducer:
    def test_futures_are_of_ids(self, setting: Setting) -> None:
        with setting.store.producer("mail") as producer:
            futures = [producer.send(b"%d" % number, key=b"k", headers=[("a", None)]) for number in range(3)]
            futures.append(producer.send(b"later", delay=60))
            producer.flush()
            assert [RecordId("mail", 0, number) for number in range(4)] == [each.result(60) for each in futures]
        assert [(b"0", b"k"), (b"1", b"k"), (b"2", b"k")] == [(each.value, each.key) for each in read(setting)]
        assert [b"later"] == [each.value for each in setting.store.pending("mail")]

    def test_what_cannot_be_taken_raises_at_once(self, setting: Setting) -> None:
        with setting.store.producer("mail") as producer:
            with pytest.raises(InvalidRecord):
                producer.send("text")
            with pytest.raises(InvalidDeliverAfter):
                producer.send(b"x", delay=-1)
            with pytest.raises(UnknownPartition):
                producer.send(b"x", partition=1)
        with pytest.raises(UnknownTopic):
            setting.store.producer("nothing")

    def test_an_idempotent_one_goes_on_where_it_was(self, setting: Setting) -> None:
        for value, offset in ((b"a", 0), (b"b", 1)):
            with setting.store.producer("mail", idempotent=True, producer_id=7) as producer:
                future = producer.send(value)
                producer.flush()
                assert RecordId("mail", 0, offset) == future.result(60)
        for sequence in range(3):
            sent = ProducerSequence(7, 0, sequence)
            assert sequence == setting.store.send("mail", b"again", partition=0, sequence=sent).offset
        assert [b"a", b"b", b"again"] == [each.value for each in read(setting)]

    def test_a_higher_epoch_fences(self, setting: Setting) -> None:
        with (
            setting.store.producer("mail", idempotent=True, producer_id=7) as before,
            setting.store.producer("mail", idempotent=True, producer_id=7, epoch=1) as after,
        ):
            for producer in (before, after):
                producer.send(b"x")
                producer.flush()
            late = before.send(b"late")
            before.flush()
            with pytest.raises(ProducerFenced):
                late.result(60)
        assert 2 == len(read(setting))

    def test_of_two_that_know_nothing_of_each_other_neither_is_taken_for_the_other(self, setting: Setting) -> None:
        producers = [setting.store.producer("mail", idempotent=True) for _ in range(2)]
        with producers[0] as one, producers[1] as two:
            futures = [producer.send(b"x") for producer in (one, two)]
            one.flush()
            two.flush()
            assert [0, 1] == sorted(future.result(60).offset for future in futures)

    def test_an_id_is_an_idempotent_ones(self, setting: Setting) -> None:
        for options in ({"producer_id": 7}, {"epoch": 1}, {"idempotent": True, "epoch": -1}):
            with pytest.raises(InvalidArgument):
                setting.store.producer("mail", **options)
