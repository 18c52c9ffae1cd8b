"""A backup is a store: complete, as of one instant, and made beside whatever else goes on."""

from __future__ import annotations

import errno
import itertools
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import afterlog
from afterlog.base import document
from afterlog.base.clock import ManualClock
from afterlog.base.config import ALWAYS, OS, Durability
from afterlog.base.errors import CorruptFile, DiskFailed, InvalidArgument, IsABackup, StorageFull, StoreLocked
from afterlog.base.names import BACKUP, DELIVER_AFTER_INDEX, LOG, UNFINISHED, parse_backup_folder
from afterlog.log.partition_log import PartitionLog
from afterlog.offline.locked_store import OfflineStore
from afterlog.store.backup import Backup
from afterlog.store.backup_writer import BackupWriter
from afterlog.store.store import Store, open_store
from afterlog.store.store_image import StoreImage
from tests.campaigns.crash_states import CrashModel, CrashState
from tests.campaigns.crashes import contents
from tests.campaigns.explorer import Explored, explore
from tests.campaigns.failing_files import FailingFiles
from tests.campaigns.simulated_disk import SimulatedFiles, os_error
from tests.support import NOW_MS, PATH, drained, open_small, restored, small

DEST = Path("/backups")
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


@pytest.fixture
def disk() -> SimulatedFiles:
    return SimulatedFiles()


@pytest.fixture
def store(disk: SimulatedFiles, clock: ManualClock) -> Iterator[Store]:
    with open_small(disk, clock) as store:
        lived(store, clock)
        yield store


def lived(store: Store, clock: ManualClock) -> None:
    """Segments, runs, buckets, a subscription, a group, a schedule, a topic that is made later, and one at rest."""
    store.create_topic("t")
    store.create_topic("later", 2)
    store.schedule("t", name="s", every=timedelta(hours=1), value=b"tick")
    for number in range(40):
        store.send("t", b"%d" % number, delay=number % 7)
        if number in (12, 25):
            store.topic("t").partition(0).log.roll()
    store.send_many("later", [b"a", b"b", b"c"], keys=[b"k", b"l", b"m"], delay=3)
    clock.advance(4_000)
    with store.subscribe("t", "worker") as worker:
        worker.ack_many(worker.receive(9))
    with store.consumer("t", group="group") as consumer:
        consumer.poll(5)


def held(store: Store) -> dict[str, Any]:
    """All that is in it: records, positions, what is acked, schedules."""
    logs = {partition.log.path.name: contents(partition) for topic in store.topics() for partition in topic.partitions}
    with store.consumer("t", group="group") as consumer:
        committed = consumer.committed()
    with store.subscribe("t", "worker") as worker:
        stats = worker.stats().partitions[0]
    return {
        "logs": logs,
        "committed": committed,
        "acked": (stats.pending, stats.position),
        "schedules": store.schedules(),
    }


