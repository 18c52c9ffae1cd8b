"""Endpoints of subscriptions: receive, and the settling of leases (ack, nack, extend, release, reject)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from afterlog.api import operations
from afterlog.api.position_text import position_of
from afterlog.api.receipt import Receipt
from afterlog.api.record_json import message_row
from afterlog.fetch.message_columns import Columns
from afterlog.server.endpoint import endpoints
from afterlog.server.open_readers import Lent, OpenReader
from afterlog.server.request import NO_CONTENT, Reply, Request, as_json, json_bytes
from afterlog.server.served import Served
from afterlog.subscription.answers import AckResult, ReceiptResult
from afterlog.subscription.flow_control import Place
from afterlog.subscription.received import Receipts, Received

ACKED_ONE_BY_ONE: Final = 256
"""Receipts that are acked as numbers, of each of which it is said what came of it; more as columns."""
FEW: Final = 20
"""Rows that are written as JSON by the event loop; more go to a thread."""


_OUTCOMES: Final = ("acked", "already", "unknown")


def named(request: Request) -> Receipts:
    """The receipts of a request, JSON or Arrow. Raises InvalidReceipt, InvalidRequest."""
    if request.data is not None:
        from afterlog.api.arrow_stream import receipts_of

        return receipts_of(request.data)
    return Receipts.of_rows([Receipt.parse(text) for text in request.body["receipts"]])


async def list_subscriptions(served: Served, request: Request) -> Reply:
    return as_json({"subscriptions": await served.run(lambda: served.store.subscriptions(request.topic))})


async def show_subscription(served: Served, request: Request) -> Reply:
    name = request.arguments["subscription"]
    async with served.readers.lent_for_receipts(request.topic, name, None) as reader:
        stats = await served.run(reader.subscription.stats)
    told = asdict(stats)
    told["partitions"] = {str(number): row for number, row in told["partitions"].items()}
    return as_json({**told, "now_ms": served.store.now_ms()})


async def leased_records(served: Served, request: Request) -> Reply:
    name, limit = request.arguments["subscription"], request.arguments["limit"]

    def ask() -> dict[str, Any]:
        found = served.store.leased(request.topic, name, limit=limit)
        return {"leased": [message_row(record) for record in found], "now_ms": served.store.now_ms()}

    return as_json(await served.run(ask))


async def open_subscription(served: Served, request: Request) -> Reply:
    """Where it is new it begins here, so that nothing which is sent from now on is missed."""
    async with served.readers.lent(request.topic, request.arguments["subscription"], request.body["reader"]) as reader:
        numbers = sorted(each.partition.number for each in reader.subscription.shared)
        return as_json({"partitions": numbers, "now_ms": served.store.now_ms()})


async def receive(served: Served, request: Request) -> Reply:
    body = request.body
    async with served.readers.lent(request.topic, request.arguments["subscription"], body["reader"]) as reader:
        found = await reader.receive(body["max_records"], 0.0)
        if found is None and body["wait_ms"]:
            waiting = reader.receive(body["max_records"], body["wait_ms"] / 1_000)
            found = await served.waits.until(waiting, request.exchange)
        now_ms = served.store.now_ms()
        if found is None or not len(found):
            return _nothing(request, now_ms)
        try:
            if request.wants_arrow:
                made = await served.run(lambda: _arrow(found, now_ms))
            elif len(found) <= FEW:
                made = _rows(found, now_ms)
            else:
                made = await served.run(lambda: _rows(found, now_ms))
        except BaseException:
            await asyncio.shield(reader.release(found))
            raise
        return made._replace(unsent=lambda: reader.release(found))


async def ack(served: Served, request: Request) -> Reply:
    texts: Sequence[str] = () if request.data is not None else request.body["receipts"]
    if 0 < len(texts) <= ACKED_ONE_BY_ONE:
        places = [Receipt.parse(text).place for text in texts]
        async with _lent(served, request) as reader:
            found = await served.run(lambda: reader.subscription.ack_places(places))
        return as_json({**_acked_each(places, found), "now_ms": served.store.now_ms()})

    def done(reader: OpenReader, receipts: Receipts) -> dict[str, Any]:
        return _acked(reader.subscription.ack_many(receipts))

    return await _settled(served, request, done)


async def nack(served: Served, request: Request) -> Reply:
    body = request.body

    def done(reader: OpenReader, receipts: Receipts) -> dict[str, Any]:
        return _result(reader.subscription.nack(receipts, delay=body["delay"], reason=body["reason"]))

    return await _settled(served, request, done)


async def reject(served: Served, request: Request) -> Reply:
    def done(reader: OpenReader, receipts: Receipts) -> dict[str, Any]:
        return _result(reader.subscription.reject(receipts, request.body["reason"]))

    return await _settled(served, request, done)


async def release(served: Served, request: Request) -> Reply:
    def done(reader: OpenReader, receipts: Receipts) -> dict[str, Any]:
        return _result(reader.subscription.release(receipts))

    return await _settled(served, request, done)


async def extend(served: Served, request: Request) -> Reply:
    def done(reader: OpenReader, receipts: Receipts) -> dict[str, Any]:
        return _result(reader.subscription.extend(receipts, lease_ms=request.body["lease_ms"]))

    return await _settled(served, request, done)


async def seek(served: Served, request: Request) -> Reply:
    body, name = request.body, request.arguments["subscription"]
    wanted = position_of(body["position"])
    async with served.readers.lent_for_receipts(request.topic, name, body["reader"]) as reader:
        await served.run(lambda: reader.subscription.seek(wanted, body["partition"]))
    return NO_CONTENT


async def reset_subscription(served: Served, request: Request) -> Reply:
    body, name = request.body, request.arguments["subscription"]
    wanted = position_of(body["position"])
    await served.readers.let_go(request.topic, name)
    await served.run(lambda: served.store.reset_subscription(request.topic, name, wanted, delay_ms=body["delay_ms"]))
    return NO_CONTENT


async def delete_subscription(served: Served, request: Request) -> Reply:
    name, force = request.arguments["subscription"], request.arguments["force"]
    await served.readers.let_go(request.topic, name)
    await served.run(lambda: served.store.delete_subscription(request.topic, name, force=force))
    return NO_CONTENT


async def _settled(served: Served, request: Request, done: Callable[[OpenReader, Receipts], dict[str, Any]]) -> Reply:
    """What a call with the receipts of a request says."""
    receipts = named(request)
    async with _lent(served, request) as reader:
        said = await served.run(lambda: done(reader, receipts))
    return as_json({**said, "now_ms": served.store.now_ms()})


def _lent(served: Served, request: Request) -> Lent:
    name = request.arguments["subscription"]
    return served.readers.lent_for_receipts(request.topic, name, request.body["reader"])


def _acked(result: AckResult) -> dict[str, Any]:
    return {"acked": result.acked, "already": result.already, "unknown": result.unknown}


def _acked_each(places: Sequence[Place], answers: Sequence[AckResult]) -> dict[str, Any]:
    """The same of a few, each receipt counted once, and what came of each where that is not the same for all."""
    if all(answer.acked for answer in answers):
        return {"acked": len(answers), "already": 0, "unknown": 0}
    first = dict(zip(reversed(places), reversed(answers), strict=True)).values()
    said = {word: sum(getattr(answer, word) for answer in first) for word in _OUTCOMES}
    return {**said, "outcomes": [next(word for word in _OUTCOMES if getattr(answer, word)) for answer in answers]}


def _result(result: ReceiptResult) -> dict[str, Any]:
    return {"done": result.done, "stale": result.stale, "deadline_ms": result.deadline_ms}


def _nothing(request: Request, now_ms: int) -> Reply:
    if request.wants_arrow:
        from afterlog.api.arrow_message import MEDIA_TYPE
        from afterlog.api.arrow_stream import delivered_stream

        none = np.empty(0, np.int64)
        empty = Columns.empty(request.topic)
        data = delivered_stream(empty, {"now_ms": now_ms}, lease_number=none, deadline_ms=none)
        return Reply(data, media_type=MEDIA_TYPE)
    return Reply(b'{"messages":[],"now_ms":%d}' % now_ms)


def _rows(found: Received, now_ms: int) -> Reply:
    return Reply(json_bytes({"messages": [message_row(message) for message in found], "now_ms": now_ms}))


def _arrow(found: Received, now_ms: int) -> Reply:
    from afterlog.api.arrow_message import MEDIA_TYPE
    from afterlog.api.arrow_stream import delivered_stream

    data = delivered_stream(
        found.columns, {"now_ms": now_ms}, lease_number=found.lease_number, deadline_ms=found.deadline_ms
    )
    return Reply(data, media_type=MEDIA_TYPE)


ENDPOINTS: Final = endpoints(
    {
        operations.LIST_SUBSCRIPTIONS: list_subscriptions,
        operations.SHOW_SUBSCRIPTION: show_subscription,
        operations.LEASED_RECORDS: leased_records,
        operations.OPEN_SUBSCRIPTION: open_subscription,
        operations.RECEIVE: receive,
        operations.ACK: ack,
        operations.NACK: nack,
        operations.REJECT: reject,
        operations.RELEASE: release,
        operations.EXTEND: extend,
        operations.SEEK: seek,
        operations.RESET_SUBSCRIPTION: reset_subscription,
        operations.DELETE_SUBSCRIPTION: delete_subscription,
    }
)
