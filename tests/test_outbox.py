"""The outbox with PostgreSQL, as its page has it: through crashes between a send and the commit, by many loops."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import afterlog
from afterlog.base.clock import ManualClock
from bench.rivals.postgres import PostgreSQL
from tests.pages import blocks
from tests.support import NOW_MS

pytestmark = pytest.mark.skipif(PostgreSQL.missing() is not None, reason="no PostgreSQL here: apt install postgresql")


class Shop:
    def __init__(self, folder: Path) -> None:
        self._rival = PostgreSQL(folder / "db", fsync=False, size=100)
        self._rival.open()
        self._folder = folder / "db"
        with self.connection() as database:
            database.execute("CREATE TABLE orders (address TEXT)")
            database.execute(
                "CREATE TABLE outbox (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, value BYTEA, delay REAL)"
            )
            database.execute("CREATE TABLE passed_on (epoch BIGINT, next BIGINT)")
            database.execute("INSERT INTO passed_on VALUES (0, 0)")
        self.clock = ManualClock(NOW_MS)
        self.store = afterlog.open(folder / "data", clock=self.clock)
        self.store.create_topic("reminders")
        [block] = [block for block in blocks("docs/how-to/outbox.md") if block.title == "outbox.py"]
        page: dict[str, Any] = {}
        exec(block.text, page)
        self.pass_on = page["pass_on"]

    def connection(self) -> Any:
        import psycopg

        return psycopg.connect(host=str(self._folder), user="bench", dbname="postgres")

    def order(self, *addresses: bytes) -> None:
        with self.connection() as database:
            for address in addresses:
                database.execute("INSERT INTO orders VALUES (%s)", (address.decode(),))
                database.execute("INSERT INTO outbox (value, delay) VALUES (%s, 3600)", (address,))

    def pending(self) -> list[bytes | None]:
        return [record.value for record in self.store.pending("reminders", limit=10_000)]

    def close(self) -> None:
        self.store.close()
        self._rival.close()


@pytest.fixture
def shop() -> Iterator[Shop]:
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # PostgreSQL is another user, where this one is root
        made = Shop(Path(folder))
        yield made
        made.close()


class CrashesError(Exception):
    pass


class Dying:
    """A store whose process dies behind so many sends."""

    def __init__(self, store: afterlog.Store, sends: int) -> None:
        self._store, self._left = store, sends

    def send(self, *arguments: Any, **options: Any) -> Any:
        sent = self._store.send(*arguments, **options)
        self._left -= 1
        if not self._left:
            raise CrashesError
        return sent


def test_what_was_sent_before_a_crash_is_there_once(shop: Shop) -> None:
    """The process dies behind each send in turn, before the commit."""
    asked = [b"%d" % number for number in range(5)]
    shop.order(*asked)
    for sends in range(1, 6):
        with pytest.raises(CrashesError), shop.connection() as database:
            shop.pass_on(database, Dying(shop.store, sends))
    assert asked == shop.pending()
    with shop.connection() as database:
        assert [5, 0] == [shop.pass_on(database, shop.store), shop.pass_on(database, shop.store)]
    assert asked == shop.pending()


def test_an_order_that_is_rolled_back_has_no_reminder(shop: Shop) -> None:
    with shop.connection() as database:
        database.execute("INSERT INTO outbox (value, delay) VALUES (%s, 3600)", (b"never",))
        database.rollback()
    shop.order(b"ada")
    with shop.connection() as database:
        assert 1 == shop.pass_on(database, shop.store)
    assert [b"ada"] == shop.pending()


def test_many_loops(shop: Shop) -> None:
    asked = [b"%d" % number for number in range(500)]
    shop.order(*asked)

    def loop() -> None:
        with shop.connection() as database:
            while shop.pass_on(database, shop.store):
                database.commit()

    loops = [threading.Thread(target=loop) for _ in range(4)]
    for each in loops:
        each.start()
    for each in loops:
        each.join()
    assert asked == shop.pending()


def test_a_log_that_has_forgotten_the_producer(shop: Shop) -> None:
    shop.order(b"ada")
    with shop.connection() as database:
        shop.pass_on(database, shop.store)
    shop.clock.advance(3 * 86_400_000)
    shop.store.enforce_retention()
    shop.store.close()
    shop.store = afterlog.open(shop._folder.parent / "data", clock=shop.clock)
    shop.order(b"bob")
    with shop.connection() as database:
        assert 1 == shop.pass_on(database, shop.store)
    assert [b"bob"] == shop.pending()
