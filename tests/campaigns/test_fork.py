"""A forked child has its parent's objects and none of its rights: it gets StoreForked, and the parent goes on."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import afterlog


def in_child(call: Callable[[], object]) -> str:
    """The name of the exception that `call` raises in a forked child, empty for none."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(PATIENCE_S)  # where it waits for ever it is killed
            call()
            answer = b""
        except BaseException as error:
            answer = type(error).__name__.encode()
        os.write(write, answer)
        os._exit(0)
    os.close(write)
    with open(read, "rb") as answers:
        answer = answers.read()
    _, status = os.waitpid(child, 0)
    return answer.decode() if status == 0 else f"ended by {os.waitstatus_to_exitcode(status)}"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_child_is_refused_and_parent_goes_on(tmp_path: Path) -> None:
    with afterlog.open(tmp_path) as store:
        partition = store.create_topic("mail").partition(0)
        store.send("mail", b"before")
        with store.consumer("mail", group="g") as consumer, store.subscribe("mail", "s") as subscription:
            received = subscription.receive()
            batch = afterlog.encode_batch([afterlog.Record(value=b"", timestamp=0)])
            for call in (
                lambda: store.send("mail", b"child"),
                lambda: store.send_many("mail", [b"child"]),
                lambda: store.create_topic("child"),
                lambda: store.consumer("mail", group="child"),
                lambda: partition.append(batch),
                lambda: partition.fetch(0),
                consumer.poll,
                lambda: store.subscribe("mail", "child"),
                subscription.receive,
                lambda: subscription.ack_many(received),
                lambda: subscription.nack(received),
                subscription.stats,
                partition.high_watermark,
                store.sync,
                store.enforce_retention,
            ):
                assert "StoreForked" == in_child(call)
            for close in (subscription.close, store.close):
                assert "" == in_child(close), "a child may clean up behind itself"
            assert 1 == subscription.ack_many(received).acked
            assert 1 == store.send("mail", b"after").offset
            polled = [*consumer.poll(), *consumer.poll()]  # one may end where the subscription's reading did
            assert [b"before", b"after"] == [message.value for message in polled]
    with afterlog.open(tmp_path) as store, store.consumer("mail", group="g") as consumer:
        assert {0: 2} == consumer.positions()
        store.check()


LOCKS = (type(threading.Lock()), type(threading.RLock()))
PATIENCE_S = 1


def locks_of(*roots: object) -> list[Any]:
    """All that these objects hold, and what they hold: as the garbage collector sees it."""
    found, seen, left = list[Any](), set[int](), [*roots]
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, type | threading.Thread):
            continue
        seen.add(id(each))
        if isinstance(each, LOCKS):
            found.append(each)
        elif type(each).__module__.startswith(("afterlog", "threading", "collections")) or isinstance(
            each, dict | list | tuple | set
        ):
            left += gc.get_referents(each)
    return found


@contextmanager
def held(locks: list[Any]) -> Iterator[None]:
    """By another thread, which a child does not have."""
    holding, over = threading.Event(), threading.Event()

    def hold() -> None:
        mine = [lock for lock in locks if lock.acquire(blocking=False)]
        holding.set()
        over.wait()
        for lock in mine:
            lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    holding.wait()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_waits_for_no_lock_that_its_parent_held(tmp_path: Path) -> None:
    """Whatever the parent's other threads are in the middle of when it forks: no thread of the child ends that."""
    with afterlog.open(tmp_path) as store:
        topic = store.create_topic("mail")
        partition, batch = topic.partition(0), afterlog.encode_batch([afterlog.Record(value=b"", timestamp=0)])
        record = store.send("mail", b"before", delay=1_000)
        offsets = np.array([record.offset])
        store.send("mail", b"due")
        consumer, subscription = store.consumer("mail", group="g"), store.subscribe("mail", "s")
        producer = store.producer("mail")
        [message] = received = subscription.receive()
        locks = locks_of(store, topic, consumer, subscription, producer)
        refused: dict[str, Callable[[], object]] = {
            "send": lambda: store.send("mail", b"child"),
            "send_many": lambda: store.send_many("mail", [b"child"]),
            "create_topic": lambda: store.create_topic("child"),
            "topic": lambda: store.topic("mail"),
            "alter_topic": lambda: store.alter_topic("mail", retention_ms=1_000),
            "delete_topic": lambda: store.delete_topic("mail", force=True),
            "purge": lambda: store.purge("mail"),
            "new producer": lambda: store.producer("mail"),
            "cancel": lambda: store.cancel(record),
            "reschedule": lambda: store.reschedule(record, delay=1),
            "pending": lambda: [*store.pending("mail")],
            "schedules": store.schedules,
            "schedule": lambda: store.schedule("mail", name="s", every=1_000),
            "run_schedules": store.run_schedules,
            "new consumer": lambda: store.consumer("mail", group="child"),
            "subscribe": lambda: store.subscribe("mail", "child"),
            "subscriptions": lambda: store.subscriptions("mail"),
            "groups": lambda: store.groups("mail"),
            "delete_subscription": lambda: store.delete_subscription("mail", "s", force=True),
            "delete_group": lambda: store.delete_group("mail", "g", force=True),
            "reset_subscription": lambda: store.reset_subscription("mail", "s", afterlog.EARLIEST),
            "pause": lambda: store.pause("mail", "s"),
            "resume": lambda: store.resume("mail"),
            "reset_group": lambda: store.reset_group("mail", "g", afterlog.EARLIEST),
            "dead_letters": lambda: store.dead_letters("mail"),
            "redrive": lambda: store.redrive("mail"),
            "sync": store.sync,
            "enforce_retention": store.enforce_retention,
            "held_bytes": lambda: store.held_bytes("mail"),
            "backup": lambda: store.backup(tmp_path / "backup"),
            "check": store.check,
            "partition.append": lambda: partition.append(batch),
            "partition.cancel": lambda: partition.cancel(offsets),
            "partition.reschedule": lambda: partition.reschedule(record.offset, 1),
            "partition.purge": partition.purge,
            "partition.cancel_pending": partition.cancel_pending,
            "partition.high_watermark": partition.high_watermark,
            "partition.pending": partition.pending,
            "partition.next_due": partition.next_due,
            "partition.scheduled": lambda: partition.scheduled(1),
            "partition.due_histogram": lambda: partition.due_histogram(np.array([0, 1 << 50])),
            "partition.is_pending": lambda: partition.is_pending(record.offset),
            "partition.position": lambda: partition.position(afterlog.EARLIEST),
            "partition.fetch": lambda: partition.fetch(0),
            "partition.columns": lambda: partition.columns(0, 1, 1),
            "partition.check": partition.check,
            "poll": consumer.poll,
            "poll_columns": consumer.poll_columns,
            "iterate": lambda: next(iter(consumer)),
            "consumer.seek": lambda: consumer.seek(afterlog.EARLIEST),
            "consumer.commit": consumer.commit,
            "consumer.lag": consumer.lag,
            "receive": subscription.receive,
            "receive, iterate": lambda: next(iter(subscription)),
            "ack": lambda: subscription.ack(message),
            "ack_many": lambda: subscription.ack_many(received),
            "nack": lambda: subscription.nack(received),
            "reject": lambda: subscription.reject(received),
            "release": lambda: subscription.release(received),
            "extend": lambda: subscription.extend(received),
            "subscription.seek": lambda: subscription.seek(afterlog.EARLIEST),
            "stats": subscription.stats,
            "drain": subscription.drain,
            "producer.send": lambda: producer.send(b"child"),
            "producer.flush": producer.flush,
        }
        forgotten = [subscription.close, consumer.close, producer.close, store.close]
        with held(locks):
            assert all(lock.locked() for lock in locks if isinstance(lock, LOCKS[0]))
            assert dict.fromkeys(refused, "StoreForked") == {name: in_child(call) for name, call in refused.items()}
            assert [""] * len(forgotten) == [in_child(close) for close in forgotten]
        producer.close()
        consumer.close()


