"""Sends over HTTP: JSON and Arrow, one and many, all or none."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from afterlog.api.arrow_stream import placed_of
from afterlog.fetch.arrow_arrays import HEADERS as HEADERS_TYPE
from afterlog.fetch.record_id import RecordId
from tests.api.test_arrow_stream import batch, stream
from tests.server.support import ARROW, Setting, run
from tests.support import NOW_MS

RECORDS = "/v1/topics/mail/records"


def values(setting: Setting, topic: str = "mail") -> dict[int, list[bytes | None]]:
    """All that is in the log, by partition, in the order in which it was appended."""
    found = {}
    for partition in setting.store.topic(topic).partitions:
        setting.clock.advance(10**9)
        columns, _ = partition.columns(0, 10_000, 1 << 20)
        rows = sorted(columns.to_messages(), key=lambda message: message.offset)
        found[partition.number] = [message.value for message in rows]
    return found


class TestHeaders:
    @pytest.mark.parametrize("name", ["afterlog-dead-letter-topic", "afterlog-schedule-id", "afterlog-anything"])
    def test_what_the_store_says_is_not_taken_from_a_client(self, name: str) -> None:
        """By such headers a redrive knows where to, and a schedule what is in the log."""

        async def test(setting: Setting) -> None:
            record = {"value": "a", "headers": {"own": "x", name: "mail"}}
            for body in ({"records": [record]}, {"records": [{"value": "b"}, record]}):
                await setting.client.refused("InvalidRecord", "POST", RECORDS, body)
            headers = pa.array([[{"key": name, "value": b"mail"}]], HEADERS_TYPE)
            await setting.client.refused("InvalidRecord", "POST", RECORDS, stream(batch(value=[b"a"], headers=headers)))
            every = {"topic": "mail", "name": "weekly", "every_s": 60, "headers": {name: "x"}}
            await setting.client.refused("InvalidRequest", "POST", "/v1/schedules", every)
            assert [] == values(setting)[0]
            with setting.store.subscribe("mail", "s") as subscription:  # who has the store is trusted
                setting.store.send("mail", b"a", headers=[(name, b"x")])
                assert [b"a"] == [message.value for message in subscription.receive()]

        run(test)


class TestJson:
    def test_one_record_with_all_that_it_may_have(self) -> None:
        async def test(setting: Setting) -> None:
            record = {"value": {"base64": "/wA="}, "key": "k", "headers": {"a": "b"}, "delay": 1.5}
            assert {"ids": ["mail-0@0"]} == await setting.client.post(RECORDS, {"records": [record]})
            [pending] = setting.store.pending("mail")
            assert (b"\xff\0", b"k", (("a", b"b"),)) == (pending.value, pending.key, pending.headers)
            assert (NOW_MS + 1_500, NOW_MS) == (pending.due, pending.timestamp)

        run(test)

    def test_many_records_each_with_its_own_time(self) -> None:
        async def test(setting: Setting) -> None:
            later = {"value": "b", "deliver_after": "2030-01-31T08:00:00Z"}
            body = {"records": [{"value": "a"}, later, {"value": None, "delay": 1}]}
            assert ["mail-0@0", "mail-0@1", "mail-0@2"] == (await setting.client.post(RECORDS, body))["ids"]
            assert [NOW_MS + 1_000, 1_896_076_800_000] == [each.due for each in setting.store.pending("mail")]

        run(test)

    def test_none(self) -> None:
        async def test(setting: Setting) -> None:
            assert {"ids": []} == await setting.client.post(RECORDS, {"records": []})

        run(test)

    def test_partitions_by_key_as_named_and_in_turn(self) -> None:
        async def test(setting: Setting) -> None:
            setting.store.alter_topic("mail", partitions=3)
            topic = setting.store.topic("mail")
            rows: list[dict[str, Any]] = [{"value": f"{number}", "key": f"k{number}"} for number in range(20)]
            ids = (await setting.client.post(RECORDS, {"records": rows}))["ids"]
            assert [topic.partition_of(f"k{number}".encode()) for number in range(20)] == [
                int(each.split("-")[1].split("@")[0]) for each in ids
            ]
            assert ["mail-2@"] * 2 == [each[:7] for each in await setting.send("x", "y", partition=2)]
            once = await setting.send("x", "y")
            assert 1 == len({each[:7] for each in once})
            assert {"mail-0@", "mail-1@", "mail-2@"} == {(await setting.send("z"))[0][:7] for _ in range(3)}

        run(test)

    def test_all_or_none_also_over_partitions(self) -> None:
        async def test(setting: Setting) -> None:
            setting.store.alter_topic("mail", partitions=3)
            rows = [{"value": "a", "partition": 0}, {"value": "x" * 3_000, "partition": 2}]
            await setting.client.refused("RecordTooLarge", "POST", RECORDS, {"records": rows})
            assert {0: [], 1: [], 2: []} == values(setting)

        run(test)

    def test_unique_keys(self) -> None:
        async def test(setting: Setting) -> None:
            row = {"value": "a", "delay": 60, "unique_key": "u"}
            assert ["mail-0@0"] == (await setting.client.post(RECORDS, {"records": [row]}))["ids"]
            problem = await setting.client.refused("UniqueKeyConflict", "POST", RECORDS, {"records": [row]})
            assert (409, "mail-0@0") == (problem["status"], problem["record"])
            kept = await setting.client.post(RECORDS, {"records": [row, {"value": "b"}], "on_conflict": "keep"})
            assert ["mail-0@0", "mail-0@1"] == kept["ids"]
            replaced = await setting.client.post(RECORDS, {"records": [row], "on_conflict": "replace"})
            assert ["mail-0@3"] == replaced["ids"]

        run(test)

    def test_priorities(self) -> None:
        """Each by its own; a turn for those of each that have no key."""

        async def test(setting: Setting) -> None:
            setting.store.alter_topic("mail", partitions=4, priorities=2)
            topic = setting.store.topic("mail")
            rows = [{"value": "a", "priority": 1}, {"value": "b"}, {"value": "c", "priority": 1}, {"value": "d"}]
            ids = [RecordId.parse(each) for each in (await setting.client.post(RECORDS, {"records": rows}))["ids"]]
            assert [1, 0, 1, 0] == [topic.priority_of(record.partition) for record in ids]
            assert [0, 0, 1, 1] == [record.offset for record in ids], "one append of each"
            keyed = {"records": [{"value": "e", "priority": 1, "key": "k"}, {"value": "f", "key": "k"}]}
            ids = [RecordId.parse(each) for each in (await setting.client.post(RECORDS, keyed))["ids"]]
            assert [topic.partition_of(b"k", 1), topic.partition_of(b"k")] == [record.partition for record in ids]
            unique = {"records": [{"value": "g", "priority": 1, "unique_key": "u", "delay": 60}]}
            [record] = (await setting.client.post(RECORDS, unique))["ids"]
            assert topic.partition_of(b"u", 1) == RecordId.parse(record).partition
            for title, wrong in (
                ("InvalidRecord", [{"value": "a", "priority": 2}]),
                ("InvalidRecord", [{"value": "a", "priority": "1"}]),
                ("InvalidArgument", [{"value": "a", "priority": 1, "partition": 1}]),
                ("InvalidRequest", [{"value": "a", "unique_key": "v", "priority": each} for each in (0, 1)]),
            ):
                await setting.client.refused(title, "POST", RECORDS, {"records": wrong})

        run(test)

    @pytest.mark.parametrize(
        ("title", "body"),
        [
            ("InvalidRecord", {"records": [{"key": "a"}]}),
            ("InvalidRecord", {"records": [5]}),
            ("InvalidRecord", {"records": [{"value": "a", "colour": 1}]}),
            ("InvalidRecord", {"records": [{"value": "a", "headers": {"deliver-after": "1"}}]}),
            ("InvalidDeliverAfter", {"records": [{"value": "a", "delay": -1}]}),
            ("InvalidDeliverAfter", {"records": [{"value": "a", "delay": 1, "deliver_after": 1}]}),
            ("InvalidDeliverAfter", {"records": [{"value": "a", "deliver_after": 5}]}),
            ("InvalidDeliverAfter", {"records": [{"value": "a", "deliver_after": "tomorrow"}]}),
            ("UnknownPartition", {"records": [{"value": "a", "partition": 7}]}),
            ("UnknownPartition", {"records": [{"value": "a"}], "partition": 7}),
            ("InvalidRequest", {"records": [{"value": "a", "partition": 0}], "partition": 1}),
            ("InvalidRequest", {"records": {}}),
            ("InvalidRequest", {"records": [], "colour": "red"}),
            ("InvalidRequest", {}),
            ("InvalidRequest", []),
            ("InvalidRequest", {"records": [{"value": "a"}], "on_conflict": "laugh"}),
            ("InvalidRequest", {"records": [{"value": "a"}], "producer": {"id": 1, "epoch": 0, "sequence": 0}}),
            (
                "OutOfOrderSequence",
                {"records": [{"value": "a"}], "partition": 0, "producer": {"id": 1, "epoch": 0, "sequence": 5}},
            ),
            (
                "InvalidRequest",
                {
                    "records": [{"value": "a", "unique_key": "u"}, {"value": "b"}],
                    "partition": 0,
                    "producer": {"id": 1, "epoch": 0, "sequence": 0},
                },
            ),
        ],
    )
    def test_what_cannot_be_taken_is_not(self, title: str, body: Any) -> None:
        async def test(setting: Setting) -> None:
            await setting.client.refused(title, "POST", RECORDS, body)
            assert {0: []} == values(setting)

        run(test)

    def test_an_instant_that_is_surely_wrong_can_be_meant(self) -> None:
        async def test(setting: Setting) -> None:
            body = {"records": [{"value": "a", "deliver_after": 5}], "check_instants": False}
            assert ["mail-0@0"] == (await setting.client.post(RECORDS, body))["ids"]

        run(test)

    def test_no_such_topic(self) -> None:
        async def test(setting: Setting) -> None:
            problem = await setting.client.refused(
                "UnknownTopic", "POST", "/v1/topics/none/records", {"records": [{"value": "a"}]}
            )
            assert (404, False) == (problem["status"], problem["retriable"])

        run(test)


class TestProducers:
    """Sent again it is there once, and the answer is the first one."""

    def test_one_and_many(self) -> None:
        async def test(setting: Setting) -> None:
            def body(sequence: int, *values: str, epoch: int = 0) -> dict[str, Any]:
                producer = {"id": 7, "epoch": epoch, "sequence": sequence}
                return {"records": [{"value": value} for value in values], "partition": 0, "producer": producer}

            for _ in range(2):
                assert {"ids": ["mail-0@0"]} == await setting.client.post(RECORDS, body(0, "a"))
                assert {"ids": ["mail-0@1", "mail-0@2"]} == await setting.client.post(RECORDS, body(1, "b", "c"))
            problem = await setting.client.refused("OutOfOrderSequence", "POST", RECORDS, body(9, "x"))
            assert (409, 3) == (problem["status"], problem["expected"])
            await setting.client.post(RECORDS, body(0, "d", epoch=1))
            problem = await setting.client.refused("ProducerFenced", "POST", RECORDS, body(3, "x"))
            assert (409, 1) == (problem["status"], problem["epoch"])
            assert {0: [b"a", b"b", b"c", b"d"]} == values(setting)

        run(test)

    def test_as_arrow(self) -> None:
        async def test(setting: Setting) -> None:
            data = stream(batch(value=["a", "b"]))
            query = "partition=0&producer_id=7&producer_epoch=0&sequence=0"
            for _ in range(2):
                assert {"ids": ["mail-0@0", "mail-0@1"]} == await setting.client.post(f"{RECORDS}?{query}", data)
            for query in ("partition=0&producer_id=7", "producer_id=7&producer_epoch=0&sequence=2"):
                await setting.client.refused("InvalidRequest", "POST", f"{RECORDS}?{query}", data)
            assert {0: [b"a", b"b"]} == values(setting)

        run(test)

    def test_together_with_others_each_has_its_own_answer(self) -> None:
        async def test(setting: Setting) -> None:
            def body(number: int, sequence: int) -> dict[str, Any]:
                producer = {"id": number, "epoch": 0, "sequence": sequence}
                return {"records": [{"value": f"{number}"}], "partition": 0, "producer": producer}

            calls = [setting.client.ask("POST", RECORDS, body(number, number % 2)) for number in range(20)]
            plain = [
                setting.client.ask("POST", RECORDS, {"records": [{"value": "x" * size}]}) for size in (1, 5_000, 2)
            ]
            said = await asyncio.gather(*calls, *plain)
            assert [200, 409] * 10 + [200, 413, 200] == [each.status for each in said]
            ids = [each.json["ids"][0] for each in said if each.status == 200]
            assert 12 == len(set(ids))
            [found] = values(setting).values()
            assert sorted(ids, key=lambda each: int(each.split("@")[1])) == [f"mail-0@{row}" for row in range(12)]
            assert 12 == len(found)
            assert setting.app.served.sends.counts.appends < 10

        run(test)


class TestArrow:
    def test_columns_and_their_places(self) -> None:
        async def test(setting: Setting) -> None:
            due = pa.array([None, NOW_MS + 5], pa.int64())
            data = stream(batch(value=["a", "b"], key=["x", None], deliver_after=due))
            assert {"ids": ["mail-0@0", "mail-0@1"]} == await setting.client.post(RECORDS, data)
            places = await setting.client.post(RECORDS, data, headers={"accept": ARROW})
            assert [[0, 0], [2, 3]] == [column.tolist() for column in placed_of(places)]
            assert [NOW_MS + 5] * 2 == [each.due for each in setting.store.pending("mail")]

        run(test)

    def test_partitions(self) -> None:
        async def test(setting: Setting) -> None:
            setting.store.alter_topic("mail", partitions=3)
            named = stream(batch(value=["a", "b", "c"], key=["x", "y", None], partition=[2, None, 1]))
            await setting.client.post(RECORDS, named)
            by_key = setting.store.topic("mail").partition_of(b"y")
            found = values(setting)
            assert b"a" in found[2]
            assert b"c" in found[1]
            assert b"b" in found[by_key]
            await setting.client.post(f"{RECORDS}?partition=0", stream(batch(value=["d"])))
            assert b"d" == values(setting)[0][-1]
            await setting.client.refused("InvalidRequest", "POST", f"{RECORDS}?partition=0", named)
            far = stream(batch(value=["a"], partition=[9]))
            await setting.client.refused("UnknownPartition", "POST", RECORDS, far)

        run(test)

    def test_a_priority_of_all(self) -> None:
        async def test(setting: Setting) -> None:
            setting.store.alter_topic("mail", partitions=4, priorities=2)
            topic = setting.store.topic("mail")
            for columns in ({"value": ["a"]}, {"value": ["b"], "key": ["k"]}, {"value": ["c"], "unique_key": ["u"]}):
                sent = await setting.client.post(f"{RECORDS}?priority=1", stream(batch(**columns)))
                [record] = map(RecordId.parse, sent["ids"])
                assert 1 == topic.priority_of(record.partition)
            refused = f"{RECORDS}?priority=1&partition=1"
            await setting.client.refused("InvalidArgument", "POST", refused, stream(batch(value=["d"])))

        run(test)

    def test_options_in_the_query(self) -> None:
        async def test(setting: Setting) -> None:
            keyed = stream(batch(value=["a"], unique_key=["u"]))
            await setting.client.post(f"{RECORDS}?delay=60", keyed)
            await setting.client.refused("UniqueKeyConflict", "POST", f"{RECORDS}?delay=60", keyed)
            kept = await setting.client.post(f"{RECORDS}?delay=60&on_conflict=keep", keyed)
            assert ["mail-0@0"] == kept["ids"]
            early = stream(batch(value=["a"], deliver_after=[5]))
            await setting.client.refused("InvalidDeliverAfter", "POST", RECORDS, early)
            await setting.client.post(f"{RECORDS}?check_instants=false", early)
            for query in (
                "colour=red",
                "delay=x",
                "delay=-1",
                "check_instants=maybe",
                "partition=-1",
                "delay=1&delay=2",
            ):
                await setting.client.refused("InvalidRequest", "POST", f"{RECORDS}?{query}", keyed)

        run(test)

    def test_an_empty_stream(self) -> None:
        async def test(setting: Setting) -> None:
            schema = batch(value=["a"]).schema
            assert {"ids": []} == await setting.client.post(RECORDS, stream([], schema=schema))

        run(test)

    def test_what_is_no_arrow(self) -> None:
        async def test(setting: Setting) -> None:
            await setting.client.refused("InvalidRequest", "POST", RECORDS, b"nothing of the kind")
            await setting.client.refused("InvalidRequest", "POST", RECORDS, stream(batch(colour=["red"])))
            assert {0: []} == values(setting)

        run(test)


class TestCancel:
    def test_by_ids_and_by_offsets(self) -> None:
        async def test(setting: Setting) -> None:
            ids = await setting.send("a", "b", "c", delay=60)
            path = "/v1/topics/mail/cancel"
            said = await setting.client.post(path, {"ids": [ids[1], ids[1], "mail-0@99"]})
            assert ["CANCELLED", "ALREADY_CANCELLED", "UNKNOWN"] == said["results"]
            said = await setting.client.post(path, {"partition": 0, "offsets": [0, 1]})
            assert ["CANCELLED", "ALREADY_CANCELLED"] == said["results"]
            assert [b"c"] == [each.value for each in setting.store.pending("mail")]
            for body in ({}, {"ids": [], "offsets": []}, {"offsets": [1]}, {"ids": ["other-0@1"]}, {"ids": [5]}):
                await setting.client.refused("InvalidRequest", "POST", path, body)
            await setting.client.refused("InvalidRecord", "POST", path, {"ids": ["nonsense"]})

        run(test)

    def test_reschedule(self) -> None:
        async def test(setting: Setting) -> None:
            [record] = await setting.send("a", delay=60)
            path = "/v1/topics/mail/reschedule"
            assert {"id": "mail-0@2"} == await setting.client.post(path, {"id": record, "delay": 5})
            problem = await setting.client.refused("NotPending", "POST", path, {"id": record, "delay": 5})
            assert "ALREADY_CANCELLED" == problem["answer"]
            later = {"id": "mail-0@2", "deliver_after": NOW_MS + 10**6}
            assert {"id": "mail-0@4"} == await setting.client.post(path, later)

        run(test)
