"""Real Kafka brokers for the tests: 45 MB of jars by Maven, once, and a broker that answers in some seconds.

A broker is one JVM in a folder of its own, controller and broker in one (KRaft); several make a cluster.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Final

VERSION: Final = "4.3.0"
CLUSTER_ID: Final = "MkU3OEVBNTcwNTJENDM2Qg"
JARS: Final = Path(os.environ.get("AFTERLOG_KAFKA_JARS") or Path.home() / ".cache" / "afterlog" / f"kafka-{VERSION}")
POM: Final = f"""<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>afterlog</groupId><artifactId>brokers</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version></dependency>
</dependencies></project>
"""
JVM: Final = ("java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
STARTED_S: Final = 60.0


def jars() -> Path:
    """The folder of Kafka's jars, fetched where it is not there. Raises RuntimeError."""
    done = JARS / "done"
    if not done.exists():
        if shutil.which("mvn") is None or shutil.which("java") is None:
            raise RuntimeError("Kafka's jars are fetched with Maven and run with Java 17: install maven and a JRE")
        JARS.mkdir(parents=True, exist_ok=True)
        (JARS / "pom.xml").write_text(POM)
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=lib"]
        subprocess.run(command, cwd=JARS, check=True, stdin=subprocess.DEVNULL, timeout=600)
        done.touch()
    return JARS / "lib"


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


class Broker:
    """One of a cluster."""

    def __init__(self, folder: Path, number: int, ports: tuple[int, int], voters: str, replicas: int) -> None:
        self.folder = folder
        self.port, controller = ports
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True)
        minimum = max(replicas - 1, 1)
        settings = {
            "process.roles": "broker,controller", "node.id": number, "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}", "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT", "log.dirs": folder / "data", "num.partitions": 1,
            "auto.create.topics.enable": "false", "group.initial.rebalance.delay.ms": 0,
            "group.min.session.timeout.ms": 1_000, "broker.session.timeout.ms": 1_000,
            "group.consumer.min.session.timeout.ms": 1_000, "group.consumer.min.heartbeat.interval.ms": 200,
            "broker.heartbeat.interval.ms": 250, "offsets.topic.num.partitions": 4,
            "offsets.topic.replication.factor": replicas, "transaction.state.log.num.partitions": 4,
            "transaction.state.log.replication.factor": replicas, "transaction.state.log.min.isr": minimum,
            "default.replication.factor": replicas, "min.insync.replicas": minimum, "log.cleaner.dedupe.buffer.size":
            4 << 20, "offsets.retention.check.interval.ms": 1_000, "transaction.abort.timed.out.transaction.cleanup"
            ".interval.ms": 500, "log.retention.check.interval.ms": 1_000,
        }  # fmt: skip
        self._settings = folder / "server.properties"
        self._settings.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self._run("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self._settings))

    def start(self) -> None:
        log = (self.folder / "broker.log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [*JVM, "-cp", f"{jars()}/*", "kafka.Kafka", str(self._settings)], stdin=subprocess.DEVNULL, stdout=log,
                stderr=log,
            )  # fmt: skip

    def wait(self) -> None:
        """Until it answers. Raises RuntimeError."""
        until_s = time.monotonic() + STARTED_S
        while time.monotonic() < until_s:
            assert self._process is not None
            if self._process.poll() is not None:
                break
            with socket.socket() as asking:
                asking.settimeout(0.2)
                if asking.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise RuntimeError(f"no broker: {(self.folder / 'broker.log').read_text()[-2_000:]}")

    def signal(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _run(self, *command: str) -> None:
        ran = subprocess.run(
            [*JVM, "-cp", f"{jars()}/*", *command],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=120,
        )
        if ran.returncode:
            raise RuntimeError(f"{command}: {ran.stdout[-500:]} {ran.stderr[-1_500:]}")


class Brokers:
    """A cluster of `count`, for as long as the block."""

    def __init__(self, folder: Path, count: int = 1) -> None:
        ports = [(free_port(), free_port()) for _ in range(count)]
        voters = ",".join(f"{number}@127.0.0.1:{each[1]}" for number, each in enumerate(ports, 1))
        replicas = min(count, 3)
        self.all = [
            Broker(folder / f"broker-{number}", number, each, voters, replicas) for number, each in enumerate(ports, 1)
        ]
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port, _ in ports)

    def __enter__(self) -> Brokers:
        for each in self.all:
            each.start()
        for each in self.all:
            each.wait()
        return self

    def __exit__(self, *error: object) -> None:
        for each in self.all:
            each.kill()
