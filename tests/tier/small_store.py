"""What the tests of offload and restore share: a small store beside a storage, either of which may be lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from afterlog.base.clock import ManualClock
from afterlog.base.files import Files
from afterlog.fetch.partition import Partition
from afterlog.store.store import Store, open_store
from afterlog.tier.manifest import Manifest
from afterlog.tier.offload import Offloaded
from afterlog.tier.remote_store import RemoteStore
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, PATH, drained, killed, small
from tests.tier.memory_store import MemoryStore
from tests.tier.support import PARTITION

SMALL: dict[str, Any] = {"remote_cache_bytes": 4_096, "remote_page_bytes": 512}
TOPIC: dict[str, Any] = {"remote_storage_enable": True, "local_retention_ms": 0}


@dataclass
class SmallStore:
    """`open` first; the topic "mail" is there then. `remote`: what the store talks to, the storage by default."""

    storage: MemoryStore = field(default_factory=MemoryStore)
    disk: SimulatedFiles = field(default_factory=SimulatedFiles)
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW_MS))
    settings: dict[str, Any] = field(default_factory=dict)

    def open(self, remote: RemoteStore | None = None, *, files: Files | None = None, **config: Any) -> Store:
        remote = self.storage if remote is None else remote
        self.store = self.opened(files or self.disk, remote, **config)
        self.store.create_topic("mail", **{**TOPIC, **self.settings})
        return self.store

    def opened(self, files: Files, remote: RemoteStore | None, *, background: bool = False, **config: Any) -> Store:
        return open_store(PATH, small(**{**SMALL, **config}), self.clock, files, remote, background=background)

    def fresh(self) -> SmallStore:
        """A machine that has nothing but the storage."""
        other = SmallStore(self.storage, SimulatedFiles(), self.clock, self.settings)
        other.open()
        return other

    def reopened(self, remote: RemoteStore | None = None) -> Store:
        """After a kill of the process."""
        self.disk = killed(self.disk)
        return self.open(remote)

    @property
    def partition(self) -> Partition:
        return self.store.topic("mail").partition(0)

    @property
    def manifest(self) -> Manifest:
        return Manifest(self.storage, PARTITION)

    @property
    def local(self) -> list[bool]:
        """Of each sealed segment, whether its files are in the folder."""
        return [segment.is_local() for segment in self.partition.log.sealed]

    def segment(self, *records: tuple[bytes, int]) -> None:
        """A sealed segment of (value, ms from now)."""
        for value, delay_ms in records:
            at = self.clock.now_ms() + delay_ms if self.partition.log.delayed else None
            self.store.send("mail", value, deliver_after=at)
        self.partition.log.roll()

    def segments(self, count: int, *, delay_ms: int = 0) -> None:
        """So many of two records each."""
        for number in range(count):
            self.segment((b"%d" % number, delay_ms), (b"%d'" % number, delay_ms + number))

    def offload(self) -> Offloaded:
        return self.store.offload()[PARTITION]

    def left_after(self, ms: int = 3 * 10**6) -> list[tuple[int, int, bytes | None]]:
        """What is due then, after the log start: (delivery offset, offset, value)."""
        self.clock.set(max(self.clock.now_ms(), NOW_MS + ms))
        partition = self.partition
        partition.high_watermark()
        columns, _ = partition.columns(partition.log_start, 10**6, 1 << 20)
        return [(each.delivery_offset, each.offset, each.value) for each in columns.to_messages()]

    def drained(self) -> list[bytes | None]:
        return drained(self.partition)


def opened(**settings: Any) -> SmallStore:
    """A new one, open, whose topic has these settings, too."""
    setting = SmallStore(settings=settings)
    setting.open()
    return setting
