"""Two servers and a replicator, each a process, with proxies between that cut and delay: any of them is killed at any
time, and comes back. What was sent is in both once, in order; what was acked in one does not come in the other.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import afterlog
from tests import campaigns
from tests.campaigns.killed_proxy import Proxy
from tests.support import PATIENCE_S

KILLS = 60 if campaigns.WHOLE else 4 * campaigns.DEPTH
SENDS = 30
"""Between two kills, to each."""
NAMES = ("eu", "us")


class Process:
    """One that can be killed and started again. word: what it says on stderr once it works."""

    def __init__(self, word: str, *command: str) -> None:
        self._word = word
        self._command = [sys.executable, "-m", "afterlog", *command]
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)
        said = ""
        assert self._process.stderr is not None
        while self._word not in said:
            line = self._process.stderr.readline()
            assert line, f"{self._command} said {said!r}"
            said += line
        threading.Thread(target=self._drain, args=(self._process.stderr,), daemon=True).start()

    def kill(self, number: int = signal.SIGKILL) -> None:
        self._process.send_signal(number)
        self._process.wait(PATIENCE_S)

    @staticmethod
    def _drain(lines: Any) -> None:
        with lines:
            for _ in lines:
                pass


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[tuple[dict[str, Process], dict[str, Any]]]:
    """The processes by name, and a client of each cluster, which is not by way of the proxies."""
    with ExitStack() as stack:
        processes, clients, ways = dict[str, Process](), dict[str, Any](), list[str]()
        for number, name in enumerate(NAMES):
            folder, way = tmp_path / name, tmp_path / f"{name}.sock"
            processes[name] = Process("serving", "serve", str(folder))
            stack.callback(processes[name].kill)
            stack.callback(Proxy(folder, way, campaigns.SEED + number).close)
            clients[name] = stack.enter_context(afterlog.connect(folder, timeout=PATIENCE_S))
            ways.append(f"{name}=unix:{way}")
        processes["replicator"] = Process("replicating", "replicate", *ways, "--log-level", "error")
        stack.callback(processes["replicator"].kill)
        yield processes, clients


def all_of(store: Any, group: str) -> list[str]:
    """The values of what is there, as a new group reads them."""
    with store.consumer("t", group=group) as consumer:
        found = list[str]()
        while messages := consumer.poll(10_000, timeout=0):
            found += [message.value.decode() for message in messages]
        return found


def awaited(look: Callable[[], object]) -> None:
    """Until what is looked for is there, or the test's patience is at its end."""
    over = threading.Event()
    timer = threading.Timer(4 * PATIENCE_S, over.set)
    timer.start()
    try:
        while not look():
            assert not over.wait(0.05), "it does not come"
    finally:
        timer.cancel()


def test_both_have_all_whoever_is_killed(crowd: tuple[dict[str, Process], dict[str, Any]]) -> None:
    processes, clients = crowd
    chance, sent, groups = random.Random(campaigns.SEED), {name: list[str]() for name in NAMES}, iter(range(1 << 30))
    clients["eu"].create_topic("t")
    awaited(lambda: ["t"] == [topic.name for topic in clients["us"].topics()])
    for _ in range(KILLS):
        for _ in range(SENDS):
            name = chance.choice(NAMES)
            value = f"{name}-{len(sent[name])}"
            clients[name].send("t", value.encode(), partition=0)
            sent[name].append(value)
        victim = processes[chance.choice([*processes])]
        victim.kill()
        victim.start()
    campaigns.count("kills of clusters and replicators", KILLS)
    everything = Counter(sent["eu"] + sent["us"])

    def same() -> bool:
        return all(everything == Counter(all_of(clients[name], f"g{next(groups)}")) for name in NAMES)

    awaited(same)
    for name in NAMES:
        found = all_of(clients[name], f"g{next(groups)}")
        for origin in NAMES:
            assert sent[origin] == [value for value in found if value.startswith(origin)]

    with clients["eu"].subscribe("t", "worker", replicated=True) as reader:
        received = reader.receive(len(everything), timeout=PATIENCE_S)
        acked = {message.value.decode() for message in received if chance.random() < 0.5}
        for message in received:
            if message.value.decode() in acked:
                reader.ack(message)
        processes["us"].kill()
        processes["us"].start()

        def left() -> set[str]:
            with clients["us"].subscribe("t", "worker", replicated=True) as other:
                found = list(other.receive(len(everything), timeout=1) or ())
                for message in found:
                    other.release(message)
                return {message.value.decode() for message in found}

        awaited(lambda: left() == everything.keys() - acked)
