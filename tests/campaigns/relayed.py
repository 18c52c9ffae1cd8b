"""Workers of a relay, and brokers, killed at random while records go through: an oracle reads what came out.

    python -m tests.campaigns.relayed --records 1000000 --faults 500

A producer sends to an input and notes what was acknowledged; workers are processes of `afterlog relay`; faults are kill
-9, SIGTERM and SIGSTOP beyond the session of workers, kill -9 and SIGTERM of brokers, caches that are gone or somebody
else's, offsets that Kafka has forgotten. In the end the targets are read
by read_committed: every record that was acknowledged is there once, none was appended (by the broker's clock) before it
was due, and what is not there was cancelled, or replaced, by a record that was acknowledged, too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import confluent_kafka as kafka
from confluent_kafka import admin

from tests.relay.broker import Brokers

QUIET: Final = logging.getLogger("tests.relayed.librdkafka")
"""Brokers are killed all the time: what clients say of it."""
QUIET.addHandler(logging.NullHandler())
QUIET.propagate = False
INPUT: Final = "later"
TARGETS: Final = ("out-0", "out-1")
GROUP: Final = "relays"
PARTITIONS: Final = 4
SESSION_MS: Final = 6_000
SETTLED_S: Final = 180.0
EARLY_MS: Final = 0


@dataclass
class Sent:
    """What was acknowledged. due_ms by number; what cancels or replaces a number, by number."""

    due_ms: dict[int, int] = field(default_factory=dict)
    ended_by: dict[int, str] = field(default_factory=dict)
    cancels: int = 0
    failed: int = 0


class Sending(threading.Thread):
    """Records at a rate: delays of up to 9 s, a tenth past due, three tenths by a delay; some are cancelled, some are
    replaced. Bursts of many that are due at one instant, where burst says how many."""

    def __init__(self, bootstrap: str, seed: int, records: int, rate: float, burst: int) -> None:
        super().__init__(name="sending", daemon=True)
        self.sent = Sent()
        self._random = random.Random(seed)
        self._records, self._rate, self._burst = records, rate, burst
        self._producer = kafka.Producer(
            {
                "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 10,
                "message.timeout.ms": 120_000, "partitioner": "murmur2_random", "queue.buffering.max.messages": 500_000,
                "logger": QUIET,
            }
        )  # fmt: skip
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self.error = error

    def _run(self) -> None:
        begun_s, recent, number = time.monotonic(), list[int](), 0
        burst_ms = 0
        while number < self._records:
            ahead_s = begun_s + number / self._rate - time.monotonic()
            if ahead_s > 0:
                self._producer.poll(min(ahead_s, 0.05))
                continue
            now_ms = int(time.time() * 1_000)
            if self._burst and number % (self._burst * 3) == 0:
                burst_ms = now_ms + int(self._burst / self._rate * 1_000) + 3_000
            is_burst = bool(self._burst) and number % (self._burst * 3) < self._burst
            self._send(number, burst_ms if is_burst else None, recent)
            number += 1
        left = self._producer.flush(150)
        assert left == 0, f"{left} records were not acknowledged"

    def _send(self, number: int, due_ms: int | None, recent: list[int]) -> None:
        chance, now_ms = self._random.random(), int(time.time() * 1_000)
        headers: list[tuple[str, bytes]] = [("deliver-to", TARGETS[number % 2].encode())]
        wait_ms = self._random.randrange(9_000)
        timestamp_ms = now_ms
        if due_ms is not None:
            headers.append(("deliver-after", str(due_ms).encode()))
        elif chance < 0.1:
            due_ms = now_ms - wait_ms
            headers.append(("deliver-after", str(due_ms).encode()))
        elif chance < 0.4:
            due_ms = timestamp_ms + wait_ms
            headers.append(("delay", f"{wait_ms}ms".encode()))
        else:
            due_ms = now_ms + wait_ms
            headers.append(("deliver-after", str(due_ms).encode()))
        key = b"%d" % number
        if chance > 0.94:
            headers.append(("schedule-id", key))
            recent.append(number)
        self._produce(number, due_ms, key, headers, timestamp_ms)
        if recent and len(recent) > 10 and self._random.random() < 0.04:
            victim = recent.pop(self._random.randrange(len(recent)))
            key = b"%d" % victim
            if self._random.random() < 0.7:
                self._cancel(victim, key)
            else:  # under its id, with a number of its own
                again = self._records + victim
                due_ms = now_ms + wait_ms
                told = [("deliver-to", b"out-0"), ("deliver-after", str(due_ms).encode()), ("schedule-id", key)]
                self._produce(again, due_ms, key, told, now_ms, replaces=victim)
        if len(recent) > 1_000:
            del recent[0]

    def _produce(
        self, number: int, due_ms: int, key: bytes, headers: Any, timestamp_ms: int, replaces: int | None = None
    ) -> None:
        def told(error: object, _: object) -> None:
            if error is not None:
                self.sent.failed += 1
                return
            self.sent.due_ms[number] = due_ms
            if replaces is not None:
                self.sent.ended_by[replaces] = "replaced"

        self._try(INPUT, b"%d" % number, key, told, headers, timestamp_ms)

    def _cancel(self, victim: int, key: bytes) -> None:
        def told(error: object, _: object) -> None:
            if error is None:
                self.sent.ended_by[victim] = "cancelled"
                self.sent.cancels += 1

        self._try(INPUT, None, key, told, [("cancel", key)], int(time.time() * 1_000))

    def _try(self, topic: str, value: bytes | None, key: bytes, told: Any, headers: Any, timestamp_ms: int) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key, on_delivery=told, headers=headers, timestamp=timestamp_ms)
                return
            except BufferError:
                self._producer.poll(0.1)


class Workers:
    """Processes of `afterlog relay`, one to a name."""

    def __init__(self, folder: Path, bootstrap: str, count: int, options: list[str]) -> None:
        self._folder, self._bootstrap, self._options = folder, bootstrap, options
        self.names = [f"w{number}" for number in range(count)]
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def cache(self, name: str) -> Path:
        return self._folder / f"{name}.cache"

    def start(self, name: str) -> None:
        command = [
            sys.executable, "-X", "faulthandler", "-m", "afterlog", "relay", "--bootstrap", self._bootstrap, "--inputs",
            INPUT, "--group",
            GROUP, "--name", name, "--kafka", f"consumer.session.timeout.ms={SESSION_MS}", "--kafka",
            "consumer.heartbeat.interval.ms=1000", "--cache", str(self.cache(name)), *self._options,
        ]  # fmt: skip
        with (self._folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def end(self, name: str, number: int) -> None:
        process = self.running.pop(name)
        process.send_signal(number)
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # its log says where it is
            process.wait()
            raise AssertionError(f"{name} did not end in 40 s: see {self._folder / name}.log") from None

    def tend(self) -> None:
        """Start those that have ended by themselves, or were ended."""
        for name in self.names:
            process = self.running.get(name)
            if process is None or process.poll() is not None:
                self.start(name)


def settled(bootstrap: str, expected: int, until_s: float) -> list[kafka.Message]:
    """What the targets hold, once they hold so much and nothing more has come for some seconds."""
    consumer = kafka.Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": "oracle", "isolation.level": "read_committed",
            "enable.auto.commit": False, "auto.offset.reset": "earliest", "logger": QUIET,
        }
    )  # fmt: skip
    found: list[kafka.Message] = []
    try:
        consumer.assign(
            [kafka.TopicPartition(topic, each, kafka.OFFSET_BEGINNING) for topic in TARGETS for each in range(2)]
        )
        heard_s = time.monotonic()
        while time.monotonic() < until_s:
            come = [each for each in consumer.consume(10_000, 0.5) if each.error() is None]
            if come:
                heard_s = time.monotonic()
                found += come
            elif len(found) >= expected and time.monotonic() - heard_s > 5:
                break
    finally:
        consumer.close()
    return found


def judge(sent: Sent, found: list[kafka.Message]) -> dict[str, int]:
    """The counts; raises AssertionError where one is lost, doubled or early."""
    counted = Counter(int(message.value()) for message in found)
    early = [
        (number, message.timestamp()[1] - sent.due_ms[number])
        for message in found
        if (number := int(message.value())) in sent.due_ms and message.timestamp()[1] < sent.due_ms[number] - EARLY_MS
    ]
    doubled = [number for number, times in counted.items() if times > 1]
    lost = [number for number in sent.due_ms if number not in counted and number not in sent.ended_by]
    gone = [number for number in sent.ended_by if number not in counted]
    told = {
        "acknowledged": len(sent.due_ms), "delivered": len(found), "cancels": sent.cancels,
        "ended": len(sent.ended_by), "ended_and_not_delivered": len(gone), "not_acknowledged": sent.failed,
        "lost": len(lost), "doubled": len(doubled), "early": len(early),
        "unknown": len([number for number in counted if number not in sent.due_ms]),
    }  # fmt: skip
    if lost or doubled or early:
        raise AssertionError(f"{told}: lost {lost[:5]}, doubled {doubled[:5]}, early {early[:5]}")
    return told


class Faults:
    """What strikes: drawn by weight."""

    def __init__(self, brokers: Brokers, workers: Workers, seed: int) -> None:
        self._brokers, self._workers = brokers, workers
        self._random = random.Random(seed)
        self.counts: Counter[str] = Counter()

    def strike(self) -> None:
        kinds = {"kill": 20, "both": 2, "term": 6, "stop": 2, "broker": 6, "cache": 2, "forget": 1}
        kind = self._random.choices([*kinds], [*kinds.values()])[0]
        name = self._random.choice(self._workers.names)
        self.counts[kind] += 1
        if kind == "cache":
            self._swap_caches()
        if kind == "forget":
            self._forget_offsets()
        if kind in ("kill", "both", "term"):
            self._workers.end(name, signal.SIGTERM if kind == "term" else signal.SIGKILL)
        if kind == "both":
            for each in [*self._workers.running]:
                self._workers.end(each, signal.SIGKILL)
        if kind == "stop":
            process = self._workers.running[name]
            process.send_signal(signal.SIGSTOP)
            time.sleep(SESSION_MS / 1_000 + 2)
            process.send_signal(signal.SIGCONT)
        if kind == "broker":
            broker = self._random.choice(self._brokers.all)
            broker.kill() if self._random.random() < 0.7 else broker.stop()
            time.sleep(self._random.random())
            broker.start()
            broker.wait()
        time.sleep(self._random.random() * 0.5)
        self._workers.tend()

    def _swap_caches(self) -> None:
        """Those of two workers that have ended cleanly, or one is gone."""
        crew = self._workers
        one, other = self._random.choice(crew.names), self._random.choice(crew.names)
        for name in {one, other}:
            crew.end(name, signal.SIGTERM)
        aside = crew.cache(one).with_suffix(".aside")
        shutil.rmtree(aside, ignore_errors=True)
        if one == other:
            shutil.rmtree(crew.cache(one), ignore_errors=True)
        elif crew.cache(one).exists() and crew.cache(other).exists():
            crew.cache(one).rename(aside)
            crew.cache(other).rename(crew.cache(one))
            aside.rename(crew.cache(other))

    def _forget_offsets(self) -> None:
        """Of a group that was away for a week: what was committed is in the frontier topic alone."""
        for name in [*self._workers.running]:
            self._workers.end(name, signal.SIGTERM)
        client = admin.AdminClient({"bootstrap.servers": self._brokers.bootstrap, "logger": QUIET})
        until_s = time.monotonic() + 30
        while time.monotonic() < until_s:
            [done] = client.delete_consumer_groups([GROUP]).values()
            error = done.exception(30)
            if error is None or error.args[0].code() == kafka.KafkaError.GROUP_ID_NOT_FOUND:
                return
            time.sleep(0.2)
        raise AssertionError(f"the group is never empty: {error}")


@contextlib.contextmanager
def cluster(folder: Path, brokers: int) -> Iterator[Brokers]:
    with Brokers(folder, brokers) as made:
        client = admin.AdminClient({"bootstrap.servers": made.bootstrap, "logger": QUIET})
        stamped = {"message.timestamp.type": "LogAppendTime"}
        wanted = [
            admin.NewTopic(INPUT, PARTITIONS), *(admin.NewTopic(each, 2, config=stamped) for each in TARGETS)
        ]  # fmt: skip
        for done in client.create_topics(wanted, operation_timeout=30).values():
            done.result(60)
        yield made


def run(
    folder: Path, *, seed: int, records: int, rate: float, faults: int, workers: int = 2, brokers: int = 1,
    burst: int = 0, pause_s: float = 2.0, batch: int = 20_000, options: tuple[str, ...] = (),
) -> dict[str, Any]:  # fmt: skip
    """One campaign; what was counted. Raises AssertionError."""
    chance = random.Random(seed)
    with cluster(folder, brokers) as made:
        config = folder / "relay.toml"
        config.write_text(f"batch = {batch}\n")
        crew = Workers(folder, made.bootstrap, workers, ["--config", str(config), *options])
        striking = Faults(made, crew, seed + 1)
        sending = Sending(made.bootstrap, seed + 2, records, rate, burst)
        try:
            crew.tend()
            sending.start()
            begun_s = time.monotonic()
            while sending.is_alive() or sum(striking.counts.values()) < faults:
                time.sleep(chance.random() * pause_s)
                crew.tend()
                if sum(striking.counts.values()) < faults:
                    striking.strike()
            sending.join()
            if sending.error is not None:
                raise sending.error
            crew.tend()
            expected = len(sending.sent.due_ms) - len(sending.sent.ended_by)
            told = judge(sending.sent, settled(made.bootstrap, expected, time.monotonic() + SETTLED_S))
            return {**told, "seconds": round(time.monotonic() - begun_s), "faults": dict(striking.counts)}
        finally:
            for process in crew.running.values():
                process.kill()
                process.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rate", type=float, default=1_000)
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--burst", type=int, default=0)
    parser.add_argument("--batch", type=int, default=20_000)
    parser.add_argument("--pause", type=float, default=2.0)
    parser.add_argument("--option", action="append", default=[])
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="afterlog-relayed-", dir=os.environ.get("TMPDIR")))
    told = run(
        folder, seed=asked.seed, records=asked.records, rate=asked.rate, faults=asked.faults, workers=asked.workers,
        brokers=asked.brokers, burst=asked.burst, batch=asked.batch, pause_s=asked.pause, options=tuple(asked.option),
    )  # fmt: skip
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
