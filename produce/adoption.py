"""Adopting what jobs have prepared (`produce/prepared.py`): all of it or nothing, and once for each job and batch.

    verify ──> hold the partitions ──> document: pending ──> append to one after another ──> document: adopted ──> sweep
               their ends are durable                  │
                                                       └ the commit point: from here on all of it will be there

The document `<data>/adopted` says what was adopted, and what is about to be. A body, shortened:

    {"adopted":{"914b5355-a8e0-4a32-886b-4fd53d97c967":7,"mail-2030":0},
     "pending":{"prepared":{"job":"mail-2031","batch":0,"topic":"mail","files":[…]},"log_ends":{"0":120,"1":80}}}

- `adopted`: of each job the last batch, the job that adopted last at the end. The oldest of more than ADOPTED_MAX are
  forgotten: their files are gone, and only a job that prepares the same again could tell.
- `pending`: what was begun, and the ends that the partitions' logs had then. Nothing else is appended to these before
  it is done, so what a crash left behind such an end are the first of the records to be appended; the rest follows when
  the store is opened. Readers may see some before all are there: they are there for good.

What fails before the commit point has changed nothing. What fails behind it leaves the partitions poisoned, but for
reading: the next open goes on where it stopped, and where there is no room for that either, or a file is rotten, they
stay so and the log says why. Removing the document gives up the rest, and with it the memory of what was adopted.

A job cannot tell a running one from one that was given up. So each sweeps what the document says is done, and what has
been there for KEEP_MS and nobody handed over.

Invariants:

1. There is a pending adoption only while its partitions are held, or poisoned.
2. No prepared file goes that a pending adoption or a handover names, before the document says that it is done.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from afterlog.base import document
from afterlog.base.document import whole
from afterlog.base.errors import CorruptFile, OutOfResources, PartitionPoisoned, StorageFull
from afterlog.base.files import TEMPORARY_SUFFIX, Files
from afterlog.base.names import ADOPTED, ADOPTION, HANDOVER, parse_prepared_file, prepared_file
from afterlog.log.partition_log import PartitionLog
from afterlog.produce.prepared import Prepared, adoption_folder, read_sections
from afterlog.records.encode import EncodedBatches
from afterlog.records.times import check_instant_column, check_timestamps

logger = logging.getLogger("afterlog.log")

FORMAT = "afterlog-adoptions"
HANDOVER_FORMAT = "afterlog-handover"
VERSION = 1
ADOPTED_MAX = 10_000
"""Jobs that are remembered."""
KEEP_MS = 7 * 86_400_000
"""What a job left that neither finished nor aborted goes after so long: no job runs longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """What came of a job's batch."""

    job: str
    batch: int
    topic: str
    records: int
    again: bool
    """It had been adopted before; nothing was appended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """An adoption that was begun."""

    prepared: Prepared
    log_ends: Mapping[int, int]
    """By partition: the offset at which its first record is to be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptionLedger:
    """The content of the document."""

    adopted: Mapping[str, int] = field(default_factory=dict)
    pending: Pending | None = None

    def has(self, job: str, batch: int) -> bool:
        return batch <= self.adopted.get(job, -1)

    def done(self) -> AdoptionLedger:
        """When what is pending has been adopted."""
        assert self.pending is not None
        job, batch = self.pending.prepared.job, self.pending.prepared.batch
        others = [(name, last) for name, last in self.adopted.items() if name != job]
        return AdoptionLedger(adopted=dict([*others[1 - ADOPTED_MAX :], (job, batch)]))

    @staticmethod
    def read(files: Files, store: Path) -> AdoptionLedger:
        """Empty where nothing was ever adopted. Raises CorruptFile."""
        path = store / ADOPTED
        try:
            body = document.read(files, path, FORMAT, VERSION)
        except FileNotFoundError:
            return AdoptionLedger()
        try:
            adopted = {str(job): whole(batch) for job, batch in body["adopted"].items()}
            return AdoptionLedger(adopted=adopted, pending=_pending_of_json(body["pending"]))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise CorruptFile(f"the document holds something unknown: {error}", path=path) from error

    def write(self, files: Files, store: Path) -> None:
        pending = self.pending and {"prepared": self.pending.prepared.to_json(), "log_ends": {**self.pending.log_ends}}
        document.write(files, store / ADOPTED, FORMAT, VERSION, {"adopted": {**self.adopted}, "pending": pending})


