"""Endpoints that search: the overview of all topics, records by key, time or id, and one record."""

from __future__ import annotations

from typing import Any, Final

from afterlog.api import operations
from afterlog.api.record_json import message_row
from afterlog.base import errors
from afterlog.fetch.record_id import RecordId
from afterlog.server.endpoint import endpoints
from afterlog.server.record_search import due_page, pending_page
from afterlog.server.request import Reply, Request, as_json
from afterlog.server.scheduled_api import key_of_text
from afterlog.server.served import Served


async def show_overview(served: Served, request: Request) -> Reply:
    asked = dict(request.arguments)
    filter_text = asked.pop("filter")

    def may_look(topic: str) -> bool:
        return topic.startswith(request.prefixes)

    return as_json(await served.run(lambda: served.overview.page(may_look=may_look, filter_text=filter_text, **asked)))


async def find(served: Served, request: Request) -> Reply:
    asked = request.arguments
    number, key = asked["partition"], None if asked["key"] is None else key_of_text(asked["key"])
    options: dict[str, Any] = {"key": key, "from_ms": asked["from"], "after": asked["after"], "limit": asked["limit"]}

    def ask() -> dict[str, Any]:
        topic = served.store.topic(request.topic)
        if asked["state"] == "pending":
            found = pending_page(topic, range(topic.partition_count) if number is None else [number], **options)
        else:
            chosen = number if number is not None else 0 if key is None else topic.partition_of(key)
            found = due_page(topic.partition(chosen), **options)
        return {**found.to_row(), "now_ms": served.store.now_ms()}

    return as_json(await served.run(ask))


async def show_record(served: Served, request: Request) -> Reply:
    name, key = request.arguments["id"], request.arguments["unique_key"]
    if (name is None) == (key is None):
        raise errors.InvalidRequest("ask for an `id`, or for a `unique_key`")
    record = None if name is None else RecordId.parse(name)
    if record is not None and record.topic != request.topic:
        raise errors.InvalidRequest(f"{record} is no record of {request.topic}")

    def ask() -> dict[str, Any]:
        store = served.store
        if record is None:
            found = store.get_unique(request.topic, key_of_text(key) or b"", partition=request.arguments["partition"])
        else:
            found = store.get(record)
            if found is None:
                log = store.topic(record.topic).log(record.partition)
                raise errors.OffsetOutOfRange(
                    f"{record} is not in the log, or not any more",
                    position=record.offset, log_start=log.log_start_offset, log_end=log.written,
                )  # fmt: skip
        row = {"record": None, "state": None} if found is None else {"record": message_row(found), "state": found.state}
        return {**row, "now_ms": store.now_ms()}

    return as_json(await served.run(ask))


ENDPOINTS: Final = endpoints(
    {
        operations.OVERVIEW: show_overview,
        operations.FIND: find,
        operations.SHOW_RECORD: show_record,
    }
)
