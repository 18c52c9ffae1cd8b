"""The tiered storage of an open store: one remote store, one cache, and what moves between the two and the log.

roll, time ──> the thread ──> Offloader of each partition ──> object storage
reader <── page cache <───────────────────────────────────────┘
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from afterlog.base.clock import Clock
from afterlog.base.config import Config
from afterlog.base.errors import AfterlogError, PartitionPoisoned, StoreClosed
from afterlog.base.files import Bytes, Data, Files
from afterlog.base.names import REMOTE_CACHE, partition_folder
from afterlog.log.background import Background
from afterlog.log.context import LogContext
from afterlog.log.partition_log import PartitionLog
from afterlog.log.topic_settings import TopicSettings
from afterlog.tier.manifest import Manifest
from afterlog.tier.offload import Offloaded, Offloader
from afterlog.tier.page_cache import PageCache
from afterlog.tier.remote_store import GAP_BYTES, RemoteObject, RemoteStore
from afterlog.tier.remote_topics import forget_topic, read_remote_topics, tell_topic
from afterlog.tier.restore import restore
from afterlog.tier.tiered_segment import ParsedIndexes, TieredLog

logger = logging.getLogger("afterlog.tier")


class InterruptibleStore:
    """`RemoteStore` over another. `proceed` is called before every request, and raises where there should be none."""

    def __init__(self, remote: RemoteStore, proceed: Callable[[], object]) -> None:
        self._remote = remote
        self._proceed = proceed

    def put(self, key: str, data: Data) -> None:
        self._proceed()
        self._remote.put(key, data)

    def put_if(self, key: str, data: Data, version: str | None) -> str:
        self._proceed()
        return self._remote.put_if(key, data, version)

    def get(self, key: str, size_max: int) -> tuple[bytes, str]:
        self._proceed()
        return self._remote.get(key, size_max)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]], gap: int = GAP_BYTES) -> list[Bytes]:
        self._proceed()
        return self._remote.get_ranges(key, ranges, gap)

    def head(self, key: str) -> RemoteObject:
        self._proceed()
        return self._remote.head(key)

    def list_objects(self, folder: str = "") -> Iterator[RemoteObject]:
        self._proceed()
        return self._remote.list_objects(folder)

    def delete(self, key: str) -> None:
        self._proceed()
        self._remote.delete(key)


class Tiering:
    """Of one store. Thread-safe."""

    def __init__(
        self,
        remote: RemoteStore,
        files: Files,
        folder: Path,
        config: Config,
        clock: Clock,
        *,
        background: bool,
        partial: bool = False,
    ) -> None:
        """`background`: upload in a thread; else only `offload` does. `partial`: of `restore`."""
        self._partial = partial
        self.remote = remote
        self.cache = PageCache(files, folder / REMOTE_CACHE, config.remote_cache_bytes, config.remote_page_bytes)
        self._indexes = ParsedIndexes()
        self._interval_bytes = config.index_interval_bytes
        self._uploads = InterruptibleStore(remote, self._proceed)
        self._offloaders: dict[str, Offloader] = {}
        self._thread: Background | None = None
        self._closed = False
        if background:
            interval_ms = config.remote_log_manager_task_interval_ms
            self._thread = Background("afterlog-offload", self._offload_all, clock=clock, interval_ms=interval_ms)

    def remote_log(self, partition: str) -> TieredLog:
        """What a partition's log reads through."""
        return TieredLog(partition, self.remote, self.cache, self._indexes, self._interval_bytes)

    def topics(self) -> dict[str, TopicSettings]:
        """The topics that object storage has segments of. CorruptRemote, RemoteUnavailable, RemoteRefused."""
        return read_remote_topics(self.remote)

    def restore(self, context: LogContext) -> None:
        """Make the folder of a partition from object storage alone. Raises as `topics` does."""
        manifest = Manifest(self.remote, context.folder.name, context.settings.topic_id)
        restore(context, manifest, partial=self._partial)

    def tell_topic(self, name: str, settings: TopicSettings, before: TopicSettings | None = None) -> TopicSettings:
        """A topic will have segments in object storage; the settings that count. before: it had these until now.

        RemoteConflict where one of that name is another.
        """
        return tell_topic(self.remote, name, settings, before)

    def forget_topic(self, name: str, settings: TopicSettings) -> None:
        """Remove it from object storage. Raises RemoteUnavailable, RemoteRefused, RemoteConflict, CorruptRemote."""
        forget_topic(self.remote, name, settings)

    def add(self, log: PartitionLog) -> None:
        """From now on the partition is seen to; not at once: who is soon done with the store uploads nothing."""
        partition = log.context.folder.name
        self._offloaders[partition] = Offloader(log, Manifest(self._uploads, partition, log.context.settings.topic_id))
        if self._thread is not None:
            self._thread.begin()

    def leave(self, partition: str) -> None:
        """Nothing is done for it any more: after the pass that is under way."""
        offloader = self._offloaders.pop(partition, None)
        if offloader is not None:
            offloader.wait()

    def wake(self) -> None:
        """There is something to upload or to remove. Returns at once."""
        if self._thread is not None:
            self._thread.wake()

    def offloader(self, topic: str, number: int) -> Offloader | None:
        return self._offloaders.get(partition_folder(topic, number))

    def offload(self, *, roll: bool) -> dict[str, Offloaded]:
        """What there is to do now, in every partition; raises what the first one raises that cannot go on."""
        return {partition: offloader.offload(roll=roll) for partition, offloader in list(self._offloaders.items())}

    def close(self) -> None:
        """Return when nothing is uploaded any more: after the request that is under way."""
        self._closed = True
        if self._thread is not None:
            self._thread.stop()
        self.cache.close()

    def _offload_all(self) -> None:
        for partition, offloader in list(self._offloaders.items()):
            if not self._closed:
                with _told(partition):
                    offloader.offload()

    def _proceed(self) -> None:
        if self._closed:
            raise StoreClosed("the store is being closed; an upload is given up, and begins anew another time")


@contextlib.contextmanager
def _told(partition: str) -> Iterator[None]:
    """What fails in the background is logged, and tried again the next time."""
    try:
        yield
    except (StoreClosed, PartitionPoisoned):
        pass  # no time for uploads
    except (AfterlogError, OSError) as error:
        logger.error("%s: not offloaded: %s", partition, error)