class Adoptions:
    """The adoptions of one open store, one at a time. Thread-safe."""

    def __init__(
        self, files: Files, store: Path, log_of: Callable[[str, int], PartitionLog], now_ms: Callable[[], int]
    ) -> None:
        """`log_of`: the log of a topic's partition. Raises CorruptFile."""
        self._files = files
        self._store = store
        self._log_of = log_of
        self._now_ms = now_ms
        self.lock = threading.Lock()
        """Held while one is under way: without it the logs and the document may not agree."""
        self._ledger = AdoptionLedger.read(files, store)

    def recover(self) -> None:
        """Finish what was begun before a crash, and sweep. Once, before anything else is appended to the store."""
        pending = self._ledger.pending
        if pending is not None:
            logs = self._logs(pending.prepared.topic, pending.log_ends)
            with contextlib.suppress(StorageFull, CorruptFile), self._halting(logs.values()):
                self._finish(pending, logs, self._parts(pending.prepared))
        self._sweep()

    def has_begun(self, topic: str) -> bool:
        """Whether one to this topic is begun and not done, which only the next open can finish."""
        return self._ledger.pending is not None and self._ledger.pending.prepared.topic == topic

    def adopt(self, prepared: Prepared | None = None) -> list[Adopted]:
        """Append what a job prepared, or without one what jobs have handed over; what was adopted before is not again.

        What is appended is durable, whatever the durability. Nothing else is appended to its partitions meanwhile; what
        is due is delivered. Of a job whose earlier batches wait, these come first.

        Raises UnknownTopic, UnknownPartition, CorruptFile, and as `PartitionLog.check_batches`, with nothing written of
        the batch; StorageFull with nothing written, or, as PartitionPoisoned does, with the rest left to the next open.
        """
        with self.lock:
            batches = [waiting for _, waiting in handed_over(self._files, self._store)]
            if prepared is not None:
                batches = [each for each in batches if each.job == prepared.job and each.batch < prepared.batch]
                batches.append(prepared)
            try:
                done = [self._adopted(each) for each in sorted(batches, key=_of)]
            except BaseException as error:
                traceback.clear_frames(error.__traceback__)  # one that struck amid an exit may hold partitions there
                raise
            self._sweep()
            return done

    def _adopted(self, prepared: Prepared) -> Adopted:
        again = self._ledger.has(*_of(prepared))
        if not again:
            self._adopt(prepared)
        return Adopted(
            job=prepared.job, batch=prepared.batch, topic=prepared.topic, records=prepared.records, again=again
        )

    def _adopt(self, prepared: Prepared) -> None:
        if self._ledger.pending is not None:
            raise PartitionPoisoned(
                "an adoption that was begun is not done; close and reopen the store", path=self._store / ADOPTED
            )
        parts = self._parts(prepared)
        logs = self._logs(prepared.topic, parts)
        for number, log in logs.items():
            for batches in parts[number]:
                log.check_batches(batches)
                if log.context.settings.check_instants:
                    check_instant_column(batches.deliver_after, log.context.now_ms(), of="batch")
                    check_timestamps(batches.max_timestamp, log.context.now_ms(), of="batch")
        with contextlib.ExitStack() as held:
            append = {number: held.enter_context(log.appending()) for number, log in logs.items()}
            for log in logs.values():
                log.commit.sync()
            log_ends = {number: log.written for number, log in logs.items()}
            with self._halting(logs.values()):
                self._write(replace(self._ledger, pending=Pending(prepared=prepared, log_ends=log_ends)))
                self._append(logs, log_ends, parts, append)
                self._write(self._ledger.done())

    def _finish(
        self, pending: Pending, logs: Mapping[int, PartitionLog], parts: Mapping[int, Sequence[EncodedBatches]]
    ) -> None:
        """The same from the commit point on, for a log that ends where a crash has left it."""
        logger.warning(
            "%s: adopting batch %d of job %s was interrupted; going on",
            self._store, pending.prepared.batch, pending.prepared.job,
        )  # fmt: skip
        with contextlib.ExitStack() as held:
            append = {number: held.enter_context(log.appending()) for number, log in logs.items()}
            self._append(logs, pending.log_ends, parts, append)
            self._write(self._ledger.done())

    def _append(
        self,
        logs: Mapping[int, PartitionLog],
        log_ends: Mapping[int, int],
        parts: Mapping[int, Sequence[EncodedBatches]],
        append: Mapping[int, Callable[[EncodedBatches], None]],
    ) -> None:
        """Append what is not there yet, durably."""
        for number, log in logs.items():
            there = log.written - log_ends[number]
            try:
                missing = list(_behind(parts[number], there))
            except ValueError as error:
                raise CorruptFile(str(error), path=log.context.folder) from None
            for batches in missing:
                append[number](batches)
                log.commit.sync()  # what is in flight holds deliveries back

    @contextlib.contextmanager
    def _halting(self, logs: Collection[PartitionLog]) -> Iterator[None]:
        """What fails inside is for the next open to finish: until then nothing may come behind it."""
        try:
            yield
        except BaseException as error:
            if (
                self._ledger.pending is None
                and isinstance(error, StorageFull | OutOfResources)
                and not self._is_begun()
            ):
                raise  # no room for the document, or no descriptor
            for log in logs:
                log.halt(error)
            raise

    def _is_begun(self) -> bool:
        """Whether the document may say that something is pending."""
        try:
            return AdoptionLedger.read(self._files, self._store).pending is not None
        except OSError:
            return True

    def _logs(self, topic: str, numbers: Collection[int]) -> dict[int, PartitionLog]:
        return {number: self._log_of(topic, number) for number in sorted(numbers)}

    def _parts(self, prepared: Prepared) -> dict[int, list[EncodedBatches]]:
        """What is to be appended to each partition, verified. Raises CorruptFile."""
        parts: dict[int, list[EncodedBatches]] = {}
        for file in prepared.files:
            for section, batches in zip(file.sections, read_sections(self._files, self._store, file), strict=True):
                parts.setdefault(section.partition, []).append(batches)
        return parts

    def _write(self, ledger: AdoptionLedger) -> None:
        ledger.write(self._files, self._store)
        self._ledger = ledger

    def _sweep(self) -> None:
        """Remove what is adopted, and what was given up. Where that fails, the next one does it."""
        try:
            waiting = [each for each in handed_over(self._files, self._store) if not self._ledger.has(*_of(each[1]))]
            kept = _named(self._ledger, waiting)
            for name in _names(self._files, self._store):
                parsed = parse_prepared_file(name.removesuffix(TEMPORARY_SUFFIX))
                if parsed is None or name in kept:
                    continue
                given_up = parsed.created_ms < self._now_ms() - KEEP_MS
                if given_up or self._ledger.has(parsed.job, parsed.batch):
                    _unlink(self._files, self._store, name)
        except OSError as error:
            logger.warning("%s: what was prepared and is not needed could not be removed: %s", self._store, error)


