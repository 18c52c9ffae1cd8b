"""Fetches by position, and groups that say where they are."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from afterlog.api.arrow_stream import delivered
from tests.server.support import ARROW, Setting, run
from tests.server.test_subscriptions_api import values
from tests.support import NOW_MS

FETCH = "/v1/topics/mail/fetch"
G = "/v1/topics/mail/groups/g"


class TestFetch:
    def test_due_records_from_a_position_on(self) -> None:
        async def test(setting: Setting) -> None:
            await setting.send("a", "b", "c")
            await setting.send("later", delay=60)
            said = await setting.client.post(FETCH, {"positions": {"0": 1}})
            assert (["b", "c"], {"0": 3}, {"0": 3}, NOW_MS) == (
                values(said["records"]), said["positions"], said["high_watermarks"], said["now_ms"]
            )  # fmt: skip
            assert [1, 2] == [each["delivery_offset"] for each in said["records"]]
            said = await setting.client.post(FETCH, {"positions": {"0": 0}, "max_records": 1})
            assert (["a"], {"0": 1}) == (values(said["records"]), said["positions"])
            found = delivered(await setting.client.post(FETCH, {"positions": {"0": 0}}, headers={"accept": ARROW}))
            assert [b"a", b"b", b"c"] == [each.value for each in found.columns.to_messages()]
            assert ({"0": 3}, NOW_MS) == (found.said["positions"], found.said["now_ms"])

        run(test)

    def test_of_several_partitions(self) -> None:
        async def test(setting: Setting) -> None:
            setting.store.alter_topic("mail", partitions=3)
            await setting.send("a", partition=0)
            await setting.send("b", "c", partition=2)
            said = await setting.client.post(FETCH, {"positions": {"0": 0, "2": 1}})
            assert (["a", "c"], {"0": 1, "2": 2}) == (values(said["records"]), said["positions"])

        run(test)

    def test_who_waits_is_woken(self) -> None:
        async def test(setting: Setting) -> None:
            waiting = [
                asyncio.ensure_future(setting.client.post(FETCH, {"positions": {"0": at}, "wait_ms": 60_000}))
                for at in (0, 0, 0)
            ]
            await setting.waiting(3)
            await setting.send("a")
            for said in await asyncio.gather(*waiting):
                assert (["a"], {"0": 1}) == (values(said["records"]), said["positions"])
            late = asyncio.ensure_future(setting.client.post(FETCH, {"positions": {"0": 1}, "wait_ms": 60_000}))
            await setting.waiting(1)
            await setting.send("b", delay=5)
            setting.clock.advance(5_000)
            assert ["b"] == values((await late)["records"])
            assert {} == setting.app.served.fetches._shared

        run(test)

    def test_patience_ends_and_so_does_the_server(self) -> None:
        async def test(setting: Setting) -> None:
            await setting.send("a")
            said = await setting.client.post(FETCH, {"positions": {"0": 1}, "wait_ms": 10})
            assert ([], {"0": 1}) == (said["records"], said["positions"])
            late = asyncio.ensure_future(setting.client.post(FETCH, {"positions": {"0": 1}, "wait_ms": 60_000}))
            await setting.waiting(1)
            setting.app.stop()
            assert ([], {"0": 1}) == ((await late)["records"], (await late)["positions"])

        run(test)

    def test_by_hand(self) -> None:
        async def test(setting: Setting) -> None:
            await setting.send("a", "b")
            path = "/v1/topics/mail/records"
            assert ["a", "b"] == values((await setting.client.get(path))["records"])
            query = "partition=0&position=latest&max_records=5&wait_ms=0"
            assert [] == (await setting.client.get(f"{path}?{query}"))["records"]
            assert ["b"] == values((await setting.client.get(f"{path}?position=after%3A0"))["records"])
            assert ["a", "b"] == values((await setting.client.get(f"{path}?position=time:{NOW_MS}"))["records"])

        run(test)

    def test_positions(self) -> None:
        async def test(setting: Setting) -> None:
            await setting.send("a", "b")
            path = "/v1/topics/mail/positions"
            for position, expected in (
                ("earliest", 0),
                ("latest", 2),
                (1, 1),
                ("after:0", 1),
                (f"time:{NOW_MS + 1}", 2),
            ):
                assert {"positions": {"0": expected}} == await setting.client.post(path, {"position": position})
            await setting.client.refused("InvalidArgument", "POST", path, {"position": "nowhere"})
            await setting.client.refused("UnknownPartition", "POST", path, {"position": 0, "partitions": [4]})

        run(test)

    @pytest.mark.parametrize(
        ("title", "body"),
        [
            ("InvalidRequest", {}),
            ("InvalidRequest", {"positions": {}}),
            ("InvalidRequest", {"positions": {"x": 1}}),
            ("InvalidRequest", {"positions": {"0": -1}}),
            ("InvalidRequest", {"positions": {"0": "latest"}}),
            ("InvalidRequest", {"positions": {"0": 0}, "max_bytes": 2**40}),
            ("UnknownPartition", {"positions": {"7": 0}}),
            ("UnknownPartition", {"positions": {"7": 0}, "wait_ms": 1_000}),
            ("OffsetOutOfRange", {"positions": {"0": 5}}),
            ("OffsetOutOfRange", {"positions": {"0": 5}, "wait_ms": 1_000}),
        ],
    )
    def test_what_cannot_be(self, title: str, body: Any) -> None:
        async def test(setting: Setting) -> None:
            problem = await setting.client.refused(title, "POST", FETCH, body)
            if title == "OffsetOutOfRange":
                assert (416, 5, 0, 0) == tuple(problem[name] for name in ("status", "position", "log_start", "log_end"))

        run(test)


class TestGroups:
    def test_claim_commit_and_go_on(self) -> None:
        async def test(setting: Setting) -> None:
            await setting.send("a", "b")
            assert {"committed": {"0": None}, "ttl_ms": 45_000} == await setting.client.put(
                f"{G}/claim", {"claim": "x"}
            )
            await setting.client.post(f"{G}/commit", {"claim": "x", "positions": {"0": 1}})
            said = await setting.client.get(G)
            assert ({"0": 1}, {"0": 2}, 1) == (said["committed"], said["high_watermarks"], said["lag"])
            assert {"groups": ["g"]} == await setting.client.get("/v1/topics/mail/groups")
            await setting.client.delete(f"{G}/claim?claim=x")
            with setting.store.consumer("mail", group="g") as consumer:
                assert [b"b"] == [message.value for message in consumer.poll()]

        run(test)

    def test_one_reader_at_a_time(self) -> None:
        async def test(setting: Setting) -> None:
            setting.store.alter_topic("mail", partitions=2)
            await setting.client.put(f"{G}/claim", {"claim": "x", "partitions": [0]})
            await setting.client.refused("GroupBusy", "PUT", f"{G}/claim", {"claim": "y"})
            await setting.client.put(f"{G}/claim", {"claim": "y", "partitions": [1]})
            await setting.client.put(f"{G}/claim", {"claim": "x", "partitions": [0]})
            await setting.client.refused(
                "UnknownPartition", "POST", f"{G}/commit", {"claim": "x", "positions": {"1": 0}}
            )
            await setting.client.delete(f"{G}/claim?claim=y")
            await setting.client.put(f"{G}/claim", {"claim": "x"})
            with setting.store.consumer("mail", group="other"):
                await setting.client.refused("GroupBusy", "PUT", "/v1/topics/mail/groups/other/claim", {"claim": "x"})

        run(test)

    def test_what_is_said_of_a_claim_that_was_let_go_is_late(self) -> None:
        """The thread that keeps a client's claims may be overtaken by the end of the consumer."""

        async def test(setting: Setting) -> None:
            await setting.client.put(f"{G}/claim", {"claim": "x"})
            await setting.client.delete(f"{G}/claim?claim=x")
            await setting.client.refused("GroupBusy", "PUT", f"{G}/claim", {"claim": "x"})
            await setting.client.put(f"{G}/claim", {"claim": "y"})
            setting.clock.advance(61_000)
            await setting.client.put(f"{G}/claim", {"claim": "x"})  # it has long forgotten

        run(test)

    def test_a_claim_ends_by_itself_and_a_commit_renews_it(self) -> None:
        async def test(setting: Setting) -> None:
            await setting.send("a")
            await setting.client.put(f"{G}/claim", {"claim": "x", "ttl_ms": 1_000})
            commit = {"claim": "x", "positions": {"0": 1}}
            for _ in range(3):
                setting.clock.advance(900)
                await setting.client.post(f"{G}/commit", commit)
            setting.clock.advance(1_001)
            await setting.client.put(f"{G}/claim", {"claim": "y"})
            await setting.client.refused("GroupBusy", "POST", f"{G}/commit", commit)
            setting.clock.advance(60_000)
            await setting.app.served.tidy()
            assert 0 == len(setting.app.served.claims)

        run(test)

    def test_positions_that_cannot_be_committed(self) -> None:
        async def test(setting: Setting) -> None:
            await setting.send("a")
            await setting.send("b", delay=60)
            await setting.client.put(f"{G}/claim", {"claim": "x"})
            for at, title in ((99, "OffsetOutOfRange"), (2, "PositionPending")):
                await setting.client.refused(title, "POST", f"{G}/commit", {"claim": "x", "positions": {"0": at}})
            await setting.client.refused("UnknownGroup", "GET", G)

        run(test)

    def test_reset_and_delete(self) -> None:
        async def test(setting: Setting) -> None:
            await setting.send("a")
            await setting.client.put(f"{G}/claim", {"claim": "x"})
            await setting.client.post(f"{G}/commit", {"claim": "x", "positions": {"0": 1}})
            await setting.client.refused("GroupBusy", "POST", f"{G}/reset", {"position": "earliest"})
            await setting.client.refused("GroupBusy", "DELETE", G)
            await setting.client.delete(f"{G}/claim?claim=x")
            await setting.client.post(f"{G}/reset", {"position": "earliest"})
            assert {"0": 0} == (await setting.client.get(G))["committed"]
            await setting.client.delete(G)
            await setting.client.refused("UnknownGroup", "DELETE", G)

        run(test)

    def test_a_claim_that_was_closed_by_force_is_made_anew(self) -> None:
        async def test(setting: Setting) -> None:
            await setting.send("a")
            await setting.client.put(f"{G}/claim", {"claim": "x"})
            await setting.client.post(f"{G}/commit", {"claim": "x", "positions": {"0": 1}})
            await setting.client.delete(f"{G}?force=true")
            await setting.client.refused("GroupBusy", "POST", f"{G}/commit", {"claim": "x", "positions": {"0": 1}})
            assert {"0": None} == (await setting.client.put(f"{G}/claim", {"claim": "x"}))["committed"]

        run(test)
