"""Endpoints of subscriptions: receive, and the settling of leases (ack, nack, extend, release, reject)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from afterlog.api.position_text import position_of
from afterlog.api.reader_json import READER
from afterlog.api.receipt import Receipt
from afterlog.api.record_json import message_row
from afterlog.api.schema import Fields, Listing, Number, Shape, Text, Told, Whole, answer
from afterlog.api.shapes import (
    COUNT,
    INSTANT,
    LEASED,
    PARTITION,
    RECEIPT,
    RECORDS_MAX,
    WAIT_MS,
    position,
)
from afterlog.base import errors
from afterlog.fetch.message_columns import Columns
from afterlog.server.endpoint import Endpoint, Scope
from afterlog.server.open_readers import Lent, OpenReader
from afterlog.server.receipts import named
from afterlog.server.request import NO_CONTENT, Reply, Request, as_json, json_bytes
from afterlog.server.served import Served
from afterlog.server.topics_api import FORCE
from afterlog.subscription.answers import AckResult, ReceiptResult
from afterlog.subscription.received import Receipts, Received

_RECEIPTS = Listing(Told(RECEIPT))
RECEIVE: Final = Fields({"max_records": Whole(1, RECORDS_MAX, default=100), "wait_ms": WAIT_MS, "reader": READER})
ACK: Final = Fields({"receipts": _RECEIPTS, "reader": READER})
NACK: Final = Fields(
    {
        "receipts": _RECEIPTS,
        "delay": Number(default=None, null=True, about="seconds; by default the retry policy's"),
        "reason": Text(default="", most=4_000),
        "reader": READER,
    }
)
REJECT: Final = Fields({"receipts": _RECEIPTS, "reason": Text(default="", most=4_000), "reader": READER})
RELEASE: Final = ACK
EXTEND: Final = Fields({"receipts": _RECEIPTS, "lease_ms": Whole(1, default=None, null=True), "reader": READER})
SEEK: Final = Fields({"position": position(), "partition": PARTITION, "reader": READER})
RESET: Final = Fields({"position": position(), "delay_ms": Whole(default=0)})
FEW: Final = 20
"""Rows that are written as JSON by the event loop; more go to a thread."""


async def list_subscriptions(served: Served, request: Request) -> Reply:
    return as_json({"subscriptions": await served.run(lambda: served.store.subscriptions(request.topic))})


async def show_subscription(served: Served, request: Request) -> Reply:
    name = request.arguments["subscription"]
    async with served.readers.lent_for_receipts(request.topic, name, None) as reader:
        stats = await served.run(reader.subscription.stats)
    told = asdict(stats)
    told["partitions"] = {str(number): row for number, row in told["partitions"].items()}
    return as_json({**told, "now_ms": served.store.now_ms()})


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
            found = await served.waits.until(waiting, request.receive)
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
    texts: Sequence[object] = () if request.data is not None else request.body["receipts"]
    if len(texts) == 1:
        one = Receipt.parse(texts[0])
        async with _lent(served, request) as reader:
            found = await served.run(
                lambda: reader.subscription.ack_receipt(one.partition, one.delivery_offset, one.lease_number)
            )
        return as_json({**_acked(found), "now_ms": served.store.now_ms()})

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


_SUBSCRIPTIONS = "/v1/topics/{topic}/subscriptions"
_S = f"{_SUBSCRIPTIONS}/{{subscription}}"
_DONE = answer({"done": COUNT, "stale": COUNT, "deadline_ms": COUNT, "now_ms": INSTANT})
_OPENING = (
    errors.UnknownTopic, errors.UnknownPartition, errors.InvalidSubscription, errors.InvalidTopic, errors.NameTaken,
    errors.OffsetOutOfRange, errors.ClockBehind, errors.TopicDeleted,
)  # fmt: skip
_SETTLING = (*_OPENING, errors.UnknownSubscription, errors.InvalidReceipt)


def _options(body: Fields) -> dict[str, Shape]:
    """What stands beside the receipts."""
    return {name: shape for name, shape in body.fields.items() if name != "receipts"}


def _settling(word: str, summary: str, handler: Any, body: Fields, said: dict[str, Any] = _DONE) -> Endpoint:
    return Endpoint(method="POST", path=f"{_S}/{word}", scope=Scope.RECEIVE, summary=summary, handler=handler,
                    body=body, answer=said, arrow=_options(body), errors=_SETTLING)  # fmt: skip


ENDPOINTS: Final = (
    Endpoint(method="GET", path=_SUBSCRIPTIONS, scope=Scope.LOOK, summary="The subscriptions to a topic",
             handler=list_subscriptions,
             answer=answer({"subscriptions": {"type": "array", "items": {"type": "string"}}}),
             errors=(errors.UnknownTopic,)),
    Endpoint(method="GET", path=_S, scope=Scope.LOOK, summary="How a subscription stands", handler=show_subscription,
             answer=answer({"pending": COUNT, "due": COUNT, "leased": COUNT, "retrying": COUNT, "acked": COUNT,
                            "partitions": {"type": "object"}, "now_ms": INSTANT}),
             errors=(errors.UnknownTopic, errors.UnknownSubscription)),
    Endpoint(method="PUT", path=_S, scope=Scope.RECEIVE, summary="Make a subscription, where it is new",
             handler=open_subscription, body=Fields({"reader": READER}),
             answer=answer({"partitions": {"type": "array", "items": COUNT}, "now_ms": INSTANT}), errors=_OPENING),
    Endpoint(method="POST", path=f"{_S}/receive", scope=Scope.RECEIVE,
             summary="Lease due records; waits where nothing is due. Makes the subscription where it is new",
             handler=receive, body=RECEIVE,
             answer=answer({"messages": {"type": "array", "items": LEASED}, "now_ms": INSTANT}), gives_arrow=True,
             repeatable=False, errors=_OPENING),
    _settling("ack", "They are done with", ack, ACK,
              answer({"acked": COUNT, "already": COUNT, "unknown": COUNT, "now_ms": INSTANT})),
    _settling("nack", "They failed, and come again, or go to the dead letters", nack, NACK),
    _settling("reject", "They can never be worked off: to the dead letters", reject, REJECT),
    _settling("release", "Give them back, to go out again at once, uncounted", release, RELEASE),
    _settling("extend", "Lease them for longer", extend, EXTEND),
    Endpoint(method="POST", path=f"{_S}/seek", scope=Scope.RECEIVE, summary="Read on from a position, for all readers",
             handler=seek, body=SEEK, errors=(*_OPENING, errors.UnknownSubscription)),
    Endpoint(method="POST", path=f"{_S}/reset", scope=Scope.MANAGE, summary="The same of a subscription at rest",
             handler=reset_subscription, body=RESET, errors=(*_OPENING, errors.UnknownSubscription)),
    Endpoint(method="DELETE", path=_S, scope=Scope.MANAGE, summary="Delete a subscription and all that it knows",
             handler=delete_subscription, parameters=FORCE, repeatable=False,
             errors=(errors.UnknownTopic, errors.UnknownSubscription, errors.TopicBusy)),
)  # fmt: skip