# The job's side: without the store's lock.


def hand_over(files: Files, store: Path, prepared: Prepared, created_ms: int, attempt: str) -> None:
    """Leave it to the process that has the store open to adopt what a job prepared, durably."""
    name = prepared_file(prepared.job, prepared.batch, created_ms, attempt, HANDOVER)
    folder = adoption_folder(files, store)
    files.sync_folder(store)
    document.write(files, folder / name, HANDOVER_FORMAT, VERSION, prepared.to_json())


def handed_over(files: Files, store: Path) -> list[tuple[str, Prepared]]:
    """What was handed over and not swept since, by the names of the documents. Raises CorruptFile."""
    found = []
    for name in _names(files, store):
        parsed = parse_prepared_file(name)
        if parsed is None or parsed.suffix != HANDOVER:
            continue
        path = store / ADOPTION / name
        try:
            found.append((name, Prepared.of_json(document.read(files, path, HANDOVER_FORMAT, VERSION))))
        except FileNotFoundError:  # adopted and swept meanwhile
            continue
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise CorruptFile(f"the document holds something unknown: {error}", path=path) from error
    return found


def give_up(files: Files, store: Path, names: Collection[str]) -> None:
    """Remove files that a job prepared in vain, but for those of an adoption that was begun, and of a handover."""
    kept = _named(AdoptionLedger.read(files, store), handed_over(files, store))
    files.sync_folder(store)  # who wrote the document may not have come to that
    for name in names:
        if name not in kept:
            _unlink(files, store, name)


def forget_handovers(files: Files, store: Path, topic: str) -> None:
    """Of a topic that is deleted, durably. What is not handed over any more goes as what was given up does."""
    for name, prepared in handed_over(files, store):
        if prepared.topic == topic:
            _unlink(files, store, name)
    files.sync_folder(store / ADOPTION)  # whoever was killed in the middle of it has unlinked some


def _pending_of_json(body: dict[str, Any] | None) -> Pending | None:
    if body is None:
        return None
    log_ends = {int(number): whole(end) for number, end in body["log_ends"].items()}
    return Pending(prepared=Prepared.of_json(body["prepared"]), log_ends=log_ends)


def _behind(parts: Sequence[EncodedBatches], records: int) -> Iterator[EncodedBatches]:
    """The batches after the first `records`. ValueError where that is amid one, or negative."""
    for batches in parts:
        ends = batches.records.cumsum()
        row = int(ends.searchsorted(records, side="right"))
        start = int(ends[row - 1]) if row else 0
        if row < len(batches):
            if records != start:
                raise ValueError(f"the log ends {records - start} records after a batch that it was to adopt")
            yield batches.behind(row)
        records = max(records - int(ends[-1]), 0)


def _of(prepared: Prepared) -> tuple[str, int]:
    return prepared.job, prepared.batch


def _named(ledger: AdoptionLedger, waiting: Collection[tuple[str, Prepared]]) -> set[str]:
    """The files that a pending adoption or a handover needs."""
    needed = [prepared for _, prepared in waiting]
    if ledger.pending is not None:
        needed.append(ledger.pending.prepared)
    return {name for name, _ in waiting} | {file.name for prepared in needed for file in prepared.files}


def _names(files: Files, store: Path) -> list[str]:
    try:
        return files.names(store / ADOPTION)
    except FileNotFoundError:
        return []


def _unlink(files: Files, store: Path, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        files.unlink(store / ADOPTION / name)
