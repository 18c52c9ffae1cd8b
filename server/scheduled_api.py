"""Endpoints of pending records, their histogram, dead letters and recurring schedules."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

from afterlog.api import operations
from afterlog.api.byte_text import bytes_of, headers_of, text_or_base64
from afterlog.api.record_json import clients_headers, message_row
from afterlog.api.statistics import due_histogram
from afterlog.base import errors
from afterlog.base.arguments import KEEP
from afterlog.base.errors import InvalidTopic, UnknownTopic
from afterlog.fetch.record_id import RecordId
from afterlog.produce.topic import Topic
from afterlog.server.endpoint import endpoints
from afterlog.server.request import NO_CONTENT, Reply, Request, as_json
from afterlog.server.served import Served
from afterlog.store.schedule_document import Schedule
from afterlog.subscription.answers import RedriveResult
from afterlog.subscription.chosen_letters import ChosenLetters
from afterlog.subscription.redrive import SUBSCRIPTION, DeadLetterMessage, SentBack
from afterlog.subscription.redrive import redrive as send_back


async def pending(served: Served, request: Request) -> Reply:
    asked = request.arguments
    key = None if asked["key"] is None else key_of_text(asked["key"])

    def ask() -> Reply:
        found = served.store.pending(
            request.topic, limit=asked["limit"], key=key, partition=asked["partition"], after=asked["after"],
            before=asked["before"],
        )  # fmt: skip
        return as_json({"records": [message_row(record) for record in found], "now_ms": served.store.now_ms()})

    return await served.run(ask)


async def histogram(served: Served, request: Request) -> Reply:
    asked = request.arguments

    def ask() -> Reply:
        topic, now_ms = served.store.topic(request.topic), served.store.now_ms()
        bars = due_histogram(topic, now_ms, asked["bars"], asked["from"], asked["to"])
        return as_json({"bars": bars, "now_ms": now_ms})

    return await served.run(ask)


async def dead_letters(served: Served, request: Request) -> Reply:
    def ask() -> Reply:
        asked = request.arguments
        found = served.store.dead_letters(
            request.topic, limit=asked["limit"], subscription=asked["subscription"], reason=asked["reason"]
        )
        return as_json({"dead_letters": [_letter_row(letter) for letter in found]})

    return await served.run(ask)


async def redrive(served: Served, request: Request) -> Reply:
    """To the topics that the token may manage: letters of others stay, as those do whose topic is gone."""
    body = request.body

    def topic_of(name: str) -> Topic:
        if not name.startswith(request.prefixes):
            raise UnknownTopic(f"{name!r:.100} is not for this token")
        return served.store.topic(name)

    def ask() -> RedriveResult:
        target = body["target"]
        if target == request.topic:
            raise InvalidTopic(f"{target} is where the dead letters are: name another target")
        how = SentBack(
            target=None if target is None else topic_of(target),
            value=_bytes(body["value"]) if "value" in body else KEEP,
            rate=body["rate"],
            now_ms=served.store.now_ms(),
        )
        with served.store.subscribe(request.topic, SUBSCRIPTION) as reader:
            return send_back(reader, topic_of, body["limit"], _chosen(request), how)

    return as_json(asdict(await served.run(ask)))


async def discard_dead_letters(served: Served, request: Request) -> Reply:
    count = await served.run(lambda: served.store.discard_dead_letters(request.topic, **request.body))
    return as_json({"discarded": count})


def _chosen(request: Request) -> ChosenLetters:
    body = request.body
    return ChosenLetters.of(request.topic, body["records"], body["subscription"], body["reason"])


def _bytes(value: object) -> bytes | None:
    try:
        return bytes_of(value)
    except ValueError as error:
        raise errors.InvalidRequest(str(error)) from None


async def list_schedules(served: Served, request: Request) -> Reply:
    found = await served.run(lambda: served.store.schedules(request.arguments["topic"]))
    return as_json({"schedules": [schedule_row(each) for each in found if each.topic.startswith(request.prefixes)]})


async def make_schedule(served: Served, request: Request) -> Reply:
    asked = dict(request.body)
    topic, name = asked.pop("topic"), asked.pop("name")
    if not topic.startswith(request.prefixes):
        raise errors.NotAllowed(f"the token has the scope send for other topics than {topic!r}")
    settings = _schedule_settings(asked)
    return as_json(schedule_row(await served.run(lambda: served.store.schedule(topic, name=name, **settings))))


async def change_schedule(served: Served, request: Request) -> Reply:
    name, settings = request.arguments["schedule"], _schedule_settings(dict(request.body))

    def change() -> Schedule:
        _check_mine(served, request, name)
        return served.store.change_schedule(name, **settings)

    return as_json(schedule_row(await served.run(change)))


async def pause_schedule(served: Served, request: Request) -> Reply:
    def pause() -> Schedule:
        _check_mine(served, request, request.arguments["schedule"])
        return served.store.pause_schedule(request.arguments["schedule"])

    return as_json(schedule_row(await served.run(pause)))


async def resume_schedule(served: Served, request: Request) -> Reply:
    def resume() -> Schedule:
        _check_mine(served, request, request.arguments["schedule"])
        return served.store.resume_schedule(request.arguments["schedule"])

    return as_json(schedule_row(await served.run(resume)))


async def send_schedule(served: Served, request: Request) -> Reply:
    def send() -> RecordId:
        _check_mine(served, request, request.arguments["schedule"])
        return served.store.send_schedule(request.arguments["schedule"])

    return as_json({"id": str(await served.run(send))})


async def remove_schedule(served: Served, request: Request) -> Reply:
    def remove() -> None:
        _check_mine(served, request, request.arguments["schedule"])
        served.store.remove_schedule(request.arguments["schedule"])

    await served.run(remove)
    return NO_CONTENT


def key_of_text(text: str) -> bytes | None:
    """A key as queries have it. Raises InvalidRequest."""
    try:
        return bytes_of({"base64": text.removeprefix("base64:")} if text.startswith("base64:") else text)
    except ValueError as error:
        raise errors.InvalidRequest(f"a key is text, or base64:…: {error}") from None


def _check_mine(served: Served, request: Request, name: str) -> None:
    """Whether the topic of a schedule is one that who asks may send to; what is not tells nothing of itself."""
    if "" in request.prefixes:
        return
    if not any(each.name == name and each.topic.startswith(request.prefixes) for each in served.store.schedules()):
        raise errors.UnknownSchedule(f"no schedule {name!r} here")


def _schedule_settings(asked: dict[str, Any]) -> dict[str, Any]:
    try:
        if "every_s" in asked:
            asked["every"] = timedelta(seconds=asked.pop("every_s"))
        for name in ("value", "key"):
            if name in asked:
                asked[name] = bytes_of(asked[name])
        if "headers" in asked:
            asked["headers"] = clients_headers(headers_of(asked["headers"]))
    except (ValueError, OverflowError) as error:
        raise errors.InvalidRequest(str(error)) from None
    return asked


def schedule_row(schedule: Schedule) -> dict[str, Any]:
    every = schedule.every
    return {
        "name": schedule.name,
        "topic": schedule.topic,
        "partition": schedule.partition,
        "cron": schedule.cron,
        "timezone": schedule.timezone,
        "every_s": None if every is None else every.total_seconds(),
        "value": text_or_base64(schedule.value),
        "key": text_or_base64(schedule.key),
        "headers": [[name, text_or_base64(value)] for name, value in schedule.headers],
        "missed": schedule.missed,
        "paused": schedule.paused,
        "next_due": schedule.next_due,
        "record": None if schedule.record is None else str(schedule.record),
        "fault": schedule.fault,
    }


def _letter_row(letter: DeadLetterMessage) -> dict[str, Any]:
    origin = letter.origin
    told = {
        "record": str(origin.record), "subscription": origin.subscription, "reason": origin.reason,
        "redelivery_count": origin.redelivery_count,
    }  # fmt: skip
    return {"message": message_row(letter.message), "origin": told}


ENDPOINTS: Final = endpoints(
    {
        operations.PENDING: pending,
        operations.HISTOGRAM: histogram,
        operations.DEAD_LETTERS: dead_letters,
        operations.REDRIVE: redrive,
        operations.DISCARD_DEAD_LETTERS: discard_dead_letters,
        operations.LIST_SCHEDULES: list_schedules,
        operations.CREATE_SCHEDULE: make_schedule,
        operations.CHANGE_SCHEDULE: change_schedule,
        operations.PAUSE_SCHEDULE: pause_schedule,
        operations.RESUME_SCHEDULE: resume_schedule,
        operations.SEND_SCHEDULE: send_schedule,
        operations.REMOVE_SCHEDULE: remove_schedule,
    }
)
