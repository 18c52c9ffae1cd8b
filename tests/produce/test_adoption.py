"""What jobs prepared is adopted whole or not at all, and once: whatever crashes, fails, or is tried again."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.config import ALWAYS, OS, Config, Durability
from afterlog.base.errors import (
    CorruptFile,
    InvalidDeliverAfter,
    InvalidRecord,
    InvalidTopic,
    PartitionPoisoned,
    RecordTooLarge,
    StorageFull,
    UnknownPartition,
    UnknownTopic,
)
from afterlog.base.files import Files
from afterlog.base.names import ADOPTED, ADOPTION, prepared_file
from afterlog.log.commit import Commit
from afterlog.produce import adoption
from afterlog.produce.adoption import KEEP_MS, Adopted, AdoptionLedger, Adoptions, give_up, hand_over
from afterlog.produce.prepared import Prepared
from afterlog.store.store import Store
from tests.campaigns import WHOLE
from tests.campaigns.crash_states import CrashModel, CrashState, crash_states, kill_state
from tests.campaigns.crashes import contents
from tests.campaigns.explorer import Explored, explore, first_failure
from tests.campaigns.failing_files import FailingFiles
from tests.campaigns.simulated_disk import Rename, SimulatedFiles
from tests.produce.prepare import prepare
from tests.support import NOW_MS, PATH, Background, Calls, HeldFiles, drained, killed, open_small, power_cut

TOPIC = "mail"
FAR_MS = 3_600_000
A: dict[int, list[tuple[bytes, int]]] = {
    0: [(b"a0", NOW_MS - 5), (b"a1", NOW_MS + 50), (b"a2", NOW_MS + 50)],
    1: [(b"a3", NOW_MS + 20), (b"a4" * 100, -1)],
}
B: dict[int, list[tuple[bytes, int]]] = {0: [(b"b0", -1)], 1: [(b"b1", NOW_MS + 7), (b"b2", NOW_MS + 9)]}


def begun(disk: Files, clock: ManualClock | None = None, **settings: Any) -> Store:
    store = open_small(disk, clock or ManualClock(NOW_MS), **settings)
    store.create_topic(TOPIC, 2)
    return store


def job(disk: Files, *tasks: dict[int, list[tuple[bytes, int]]], name: str = "job", batch: int = 0) -> Prepared:
    """What tasks prepared, each a file of its own."""
    files = tuple(prepare(disk, PATH, name, batch, rows) for rows in tasks)
    return Prepared(job=name, batch=batch, topic=TOPIC, files=files)


def found(store: Store) -> list[list[bytes]]:
    """The values in each partition, in append order."""
    return [[record[0] for record in contents(part) if record] for part in store.topic(TOPIC).partitions]


def test_a_time_that_is_surely_wrong_is_refused_as_in_send() -> None:
    rows = {0: [(b"good", NOW_MS + 50), (b"seconds", NOW_MS // 1000)], 1: [(b"good", -1)]}
    disk = SimulatedFiles()
    with begun(disk) as store:
        with pytest.raises(InvalidDeliverAfter, match="looks like seconds"):
            store.adopt(job(disk, rows))
        assert [[], []] == found(store)
        store.create_topic("any", 2, check_instants=False)
        store.adopt(replace(job(disk, rows), topic="any"))
        assert 2 == store.topic("any").partition(0).log_end_offset


def test_so_is_a_time_that_a_record_tells_of_itself() -> None:
    disk = SimulatedFiles()
    with begun(disk) as store:
        file = prepare(disk, PATH, "job", 0, {0: [(b"microseconds", -1)]}, timestamp_ms=NOW_MS * 1_000)
        with pytest.raises(InvalidRecord, match="looks like microseconds"):
            store.adopt(Prepared(job="job", batch=0, topic=TOPIC, files=(file,)))
        assert [[], []] == found(store)


def left(disk: SimulatedFiles) -> list[str]:
    return disk.names(PATH / ADOPTION)


def values(*tasks: dict[int, list[tuple[bytes, int]]]) -> list[list[bytes]]:
    return [[value for rows in tasks for value, _ in rows.get(number, [])] for number in (0, 1)]


class TestAdopt:
    def test_what_was_prepared_is_appended(self) -> None:
        disk, clock = SimulatedFiles(), ManualClock(NOW_MS)
        store = begun(disk, clock)
        store.send(TOPIC, b"before", partition=0)
        done = store.adopt(job(disk, A, B))
        assert [Adopted(job="job", batch=0, topic=TOPIC, records=8, again=False)] == done
        first, second = values(A, B)
        assert [[b"before", *first], second] == found(store)
        assert [] == left(disk)
        clock.advance(FAR_MS)
        assert [b"before", b"a0", b"b0", b"a1", b"a2"] == drained(store.topic(TOPIC).partition(0))
        dues = [record[1] for record in contents(store.topic(TOPIC).partition(0)) if record]
        assert [NOW_MS, NOW_MS, NOW_MS + 50, NOW_MS + 50, NOW_MS] == dues, "the stamping rule, when it is adopted"
        store.check()
        assert 1 == store.topic(TOPIC).partition(0).log.clamped_records

    def test_once(self) -> None:
        disk = SimulatedFiles()
        store = begun(disk)
        prepared = job(disk, A)
        for again in (False, True):
            assert [again] == [each.again for each in store.adopt(prepared)]
        store.close()
        store = begun(disk)
        assert [True] == [each.again for each in store.adopt(job(disk, A, B))], "prepared anew"
        assert [] == left(disk)
        assert values(A) == found(store)
        assert [False] == [each.again for each in store.adopt(job(disk, B, batch=1))]
        assert [True] == [each.again for each in store.adopt(job(disk, A, batch=0))]
        assert values(A, B) == found(store)

    def test_a_fifo_topic_and_segments_that_roll(self) -> None:
        disk = SimulatedFiles()
        store = open_small(disk, ManualClock(NOW_MS))
        store.create_topic("fifo", delayed=False)
        rows = [(b"%d" % number * 100, -1) for number in range(100)]
        file = prepare(disk, PATH, "job", 0, {0: rows})
        store.adopt(Prepared(job="job", batch=0, topic="fifo", files=(file,)))
        part = store.topic("fifo").partition(0)
        assert len(part.log.sealed) > 2
        assert [value for value, _ in rows] == drained(part)

    def test_the_oldest_jobs_are_forgotten(self) -> None:
        disk = SimulatedFiles()
        store = begun(disk)
        with patch.object(adoption, "ADOPTED_MAX", 2):
            for name in ("x", "y", "x", "z"):
                store.adopt(job(disk, {0: [(b"v", -1)]}, name=name, batch=len(found(store)[0])))
        assert {"x": 2, "z": 3} == dict(AdoptionLedger.read(disk, PATH).adopted)
        with pytest.raises(CorruptFile, match="gone"):
            store.adopt(Prepared(job="y", batch=0, topic=TOPIC, files=job(killed(disk), A, name="y").files))

    @pytest.mark.parametrize(
        ("error", "change"),
        [
            (UnknownTopic, lambda prepared: replace(prepared, topic="other")),
            (InvalidTopic, lambda prepared: replace(prepared, topic="fifo")),
            (InvalidDeliverAfter, lambda prepared: replace(prepared, topic="near")),
            (UnknownPartition, lambda prepared: replace(prepared, topic="one")),
        ],
    )
    def test_what_cannot_be_taken(self, error: type[Exception], change: Callable[[Prepared], Prepared]) -> None:
        disk = SimulatedFiles()
        store = begun(disk)
        store.create_topic("fifo", 2, delayed=False)
        store.create_topic("near", 2, max_delay_ms=10)
        store.create_topic("one")
        with pytest.raises(error):
            store.adopt(change(job(disk, A)))
        assert [0] * 7 == [part.log.log_end_offset for topic in store.topics() for part in topic.partitions]
        assert not store.adopt(job(disk, A, name="other"))[0].again
        assert values(A) == found(store)

    def test_a_batch_that_is_too_large_for_the_store(self) -> None:
        disk = SimulatedFiles()
        store = begun(disk)
        file = prepare(disk, PATH, "job", 0, {0: [(b"x" * 2_000, -1)]}, Config())
        with pytest.raises(RecordTooLarge):
            store.adopt(Prepared(job="job", batch=0, topic=TOPIC, files=(file,)))
        assert [[], []] == found(store)

    def test_a_byte_that_rotted(self) -> None:
        whole = SimulatedFiles()
        begun(whole).close()
        prepared = job(whole, A)
        [name] = left(whole)
        path = PATH / ADOPTION / name
        data = whole.open(path).pread(1 << 20, 0)
        for position in range(0, len(data), 7):
            disk = SimulatedFiles(replace(whole.image(), contents={**whole.image().contents, str(path): b""}))
            disk.open(path).append([data[:position], bytes([data[position] ^ 1]), data[position + 1 :]])
            store = begun(disk)
            with pytest.raises(CorruptFile):
                store.adopt(prepared)
            assert [[], []] == found(store)

    def test_others_wait_until_it_is_done(self) -> None:
        disk = HeldFiles(SimulatedFiles(), Calls())
        store = begun(disk)
        prepared = job(disk, A)
        gate = disk.hold("append", ".log")
        adopting = Background(lambda: store.adopt(prepared))
        gate.came()
        sending = Background(lambda: store.send(TOPIC, b"after", partition=0))
        gate.open()
        adopting.answer()
        assert 3 == sending.answer().offset
        first, second = values(A)
        assert [[*first, b"after"], second] == found(store)


class TestHandOver:
    def test_the_process_that_has_the_store_open_adopts(self) -> None:
        disk = SimulatedFiles()
        store = begun(disk)
        assert [] == store.adopt()
        for batch, rows in ((1, B), (0, A)):
            hand_over(disk, PATH, job(disk, rows, batch=batch), NOW_MS, f"{batch:032x}")
        assert [("job", 0, False), ("job", 1, False)] == [(each.job, each.batch, each.again) for each in store.adopt()]
        assert values(A, B) == found(store)
        assert [] == left(disk)
        assert [] == store.adopt()

    def test_earlier_batches_come_first(self) -> None:
        disk = SimulatedFiles()
        store = begun(disk)
        hand_over(disk, PATH, job(disk, A, batch=3), NOW_MS, "0" * 32)
        hand_over(disk, PATH, job(disk, A, name="other"), NOW_MS, "1" * 32)
        assert [3, 4] == [each.batch for each in store.adopt(job(disk, B, batch=4))]
        assert values(A, B) == found(store)
        assert 2 == len(left(disk)), "of the other job"

    def test_what_is_handed_over_is_durable(self) -> None:
        disk = SimulatedFiles()
        begun(disk, durability=ALWAYS).close()
        hand_over(disk, PATH, job(disk, A), NOW_MS, "0" * 32)
        store = begun(power_cut(disk))
        store.adopt()
        assert values(A) == found(store)

    def test_a_handover_that_rotted(self) -> None:
        disk = SimulatedFiles()
        store = begun(disk)
        hand_over(disk, PATH, job(disk, A), NOW_MS, "0" * 32)
        handover = next(name for name in left(disk) if name.endswith("handover"))
        disk.open(PATH / ADOPTION / handover).append([b" "])
        with pytest.raises(CorruptFile):
            store.adopt()
        store.close()
        store = begun(disk, ManualClock(NOW_MS + 2 * KEEP_MS))
        assert 2 == len(left(disk)), "nothing goes while nobody knows what is needed"


class TestSweep:
    def test_what_was_given_up_goes_in_the_end(self) -> None:
        disk = SimulatedFiles()
        clock = ManualClock(NOW_MS)
        store = begun(disk, clock)
        abandoned, needed = job(disk, A, name="abandoned"), job(disk, A, name="needed")
        hand_over(disk, PATH, needed, NOW_MS, "0" * 32)
        [temporary] = [prepared_file("killed", 0, NOW_MS, "2" * 32) + ".tmp"]
        for name in (temporary, "not ours"):
            disk.create(PATH / ADOPTION / name)
        store.close()
        for later_ms, count in ((KEEP_MS, 5), (1, 3)):
            clock.advance(later_ms)
            begun(disk, clock).close()
            assert count == len(left(disk))
        assert abandoned.files[0].name not in left(disk)
        store = begun(disk, clock)
        store.adopt()
        assert values(A) == found(store)
        assert ["not ours"] == left(disk)

    def test_a_job_gives_up(self) -> None:
        disk = SimulatedFiles()
        begun(disk)
        mine, theirs = job(disk, A, name="mine"), job(disk, A, name="theirs")
        hand_over(disk, PATH, theirs, NOW_MS, "0" * 32)
        give_up(disk, PATH, [file.name for file in (*mine.files, *theirs.files)])
        assert 2 == len(left(disk))
        assert mine.files[0].name not in left(disk)

    def test_a_job_gives_up_what_was_adopted_and_is_not_durably_so(self) -> None:
        """The adopting process is killed between the document's rename and its sync; then the power fails."""
        disk = SimulatedFiles()
        store = begun(disk)
        prepared = job(disk, A)
        store.adopt(prepared)
        renames = [(at, each) for at, each in enumerate(disk.operations, 1) if isinstance(each, Rename)]
        _, done = [at for at, each in renames if each.target == ADOPTED]
        disk = kill_state(disk.operations, done).files()
        give_up(disk, PATH, [file.name for file in prepared.files])
        for state in crash_states(disk.operations, len(disk.operations), model=CrashModel(every_byte_max=0)):
            store = begun(state.files())
            assert values(A) == found(store)
            store.send(TOPIC, b"goes on")  # it is not poisoned for what it cannot finish


