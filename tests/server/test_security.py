"""Every endpoint of the table against whoever may not use it: refused, and nothing changed."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from afterlog.api.operation import Scope
from afterlog.base.files import Files
from afterlog.fetch.record_id import RecordId
from afterlog.server.endpoint import Endpoint
from afterlog.server.exchange import Peer
from afterlog.server.limits import Limits
from afterlog.server.table import ENDPOINTS
from afterlog.server.tokens import TokenFile
from afterlog.subscription.dead_letter_headers import Origin
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.server.support import OWNER, STRANGER, Call, Said, Setting, run
from tests.support import PATH

GUARDED = [endpoint for endpoint in ENDPOINTS if endpoint.scope is not None]
OPEN = [endpoint for endpoint in ENDPOINTS if endpoint.scope is None]


def name_of(endpoint: Endpoint) -> str:
    return f"{endpoint.method} {endpoint.path}"


def path_of(endpoint: Endpoint, topic: str = "mail") -> str:
    names = {"topic": topic, "subscription": "sender", "group": "g", "schedule": "weekly"}
    path = re.sub(r"{(\w+)}", lambda match: names[match[1]], endpoint.path)
    return f"{path}?claim=x" if endpoint.path.endswith("/claim") and endpoint.method == "DELETE" else path


BODIES: dict[str, Any] = {
    "POST /v1/topics": {"names": ["new"]},
    "PATCH /v1/topics/{topic}": {"retention_ms": 5},
    "POST /v1/topics/{topic}/purge": {"pending": True},
    "POST /v1/topics/{topic}/positions": {"position": "earliest"},
    "POST /v1/topics/{topic}/records": {"records": [{"value": "x"}]},
    "POST /v1/topics/{topic}/cancel": {"ids": ["mail-0@1"]},
    "POST /v1/topics/{topic}/reschedule": {"id": "mail-0@1", "delay": 5},
    "POST /v1/topics/{topic}/fetch": {"positions": {"0": 0}},
    "PUT /v1/topics/{topic}/groups/{group}/claim": {"claim": "x"},
    "POST /v1/topics/{topic}/groups/{group}/commit": {"claim": "x", "positions": {"0": 1}},
    "POST /v1/topics/{topic}/groups/{group}/reset": {"position": "earliest"},
    "POST /v1/topics/{topic}/subscriptions/{subscription}/seek": {"position": "latest"},
    "POST /v1/topics/{topic}/subscriptions/{subscription}/reset": {"position": "latest"},
    "POST /v1/schedules": {"topic": "mail", "name": "weekly", "every_s": 60},
    "POST /v1/backup": {"dest": "x"},
}
"""What would do something; the others take receipts, or nothing."""


def body_of(endpoint: Endpoint) -> Any:
    if endpoint.body is not None and "receipts" in endpoint.body.fields:
        return {"receipts": ["0.0.0.0"]}
    return BODIES.get(name_of(endpoint), {})


def state(setting: Setting) -> Any:
    """All that a request could have changed."""
    store = setting.store
    topics = {}
    for topic in store.topics():
        stats = [each.stats() for each in store.open_subscriptions() if each.partition.topic == topic.name]
        ends = [(each.log_end_offset, each.log_start, each.pending()) for each in topic.partitions]
        topics[topic.name] = (topic.settings, ends, store.subscriptions(topic.name), store.groups(topic.name), stats)
    return topics, [schedule.name for schedule in store.schedules()]


class Tokens:
    """A file of tokens, for each scope alone."""

    def __init__(self, files: Files | None = None) -> None:
        self.files = files or SimulatedFiles()
        self.files.make_folder(PATH)
        self.file = TokenFile(self.files, PATH / "tokens.json")

    def add(self, name: str, scopes: list[Scope], *prefixes: str) -> dict[str, str]:
        """The header that goes with it."""
        return {"authorization": f"Bearer {self.file.add(name, scopes, prefixes)}"}


async def refused(setting: Setting, endpoint: Endpoint, title: str, path: str | None = None, **more: Any) -> None:
    before = state(setting)
    said = await setting.client.ask(
        endpoint.method, path or path_of(endpoint), body_of(endpoint) if endpoint.method != "GET" else None, **more
    )
    assert title == said.title, (name_of(endpoint), said)
    assert before == state(setting)


def run_with(test: Any, tokens: Tokens, peer: Peer = STRANGER, **more: Any) -> None:
    async def furnished_test(setting: Setting) -> None:
        setting.client.peer = OWNER
        setting.store.create_topic("other")
        for topic in ("mail", "other"):
            await setting.send("due", topic=topic)
            await setting.client.post(f"/v1/topics/{topic}/records", {"records": [{"value": "later", "delay": 60}]})
        await setting.receive()
        setting.client.peer = peer
        await test(setting)

    run(furnished_test, tokens=tokens.file, **more)


class TestEveryEndpoint:
    def test_no_token(self) -> None:
        async def test(setting: Setting) -> None:
            for endpoint in GUARDED:
                await refused(setting, endpoint, "NotAuthenticated")

        run_with(test, Tokens())

    @pytest.mark.parametrize(
        "header",
        ["Bearer nonsense", "Bearer ", "Bearer", "Basic cm9vdDpyb290", "", "Bearer " + "x" * 10_000, "bearer \xff"],
    )
    def test_a_token_that_is_none(self, header: str) -> None:
        async def test(setting: Setting) -> None:
            for endpoint in GUARDED:
                await refused(setting, endpoint, "NotAuthenticated", headers={"authorization": header})

        tokens = Tokens()
        tokens.add("somebody", [*Scope])
        run_with(test, tokens)

    def test_all_scopes_but_the_one_that_it_needs(self) -> None:
        tokens = Tokens()
        headers = {
            scope: tokens.add(f"not-{scope.value}", [each for each in Scope if each is not scope]) for scope in Scope
        }

        async def test(setting: Setting) -> None:
            for endpoint in GUARDED:
                assert endpoint.scope is not None
                await refused(setting, endpoint, "NotAllowed", headers=headers[endpoint.scope])

        run_with(test, tokens)

    def test_all_scopes_of_another_topic(self) -> None:
        """What filters by itself answers, and tells of no other topic."""
        tokens = Tokens()
        header = tokens.add("other", [*Scope], "oth")

        async def test(setting: Setting) -> None:
            for endpoint in GUARDED:
                if "{topic}" in endpoint.path or not endpoint.filters:
                    await refused(setting, endpoint, "NotAllowed", headers=header)
            client = setting.client
            assert ["other"] == [each["name"] for each in (await client.get("/v1/topics", headers=header))["topics"]]
            assert 1 == (await client.get("/v1/store", headers=header))["topics"]
            before = state(setting)
            for path, body in (
                ("/v1/topics", {"names": ["otherwise", "new"]}),
                ("/v1/schedules", {"topic": "mail", "name": "weekly", "every_s": 60}),
            ):
                assert "NotAllowed" == (await client.ask("POST", path, body, headers=header)).title
            assert before == state(setting)
            await client.post("/v1/topics", {"names": ["otherwise"]}, headers=header)

        run_with(test, tokens)

    def test_a_topic_that_a_body_names_is_judged_as_that_of_the_path(self) -> None:
        """Of every endpoint that takes a reader: dead letters go to no topic that the token may not name."""
        tokens = Tokens()
        header = tokens.add("alpha", [*Scope], "mail")
        takes_a_reader = [each for each in GUARDED if each.body is not None and "reader" in each.body.fields]
        assert len(takes_a_reader) > 5

        async def test(setting: Setting) -> None:
            setting.store.create_topic("mail.dead")
            for endpoint in takes_a_reader:
                body = body_of(endpoint) | {"reader": {"dead_letter": "other"}}
                before = state(setting)
                said = await setting.client.ask(endpoint.method, path_of(endpoint), body, headers=header)
                assert "NotAllowed" == said.title, (name_of(endpoint), said)
                assert before == state(setting)
            body = {"reader": {"dead_letter": "mail.dead"}}
            await setting.client.post("/v1/topics/mail/subscriptions/s/receive", body, headers=header)

        run_with(test, tokens)

    def test_a_forged_dead_letter_goes_to_no_other_topic(self) -> None:
        tokens = Tokens()
        header = tokens.add("alpha", [*Scope], "mail")

        async def test(setting: Setting) -> None:
            store = setting.store
            store.create_topic("mail.dead")
            for target in ("other", "mail"):
                origin = Origin(record=RecordId(target, 0, 0), subscription="s", reason="", redelivery_count=1)
                store.send("mail.dead", target.encode(), headers=origin.to_headers())
            ends = {name: store.topic(name).partition(0).log_end_offset for name in ("mail", "other")}
            said = await setting.client.post("/v1/topics/mail.dead/redrive", {}, headers=header)
            assert {"redriven": 1, "left": {"there is no topic 'other' any more": 1}} == said
            await setting.client.refused(
                "NotAllowed", "POST", "/v1/topics/mail.dead/redrive", {"target": "other"}, headers=header
            )
            assert ends["mail"] + 1 == store.topic("mail").partition(0).log_end_offset
            assert ends["other"] == store.topic("other").partition(0).log_end_offset
            assert [b"other"] == [each.message.value for each in store.dead_letters("mail.dead")]

        run_with(test, tokens)

    @pytest.mark.parametrize("change", ["removed", "rotated", "narrowed"])
    def test_who_waits_by_a_token_that_goes_gets_nothing(self, change: str) -> None:
        """And what it was leased goes to the next one."""
        tokens = Tokens()
        header = tokens.add("reader", [Scope.RECEIVE], "mail")

        async def test(setting: Setting) -> None:
            path, body = "/v1/topics/mail/subscriptions/new/receive", {"reader": {"start": "latest"}}
            asked = setting.client.ask("POST", path, {**body, "wait_ms": 60_000}, headers=header)
            waiting = asyncio.ensure_future(asked)
            await setting.waiting(1)
            if change == "rotated":
                tokens.file.rotate("reader")
            else:
                tokens.file.remove("reader")
                if change == "narrowed":
                    tokens.add("reader", [Scope.LOOK], "mail")
            setting.clock.advance(1_001)
            await setting.client.post("/v1/topics/mail/records", {"records": [{"value": "a"}]}, peer=OWNER)
            said = await waiting
            assert 401 == said.status
            found = await setting.client.post(path, body, peer=OWNER)
            assert [("a", 0)] == [(each["value"], each["redelivery_count"]) for each in found["messages"]]

        run_with(test, tokens)

    def test_schedules_of_another_topic_are_not_there(self) -> None:
        tokens = Tokens()
        header = tokens.add("other", [*Scope], "oth")

        async def test(setting: Setting) -> None:
            every = {"topic": "mail", "name": "weekly", "every_s": 60}
            await setting.client.post("/v1/schedules", every, peer=OWNER)
            before = state(setting)
            assert [] == (await setting.client.get("/v1/schedules", headers=header))["schedules"]
            for method, path in (("PATCH", ""), ("POST", "/pause"), ("POST", "/resume"), ("DELETE", "")):
                said = await setting.client.ask(method, f"/v1/schedules/weekly{path}", {}, headers=header)
                assert "UnknownSchedule" == said.title
            assert before == state(setting)

        run_with(test, tokens)

    def test_the_scope_that_it_needs_is_enough(self) -> None:
        tokens = Tokens()
        headers = {scope: tokens.add(scope.value, [scope]) for scope in Scope}

        async def test(setting: Setting) -> None:
            for endpoint in GUARDED:
                if endpoint.method == "DELETE" and endpoint.path.endswith("{topic}"):
                    continue
                assert endpoint.scope is not None
                body = body_of(endpoint) if endpoint.method != "GET" else None
                said = await setting.client.ask(
                    endpoint.method, path_of(endpoint), body, headers=headers[endpoint.scope]
                )
                assert said.status not in (401, 403), (name_of(endpoint), said)
                assert b"ServerFailed" not in said.body, (name_of(endpoint), said)

        run_with(test, tokens)

    def test_another_user_on_the_socket(self) -> None:
        async def test(setting: Setting) -> None:
            for endpoint in GUARDED:
                await refused(setting, endpoint, "NotAuthenticated")

        run_with(test, Tokens(), Peer("user 1234", trusted=False, tcp=False))

    def test_pages_of_elsewhere(self) -> None:
        """Also with a token: a browser that has one for this server sends it for nobody else."""
        tokens = Tokens()
        header = tokens.add("all", [*Scope])
        wrong = (
            {"host": "rebound.example"},
            {"host": "localhost.evil.example"},
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"origin": "http://localhost:1"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
        )

        async def test(setting: Setting) -> None:
            for endpoint in ENDPOINTS:
                for headers in wrong:
                    await refused(setting, endpoint, "NotAllowed", headers={**header, **headers})

        run_with(test, tokens)

    def test_what_a_form_can_send(self) -> None:
        tokens = Tokens()
        header = tokens.add("all", [*Scope])

        async def test(setting: Setting) -> None:
            for endpoint in ENDPOINTS:
                if endpoint.method == "GET":
                    continue
                for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
                    await refused(setting, endpoint, "NotAllowed", headers={**header, "content-type": kind})

        run_with(test, tokens)

    def test_bodies_that_are_too_large_cut_off_or_nonsense(self) -> None:
        limits = Limits(json_bytes=1_000, body_bytes=2_000)
        wrong = ("RequestTooLarge", b"[" + b" " * 2_000), ("InvalidRequest", b'{"a":'), ("InvalidRequest", b"\xff{}")

        async def test(setting: Setting) -> None:
            for endpoint in ENDPOINTS:
                if endpoint.method == "GET":
                    continue
                for title, data in wrong:
                    before = state(setting)
                    said = await sent_in_pieces(setting, endpoint, [data])
                    assert title == said.title, (name_of(endpoint), said)
                    said = await sent_in_pieces(setting, endpoint, [data[:2], data[2:], b""])
                    assert title == said.title, (name_of(endpoint), said)
                    assert before == state(setting)

        run_with(test, Tokens(), OWNER, limits=limits)

    def test_bodies_that_are_none_of_theirs(self) -> None:
        async def test(setting: Setting) -> None:
            for endpoint in ENDPOINTS:
                if endpoint.method == "GET":
                    continue
                for body in ([], 5, "x", None, {"colour": "red"}, [[[[]]]]):
                    before = state(setting)
                    said = await sent_in_pieces(
                        setting, endpoint, [str(body).replace("'", '"').replace("None", "null").encode()]
                    )
                    assert "InvalidRequest" == said.title, (name_of(endpoint), body, said)
                    assert before == state(setting)

        run_with(test, Tokens(), OWNER)

    def test_parameters_that_are_none_of_theirs(self) -> None:
        async def test(setting: Setting) -> None:
            for endpoint in ENDPOINTS:
                for query in ("colour=red", "%ff=1", "force=maybe"):
                    separator = "&" if "?" in path_of(endpoint) else "?"
                    path = f"{path_of(endpoint)}{separator}{query}"
                    await refused(setting, endpoint, "InvalidRequest", path)

        run_with(test, Tokens(), OWNER)


async def sent_in_pieces(setting: Setting, endpoint: Endpoint, pieces: list[bytes], **more: Any) -> Said:
    return await setting.client.ask(endpoint.method, path_of(endpoint), pieces=pieces, **more)


class TestOpen:
    def test_only_what_tells_nothing(self) -> None:
        assert {"/livez", "/readyz"} <= {endpoint.path for endpoint in OPEN}
        assert all(endpoint.method == "GET" for endpoint in OPEN)

    def test_it_needs_no_token(self) -> None:
        async def test(setting: Setting) -> None:
            for endpoint in OPEN:
                assert 200 == (await setting.client.ask("GET", endpoint.path)).status

        run_with(test, Tokens())


class TestPaths:
    @pytest.mark.parametrize(
        "path",
        [
            "/nothing",
            "/v1",
            "/v1/",
            "/v1/topics/",
            "//v1/topics",
            "/v1/topics//stats",
            "/v1/../v1/topics",
            "/v1/topics/a/b/c",
        ],
    )
    def test_what_is_not_there(self, path: str) -> None:
        async def test(setting: Setting) -> None:
            said = await setting.client.ask("GET", path)
            assert (404, "InvalidRequest") == (said.status, said.title)
            assert 401 == (await setting.client.ask("GET", path, peer=STRANGER)).status

        run_with(test, Tokens(), OWNER)

    def test_methods_that_are_not_for_it(self) -> None:
        async def test(setting: Setting) -> None:
            said = await setting.client.ask("PUT", "/v1/topics", {})
            assert (405, "GET, POST") == (said.status, said.headers["allow"])
            assert 401 == (await setting.client.ask("PUT", "/v1/topics", {}, peer=STRANGER)).status

        run_with(test, Tokens(), OWNER)

    def test_names_with_slashes_and_dots_name_nothing(self) -> None:
        async def test(setting: Setting) -> None:
            for name in ("..%2F..%2Fetc", "a%2Fb", "%2e%2e", "%00", "mail%00"):
                said = await setting.client.ask("GET", f"/v1/topics/{name}")
                assert "UnknownTopic" == said.title
                said = await setting.client.ask("POST", f"/v1/topics/mail/subscriptions/{name}/receive", {})
                assert "InvalidTopic" == said.title

        run_with(test, Tokens(), OWNER)


class TestLimits:
    def test_requests_of_one_client_at_once(self) -> None:
        async def test(setting: Setting) -> None:
            path = "/v1/topics/mail/subscriptions/sender/receive"
            calls: list[tuple[Call, Any]] = [setting.client.call("POST", path, {"wait_ms": 60_000}) for _ in range(2)]
            await setting.waiting(2)
            problem = await setting.client.refused("ServerBusy", "GET", "/v1/topics")
            assert (429, True) == (problem["status"], problem["retriable"])
            assert 401 == (await setting.client.ask("GET", "/v1/topics", peer=STRANGER)).status  # another client
            for call, task in calls:
                call.go()
                await task
            await setting.client.get("/v1/topics")

        run_with(test, Tokens(), OWNER, limits=Limits(requests=2))

    def test_bodies_of_all_requests(self) -> None:
        async def test(setting: Setting) -> None:
            small = {"records": [{"value": "x"}]}
            await setting.client.post("/v1/topics/mail/records", small)
            big = {"records": [{"value": "x" * 200}]}
            await setting.client.refused(
                "ServerBusy", "POST", "/v1/topics/mail/records", big, headers={"content-length": "230"}
            )
            assert (
                "ServerBusy"
                == (
                    await setting.client.ask("POST", "/v1/topics/mail/records", pieces=[b"x" * 80, b"x" * 80, b""])
                ).title
            )
            await setting.client.post("/v1/topics/mail/records", small)

        run_with(test, Tokens(), OWNER, limits=Limits(bodies_bytes=100))

    def test_a_body_that_says_that_it_is_huge_is_not_waited_for(self) -> None:
        async def test(setting: Setting) -> None:
            headers = {"content-length": str(2**40)}
            said = await setting.client.ask("POST", "/v1/topics/mail/records", pieces=[b"{}"], headers=headers)
            assert (413, "RequestTooLarge", "close") == (said.status, said.title, said.headers["connection"])

        run_with(test, Tokens(), OWNER)

    def test_an_error_that_nobody_expected_says_nothing_of_itself(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def test(setting: Setting) -> None:
            def failing() -> None:
                raise RuntimeError("the secret is 42")

            monkeypatch.setattr(setting.store, "sync", failing)
            said = await setting.client.ask("POST", "/v1/sync", {})
            assert (500, "ServerFailed") == (said.status, said.title)
            assert b"42" not in said.body
            assert "the secret is 42" in caplog.text

        run_with(test, Tokens(), OWNER)

    def test_refusals_are_logged_and_the_rest_only_for_who_debugs(self, caplog: pytest.LogCaptureFixture) -> None:
        async def test(setting: Setting) -> None:
            caplog.clear()
            await setting.client.get("/v1/topics", peer=OWNER)
            assert [] == caplog.records
            await setting.client.ask("GET", "/v1/topics")
            [record] = caplog.records
            assert "WARNING" == record.levelname
            for part in ("method=GET", "path=/v1/topics", "status=401", "caller=10.0.0.7", "error=NotAuthenticated"):
                assert part in record.getMessage()

        run_with(test, Tokens())
