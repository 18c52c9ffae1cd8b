"""SQLite: a table that is its own index by due time, in WAL mode."""

from __future__ import annotations

import sqlite3

import numpy as np

from bench.rivals.load import Batch
from bench.rivals.rival import Handed, Rival

_SMALL_BYTES = 200
"""Up to here a record lies in its index; larger ones would leave hardly any keys on a page of it."""


class SQLite(Rival):
    """Leases live in memory: after a crash whatever was not acked is handed out again."""

    name = "SQLite"
    setting = (
        "WAL (checkpoint at 32 MB), `synchronous` FULL (relaxed OFF); `WITHOUT ROWID` by due time and number (1 KiB: a "
        "table by number with an index by due time); 64 MiB cache, mmap, one transaction per append (`executemany`, "
        "sorted) and per ack, leases in memory, reads from the last key on"
    )

    def open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._db = self._connected()
        if self._small:
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS records (due INTEGER, number INTEGER, body BLOB, PRIMARY KEY (due, number))"
                " WITHOUT ROWID"
            )
        else:
            self._db.execute("CREATE TABLE IF NOT EXISTS records (number INTEGER PRIMARY KEY, due INTEGER, body BLOB)")
            self._db.execute("CREATE INDEX IF NOT EXISTS by_due ON records (due, number)")
        self._last = (0, 0)

    @property
    def _small(self) -> bool:
        return self.size <= _SMALL_BYTES

    def _connected(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.folder / "db", isolation_level=None, check_same_thread=False, timeout=60)
        for setting in (
            f"page_size = {4096 if self._small else 8192}",
            "journal_mode = WAL",
            f"synchronous = {'FULL' if self.fsync else 'OFF'}",
            "cache_size = -65536",
            f"mmap_size = {1 << 30}",
            f"wal_autocheckpoint = {8_000 if self._small else 4_000}",
            "temp_store = MEMORY",
        ):
            db.execute(f"PRAGMA {setting}").fetchall()
        return db

    def fill(self, batch: Batch) -> None:
        insert = "INSERT INTO records (due, number, body) VALUES (?, ?, ?)"
        if len(batch.due) == 1:
            self._db.execute(insert, (int(batch.due[0]), int(batch.numbers[0]), batch.bodies[0]))
            return
        order = np.argsort(batch.due if self._small else batch.numbers, kind="stable")
        bodies = batch.bodies
        due, numbers = batch.due[order].tolist(), batch.numbers[order].tolist()
        rows = zip(due, numbers, [bodies[row] for row in order.tolist()], strict=True)
        self._in_one(insert, rows)

    def lease(self, now_ms: int, limit: int) -> Handed:
        rows = self._db.execute(
            "SELECT due, number, body FROM records WHERE (due, number) > (?, ?) AND due <= ?"
            " ORDER BY due, number LIMIT ?",
            (*self._last, now_ms, limit),
        ).fetchall()
        if rows:
            self._last = rows[-1][:2]
        return Handed([row[2] for row in rows], [row[:2] for row in rows], len(rows))

    def ack(self, handed: Handed) -> None:
        delete = "DELETE FROM records WHERE due = ? AND number = ?"
        if len(handed.token) == 1:
            self._db.execute(delete, handed.token[0])
        else:
            self._in_one(delete, handed.token)

    def _in_one(self, statement: str, rows: object) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany(statement, rows)  # type: ignore[arg-type]
        self._db.execute("COMMIT")

    def close(self) -> None:
        self._db.close()

    def beside(self) -> SQLite:
        other = SQLite(self.folder, self.fsync, self.size)
        other._db, other._last = other._connected(), (0, 0)
        return other

    @classmethod
    def version(cls) -> str:
        return sqlite3.sqlite_version
