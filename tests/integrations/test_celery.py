"""The transport for kombu on a store whose clock is turned, and workers of Celery that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import Empty
from typing import Any

import kombu
import pytest
from celery import Celery
from kombu import pools
from kombu.exceptions import OperationalError

import afterlog
from afterlog.base.clock import ManualClock
from afterlog.base.errors import InvalidArgument, ServerUnavailable
from afterlog.integrations.celery import ETA
from afterlog.integrations.celery_results import ResultBackend
from afterlog.store.store import Store
from tests import campaigns
from tests.support import NOW_MS, PATIENCE_S, eventually

TRANSPORT = "afterlog.integrations.celery:Transport"


class Line:
    """Connections to a store, and a queue."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store, self.clock = store, clock
        self.connections: list[kombu.Connection] = []
        self.queue = kombu.Queue("mail", routing_key="mail")

    def connection(self, **options: Any) -> kombu.Connection:
        made = kombu.Connection(
            "afterlog:///of/the/test", transport=TRANSPORT, transport_options={"store": self.store, **options}
        )
        self.connections.append(made)
        return made

    def publish(self, value: object, queue: kombu.Queue | None = None, **options: Any) -> None:
        queue = queue or self.queue
        kombu.Producer(self.connections[0] if self.connections else self.connection()).publish(
            value, exchange=queue.exchange, routing_key=queue.routing_key, declare=[queue], **options
        )

    def consumer(self, queue: kombu.Queue | None = None, **options: Any) -> Reading:
        return Reading(self.connection(), queue or self.queue, **options)


class Reading:
    """A consumer on a connection of its own."""

    def __init__(self, connection: kombu.Connection, queue: kombu.Queue, prefetch: int = 0, **options: Any) -> None:
        self.connection, self.messages = connection, list[Any]()
        channel = connection.channel()
        channel.basic_qos(0, prefetch, False)
        self.consumer = kombu.Consumer(channel, [queue], on_message=self.messages.append, **options)
        self.consumer.consume()

    def got(self, count: int) -> list[Any]:
        """So many messages, as they come."""
        while len(self.messages) < count:
            self.connection.drain_events(timeout=10)
        assert count == len(self.messages)
        found, self.messages[:] = [*self.messages], []
        return found

    def nothing(self) -> bool:
        """Whether nothing is there, as far as its thread has looked."""
        [channel] = {*self.connection.transport.channels} - {self.connection._default_channel}
        [each] = channel.consumers.values()
        looked = each.looks
        eventually(lambda: each.looks > looked + 1)
        with suppress(TimeoutError):
            self.connection.drain_events(timeout=0)
        return not self.messages


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    clock = ManualClock(NOW_MS)
    with afterlog.open(tmp_path, clock=clock) as store:
        made = Line(store, clock)
        yield made
        for each in made.connections:
            each.release()


def payloads(messages: list[Any]) -> list[Any]:
    return [message.payload for message in messages]


