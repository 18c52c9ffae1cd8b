"""Kills from outside: processes that share a store, the one that serves among them, and what became of it all.

    zygote ──fork──> 3 that share the folder       each sends and receives, and says so over one pipe; at any time
             ──fork──> 2 that are served, by way   somebody is killed with SIGKILL, and another one begins in his place
                       of a proxy that cuts

The oracle has nothing but what was said, and the log as it lies there at the end. What it holds:

    each send that was answered is in the log once, where the answer said; one that was not, at most once    D3 D8 D11
    nothing else is in the log                                                                               D12
    everything in the log is received by somebody, none before its time                                      D1 D2 D4
    a record is received again only where its reader was killed, or its answer cut off, before the ack was   D5 D9
    answered, or behind its lease; how often it failed is never told higher than its leases have ended       D10
    no process sees an error

    python -m tests.killed_clients --kills 200 [--seed 1] [--bug NAME]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import afterlog
from afterlog.names import LOCK, SERVER_SOCKET
from tests.killed_client import BUGS, LEASE_MS, SUBSCRIPTION, TOPIC

SHARED, SERVED = 3, 2
GRID_MS = LEASE_MS // 128 + 1
"""Leases end on a grid (subscription/timers.py)."""
PATIENCE_S = 30.0


class Lies(AssertionError):
    """A promise was broken."""


class Proxy:
    """Between clients and the socket in a folder: pieces of any size, a little late, and cut off anywhere."""

    def __init__(self, folder: Path, path: Path, seed: int) -> None:
        self._to = str(folder / SERVER_SOCKET)
        self._chance = random.Random(seed)
        self.cuts = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._relay, args=(client,), daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server:
            try:
                server.connect(self._to)
            except OSError:
                return
            left = self._chance.choice((None, None, 500, 5_000, 50_000))
            budget = [None if left is None else self._chance.randrange(left)]
            back = threading.Thread(target=self._pump, args=(server, client, budget), daemon=True)
            back.start()
            self._pump(client, server, budget)
            back.join()

    def _pump(self, here: socket.socket, there: socket.socket, budget: list[int | None]) -> None:
        """Until one end is reached, or so many bytes have gone in both directions."""
        with contextlib.suppress(OSError):
            while data := here.recv(self._chance.choice((1, 7, 100, 4_096))):
                left = budget[0]
                if left is not None:
                    budget[0] = left - len(data)
                    if left < len(data):
                        there.sendall(data[:left])
                        self.cuts += 1
                        break
                if self._chance.random() < 0.02:
                    time.sleep(0.002)
                there.sendall(data)
        for each in (here, there):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR if budget[0] is not None and budget[0] < 0 else socket.SHUT_WR)


class Got(NamedTuple):
    """One delivery, by wall clocks, which are one on one machine."""

    leased_ms: int
    """By who serves; as the deadline tells, which is rounded up, so it may be GRID_MS late."""
    now_ms: int
    """When it was there."""
    name: str
    redelivery_count: int


@dataclass
class Said:
    """Everything that was said, by what it is about."""

    sending: dict[str, tuple[str, int]] = field(default_factory=dict)
    """value: (who, due_ms)"""
    sent: dict[str, tuple[int, int]] = field(default_factory=dict)
    """value: (partition, offset)"""
    got: dict[str, list[Got]] = field(default_factory=lambda: defaultdict(list))
    acked: dict[str, int] = field(default_factory=dict)
    """value: wall_ms of the first answer"""
    failed: list[str] = field(default_factory=list)
    pids: dict[str, int] = field(default_factory=dict)
    last_sent_s: float = 0.0
    sends_s: list[float] = field(default_factory=list)

    def add(self, line: list[Any]) -> None:
        word, at_s, *rest = line
        match word, rest:
            case "joined", [name, pid]:
                self.pids[name] = pid
            case "sending", [name, values, due_ms]:
                self.sending |= dict.fromkeys(values, (name, due_ms))
            case "sent", [_, values, partition, offsets]:
                self.sends_s.append(at_s)
                self.sent |= {value: (partition, offset) for value, offset in zip(values, offsets, strict=True)}
            case "got", [name, value, count, leased_ms, now_ms]:
                self.got[value].append(Got(leased_ms, now_ms, name, count))
            case "acked", [_, value, now_ms]:
                self.acked.setdefault(value, now_ms)
            case "failed", [name, error]:
                self.failed.append(f"{name}: {error}")


@dataclass(frozen=True, kw_only=True)
class Report:
    kills: int
    takeovers_s: list[float]
    """From the kill of the process that served to the next send that was answered, anywhere."""
    records: int
    unanswered: int
    """Sends of which nobody heard."""
    repeats: Counter[str]
    """Of a record to the subscription, and why."""
    cuts: int


class Campaign:
    """A crowd of processes around one folder."""

    def __init__(self, folder: Path, seed: int, bug: str, served: int) -> None:
        self.folder = folder
        self._store = folder / "store"
        self._proxy_path = folder / "proxy.sock"
        self._chance = random.Random(seed)
        self._bug = bug
        self._served = served
        self.said = Said()
        self._lock = threading.Lock()
        self._names: list[tuple[str, str]] = []
        self._born = 0
        self.killed_ms: dict[str, int] = {}
        self.takeovers_s: list[float] = []

    def run(self, kills: int, pause_s: float) -> Report:
        proxy = Proxy(self._store, self._proxy_path, self._chance.randrange(1 << 30))
        with self._zygote() as zygote:
            try:
                for role in ("shared",) * SHARED + (str(self._proxy_path),) * self._served:
                    self._begin(zygote, role)
                for number in range(kills):
                    time.sleep(self._chance.random() * pause_s)
                    self._check()
                    if number % 2 == 0:
                        self._kill_serving(zygote)
                    else:
                        self._kill(zygote, self._chance.choice(self._names))
                time.sleep(2 * LEASE_MS / 1_000)
                self._check()
            finally:
                os.killpg(zygote.pid, signal.SIGKILL)
                proxy.close()
        self._check()
        return self._judged(kills, proxy.cuts)

    @contextlib.contextmanager
    def _zygote(self) -> Iterator[subprocess.Popen[bytes]]:
        read, write = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.killed_client"], stdin=subprocess.PIPE, stdout=write, start_new_session=True
        )
        os.close(write)
        listening = threading.Thread(target=self._listen, args=(read,), daemon=True)
        listening.start()
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(PATIENCE_S)
            listening.join(PATIENCE_S)

    def _listen(self, read: int) -> None:
        with open(read, "rb") as lines:
            for line in lines:
                with self._lock:
                    self.said.add(json.loads(line))

    def _begin(self, zygote: subprocess.Popen[bytes], role: str) -> None:
        self._born += 1
        name = f"{'s' if role == 'shared' else 'c'}{self._born}"
        self._names.append((name, role))
        assert zygote.stdin is not None
        line = json.dumps([str(self._store), role, name, self._chance.randrange(1 << 30), self._bug])
        zygote.stdin.write(line.encode() + b"\n")
        zygote.stdin.flush()
        self._await(lambda: name in self.said.pids, f"{name} to begin")

    def _kill(self, zygote: subprocess.Popen[bytes], who: tuple[str, str]) -> None:
        self._names.remove(who)
        self._end(who[0])
        self._begin(zygote, who[1])

    def _kill_serving(self, zygote: subprocess.Popen[bytes]) -> None:
        pid = int((self._store / LOCK).read_text().strip() or 0)
        found = [each for each in self._names if self.said.pids[each[0]] == pid]
        if not found:  # it was killed, and nobody has taken over yet
            self._kill(zygote, self._chance.choice(self._names))
            return
        self._names.remove(found[0])
        killed_s = self._end(found[0][0])
        self._await(lambda: any(at_s > killed_s for at_s in self.said.sends_s[-50:]), "somebody to take over")
        with self._lock:
            self.takeovers_s.append(min(at_s for at_s in self.said.sends_s if at_s > killed_s) - killed_s)
        self._begin(zygote, found[0][1])

    def _end(self, name: str) -> float:
        killed_s = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.said.pids[name], signal.SIGKILL)
        self.killed_ms[name] = _wall_ms()
        return killed_s

    def _await(self, there: Any, what: str) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while True:
            self._check()
            with self._lock:
                if there():
                    return
            if time.monotonic() > until_s:
                raise Lies(f"waited {PATIENCE_S} s for {what}")
            time.sleep(0.002)

    def _check(self) -> None:
        with self._lock:
            if self.said.failed:
                raise Lies(self.said.failed[0])

    # What became of it.

    def _judged(self, kills: int, cuts: int) -> Report:
        said, places = self.said, defaultdict[str, list[tuple[int, int]]](list)
        with afterlog.open(self._store) as store:
            with store.subscribe(TOPIC, SUBSCRIPTION, lease_ms=LEASE_MS) as subscription:
                self._drain(subscription)
            _hold(max(due for _, due in said.sending.values()) < _wall_ms(), "what is not due cannot be looked for")
            with store.consumer(TOPIC, group="oracle") as consumer:
                while found := consumer.poll(10_000):
                    for message in found:
                        places[(message.value or b"").decode()].append((message.partition, message.offset))
            store.check()
        for value, where in places.items():
            _hold(value in said.sending, f"{value} is in the log, and nobody sent it")
            _hold(len(where) == 1, f"{value} was sent once, and is in the log {len(where)} times: {where}")
            _hold(value in said.got, f"{value} is in the log, and nobody received it")
        for value, place in said.sent.items():
            _hold([place] == places.get(value), f"{value} was answered {place}, and is at {places.get(value)}")
        repeats: Counter[str] = Counter()
        for value, times in said.got.items():
            due_ms = said.sending[value][1]
            _hold(all(each.now_ms >= due_ms for each in times), f"{value} was received before its time")
            for before, again in pairwise(sorted(times)):
                repeats[self._why(value, before, again)] += 1
            first, last = min(times), max(times)
            ended = (last.leased_ms - max(due_ms, first.leased_ms - LEASE_MS * kills)) // LEASE_MS + 1
            _hold(last.redelivery_count <= ended, f"{value} failed {last.redelivery_count} times, in {ended} leases")
        return Report(
            kills=kills,
            takeovers_s=sorted(self.takeovers_s),
            records=len(places),
            unanswered=len(said.sending) - len(said.sent),
            repeats=repeats,
            cuts=cuts,
        )

    def _drain(self, subscription: Any) -> None:
        """Leases of who was killed end, and all that was sent becomes due; then what is left comes."""
        quiet = 0
        while quiet < 2:
            received = subscription.receive(1_000, timeout=LEASE_MS / 1_000)
            now_ms = _wall_ms()
            for message in received:
                got = Got(message.deadline_ms - LEASE_MS, now_ms, "oracle", message.redelivery_count)
                self.said.got[(message.value or b"").decode()].append(got)
            subscription.ack_many(received)
            quiet = 0 if received else quiet + 1

    def _why(self, value: str, before: Got, again: Got) -> str:
        acked_ms = self.said.acked.get(value)
        before_ms = again.leased_ms - GRID_MS
        _hold(acked_ms is None or acked_ms >= before_ms, f"{value} was acked at {acked_ms}, and then {before}, {again}")
        if again.leased_ms - before.leased_ms >= LEASE_MS:
            return "its lease had ended"
        if self.killed_ms.get(before.name, again.leased_ms) < again.leased_ms:
            return "its reader was killed"
        after_ms = again.leased_ms - before.leased_ms
        raise Lies(f"{value} was {before.name}'s for {LEASE_MS} ms, and {again.name} had it {after_ms} ms later")


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _hold(promise: bool, told: str) -> None:
    if not promise:
        raise Lies(told)


def campaign(kills: int, seed: int, bug: str = "none", pause_s: float = 0.3, served: int = SERVED) -> Report:
    """Raises Lies."""
    with tempfile.TemporaryDirectory() as folder:
        return Campaign(Path(folder), seed, bug, served).run(kills, pause_s)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--bug", choices=BUGS, default="none")
    asked = parser.parse_args()
    print(f"seed {asked.seed}")
    report = campaign(asked.kills, asked.seed, asked.bug)
    took = report.takeovers_s
    print(
        f"{report.kills} kills, {report.cuts} connections cut, {report.records} records, {report.unanswered} of sends "
        f"without an answer; repeats: {dict(report.repeats)}\ntakeovers: {len(took)}, "
        f"p50 {took[len(took) // 2] * 1_000:.0f} ms, max {took[-1] * 1_000:.0f} ms"
    )


if __name__ == "__main__":
    main()