class TestBackup:
    def test_a_copy_of_it_is_the_store(self, store: Store, disk: SimulatedFiles, clock: ManualClock) -> None:
        made = store.backup(DEST)
        assert (1, NOW_MS + 4_000, True) == (made.number, made.at_ms, made.files > 20)
        assert DEST / "backup-000001-20231114T221324Z" / "store" == made.path
        copy = restored(disk, made)
        with OfflineStore(PATH, SimulatedFiles(copy.image()), clock) as offline:
            assert [] == list(offline.verify())
        with open_small(copy, clock) as again:
            assert not again.cut_bytes
            assert held(store) == held(again)
            again.check()
            assert 3 == len(again.topics()) + 1
            clock.advance(4_000_000)
            assert 1 == again.run_schedules()

    def test_sealed_files_are_linked_and_a_second_one_costs_what_is_new(
        self, store: Store, disk: SimulatedFiles
    ) -> None:
        first = store.backup(DEST)
        store.send("t", b"more")
        second = store.backup(DEST)
        names = [
            (number, path)
            for path, number in numbers(disk).items()
            if path.startswith(f"{second.path}/") and path.endswith(LOG)
        ]
        linked = {number for path, number in numbers(disk).items() if path.startswith(f"{PATH}/")}
        assert 2 == sum(number in linked for number, _ in names)
        assert second.copied_bytes < first.copied_bytes + 200
        assert second.number == 2

    def test_where_links_do_not_work_it_is_copied_and_then_linked_from_the_backup_before(
        self, disk: SimulatedFiles, clock: ManualClock
    ) -> None:
        def elsewhere(operation: str, path: Path, number: int) -> OSError | None:
            return os_error(errno.EXDEV, path) if operation == "link" and DEST not in path.parents else None

        with open_small(FailingFiles(disk, elsewhere), clock) as store:
            lived(store, clock)
            first = store.backup(DEST)
            second = store.backup(DEST)
            assert first.copied_bytes > 2_000
            assert second.copied_bytes < first.copied_bytes / 3
            everything = held(store)
        for made in (first, second):
            with open_small(restored(disk, made), clock) as again:
                assert everything == held(again)
        of_store = {number for path, number in numbers(disk).items() if path.startswith(f"{PATH}/")}
        assert not of_store & {number for path, number in numbers(disk).items() if path.startswith(f"{DEST}/")}

    def test_what_the_store_does_later_changes_no_backup(
        self, store: Store, disk: SimulatedFiles, clock: ManualClock
    ) -> None:
        everything, made = held(store), store.backup(DEST)
        before = restored(disk, made).image()
        for number in range(60):
            store.send("t", b"later %d" % number, delay=1)
        store.topic("t").partition(0).log.roll()
        store.topic("t").partition(0).log.merge_buckets()
        with store.subscribe("t", "worker") as worker:
            worker.ack_many(worker.receive(50))
        store.pause_schedule("s")
        store.close()
        with open_small(disk, clock) as again:
            again.send("t", b"after")
        assert before.contents == restored(disk, made).image().contents
        with open_small(restored(disk, made), ManualClock(NOW_MS + 4_000)) as again:
            assert everything == held(again)

    def test_a_repair_of_the_store_changes_no_backup(
        self, store: Store, disk: SimulatedFiles, clock: ManualClock
    ) -> None:
        made = store.backup(DEST)
        store.close()
        before = restored(disk, made).image().contents
        log = sorted(name for name in disk.names(PATH / "t-0") if name.endswith(LOG))[0]
        broken = disk.open(PATH / "t-0" / log)
        data = broken.pread(1 << 20, 0)
        disk.unlink(PATH / "t-0" / log)
        file = disk.create(PATH / "t-0" / log)
        file.append([data[:200], b"\xff" * (len(data) - 200)])
        disk.link(PATH / "t-0" / log, PATH / "another name")
        with OfflineStore(PATH, disk, clock) as offline:
            offline.apply(offline.plan())
        assert data[:200] == disk.open(PATH / "another name").pread(200, 0)
        assert len(data) == disk.open(PATH / "another name").size()
        assert before == restored(disk, made).image().contents

    def test_what_it_does_not_know_is_copied(self, store: Store, disk: SimulatedFiles) -> None:
        disk.make_folder(PATH / "of-a-later-version")
        disk.make_folder(PATH / "t-0" / "keys")
        names = ("of-a-later-version/a", "b", "t-0/keys/c", "t-0/d.tmp", "e.tmp")
        for name in names:
            disk.create(PATH / name).append([b"x"])
        made = store.backup(DEST)
        assert [True, True, True, False, False] == [disk.exists(made.path / name) for name in names]
        assert 1 == disk.stamp(PATH / "b").names
        disk.unlink(PATH / "b")

    def test_partitions_at_rest_stay_at_rest(self, store: Store, disk: SimulatedFiles, clock: ManualClock) -> None:
        store.close()
        with open_small(disk, clock) as again:
            assert not any(topic.opened_logs for topic in again.topics())
            made = again.backup(DEST)
            assert not any(topic.opened_logs for topic in again.topics())
            everything = held(again)
        with open_small(restored(disk, made), clock) as copy:
            assert everything == held(copy)

    def test_one_that_is_opened_meanwhile_is_taken_again(
        self, store: Store, disk: SimulatedFiles, clock: ManualClock
    ) -> None:
        store.close()
        with open_small(disk, clock) as again:
            take = StoreImage._take_still

            def later(image: StoreImage, *more: Any) -> Any:
                again.send("t", b"meanwhile")
                again.topic("t").partition(0).log.roll()
                again.create_topic("new")
                again.send("new", b"new")
                return take(image, *more)

            with patch.object(StoreImage, "_take_still", later):
                made = again.backup(DEST)
            everything = held(again)
        with open_small(restored(disk, made), clock) as copy:
            assert everything == held(copy)

    def test_with_segments_in_object_storage(self, disk: SimulatedFiles, clock: ManualClock) -> None:
        from tests.tier.memory_store import MemoryStore

        storage = MemoryStore()
        config = small(remote_cache_bytes=4_096, remote_page_bytes=512)
        with open_store(PATH, config, clock, disk, storage, background=False) as store:
            store.create_topic("far", remote_storage_enable=True, local_retention_ms=0)
            store.send_many("far", [b"x"] * 20)
            store.topic("far").partition(0).log.roll()
            store.send("far", b"last")
            clock.advance(1_000)
            store.offload()
            values = drained(store.topic("far").partition(0))
            made = store.backup(DEST)
        with open_store(PATH, config, clock, restored(disk, made), storage, background=False) as again:
            assert values == drained(again.topic("far").partition(0))


