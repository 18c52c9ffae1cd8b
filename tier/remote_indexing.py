"""Making the indexes of a segment that lies in object storage, or verifying them: fetch, index as in a folder, push.

    storage ── fetch ──> folder ── index_segment ──> folder ── push what is new ──> storage

The indexes come first; the log only where they do not do, or to verify. What is pushed depends on whose they are:

- *Listed segments* (`index_listed`): a manifest says size and CRC-32C of every object. One that is missing or rotten is
  made anew, and put under its key if it has just these again: the log gives the same bytes under the same `Config`. So
  the attempt stays the one that a store's checkpoints know, which may have the segment nowhere else.
- *A Kafka broker's segments* (`index_kafka`), as they were copied there: the indexes are put beside the log, under the
  names that they have in a folder, the run last. What a broker's own were is replaced, as it is in a folder.

What comes of a segment is told as `index_segment` tells it, with keys for paths. An error of the storage is raised.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from afterlog.base.checksum import crc32c
from afterlog.base.clock import Clock
from afterlog.base.config import Config
from afterlog.base.errors import CorruptRemote, RemoteConflict, RemoteMissing
from afterlog.base.files import Files, map_file, publish
from afterlog.base.names import (
    CANCEL_INDEX,
    DELIVER_AFTER_INDEX,
    LOG,
    OFFSET_INDEX,
    TIME_INDEX,
    parse_partition_folder,
    segment_file,
)
from afterlog.log.build import IndexedSegment, SegmentToIndex, index_segment, is_indexed
from afterlog.log.facts import FileMark, SegmentFacts
from afterlog.log.scan import read_log
from afterlog.records.entry import PREFIX_MAGIC
from afterlog.tier.manifest import Manifest
from afterlog.tier.remote_segment import RemoteSegment
from afterlog.tier.remote_store import RemoteStore
from afterlog.tier.verify_upload import verify

INDEXES = (OFFSET_INDEX, TIME_INDEX, DELIVER_AFTER_INDEX)
"""The run last: where it is there, the others are."""
_SIZE_MAX = 2**31 - 1
_FETCH_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """Where a segment is indexed: `folder` is empty, and each call leaves it so."""

    files: Files
    folder: Path
    config: Config
    clock: Clock
    attempt: str
    """An `unused_name`, of one segment."""
    verify_only: bool = False


def fetch(remote: RemoteStore, key: str, files: Files, path: Path) -> FileMark:
    """Copy an object into a new file; what came. RemoteMissing; CorruptRemote where it is larger than a file may be."""
    size = remote.head(key).size
    if size > _SIZE_MAX:
        raise CorruptRemote(f"{size} bytes, more than a segment's file may have", path=key)
    crc = 0
    with contextlib.closing(files.create(path)) as file:
        for start in range(0, size, _FETCH_BYTES):
            [data] = remote.get_ranges(key, [(start, min(start + _FETCH_BYTES, size))])
            crc = crc32c(data, crc)
            file.append([data])
    return FileMark(size, crc)


def index_listed(manifest: Manifest, row: RemoteSegment, shop: Workshop) -> IndexedSegment:
    """Verify what the manifest lists, or make good which indexes are missing or rotten, while the log is intact.

    RemoteConflict: somebody removed the segment meanwhile.
    """
    try:
        return _Listed(manifest, row, shop).index()
    finally:
        _clear(shop)


def index_kafka(
    remote: RemoteStore,
    folder: str,
    base_offset: int,
    log_bytes: int,
    indexes: Collection[str],
    shop: Workshop,
    *,
    later: Sequence[int] = (),
) -> IndexedSegment:
    """Build or verify the indexes of `<folder>/<base offset>.log`; `indexes`: suffixes of those that are there.

    later: base offsets of the segments behind it, for transactions that are open at its end.
    """
    segment = _segment(folder, base_offset, log_bytes, shop)
    keys = {suffix: f"{folder}/{segment_file(base_offset, suffix)}" for suffix in (LOG, *INDEXES)}
    fetched: dict[str, FileMark] = {}
    try:
        for suffix in INDEXES:
            if suffix in indexes:
                with contextlib.suppress(RemoteMissing):
                    fetched[suffix] = fetch(remote, keys[suffix], shop.files, segment.path.with_suffix(suffix))
        if shop.verify_only or not is_indexed(shop.files, segment, shop.config):
            fetch(remote, keys[LOG], shop.files, segment.path)
        logs = ((base, f"{folder}/{segment_file(base, LOG)}") for base in later)
        done = _indexed(segment, shop, _following(remote, logs, shop))
        for suffix in INDEXES if done.action == "built" else ():
            content = map_file(shop.files, segment.path.with_suffix(suffix))
            made = FileMark.of(content)
            if made != fetched.get(suffix):
                remote.put(keys[suffix], content)
                verify(remote, keys[suffix], made)
    except CorruptRemote as error:
        done = _corrupt(segment, error)
    finally:
        _clear(shop)
    return _by_key(done, keys)


class _Listed:
    """One segment that a manifest lists, in a workshop."""

    def __init__(self, manifest: Manifest, row: RemoteSegment, shop: Workshop) -> None:
        self._manifest = manifest
        self._row = row
        self._shop = shop
        self._keys = {suffix: manifest.object_key(row, suffix) for suffix in row.files}
        self._segment = _segment(manifest.partition, row.base_offset, row.log_bytes, shop)
        self._start_s = shop.clock.monotonic_s()

    def index(self) -> IndexedSegment:
        try:
            self._segment = replace(self._segment, mark=self._mark(), has_run=self._row.run.size > 0)
            faults = self._fetch_indexes()
            if faults and self._shop.verify_only:
                raise next(iter(faults.values()))
            if faults or self._shop.verify_only:
                self._fetch(LOG)
            done = _indexed(self._segment, self._shop, self._following())
            if faults and done.action != "corrupt":
                self._put_back(faults)
                done = replace(done, action="built", seconds=self._shop.clock.monotonic_s() - self._start_s)
        except (CorruptRemote, RemoteMissing) as error:
            broken = self._corrupt_log() if error.path == Path(self._keys[LOG]) else None
            done = broken or _corrupt(self._segment, error)
        return _by_key(done, self._keys)

    def _mark(self) -> SegmentFacts | None:
        """What the checkpoints would say; of a Kafka log, whose batches have no prefix, None."""
        row = self._row
        if row.run.size:
            [begins] = self._manifest.remote.get_ranges(self._keys[LOG], [(0, 2)])
            if int.from_bytes(begins.tobytes(), "big") != PREFIX_MAGIC:
                return None
        return row

    def _path(self, suffix: str) -> Path:
        return self._segment.path.with_suffix(suffix)

    def _fetch(self, suffix: str) -> None:
        """RemoteMissing; CorruptRemote where it is not what the manifest says."""
        files, key, path = self._shop.files, self._keys[suffix], self._path(suffix)
        found, expected = fetch(self._manifest.remote, key, files, path), self._row.files[suffix]
        if found != expected:
            if suffix != LOG:
                files.unlink(path)
            says = f"the manifest says {expected.size} of {expected.crc:08x}"
            raise CorruptRemote(f"{found.size} bytes of CRC-32C {found.crc:08x}, {says}", path=key)

    def _fetch_indexes(self) -> dict[str, CorruptRemote | RemoteMissing]:
        """Those that are whole; what is wrong with the others."""
        faults: dict[str, CorruptRemote | RemoteMissing] = {}
        for suffix in self._row.files:
            if suffix != LOG:
                try:
                    self._fetch(suffix)
                except (CorruptRemote, RemoteMissing) as error:
                    faults[suffix] = error
        return faults

    def _corrupt_log(self) -> IndexedSegment | None:
        """Where the log that was fetched is broken; None: by itself it is whole, or none was fetched."""
        if not self._shop.files.exists(self._segment.path):
            return None
        done = index_segment(
            self._shop.files,
            replace(self._segment, has_run=False),
            self._shop.config,
            self._shop.clock,
            attempt=self._shop.attempt,
            verify_only=True,
            following=self._following(),
        )
        return done if done.path == str(self._segment.path) else None

    def _following(self) -> Iterator[Path]:
        """The logs that are listed behind it, each fetched when it is asked for: of a Kafka broker's, a few at most."""
        rows = (row for row in self._manifest.listed() if row.base_offset > self._row.base_offset)
        logs = ((row.base_offset, self._manifest.object_key(row, LOG)) for row in rows)
        return _following(self._manifest.remote, logs, self._shop)

    def _put_back(self, suffixes: Collection[str]) -> None:
        """Put what was made anew under its key. CorruptRemote where it is not what is listed."""
        files, row, remote = self._shop.files, self._row, self._manifest.remote
        if CANCEL_INDEX in suffixes:
            cancelled = read_log(files, self._segment.path, row.base_offset).cancelled
            publish(files, self._path(CANCEL_INDEX), [cancelled.to_bytes()])
        for suffix in suffixes:
            if FileMark.of(map_file(files, self._path(suffix))) != row.files[suffix]:
                raise CorruptRemote("made anew, it is not what is listed: other settings?", path=self._keys[suffix])
        for suffix in suffixes:
            remote.put(self._keys[suffix], map_file(files, self._path(suffix)))
            verify(remote, self._keys[suffix], row.files[suffix])
        if all(listed.attempt != row.attempt for listed in self._manifest.listed()):
            for suffix in suffixes:  # whoever removed the segment may have been here before
                remote.delete(self._keys[suffix])
            raise RemoteConflict("the segment was removed meanwhile", path=self._manifest.key)


