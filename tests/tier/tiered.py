"""What the tests of tiered reads share: a store's sealed segments, put into a storage, and what reads them there."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

from afterlog.base.clock import ManualClock
from afterlog.base.files import map_file
from afterlog.base.names import CANCEL_INDEX, DELIVER_AFTER_INDEX, LOG, OFFSET_INDEX, TIME_INDEX, remote_segment_key
from afterlog.log.checkpoints import RemoteMark
from afterlog.log.facts import FileMark
from afterlog.log.segment import SealedSegment
from afterlog.tier.directory_store import DirectoryStore
from afterlog.tier.page_cache import PageCache
from afterlog.tier.tiered_segment import ParsedIndexes, TieredLog, TieredSegment
from tests.campaigns.simulated_disk import Image, SimulatedFiles
from tests.support import NOW_MS, PATH, open_small
from tests.tier.support import PARTITION, attempt

INTERVAL_BYTES = 256
SUFFIXES = (LOG, OFFSET_INDEX, TIME_INDEX, DELIVER_AFTER_INDEX, CANCEL_INDEX)


@dataclass
class Tiered:
    """Segments that lie both in a folder and in a storage."""

    files: SimulatedFiles
    segments: list[SealedSegment]
    remote: DirectoryStore
    cache: PageCache
    log: TieredLog

    def copy(self, row: int = 0) -> TieredSegment:
        return self.log.copy(self.segments[row].mark)

    def key(self, suffix: str, row: int = 0) -> str:
        return remote_segment_key(PARTITION, self.segments[row].base_offset, attempt(row), suffix)

    def bytes_of(self, suffix: str, row: int = 0) -> bytes:
        return bytes(map_file(self.files, self.segments[row].path.with_suffix(suffix)))

    def renewed(self) -> None:
        """Read through an empty cache from now on."""
        self.cache = PageCache(self.files, PATH / "cache", 64 << 10, self.cache.page_bytes)
        self.log = TieredLog(PARTITION, self.remote, self.cache, ParsedIndexes(), INTERVAL_BYTES)


def tiered(seed: int = 1, page_bytes: int = 512) -> Tiered:
    """A few segments of 4 KiB, of records of all sizes; some were cancelled."""
    disk, generator = SimulatedFiles(Image(["/remote"])), random.Random(seed)
    with open_small(disk, ManualClock(NOW_MS)) as store:
        store.create_topic("mail")
        for number in range(150):
            sent = store.send("mail", b"%d" % number * generator.randrange(1, 30), delay=generator.randrange(1_000))
            if number % 20 == 5:
                store.cancel(sent)
        visible = store.topic("mail").partitions[0].log.version.readable()
    remote = DirectoryStore(disk, Path("/remote"))
    segments = []
    for row, segment in enumerate(visible.segments[:-1]):
        assert isinstance(segment, SealedSegment)
        for suffix in SUFFIXES:
            path = segment.path.with_suffix(suffix)
            if disk.exists(path):
                key = remote_segment_key(PARTITION, segment.base_offset, attempt(row), suffix)
                remote.put(key, map_file(disk, path))
        run = map_file(disk, segment.path.with_suffix(DELIVER_AFTER_INDEX))
        mark = replace(segment.mark, remote=RemoteMark(attempt=attempt(row), run=FileMark(len(run), 0)))
        segments.append(SealedSegment(disk, segment.path.parent, mark, INTERVAL_BYTES))
    cache = PageCache(disk, PATH / "cache", 64 << 10, page_bytes)
    return Tiered(disk, segments, remote, cache, TieredLog(PARTITION, remote, cache, ParsedIndexes(), INTERVAL_BYTES))