class TestFailure:
    def test_no_room_for_the_document(self) -> None:
        calls = Calls()
        disk = SimulatedFiles()
        store = begun(FailingFiles(disk, calls))
        prepared = job(disk, A)
        calls.fail("append", f"{ADOPTED}.tmp", OSError(errno.ENOSPC, "full"))
        with pytest.raises(StorageFull):
            store.adopt(prepared)
        store.send(TOPIC, b"goes on", partition=0)
        store.adopt(prepared)
        assert [[b"goes on", *values(A)[0]], values(A)[1]] == found(store)

    @pytest.mark.parametrize(("operation", "suffix"), [("append", ".log"), ("sync", ".log"), ("rename", "adopted.tmp")])
    def test_what_was_begun_is_finished_by_the_next_open(self, operation: str, suffix: str) -> None:
        """The second such call fails: of the second section, or of the document that says that it is done."""
        calls, disk = Calls(), SimulatedFiles()
        store = begun(FailingFiles(disk, calls))
        prepared = job(disk, A, B)
        answers = iter([None, OSError(errno.ENOSPC, "full")])

        def failing(made: str, path: Path) -> OSError | None:
            behind = operation == "rename" or AdoptionLedger.read(disk, PATH).pending is not None
            return next(answers, None) if behind and made == operation and path.name.endswith(suffix) else None

        calls.failing = failing
        with pytest.raises((StorageFull, PartitionPoisoned)):
            store.adopt(prepared)
        with pytest.raises(PartitionPoisoned):
            store.send(TOPIC, b"in between", partition=0)
        with pytest.raises(PartitionPoisoned):
            store.adopt(job(disk, A, name="another"))
        give_up(disk, PATH, [file.name for file in prepared.files])
        store.close()
        store = begun(disk)
        assert values(A, B) == found(store)
        assert [True] == [each.again for each in store.adopt(prepared)]

    def test_the_next_open_has_no_room_either(self) -> None:
        disk = SimulatedFiles()
        store = begun(disk)
        store.create_topic("other")
        prepared = job(disk, A, B)
        with (
            patch.object(Adoptions, "_append", side_effect=StorageFull("no room", path=PATH)),
            pytest.raises(StorageFull),
        ):
            store.adopt(prepared)
        store.close()
        calls = Calls()
        calls.fail("append", ".log", OSError(errno.ENOSPC, "full"))
        store = begun(FailingFiles(disk, calls))
        assert [[], []] == found(store), "it can be read"
        with pytest.raises(PartitionPoisoned):
            store.send(TOPIC, b"", partition=1)
        store.send("other", b"goes on")
        store.close()
        store = begun(disk)
        assert values(A, B) == found(store)

    def test_what_was_begun_has_rotted(self) -> None:
        disk = SimulatedFiles()
        store = begun(disk)
        prepared = job(disk, A)
        with (
            patch.object(Adoptions, "_append", side_effect=StorageFull("no room", path=PATH)),
            pytest.raises(StorageFull),
        ):
            store.adopt(prepared)
        store.close()
        disk.unlink(PATH / ADOPTION / prepared.files[0].name)
        store = begun(disk)
        with pytest.raises(PartitionPoisoned):
            store.send(TOPIC, b"", partition=1)
        store.close()
        disk.unlink(PATH / ADOPTED)
        store = begun(disk)
        assert 0 == store.send(TOPIC, b"given up", partition=1).offset


