"""Topics, schedules, what is pending, dead letters, and the store as a whole, over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest

from afterlog.api.operation import Scope
from afterlog.server.exchange import Peer
from tests.server.support import OWNER, STRANGER, Setting, run
from tests.server.test_security import Tokens
from tests.support import NOW_MS
from tests.tier.memory_store import MemoryStore

T = "/v1/topics/mail"


class TestTopics:
    def test_made_changed_deleted(self) -> None:
        async def test(setting: Setting) -> None:
            body = {"names": ["a", "b"], "partitions": 2, "retention_ms": 5_000}
            made = (await setting.client.post("/v1/topics", body))["topics"]
            assert [("a", 2, 5_000), ("b", 2, 5_000)] == [
                (each["name"], each["partitions"], each["retention_ms"]) for each in made
            ]
            await setting.client.refused("TopicExists", "POST", "/v1/topics", {**body, "partitions": 3})
            said = await setting.client.ask("PATCH", "/v1/topics/a", {"retention_ms": None, "partitions": 3})
            assert (3, None) == (said.json["partitions"], said.json["retention_ms"])
            assert said.json == await setting.client.get("/v1/topics/a")
            await setting.client.delete("/v1/topics/a")
            listed = await setting.client.get("/v1/topics")
            assert ["b", "mail"] == [each["name"] for each in listed["topics"]]
            await setting.client.refused("UnknownTopic", "GET", "/v1/topics/a")

        run(test)

    def test_stats_held_and_purge(self) -> None:
        async def test(setting: Setting) -> None:
            await setting.send("a", "b")
            await setting.send("later", delay=60)
            await setting.receive(1)
            stats = await setting.client.get(f"{T}/stats")
            [partition], [subscription] = stats["partitions"], stats["subscriptions"]
            assert (1, 2, NOW_MS + 60_000) == tuple(partition[name] for name in ("pending", "due", "next_due"))
            assert ("sender", 1, 1) == tuple(subscription[name] for name in ("subscription", "leased", "due"))
            assert (await setting.client.get(f"{T}/held"))["active"] > 0
            await setting.client.refused("TopicBusy", "POST", f"{T}/purge", {})
            assert {"removed": 3} == await setting.client.post(f"{T}/purge", {"pending": True, "force": True})

        run(test)


class TestPending:
    def test_by_time_and_by_key(self) -> None:
        async def test(setting: Setting) -> None:
            await setting.send("a", key="x", delay=60)
            await setting.send("b", key="y", delay=30)
            said = await setting.client.get(f"{T}/pending")
            assert ["b", "a"] == [each["value"] for each in said["records"]]
            for key in ("x", "base64:eA=="):
                [record] = (await setting.client.get(f"{T}/pending?key={key}"))["records"]
                assert ("a", NOW_MS + 60_000) == (record["value"], record["due"])
            await setting.client.refused("InvalidRequest", "GET", f"{T}/pending?key=base64:!")

        run(test)

    def test_histogram(self) -> None:
        async def test(setting: Setting) -> None:
            assert [] == (await setting.client.get(f"{T}/histogram"))["bars"]
            for delay in (10, 20, 1_000):
                await setting.send("a", delay=delay)
            bars = (await setting.client.get(f"{T}/histogram?bars=5"))["bars"]
            assert (3, True) == (sum(count for _, _, count in bars), len(bars) <= 5)
            part = (await setting.client.get(f"{T}/histogram?from={NOW_MS + 15_000}&to={NOW_MS + 30_000}"))["bars"]
            assert 1 == sum(count for _, _, count in part)
            for first, last in ((0, 2**63 - 8), (2**63 - 2, 2**63 - 1)):
                far = (await setting.client.get(f"{T}/histogram?from={first}&to={last}"))["bars"]
                assert 3 * (not first) == sum(count for _, _, count in far)

        run(test)


class TestSchedules:
    def test_their_life(self) -> None:
        async def test(setting: Setting) -> None:
            body = {"topic": "mail", "name": "often", "every_s": 60, "value": "tick", "headers": {"a": "b"}}
            made = await setting.client.post("/v1/schedules", body)
            assert ("often", 60.0, "tick", [["a", "b"]]) == tuple(
                made[name] for name in ("name", "every_s", "value", "headers")
            )
            assert 1 == len(setting.store.pending("mail"))
            assert (await setting.client.post("/v1/schedules/often/pause"))["paused"]
            assert [] == setting.store.pending("mail")
            assert not (await setting.client.post("/v1/schedules/often/resume"))["paused"]
            changed = await setting.client.ask("PATCH", "/v1/schedules/often", {"value": "tock"})
            assert "tock" == changed.json["value"]
            assert {"appended": 0} == await setting.client.post("/v1/run-schedules")
            assert ["often"] == [each["name"] for each in (await setting.client.get("/v1/schedules"))["schedules"]]
            await setting.client.refused("InvalidSchedule", "POST", "/v1/schedules", {"topic": "mail", "name": "x"})
            await setting.client.delete("/v1/schedules/often")
            await setting.client.refused("UnknownSchedule", "DELETE", "/v1/schedules/often")

        run(test)


class TestStore:
    def test_what_it_is_and_what_is_done_to_it(self) -> None:
        async def test(setting: Setting) -> None:
            said = await setting.client.get("/v1/store")
            assert ("os", NOW_MS, 1) == (said["durability"]["kind"], said["now_ms"], said["topics"])
            await setting.client.post("/v1/sync")
            await setting.client.post("/v1/confirm-clock")
            assert {"removed": 0} == await setting.client.post("/v1/retention")
            await setting.client.refused("RemoteRefused", "POST", "/v1/offload", {})
            await setting.client.refused("NotServed", "POST", "/v1/backup", {"dest": "x"})

        run(test)

    def test_what_is_active_goes_up_where_it_is_rolled(self) -> None:
        async def test(setting: Setting) -> None:
            await setting.client.post("/v1/topics", {"names": ["far"], "remote_storage_enable": True})
            await setting.send("a", topic="far")
            for body, uploaded in (({}, 0), ({"roll": True}, 1)):
                said = await setting.client.post("/v1/offload", body)
                assert uploaded == said["partitions"]["far-0"]["uploaded"]

        run(test, remote=MemoryStore())

    def test_backups_where_they_may_be_and_nowhere_else(self) -> None:
        async def test(setting: Setting) -> None:
            setting.app.served.backups = Path("/backups")
            for dest in ("../elsewhere", "a/b", "..", ".", "", "a\\b"):
                await setting.client.refused("InvalidRequest", "POST", "/v1/backup", {"dest": dest})
            made = await setting.client.post("/v1/backup", {"dest": "daily"})
            assert made["path"].startswith("daily/backup-000001-")

        run(test)

    @pytest.mark.parametrize(("peer", "by_token"), [(OWNER._replace(tcp=True), False), (OWNER, True), (STRANGER, True)])
    def test_a_path_from_the_root_is_the_owners_alone(self, peer: Peer, by_token: bool) -> None:
        tokens = Tokens()
        token = tokens.add("manager", [*Scope])

        async def test(setting: Setting) -> None:
            setting.app.served.backups = Path("/backups")
            setting.client.peer = peer
            said = token if by_token else {}
            refused = await setting.client.ask("POST", "/v1/backup", {"dest": "/elsewhere"}, headers=said)
            assert "InvalidRequest" == refused.title
            setting.client.peer = OWNER
            made = await setting.client.post("/v1/backup", {"dest": "/elsewhere"})
            assert made["path"].startswith("/elsewhere/backup-000001-")
            for dest in ("elsewhere/x", "/else\0where"):
                await setting.client.refused("InvalidRequest", "POST", "/v1/backup", {"dest": dest})

        run(test, tokens=tokens.file)

    def test_metrics(self) -> None:
        async def test(setting: Setting) -> None:
            await setting.send("a")
            text = (await setting.client.get("/metrics")).decode()
            assert 'afterlog_due{topic="mail"} 1.0' in text
            every = (await setting.client.get("/metrics?detail=partition")).decode()
            assert 'afterlog_due{partition="0",topic="mail"} 1.0' in every
            sent = 'afterlog_server_requests_total{method="POST",path="/v1/topics/{topic}/records",status="200"} 1'
            assert sent in text
            assert "afterlog_server_appends_total 1" in text

        run(test)
