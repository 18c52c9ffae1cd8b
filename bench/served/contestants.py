"""Who takes part: the rivals of `bench.rivals` that are servers, and afterlog, served and in process.

All by the real clock. What they can do more here: send one record by the cheapest command that they have for one, and
say how often they have waited for the disk, where they know.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import afterlog
from bench.rivals.beanstalkd import Beanstalkd
from bench.rivals.load import Batch
from bench.rivals.ours import TOPIC, AfterlogColumns, AfterlogObjects
from bench.rivals.postgres import PostgreSQL
from bench.rivals.redis_set import Redis
from bench.rivals.rival import Handed, Rival
from bench.rivals.server import Server

_LEASE_MS = 86_400_000
_TTR_S = 86_400
_SERVE = "from afterlog.cli.main import main; main()"


class Contestant(Rival):
    """A rival that can have many clients."""

    real_time = True
    threads: ClassVar[bool] = False
    """Its clients are threads of this process, since nobody else can use it."""

    def beside(self) -> Contestant:
        """Another client of the same, with a connection of its own; this, where there are none."""
        return self

    @abstractmethod
    def send(self, due_ms: int, body: bytes) -> None:
        """One record, durable when this returns. The body is no other record's."""

    def syncs(self) -> int | None:
        """How often it has waited for the disk so far; None: nobody knows. Of clients that are gone all is counted."""
        return None

    def settled(self) -> None:
        """This client is done; the server goes on."""


class AfterlogInProcess(AfterlogObjects, Contestant):
    """Columns in bulk, objects one by one, as one would."""

    name = "afterlog, in process"
    objects = False
    threads = True
    setting = "one process that has the store open, its clients threads of it; all by default, so durability `always`"

    @property
    def store(self) -> Any:
        return self._store

    def fill(self, batch: Batch) -> None:
        AfterlogColumns.fill(self, batch)

    def send(self, due_ms: int, body: bytes) -> None:
        self._store.send(TOPIC, body, deliver_after=due_ms)

    def _handed(self, received: Any) -> Handed:
        how: type[AfterlogColumns] = AfterlogObjects if len(received) == 1 else AfterlogColumns
        return how._handed(self, received) if len(received) else Handed([], received, 0)


class AfterlogServed(AfterlogInProcess):
    """The same calls, of a client."""

    name = "afterlog, served"
    threads = False
    served = True
    setting = "`afterlog serve` as it comes, so durability `always`; `afterlog.connect` over the socket in the folder"

    @classmethod
    def missing(cls) -> str | None:
        try:
            import httptools  # noqa: F401
            import prometheus_client  # noqa: F401
        except ImportError as error:
            return str(error)
        return None

    def open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._server = Server([sys.executable, "-c", _SERVE, "serve", str(self.folder)], self.folder)
        self._server.ready(lambda: asked(self.folder, "/readyz"))
        with afterlog.connect(self.folder) as store:
            store.create_topic(TOPIC)

    def beside(self) -> AfterlogServed:
        other = AfterlogServed(self.folder, self.fsync, self.size)
        other._server, other._subscription = self._server, None
        other._store = afterlog.connect(self.folder)  # type: ignore[assignment]
        return other

    def settled(self) -> None:
        if self._subscription is not None:
            self._subscription.close()
        self._store.close()

    def syncs(self) -> int | None:
        """Each append is one fdatasync, of all whose records are in it."""
        return int(metric(self.folder, "afterlog_server_appends_total"))

    def processes(self) -> list[int]:
        return self._server.processes()

    def close(self) -> None:
        self._server.stop()

    def kill(self) -> None:
        self._server.kill()


_REDIS_LEASE = """
local taken = redis.call('ZRANGE', KEYS[1], '-inf', ARGV[1], 'BYSCORE', 'LIMIT', 0, ARGV[2])
if #taken == 0 then return taken end
local leased = {}
for i = 1, #taken do
    leased[2 * i - 1] = ARGV[3]
    leased[2 * i] = taken[i]
end
redis.call('ZADD', KEYS[2], unpack(leased))
redis.call('ZREM', KEYS[1], unpack(taken))
return taken
"""


