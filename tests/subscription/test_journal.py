"""The journal and its replay on a simulated disk."""

from __future__ import annotations

import errno
import threading

import pytest
from pyroaring import BitMap64

from afterlog.base.checksum import crc32c
from afterlog.base.config import ALWAYS, OS, Durability
from afterlog.base.errors import CorruptFile, OutOfResources, StorageFull, SubscriptionPoisoned
from afterlog.base.files import Files
from afterlog.base.names import journal_file
from afterlog.subscription import journal as journal_module
from afterlog.subscription.ack_set import AckSet
from afterlog.subscription.events import Acked, Event, Kind, Sought, encode
from afterlog.subscription.frames import encode_frame
from afterlog.subscription.journal import Journal
from afterlog.subscription.replay import Replayed, replay
from afterlog.subscription.state import Owner, SubscriptionState
from tests.campaigns.simulated_disk import SimulatedFiles, os_error
from tests.subscription.samples import EVERYTHING, HELD, OWNER, facts
from tests.support import PATH, Background, Calls, HeldFiles, content, eventually, flipped, killed, power_cut, with_file

LOG_END = 100


def begun(files: Files, durability: Durability = ALWAYS, number: int = 7, folder: bool = True) -> Journal:
    if folder:
        files.make_folder(PATH)
        files.sync_folder(PATH.parent)
    return Journal(files, PATH, durability, number, facts(SubscriptionState(AckSet())), 0)


def written(files: Files, events: tuple[Event, ...] = EVERYTHING, log_end_offset: int = LOG_END) -> Journal:
    journal = begun(files)
    for event in events:
        journal.append(event, log_end_offset)
    return journal


def read(disk: Files, log_end_offset: int = LOG_END, owner: Owner = OWNER) -> Replayed:
    replayed = replay(disk, PATH, owner, log_end_offset)
    assert replayed
    return replayed


def states(events: tuple[Event, ...] = EVERYTHING) -> list[bytes]:
    """After none of the events, after the first, …"""
    state = SubscriptionState(AckSet())
    found = [facts(state)]
    for event in events:
        state.apply(event)
        found.append(facts(state))
    return found


