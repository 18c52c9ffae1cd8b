"""Each public operation, each of its calls to the disk, each way in which that can fail.

What comes out is an AfterlogError, nothing that was acknowledged is lost, and where a descriptor, memory or room was
missing the same store goes on as soon as there is some: unless it was a sync that failed, which poisons (D16).
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from afterlog import (
    EARLIEST,
    AfterlogError,
    ManualClock,
    OffsetOutOfRange,
    PartitionPoisoned,
    Receipts,
    Record,
    RetryPolicy,
    Store,
    SubscriptionPoisoned,
    encode_batch,
)
from afterlog.base.config import ALWAYS
from afterlog.base.errors import NotPending, StorageError
from afterlog.fetch.record_id import RecordId
from afterlog.produce.adoption import AdoptionLedger
from afterlog.produce.prepared import Prepared
from afterlog.store.store import open_store
from afterlog.tier.directory_store import DirectoryStore
from tests import campaigns
from tests.campaigns import share
from tests.campaigns.failing_files import FailingFiles
from tests.campaigns.simulated_disk import Image, SimulatedFiles, os_error
from tests.produce.prepare import prepare
from tests.support import NOW_MS, PATH, drained, small

DUE, LATER = 30, 10
REMOTE = Path("/remote")
CONFIG = small(durability=ALWAYS, max_num_buckets=2)
WRITING = ("append", "create", "make_folder", "rename", "link", "lock", "scratch", "scratch pwrite")
NUMBERS = {"EIO": errno.EIO, "EMFILE": errno.EMFILE, "ENOMEM": errno.ENOMEM, "ENOSPC": errno.ENOSPC}


class Scene:
    """A store that has a little of everything, on a disk of which one call fails once it is `armed`."""

    def __init__(self, image: Image, clock: ManualClock, at: int, number: int) -> None:
        self.disk = SimulatedFiles(image)
        self.clock = clock
        self.hit: str | None = None
        self._at = at
        self.number = number
        self._armed = False
        self._calls = 0
        self.files = FailingFiles(self.disk, self._fail)
        self.store = self.open()

    def _fail(self, operation: str, path: Path, call: int) -> OSError | None:
        if not self._armed:
            return None
        self._calls += 1
        if self._calls != self._at:
            return None
        self.hit = f"{operation} {path.name}"
        return os_error(self.number, path)

    def open(self) -> Store:
        remote = DirectoryStore(self.files, REMOTE)
        return open_store(PATH, CONFIG, self.clock, self.files, remote, background=False)

    def begun(self) -> bool:
        """Whether there is an adoption that the next open finishes."""
        return AdoptionLedger.read(self.disk, PATH).pending is not None

    def armed(self, operation: Callable[[Scene], object]) -> AfterlogError | None:
        self._armed = True
        try:
            operation(self)
        except AfterlogError as error:
            return error
        finally:
            self._armed = False
        return None


def prepared(scene: Scene) -> Prepared:
    return Prepared(job="job", batch=0, topic="t", files=(prepare(scene.disk, PATH, "job", 0, {0: [(b"job", -1)]}),))


def polled(scene: Scene) -> None:
    with scene.store.consumer("t", group="g") as consumer:
        try:
            consumer.poll(1)
        except OffsetOutOfRange:  # retention was quicker
            consumer.seek(EARLIEST)
        while consumer.poll():
            consumer.commit()


def leased(scene: Scene, then: Callable[[Any, Any], object], *, held: bool = False) -> None:
    policy = RetryPolicy(attempts=1)
    with scene.store.subscribe("t", "s", dead_letter="dead", retry=policy, durable_leases=held) as subscription:
        then(subscription, subscription.receive(5))


def held(scene: Scene) -> None:
    """Extended, and rejected by the receipt."""

    def settle(subscription: Any, received: Any) -> None:
        kept = Receipts.of_columns([0], received.columns.delivery_offset[:1], received.lease_number[:1])
        scene.clock.advance(1_000)
        subscription.extend(received)
        subscription.reject(kept)

    leased(scene, settle, held=True)


def produced(scene: Scene) -> None:
    with scene.store.producer("t") as producer:
        future = producer.send(b"produced")
        producer.flush()
    future.result(0)


def reopened(scene: Scene) -> None:
    scene.store.close()
    scene.store = scene.open()


def retained(scene: Scene) -> None:
    scene.clock.advance(10**6)
    scene.store.enforce_retention()


OPERATIONS: dict[str, Callable[[Scene], object]] = {
    "open": reopened,
    "close": lambda scene: scene.store.close(),
    "create_topic": lambda scene: scene.store.create_topic("new", 2),
    "send": lambda scene: scene.store.send("t", b"sent", delay=5),
    "send_many": lambda scene: scene.store.send_many("t", [b"many" * 20] * 40),
    "append": lambda scene: scene.store.topic("t").partition(0).append(
        encode_batch([Record(value=b"batch", timestamp=NOW_MS)])
    ),
    "producer": produced,
    "cancel": lambda scene: scene.store.cancel(RecordId("t", 0, DUE)),
    "reschedule": lambda scene: scene.store.reschedule(RecordId("t", 0, DUE + 1), delay=50),
    "pending": lambda scene: scene.store.pending("t"),
    "adopt": lambda scene: scene.store.adopt(prepared(scene)),
    "consumer": polled,
    "fetch": lambda scene: scene.store.topic("t").partition(0).fetch(0),
    "subscribe": lambda scene: scene.store.subscribe("t", "other"),
    "receive": lambda scene: leased(scene, lambda subscription, received: None),
    "ack": lambda scene: leased(scene, lambda subscription, received: subscription.ack_many(received)),
    "nack": lambda scene: leased(scene, lambda subscription, received: subscription.nack(received)),
    "release": lambda scene: leased(scene, lambda subscription, received: subscription.release(received)),
    "extend": lambda scene: leased(scene, lambda subscription, received: subscription.extend(received)),
    "held leases": held,
    "seek": lambda scene: leased(scene, lambda subscription, received: subscription.seek(3)),
    "dead_letters": lambda scene: scene.store.dead_letters("dead"),
    "redrive": lambda scene: scene.store.redrive("dead"),
    "roll": lambda scene: scene.store.topic("t").partition(0).log.roll(),
    "checkpoint": lambda scene: scene.store.topic("t").partition(0).log.checkpoint(),
    "merge": lambda scene: scene.store.topic("t").partition(0).log.merge_buckets(),
    "retention": retained,
    "offload": lambda scene: scene.store.offload(),
    "sync": lambda scene: scene.store.sync(),
    "check": lambda scene: scene.store.check(),
}  # fmt: skip


@pytest.fixture(scope="module")
def image() -> Image:
    """Segments, runs, something due and something pending, positions, leases, a dead letter."""
    disk = SimulatedFiles()
    disk.make_folder(REMOTE)
    clock = ManualClock(NOW_MS)
    with open_store(PATH, CONFIG, clock, disk, DirectoryStore(disk, REMOTE), background=False) as store:
        store.create_topic("t", retention_ms=10**5, remote_storage_enable=True)
        for number in range(DUE):
            store.send("t", b"%d" % number * 50)
        for number in range(LATER):
            store.send("t", b"later %d" % number, delay=100 + number)
        with store.subscribe("t", "s", dead_letter="dead", retry=RetryPolicy(attempts=1)) as subscription:
            received = subscription.receive(4)
            subscription.ack_many(received[:3])
            subscription.nack(received[3:])
        with store.consumer("t", group="g") as consumer:
            consumer.poll(7)
    return disk.image()


@pytest.mark.parametrize("errno_name", NUMBERS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_each_call_fails(image: Image, name: str, errno_name: str) -> None:
    number = NUMBERS[errno_name]
    for at in share(count(1), 48):
        scene = Scene(image, ManualClock(NOW_MS + 50), at, number)
        error = scene.armed(OPERATIONS[name])
        if scene.hit is None and error is None:
            break
        where = f"{name}: call {at}, {scene.hit}: {error!r}"
        try:
            if number != errno.EIO and not is_poison(scene, error):
                goes_on(scene, name)
            end(scene)
            all_is_there(scene, name)
        except Exception as broken:
            raise AssertionError(where) from broken
        campaigns.count("failing calls of operations")


def is_poison(scene: Scene, error: AfterlogError | None) -> bool:
    """Whether a sync failed, after which nobody knows, or what needs no room had none; or an adoption that is begun is
    for the next open to finish. Else nothing may be poisoned."""
    call = (scene.hit or "").partition(" ")[0]
    if call == "sync_folder" and scene.number == errno.EMFILE and scene.hit != f"sync_folder {PATH.name}":
        call = "open"  # of a folder that nobody tried to sync; in the store's own lies the document of an adoption
    if call in ("sync", "sync_folder", "truncate") or (scene.number == errno.ENOSPC and call not in WRITING):
        return True
    if scene.begun():
        return True
    assert not isinstance(error, PartitionPoisoned | SubscriptionPoisoned)
    return False


def goes_on(scene: Scene, name: str) -> None:
    """The same again, and everything else, with a disk that is well."""
    if name in ("open", "close"):
        scene.store.close()
        scene.store = scene.open()
    else:
        again = scene.armed(OPERATIONS[name])
        assert again is None or isinstance(again, NotPending), repr(again)
    scene.store.send("t", b"on")
    polled(scene)
    leased(scene, lambda subscription, received: subscription.ack_many(received))
    scene.store.topic("t").partition(0).log.roll()
    scene.store.check()


def end(scene: Scene) -> None:
    try:
        scene.store.close()
    except StorageError:
        pass


def all_is_there(scene: Scene, name: str) -> None:
    """For who comes next, on the disk as it is: what was acknowledged before, and positions and acks."""
    disk = SimulatedFiles(scene.disk.image())
    remote = DirectoryStore(disk, REMOTE)
    with open_store(PATH, CONFIG, ManualClock(NOW_MS + 10**6), disk, remote, background=False) as store:
        partition = store.topic("t").partition(0)
        if name != "retention":
            values = drained(partition)
            assert [b"%d" % number * 50 for number in range(DUE)] == values[:DUE]
            assert {b"later %d" % number for number in range(2, LATER)} <= set(values)
        with store.consumer("t", group="g") as consumer:
            assert 7 <= (consumer.committed()[0] or 0)
        if name not in ("seek", "retention"):
            with store.subscribe("t", "s", dead_letter="dead") as subscription:
                assert not {0, 1, 2} & {int(offset) for offset in subscription.receive(500).columns.offset}
        assert partition.log_end_offset == store.send("t", b"after").offset
        store.check()
