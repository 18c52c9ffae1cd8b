"""Whatever a public call is handed: it works, or it raises an AfterlogError, and what was there stays.

Each argument of each public call gets everything in JUNK once, with good ones beside it. So nobody has to have thought
of a pair for it to be tried.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import afterlog
import afterlog.aio
from afterlog import AfterlogError, ManualClock, Record, RecordId, Store
from afterlog.base.errors import InvalidArgument, InvalidRecord, WrongType
from afterlog.fetch.consumer import Consumer
from afterlog.fetch.partition import Partition
from afterlog.log.topic_settings import TopicChanges
from afterlog.produce.producer import Producer
from afterlog.store.store import open_store
from afterlog.subscription.subscription import Subscription
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, PATH, open_small


class Plain:
    def __repr__(self) -> str:
        return "<Plain>"


JUNK: list[Any] = [
    5, -1, 1.5, 2**70, 10**400, math.nan, math.inf, True, None, "x", "t-0@0", b"x", bytearray(b"x"), [], ["x"], [None],
    [[1], [1, 2]], {}, {"a": 1}, {"ab": b"x"}, {1}, (1, 2, 3), [("h", 5)], [(b"h", b"")], [(None, b"")], [("h", "v")],
    [("h", memoryview(np.arange(3)))], object, Plain(), timedelta.max, timedelta.min, np.arange(3), np.array(["x"]),
    np.array(5), np.int64(1), np.float64(1.5), memoryview(np.arange(3)), memoryview(b"xy")[::2], lambda: None, RecordId,
    RecordId("t", "0", 0), RecordId("t", 0, "0"), RecordId("t", 0, None), RecordId("t", 0, 2**70), RecordId([], 0, 0),  # type: ignore[arg-type]
    afterlog.AtTime("x"), afterlog.AtTime(Plain()), afterlog.AtBrokerTime("x"),  # type: ignore[arg-type]
    afterlog.AfterOffset("x"), afterlog.AfterOffset(2**70),  # type: ignore[arg-type]
    afterlog.ProducerSequence(7, 0, 5),
]  # fmt: skip
BATCH = afterlog.encode_batch([Record(value=b"v", timestamp=NOW_MS)])
STORE: dict[str, dict[str, Any]] = {
    "create_topic": {
        "name": "new",
        "max_delay_ms": 5,
        "retention_ms": 5,
        "retention_bytes": 5,
        "delayed": True,
        "interceptors": [],
    },
    "create_topics": {"names": ["new", "newer"], "max_delay_ms": 5, "retention_bytes": 5, "check_instants": True},
    "topic": {"name": "t"},
    "alter_topic": {"name": "t"},
    "delete_topic": {"name": "other"},
    "clean": {"topic": "other"},
    "purge": {"topic": "other"},
    "replicated_subscriptions": {"topic": "t"},
    "subscriptions": {"topic": "t"},
    "groups": {"topic": "t"},
    "delete_subscription": {"topic": "t", "name": "known"},
    "delete_group": {"topic": "t", "group": "known"},
    "reset_subscription": {"topic": "t", "name": "there", "position": 0},
    "reset_group": {"topic": "t", "group": "there", "position": 0},
    "pause": {"topic": "t", "subscription": "there"},
    "leased": {"topic": "t", "subscription": "there"},
    "resume": {"topic": "t", "subscription": "there"},
    "send": {"topic": "t", "value": b"v", "key": b"k", "headers": [("h", b"v")], "delay": None, "deliver_after": None},
    "send_many": {"topic": "t", "values": [b"v", b"w"], "keys": [b"k", b"k"], "headers": [("h", b"v")], "delay": None},
    "producer": {"topic": "t", "idempotent": True},
    "cancel": {"record": RecordId("t", 0, 1)},
    "cancel_many": {"topic": "t", "partition": 0, "offsets": [1]},
    "reschedule": {"record": RecordId("t", 0, 1), "delay": 5},
    "pending": {"topic": "t"},
    "get": {"record": RecordId("t", 0, 1)},
    "get_unique": {"topic": "t", "unique_key": b"u"},
    "schedule": {"topic": "t", "name": "s", "every": timedelta(minutes=1), "value": b"v"},
    "schedules": {},
    "change_schedule": {"name": "there"},
    "pause_schedule": {"name": "there"},
    "send_schedule": {"name": "there"},
    "resume_schedule": {"name": "there"},
    "remove_schedule": {"name": "there"},
    "backup": {"dest": "/backups"},
    "held_bytes": {"topic": "t"},
    "offload": {},
    "adopt": {},
    "consumer": {"topic": "t", "group": "g"},
    "subscribe": {"topic": "t", "name": "s"},
    "dead_letters": {"topic": "t"},
    "redrive": {"topic": "t"},
    "discard_dead_letters": {"topic": "t"},
    "cancel_unique": {"topic": "t", "unique_key": b"k"},
}
CONSUMER: dict[str, dict[str, Any]] = {
    "commit_at": {"positions": {0: 0}},
    "poll": {},
    "poll_columns": {},
    "seek": {"position": 0},
}
SUBSCRIPTION: dict[str, dict[str, Any]] = {
    "receive": {},
    "ack": {"message": None},
    "ack_many": {"messages": None},
    "nack": {"messages": None},
    "reject": {"messages": None, "reason": "r"},
    "release": {"messages": None},
    "draining_on": {"signal": 15},
    "drain": {"timeout": 0},
    "extend": {"messages": None},
    "seek": {"position": 0},
}
PARTITION: dict[str, dict[str, Any]] = {
    "append": {"batch": BATCH},
    "cancel": {"offsets": [0]},
    "reschedule": {"offset": 1, "asked_ms": NOW_MS + 5},
    "fetch": {"position": 0},
    "scheduled": {"limit": 5},
    "due_histogram": {"edges": [0, 5]},
    "is_pending": {"offset": 0},
    "stored": {"offset": 0},
    "offset_at_broker_time": {"ms": 5},
    "position": {"position": 0},
    "purge": {"upto": 0},
    "beginning": {"position": 0},
}
PRODUCER: dict[str, dict[str, Any]] = {"send": {"value": b"v", "key": b"k", "headers": [("h", b"v")]}}
WAITING = ("timeout", "max_wait_ms", "linger_ms")
"""Good numbers would be waited for; here something is always due, but for what is closed."""


@pytest.fixture
def store() -> Iterator[Store]:
    with open_small(SimulatedFiles(), ManualClock(NOW_MS)) as store:
        store.create_topic("t")
        store.send_many("t", [b"due"] * 600)
        store.send("t", b"later", delay=3_600)
        store.schedule("t", name="there", every=timedelta(hours=1))
        store.subscribe("t", "there").close()
        store.create_topic("other")
        yield store


def public(kind: type) -> set[str]:
    """The methods with arguments."""
    return {
        name
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and len(inspect.signature(method).parameters) > 1
    }


def arguments(method: Callable[..., object]) -> set[str]:
    """The names of its arguments, of settings also each of them."""
    named = inspect.signature(method).parameters
    return {*named, *(TopicChanges.__annotations__ if "settings" in named else ())}


def tried(method: Callable[..., object], good: dict[str, Any]) -> list[str]:
    """What came out that should not, of every argument with all junk."""
    wrong = []
    for name in arguments(method) - {"reading"}:  # is made by a partition
        for junk in JUNK:
            if name in WAITING and (junk is None or (isinstance(junk, int | float) and junk == junk)):
                continue
            try:
                made = method(**{**good, name: junk})
                if isinstance(made, Consumer | Subscription | Producer):
                    made.close()
            except AfterlogError:
                pass
            except Exception as error:
                wrong.append(f"{method.__name__}({name}={junk!r:.40}): {error!r:.120}")
    return wrong


@pytest.mark.parametrize("name", STORE)
def test_the_store(store: Store, name: str) -> None:
    assert [] == tried(getattr(store, name), STORE[name])
    store.check()
    assert b"due" == store.topic("t").partition(0).columns(0, 1, 1 << 20)[0].to_messages()[0].value


@pytest.mark.parametrize("name", CONSUMER)
def test_a_consumer(store: Store, name: str) -> None:
    with store.consumer("t", group="g") as consumer:
        consumer.seek(0)
        assert [] == tried(getattr(consumer, name), CONSUMER[name])
        consumer.seek(0)
        assert 500 == len(consumer.poll())


@pytest.mark.parametrize("name", SUBSCRIPTION)
def test_a_subscription(store: Store, name: str) -> None:
    with store.subscribe("t", "s") as subscription:
        good = {key: subscription.receive(1) if value is None else value for key, value in SUBSCRIPTION[name].items()}
        assert [] == tried(getattr(subscription, name), good)
        subscription.seek(0)
        assert 100 == len(subscription.receive())
    store.check()


@pytest.mark.parametrize("name", PARTITION)
def test_a_partition(store: Store, name: str) -> None:
    partition = store.topic("t").partition(0)
    assert [] == tried(getattr(partition, name), PARTITION[name])
    store.check()


def test_a_producer(store: Store) -> None:
    with store.producer("t") as producer:
        assert [] == tried(producer.send, PRODUCER["send"])
        last = producer.send(b"good")
    assert "t" == last.result(0).topic


def test_a_topic(store: Store) -> None:
    assert [] == tried(store.topic("t").partition, {"number": 0})


def test_every_public_call_is_in_a_table() -> None:
    inner = {
        "acked_ranges",
        "handed_out",
        "handed_out_one",
        "hidden_between",
        "offsets_at",
        "records_at",
        "columns",
        "next_due",
        "due",
    }
    inner |= {
        "one",
        "one_at",
        "rest_ms",
        "rest_until",
        "before_close",
        "ack_places",
        "parts",
        "newly_replicated",
        "appended",
    }
    steps = {"look", "take_back", "end", "pop", "fill"}
    for kind, table in ((Store, STORE), (Consumer, CONSUMER), (Subscription, SUBSCRIPTION), (Partition, PARTITION)):
        assert set(table) == public(kind) - inner - steps


@pytest.mark.parametrize("field", ["value", "key", "headers", "timestamp", "deliver_after"])
def test_a_record_to_encode(field: str) -> None:
    def encoded(**fields: Any) -> object:
        return afterlog.encode_batch([Record(**fields)])

    wrong = []
    for junk in JUNK:
        try:
            encoded(**{"value": b"v", "timestamp": NOW_MS, field: junk})
        except AfterlogError:
            pass
        except Exception as error:
            wrong.append(f"{field}={junk!r:.40}: {error!r:.120}")
    assert [] == wrong


@pytest.mark.parametrize("function", [afterlog.encode_batch, afterlog.decode_batch, afterlog.RetryPolicy])
def test_functions(function: Callable[..., object]) -> None:
    good = {"data": BATCH, "limit_bytes": 1 << 20} if function is afterlog.decode_batch else {}
    if function is afterlog.encode_batch:
        good = {"records": [Record(value=b"v", timestamp=NOW_MS)]}
    assert [] == tried(function, good)


@pytest.mark.parametrize("name", ["path", "config", "clock", "remote"])
def test_open(tmp_path: Path, name: str) -> None:
    wrong = []
    for junk in JUNK:
        if isinstance(junk, str | bytes) or junk is None:
            continue
        try:
            afterlog.open(**{"path": tmp_path, name: junk}).close()
        except AfterlogError:
            pass
        except Exception as error:
            wrong.append(f"{name}={junk!r:.40}: {error!r:.120}")
    assert [] == wrong


def test_settings() -> None:
    assert [] == tried(afterlog.Config, {})
    assert [] == tried(afterlog.Durability.interval, {"ms": 5})


def test_from_the_event_loop(tmp_path: Path) -> None:
    wrong = []

    async def main() -> None:
        async with afterlog.aio.open(tmp_path, clock=ManualClock(NOW_MS)) as store:
            await store.create_topic("t")
            await store.send_many("t", [b"due"] * 10)
            async with store.subscribe("t", "s") as subscription, store.consumer("t", group="g") as consumer:
                calls = [
                    lambda junk: store.send("t", junk), lambda junk: store.send("t", b"", headers=junk),
                    lambda junk: store.cancel(junk), lambda junk: store.pending("t", limit=junk),
                    lambda junk: subscription.receive(junk), lambda junk: subscription.ack(junk),
                    lambda junk: subscription.nack(junk), lambda junk: consumer.poll(junk),
                    lambda junk: consumer.poll_columns(junk), lambda junk: consumer.seek(junk),
                    lambda junk: consumer.poll(1, junk) if isinstance(junk, str | list | dict) else store.topics(),
                    lambda junk: subscription.receive(1, junk) if isinstance(junk, str | list) else store.topics(),
                ]  # fmt: skip
                for number, call in enumerate(calls):
                    for junk in JUNK:
                        try:
                            await call(junk)
                        except AfterlogError:
                            pass
                        except Exception as error:
                            wrong.append(f"{number}({junk!r:.40}): {error!r:.120}")

    asyncio.run(main())
    assert [] == wrong


@pytest.mark.parametrize(
    ("error", "call", "text"),
    [
        (InvalidRecord, lambda store: store.send("t", {"a": 1}), "bytes"),
        (InvalidRecord, lambda store: store.send("t", b"", headers={"a": b"1"}), r"list\(headers.items\(\)\)"),
        (InvalidRecord, lambda store: store.send("t", b"", headers=[(b"a", b"1")]), "header 0.*text"),
        (InvalidRecord, lambda store: store.send("t", b"", headers=[("a", b""), (None, b"1")]), "header 1.*text"),
        (InvalidRecord, lambda store: store.send("t", b"", headers=[("a", 1)]), "header 0.*bytes or None"),
        (InvalidRecord, lambda store: store.send("t", b"", headers=[("a",)]), "pairs"),
        (WrongType, lambda store: store.cancel(7), "what send returned"),
        (WrongType, lambda store: store.reschedule(7, delay=1), "what send returned"),
        (WrongType, lambda store: store.consumer("t", group="g").poll("x"), "max_records"),
        (InvalidArgument, lambda store: store.consumer("t", group="g").poll(0), "max_records"),
        (WrongType, lambda store: store.consumer("t", group="g").poll(1, "x"), "timeout"),
        (WrongType, lambda store: store.consumer("t", group="g", partitions=0), "partitions"),
        (afterlog.InvalidDeliverAfter, lambda store: store.send("t", b"", delay=timedelta.max), "int64|century|delay"),
    ],
)
def test_it_says_what_to_do(store: Store, error: type[Exception], call: Callable[[Store], object], text: str) -> None:
    store.create_topic("capped", max_delay_ms=5)
    if error is afterlog.InvalidDeliverAfter:
        with pytest.raises(error):
            store.send("capped", b"", delay=timedelta.max)
        return
    with pytest.raises(error, match=text) as raised:
        call(store)
    assert error is raised.type


def test_a_wrong_type_is_a_type_error_and_a_value_error() -> None:
    assert issubclass(WrongType, TypeError)
    assert issubclass(WrongType, ValueError)


def test_opened_with_a_clock_that_is_none() -> None:
    with pytest.raises(WrongType, match="clock"):
        open_store(PATH, None, 5, SimulatedFiles())  # type: ignore[arg-type]
