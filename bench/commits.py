"""What many threads cost the disk that each send or ack one record at a time, durably: syncs, counted at the seam.

The floor writes as many records of the same size with one sync for as many of them as there are threads: no group
commit can do with less, where each thread waits for its record.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from afterlog.base.config import Config
from afterlog.base.files import OsFile, OsFiles
from afterlog.store.store import Store, open_store

TOPIC = "t"
VALUE = b"v" * 100
ENTRY_BYTES = 200
"""About what the log has of one."""


class CountedFile(OsFile):
    """Counts its syncs."""

    synced: list[str]

    def sync(self) -> None:
        self.synced.append(self.path.name)
        super().sync()


class CountedFiles(OsFiles):
    """The disk, and the names of the files that were synced."""

    def __init__(self) -> None:
        self.synced = list[str]()

    def create(self, path: Path) -> OsFile:
        return self._counted(super().create(path))

    def open(self, path: Path) -> OsFile:
        return self._counted(super().open(path))

    def _counted(self, file: OsFile) -> OsFile:
        file.__class__, counted = CountedFile, file  # of the same descriptor, which only one object may own
        assert isinstance(counted, CountedFile)
        counted.synced = self.synced
        return counted


@contextmanager
def counted_store(path: Path, partitions: int) -> Iterator[tuple[Store, CountedFiles]]:
    """A store with one topic, durable when a call returns."""
    files = CountedFiles()
    with open_store(path, Config(), None, files) as store:
        store.create_topic(TOPIC, partitions=partitions)
        yield store, files


def sends(store: Store, threads: int, each: int) -> list[Callable[[], object]]:
    """For each thread what sends its records, to the partitions in turn."""
    partitions = len(store.topic(TOPIC).partitions)

    def sending(number: int) -> Callable[[], object]:
        return lambda: [
            store.send(TOPIC, VALUE, partition=(number * 7 + row * (2 * number + 1)) % partitions)
            for row in range(each)
        ]

    return [sending(number) for number in range(threads)]


def acks(store: Store, threads: int, each: int) -> list[Callable[[], object]]:
    """For each thread what acks its records, which are sent and leased here."""
    store.send_many(TOPIC, [VALUE] * (threads * each))
    subscription = store.subscribe(TOPIC, "s")
    leased = [message for _ in range(threads) for message in subscription.receive(each)]
    assert threads * each == len(leased)

    def acking(number: int) -> Callable[[], object]:
        return lambda: [subscription.ack(message) for message in leased[number::threads]]

    return [acking(number) for number in range(threads)]


def at_once(calls: list[Callable[[], object]]) -> None:
    """Each in a thread of its own."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def write_in_groups(path: Path, threads: int, each: int) -> None:
    """The floor."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for _ in range(each):
        for _ in range(threads):
            os.write(descriptor, bytes(ENTRY_BYTES))
        os.fdatasync(descriptor)
    os.close(descriptor)
