"""What the page asks: all topics at once, records found, one record; and that a link may lead here."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.support import STRANGER, Setting, run
from tests.support import NOW_MS

FIND = "/v1/topics/mail/find"
ELSEWHERE = {"sec-fetch-site": "cross-site"}


async def filled(setting: Setting) -> list[str]:
    """Five records, due after 1 to 5 s, of keys a and b in turn."""
    ids = []
    for row in range(5):
        ids += await setting.send(f"v{row}", delay=row + 1, key="ab"[row % 2])
    return ids


def values(answer: dict[str, Any]) -> list[str]:
    return [record["value"] for record in answer["records"]]


def test_overview() -> None:
    async def test(setting: Setting) -> None:
        setting.store.create_topics(["mail.dead", "audit"])
        await filled(setting)
        answer = await setting.client.get("/v1/overview?filter=MAIL&sort=pending&descending=true&limit=1")
        assert ["mail"] == [row["topic"] for row in answer["topics"]]
        assert [3, 2, 5, NOW_MS] == [answer["all"], answer["matching"], answer["totals"]["pending"], answer["now_ms"]]
        assert NOW_MS + 1_000 == answer["topics"][0]["next_due"]
        assert ["audit"] == [row["topic"] for row in (await setting.client.get("/v1/overview?topic=audit"))["topics"]]
        await setting.client.refused("UnknownTopic", "GET", "/v1/overview?topic=nobody")
        for wrong in ("sort=secret", "limit=0", "limit=501", "offset=-1", "descending=1", "other=1"):
            await setting.client.refused("InvalidRequest", "GET", f"/v1/overview?{wrong}")

    run(test)


def test_find_pending_and_due() -> None:
    async def test(setting: Setting) -> None:
        await filled(setting)
        first = await setting.client.get(f"{FIND}?limit=2")
        assert ["v0", "v1"] == values(first)
        assert ["v2", "v3", "v4"] == values(await setting.client.get(f"{FIND}?after={first['after']}"))
        assert ["v1", "v3"] == values(await setting.client.get(f"{FIND}?key=b"))
        assert ["v1", "v3"] == values(await setting.client.get(f"{FIND}?key=base64:Yg=="))
        assert ["v3", "v4"] == values(await setting.client.get(f"{FIND}?from={NOW_MS + 3_001}&partition=0"))
        setting.clock.advance(3_000)
        assert ["v0", "v1", "v2"] == values(await setting.client.get(f"{FIND}?state=due"))
        assert ["v0", "v2"] == values(await setting.client.get(f"{FIND}?state=due&key=a"))
        assert ["v2"] == values(await setting.client.get(f"{FIND}?state=due&from={NOW_MS + 2_001}"))
        assert ["v3", "v4"] == values(await setting.client.get(FIND))
        for wrong in ("state=gone", "limit=0", "limit=501", "key=base64:!", "from=x", "partition=-1"):
            await setting.client.refused("InvalidRequest", "GET", f"{FIND}?{wrong}")
        await setting.client.refused("InvalidArgument", "GET", f"{FIND}?after=1")
        await setting.client.refused("UnknownPartition", "GET", f"{FIND}?partition=7")
        await setting.client.refused("UnknownTopic", "GET", "/v1/topics/nobody/find")

    run(test)


def test_what_is_due_of_a_key_is_found_in_its_partition() -> None:
    async def test(setting: Setting) -> None:
        topic = setting.store.create_topic("many", partitions=5)
        await setting.send("here", topic="many", key="k")
        assert ["here"] == values(await setting.client.get("/v1/topics/many/find?state=due&key=k"))
        number = topic.partition_of(b"k")
        assert ["here"] == values(await setting.client.get(f"/v1/topics/many/find?state=due&partition={number}"))
        other = (number + 1) % 5
        assert [] == values(await setting.client.get(f"/v1/topics/many/find?state=due&partition={other}"))

    run(test)


def test_one_record() -> None:
    async def test(setting: Setting) -> None:
        [first, *_, last] = await filled(setting)
        await setting.client.post("/v1/topics/mail/cancel", {"ids": [last]})
        setting.clock.advance(1_000)
        for record, state, value in ((first, "due", "v0"), ("mail-0@1", "pending", "v1"), (last, "cancelled", "v4")):
            answer = await setting.client.get(f"/v1/topics/mail/record?id={record}")
            assert (record, state, value) == (answer["record"]["id"], answer["state"], answer["record"]["value"])
        path = "/v1/topics/mail/record"
        await setting.client.refused("OffsetOutOfRange", "GET", f"{path}?id=mail-0@99")
        await setting.client.refused("InvalidRecord", "GET", f"{path}?id=mail")
        await setting.client.refused("InvalidRequest", "GET", path)
        await setting.client.refused("InvalidRequest", "GET", f"{path}?id=mail-0@1&unique_key=k")
        assert (await setting.client.get(f"{path}?unique_key=k"))["record"] is None
        setting.store.send("mail", b"unique", delay=60, unique_key=b"\xff")
        answer = await setting.client.get(f"{path}?unique_key=base64:/w==")
        assert ("unique", "pending") == (answer["record"]["value"], answer["state"])
        setting.store.create_topic("other")
        setting.store.send("other", b"secret")
        await setting.client.refused("InvalidRequest", "GET", f"{path}?id=other-0@0")

    run(test)


def test_the_store_says_what_one_may_do() -> None:
    async def test(setting: Setting) -> None:
        scopes = (await setting.client.get("/v1/store"))["scopes"]
        assert {scope: [""] for scope in ("look", "send", "receive", "manage", "replicate")} == scopes

    run(test)


@pytest.mark.parametrize("path", ["/v1/overview", FIND, "/v1/topics/mail/record?id=mail-0@0"])
def test_who_is_not_known_sees_nothing(path: str) -> None:
    async def test(setting: Setting) -> None:
        await filled(setting)
        await setting.client.refused("NotAuthenticated", "GET", path, peer=STRANGER)

    run(test)


def test_a_link_of_elsewhere_may_lead_here_and_a_script_may_not_ask() -> None:
    async def test(setting: Setting) -> None:
        visit = {**ELSEWHERE, "sec-fetch-dest": "document"}
        assert 200 == (await setting.client.ask("GET", "/", headers=visit)).status
        await setting.client.refused("NotAllowed", "GET", "/", headers=ELSEWHERE)
        await setting.client.refused("NotAllowed", "GET", "/", headers={**ELSEWHERE, "sec-fetch-dest": "iframe"})
        await setting.client.refused("NotAllowed", "POST", "/v1/topics/mail/cancel", {"ids": []}, headers=visit)

    run(test)
