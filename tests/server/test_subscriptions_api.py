"""Subscriptions over HTTP: leases, receipts, long polls, and clients that go before they have their answer."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from afterlog.api.arrow_stream import delivered, receipts_stream
from afterlog.server.app import App
from afterlog.server.served import Served
from afterlog.server.subscriptions_api import ACKED_ONE_BY_ONE
from afterlog.server.tokens import Authenticator
from afterlog.subscription.received import Receipts
from tests.server.support import ARROW, Call, Setting, run
from tests.server.test_records_api import batch, stream
from tests.support import NOW_MS

S = "/v1/topics/mail/subscriptions/sender"


def values(messages: list[dict[str, Any]]) -> list[Any]:
    return [message["value"] for message in messages]


def receipts(messages: list[dict[str, Any]]) -> list[str]:
    return [message["receipt"] for message in messages]


class TestReceive:
    def test_what_is_due_under_a_lease(self) -> None:
        async def test(setting: Setting) -> None:
            await setting.send("a", "b")
            await setting.send("later", delay=60)
            [message, _] = await setting.receive()
            assert ("mail-0@0", "a", 0, "0.0.0.0") == tuple(
                message[name] for name in ("id", "value", "redelivery_count", "receipt")
            )
            assert NOW_MS + 30_000 <= message["deadline_ms"] < NOW_MS + 31_000
            assert [] == await setting.receive()
            setting.clock.advance(60_000)
            again = await setting.receive()
            assert ([1, 1, 0], ["a", "b", "later"]) == ([each["redelivery_count"] for each in again], values(again))

        run(test)

    def test_as_arrow(self) -> None:
        async def test(setting: Setting) -> None:
            await setting.send("a", "b", headers={"n": "1"})
            for expected in ([b"a", b"b"], []):
                found = delivered(await setting.client.post(f"{S}/receive", {}, headers={"accept": ARROW}))
                assert expected == [message.value for message in found.columns.to_messages()]
                assert found.lease_number is not None
                assert found.deadline_ms is not None
                assert len(expected) == len(found.lease_number) == len(found.deadline_ms)
                assert {"now_ms": NOW_MS} == found.said

        run(test)

    def test_more_than_the_event_loop_writes(self) -> None:
        async def test(setting: Setting) -> None:
            await setting.send(*map(str, range(100)))
            assert [str(number) for number in range(100)] == values(await setting.receive())

        run(test)

    def test_readers_with_settings_of_their_own(self) -> None:
        async def test(setting: Setting) -> None:
            await setting.send("a")
            reader = {"lease_ms": 500, "retry": {"first_ms": 10, "attempts": 1}, "dead_letter": "mail.dead"}
            [message] = await setting.receive(reader=reader)
            assert NOW_MS + 500 == message["deadline_ms"]
            done = await setting.client.post(f"{S}/nack", {"receipts": receipts([message]), "reader": reader})
            assert (1, 0) == (done["done"], done["stale"])
            assert 1 == len(setting.store.dead_letters("mail.dead"))
            assert 1 == len(setting.app.served.readers)

        run(test)

    def test_a_reader_of_one_partition_begins_where_it_says(self) -> None:
        async def test(setting: Setting) -> None:
            setting.store.alter_topic("mail", partitions=2)
            await setting.send("a", partition=0)
            await setting.send("b", "c", partition=1)
            reader = {"partitions": [1], "start": "latest"}
            assert [] == await setting.receive(reader=reader)
            await setting.send("d", partition=1)
            await setting.send("e", partition=0)
            assert ["d"] == values(await setting.receive(reader=reader))

        run(test)

    @pytest.mark.parametrize(
        ("title", "body"),
        [
            ("InvalidRequest", {"max_records": 0}),
            ("InvalidRequest", {"max_records": 1e9}),
            ("InvalidRequest", {"wait_ms": -1}),
            ("InvalidRequest", {"reader": {"lease_ms": 0}}),
            ("InvalidRequest", {"reader": {"colour": "red"}}),
            ("InvalidRequest", {"reader": {"retry": {"factor": "x"}}}),
            ("InvalidSubscription", {"reader": {"retry": {"factor": 0.5}}}),
            ("InvalidSubscription", {"reader": {"dead_letter": "mail"}}),
            ("InvalidTopic", {"reader": {"dead_letter": "no name"}}),
            ("InvalidArgument", {"reader": {"start": "nowhere"}}),
            ("UnknownPartition", {"reader": {"partitions": [5]}}),
        ],
    )
    def test_what_cannot_be(self, title: str, body: Any) -> None:
        async def test(setting: Setting) -> None:
            await setting.client.refused(title, "POST", f"{S}/receive", body)
            assert [] == setting.store.subscriptions("mail")
            assert 0 == len(setting.app.served.readers)

        run(test)

    def test_names_that_cannot_be(self) -> None:
        async def test(setting: Setting) -> None:
            await setting.client.refused("UnknownTopic", "POST", "/v1/topics/none/subscriptions/s/receive", {})
            await setting.client.refused("InvalidTopic", "POST", "/v1/topics/mail/subscriptions/a%2Fb/receive", {})

        run(test)


class TestWaiting:
    def test_a_record_that_comes_ends_the_wait(self) -> None:
        async def test(setting: Setting) -> None:
            waiting = asyncio.ensure_future(setting.receive(wait_ms=60_000))
            await setting.waiting(1)
            await setting.send("a")
            assert ["a"] == values(await waiting)
            assert 0 == len(setting.app.served.waits)

        run(test)

    def test_so_does_time(self) -> None:
        async def test(setting: Setting) -> None:
            await setting.send("a", delay=5)
            waiting = asyncio.ensure_future(setting.receive(wait_ms=60_000))
            await setting.waiting(1)
            setting.clock.advance(5_000)
            assert ["a"] == values(await waiting)

        run(test)

    def test_and_the_patience_of_the_client(self) -> None:
        async def test(setting: Setting) -> None:
            assert [] == await setting.receive(wait_ms=20)

        run(test)

    def test_a_server_that_stops_tells_all_who_wait_to_come_back(self) -> None:
        async def test(setting: Setting) -> None:
            waiting = [asyncio.ensure_future(setting.receive(wait_ms=600_000)) for _ in range(10)]
            await setting.waiting(10)
            setting.app.stop()
            assert [[]] * 10 == await asyncio.gather(*waiting)
            problem = await setting.client.refused("ServerUnavailable", "POST", f"{S}/receive", {})
            assert (503, True) == (problem["status"], problem["retriable"])

        run(test)

    def test_a_client_that_goes_takes_nothing(self) -> None:
        async def test(setting: Setting) -> None:
            call, task = begun(setting)
            await setting.waiting(1)
            call.go()
            await task
            assert None is call.said
            await setting.send("a")
            [message] = await setting.receive()
            assert ("a", 0) == (message["value"], message["redelivery_count"])

        run(test)

    def test_one_that_goes_before_the_answer_gives_back_what_it_was_leased(self) -> None:
        """It counts as no failure, and the next one has it at once."""

        async def test(setting: Setting) -> None:
            for wait_ms in (0, 1_000):
                await setting.send("a")
                call, task = begun(setting, wait_ms=wait_ms)
                call.go()  # the record is there: it is leased, and nobody takes it
                await task
                assert None is call.said
                [message] = await setting.receive()
                assert ("a", 0) == (message["value"], message["redelivery_count"])
                await setting.client.post(f"{S}/ack", {"receipts": receipts([message])})
            stats = await setting.client.get(S)
            assert (0, 0, 2) == (stats["leased"], stats["expired"], stats["acked"])

        run(test)


def begun(setting: Setting, wait_ms: int = 60_000) -> tuple[Call, asyncio.Task[None]]:
    return setting.client.call("POST", f"{S}/receive", {"wait_ms": wait_ms})


class TestSettling:
    def test_ack(self) -> None:
        async def test(setting: Setting) -> None:
            await setting.send("a", "b")
            messages = await setting.receive()
            said = await setting.client.post(f"{S}/ack", {"receipts": receipts(messages[:1])})
            assert {"acked": 1, "already": 0, "unknown": 0, "now_ms": NOW_MS} == said
            said = await setting.client.post(f"{S}/ack", {"receipts": [*receipts(messages), "0.99.99.0"]})
            assert (1, 1, 1) == (said["acked"], said["already"], said["unknown"])
            assert ["already", "acked", "unknown"] == said["outcomes"]

        run(test)

    def test_of_a_receipt_that_is_there_twice_each_place_has_an_outcome(self) -> None:
        async def test(setting: Setting) -> None:
            await setting.send("a", "b")
            [first, second] = receipts(await setting.receive())
            said = await setting.client.post(f"{S}/ack", {"receipts": [first, second, first]})
            assert (2, 0, 0) == (said["acked"], said["already"], said["unknown"])
            assert ["acked", "acked", "already"] == said["outcomes"]
            many = {"receipts": [first] * (ACKED_ONE_BY_ONE + 1)}
            said = await setting.client.post(f"{S}/ack", many)
            assert {"acked": 0, "already": 1, "unknown": 0, "now_ms": NOW_MS} == said

        run(test)

    def test_nack_comes_again_after_its_delay(self) -> None:
        async def test(setting: Setting) -> None:
            await setting.send("a")
            messages = await setting.receive()
            body = {"receipts": receipts(messages), "delay": 2.5, "reason": "busy"}
            assert 1 == (await setting.client.post(f"{S}/nack", body))["done"]
            assert 1 == (await setting.client.post(f"{S}/nack", body))["stale"]
            assert [] == await setting.receive()
            setting.clock.advance(2_500)
            [again] = await setting.receive()
            assert ("0.0.0.1", 1) == (again["receipt"], again["redelivery_count"])

        run(test)

    def test_release_and_extend(self) -> None:
        async def test(setting: Setting) -> None:
            await setting.send("a")
            messages = await setting.receive()
            said = await setting.client.post(f"{S}/extend", {"receipts": receipts(messages), "lease_ms": 90_000})
            assert 1 == said["done"]
            assert NOW_MS + 90_000 <= said["deadline_ms"] < NOW_MS + 91_000
            setting.clock.advance(60_000)
            assert [] == await setting.receive()
            assert 1 == (await setting.client.post(f"{S}/release", {"receipts": receipts(messages)}))["done"]
            [again] = await setting.receive()
            assert 0 == again["redelivery_count"]

        run(test)

    def test_reject_needs_dead_letters(self) -> None:
        async def test(setting: Setting) -> None:
            await setting.send("a")
            messages = await setting.receive()
            body = {"receipts": receipts(messages), "reason": "never"}
            await setting.client.refused("NoDeadLetterTopic", "POST", f"{S}/reject", body)
            body["reader"] = {"dead_letter": "mail.dead"}
            assert 1 == (await setting.client.post(f"{S}/reject", body))["done"]
            [letter] = (await setting.client.get("/v1/topics/mail.dead/dead-letters"))["dead_letters"]
            assert ("a", "never") == (letter["message"]["value"], letter["origin"]["reason"])
            assert {"redriven": 1, "left": {}} == await setting.client.post("/v1/topics/mail.dead/redrive")
            assert ["a"] == values(await setting.receive())

        run(test)

    def test_receipts_as_arrow(self) -> None:
        async def test(setting: Setting) -> None:
            await setting.send("a", "b")
            await setting.receive()
            rows = np.arange(2)
            data = receipts_stream(Receipts(rows * 0, rows, rows, rows * 0))
            said = await setting.client.post(f"{S}/extend?lease_ms=90000", data)
            assert 2 == said["done"]
            assert NOW_MS + 90_000 <= said["deadline_ms"] < NOW_MS + 91_000
            query = 'reader={"retry":{"first_ms":1000,"jitter":0}}&reason=why'
            assert 2 == (await setting.client.post(f"{S}/nack?{query}", data))["done"]
            setting.clock.advance(900)
            assert [] == await setting.receive()
            setting.clock.advance(120)
            assert 2 == len(await setting.receive())
            assert 2 == (await setting.client.post(f"{S}/ack", data))["acked"]
            none = stream(batch(partition=pa.array([-1]), offset=[0], delivery_offset=[0], lease_number=[0]))
            await setting.client.refused("InvalidRequest", "POST", f"{S}/ack", none)

        run(test)

    @pytest.mark.parametrize("receipt", ["nonsense", 5, None, "0.0.0", "0.0.0.0.0", "-1.0.0.0", "9" * 30 + ".0.0.0"])
    def test_receipts_that_are_none(self, receipt: Any) -> None:
        async def test(setting: Setting) -> None:
            await setting.send("a")
            await setting.receive()
            for word in ("ack", "nack", "reject", "release", "extend"):
                await setting.client.refused("InvalidReceipt", "POST", f"{S}/{word}", {"receipts": [receipt]})

        run(test)

    def test_no_subscription_is_made_by_a_receipt(self) -> None:
        async def test(setting: Setting) -> None:
            for word in ("ack", "nack", "release", "extend"):
                await setting.client.refused("UnknownSubscription", "POST", f"{S}/{word}", {"receipts": ["0.0.0.0"]})
            await setting.client.refused("UnknownSubscription", "GET", S)
            assert [] == setting.store.subscriptions("mail")

        run(test)

    def test_a_partition_that_is_not_there(self) -> None:
        async def test(setting: Setting) -> None:
            await setting.receive()
            await setting.client.refused("UnknownPartition", "POST", f"{S}/ack", {"receipts": ["7.0.0.0"]})

        run(test)


class TestAsAWhole:
    def test_seek_reset_delete(self) -> None:
        async def test(setting: Setting) -> None:
            await setting.send("a", "b")
            messages = await setting.receive()
            await setting.client.post(f"{S}/ack", {"receipts": receipts(messages)})
            await setting.client.post(f"{S}/seek", {"position": "earliest"})
            assert ["a", "b"] == values(await setting.receive())
            await setting.client.post(f"{S}/reset", {"position": 1})
            assert ["b"] == values(await setting.receive())
            await setting.client.refused("OffsetOutOfRange", "POST", f"{S}/seek", {"position": 99})
            assert {"subscriptions": ["sender"]} == await setting.client.get("/v1/topics/mail/subscriptions")
            await setting.client.refused("TopicBusy", "DELETE", S)
            await setting.client.delete(f"{S}?force=true")
            assert {"subscriptions": []} == await setting.client.get("/v1/topics/mail/subscriptions")
            assert ["a", "b"] == values(await setting.receive())

        run(test)

    def test_readers_that_are_only_kept_are_in_nobodys_way(self) -> None:
        async def test(setting: Setting) -> None:
            await setting.receive()
            await setting.client.delete(S)
            await setting.receive()
            await setting.client.delete("/v1/topics/mail")
            await setting.client.refused("UnknownTopic", "POST", f"{S}/receive", {})

        run(test)

    def test_they_are_closed_when_nobody_has_used_them_for_a_while(self) -> None:
        async def test(setting: Setting) -> None:
            await setting.send("a")
            messages = await setting.receive(reader={"lease_ms": 10**9})
            setting.clock.advance(61_000)
            await setting.app.served.tidy()
            assert 0 == len(setting.app.served.readers)
            assert [] == setting.store.open_subscriptions()
            said = await setting.client.post(f"{S}/ack", {"receipts": receipts(messages)})
            assert 1 == said["acked"]  # the lease has outlived its reader
            await setting.app.served.tidy()
            assert 1 == len(setting.app.served.readers)  # it was used just now

        run(test)

    def test_what_is_leased_is_in_the_way_of_a_deletion(self) -> None:
        async def test(setting: Setting) -> None:
            await setting.send("a")
            await setting.receive()
            await setting.client.refused("TopicBusy", "DELETE", "/v1/topics/mail")

        run(test)

    def test_leases_outlive_the_server(self) -> None:
        """Another one on the same store: the receipt is good, nothing goes out twice, and nothing counts as failed."""

        async def test(setting: Setting) -> None:
            await setting.send("a", "b")
            messages = await setting.receive()
            await setting.app.served.close()
            again = Served(setting.store)
            setting.client.app = App(again, Authenticator(None, setting.clock))
            assert [] == await setting.receive()
            assert 1 == (await setting.client.post(f"{S}/ack", {"receipts": receipts(messages[:1])}))["acked"]
            assert 1 == (await setting.client.post(f"{S}/release", {"receipts": receipts(messages[1:])}))["done"]
            [message] = await setting.receive()
            assert ("b", 0) == (message["value"], message["redelivery_count"])
            await again.close()

        run(test)

    def test_a_group_has_the_name(self) -> None:
        async def test(setting: Setting) -> None:
            with setting.store.consumer("mail", group="sender"):
                await setting.client.refused("NameTaken", "POST", f"{S}/receive", {})

        run(test)
