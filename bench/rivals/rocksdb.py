"""RocksDB, by `rocksdict`: keys sort by due time; a lease reads on from the last key, an ack deletes."""

from __future__ import annotations

from importlib.metadata import version
from itertools import islice
from typing import Any

from bench.rivals.keys import FIRST, sorted_items, upto
from bench.rivals.load import Batch
from bench.rivals.rival import Handed, Rival


class RocksDB(Rival):
    """Leases live in memory: after a crash whatever was not acked is handed out again.

    It remembers the last key that it leased: a seek from the start would walk over the tombstones of what was acked.
    """

    name = "RocksDB"
    package = "rocksdict"
    setting = (
        "key due time and number, one write batch per append (`put` of a single record), leases in memory, reads from "
        "the last key on, one write batch of deletes per ack (`delete` of one); no compression (the bodies are "
        "random), 64 MiB memtables, 2 background jobs"
    )

    def open(self) -> None:
        import rocksdict

        self._rocks: Any = rocksdict
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_compression_type(rocksdict.DBCompressionType.none())
        options.set_max_background_jobs(2)
        options.set_write_buffer_size(64 << 20)
        self._db = rocksdict.Rdict(str(self.folder), options)
        self._write = rocksdict.WriteOptions()
        self._write.sync = self.fsync
        self._last = FIRST

    def fill(self, batch: Batch) -> None:
        items = sorted_items(batch)
        if len(items) == 1:
            self._db.put(*items[0], self._write)
            return
        writes = self._rocks.WriteBatch(raw_mode=True)
        put = writes.put
        for key, body in items:
            put(key, body)
        self._db.write(writes, self._write)
        # An append may be due before what was leased last; nothing in this benchmark is.

    def lease(self, now_ms: int, limit: int) -> Handed:
        bound = self._rocks.ReadOptions()
        bound.set_iterate_upper_bound(upto(now_ms))
        items = list(islice(self._db.items(from_key=self._last + b"\0", read_opt=bound), limit))
        if items:
            self._last = items[-1][0]
        return Handed([body for _, body in items], [key for key, _ in items], len(items))

    def ack(self, handed: Handed) -> None:
        if len(handed.token) == 1:
            self._db.delete(handed.token[0], self._write)
            return
        writes = self._rocks.WriteBatch(raw_mode=True)
        for key in handed.token:
            writes.delete(key)
        self._db.write(writes, self._write)

    def close(self) -> None:
        self._db.close()

    @classmethod
    def version(cls) -> str:
        return f"rocksdict {version('rocksdict')}"
