from __future__ import annotations

import errno
import logging
import os
import random
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afterlog.base.errors import CorruptRemote, RemoteMissing, RemoteUnavailable
from afterlog.base.files import Bytes, Data, Files, OsFiles
from afterlog.tier.directory_store import DirectoryStore
from afterlog.tier.page_cache import PageCache
from tests import campaigns
from tests.campaigns.failing_files import FailingFiles
from tests.campaigns.simulated_disk import Image, SimulatedFiles
from tests.support import Background, Calls, Gate, HeldFiles, eventually
from tests.tier.faulty_remote_store import Fault, FaultyRemoteStore, fault_at, hold

SIZE = 10_000
CACHE = Path("/cache")
Ranges = list[tuple[int, int]]


@cache
def content(key: str) -> Bytes:
    return np.random.default_rng([*key.encode()]).integers(0, 256, SIZE, dtype=np.uint8)


def remote_of(*keys: str) -> DirectoryStore:
    remote = DirectoryStore(SimulatedFiles(Image(["/remote"])), Path("/remote"))
    for key in keys:
        remote.put(key, content(key))
    return remote


class Reader:
    """A cache over objects, whose answers are held against the bytes that were put."""

    def __init__(
        self, budget_bytes: int = 100_000, page_bytes: int = 100, files: Files | None = None, path: Path = CACHE
    ) -> None:
        self.remote: DirectoryStore | FaultyRemoteStore = remote_of("a", "b")
        self.cache = PageCache(files or SimulatedFiles(), path, budget_bytes, page_bytes)

    def read(self, *ranges: tuple[int, int], key: str = "a") -> None:
        starts, stops = np.array(ranges, np.int64).reshape(-1, 2).T
        expected = b"".join(content(key)[start:stop].tobytes() for start, stop in ranges)
        assert expected == self.cache.read(self.remote, key, SIZE, starts, stops).tobytes()

    def fetched(self, *ranges: tuple[int, int]) -> tuple[int, int]:
        """Requests and pages that the ranges cost."""
        before = self.cache.counts()
        self.read(*ranges)
        after = self.cache.counts()
        pages = -(-(after.fetched_bytes - before.fetched_bytes) // self.cache.page_bytes)
        return after.requests - before.requests, pages


class SizedFiles(SimulatedFiles):
    """Notes how far a scratch file was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0

    def scratch(self, path: Path):  # type: ignore[no-untyped-def]
        file = super().scratch(path)
        pwrite = file.pwrite

        def noted(data: Data, position: int) -> None:
            self.written = max(self.written, position + len(data))
            pwrite(data, position)

        file.pwrite = noted  # type: ignore[method-assign]
        return file


bounds = st.integers(0, SIZE)
near = st.builds(lambda start, size: (start, min(start + size, SIZE)), bounds, st.integers(0, 300))
anywhere = st.builds(lambda one, other: (min(one, other), max(one, other)), bounds, bounds)
calls = st.lists(st.tuples(st.sampled_from("ab"), st.lists(st.one_of(near, near, anywhere), max_size=6)), max_size=12)


class TestReads:
    @given(calls, st.sampled_from([37, 100, 1_000, SIZE, 20_000]), st.integers(0, 12), st.integers(0, 99))
    @settings(max_examples=campaigns.examples(50), deadline=None)
    def test_what_is_read_is_what_was_put(
        self, calls: list[tuple[str, Ranges]], page_bytes: int, slots: int, odd: int
    ) -> None:
        files = SizedFiles()
        reader = Reader(slots * page_bytes + odd % page_bytes, page_bytes, files)
        for key, ranges in calls:
            reader.read(*ranges, key=key)
            reader.cache.check()
        counts = reader.cache.counts()
        assert max(files.written, counts.held_bytes) <= slots * page_bytes
        assert sum(stop - start for _, ranges in calls for start, stop in ranges) == counts.read_bytes

    def test_it_is_fetched_once(self) -> None:
        reader = Reader()
        assert (1, 4) == reader.fetched((150, 420), (333, 334))
        assert (0, 0) == reader.fetched((399, 400), (100, 400), (150, 420))
        counts = reader.cache.counts()
        assert (1, 400, 842) == (counts.requests, counts.fetched_bytes, counts.read_bytes)
        assert (4, 400, 0) == (counts.hits, counts.held_bytes, counts.errors)

    def test_on_a_real_disk(self, tmp_path: Path) -> None:
        reader = Reader(500, 100, OsFiles(), tmp_path / "cache")
        for _ in range(3):
            reader.read((0, 350), (20, 30), (9_900, SIZE))
        assert [] == os.listdir(tmp_path)
        reader.cache.close()
        reader.read((0, 350))

    def test_much_is_read_in_groups_of_pages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("afterlog.tier.page_cache._FLIGHT_BYTES", 1_000)
        reader = Reader(budget_bytes=300)
        asked: list[int] = []
        get_ranges = reader.remote.get_ranges

        def noted(key: str, ranges: Ranges, gap: int) -> list[Bytes]:
            asked.append(sum(stop - start for start, stop in ranges))
            return get_ranges(key, ranges, gap)

        reader.remote.get_ranges = noted  # type: ignore[method-assign, assignment]
        reader.read((5_000, 9_000), (0, 5_100))
        assert [1_000] * 9 == asked
        assert 300 == reader.cache.counts().held_bytes

    def test_what_was_used_longest_ago_goes(self) -> None:
        reader = Reader(budget_bytes=300)
        for page in (10, 20, 30, 10, 40):
            reader.read((page * 100 + 1, page * 100 + 2))
        assert (0, 0) == reader.fetched((1_001, 1_002), (3_001, 3_002), (4_001, 4_002))
        assert (1, 1) == reader.fetched((2_001, 2_002))

    @pytest.mark.parametrize("outside", [(-1, 3), (0, SIZE + 1), (5, 4)])
    def test_what_lies_outside_is_a_mistake(self, outside: tuple[int, int]) -> None:
        with pytest.raises(ValueError, match="do not lie in"):
            Reader().read(outside)


class TestReadAhead:
    def test_who_goes_on_gets_twice_as_much_each_time(self) -> None:
        reader = Reader(budget_bytes=100_000)
        costs = [reader.fetched((start, start + 50)) for start in range(0, 3_200, 50)]
        assert [(1, 1), (1, 2), (1, 4), (1, 8), (1, 16), (1, 32)] == [cost for cost in costs if cost != (0, 0)]

    def test_no_further_than_the_end_and_a_quarter_of_the_budget(self) -> None:
        reader = Reader(budget_bytes=1_600)
        for start in range(0, SIZE, 50):
            assert reader.fetched((start, start + 50))[1] <= 4
        assert SIZE == reader.cache.counts().fetched_bytes

    def test_who_looks_here_and_there_gets_a_page(self) -> None:
        reader = Reader()
        generator = random.Random(1)
        for page in generator.sample(range(100), 100):
            assert (1, 1) == reader.fetched((page * 100 + 1, page * 100 + 60))

    def test_it_stops_at_what_is_there(self) -> None:
        reader = Reader()
        for start in (0, 100, 501):
            reader.read((start, start + 10))
        assert (1, 2) == reader.fetched((300, 310))  # 300 and 400, no more: 500 is cached


class TestThreads:
    def test_many_read_through_few_slots(self) -> None:
        reader = Reader(budget_bytes=600)

        def run(seed: int) -> None:
            generator = random.Random(seed)
            for _ in range(150):
                start = generator.randrange(0, SIZE - 700)
                reader.read((start, start + generator.randrange(700)), key=generator.choice("ab"))
                if generator.random() < 0.05:
                    reader.cache.forget(generator.choice("ab"))
                reader.cache.check()

        for each in [Background(partial(run, seed)) for seed in range(4)]:
            each.answer()
        assert reader.cache.counts().held_bytes <= 600

    @pytest.mark.parametrize("fault", [None, Fault.BEFORE])
    def test_who_misses_what_another_fetches_waits_for_it(self, fault: Fault | None) -> None:
        """And tries for itself where the other fails."""
        reader, gate = Reader(), Gate()
        if fault is not None:
            reader.remote = FaultyRemoteStore(reader.remote, fault_at(1, fault))
        reader.remote = FaultyRemoteStore(reader.remote, hold("get_ranges", gate))
        first = Background(lambda: reader.read((100, 300)))
        gate.came()
        second = Background(lambda: reader.read((200, 300)))
        eventually(lambda: reader.cache.counts().hits == 1)
        gate.open()
        second.answer()
        if fault is None:
            first.answer()
            assert 200 == reader.cache.counts().fetched_bytes
        else:
            with pytest.raises(RemoteUnavailable):
                first.answer()
            reader.read((0, 500))
        reader.cache.check()

    def test_what_was_forgotten_while_it_came_is_not_kept(self) -> None:
        reader, gate = Reader(), Gate()
        reader.remote = FaultyRemoteStore(reader.remote, hold("get_ranges", gate))
        first = Background(lambda: reader.read((0, 100)))
        gate.came()
        reader.cache.forget("a")
        reader.read((0, 100))
        gate.open()
        first.answer()
        reader.cache.check()
        assert (100, 200) == (reader.cache.counts().held_bytes, reader.cache.counts().fetched_bytes)

    @pytest.mark.parametrize("how", ["forget", "close", "evict"])
    def test_what_is_being_read_stays_where_it_is(self, how: str) -> None:
        files = HeldFiles(SimulatedFiles(), Calls())
        reader = Reader(200, 100, files)
        reader.read((0, 1))
        gate = files.hold("scratch pread", "cache")
        slow = Background(lambda: reader.read((0, 100)))
        gate.came()
        if how == "evict":
            reader.read((1_000, 3_000))
        else:
            getattr(reader.cache, how)(*["a"] * (how == "forget"))
            reader.read((1_000, 3_000), key="b")
        fetched_bytes = reader.cache.counts().fetched_bytes
        gate.open()
        slow.answer()
        assert fetched_bytes == reader.cache.counts().fetched_bytes
        reader.cache.check()
        reader.read((0, 3_000))


class TestFaults:
    def test_a_full_disk_makes_the_cache_small_and_is_told_once(self, caplog: pytest.LogCaptureFixture) -> None:
        calls = Calls()
        reader = Reader(1_000, 100, FailingFiles(SimulatedFiles(), calls))
        reader.read((0, 250))
        calls.fail("scratch pwrite", "cache", OSError(errno.ENOSPC, "full"), times=2)
        with caplog.at_level(logging.WARNING):
            reader.read((1_000, 2_000))
            reader.read((3_000, 4_000))
        reader.cache.check()
        assert 0 < reader.cache.counts().held_bytes <= 300
        assert (0, 0) == reader.fetched((3_901, 4_000))
        assert 1 == len(caplog.messages)
        assert "no room left" in caplog.text

    def test_a_disk_that_is_full_from_the_start(self, caplog: pytest.LogCaptureFixture) -> None:
        calls = Calls()
        calls.fail("scratch", "cache", OSError(errno.ENOSPC, "full"))
        reader = Reader(1_000, 100, FailingFiles(SimulatedFiles(), calls))
        for _ in range(2):
            assert (1, 3) == reader.fetched((0, 250))
        assert ([0], 1) == ([reader.cache.counts().held_bytes], len(caplog.messages))
        reader.cache.close()

    def test_a_page_that_cannot_be_read_back_is_fetched_anew(self) -> None:
        calls = Calls()
        reader = Reader(1_000, 100, FailingFiles(SimulatedFiles(), calls))
        reader.read((0, 300))
        calls.fail("scratch pread", "cache", OSError(errno.EIO, "Input/output error"))
        assert (1, 1) == reader.fetched((110, 190), (20, 30), (120, 130))
        reader.cache.check()
        assert (1, 1) == reader.fetched((0, 300))
        assert (0, 0) == reader.fetched((0, 300))

    def test_what_the_storage_raises_passes_and_leaves_nothing(self) -> None:
        reader = Reader()
        whole = reader.remote
        reader.remote = FaultyRemoteStore(whole, fault_at(1, Fault.BEFORE))
        with pytest.raises(RemoteUnavailable):
            reader.read((0, 100))
        with pytest.raises(RemoteMissing):
            reader.cache.read(whole, "c", SIZE, np.array([0]), np.array([1]))
        reader.cache.check()
        assert (0, 2) == (reader.cache.counts().held_bytes, reader.cache.counts().errors)
        reader.read((0, 100))

    @pytest.mark.parametrize("size", [SIZE + 100, 2**31])
    def test_an_object_that_is_shorter_than_it_should_be(self, size: int) -> None:
        reader = Reader()
        with pytest.raises(CorruptRemote, match=r"\(a at byte"):
            reader.cache.read(reader.remote, "a", size, np.array([SIZE - 50]), np.array([SIZE + 50]))

    def test_an_answer_that_is_too_short(self) -> None:
        reader = Reader()
        reader.remote = FaultyRemoteStore(reader.remote, fault_at(1, Fault.TRUNCATED))
        with pytest.raises(CorruptRemote, match="199 bytes, where 200 were asked for") as caught:
            reader.read((300, 500))
        assert (Path("a"), 300) == (caught.value.path, caught.value.position)
        assert 0 == reader.cache.counts().held_bytes
