"""Django's tasks over a store whose clock is turned: what is enqueued, what runs, and what becomes known of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import afterlog
from afterlog.base.clock import ManualClock
from afterlog.base.errors import RecordTooLarge
from afterlog.base.locks import Thread
from afterlog.fetch.record_id import RecordId
from afterlog.integrations import places
from afterlog.store.store import Store
from tests import campaigns
from tests.support import NOW_MS, eventually

NOW = datetime.fromtimestamp(NOW_MS / 1_000, UTC)


class Site:
    """A backend over a store, and a worker of it whose threads are not started."""

    def __init__(self, store: Store, clock: ManualClock, **options: Any) -> None:
        from django_tasks import task_backends

        from afterlog.integrations.django.backend import AfterlogBackend
        from afterlog.integrations.django.task_worker import TaskWorker

        self.store, self.clock = store, clock
        params = {"QUEUES": ["default", "mail@host"], "OPTIONS": {"STORE": store, **options}}
        self.backend = AfterlogBackend("default", params)
        task_backends["default"] = self.backend
        self.worker = TaskWorker(self.backend, ["default", "mail@host"], concurrency=2)

    def work(self, queue: str = "default") -> int:
        """Run what is due of a queue; how many were."""
        from afterlog.integrations.django.task_worker import SUBSCRIPTION

        topic = self.backend.topic(queue)
        dead = self.backend.dead_letters(topic)
        with self.store.subscribe(topic, SUBSCRIPTION, dead_letter=dead, durable_leases=True) as reader:
            received = reader.receive(timeout=0) or []
            for message in received:
                with message:
                    self.worker.run_task(message)
            return len(received)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    clock = ManualClock(NOW_MS)
    with afterlog.open(tmp_path, clock=clock) as store:
        yield Site(store, clock)


@pytest.fixture
def tasks() -> Any:
    from tests.integrations import shop_tasks

    return shop_tasks


def gone(site: Site, result_id: str) -> bool:
    from django_tasks.exceptions import TaskResultDoesNotExist

    try:
        site.backend.get_result(result_id)
    except TaskResultDoesNotExist:
        return True
    return False


def test_a_task_is_ready_then_successful(site: Site, tasks: Any) -> None:
    result = tasks.add.enqueue(1, b=2)
    assert ("READY", NOW, [1], {"b": 2}, 0) == (
        result.status, result.enqueued_at, result.args, result.kwargs, result.attempts,
    )  # fmt: skip
    assert result == tasks.add.get_result(result.id)
    site.clock.advance(5)
    assert 1 == site.work()
    result.refresh()
    later = NOW + timedelta(milliseconds=5)
    assert ("SUCCESSFUL", 3, 1) == (result.status, result.return_value, result.attempts)
    assert (later, later, later) == (result.started_at, result.last_attempted_at, result.finished_at)
    assert [site.worker.worker_id] == result.worker_ids
    assert 0 == site.work()


def test_run_after(site: Site, tasks: Any) -> None:
    """A part of a millisecond is rounded up: never early."""
    result = tasks.add.using(run_after=NOW + timedelta(milliseconds=60, microseconds=1)).enqueue(1, 2)
    site.clock.advance(60)
    assert 0 == site.work()
    assert "READY" == tasks.add.get_result(result.id).status
    site.clock.advance(1)
    assert 1 == site.work()
    assert 3 == tasks.add.get_result(result.id).return_value


def test_coroutines_and_contexts(site: Site, tasks: Any) -> None:
    results = [tasks.add_async.enqueue(1, 2), tasks.attempt_of.enqueue()]
    assert 2 == site.work()
    for result in results:
        result.refresh()
    assert [3, 1] == [result.return_value for result in results]


@pytest.mark.parametrize(
    ("name", "error"), [("fail", ValueError), ("leave", SystemExit), ("answer_with_no_json", TypeError)]
)
def test_what_fails_is_not_tried_again(site: Site, tasks: Any, name: str, error: type[BaseException]) -> None:
    task = getattr(tasks, name)
    result = task.enqueue(*["no"] * (name == "fail"))
    assert 1 == site.work()
    result.refresh()
    [found] = result.errors
    assert ("FAILED", error) == (result.status, found.exception_class)
    assert error.__name__ in found.traceback
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value
    site.clock.advance(86_400_000)
    assert 0 == site.work()


def test_what_cannot_be_run_goes_to_the_dead_letters(site: Site, tasks: Any) -> None:
    topic = site.backend.topic("default")
    good = tasks.add.enqueue(1, 2)
    said = site.store.get(good.id)
    assert said is not None
    task = said.value or b""
    no_tasks = [
        b"{", b"[]", b"{}", None, task.replace(b"shop_tasks.add", b"shop_tasks.removed"),
        task.replace(b"shop_tasks.add", b"shop_tasks.variable"), task.replace(b'"default"', b'"closed"'),
    ]  # fmt: skip
    sent = [str(site.store.send(topic, value)) for value in no_tasks]
    assert [True] * 4 == [gone(site, result_id) for result_id in sent[:4]]
    assert 8 == site.work()
    assert 3 == tasks.add.get_result(good.id).return_value
    reasons = [letter.origin.reason for letter in site.store.dead_letters(f"{topic}.dead") if letter.origin]
    assert [
        "InvalidRecord", "InvalidRecord", "KeyError", "InvalidRecord", "ImportError", "AttributeError",
        "InvalidTaskError",
    ] == [reason.split(":")[0] for reason in reasons]  # fmt: skip


def test_a_worker_that_died(site: Site, tasks: Any) -> None:
    """Before it had finished: the task is run again. After it: not again, however late its lease ends."""
    from afterlog.integrations.django.task_worker import SUBSCRIPTION

    topic = site.backend.topic("default")
    unfinished, finished = tasks.attempt_of.enqueue(), tasks.add.enqueue(1, 2)
    reader = site.store.subscribe(topic, SUBSCRIPTION, durable_leases=True)
    first, second = reader.receive(timeout=0) or []
    worker_id, site.worker.worker_id = site.worker.worker_id, "another"
    began = site.backend.get_result(unfinished.id)
    began.worker_ids.append("another")
    site.backend.keep(began)
    site.worker.run_task(second)
    assert (first.id, second.id) == tuple(map(afterlog.RecordId.parse, (unfinished.id, finished.id)))
    site.worker.worker_id = worker_id
    site.clock.advance(31_000)
    assert 2 == site.work()
    unfinished.refresh()
    finished.refresh()
    assert (2, ["another", worker_id]) == (unfinished.return_value, unfinished.worker_ids)
    assert (3, ["another"]) == (finished.return_value, finished.worker_ids)
    reader.close()


def test_a_result_is_kept_for_its_time(site: Site, tasks: Any) -> None:
    site = Site(site.store, site.clock, RESULT_TTL=timedelta(seconds=60))
    result = tasks.add.enqueue(1, 2)
    site.clock.advance(30_000)
    site.work()
    site.clock.advance(59_999)
    assert 3 == tasks.add.get_result(result.id).return_value
    site.clock.advance(1)
    assert gone(site, result.id), "and is not taken for one that waits"


def test_cancel(site: Site, tasks: Any) -> None:
    from django_tasks.exceptions import TaskResultDoesNotExist

    result = tasks.add.using(run_after=NOW + timedelta(hours=1)).enqueue(1, 2)
    assert site.backend.cancel(result.id)
    assert not site.backend.cancel(result.id)
    assert gone(site, result.id)
    due = tasks.add.enqueue(1, 2)
    site.clock.advance(1)
    assert not site.backend.cancel(due.id)
    for name in ("nonsense", "other-0@0", "django.default-0@99", "django.default-9@0", "django.removed-0@0"):
        assert gone(site, name)
    for name in ("nonsense", "other-0@0"):
        with pytest.raises(TaskResultDoesNotExist):
            site.backend.cancel(name)


def test_what_cannot_be_enqueued_is_not(site: Site, tasks: Any) -> None:
    with pytest.raises(TypeError):
        tasks.add.enqueue(object(), 2)
    with pytest.raises(RecordTooLarge):
        tasks.add.enqueue("x" * (2 << 20), 2)
    assert 0 == site.work()


def test_signals(site: Site, tasks: Any) -> None:
    from django_tasks import signals

    seen: list[tuple[str, str]] = []
    kinds = {name: getattr(signals, f"task_{name}") for name in ("enqueued", "started", "finished")}
    receivers = [
        (kind, lambda sender, task_result, name=name, **more: seen.append((name, task_result.status)))
        for name, kind in kinds.items()
    ]
    for kind, receiver in receivers:
        kind.connect(receiver)
    try:
        tasks.add.enqueue(1, 2)
        site.work()
    finally:
        for kind, receiver in receivers:
            kind.disconnect(receiver)
    assert [("enqueued", "READY"), ("started", "RUNNING"), ("finished", "SUCCESSFUL")] == seen


def test_priorities_are_those_of_the_topic(site: Site, tasks: Any) -> None:
    asked = [-100, -50, -49, -1, 0, 1, 49, 50, 100]
    sent = [RecordId.parse(tasks.urgent.using(priority=priority).enqueue().id) for priority in asked]
    topic = site.store.topic("django.mail_x40_host")
    assert [0, 0, 1, 1, 2, 3, 3, 4, 4] == [topic.priority_of(record.partition) for record in sent]
    with site.store.subscribe(topic.name, "looks") as reader:
        found = [topic.priority_of(message.partition) for message in reader.receive()]
    assert [4, 4, 3, 3, 2, 1, 1, 0, 0] == found
    assert 9 == site.work("mail@host")


def test_a_topic_that_its_owner_made(tmp_path: Path, tasks: Any) -> None:
    """Of no priorities, or of others: those of the tasks are brought into them, some seconds later at most."""
    clock = ManualClock(NOW_MS)
    with afterlog.open(tmp_path, clock=clock) as store, patch.object(places, "KNOWN_S", 0.0):
        store.create_topic("django.mail_x40_host")
        site = Site(store, clock)
        assert 0 == RecordId.parse(tasks.urgent.using(priority=100).enqueue().id).partition
        store.alter_topic("django.mail_x40_host", priorities=2)
        sent = [RecordId.parse(tasks.urgent.using(priority=priority).enqueue().id) for priority in (-100, 0, 100)]
        assert [0, 0, 1] == [record.partition for record in sent]
        assert 4 == site.work("mail@host")


class TestGate:
    def test_so_many_at_a_time(self) -> None:
        from afterlog.integrations.django.task_worker import Gate

        gate, inside, most = Gate(2), list[int](), list[int]()

        def work(who: int) -> None:
            with gate.turn() as has_turn:
                assert has_turn
                inside.append(who)
                most.append(len(inside))
                inside.remove(who)

        threads = [Thread(target=work, args=(who,), daemon=True) for who in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 20 == len(most)
        assert max(most) <= 2

    def test_nobody_is_let_in_any_more(self) -> None:
        from afterlog.integrations.django.task_worker import Gate

        gate, answers = Gate(1), list[bool]()

        def wait() -> None:
            with gate.turn() as has_turn:
                answers.append(has_turn)

        with gate.turn():
            thread = Thread(target=wait, daemon=True)
            thread.start()
            gate.close()
            thread.join()
        wait()
        assert [False, False] == answers


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs the option STORE"),
        ({"STORE": "/data", "STOER": 1}, "has no options"),
        ({"STORE": "redis://localhost"}, "afterlog:///FOLDER"),
        ({"STORE": 7}, "an open store"),
        ({"STORE": "/data", "RESULT_TTL": 60}, "RESULT_TTL.*timedelta"),
        ({"STORE": "/data", "LEASE": timedelta(0)}, "LEASE.*timedelta"),
    ],
)
def test_options_that_it_does_not_have(options: dict[str, Any], words: str) -> None:
    from django.core.exceptions import ImproperlyConfigured

    from afterlog.integrations.django.backend import AfterlogBackend

    with pytest.raises(ImproperlyConfigured, match=words):
        AfterlogBackend("default", {"OPTIONS": options})


def test_nothing_is_opened_before_it_is_used(tmp_path: Path) -> None:
    from afterlog.integrations.django import AfterlogBackend

    backend = AfterlogBackend("default", {"OPTIONS": {"STORE": f"afterlog://{tmp_path}/data"}})
    assert [] == [*backend.check()]
    backend.close()
    assert not (tmp_path / "data").exists()


@contextmanager
def worker_process(folder: Path, ran: Path) -> Iterator[subprocess.Popen[str]]:
    """`manage.py afterlog_worker`."""
    command = [sys.executable, "-m", "tests.integrations.django_setup", "afterlog_worker", "--queues", "default"]
    environment = {**os.environ, "DJANGO_STORE": str(folder), "DJANGO_RAN": str(ran), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    with process.stdout:
        assert "works off default" in process.stdout.readline()
        yield process
        if process.poll() is None:
            process.terminate()
        process.wait()


def test_workers_that_are_killed_lose_nothing(tmp_path: Path, tasks: Any) -> None:
    """Half of them with the store in them. TERM ends the last, and nothing is left, nothing was early."""
    from django_tasks import task_backends

    from afterlog.integrations.django.backend import AfterlogBackend

    kills = campaigns.examples(1, whole=200)
    folder, ran = tmp_path / "data", tmp_path / "ran"
    ran.touch()
    options = {"STORE": f"afterlog://{folder}", "LEASE": timedelta(milliseconds=500)}
    backend = task_backends["default"] = AfterlogBackend("default", {"OPTIONS": options})
    results: list[Any] = []
    for kill in range(kills + 1):
        with worker_process(folder, ran) as process:
            for delay_ms in (0, 0, 20, 100, 200, 400):
                due = datetime.now(UTC) + timedelta(milliseconds=delay_ms)
                due_us = int(due.timestamp() * 1e6)
                results.append(tasks.note.using(run_after=due if delay_ms else None).enqueue(len(results), due_us))
            if kill < kills:
                process.send_signal(signal.SIGKILL)
                campaigns.count("kills of Django's workers")
                if kill % 2:  # else this process took the store over, and has it when the next one comes
                    backend.close()
                continue
            eventually(lambda: all(backend.get_result(each.id).is_finished for each in results))
    runs = [tuple(map(int, line.split())) for line in ran.read_text().splitlines()]
    assert {*range(len(results))} == {number for number, _ in runs}
    assert 0 <= min(late_us for _, late_us in runs)
    assert {"SUCCESSFUL"} == {backend.get_result(each.id).status for each in results}
    assert process.returncode == 0
    backend.close()


class TestAdmin:
    """The page of the admin, by a browser of Django's tests."""

    PAGE = "/admin/afterlog/afterlogtask/"

    @pytest.fixture(autouse=True)
    def database(self) -> None:
        from django.core.management import call_command

        call_command("migrate", verbosity=0)

    @staticmethod
    def client(*permissions: str) -> Any:
        """Of somebody of the staff who has these."""
        from django.contrib.auth.models import Permission, User
        from django.test import Client

        user = User.objects.create_user(f"user {User.objects.count()}", is_staff=True)
        for name in permissions:
            user.user_permissions.add(Permission.objects.get(codename=f"{name}_afterlogtask"))
        client = Client()
        client.force_login(user)
        return client

    def page(self, client: Any) -> str:
        return str(client.get(self.PAGE).content.decode())

    def test_what_waits_and_what_became_of_it(self, site: Site, tasks: Any) -> None:
        client = self.client("view", "change")
        assert 2 == self.page(client).count("None.")
        waits = tasks.add.using(run_after=NOW + timedelta(days=1)).enqueue(1, b="<two>")
        ran, failed = tasks.add.enqueue(3, 4), tasks.fail.enqueue("for a reason")
        site.store.send("django.default", b"no task", delay=60)
        site.work()
        page = self.page(client)
        assert "tests.integrations.shop_tasks.add" in page
        assert "1, b=&#x27;&lt;two&gt;&#x27;" in page
        assert f'name="cancel" value="default {waits.id}"' in page
        assert page.index(f'name="again" value="default {failed.id}"') < page.index(f"default {ran.id}")
        assert "SUCCESSFUL" in page
        assert "builtins.ValueError" in page
        assert "raise ValueError(reason)" in page

    def test_cancel_and_run_again(self, site: Site, tasks: Any) -> None:
        client = self.client("view", "change")
        waits = tasks.add.using(run_after=NOW + timedelta(days=1)).enqueue(1, 2)
        ran = tasks.add.enqueue(3, 4)
        site.work()
        assert f"Cancelled: {waits.id}" in self.told(client, cancel=waits.id)
        assert gone(site, waits.id)
        assert f"Too late: {waits.id}" in self.told(client, cancel=waits.id)
        assert "Enqueued again: add, as " in self.told(client, again=ran.id)
        assert 1 == site.work()
        assert "Not there: nobody-0@1 (TaskResultDoesNotExist" in self.told(client, again="nobody-0@1")

    def told(self, client: Any, **do: str) -> str:
        answer = client.post(self.PAGE, {name: f"default {result_id}" for name, result_id in do.items()})
        assert (302, self.PAGE) == (answer.status_code, answer["Location"])
        return self.page(client)

    def test_who_may_look_and_who_may_change(self, site: Site, tasks: Any) -> None:
        waits = tasks.add.using(run_after=NOW + timedelta(days=1)).enqueue(1, 2)
        assert 403 == self.client().get(self.PAGE).status_code
        looks = self.client("view")
        assert waits.id not in self.page(looks), "no button"
        assert 403 == looks.post(self.PAGE, {"cancel": f"default {waits.id}"}).status_code
        assert not gone(site, waits.id)

    def test_the_latest_of_many(self, site: Site, tasks: Any) -> None:
        """Of results of days, and of one minute."""
        client = self.client("view", "change")
        for day in range(3):
            ran = [tasks.add.enqueue(day, number) for number in range(60)]
            while site.work():
                pass
            site.clock.advance(86_400_000)
        page = self.page(client)
        assert 100 == page.count('name="again"')
        assert f"default {ran[-1].id}" in page

    def test_a_store_that_is_gone(self, site: Site, tasks: Any) -> None:
        client = self.client("view")
        site.store.close()
        assert "the store is closed" in self.page(client)