# --- Crashes ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sent:
    value: bytes


@dataclass(frozen=True, slots=True)
class Done:
    """`adopt` returned: of this batch."""

    batch: int


BATCHES = ([A, B], [B])


def work(durability: Durability) -> Callable[[Files, SimulatedFiles], None]:
    """Two batches of a job, the second tried twice; something is sent before, between and behind."""

    def run(files: Files, disk: SimulatedFiles) -> None:
        store = begun(files, durability=durability)
        disk.mark("begun")
        for batch, tasks in enumerate(BATCHES):
            store.send(TOPIC, b"sent %d" % batch, partition=batch)
            if durability == ALWAYS:
                disk.mark(Sent(b"sent %d" % batch))
            prepared = job(files, *tasks, batch=batch)
            store.adopt(prepared)
            disk.mark(Done(batch))
        store.adopt(prepared)
        store.close()

    return run


@dataclass(slots=True)
class Verifier:
    durability: Durability
    seen: set[int] = field(default_factory=set)
    """How many batches were found after a crash."""

    def __call__(self, disk: SimulatedFiles, marks: Sequence[object], state: CrashState) -> None:
        store = open_small(disk, ManualClock(NOW_MS), durability=self.durability)
        if not store.topics():
            assert not marks
            return
        there = self._adopted(store)
        self.seen.add(there)
        assert there >= sum(isinstance(mark, Done) for mark in marks), "adopt returned, and it is gone"
        in_log = {value for part in found(store) for value in part}
        for mark in marks:
            assert not isinstance(mark, Sent) or mark.value in in_log
        for batch, tasks in enumerate(BATCHES):
            [done] = store.adopt(job(disk, *tasks, batch=batch))
            assert done.again == (batch < there), "the document and the log disagree"
        assert len(BATCHES) == self._adopted(store)
        assert [] == left(disk)
        store.check()

    @staticmethod
    def _adopted(store: Store) -> int:
        """How many batches are in the log; AssertionError where one is there in part, or twice."""
        log = [[value for value in part if not value.startswith(b"sent")] for part in found(store)]
        for count in range(len(BATCHES) + 1):
            if values(*(rows for tasks in BATCHES[:count] for rows in tasks)) == log:
                return count
        raise AssertionError(f"neither all nor nothing: {log}")


