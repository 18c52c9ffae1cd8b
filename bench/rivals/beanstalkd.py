"""beanstalkd: a job for each record, delayed by whole seconds, its due time also its priority."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence

import numpy as np

from bench.rivals.load import START_MS, Batch
from bench.rivals.rival import Handed, Rival
from bench.rivals.server import Server, printed, program

_TTR_S = 86_400
_READ_AHEAD = 100
"""More jobs asked for when one was there, and commands that are sent before their answers are read."""


class Beanstalkd(Rival):
    """The protocol knows one job at a time: batches are pipelined, 100 commands a write.

    Its clock is the real one and cannot be turned. For a drain by a clock that was turned, all that is delayed is made
    ready with one `kick`. Ready jobs come by priority, so the due time in ms since the earliest is given as one.
    """

    name = "beanstalkd"
    served = True
    fsync_records_max = 5_000
    setting = (
        "binlog with `-f 0` (one fsync for each job: it cannot do one for a batch), relaxed `-F`; commands pipelined, "
        "100 at a time, on a Unix socket; delays in whole seconds, rounded up"
    )

    @classmethod
    def missing(cls) -> str | None:
        return None if program("beanstalkd") else "no program beanstalkd"

    def open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "socket"
        path.unlink(missing_ok=True)
        fsync = ["-f", "0"] if self.fsync else ["-F"]
        command = [program("beanstalkd") or "", "-l", f"unix:{path}", "-b", str(self.folder), *fsync]
        self._server = Server(command, self.folder)
        self._server.ready(self._connect)
        self._kicked = False
        self._base_ms = time.time_ns() // 1_000_000 if self.real_time else START_MS

    def _connect(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(self.folder / "socket"))
        self._answers = self._socket.makefile("rb", 1 << 20)

    def fill(self, batch: Batch) -> None:
        now_ms = self._base_ms if not self.real_time else time.time_ns() // 1_000_000
        delays = np.maximum(-(-(batch.due - now_ms) // 1_000), 0).tolist()
        parts = list[bytes]()
        size = batch.data.shape[1]
        for priority, delay, body in zip((batch.due - self._base_ms).tolist(), delays, batch.bodies, strict=True):
            parts.append(b"put %d %d %d %d\r\n%b\r\n" % (priority, delay, _TTR_S, size, body))
        self._said(parts, b"INSERTED")

    def lease(self, now_ms: int, limit: int) -> Handed:
        if not self.real_time and now_ms > self._base_ms and not self._kicked:
            self._said([b"kick 1000000000\r\n"], b"KICKED")
            self._kicked = True
        return self._reserved(b"reserve-with-timeout 0\r\n" * limit, limit)

    def lease_soon(self, limit: int) -> Handed:
        first = self._reserved(b"reserve-with-timeout 1\r\n", 1)
        if not len(first):
            return first
        more = self._reserved(b"reserve-with-timeout 0\r\n" * min(limit, _READ_AHEAD), min(limit, _READ_AHEAD))
        return Handed([*first.bodies, *more.bodies], [*first.token, *more.token], 1 + len(more))

    def _reserved(self, commands: bytes, count: int) -> Handed:
        self._socket.sendall(commands)
        ids, bodies = list[bytes](), list[bytes]()
        for _ in range(count):
            answer = self._answers.readline()
            if answer.startswith(b"RESERVED"):
                _, job, size = answer.split()
                ids.append(job)
                bodies.append(self._answers.read(int(size)))
                self._answers.read(2)
        return Handed(bodies, ids, len(ids))

    def ack(self, handed: Handed) -> None:
        self._said([b"delete %b\r\n" % job for job in handed.token], b"DELETED")

    def _said(self, commands: Sequence[bytes], expected: bytes) -> None:
        """Some at a time: it stops reading while nobody reads its answers, of which a socket holds some hundred."""
        for first in range(0, len(commands), _READ_AHEAD):
            some = commands[first : first + _READ_AHEAD]
            self._socket.sendall(b"".join(some))
            for _ in some:
                answer = self._answers.readline()
                if not answer.startswith(expected):
                    raise RuntimeError(f"beanstalkd said {answer!r}")

    def beside(self) -> Beanstalkd:
        other = Beanstalkd(self.folder, self.fsync, self.size)
        other._server, other._base_ms, other.real_time = self._server, self._base_ms, self.real_time
        other._connect()
        return other

    def processes(self) -> list[int]:
        return self._server.processes()

    def close(self) -> None:
        self._answers.close()
        self._socket.close()
        self._server.stop()

    def kill(self) -> None:
        self._server.kill()

    @classmethod
    def version(cls) -> str:
        return printed("beanstalkd", "-v").split()[-1]
