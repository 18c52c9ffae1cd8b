"""What is told of a producer that numbers what it sends."""

from __future__ import annotations

from tests.server.support import Setting, run

RECORDS = "/v1/topics/mail/records"
WHO = "partition=0&producer_id=7&producer_epoch"


def test_what_is_next_and_what_is_there() -> None:
    async def test(setting: Setting) -> None:
        client = setting.client
        assert {"sequence": 0} == await client.get(f"/v1/topics/mail/next-sequence?{WHO}=0")
        producer = {"id": 7, "epoch": 0, "sequence": 0}
        await client.post(RECORDS, {"records": [{"value": "a"}] * 3, "partition": 0, "producer": producer})
        assert {"sequence": 3} == await client.get(f"/v1/topics/mail/next-sequence?{WHO}=0")
        assert {"sequence": 0} == await client.get(f"/v1/topics/mail/next-sequence?{WHO}=1")
        appended = f"/v1/topics/mail/appended?{WHO}=0&sequence"
        assert {"offsets": [1, 2]} == await client.get(f"{appended}=1&records=5")
        assert {"offsets": [0]} == await client.get(f"{appended}=0")
        assert {"offsets": []} == await client.get(f"{appended}=3")
        problem = await client.refused("OutOfOrderSequence", "GET", f"{appended}=9")
        assert 3 == problem["expected"]

    run(test)


def test_what_is_fenced_or_not_there() -> None:
    async def test(setting: Setting) -> None:
        client = setting.client
        producer = {"id": 7, "epoch": 1, "sequence": 0}
        await client.post(RECORDS, {"records": [{"value": "a"}], "partition": 0, "producer": producer})
        await client.refused("ProducerFenced", "GET", f"/v1/topics/mail/next-sequence?{WHO}=0")
        await client.refused("ProducerFenced", "GET", f"/v1/topics/mail/appended?{WHO}=0&sequence=0")
        for path, more in (("next-sequence", ""), ("appended", "&sequence=0")):
            await client.refused("UnknownTopic", "GET", f"/v1/topics/none/{path}?{WHO}=0{more}")
            await client.refused("InvalidRequest", "GET", f"/v1/topics/mail/{path}?producer_id=7")

    run(test)