def explored(
    durability: Durability,
    *,
    kill: bool = False,
    again_every: int = 0,
    model: CrashModel | None = None,
    wrap: Callable[[SimulatedFiles], Files] | None = None,
    **share: int,
) -> tuple[Explored, Verifier]:
    verifier = Verifier(durability)
    model = model or CrashModel(every_byte_max=0, sector_cuts_max=1)
    result = explore(
        work(durability),
        verifier,
        kill=kill,
        again_every=again_every,
        model=model,
        wrap=wrap,
        **share,
    )
    print(result)
    return result, verifier


CASES = pytest.mark.parametrize(
    ("durability", "kill"),
    [(ALWAYS, False), (ALWAYS, True), (OS, False), (OS, True)],
    ids=["always", "always-kill", "os", "os-kill"],
)


@CASES
def test_every_crash(durability: Durability, kill: bool) -> None:
    """And, in a whole run, every crash of some recoveries."""
    result, verifier = explored(
        durability,
        kill=kill,
        again_every=41 if WHOLE else 0,
        of=2 if kill else 6,
        model=CrashModel(every_byte_max=16, of=4),
    )
    assert not result.failures, str(result)
    assert {0, 1, 2} == verifier.seen


def without_sync(suffix: str) -> Callable[[SimulatedFiles], Files]:
    return lambda disk: FailingFiles(
        disk, lambda operation, path, _: 0 if operation == "sync" and path.name.endswith(suffix) else None
    )