def numbers(disk: SimulatedFiles) -> dict[str, int]:
    from tests.campaigns.simulated_disk import walk_names

    return walk_names(disk._folders)[1]


class TestRefused:
    @pytest.mark.parametrize("dest", [PATH, PATH / "inside", PATH.parent])
    def test_the_store_itself_is_no_place_for_it(self, store: Store, dest: Path) -> None:
        with pytest.raises(InvalidArgument, match="folder of its own"):
            store.backup(dest)

    def test_a_link_that_leads_nowhere_is_none(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(tmp_path / "nowhere")
        (tmp_path / "file").write_bytes(b"x")
        with afterlog.open(tmp_path / "data") as store:
            for dest in ("link", "link/x", "file", "file/x"):
                with pytest.raises(InvalidArgument, match="is no folder"):
                    store.backup(tmp_path / dest)

    def test_a_folder_with_something_else_in_it_is_none_either(self, store: Store, disk: SimulatedFiles) -> None:
        disk.make_folder(DEST)
        disk.create(DEST / "photo.jpg").close()
        with pytest.raises(InvalidArgument, match=r"holds something else \(photo.jpg\)"):
            store.backup(DEST)

    def test_one_at_a_time(self, store: Store, disk: SimulatedFiles) -> None:
        store.backup(DEST)
        lock = disk.lock(DEST / "lock")
        with pytest.raises(StoreLocked, match="another backup is being made"):
            store.backup(DEST)
        lock.release()
        assert 2 == store.backup(DEST).number

    def test_a_backup_is_not_opened(self, store: Store, disk: SimulatedFiles, clock: ManualClock) -> None:
        made = store.backup(DEST)
        with pytest.raises(IsABackup, match="copy it"):
            open_store(made.path, small(), clock, disk)
        disk.unlink(made.path.parent / BACKUP)
        open_store(made.path, small(), clock, disk).close()  # the name alone makes none

    def test_a_disk_that_runs_full_leaves_the_one_before(self, disk: SimulatedFiles, clock: ManualClock) -> None:
        left = [10**9]

        def full(operation: str, path: Path, number: int) -> OSError | None:
            left[0] -= DEST in path.parents
            return os_error(errno.ENOSPC, path) if left[0] <= 0 and operation in ("create", "append", "link") else None

        with open_small(FailingFiles(disk, full), clock) as store:
            lived(store, clock)
            first = store.backup(DEST)
            before = restored(disk, first).image().contents
            for calls in itertools.count(3, 7):
                left[0] = calls
                try:
                    store.backup(DEST)
                    break
                except StorageFull:
                    left[0] = 10**9
                assert {"lock", first.path.parent.name} == set(disk.names(DEST))
                store.send("t", b"goes on")
            left[0] = 10**9
            assert calls > 40
            assert before == restored(disk, first).image().contents
            assert 3 == len(disk.names(DEST))

    def test_a_disk_of_backups_that_fails_poisons_no_partition(self, disk: SimulatedFiles, clock: ManualClock) -> None:
        failing = [False]

        def broken(operation: str, path: Path, number: int) -> OSError | None:
            return os_error(errno.EIO, path) if failing[0] and DEST in path.parents else None

        with open_small(FailingFiles(disk, broken), clock) as store:
            lived(store, clock)
            failing[0] = True
            with pytest.raises(DiskFailed):
                store.backup(DEST)
            store.send("t", b"goes on")

    def test_a_document_that_cannot_be_read_costs_a_copy(
        self, store: Store, disk: SimulatedFiles, caplog: pytest.LogCaptureFixture
    ) -> None:
        made = store.backup(DEST)
        disk.open(made.path.parent / BACKUP).truncate(5)
        assert 2 == store.backup(DEST).number
        assert "nothing is linked from it" in caplog.text


# --- Under load -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("links", [True, False])
def test_under_load(tmp_path: Path, links: bool) -> None:
    """Of what returned before it began nothing is missing; what is acked is in the log; each opens, and goes on."""
    ends, backups = list[int](), list[Backup]()
    stopped = threading.Event()
    no_links = patch("os.link", side_effect=os_error(errno.EXDEV, tmp_path))
    config = afterlog.Config(durability=OS, segment_bytes=8_192, batch_bytes_max=4_096, min_index_count_per_bucket=16,
                             max_num_buckets=2, checkpoint_ms=5)  # fmt: skip
    with afterlog.open(tmp_path / "data", config=config) as store:
        store.create_topic("t")
        store.schedule("t", name="s", every=timedelta(seconds=1), value=b"tick")

        def send() -> None:
            number = 0
            while not stopped.is_set():
                store.send_many("t", [b"%d" % (number + row) for row in range(20)], delay=number % 3 / 100)
                number += 20

        def work() -> None:
            with store.subscribe("t", "worker") as worker:
                while not stopped.is_set():
                    worker.ack_many(worker.receive(50, timeout=0.01))

        threads = [threading.Thread(target=work), threading.Thread(target=send)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(6):
                ends.append(store.topic("t").partition(0).log_end_offset)
                if links:
                    backups.append(store.backup(tmp_path / "backups"))
                else:
                    with no_links:
                        backups.append(store.backup(tmp_path / "backups"))
        finally:
            stopped.set()
            for thread in threads:
                thread.join()
        expected = contents(store.topic("t").partition(0))
    for end, made in zip(ends, backups, strict=True):
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(made.path, tmp_path / "copy")
        with afterlog.open(tmp_path / "copy", config=config) as again:
            again.check()
            partition = again.topic("t").partition(0)
            found = contents(partition)
            assert end <= len(found)
            assert expected[: len(found)] == found or b"tick" in {record[0] for record in found[-3:] if record}
            with again.subscribe("t", "worker") as worker:
                assert worker.stats().partitions[0].position <= partition.log_end_offset
            again.send("t", b"goes on")
    assert ends[-1] > 100


class MergesAreWatched(SimulatedFiles):
    """When a merge removes the first of its sources a backup is made, and that file goes while it is being linked."""

    store: Store | None = None
    links = 1
    """When the backup begins to link it for the links-th time."""
    made: Backup | None = None

    def unlink(self, path: Path) -> None:
        if self.store is not None and self.made is None and path.name.endswith(DELIVER_AFTER_INDEX):
            store, self.store = self.store, None
            link = BackupWriter.link

            def linked(writer: BackupWriter, name: str) -> None:
                if PATH / name == path:
                    self.links -= 1
                    if not self.links:
                        self.unlink(path)
                link(writer, name)

            with patch.object(BackupWriter, "link", linked):
                self.made = store.backup(DEST)
        super().unlink(path)


@pytest.mark.parametrize(("merged_before", "links"), [(False, 1), (False, 2), (True, 1)])
def test_a_run_that_was_merged_away_goes_while_it_is_linked(
    clock: ManualClock, merged_before: bool, links: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A run of one segment, or of several; what is in its place is there, so nothing is made anew of the log."""
    disk = MergesAreWatched()
    with open_small(disk, clock, max_num_buckets=2) as store:
        lived(store, clock)
        log = store.topic("t").partition(0).log
        for number in range(6 if merged_before else 3):
            store.send("t", b"more %d" % number, delay=number)
            log.roll()
            if merged_before:
                log.merge_buckets()
        disk.store, disk.links = store, links
        if merged_before:
            log._maintenance._buckets.max_num_buckets = 1
        assert log.merge_buckets()
        everything, made = held(store), disk.made
    assert made is not None, "it failed"
    assert 0 == disk.links, "it was there all the time"
    with OfflineStore(PATH, restored(disk, made), clock) as offline:
        assert [] == list(offline.verify())
    with open_small(restored(disk, made), clock, max_num_buckets=2) as again:
        assert everything == held(again)
        again.check()
    assert "made anew" not in caplog.text


@pytest.mark.parametrize("ended", ["purged", "retained"])
def test_the_active_log_is_rolled_and_let_go_while_it_is_copied(
    store: Store, disk: SimulatedFiles, clock: ManualClock, ended: str
) -> None:
    """It stays until it is copied, and goes then."""
    copy, log, everything = BackupWriter.copy, store.topic("t").partition(0).log, held(store)
    path = log.version.active.path

    def copied(writer: BackupWriter, name: str, size: int | None = None) -> None:
        if size is not None and PATH / name == path:
            clock.advance(10_000)
            log.roll()
            if ended == "purged":
                store.purge("t")
            else:
                store.alter_topic("t", retention_bytes=0)
                assert 2 == log.enforce_retention()
        copy(writer, name, size)

    with patch.object(BackupWriter, "copy", copied):
        made = store.backup(DEST)
    assert disk.exists(path)
    if ended == "retained":  # a purge reads where to, and what was read last is kept
        log.enforce_retention()
        assert not disk.exists(path), "it was held for the backup alone"
    with open_small(restored(disk, made), ManualClock(NOW_MS + 4_000)) as again:
        assert everything == held(again)


# --- Crashes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Promised:
    """A backup of that number began when the log held this, and so much was acked; `made`: it has returned."""

    number: int
    values: tuple[bytes | None, ...]
    acked: int
    made: bool = False


@dataclass
class BackingUp:
    """Two backups, with work in between, in a store that a crash ends; what must be true of each that is there."""

    durability: Durability = ALWAYS
    told: list[Promised] = field(default_factory=list)

    def __call__(self, files: Any, disk: SimulatedFiles) -> None:
        clock = ManualClock(NOW_MS)
        store = open_small(files, clock, durability=self.durability)
        store.create_topic("t")
        worker = store.subscribe("t", "worker", start=afterlog.EARLIEST)
        for number in range(2):
            store.send_many("t", [b"%d-%d" % (number, row) for row in range(9)])
            store.topic("t").partition(0).log.roll()
            store.send_many("t", [b"%d+%d" % (number, row) for row in range(3)])
            clock.advance(100)
            worker.ack_many(worker.receive(5))
            values = tuple(record[0] for record in contents(store.topic("t").partition(0)) if record)
            disk.mark(Promised(number + 1, values, 5 * (number + 1)))
            store.backup(DEST)
            disk.mark(Promised(number + 1, values, 5 * (number + 1), made=True))
        worker.close()
        store.close()

    def verify(self, disk: SimulatedFiles, marks: Any, state: CrashState) -> None:
        promised = {mark.number: mark for mark in marks if isinstance(mark, Promised)}
        names = disk.names(DEST) if disk.exists(DEST) else []
        found = {number: name for name in names if (number := parse_backup_folder(name)) is not None}
        assert {mark.number for mark in promised.values() if mark.made} <= set(found)
        for number, name in found.items():
            copy = restored(disk, DEST / name / "store")
            with open_small(copy, ManualClock(NOW_MS + 10_000), durability=self.durability) as store:
                assert not store.cut_bytes
                values = tuple(record[0] for record in contents(store.topic("t").partition(0)) if record)
                assert promised[number].values == values
                with store.subscribe("t", "worker") as worker:
                    assert len(values) - promised[number].acked == len(worker.receive(100))
                store.check()
        with open_small(disk, ManualClock(NOW_MS + 10_000), durability=self.durability) as store:
            if promised:
                again = store.backup(DEST)
                assert again.number == max(found, default=0) + 1
                assert UNFINISHED not in disk.names(DEST)


def crashed(durability: Durability, wrap: Any = None, **share: Any) -> Explored:
    backing_up = BackingUp(durability)
    settings: dict[str, Any] = {"model": CrashModel(every_byte_max=4, sector_cuts_max=1), "of": 60}
    return explore(backing_up, backing_up.verify, wrap=wrap, **settings | share)


def test_power_cut() -> None:
    found = crashed(ALWAYS)
    print(found)
    assert not found.failures, str(found)


def test_kill() -> None:
    found = crashed(OS, kill=True)
    print(found)
    assert not found.failures, str(found)


def log_is_linked(writer: BackupWriter, name: str, size: int | None = None) -> None:
    """What grows is shared with the store."""
    writer.link(name)


def not_durable(writer: BackupWriter) -> None:
    """What was copied, and the names, before the backup has its own."""


def readers_last(image: StoreImage, writer: BackupWriter, taken: set[str]) -> Any:
    """Acks that come while logs are taken are ahead of them."""
    found = ORIGINAL_STILL(image, writer, taken)
    store_of[0].send("t", b"meanwhile")
    worker = store_of[0].subscribe("t", "worker")
    worker.ack_many(worker.receive(100))
    for each in found:
        image._take_readers(writer, each.name.partition("/")[0])
    return found


store_of: list[Any] = []
ORIGINAL_STILL = StoreImage._take_still


@pytest.mark.parametrize(
    ("owner", "method", "planted"),
    [(BackupWriter, "make_durable", not_durable), (BackupWriter, "copy", log_is_linked)],
)
def test_planted_bug_is_caught(owner: Any, method: str, planted: Any) -> None:
    with patch.object(owner, method, planted):
        found = crashed(ALWAYS, of=1, failures_max=1)
    assert found.failures, "nobody saw it"


def test_planted_bug_acks_ahead_of_the_log(store: Store, disk: SimulatedFiles, clock: ManualClock) -> None:
    """Opened, the copy says so, or would skip what comes in the place of what it does not have."""
    store_of[:] = [store]
    clock.advance(100_000)
    with patch.object(StoreImage, "_take_still", readers_last):
        made = store.backup(DEST)
    with open_small(restored(disk, made), clock) as again:
        assert not is_within(again) or held(store)["acked"] != held(again)["acked"]


def is_within(store: Store) -> bool:
    """Whether what the subscription says is of the log that is there."""
    try:
        with store.subscribe("t", "worker") as worker:
            return worker.stats().partitions[0].position <= store.topic("t").partition(0).log_end_offset
    except CorruptFile:
        return False


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.share(2)
def test_killed_in_the_middle(tmp_path: Path, links: bool) -> None:
    """A process that makes backups is killed: those that it said are there, open, and the next one goes on."""
    program = (
        "import os, sys, errno, afterlog\n"
        "def no_link(*a, **b): raise OSError(errno.EXDEV, 'elsewhere')\n"
        "if sys.argv[2] == 'False': os.link = no_link\n"
        "config = afterlog.Config(durability=afterlog.OS, segment_bytes=8_192, batch_bytes_max=4_096)\n"
        "with afterlog.open(sys.argv[1] + '/data', config=config) as store:\n"
        "    store.create_topic('t')\n"
        "    print('ready', flush=True)\n"
        "    while True:\n"
        "        store.send_many('t', [b'x' * 50] * 30)\n"
        "        end = store.topic('t').partition(0).log_end_offset\n"
        "        print(end, store.backup(sys.argv[1] + '/backups').path, flush=True)\n"
    )
    command, said = [sys.executable, "-c", program, str(tmp_path), str(links)], dict[str, int]()
    for kill in range(4):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
            assert process.stdout is not None
            for lines, line in enumerate(process.stdout):
                if lines:
                    end, path = line.split()
                    said[path] = int(end)
                if lines == 2 + kill:
                    process.kill()
        for path, end in said.items():
            shutil.rmtree(tmp_path / "copy", ignore_errors=True)
            shutil.copytree(path, tmp_path / "copy")
            with afterlog.open(tmp_path / "copy") as store:
                assert end == store.topic("t").partition(0).log_end_offset
                store.check()
    assert len(said) > 8


def test_the_document_tells_of_every_file(store: Store, disk: SimulatedFiles) -> None:
    made = store.backup(DEST)
    body = document.read(disk, made.path.parent / BACKUP, "afterlog-backup", 1)
    inside = {path for path in numbers(disk) if path.startswith(f"{made.path}/")}
    assert {f"{made.path}/{name}" for name in body["files"]} == inside
    assert (1, str(PATH), made.at_ms) == (body["number"], body["store"], body["at_ms"])


def test_appends_wait_for_nothing_but_the_few_files_of_their_partition(store: Store) -> None:
    """While the log is copied, a send goes through."""
    copy, sent = BackupWriter.copy, []

    def copied(writer: BackupWriter, name: str, size: int | None = None) -> None:
        if size is not None:
            sent.append(store.send("t", b"beside"))
        copy(writer, name, size)

    with patch.object(BackupWriter, "copy", copied):
        store.backup(DEST)
    assert sent
    assert isinstance(store.topic("t").log(0), PartitionLog)


@pytest.mark.parametrize("durability", [afterlog.ALWAYS, afterlog.OS, afterlog.Durability.interval(3_600_000)])
def test_all_that_was_sent_before_is_in_it(tmp_path: Path, durability: afterlog.Durability) -> None:
    """Also what nobody has synced yet."""
    with afterlog.open(tmp_path / "data", config=afterlog.Config(durability=durability)) as store:
        store.create_topic("mail", partitions=2)
        for number in range(2):
            store.send("mail", b"x", partition=number, delay=60)
        made = store.backup(tmp_path / "backups")
    shutil.copytree(made.path, tmp_path / "copy")
    with afterlog.open(tmp_path / "copy") as store:
        assert 2 == len(store.pending("mail"))