class RedisServed(Redis, Contestant):
    """Bodies are the members themselves, so that one ZADD is a send: a body that comes twice would be one record."""

    setting = (
        "AOF, `appendfsync always`, no RDB; one sorted set of bodies by due time, sent by one ZADD, leased by one Lua "
        "script into a set of leases, acked by one ZREM; redis-py with hiredis on a Unix socket"
    )

    def open(self) -> None:
        super().open()
        self._lease_script = self._redis.register_script(_REDIS_LEASE)

    def fill(self, batch: Batch) -> None:
        pairs = [item for pair in zip(batch.due.tolist(), batch.bodies, strict=True) for item in pair]
        self._redis.execute_command("ZADD", "due", *pairs)

    def send(self, due_ms: int, body: bytes) -> None:
        self._redis.execute_command("ZADD", "due", due_ms, body)

    def lease(self, now_ms: int, limit: int) -> Handed:
        bodies = self._lease_script(["due", "leased"], [now_ms, limit, now_ms + _LEASE_MS])
        return Handed(bodies, bodies, len(bodies))

    def ack(self, handed: Handed) -> None:
        self._redis.execute_command("ZREM", "leased", *handed.token)

    def beside(self) -> RedisServed:
        other = RedisServed(self.folder, self.fsync, self.size)
        other._server, other._redis = self._server, self._connected()
        other._lease_script = other._redis.register_script(_REDIS_LEASE)
        return other


class BeanstalkdServed(Beanstalkd, Contestant):
    """As it is; one job is one `put`."""

    setting = (
        "binlog with `-f 0` (one fsync for each job: it cannot do one for many); one `put` for a send, batches "
        "pipelined; on a Unix socket; delays in whole seconds, rounded up"
    )

    def send(self, due_ms: int, body: bytes) -> None:
        delay_s = max(-(-(due_ms - time.time_ns() // 1_000_000) // 1_000), 0)
        put = b"put %d %d %d %d\r\n%b\r\n" % (due_ms - self._base_ms, delay_s, _TTR_S, len(body), body)
        self._said([put], b"INSERTED")

    def beside(self) -> BeanstalkdServed:
        other = BeanstalkdServed(self.folder, self.fsync, self.size)
        other._server, other._base_ms = self._server, self._base_ms
        other._connect()
        return other


class PostgreSQLServed(PostgreSQL, Contestant):
    """One INSERT of one row, a transaction by itself; prepared, since psycopg does that with what comes often."""

    setting = (
        "`synchronous_commit` on; one prepared INSERT of one row for a send, binary COPY in bulk; leased by DELETE of "
        "what `FOR UPDATE SKIP LOCKED` selects, acked by COMMIT; 256 MiB shared buffers; psycopg, binary, on a Unix "
        "socket"
    )

    def send(self, due_ms: int, body: bytes) -> None:
        if not self._db.autocommit:
            self._db.autocommit = True
        number = int.from_bytes(body[:8], "little", signed=True)
        self._db.execute("INSERT INTO records (due, number, body) VALUES (%b, %b, %b)", (due_ms, number, body))

    def syncs(self) -> int | None:
        """Of the WAL; a backend tells of its own when it ends, so there is a while between."""
        [count] = self._db.execute("SELECT wal_sync FROM pg_stat_wal").fetchone()
        self._db.rollback()
        return int(count)

    def beside(self) -> PostgreSQLServed:
        other = PostgreSQLServed(self.folder, self.fsync, self.size)
        other._server, other._last = self._server, (0, 0)
        other._connect()
        return other


CONTESTANTS: dict[str, type[Contestant]] = {
    each.name: each for each in (AfterlogServed, AfterlogInProcess, RedisServed, BeanstalkdServed, PostgreSQLServed)
}
"""By name, in the order of the tables; the first is what others are compared with."""
OURS, EMBEDDED = AfterlogServed.name, AfterlogInProcess.name


def present() -> tuple[list[str], dict[str, str]]:
    """Who can run here, and why the others cannot."""
    missing = {name: why for name, each in CONTESTANTS.items() if (why := each.missing())}
    return [name for name in CONTESTANTS if name not in missing], missing


def asked(folder: Path, path: str) -> str:
    """The body of an answer of the server of a folder, asked once. OSError where it does not answer with 200."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.fspath(folder / "server.sock"))
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise OSError(head.decode())
    return body.decode()


def metric(folder: Path, name: str) -> float:
    """A metric without labels."""
    [line] = [line for line in asked(folder, "/metrics").splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[1])