def without_folder_sync(folder: Path) -> Callable[[SimulatedFiles], Files]:
    return lambda disk: FailingFiles(
        disk, lambda operation, path, _: 0 if (operation, path) == ("sync_folder", folder) else None
    )


def begins_without_a_document(self: Adoptions, ledger: AdoptionLedger) -> None:
    """Nothing is pending: the document comes last."""
    if ledger.pending is None:
        ledger.write(self._files, self._store)
    self._ledger = ledger


def tells_first(self: Adoptions, logs: Any, log_ends: Any, parts: Any, append: Any) -> None:
    """Adopted, says the document, and then comes the rest."""
    self._ledger.done().write(self._files, self._store)
    ORIGINAL_APPEND(self, logs, log_ends, parts, append)


def appends_all_again(parts: Any, records: int) -> Iterator[Any]:
    yield from parts


ORIGINAL_APPEND = Adoptions._append


@dataclass(frozen=True, slots=True)
class Bug:
    name: str
    durability: Durability = ALWAYS
    wrap: Callable[[SimulatedFiles], Files] | None = None
    planted: Callable[[], AbstractContextManager[Any]] = nullcontext


def shown_unsynced(commit: Commit) -> None:
    versions: Any = commit._of
    versions.show(versions.current)


def patched(owner: Any, name: str, function: Any) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: patch.object(owner, name, function)


BUGS = (
    Bug("document not synced", wrap=without_sync(f"{ADOPTED}.tmp")),
    Bug("prepared files not synced", wrap=without_sync(".prepared.tmp")),
    Bug("their names not synced", wrap=without_folder_sync(PATH / ADOPTION)),
    Bug("the store's folder not synced", wrap=without_folder_sync(PATH)),
    Bug("no document before the first append", planted=patched(Adoptions, "_write", begins_without_a_document)),
    Bug("adopted, says the document before it is", planted=patched(Adoptions, "_append", tells_first)),
    Bug(
        "the log not synced",
        durability=OS,
        planted=patched(Commit, "sync", shown_unsynced),
    ),
    Bug("appended again from the start", planted=patched(adoption, "_behind", appends_all_again)),
    Bug("nothing is finished at open", planted=patched(Adoptions, "recover", lambda self: None)),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_planted_bug_is_caught(bug: Bug) -> None:
    with bug.planted():
        result = first_failure(lambda **share: explored(bug.durability, wrap=bug.wrap, **share)[0])
    assert result.failures, f"not seen: {bug.name}"
