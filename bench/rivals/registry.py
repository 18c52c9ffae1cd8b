"""Who takes part."""

from __future__ import annotations

from bench.rivals.beanstalkd import Beanstalkd
from bench.rivals.floor import BareFloor
from bench.rivals.lmdb_tree import LMDB
from bench.rivals.ours import AfterlogColumns, AfterlogObjects
from bench.rivals.postgres import PostgreSQL
from bench.rivals.redis_set import Redis
from bench.rivals.rival import Rival
from bench.rivals.rocksdb import RocksDB
from bench.rivals.sqlite import SQLite

RIVALS: dict[str, type[Rival]] = {
    each.name: each
    for each in (AfterlogColumns, AfterlogObjects, BareFloor, RocksDB, LMDB, SQLite, Redis, Beanstalkd, PostgreSQL)
}
"""By name, in the order of the tables; the first is what others are compared with."""
OURS = AfterlogColumns.name


def present() -> tuple[list[str], dict[str, str]]:
    """Who can run here, and why the others cannot."""
    missing = {name: why for name, rival in RIVALS.items() if (why := rival.missing())}
    return [name for name in RIVALS if name not in missing], missing