class TestReplay:
    def test_nothing(self) -> None:
        assert replay(SimulatedFiles(), PATH, OWNER, LOG_END) is None

    def test_what_was_written(self) -> None:
        disk = SimulatedFiles()
        journal = written(disk)
        replayed = read(killed(disk))
        assert (7, 0, 0) == (replayed.number, replayed.cut_bytes, replayed.given_up_bytes)
        assert states()[-1] == facts(replayed.state)
        journal.check()

    def test_the_bytes_of_leases_that_are_held(self) -> None:
        """As the first version wrote them that had any: what a later one writes differently, it still has to read."""
        disk = SimulatedFiles()
        journal = written(disk, HELD)
        assert 0xFF73F73B == crc32c(content(disk, journal.path))
        state = SubscriptionState(AckSet())
        for event in HELD:
            state.apply(event)
        assert 0xB1EE8F41 == crc32c(facts(state))

    def test_torn_at_every_byte(self) -> None:
        """A prefix of the events, and never an error."""
        disk = SimulatedFiles()
        journal = begun(disk)
        path, ends = journal.path, [journal.size]
        for event in EVERYTHING:
            journal.append(event, LOG_END)
            ends.append(journal.size)
        data, expected = content(disk, path), states()
        for size in range(ends[0], len(data) + 1):
            for tail in (b"", bytes(20), b"\xff" * 50, data[size - 40 : size])[: 1 if size % 7 else 4]:
                left = data[:size] + tail
                whole = sum(left[:end] == data[:end] for end in ends) - 1
                replayed = read(with_file(disk, path, left))
                assert expected[whole] == facts(replayed.state)
                assert len(left) - ends[whole] == replayed.cut_bytes

    def test_no_snapshot(self) -> None:
        disk = SimulatedFiles()
        journal = written(disk)
        data, end = content(disk, journal.path), len(content(disk, journal.path)) - journal.size
        for size in range(end):
            with pytest.raises(CorruptFile, match="no whole snapshot"):
                read(with_file(disk, journal.path, data[:size]))

    def test_every_bit_of_a_sealed_journal(self) -> None:
        """CorruptFile, but in the last frame, which says nothing."""
        disk = SimulatedFiles()
        journal = written(disk, EVERYTHING[:-1])
        sealed_from = journal.size
        journal.seal(LOG_END)
        data, expected = content(disk, journal.path), states()[-1]
        for position in range(len(data)):
            rotten = with_file(disk, journal.path, flipped(data, position))
            if position < sealed_from:
                with pytest.raises(CorruptFile) as caught:
                    read(rotten)
                assert journal.path == caught.value.path
                assert caught.value.position is not None
                assert caught.value.position <= position
            else:
                assert expected == facts(read(rotten).state)

    def test_rot_in_what_was_synced(self) -> None:
        disk = SimulatedFiles()
        journal = begun(disk)
        journal.append(EVERYTHING[0], LOG_END)
        rotten, end = journal.size - 1, journal.size
        journal.commit.sync()
        journal.append(EVERYTHING[1], LOG_END)
        data = content(disk, journal.path)
        with pytest.raises(CorruptFile, match="says that it was durable"):
            read(with_file(disk, journal.path, flipped(data, rotten)))
        replayed = read(with_file(disk, journal.path, flipped(data[:end], rotten)))
        assert states()[0] == facts(replayed.state)

    def test_a_hole_that_was_never_synced_is_torn(self) -> None:
        disk = SimulatedFiles()
        journal = begun(disk)
        start = journal.size
        journal.append(EVERYTHING[0], LOG_END)
        end = journal.size
        journal.append(EVERYTHING[1], LOG_END)
        data = content(disk, journal.path)
        holed = data[:start] + bytes(end - start) + data[end:]
        replayed = read(with_file(disk, journal.path, holed))
        assert states()[0] == facts(replayed.state)
        assert len(data) - start == replayed.cut_bytes

    def test_acks_ahead_of_the_log(self) -> None:
        disk = SimulatedFiles()
        journal = begun(disk)
        for number, event in enumerate(EVERYTHING):
            journal.append(event, 40 + number)
        for log_end in range(39, 40 + len(EVERYTHING)):
            replayed = read(killed(disk), log_end)
            assert states()[log_end - 39] == facts(replayed.state)
            assert (log_end < 39 + len(EVERYTHING)) == bool(replayed.given_up_bytes)

    def test_a_snapshot_ahead_of_the_log(self) -> None:
        disk = SimulatedFiles()
        begun(disk).begin_anew(facts(SubscriptionState(AckSet(3))), 5)
        with pytest.raises(CorruptFile, match="of a log of 5 records or more, but there are 4"):
            read(disk, 4)
        begun(disk, number=9, folder=False).begin_anew(facts(SubscriptionState(AckSet(6))), 5)
        with pytest.raises(CorruptFile, match="its position 6 lies beyond"):
            read(disk, 5)

    def test_another_ones(self) -> None:
        disk = SimulatedFiles()
        path = written(disk).path
        with pytest.raises(CorruptFile, match="is not one of"):
            read(disk, owner=Owner("mail-1", "sender"))
        disk.rename(path, PATH / journal_file(8))
        with pytest.raises(CorruptFile, match="no whole snapshot"):
            read(disk)

    @pytest.mark.parametrize("kind", [1, 3, 99])
    def test_a_frame_that_cannot_be(self, kind: int) -> None:
        disk = SimulatedFiles()
        journal = written(disk, EVERYTHING[:1])
        body = encode(Sought(3))[1]
        forged = encode_frame(7, journal.size, kind, body, log_end_offset=0, durable=0)  # type: ignore[arg-type]
        with pytest.raises(CorruptFile, match="a frame that cannot be") as caught:
            read(with_file(disk, journal.path, content(disk, journal.path) + forged))
        assert journal.size == caught.value.position

    def test_json_that_is_nested_too_deeply(self) -> None:
        disk = SimulatedFiles()
        journal = written(disk, EVERYTHING[:1])
        deep = b"[" * 100_000
        frame = encode_frame(7, journal.size, Kind.INTENDED, deep, log_end_offset=0, durable=0)
        with pytest.raises(CorruptFile, match="nested too deeply"):
            read(with_file(disk, journal.path, content(disk, journal.path) + frame))
        snapshot = encode_frame(7, 0, Kind.SNAPSHOT, deep + b"\n", log_end_offset=0, durable=0)
        with pytest.raises(CorruptFile, match="nested too deeply"):
            read(with_file(disk, journal.path, snapshot))


