"""The file of producers: made at checkpoints and rolls, made anew where it is not as it was; what expires."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.config import Config
from afterlog.base.errors import CorruptFile, OutOfOrderSequence, StorageFull
from afterlog.base.names import CHECKPOINTS, LOG, is_producer_file, producer_file, segment_file
from afterlog.index.producer_states import ProducerStates
from afterlog.log import producer_files
from afterlog.log.checkpoints import CheckpointFile, ProducersMark
from afterlog.offline.dump import dump
from afterlog.offline.locked_store import OfflineStore
from afterlog.records.batch import Record, encode_batch
from afterlog.records.header import HEADER_BYTES, BatchHeader, with_crc
from afterlog.records.producer_sequence import ProducerSequence
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, PATH, Calls, HeldFiles, content, flipped, killed, open_small, restored, with_file

pytestmark = pytest.mark.usefixtures("quiet")
FOLDER = PATH / "t-0"
DAY_MS = 86_400_000


class Numbered:
    """A partition, and how many records each producer has numbered."""

    def __init__(self, disk: SimulatedFiles | None = None, sent: dict[int, int] | None = None, **config: Any) -> None:
        self.calls = Calls()
        self.disk = disk or SimulatedFiles()
        self.clock = ManualClock(NOW_MS)
        self.files = HeldFiles(self.disk, self.calls)
        self.config = config
        self.store = open_small(self.files, self.clock, **config)
        self.log = self.store.create_topic("t").partition(0).log
        self.sent = {} if sent is None else dict(sent)

    def send(self, producer_id: int = 7) -> int:
        sequence = self.sent.get(producer_id, 0)
        offset = self.again(producer_id, sequence)
        self.sent[producer_id] = sequence + 1
        return offset

    def again(self, producer_id: int, sequence: int) -> int:
        sent = ProducerSequence(producer_id, 0, sequence)
        return self.store.send("t", b"v", partition=0, sequence=sent).offset

    @property
    def mark(self) -> ProducersMark:
        mark = self.log.checkpoints.current.producers
        assert mark is not None
        return mark

    def names(self) -> list[str]:
        return [name for name in self.disk.names(FOLDER) if is_producer_file(name)]

    def reopened(self, disk: SimulatedFiles | None = None) -> Numbered:
        """As after a kill."""
        return Numbered(disk or killed(self.disk), self.sent, **self.config)

    def knows(self) -> None:
        """The last record of each producer is known, and what comes next is taken."""
        end = self.log.written
        for producer_id, sequence in self.sent.items():
            assert end > self.again(producer_id, sequence - 1)
        assert end == self.log.written
        for producer_id in self.sent:
            assert self.log.written == self.send(producer_id)
        self.store.check()


@pytest.fixture
def numbered() -> Iterator[Numbered]:
    numbered = Numbered()
    yield numbered
    numbered.store.check()
    numbered.store.close()


class TestSaved:
    def test_at_a_checkpoint_and_a_roll(self, numbered: Numbered) -> None:
        numbered.send(7)
        assert [] == numbered.names()
        numbered.log.checkpoint()
        assert [producer_file(1)] == numbered.names()
        numbered.send(8)
        numbered.log.roll()
        assert [producer_file(2)] == numbered.names()
        assert (0, 2, 2) == (numbered.mark.since, numbered.mark.upto, numbered.mark.file and numbered.mark.file.offset)
        numbered.send(7)
        again = numbered.reopened()
        with patch.object(producer_files, "_made_anew", side_effect=AssertionError("made anew")):
            again.reopened().knows()

    def test_where_nobody_numbers_nothing_is_done(self, numbered: Numbered) -> None:
        """No file, no row in the checkpoints, no state: nor by the one who looks what it would number next."""
        numbered.store.send("t", b"plain")
        assert 0 == numbered.log.next_sequence(7, 0)
        numbered.log.checkpoint()
        numbered.store.send("t", b"plain")
        numbered.log.roll()
        assert [] == numbered.names()
        assert numbered.log.checkpoints.current.producers is None
        again = numbered.reopened()
        assert again.log.version.producers is None
        assert b"producers" not in content(numbered.disk, FOLDER / CHECKPOINTS)

    def test_what_has_not_changed_is_not_written_again(self, numbered: Numbered) -> None:
        numbered.send()
        numbered.log.checkpoint()
        numbered.store.send("t", b"plain")
        made = numbered.calls.count("create")
        numbered.log.checkpoint()
        assert [producer_file(1)] == numbered.names()
        assert 2 == numbered.mark.upto
        assert not [name for operation, name in numbered.calls.made if producer_file(2) in name], made
        numbered.reopened().knows()

    def test_while_appends_go_on(self, numbered: Numbered) -> None:
        """What comes between the steps of a checkpoint is in the next file."""
        numbered.send()
        point = numbered.log._maintenance.recovery_point
        moment = point.begin()
        assert moment is not None
        numbered.send()
        numbered.store.sync()
        stored = point.store(moment)
        assert stored is not None
        numbered.send(8)
        numbered.log._maintenance.finish_checkpoint(stored)
        numbered.reopened().knows()
        numbered.log.checkpoint()
        assert [producer_file(3)] == numbered.names()
        numbered.reopened().knows()

    def test_no_room(self, numbered: Numbered) -> None:
        """The file of before stays, and what is in memory is stored the next time."""
        numbered.send()
        numbered.log.checkpoint()
        numbered.send(8)
        for suffix in (f"{producer_file(2)}.tmp", f"{CHECKPOINTS}.tmp"):
            numbered.calls.fail("create", suffix, StorageFull("no room", path=PATH))
            with pytest.raises(StorageFull):
                numbered.log.checkpoint()
            numbered.reopened().knows()
        numbered.calls.fail("create", "nothing", 0)
        numbered.log.checkpoint()
        assert [producer_file(2)] == numbered.names()
        numbered.reopened().knows()

    def test_a_move_that_nobody_finished(self, numbered: Numbered) -> None:
        """What was stored is taken up by the next one, and no file is left over."""
        numbered.send()
        point = numbered.log._maintenance.recovery_point
        moment = point.begin()
        assert moment is not None
        numbered.store.sync()
        assert point.store(moment) is not None
        numbered.send()
        numbered.log.checkpoint()
        assert [producer_file(2)] == numbered.names()
        numbered.reopened().knows()

    def test_begun_anew_in_between(self, numbered: Numbered) -> None:
        numbered.send()
        numbered.log.checkpoint()
        numbered.send(8)
        point = numbered.log._maintenance.recovery_point
        moment = point.begin()
        assert moment is not None
        numbered.store.sync()
        stored = point.store(moment)
        numbered.log._dirty.is_set = True  # somebody was interrupted
        numbered.send(9)
        assert stored is not None
        numbered.log._maintenance.finish_checkpoint(stored)
        numbered.log.checkpoint()
        assert [producer_file(3)] == numbered.names()
        numbered.reopened().knows()


class TestMadeAnew:
    @pytest.fixture
    def three(self, numbered: Numbered) -> Numbered:
        """Two in sealed segments and the file, one in the tail."""
        numbered.send(7)
        numbered.log.roll()
        numbered.send(8)
        numbered.send(7)
        numbered.log.roll()
        numbered.send(9)
        numbered.send(7)
        return numbered

    def damaged(self, three: Numbered) -> Iterator[SimulatedFiles]:
        path = FOLDER / three.names()[0]
        data = content(three.disk, path)
        yield with_file(three.disk, path, None)
        yield with_file(three.disk, path, data[:-1])
        yield with_file(three.disk, path, flipped(data, 30))
        yield with_file(three.disk, path, b"")

    def test_missing_short_or_rotten(self, three: Numbered) -> None:
        for disk in self.damaged(three):
            again = three.reopened(disk)
            assert three.names() == again.names()
            with patch.object(producer_files, "_made_anew", side_effect=AssertionError("made anew")):
                again.reopened().knows()
            again.knows()

    def test_planted_bug_is_caught(self, three: Numbered) -> None:
        """A recovery that takes a missing file for one of nobody forgets who is in it."""
        disk = next(self.damaged(three))
        with patch.object(producer_files, "_made_anew", lambda *_: ProducerStates()):
            again = three.reopened(disk)
            with pytest.raises(AssertionError, match="again"):
                again.knows()

    def test_stale(self, three: Numbered) -> None:
        """Checkpoints that say that the file is of another point: as an older version leaves them, or repair."""
        checkpoints = CheckpointFile.open(three.disk, FOLDER / CHECKPOINTS)
        checkpoints.update(producers=three.mark.forgotten())
        again = three.reopened()
        again.knows()
        assert again.mark.upto == 3

    def test_a_file_of_another_life(self, three: Numbered) -> None:
        """Of the same name, and intact."""
        other = Numbered()
        for _ in range(3):
            other.send(5)
        other.log.checkpoint()
        path = FOLDER / producer_file(3)
        three.reopened(with_file(three.disk, path, content(other.disk, path))).knows()
        other.store.close()

    def test_leftovers_go(self, three: Numbered) -> None:
        disk = with_file(three.disk, FOLDER / producer_file(2), b"old")
        assert [producer_file(3)] == three.reopened(with_file(disk, FOLDER / producer_file(99), b"new")).names()

    def test_of_a_tail_that_is_torn(self, three: Numbered) -> None:
        path = FOLDER / segment_file(3, LOG)
        three.sent[7] -= 1
        three.reopened(with_file(three.disk, path, content(three.disk, path)[:-1])).knows()


class TestExpired:
    def test_who_appends_nothing_for_long(self, numbered: Numbered) -> None:
        """Not before the time is over; then at the next checkpoint."""
        numbered.send(7)
        numbered.clock.advance(DAY_MS)
        numbered.send(8)
        numbered.log.checkpoint()
        assert 0 == numbered.again(7, 0)
        numbered.clock.advance(2_000)
        numbered.store.send("t", b"plain")
        numbered.log.checkpoint()
        assert [8] == [*(numbered.log.version.producers or ProducerStates()).ids()]
        with pytest.raises(OutOfOrderSequence, match="not known here") as refused:
            numbered.again(7, 1)
        assert refused.value.expected is None
        del numbered.sent[7]
        again = numbered.reopened()
        again.knows()

    def test_all_of_them(self, numbered: Numbered) -> None:
        numbered.send(7)
        numbered.log.checkpoint()
        numbered.clock.advance(DAY_MS + 2_000)
        numbered.send(8)
        numbered.log.checkpoint()
        assert 1 == len(numbered.log.version.producers or ())
        assert [producer_file(2)] == numbered.names()

    def test_a_shorter_time(self) -> None:
        numbered = Numbered(producer_id_expiration_ms=10)
        numbered.send(7)
        numbered.clock.advance(5_000)
        numbered.store.send("t", b"plain")
        numbered.log.checkpoint()
        assert [] == numbered.names()
        assert 0 == len(numbered.log.version.producers or ())
        numbered.store.check()
        again = numbered.reopened()
        assert 2 == again.again(7, 0)
        again.store.check()

    def test_the_default_is_a_day(self) -> None:
        assert DAY_MS == Config().producer_id_expiration_ms


class TestForeignBatches:
    def batch(self, sequence: int, producer_id: int = 7, records: int = 2, epoch: int = 0) -> bytes:
        data = encode_batch([Record(value=b"%d" % row, timestamp=NOW_MS) for row in range(records)])
        header = BatchHeader.read(memoryview(data), 0)
        header = header._replace(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
        return with_crc(header, data[HEADER_BYTES:])

    def test_those_at_the_front_are_not_appended_again(self, numbered: Numbered) -> None:
        append = numbered.store.topic("t").partition(0).append
        assert 0 == append(self.batch(0))
        assert 0 == append(self.batch(0))
        assert 0 == append(self.batch(0) + self.batch(2))
        assert 4 == numbered.log.written
        assert 2 == append(self.batch(2) + self.batch(0, 8) + self.batch(4))
        assert 8 == numbered.log.written
        for data in (self.batch(7), self.batch(5), self.batch(6) + self.batch(4), self.batch(0, 9) + self.batch(0, 8)):
            with pytest.raises(OutOfOrderSequence):
                append(data)
        assert 8 == numbered.log.written
        numbered.sent |= {7: 6, 8: 2}
        numbered.reopened().knows()

    def test_beside_batches_that_nobody_numbers(self, numbered: Numbered) -> None:
        append = numbered.store.topic("t").partition(0).append
        plain = encode_batch([Record(value=b"plain", timestamp=NOW_MS)])
        assert 0 == append(plain + self.batch(0) + plain)
        with pytest.raises(OutOfOrderSequence):
            append(plain + self.batch(0))
        assert 4 == append(self.batch(2))
        numbered.sent[7] = 4
        numbered.reopened().knows()


class TestElsewhere:
    def test_in_a_backup(self, numbered: Numbered) -> None:
        numbered.send(7)
        numbered.log.checkpoint()
        numbered.send(8)
        made = numbered.store.backup("/backups")
        copy = restored(numbered.disk, made)
        assert producer_file(1) in copy.names(FOLDER)
        with patch.object(producer_files, "_made_anew", side_effect=AssertionError("made anew")):
            numbered.reopened(copy).knows()

    def test_verify_and_repair(self, numbered: Numbered) -> None:
        numbered.send(7)
        numbered.store.close()
        path = FOLDER / producer_file(1)
        disk = with_file(numbered.disk, path, flipped(content(numbered.disk, path), 30))
        with OfflineStore(PATH, disk, numbered.clock) as store:
            [finding] = store.verify()
            assert (path, "fails its checksum") == (finding.path, finding.message)
            store.apply(store.plan())
        numbered.reopened(disk).knows()
        numbered.store = numbered.reopened().store

    def test_without_checkpoints(self, numbered: Numbered) -> None:
        """Repair finds in the logs that there are producers."""
        numbered.send(7)
        numbered.log.roll()
        numbered.send(8)
        disk = with_file(numbered.disk, FOLDER / CHECKPOINTS, None)
        with OfflineStore(PATH, disk, numbered.clock) as store:
            store.apply(store.plan())
        numbered.reopened(disk).knows()

    def test_repair_that_cuts(self, numbered: Numbered) -> None:
        """What was cut is not known any more, and what is left is."""
        numbered.send(7)
        numbered.send(7)
        numbered.log.checkpoint()
        numbered.store.close()
        path = FOLDER / segment_file(0, LOG)
        disk = with_file(numbered.disk, path, flipped(content(numbered.disk, path), -1))
        with OfflineStore(PATH, disk, numbered.clock) as store:
            store.apply(store.plan())
        numbered.sent[7] = 1
        numbered.reopened(disk).knows()
        numbered.store = numbered.reopened().store

    def test_dumped(self, numbered: Numbered) -> None:
        for _ in range(2):
            numbered.send(7)
        numbered.log.checkpoint()
        [row] = dump(numbered.disk, FOLDER / producer_file(2))
        ranges = [{"offset": 0, "records": 2}]
        told = {"producer_id": 7, "producer_epoch": 0, "next_sequence": 2, "last": NOW_MS, "ranges": ranges}
        assert told == row
        rows = [*dump(numbered.disk, FOLDER / segment_file(0, LOG))]
        assert [(7, 0, 0), (7, 0, 1)] == [(row["producer_id"], row["producer_epoch"], row["sequence"]) for row in rows]
        path = FOLDER / producer_file(2)
        rotten = with_file(numbered.disk, path, flipped(content(numbered.disk, path), 30))
        with pytest.raises(CorruptFile, match="checksum"):
            [*dump(rotten, path)]
