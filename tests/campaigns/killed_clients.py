"""Kills from outside: processes that share a store, the one that serves among them, and what became of it all.

    zygote ──fork──> 3 that share the folder       each sends and receives, and says so over one pipe; at any time
             ──fork──> 2 that are served, by way   somebody is killed with SIGKILL, and another one begins in his place
                       of a proxy that cuts and repeats

The oracle (killed_oracle.py) has nothing but what was said, and the log as it lies there at the end. And no
process sees an error.

    python -m tests.campaigns.killed_clients --kills 200 [--seed 1] [--durability always] [--bug NAME]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import afterlog
from afterlog.base.errors import StoreLocked
from afterlog.base.names import LOCK
from tests.campaigns.killed_client import BUGS, LEASE_MS, SUBSCRIPTION, TOPIC
from tests.campaigns.killed_oracle import Got, Lies, Oracle, Place, Said, hold, wall_ms
from tests.campaigns.killed_proxy import Proxy

SHARED, SERVED = 3, 2
DURABILITIES = ["os", "always"]
"""Who serves appends by his own."""
PATIENCE_S = 30.0


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
    asked: Counter[str]
    """What else was asked for."""
    cuts: int
    again: Counter[str]
    """Requests that the proxy said again, by what came of them."""


class Campaign:
    """A crowd of processes around one folder."""

    def __init__(self, folder: Path, kills: int, seed: int, bug: str, durability: str | None, served: int) -> None:
        self._kills = kills
        self._store = folder / "store"
        self._proxy_path = folder / "proxy.sock"
        self._chance = random.Random(seed)
        self._bug = bug
        self._durability = durability
        self._served = served
        self._said = Said()
        self._lock = threading.Lock()
        self._names: list[tuple[str, str]] = []
        self._born = 0
        self._killed_ms: dict[str, int] = {}
        self._takeovers_s: list[float] = []
        self._oracle = Oracle(self._said, self._killed_ms, kills)

    def run(self, pause_s: float) -> Report:
        proxy = Proxy(self._store, self._proxy_path, self._chance.randrange(1 << 30))
        with self._zygote() as zygote:
            try:
                roles = ("shared",) * SHARED + (str(self._proxy_path),) * self._served
                for name in [self._ask_for(zygote, role) for role in roles]:
                    self._await_joined(name)
                for number in range(self._kills):
                    time.sleep(self._chance.random() * pause_s)
                    self._look()
                    if number % 2 == 0:
                        self._kill_serving(zygote)
                    else:
                        self._kill(zygote, self._chance.choice(self._names))
                time.sleep(LEASE_MS / 1_000)
                self._look()
            finally:
                os.killpg(zygote.pid, signal.SIGKILL)
                proxy.close()
        return self._judged(proxy)

    @contextlib.contextmanager
    def _zygote(self) -> Iterator[subprocess.Popen[bytes]]:
        read, write = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.campaigns.killed_client"],
            stdin=subprocess.PIPE,
            stdout=write,
            start_new_session=True,
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
                    self._said.add(json.loads(line))

    def _begin(self, zygote: subprocess.Popen[bytes], role: str) -> None:
        self._await_joined(self._ask_for(zygote, role))

    def _ask_for(self, zygote: subprocess.Popen[bytes], role: str) -> str:
        """The name of a process that begins."""
        self._born += 1
        name = f"{'s' if role == 'shared' else 'c'}{self._born}"
        self._names.append((name, role))
        assert zygote.stdin is not None
        durability = self._durability or self._chance.choice(DURABILITIES)
        line = json.dumps([str(self._store), role, name, self._chance.randrange(1 << 30), self._bug, durability])
        zygote.stdin.write(line.encode() + b"\n")
        zygote.stdin.flush()
        return name

    def _await_joined(self, name: str) -> None:
        self._await(lambda: name in self._said.pids, f"{name} to begin")

    def _kill(self, zygote: subprocess.Popen[bytes], who: tuple[str, str]) -> None:
        self._names.remove(who)
        self._end(who[0])
        self._begin(zygote, who[1])

    def _kill_serving(self, zygote: subprocess.Popen[bytes]) -> None:
        pid = int(((self._store / LOCK).read_text().split() or ["0"])[0])
        found = [each for each in self._names if self._said.pids[each[0]] == pid]
        if not found:  # it was killed, and nobody has taken over yet
            self._kill(zygote, self._chance.choice(self._names))
            return
        self._names.remove(found[0])
        killed_s = self._end(found[0][0])
        self._await(lambda: any(at_s > killed_s for at_s in self._said.sends_s[-50:]), "somebody to take over")
        with self._lock:
            self._takeovers_s.append(min(at_s for at_s in self._said.sends_s if at_s > killed_s) - killed_s)
        self._begin(zygote, found[0][1])

    def _end(self, name: str) -> float:
        killed_s = time.monotonic()
        with self._lock:
            self._killed_ms[name] = wall_ms()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._said.pids[name], signal.SIGKILL)
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
            if self._said.failed:
                raise Lies(self._said.failed[0])

    def _look(self) -> None:
        """A lie that can be seen already ends it."""
        with self._lock:
            self._oracle.look()

    # What became of it.

    def _judged(self, proxy: Proxy) -> Report:
        said, places = self._said, defaultdict[str, list[Place]](list)
        with self._opened() as store:
            with store.subscribe(TOPIC, SUBSCRIPTION, lease_ms=LEASE_MS) as subscription:
                self._drain(subscription)
            due = [due_ms for _, due_ms in said.sending.values()] + [move.due_ms for move in said.moves.values()]
            hold(max(due) < wall_ms(), "what is not due cannot be looked for")
            with store.consumer(TOPIC, group="oracle") as consumer:
                while found := consumer.poll(10_000):
                    for message in found:
                        places[(message.value or b"").decode()].append((message.partition, message.offset))
            store.check()
        with self._lock:
            repeats = self._oracle.look_at_the_end(places, proxy.answered_again)
        return Report(
            kills=self._kills,
            takeovers_s=sorted(self._takeovers_s),
            records=len(places),
            unanswered=len(said.sending) - len(said.sent),
            repeats=repeats,
            cuts=proxy.cuts,
            again=proxy.again,
            asked=Counter(
                nacked=sum(map(len, said.nacks.values())), cancelled=len(said.cancels), rescheduled=len(said.moves)
            ),
        )

    def _opened(self) -> afterlog.Store:
        """Who was killed is the zygote's child, so nobody waits for the end of it: its lock can outlive its pipe."""
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return afterlog.open(self._store)
            except StoreLocked:
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.002)

    def _drain(self, subscription: Any) -> None:
        """Leases of who was killed end, and all that was sent becomes due; then what is left comes."""
        quiet = 0
        while quiet < 2:
            received = subscription.receive(1_000, timeout=LEASE_MS / 1_000)
            now_ms = wall_ms()
            for message in received:
                leased_ms, place = message.deadline_ms - LEASE_MS, (message.partition, message.offset)
                got = Got(leased_ms, now_ms, "oracle", message.redelivery_count, place)
                self._said.got[(message.value or b"").decode()].append(got)
            subscription.ack_many(received)
            quiet = 0 if received else quiet + 1


def campaign(
    kills: int, seed: int, bug: str = "none", durability: str | None = None, pause_s: float = 0.3, served: int = SERVED
) -> Report:
    """Raises Lies."""
    with tempfile.TemporaryDirectory() as folder:
        return Campaign(Path(folder), kills, seed, bug, durability, served).run(pause_s)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--durability", choices=DURABILITIES, help="left out: each process has its own")
    parser.add_argument("--bug", choices=BUGS, default="none")
    asked = parser.parse_args()
    print(f"seed {asked.seed}")
    print(told(campaign(asked.kills, asked.seed, asked.bug, asked.durability)))


def told(report: Report) -> str:
    took = report.takeovers_s
    return (
        f"{report.kills} kills, {report.cuts} connections cut, {report.records} records, {report.unanswered} of sends "
        f"without an answer; {dict(report.asked)}\nsaid again: {dict(report.again)}\n"
        f"repeats: {dict(report.repeats)}\ntakeovers: {len(took)}, "
        f"p50 {took[len(took) // 2] * 1_000:.0f} ms, max {took[-1] * 1_000:.0f} ms"
    )


if __name__ == "__main__":
    main()