@pytest.mark.parametrize("after", [timedelta(minutes=10), timedelta(days=1), timedelta(days=60)])
def test_what_has_an_eta_is_with_nobody_before(line: Line, after: timedelta) -> None:
    """However long it is: its lease is that of a delivery."""
    due = datetime.fromtimestamp(NOW_MS / 1_000, UTC) + after
    headers = {"eta": due.isoformat(), "id": "a"}
    line.publish("later", headers=headers)
    line.publish("now")
    assert {"eta": due.isoformat(), "id": "a"} == headers
    reading = line.consumer()
    [first] = reading.got(1)
    first.ack()
    [waiting] = line.store.pending("celery.mail")
    assert NOW_MS + after // timedelta(milliseconds=1) == waiting.due
    line.clock.advance(after // timedelta(milliseconds=1))
    [later] = reading.got(1)
    assert ("later", None, due.isoformat()) == (later.payload, later.headers["eta"], later.headers[ETA])
    later.ack()
    assert 0 == line.store.topic("celery.mail").partition(0).pending()


def test_acked_rejected_requeued(line: Line) -> None:
    for value in "abc":
        line.publish(value)
    reading = line.consumer()
    a, b, c = reading.got(3)
    a.ack()
    b.reject()
    c.requeue()
    line.clock.advance(100)
    [again] = reading.got(1)
    assert ("c", True, False) == (
        again.payload, again.delivery_info["redelivered"], c.delivery_info["redelivered"],
    )  # fmt: skip
    assert c.delivery_tag != again.delivery_tag, "the first settles nothing any more"
    again.ack()
    [letter] = line.store.dead_letters("celery.mail.dead")
    assert "rejected" == (letter.origin.reason if letter.origin else "")
    reading.connection.release()
    line.clock.advance(86_400_000)
    with pytest.raises(Empty):
        line.connection().SimpleQueue(line.queue).get_nowait()


def test_what_a_connection_had_goes_back_when_it_is_closed(line: Line) -> None:
    for value in range(4):
        line.publish(value)
    reading = line.consumer(prefetch=2)
    first, _ = reading.got(2)
    first.ack()
    reading.connection.release()
    other = line.consumer()
    again = other.got(3)
    assert [1, 2, 3] == sorted(payloads(again))
    assert not any(message.delivery_info["redelivered"] for message in again), "no failure"


def test_no_more_than_there_is_credit_for(line: Line) -> None:
    for value in range(5):
        line.publish(value)
    reading = line.consumer(prefetch=2)
    messages = reading.got(2)
    assert reading.nothing()
    messages[1].ack()
    [third] = reading.got(1)
    assert 2 == third.payload
    assert reading.nothing()


def test_the_highest_priority_of_what_is_there(line: Line) -> None:
    for value, priority in (("low", 1), ("high", 9), ("none", None)):
        line.publish(value, priority=priority)
    assert ["high", "low", "none"] == payloads(line.consumer().got(3))


def test_a_queue_with_priorities(line: Line) -> None:
    """Declared as for RabbitMQ. Then they are the topic's: also of what no consumer has fetched."""
    queue = kombu.Queue("urgent", routing_key="urgent", max_priority=5)
    for value, priority in (("none", None), ("low", 1), ("above all", 9), ("high", 5)):
        line.publish(value, queue, priority=priority)
    assert (6, 6) == ((topic := line.store.topic("celery.urgent")).settings.priorities, topic.partition_count)
    reading, found = line.consumer(queue, prefetch=1), []
    for _ in range(4):
        [message] = reading.got(1)
        found.append(message.payload)
        message.ack()
    assert ["above all", "high", "low", "none"] == found


def test_priorities_of_a_topic_that_has_none(line: Line) -> None:
    line.store.create_topic("celery.urgent")
    queue = kombu.Queue("urgent", routing_key="urgent", max_priority=5)
    line.publish("a", queue, priority=3)
    assert ["a"] == payloads(line.consumer(queue).got(1))


def test_a_revoke_finds_it_in_each_priority(line: Line) -> None:
    queue = kombu.Queue("urgent", routing_key="urgent", max_priority=2)
    due = datetime.fromtimestamp(NOW_MS / 1_000, UTC) + timedelta(hours=1)
    for priority in (0, 2):
        line.publish("later", queue, priority=priority, headers={"eta": due.isoformat(), "id": f"task {priority}"})
    channel = line.connections[0].default_channel
    for priority, left in ((2, 1), (0, 0)):
        channel._cancel(f"task {priority}")
        assert left == len(line.store.pending("celery.urgent"))


def test_what_has_expired_is_dropped(line: Line) -> None:
    line.publish("short", expiration=5)
    line.publish("long", expiration=50)
    line.clock.advance(5_000)
    reading = line.consumer()
    [message] = reading.got(1)
    assert "long" == message.payload
    assert reading.nothing()
    assert [] == line.store.dead_letters("celery.mail.dead")


def test_what_is_no_message_stops_nobody(line: Line) -> None:
    line.publish("a")
    for value in (b"{", b"{}", b"[]", None, b"[" * 100_000):
        line.store.send("celery.mail", value)
    line.publish("b")
    assert ["a", "b"] == payloads(line.consumer().got(2))
    assert 5 == len(line.store.dead_letters("celery.mail.dead"))


def test_a_fanout_reaches_all_that_are_bound_by_then(line: Line) -> None:
    exchange = kombu.Exchange("news", type="fanout")
    queues = [kombu.Queue(f"reader@{number}", exchange=exchange) for number in range(2)]
    line.publish("before", queues[0])
    first = line.consumer(queues[0])
    assert ["before"] == payloads(first.got(1))
    second = line.consumer(queues[1])
    line.publish("after", queues[0])
    assert [["after"], ["after"]] == [payloads(each.got(1)) for each in (first, second)]
    assert ["reader_x40_0", "reader_x40_1"] == line.store.subscriptions("celery-fanout.news")
    queues[1](second.consumer.channel).delete()
    assert ["reader_x40_0"] == line.store.subscriptions("celery-fanout.news")


@pytest.mark.parametrize(("kind", "key"), [("direct", "k"), ("topic", "k.*")])
def test_a_binding_is_every_processs(line: Line, kind: str, key: str) -> None:
    exchange = kombu.Exchange("replies", type=kind)
    queue = kombu.Queue("mine", exchange=exchange, routing_key=key, auto_delete=True)
    reading = line.consumer(queue)
    producer = kombu.Producer(line.connection(), exchange)
    producer.publish("x", routing_key=key.replace("*", "1"), declare=[exchange])
    assert ["x"] == payloads(reading.got(1))
    assert 3_600_000 == line.store.topic("celery.mine").settings.retention_ms, "it goes with its connection"
    queue(reading.consumer.channel).delete()
    assert [] == line.store.pending("celery-bindings")
    assert "celery.mine" not in line.store.topics()


def test_nothing_is_acked_of_who_asks_for_no_acks(line: Line) -> None:
    line.publish("x")
    reading = line.consumer(no_ack=True)
    assert ["x"] == payloads(reading.got(1))
    reading.connection.release()
    line.clock.advance(86_400_000)
    assert line.consumer().nothing()


def test_purge_and_size(line: Line) -> None:
    line.publish("now")
    line.publish("later", headers={"eta": datetime.fromtimestamp(NOW_MS / 1_000 + 60, UTC)})
    channel = line.connection().channel()
    bound = line.queue(channel)
    assert 1 == bound.queue_declare().message_count
    assert 2 == bound.purge()
    line.clock.advance(60_000)
    assert bound.get() is None
    assert (0, 0) == (channel._size("never"), channel._purge("never"))


def test_a_place_that_there_is_not() -> None:
    with pytest.raises(ServerUnavailable):
        kombu.Connection("afterlog:///proc/nowhere", transport=TRANSPORT).connect()


def test_a_store_that_is_closed(tmp_path: Path) -> None:
    with afterlog.open(tmp_path, clock=ManualClock(NOW_MS)) as store:
        line = Line(store, ManualClock(NOW_MS))
        line.publish("x")
        reading = line.consumer()
        reading.got(1)
    eventually(lambda: reading.connection.transport._error is not None)
    with pytest.raises(line.connections[1].connection_errors):
        reading.connection.drain_events(timeout=10)
    with pytest.raises(OperationalError):
        line.publish("y", retry=True, retry_policy={"max_retries": 0})
    for each in line.connections:
        each.release()


WORKER = """
import os, sys, time
from celery import Celery

import afterlog.integrations.celery

broker, ran = sys.argv[1:3]
app = Celery("tasks", broker=broker)
app.conf.update(
    broker_transport_options={"lease_ms": 500, "timeout": 2}, task_acks_late=True, task_ignore_result=True,
    broker_connection_retry_on_startup=True, worker_hijack_root_logger=False,
)

@app.task(name="note")
def note(number, due_us):
    descriptor = os.open(ran, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, b"%d %d\\n" % (number, time.time_ns() // 1_000 - due_us))
    os.close(descriptor)

if len(sys.argv) > 3:
    from celery.signals import worker_ready
    worker_ready.connect(lambda **more: os.write(1, b"ready\\n"), weak=False)
    app.worker_main(["--quiet", "worker", "-P", sys.argv[3], "-c", "2", "-l", "error"])
"""


@contextmanager
def worker_process(broker: str, ran: Path, pool: str) -> Iterator[subprocess.Popen[bytes]]:
    """It is killed with all that it has forked."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", WORKER, broker, str(ran), pool],
        stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    with process, process.stdout:
        try:
            assert b"ready\n" in iter(process.stdout.readline, b"")
            yield process
        finally:
            if process.poll() is None:
                process.terminate()


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_workers_that_are_killed_lose_nothing(tmp_path: Path, pool: str) -> None:
    """Half of them with the store in them. TERM ends the last, and nothing is left, nothing was early."""
    from celery import Celery

    kills = campaigns.examples(1, whole=100)
    folder, ran = tmp_path / "data", tmp_path / "ran"
    ran.touch()
    app = Celery("tasks", broker=f"afterlog://{folder}", broker_transport=TRANSPORT)
    sent = 0
    for kill in range(kills + 1):
        with worker_process(f"afterlog://{folder}", ran, pool) as process:
            for delay_ms in (0, 0, 20, 100, 200, 400):
                due_us = time.time_ns() // 1_000 + delay_ms * 1_000
                eta = datetime.fromtimestamp(due_us / 1e6, UTC) if delay_ms else None
                app.send_task("note", (sent, due_us), eta=eta, ignore_result=True)
                sent += 1
            if kill < kills:
                os.killpg(process.pid, signal.SIGKILL)
                campaigns.count("kills of Celery's workers")
                if kill % 2:  # else this process took the store over, and has it when the next one comes
                    pools.reset()
                    app = Celery("tasks", broker=f"afterlog://{folder}", broker_transport=TRANSPORT)
                continue
            eventually(lambda count=sent: {*range(count)} == {number for number, _ in runs_of(ran)})
    assert 0 <= min(late_us for _, late_us in runs_of(ran))
    assert process.returncode == 0
    with app.connection_for_write() as connection:
        assert 0 == connection.default_channel._size("celery")
    pools.reset()


@contextmanager
def server_process(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "afterlog", "serve", str(folder), "--log-level", "error"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    assert process.stderr is not None
    with process, process.stderr:
        assert process.stderr.readline().startswith(b"serving ")
        yield process
        process.kill()


def test_a_server_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    """The workers wait for the next one. Where none comes they end all the same."""
    kills = campaigns.examples(1, whole=50)
    folder, ran = tmp_path / "data", tmp_path / "ran"
    ran.touch()
    broker = f"afterlog+unix://{folder}/server.sock"
    app = Celery("tasks", broker=broker)
    sent = 0
    server = server_process(folder)
    server.__enter__()
    with worker_process(broker, ran, "threads") as process:
        for _ in range(kills):
            for delay_ms in (0, 0, 100, 200, 400):
                due_us = time.time_ns() // 1_000 + delay_ms * 1_000
                eta = datetime.fromtimestamp(due_us / 1e6, UTC) if delay_ms else None
                app.send_task("note", (sent, due_us), eta=eta, ignore_result=True)
                sent += 1
            server.__exit__(None, None, None)
            campaigns.count("kills of Celery's server")
            server = server_process(folder)
            server.__enter__()
        eventually(lambda: {*range(sent)} == {number for number, _ in runs_of(ran)})
        assert 0 <= min(late_us for _, late_us in runs_of(ran))
        server.__exit__(None, None, None)
        process.terminate()
        assert 0 == process.wait(2 * PATIENCE_S)
    pools.reset()


@pytest.mark.parametrize("pool", ["threads", "prefork"])
@pytest.mark.share(2)
def test_workers_that_are_told_to_end_run_nothing_twice(tmp_path: Path, pool: str) -> None:
    """What they have begun they finish, and what they had not begun goes back."""
    ends = campaigns.examples(1, whole=10)
    folder, ran = tmp_path / "data", tmp_path / "ran"
    ran.touch()
    sent = 0
    with server_process(folder):
        broker = f"afterlog+unix://{folder}/server.sock"
        app = Celery("tasks", broker=broker)
        for _ in range(ends + 1):
            with worker_process(broker, ran, pool) as process:
                for delay_ms in [0] * 40 + [*range(0, 400, 10)]:
                    due_us = time.time_ns() // 1_000 + delay_ms * 1_000
                    eta = datetime.fromtimestamp(due_us / 1e6, UTC) if delay_ms else None
                    app.send_task("note", (sent, due_us), eta=eta, ignore_result=True)
                    sent += 1
                process.terminate()
                assert 0 == process.wait(2 * PATIENCE_S)
                campaigns.count("ends of Celery's workers")
        with worker_process(broker, ran, pool):
            eventually(lambda: sent <= len(runs_of(ran)))
        pools.reset()
    assert [*range(sent)] == sorted(number for number, _ in runs_of(ran))


def runs_of(path: Path) -> list[tuple[int, int]]:
    rows = [line.split() for line in path.read_text().splitlines()]
    return [(int(number), int(late_us)) for number, late_us in rows]


class TestApp:
    """Celery's own calls over the store, without a worker."""

    @pytest.fixture
    def app(self, line: Line) -> Iterator[Celery]:
        made = Celery(
            "shop", set_as_current=False, broker="afterlog:///of/the/test", backend="afterlog:///of/the/test",
            broker_transport=TRANSPORT,
        )  # fmt: skip
        options = {"store": line.store}
        made.conf.update(
            broker_transport_options=options, result_backend_transport_options=options, broker_connection_retry=False
        )
        yield made
        made.close()
        pools.reset()

    def test_a_revoke_cancels_what_waits(self, app: Celery, line: Line) -> None:
        for number in range(3):
            app.send_task("shop.remind", (number,), countdown=60, task_id=f"task-{number}")
        app.send_task("shop.remind", (1,), countdown=90, task_id="task-1")
        assert 3 == len(line.store.pending("celery.celery")), "a task is there once while it waits"
        app.control.revoke("task-1")
        app.control.revoke(["task-2", "unknown"])
        app.control.revoke("task-0", destination=["one@host"])
        [left] = line.store.pending("celery.celery")
        assert b"task-0" == dict(left.headers)["unique-key"]
        app.control.broadcast("rate_limit", arguments={"task_name": "shop.remind", "rate_limit": "1/s"})
        assert 1 == len(line.store.pending("celery.celery"))

    def test_a_task_that_expires_before_it_is_due(self, app: Celery, line: Line) -> None:
        eta = datetime.fromtimestamp(NOW_MS / 1_000, UTC) + timedelta(seconds=60)
        app.send_task("shop.remind", eta=eta, expires=30)
        app.send_task("shop.remind", eta=eta, expires=90, task_id="in time")
        line.clock.advance(61_000)
        reader = line.store.subscribe("celery.celery", "reads")
        assert ["in time"] == [json.loads(each.value or b"")["headers"]["id"] for each in reader.receive()]
        reader.close()

    def test_results(self, app: Celery, line: Line) -> None:
        backend = app.backend
        assert "PENDING" == app.AsyncResult("a").state
        backend.store_result("a", None, "STARTED")
        backend.store_result("a", {"sum": 3}, "SUCCESS")
        backend.store_result("b", ValueError("no"), "FAILURE")
        result = app.AsyncResult("a")
        assert ("SUCCESS", {"sum": 3}) == (result.state, result.get(timeout=1))
        with pytest.raises(ValueError, match="no"):
            app.AsyncResult("b").get(timeout=1)
        assert 2 == len(line.store.pending("celery-results"))
        result.forget()
        assert 1 == len(line.store.pending("celery-results"))
        line.clock.advance(int(backend.expires * 1_000) + 1)
        assert "PENDING" == app.AsyncResult("b").state

    def test_a_group(self, app: Celery) -> None:
        backend = app.backend
        backend.save_group("g", app.GroupResult("g", [app.AsyncResult("a")]))
        assert ["a"] == [each.id for each in app.GroupResult.restore("g").results]
        backend.delete_group("g")
        assert app.GroupResult.restore("g") is None

    @pytest.mark.parametrize(
        "url", ["afterlog+unix:///run/a.sock", "afterlog+http://host:7654", "afterlog:///srv/data"]
    )
    def test_where_results_are(self, url: str) -> None:
        assert type(Celery(set_as_current=False, backend=url).backend) is ResultBackend

    def test_a_place_that_is_none(self) -> None:
        with pytest.raises(InvalidArgument):
            assert Celery(set_as_current=False, backend="afterlog+ftp://host").backend is None
