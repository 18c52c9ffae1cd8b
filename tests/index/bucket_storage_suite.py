"""What any BucketSnapshotStorage must do: inherit the class, and say how one is made and opened anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from afterlog.base.errors import CorruptFile
from afterlog.index.bucket_storage import BucketSnapshotStorage
from afterlog.index.entries import Entries, Key
from tests.index.support import Row, coverage_of, entries_of, rows_of

KEY = "buckets/00000000000000000000-00000000000000000200.deliverafterindex"
OTHER = "00000000000000000200.deliverafterindex"
ROWS: list[Row] = [(number * 7 % 50, number * 2, number * 90, 2) for number in range(100)]
LATER: list[Row] = [(number, 200 + number, number * 90, 1) for number in range(30)]


class BucketSnapshotStorageTests:
    """Conformance. The storage cuts chunks at 20 entries."""

    @pytest.fixture
    def storage(self) -> BucketSnapshotStorage:
        """An empty storage."""
        raise NotImplementedError

    def reopened(self, storage: BucketSnapshotStorage) -> BucketSnapshotStorage:
        """The storage as another process finds it."""
        raise NotImplementedError

    def corrupted(self, storage: BucketSnapshotStorage, key: str, position: int) -> BucketSnapshotStorage:
        """The storage, reopened, with a bit of one byte flipped; a negative position counts from the end."""
        raise NotImplementedError

    def test_what_was_created_is_read(self, storage: BucketSnapshotStorage) -> None:
        created = storage.create(KEY, [entries_of(sorted(ROWS)[:33]), entries_of(sorted(ROWS)[33:])], coverage_of(ROWS))
        for run in (created, storage.open(KEY), self.reopened(storage).open(KEY)):
            run.check()
            assert sorted(ROWS) == rows_of(run.entries())
            assert (KEY, coverage_of(ROWS), 5) == (run.key, run.coverage, run.chunks)
            assert created.identity == run.identity
            assert run.contains(199)
            assert sorted(ROWS)[70][0] == run.next_due(Key(*sorted(ROWS)[69][:2]))

    def test_length_is_that_of_the_file(self, storage: BucketSnapshotStorage) -> None:
        run = storage.create(KEY, [entries_of(sorted(ROWS))], coverage_of(ROWS))
        assert run.identity.size == storage.length(KEY) == self.reopened(storage).length(KEY)

    def test_what_is_not_there(self, storage: BucketSnapshotStorage) -> None:
        storage.create(OTHER, [entries_of(LATER)], coverage_of(LATER))
        with pytest.raises(FileNotFoundError):
            storage.open(KEY)
        with pytest.raises(FileNotFoundError):
            storage.length(KEY)
        storage.delete(KEY)
        assert LATER == rows_of(storage.open(OTHER).entries())

    def test_deleting_takes_the_name_and_leaves_who_reads(self, storage: BucketSnapshotStorage) -> None:
        run = storage.create(KEY, [entries_of(sorted(ROWS))], coverage_of(ROWS))
        storage.create(OTHER, [entries_of(LATER)], coverage_of(LATER))
        storage.delete(KEY)
        with pytest.raises(FileNotFoundError):
            self.reopened(storage).open(KEY)
        assert sorted(ROWS) == rows_of(run.entries())
        assert LATER == rows_of(storage.open(OTHER).entries())

    def test_creating_again_replaces_and_leaves_who_reads(self, storage: BucketSnapshotStorage) -> None:
        run = storage.create(KEY, [entries_of(sorted(ROWS))], coverage_of(ROWS))
        storage.create(KEY, [entries_of(LATER)], coverage_of(LATER))
        assert LATER == rows_of(self.reopened(storage).open(KEY).entries())
        assert sorted(ROWS) == rows_of(run.entries())

    def test_what_fails_half_way_leaves_what_was_there(self, storage: BucketSnapshotStorage) -> None:
        def blocks() -> Iterator[Entries]:
            yield entries_of(sorted(ROWS)[:60])
            raise CorruptFile("a source cannot be read", path="elsewhere")

        with pytest.raises(CorruptFile, match="a source"):
            storage.create(KEY, blocks(), coverage_of(ROWS))
        with pytest.raises(FileNotFoundError):
            self.reopened(storage).open(KEY)
        storage.create(KEY, [entries_of(LATER)], coverage_of(LATER))
        with pytest.raises(CorruptFile, match="a source"):
            storage.create(KEY, blocks(), coverage_of(ROWS))
        with pytest.raises(ValueError, match="at least one entry"):
            storage.create(KEY, [], coverage_of(ROWS))
        assert LATER == rows_of(self.reopened(storage).open(KEY).entries())

    @pytest.mark.parametrize("position", [0, -1, -100])
    def test_rotten_metadata_are_refused(self, storage: BucketSnapshotStorage, position: int) -> None:
        storage.create(KEY, [entries_of(sorted(ROWS))], coverage_of(ROWS))
        with pytest.raises(CorruptFile, match="deliverafterindex"):
            self.corrupted(storage, KEY, position).open(KEY)

    def test_a_rotten_segment_is_refused_when_it_is_needed(self, storage: BucketSnapshotStorage) -> None:
        run = storage.create(KEY, [entries_of(sorted(ROWS))], coverage_of(ROWS))
        rotten = self.corrupted(storage, KEY, int(run.directory.position[3])).open(KEY)
        assert sorted(ROWS)[:60] == [row for chunk in range(3) for row in rows_of(rotten.chunk(chunk))]
        with pytest.raises(CorruptFile, match="chunk 3 fails its checksum"):
            rotten.chunk(3)