@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_nor_does_that_of_a_client(tmp_path: Path, is_shared: bool) -> None:
    """Of a store that is shared, or served by this process as well."""
    with (
        afterlog.open(tmp_path, shared=True) as serving,
        nullcontext(serving) if is_shared else afterlog.connect(tmp_path) as store,
    ):
        store.create_topic("mail")
        record = store.send("mail", b"before", delay=1_000)
        store.send("mail", b"due")
        consumer, subscription = store.consumer("mail", group="g"), store.subscribe("mail", "s")
        producer = store.producer("mail")
        [message] = received = subscription.receive(timeout=PATIENCE_S)
        refused: dict[str, Callable[[], object]] = {
            "send": lambda: store.send("mail", b"child"),
            "send_many": lambda: store.send_many("mail", [b"child"]),
            "create_topic": lambda: store.create_topic("child"),
            "topics": store.topics,
            "cancel": lambda: store.cancel(record),
            "reschedule": lambda: store.reschedule(record, delay=1),
            "pending": lambda: [*store.pending("mail")],
            "new consumer": lambda: store.consumer("mail", group="child"),
            "subscribe": lambda: store.subscribe("mail", "child"),
            "new producer": lambda: store.producer("mail"),
            "poll": consumer.poll,
            "iterate": lambda: next(iter(consumer)),
            "consumer.commit": consumer.commit,
            "receive": subscription.receive,
            "receive, iterate": lambda: next(iter(subscription)),
            "ack": lambda: subscription.ack(message),
            "nack": lambda: subscription.nack(received),
            "stats": subscription.stats,
            "producer.send": lambda: producer.send(b"child"),
            "producer.flush": producer.flush,
        }
        forgotten = [subscription.close, consumer.close, producer.close, store.close]
        with held(locks_of(store, consumer, subscription, producer)):
            assert dict.fromkeys(refused, "StoreForked") == {name: in_child(call) for name, call in refused.items()}
            assert [""] * len(forgotten) == [in_child(close) for close in forgotten]
        producer.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_does_not_keep_the_lock_of_an_owner_that_was_killed(tmp_path: Path) -> None:
    """The child inherits the descriptor, and a lock lasts as long as any of them is open."""
    opened_read, opened_write = os.pipe()
    read, write = os.pipe()
    owner = os.fork()
    if owner == 0:
        try:
            afterlog.open(tmp_path)
            if os.fork() == 0:
                os.write(opened_write, b"1")
                os.close(write)
                os.read(read, 1)  # lives until the test is done with it
                os._exit(0)
            os.close(opened_write)
            os.read(read, 1)
        finally:
            os._exit(0)
    os.close(opened_write)
    assert b"1" == os.read(opened_read, 1)
    with pytest.raises(afterlog.StoreLocked):
        afterlog.open(tmp_path)
    os.kill(owner, signal.SIGKILL)
    os.waitpid(owner, 0)
    try:
        afterlog.open(tmp_path).close()
    finally:
        for descriptor in (opened_read, read, write):
            os.close(descriptor)