class TestBeginningAnew:
    def test_the_newest_counts(self) -> None:
        disk = SimulatedFiles()
        journal = written(disk)
        old = content(disk, journal.path)
        journal.begin_anew(states()[-1], LOG_END)
        assert [journal_file(8)] == disk.names(PATH)
        journal.append(Acked(BitMap64([0])), LOG_END)
        for left in (killed(disk), with_file(disk, PATH / journal_file(7), old)):
            replayed = read(left)
            assert (8, 7) == (replayed.number, replayed.state.counts.acked)
        journal.check()

    def test_it_stays_below_the_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(journal_module, "LIMIT_BYTES", 300)
        journal = begun(SimulatedFiles())
        assert not journal.overgrown
        while not journal.overgrown:
            before = journal.size
            journal.append(Sought(1), 1)
        assert before <= 600 < journal.size + 300
        journal.postpone()
        assert not journal.overgrown

    def test_no_room(self) -> None:
        disk, calls = SimulatedFiles(), Calls()
        files = HeldFiles(disk, calls)
        journal = written(files)
        for operation in ("create", "append", "rename"):
            calls.fail(operation, ".tmp", os_error(errno.ENOSPC, PATH))
            with pytest.raises(StorageFull):
                journal.begin_anew(states()[-1], LOG_END)
            journal.append(Sought(operation.count("e")), LOG_END)
            journal.check()
            assert (7, operation.count("e")) == (read(disk).number, read(disk).state.position)
        journal.begin_anew(states()[-1], LOG_END)
        assert 8 == read(disk).number

    @pytest.mark.parametrize("operation", ["create", "sync_folder", "open"])
    def test_no_descriptor(self, operation: str) -> None:
        """The successor may have its name already: it goes before anything is written that it would not know of."""
        disk, calls = SimulatedFiles(), Calls()
        journal = written(HeldFiles(disk, calls))
        journal.commit.sync()
        before = states()[-1]
        calls.failing = lambda made, path: os_error(errno.EMFILE, path) if made in (operation, "sync_folder") else None
        with pytest.raises(OutOfResources):
            journal.begin_anew(before, LOG_END)
        for left in (killed(disk), power_cut(disk)):
            assert before == facts(read(left).state)
        for _ in range(2 if operation != "create" else 0):
            with pytest.raises(OutOfResources):
                journal.append(Sought(1), LOG_END)
            assert before == facts(read(killed(disk)).state)
        calls.failing = lambda made, path: None
        journal.append(Sought(1), LOG_END)
        journal.commit.sync()
        journal.check()
        for left in (killed(disk), power_cut(disk)):
            assert (7, 1) == (read(left).number, read(left).state.position)
        journal.begin_anew(states()[-1], LOG_END)
        assert 8 == read(disk).number

    @pytest.mark.parametrize("operation", ["sync", "rename", "sync_folder"])
    def test_a_failure_poisons(self, operation: str) -> None:
        """Nobody knows which of the two journals will be found: no promise may rest on either."""
        disk, calls = SimulatedFiles(), Calls()
        journal = written(HeldFiles(disk, calls))
        journal.commit.sync()
        calls.fail(operation, "" if operation == "sync_folder" else ".tmp", os_error(errno.EIO, PATH))
        with pytest.raises(SubscriptionPoisoned):
            journal.begin_anew(states()[-1], LOG_END)
        with pytest.raises(SubscriptionPoisoned):
            journal.append(Sought(1), LOG_END)
        journal.commit.sync_if_behind()
        journal.close()
        for left in (killed(disk), power_cut(disk)):
            assert states()[-1] == facts(read(left).state)


class TestFailures:
    def test_a_full_disk(self) -> None:
        disk, calls = SimulatedFiles(), Calls()
        journal = written(HeldFiles(disk, calls), EVERYTHING[:2])
        calls.fail("append", "", 17)
        with pytest.raises(StorageFull):
            journal.append(EVERYTHING[2], LOG_END)
        journal.check()
        journal.append(EVERYTHING[2], LOG_END)
        assert states()[3] == facts(read(disk).state)

    def test_a_write_that_cannot_be_taken_back(self) -> None:
        disk, calls = SimulatedFiles(), Calls()
        journal = written(HeldFiles(disk, calls), EVERYTHING[:2])
        calls.failing = lambda made, path: os_error(errno.ENOSPC, path) if made in ("append", "truncate") else None
        with pytest.raises(SubscriptionPoisoned):
            journal.append(EVERYTHING[2], LOG_END)
        assert journal.commit.poisoned

    def test_a_failed_sync(self) -> None:
        disk, calls = SimulatedFiles(), Calls()
        journal = written(HeldFiles(disk, calls), EVERYTHING[:2])
        calls.fail("sync", "", os_error(errno.EIO, PATH))
        with pytest.raises(SubscriptionPoisoned, match="close and reopen"):
            journal.commit.committed(journal.written)
        with pytest.raises(SubscriptionPoisoned):
            journal.commit.committed(journal.written)
        assert 2 == calls.count("sync"), "that of the beginning, and the one that failed"


class TestDurability:
    @pytest.mark.parametrize(("durability", "syncs"), [(ALWAYS, 1), (Durability.interval(50), 0), (OS, 0)])
    def test_what_an_ack_waits_for(self, durability: Durability, syncs: int) -> None:
        calls = Calls()
        journal = begun(HeldFiles(SimulatedFiles(), calls), durability)
        before = calls.count("sync")
        journal.append(EVERYTHING[0], LOG_END)
        journal.commit.committed(journal.written)
        journal.commit.committed(journal.written)
        assert syncs == calls.count("sync") - before
        journal.commit.sync_if_behind()
        journal.commit.sync_if_behind()
        assert 1 == calls.count("sync") - before

    def test_one_sync_for_all_who_wait(self) -> None:
        disk, calls = SimulatedFiles(), Calls()
        files = HeldFiles(disk, calls)
        journal = begun(files)
        before, gate = calls.count("sync"), files.hold("sync", journal.path.name)
        lock = threading.Lock()

        def acked(event: Event) -> None:
            with lock:
                journal.append(event, LOG_END)
                position = journal.written
            journal.commit.committed(position)

        first = Background(lambda: acked(EVERYTHING[0]))
        gate.came()
        size = journal.size
        others = [Background(lambda: acked(Sought(1))) for _ in range(3)]
        eventually(lambda: journal.size >= size + 3 * 40)
        gate.open()
        for each in (first, *others):
            each.answer()
        assert 2 == calls.count("sync") - before
        assert 1 == read(power_cut(disk)).state.position
