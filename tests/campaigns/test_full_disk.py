"""Every call to the disk fails once, and from some call on for ever: what was acknowledged stays, and errors are typed.

After a disk that was full the same handle works again. After a failed sync the partition is poisoned: it takes nothing
until it is reopened, and goes on giving out what was visible.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

import afterlog
from afterlog import AfterlogError, ManualClock, OutOfResources, PartitionPoisoned, StorageFull, Store, StoreLocked
from afterlog.store.store import open_store
from tests import campaigns
from tests.campaigns import share
from tests.campaigns.crashes import PATH, START_MS, TOPIC, contents, small
from tests.campaigns.failing_files import FailingFiles, fail_at
from tests.campaigns.simulated_disk import SimulatedFiles, os_error
from tests.support import Calls, power_cut

CONFIG = small()


class Work:
    """Appends, deliveries, seals, rolls, retention, commits; each step is tried once, and fails with a typed error."""

    def __init__(self, files: FailingFiles) -> None:
        self.files = files
        self.clock = ManualClock(START_MS)
        self.acked: dict[int, bytes] = {}
        self.delivered: dict[int, bytes] = {}
        self.committed: int | None = None
        self.errors: list[AfterlogError] = []
        self.store: Store | None = None

    def run(self) -> None:
        """Everything, as far as it goes."""
        self.attempt(self.open)
        self.attempt(self.create)
        if self.store is None or not self.store.topics():
            self.attempt(self.create)  # what was left of the first attempt is in nobody's way
        if self.store is None or not self.store.topics():
            return
        for number in range(2):
            self.attempt(self.send, b"%d" % number, number)
            self.attempt(self.send_many, number)
            self.clock.advance(3)
            self.attempt(self.consume)
            self.attempt(self.roll)
            self.clock.advance(60)
            self.attempt(self.consume)
            self.attempt(self.store.enforce_retention)

    def attempt(self, step: Callable[..., object], *arguments: object) -> None:
        try:
            if self.store is not None or step == self.open:
                step(*arguments)
        except AfterlogError as error:
            self.errors.append(error)

    def open(self) -> None:
        self.store = open_store(PATH, CONFIG, self.clock, self.files, background=False)

    def create(self) -> None:
        assert self.store is not None
        self.store.create_topic(TOPIC, retention_ms=50)

    def send(self, value: bytes, after: int) -> None:
        assert self.store is not None
        self.acked[self.store.send(TOPIC, value, delay=after / 1000).offset] = value

    def send_many(self, number: int) -> None:
        assert self.store is not None
        values = [b"%d-%d" % (number, row) for row in range(5)]
        offsets = self.store.send_many(TOPIC, values, delay=[0.001, 0.002, 0.001, 0.002, 0.03])
        self.acked |= dict(zip(offsets.tolist(), values, strict=True))

    def roll(self) -> None:
        assert self.store is not None
        self.store.topic(TOPIC).partition(0).log.roll()

    def consume(self) -> None:
        assert self.store is not None
        with self.store.consumer(TOPIC, group="g", auto_commit=False) as consumer:
            for messages in iter(consumer.poll, []):
                for message in messages:
                    assert message.value is not None
                    assert message.value == self.delivered.setdefault(message.offset, message.value)
            consumer.commit()
            self.committed = consumer.positions()[0]

    def verify(self, disk: SimulatedFiles) -> None:
        """A reopened store has what was acknowledged, and works."""
        with open_store(PATH, CONFIG, self.clock, disk) as store:
            partition = store.create_topic(TOPIC, retention_ms=50).partition(0)
            found = contents(partition)
            for offset, value in (self.acked | self.delivered).items():
                assert offset < len(found), f"lost {offset} of {len(found)}"
                assert found[offset] is None or value == found[offset][0]  # type: ignore[index]
            with store.consumer(TOPIC, group="g") as consumer:
                assert self.committed is None or self.committed <= (consumer.committed()[0] or 0)
            assert len(found) == store.send(TOPIC, b"after").offset
            store.check()


FAULTS = [
    (number, for_ever) for number in (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.ENOMEM) for for_ever in (False, True)
]


@pytest.mark.parametrize(("number", "for_ever"), FAULTS)
def test_every_call_fails(number: int, for_ever: bool) -> None:
    for call in share(count(1), 25):
        disk = SimulatedFiles()
        files = FailingFiles(disk, fail_at(call, number, for_ever=for_ever))
        work = Work(files)
        work.run()
        if files.calls < call:
            break
        if not for_ever and number != errno.EIO:
            goes_on_when_there_is_room(work)
        if work.store is not None:
            work.attempt(work.store.close)
        try:
            work.verify(disk)
        except Exception as error:
            raise AssertionError(f"with call {call} failing: {work.errors}") from error
        campaigns.count("failing calls to the disk")
    print(f"of {call} calls each failed, or a share; errno {number}, for ever {for_ever}")
    assert call > 200


def goes_on_when_there_is_room(work: Work) -> None:
    """A full disk, or no descriptors, unless a sync met it, leaves nothing behind: the same handle works."""
    full = all(isinstance(error, StorageFull | OutOfResources) for error in work.errors)
    if full and work.store is not None:
        work.create()
        work.send(b"room", 0)
        work.store.check()


@pytest.mark.parametrize("left", [0, 1, -1])
def test_every_write_comes_up_short(left: int) -> None:
    call = 0
    while True:
        call += 1
        disk = SimulatedFiles()
        appends = [0]

        def fail(operation: str, path: Path, _: int, at: int = call, appends: list[int] = appends) -> int | None:
            appends[0] += operation == "append"
            return left if operation == "append" and appends[0] == at else None

        work = Work(FailingFiles(disk, fail))
        work.run()
        if appends[0] < call:
            break
        assert all(isinstance(error, StorageFull) for error in work.errors)
        goes_on_when_there_is_room(work)
        if work.store is not None:
            work.attempt(work.store.close)
        work.verify(disk)
    assert call > 20


def test_failed_sync_poisons_until_reopened() -> None:
    disk = SimulatedFiles()
    failing = False

    def fail(operation: str, path: Path, call: int) -> OSError | None:
        return OSError(errno.EIO, "fails") if failing and operation == "sync" and path.suffix == ".log" else None

    clock = ManualClock(START_MS)
    with open_store(PATH, CONFIG, clock, FailingFiles(disk, fail), background=False) as store:
        partition = store.create_topic(TOPIC).partition(0)
        store.send(TOPIC, b"kept")
        failing = True
        with pytest.raises(PartitionPoisoned):
            store.send(TOPIC, b"unknown")
        failing = False
        clock.advance(10)
        log = partition.log
        for refused in (lambda: store.send(TOPIC, b"no"), log.roll, log.enforce_retention, store.sync):
            with pytest.raises(PartitionPoisoned):
                refused()
        with store.consumer(TOPIC, group="g", auto_commit=False) as consumer:
            assert [b"kept"] == [message.value for message in consumer.poll()]
        assert 1 == partition.log_end_offset, "what the failed sync left is not shown"
    with open_store(PATH, CONFIG, clock, SimulatedFiles(disk.image())) as store:
        assert 2 == store.send(TOPIC, b"again").offset
        with pytest.raises(StoreLocked):
            open_store(PATH, CONFIG, clock, store._files)


def test_descriptors_run_out_for_real(tmp_path: Path) -> None:
    """A limit that nothing more fits under, and then the one from before."""
    with afterlog.open(tmp_path, config=CONFIG) as store:
        log = store.create_topic(TOPIC).partition(0).log
        store.send_many(TOPIC, [b"%d" % number for number in range(5)])
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/dev/fd"))) + 1, hard))
        spare: list[int] = []
        try:
            with contextlib.suppress(OSError):
                while True:
                    spare.append(os.open("/dev/null", os.O_RDONLY))
            for call in (log.roll, log.checkpoint, lambda: store.create_topic("new")):
                with pytest.raises(OutOfResources) as caught:
                    call()
                assert errno.EMFILE == caught.value.errno
                assert isinstance(caught.value, OSError)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for descriptor in spare:
                os.close(descriptor)
        log.roll()
        store.create_topic("new")
        assert 5 == store.send(TOPIC, b"5").offset
        store.check()
        with store.consumer(TOPIC, group="g") as consumer:
            assert [b"%d" % number for number in range(6)] == [message.value for message in consumer.poll()]


@pytest.mark.parametrize("durability", [afterlog.ALWAYS, afterlog.OS, afterlog.Durability.interval(3_600_000)])
def test_a_look_and_a_close_need_no_room(durability: afterlog.Durability) -> None:
    """What was sent has been sent: the close tells the log that it wrote no checkpoint, and the next open recovers."""
    disk = SimulatedFiles()
    config, clock = small(durability=durability), ManualClock(START_MS)
    with open_store(PATH, config, clock, disk) as store:
        store.create_topic(TOPIC)
        store.send(TOPIC, b"0")
        store.subscribe(TOPIC, "s").close()

    taken = False

    def full(made: str, path: Path) -> OSError | None:
        return os_error(errno.ENOSPC, path) if made in ("create", "append") and taken else None

    files = FailingFiles(disk, calls := Calls())
    calls.failing = full
    with open_store(PATH, config, clock, files) as store, store.subscribe(TOPIC, "s") as subscription:
        [message] = subscription.receive()
        sent = store.send(TOPIC, b"1", delay=60)
        subscription.ack(message)
        taken = True
        visible = durability.kind != "interval"  # else once it is durable
        assert [sent] * visible == [each.id for each in store.pending(TOPIC)]
        assert [] == store.dead_letters(TOPIC)
        with pytest.raises(StorageFull):
            store.send(TOPIC, b"2")
    with open_store(PATH, config, clock, power_cut(disk)) as store:
        assert [sent] == [each.id for each in store.pending(TOPIC)]
        with store.subscribe(TOPIC, "s") as subscription:
            assert [] == [*subscription.receive()]
        store.check()
