"""PostgreSQL: a table by due time; COPY in, `FOR UPDATE SKIP LOCKED` out."""

from __future__ import annotations

import contextlib
import ctypes
import shutil
import subprocess
from typing import Any

import numpy as np

from bench.rivals.load import Batch
from bench.rivals.rival import Handed, Rival
from bench.rivals.server import Server, printed, program, unprivileged

_SETTINGS = {
    "listen_addresses": "",
    "shared_buffers": "256MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "30min",
    "wal_compression": "off",
    "jit": "off",
    "dynamic_shared_memory_type": "mmap",
    "full_page_writes": "on",
}
_LEASE = """
WITH taken AS (
    SELECT due, number FROM records WHERE (due, number) > (%s, %s) AND due <= %s
    ORDER BY due, number LIMIT %s FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM records USING taken WHERE records.due = taken.due AND records.number = taken.number
    RETURNING records.due, records.number, records.body
)
SELECT due, number, body FROM gone ORDER BY due, number
"""
_IPC_RMID = 0
_SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)


class PostgreSQL(Rival):
    """A lease is an open transaction that has deleted its records: a commit acks, a crash gives them back.

    That is the cheapest way that is known, one statement for lease and ack together; leases that last longer than a
    connection would cost an update more. The last key is remembered: a scan from the start would walk over what was
    deleted and not vacuumed yet.
    """

    name = "PostgreSQL"
    package = "psycopg"
    served = True
    setting = (
        "binary COPY into a table with a primary key by due time and number; leased by DELETE of what SKIP LOCKED "
        "selects, acked by COMMIT; 256 MiB shared buffers, 4 GiB of WAL between checkpoints; relaxed `fsync = off`; "
        "psycopg, binary, on a Unix socket"
    )

    @classmethod
    def missing(cls) -> str | None:
        absent = (f"no program {name}" for name in ("initdb", "postgres") if not program(name))
        return super().missing() or next(absent, None)

    def open(self) -> None:
        self._user = unprivileged()
        data = self.folder / "data"
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        if not data.exists():
            self._initialised(str(data))
        settings = _SETTINGS | {"unix_socket_directories": str(self.folder), "fsync": "on" if self.fsync else "off"}
        (self.folder / "server.log").touch()
        command = [program("postgres") or "", "-D", str(data)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        self._server = Server(command, self.folder, self._user)
        self._server.ready(self._connect)
        self._last = (0, 0)
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS records (due int8, number int8, body bytea, PRIMARY KEY (due, number))"
        )
        self._db.commit()

    def _initialised(self, data: str) -> None:
        command = [program("initdb") or "", "-D", data, "-N", "-A", "trust", "-U", "bench", "--no-locale", "-E", "UTF8"]
        run = subprocess.run(command, capture_output=True, text=True, user=self._user, cwd=self.folder)
        if run.returncode:
            raise RuntimeError(run.stderr)

    def _connect(self) -> None:
        import psycopg

        self._db: Any = psycopg.connect(host=str(self.folder), user="bench", dbname="postgres")

    def fill(self, batch: Batch) -> None:
        statement = "COPY records (due, number, body) FROM STDIN (FORMAT BINARY)"
        with self._db.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(_binary(batch))
        self._db.commit()

    def lease(self, now_ms: int, limit: int) -> Handed:
        with self._db.cursor(binary=True) as cursor:
            rows = cursor.execute(_LEASE, (*self._last, now_ms, limit)).fetchall()
        if rows:
            self._last = rows[-1][:2]
        else:
            self._db.commit()
        return Handed([row[2] for row in rows], None, len(rows))

    def ack(self, handed: Handed) -> None:
        self._db.commit()

    def beside(self) -> PostgreSQL:
        other = PostgreSQL(self.folder, self.fsync, self.size)
        other._server, other._last = self._server, (0, 0)
        other._connect()
        return other

    def processes(self) -> list[int]:
        return self._server.processes()

    def close(self) -> None:
        self._db.close()
        self._server.stop()

    def kill(self) -> None:
        self._server.kill()
        self._remove_segment()

    def _remove_segment(self) -> None:
        """Take away the System V segment that stays after a kill: its pid file names it in line 7, as key and id."""
        with contextlib.suppress(OSError, IndexError, ValueError):
            lines = (self.folder / "data" / "postmaster.pid").read_text().splitlines()
            ctypes.CDLL(None).shmctl(int(lines[6].split()[1]), _IPC_RMID, None)

    @classmethod
    def version(cls) -> str:
        return printed("postgres", "--version").split(") ")[-1].split()[0]


def _binary(batch: Batch) -> bytes:
    """The rows in the format of a binary COPY, built as one array."""
    size = batch.data.shape[1]
    row = np.dtype(
        [("fields", ">i2"), ("due_size", ">i4"), ("due", ">i8"), ("number_size", ">i4"), ("number", ">i8"),
         ("body_size", ">i4"), ("body", np.uint8, (size,))]
    )  # fmt: skip
    rows = np.empty(len(batch), row)
    rows["fields"], rows["due_size"], rows["number_size"], rows["body_size"] = 3, 8, 8, size
    rows["due"], rows["number"], rows["body"] = batch.due, batch.numbers, batch.data
    return _SIGNATURE + rows.tobytes() + b"\xff\xff"
