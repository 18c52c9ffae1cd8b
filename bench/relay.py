"""A relay beside a scheduler written with Kafka Streams, on one broker, in one run.

    python -m bench.relay [--only relay|streams] [--rate 4000] [--seconds 20] [--burst 200000] [--pending 1000000]

    steady    so many records a second, due 1 to 3 s later: how late, by the target's LogAppendTime; CPU of the worker
    burst     all are due at one instant: how many a second go out, how late the last is, memory
    rebuild   so many wait; a worker without a cache begins: how long until it is live, memory

Values of 100 bytes that do not compress. The streams' jars (75 MB) are fetched with Maven, and its source compiled.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import confluent_kafka as kafka
import numpy as np
from confluent_kafka import admin
from confluent_kafka.cimpl import NewTopic

from afterlog.base.files import temporary_folder
from bench.harness import machine
from bench.rivals.usage import memory_bytes
from tests.relay.broker import VERSION, Brokers, jars

KINDS: Final = ("relay", "streams")
PARTITIONS: Final = 4
SOURCE: Final = Path(__file__).parent / "streams" / "DelayScheduler.java"
POM: Final = f"""<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>afterlog</groupId><artifactId>streams</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-streams</artifactId><version>{VERSION}</version></dependency>
</dependencies></project>
"""
_CHANCE: Final = random.Random(1)
VALUES: Final = [_CHANCE.randbytes(100) for _ in range(1_000)]


def streams_classes() -> str:
    """The class path of the rival. Raises CalledProcessError."""
    folder = jars().parent / "streams"
    if not (folder / "DelayScheduler.class").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pom.xml").write_text(POM)
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=lib"]
        subprocess.run(command, cwd=folder, check=True, stdin=subprocess.DEVNULL, timeout=600)
        subprocess.run(["javac", "-cp", f"{folder}/lib/*", "-d", str(folder), str(SOURCE)], check=True, timeout=120)
    return f"{folder}:{folder}/lib/*"


class RelayWorker:
    """One process of either kind, in a cluster."""

    def __init__(self, kind: str, brokers: Brokers, folder: Path) -> None:
        self.kind = kind
        if kind == "relay":
            command = [
                sys.executable, "-m", "afterlog", "relay", "--bootstrap", brokers.bootstrap, "--inputs", "later",
                "--group", "relays", "--default-target", "out", "--name", "w0", "--cache", str(folder / "cache"),
            ]  # fmt: skip
        else:
            java = ["java", "-Xmx512m", "-cp", streams_classes()]
            command = [*java, "DelayScheduler", brokers.bootstrap, str(folder / "state")]
        with (folder / f"{kind}.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mib(self) -> int:
        """Private, and mapped pages of files."""
        return sum(memory_bytes([self.process.pid]).values()) >> 20

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Bench:
    """A cluster with the topics, for one kind."""

    def __init__(self, kind: str, brokers: Brokers, folder: Path) -> None:
        self.kind, self.brokers, self.folder = kind, brokers, folder
        self._from: dict[int, int] = {}
        """By partition of the target, what is read next."""
        self.producer = kafka.Producer(
            {"bootstrap.servers": brokers.bootstrap, "linger.ms": 10, "queue.buffering.max.messages": 1_000_000}
        )

    def fill(self, count: int, due_ms: int, spread_ms: int = 1) -> None:
        for number in range(count):
            self.send(number, due_ms + number % spread_ms)
        assert self.producer.flush(300) == 0

    def send(self, number: int, due_ms: int) -> None:
        headers = [("deliver-after", str(due_ms).encode())]
        value, key, partition = VALUES[number % 1_000], b"%d" % due_ms, number % PARTITIONS
        while True:
            try:
                self.producer.produce("later", value, key, partition, headers=headers)
                return
            except BufferError:
                self.producer.poll(0.05)

    def read(self, count: int, wait_s: float) -> np.ndarray[Any, Any]:
        """When the targets got so many, ms, in the order of the time."""
        consumer = kafka.Consumer(
            {
                "bootstrap.servers": self.brokers.bootstrap, "group.id": "bench", "isolation.level": "read_committed",
                "auto.offset.reset": "earliest", "enable.auto.commit": False,
            }
        )  # fmt: skip
        consumer.assign([kafka.TopicPartition("out", each, self._from.get(each, 0)) for each in range(PARTITIONS)])
        stamps: list[int] = []
        until_s = time.monotonic() + wait_s
        while len(stamps) < count and time.monotonic() < until_s:
            for message in consumer.consume(10_000, 0.5):
                if message.error() is None:
                    stamps.append(message.timestamp()[1])
                    self._from[message.partition() or 0] = (message.offset() or 0) + 1
        consumer.close()
        assert len(stamps) == count, f"{len(stamps)} of {count} came in {wait_s} s"
        return np.sort(np.array(stamps))

    def steady(self, rate: float, seconds: float) -> dict[str, Any]:
        with self._worker() as worker:
            self._warm(worker)
            cpu_s, begun_s, due = worker.cpu_s(), time.monotonic(), []
            count, chance = int(rate * seconds), random.Random(2)
            for number in range(count):
                ahead_s = begun_s + number / rate - time.monotonic()
                if ahead_s > 0:
                    time.sleep(ahead_s)
                    self.producer.poll(0)
                due.append(time.time_ns() // 1_000_000 + chance.randrange(1_000, 3_000))
                self.send(number, due[-1])
            self.producer.flush(60)
            # By rank: the n-th that came against the n-th that was due.
            late = self.read(count, 60) - np.sort(np.array(due))
            used_s = worker.cpu_s() - cpu_s
            p50, p99 = np.percentile(late, [50, 99]).tolist()
            return {
                "late_p50_ms": round(p50), "late_p99_ms": round(p99), "late_max_ms": int(late.max()),
                "cpu_s_per_100000": round(used_s / count * 100_000, 1), "memory_mib": worker.memory_mib(),
            }  # fmt: skip

    def burst(self, count: int) -> dict[str, Any]:
        with self._worker() as worker:
            self._warm(worker)
            cpu_s = worker.cpu_s()
            due_ms = int(time.time() * 1_000) + 3_000 + count // 20
            self.fill(count, due_ms)
            assert time.time() * 1_000 < due_ms - 1_000, "the fill took too long: give it more time"
            stamps = self.read(count, 180)
            drained_s = (stamps[-1] - stamps[0]) / 1_000
            return {
                "drained_per_s": round(count / max(drained_s, 0.001)), "last_late_ms": int(stamps[-1] - due_ms),
                "cpu_s": round(worker.cpu_s() - cpu_s, 1), "memory_mib": worker.memory_mib(),
            }  # fmt: skip

    def rebuild(self, count: int) -> dict[str, Any]:
        """Until one that is due at once, behind all that waits, has come out of each partition."""
        with self._worker() as worker:
            self._warm(worker)
            self.fill(count, int(time.time() * 1_000) + 3_600_000, 1_000_000)
            self.fill(PARTITIONS, 1_000)
            self.read(PARTITIONS, 180)
            time.sleep(2)
        for name in ("cache", "state"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        self.fill(PARTITIONS, 1_000)
        begun_s = time.monotonic()
        with self._worker() as worker:
            self.read(PARTITIONS, 600)
            return {"live_after_s": round(time.monotonic() - begun_s, 1), "memory_mib": worker.memory_mib()}

    def _warm(self, worker: RelayWorker) -> None:
        self.fill(1_000, 1_000)
        self.read(1_000, 60)

    @contextlib.contextmanager
    def _worker(self) -> Iterator[RelayWorker]:
        worker = RelayWorker(self.kind, self.brokers, self.folder)
        try:
            yield worker
        finally:
            worker.end()


def measure(kind: str, folder: Path, rate: float, seconds: float, burst: int, pending: int) -> dict[str, Any]:
    folder.mkdir()
    with Brokers(folder / "kafka") as brokers:
        client = admin.AdminClient({"bootstrap.servers": brokers.bootstrap})
        stamped = {"message.timestamp.type": "LogAppendTime"}
        wanted = [NewTopic("later", PARTITIONS), NewTopic("out", PARTITIONS, config=stamped)]
        for done in client.create_topics(wanted).values():
            done.result(30)
        bench = Bench(kind, brokers, folder)
        told: dict[str, Any] = {}
        if seconds:
            told["steady"] = bench.steady(rate, seconds)
        if burst:
            told["burst"] = bench.burst(burst)
        if pending:
            told["rebuild"] = bench.rebuild(pending)
        return told


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--rate", type=float, default=4_000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--burst", type=int, default=200_000)
    parser.add_argument("--pending", type=int, default=1_000_000)
    asked = parser.parse_args()
    print(machine(), flush=True)
    with temporary_folder() as folder:
        for kind in KINDS if asked.only is None else (asked.only,):
            told = measure(kind, folder / kind, asked.rate, asked.seconds, asked.burst, asked.pending)
            print(json.dumps({kind: told}), flush=True)


if __name__ == "__main__":
    main()
