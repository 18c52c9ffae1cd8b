"""LMDB: keys sort by due time; a lease reads on from the last key, an ack deletes."""

from __future__ import annotations

from importlib.metadata import version
from itertools import islice

from bench.rivals.keys import FIRST, sorted_items, upto
from bench.rivals.load import Batch
from bench.rivals.rival import Handed, Rival

_MAP_BYTES = 16 << 30
"""Address space, not disk."""


class LMDB(Rival):
    """Leases live in memory: after a crash whatever was not acked is handed out again."""

    name = "LMDB"
    package = "lmdb"
    setting = (
        "key due time and number, one transaction per append (`putmulti`, sorted; `put` of a single record) and per "
        "ack, leases in memory, reads from the last key on; `sync=False` where relaxed"
    )

    def open(self) -> None:
        import lmdb

        self._env = lmdb.open(
            str(self.folder), map_size=_MAP_BYTES, sync=self.fsync, metasync=self.fsync, readahead=False, max_readers=8
        )
        self._last = FIRST

    def fill(self, batch: Batch) -> None:
        items = sorted_items(batch)
        if len(items) == 1:
            with self._env.begin(write=True) as change:
                change.put(*items[0])
            return
        with self._env.begin(write=True) as change, change.cursor() as cursor:
            cursor.putmulti(items, dupdata=False)

    def lease(self, now_ms: int, limit: int) -> Handed:
        end = upto(now_ms)
        with self._env.begin() as look, look.cursor() as cursor:
            found = cursor.set_range(self._last + b"\0")
            items = list(islice(cursor.iternext(), limit)) if found else []
        while items and items[-1][0] >= end:
            items.pop()
        if items:
            self._last = items[-1][0]
        return Handed([body for _, body in items], [key for key, _ in items], len(items))

    def ack(self, handed: Handed) -> None:
        with self._env.begin(write=True) as change:
            delete = change.delete
            for key in handed.token:
                delete(key)

    def close(self) -> None:
        self._env.close()

    @classmethod
    def version(cls) -> str:
        return f"py-lmdb {version('lmdb')}"
