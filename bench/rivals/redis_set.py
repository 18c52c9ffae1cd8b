"""Redis: a sorted set of numbers by due time, a hash of bodies; a lease is a script that moves them to another set."""

from __future__ import annotations

from typing import Any

from bench.rivals.load import Batch
from bench.rivals.rival import Handed, Rival
from bench.rivals.server import Server, printed, program

_LEASE_MS = 86_400_000
_LEASE = """
local ids = redis.call('ZRANGE', KEYS[1], '-inf', ARGV[1], 'BYSCORE', 'LIMIT', 0, ARGV[2])
if #ids == 0 then return {ids, ids} end
local leased = {}
for i = 1, #ids do
    leased[2 * i - 1] = ARGV[3]
    leased[2 * i] = ids[i]
end
redis.call('ZADD', KEYS[2], unpack(leased))
redis.call('ZREM', KEYS[1], unpack(ids))
return {ids, redis.call('HMGET', KEYS[3], unpack(ids))}
"""


class Redis(Rival):
    """Ids are 8 bytes, big-endian, so that equal times come in append order."""

    name = "Redis"
    package = "redis"
    served = True
    setting = (
        "AOF, `appendfsync always` (relaxed `no`), no RDB; a sorted set by due time and a hash of bodies, filled and "
        "acked by one MULTI per batch, leased by one Lua script into a set of leases; redis-py with hiredis on a "
        "Unix socket"
    )

    @classmethod
    def missing(cls) -> str | None:
        return super().missing() or (None if program("redis-server") else "no program redis-server")

    def open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        fsync = "always" if self.fsync else "no"
        command = [
            program("redis-server") or "", "--port", "0", "--unixsocket", self._socket, "--dir", str(self.folder),
            "--appendonly", "yes", "--appendfsync", fsync, "--save", "", "--daemonize", "no",
        ]  # fmt: skip
        self._server = Server(command, self.folder)
        self._server.ready(lambda: self._connected().ping())
        self._redis = self._connected()
        self._lease_script = self._redis.register_script(_LEASE)

    @property
    def _socket(self) -> str:
        return str(self.folder / "socket")

    def _connected(self) -> Any:
        import redis

        return redis.Redis(unix_socket_path=self._socket)

    def fill(self, batch: Batch) -> None:
        text = batch.numbers.astype(">i8").tobytes()
        ids = [text[start : start + 8] for start in range(0, len(text), 8)]
        scores = [item for pair in zip(batch.due.tolist(), ids, strict=True) for item in pair]
        bodies = [item for pair in zip(ids, batch.bodies, strict=True) for item in pair]
        with self._redis.pipeline(transaction=True) as change:
            change.execute_command("ZADD", "due", *scores)
            change.execute_command("HSET", "bodies", *bodies)
            change.execute()

    def lease(self, now_ms: int, limit: int) -> Handed:
        ids, bodies = self._lease_script(["due", "leased", "bodies"], [now_ms, limit, now_ms + _LEASE_MS])
        return Handed(bodies, ids, len(ids))

    def first(self, now_ms: int) -> list[bytes]:
        ids = self._redis.execute_command("ZRANGE", "due", "-inf", now_ms, "BYSCORE", "LIMIT", 0, 1)
        return list(self._redis.hmget("bodies", ids))

    def ack(self, handed: Handed) -> None:
        with self._redis.pipeline(transaction=True) as change:
            change.execute_command("ZREM", "leased", *handed.token)
            change.execute_command("HDEL", "bodies", *handed.token)
            change.execute()

    def beside(self) -> Redis:
        other = Redis(self.folder, self.fsync, self.size)
        other._server, other._redis = self._server, self._connected()
        other._lease_script = other._redis.register_script(_LEASE)
        return other

    def processes(self) -> list[int]:
        return self._server.processes()

    def close(self) -> None:
        self._redis.close()
        self._server.stop()

    def kill(self) -> None:
        self._server.kill()

    @classmethod
    def version(cls) -> str:
        return printed("redis-server", "--version").split("v=")[-1].split()[0]