def _segment(folder: str, base_offset: int, log_bytes: int, shop: Workshop) -> SegmentToIndex:
    topic, partition = parse_partition_folder(folder) or (folder, 0)
    path = shop.folder / segment_file(base_offset, LOG)
    return SegmentToIndex(topic=topic, partition=partition, base_offset=base_offset, path=path, log_bytes=log_bytes)


def _indexed(segment: SegmentToIndex, shop: Workshop, following: Iterable[Path]) -> IndexedSegment:
    return index_segment(
        shop.files,
        segment,
        shop.config,
        shop.clock,
        attempt=shop.attempt,
        verify_only=shop.verify_only,
        following=following,
    )


def _following(remote: RemoteStore, logs: Iterable[tuple[int, str]], shop: Workshop) -> Iterator[Path]:
    """Logs of these base offsets under these keys, each fetched when it is asked for."""
    for base_offset, key in logs:
        path = shop.folder / segment_file(base_offset, LOG)
        if not shop.files.exists(path):
            fetch(remote, key, shop.files, path)
        yield path


def _corrupt(segment: SegmentToIndex, error: CorruptRemote | RemoteMissing) -> IndexedSegment:
    return IndexedSegment(
        topic=segment.topic,
        partition=segment.partition,
        base_offset=segment.base_offset,
        action="corrupt",
        bytes=segment.log_bytes,
        seconds=0.0,
        path=str(error.path),
        position=error.position,
        reason=error.message,
    )


def _by_key(done: IndexedSegment, keys: dict[str, str]) -> IndexedSegment:
    """With the key of the object for the path in the workshop."""
    if done.path is None or done.path in keys.values():
        return done
    return replace(done, path=keys.get(Path(done.path).suffix, done.path))


def _clear(shop: Workshop) -> None:
    for name in shop.files.names(shop.folder):
        shop.files.unlink(shop.folder / name)
