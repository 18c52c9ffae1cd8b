"""What every `RemoteStore` does. An implementation's test class inherits these and brings the fixture `remote`."""

from __future__ import annotations

import contextlib
import pickle
import threading
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from afterlog.base.errors import CorruptRemote, RemoteConflict, RemoteMissing
from afterlog.tier.remote_store import RemoteObject, RemoteStore
from tests.support import Background

BAD_KEYS = ["", "/a", "a/", "a//b", "../a", "a/../b", ".", "a/.", "a b", "a\nb", "a\0", "é", "a.tmp", "a.versions/b",
            "x" * 256, "a/" * 600 + "a", "%2e%2e/a", "a\\b"]  # fmt: skip


def raced(remote: RemoteStore, key: str, texts: Sequence[bytes], version: str | None) -> list[str]:
    """Put all texts at the same time, as what replaces `version`; the versions that were made."""
    barrier = threading.Barrier(len(texts))

    def run(text: bytes) -> str | None:
        barrier.wait()
        with contextlib.suppress(RemoteConflict):
            return remote.put_if(key, text, version)
        return None

    answers = [each.answer() for each in [Background(partial(run, text)) for text in texts]]
    return [answer for answer in answers if answer is not None]


class RemoteStoreTests:
    """A storage that is empty at the start of each test."""

    @pytest.fixture
    def remote(self) -> RemoteStore:
        raise NotImplementedError

    @pytest.mark.parametrize("size", [0, 1, 100_000])
    def test_what_is_put_is_read_back(self, remote: RemoteStore, size: int) -> None:
        data = bytes(range(256)) * (size // 256 + 1)
        for kind in (data[:size], memoryview(data)[:size], np.frombuffer(data, np.uint8)[:size]):
            remote.put("mail-0/a.log", kind)
            assert data[:size] == remote.get("mail-0/a.log", size)[0]
        assert RemoteObject("mail-0/a.log", size) == remote.head("mail-0/a.log")

    def test_what_is_not_there_is_missing(self, remote: RemoteStore) -> None:
        remote.put("mail-0/a", b"1")
        for key in ("mail-0/b", "mail-0", "a"):
            for call in (
                lambda key=key: remote.get(key, 10),
                lambda key=key: remote.head(key),
                lambda key=key: remote.get_ranges(key, [(0, 1)]),
            ):
                with pytest.raises(RemoteMissing):
                    call()
            remote.delete(key)
        assert [RemoteObject("mail-0/a", 1)] == [*remote.list_objects()]

    def test_more_than_is_expected_is_not_read(self, remote: RemoteStore) -> None:
        remote.put("a", b"12345")
        assert b"12345" == remote.get("a", 5)[0]
        with pytest.raises(CorruptRemote, match="5 bytes"):
            remote.get("a", 4)

    def test_ranges_come_in_the_order_they_were_asked_for(self, remote: RemoteStore) -> None:
        data = np.arange(5_000, dtype=np.int64).view(np.uint8)
        remote.put("a", data)
        ranges = [(39_999, 40_000), (0, 1), (8, 16), (8, 30_000), (10, 12), (20_000, 20_001)]
        for gap in (0, 10, 100_000):
            assert [data[start:end].tolist() for start, end in ranges] == [
                part.tolist() for part in remote.get_ranges("a", ranges, gap)
            ]
        assert [] == remote.get_ranges("a", [])

    @pytest.mark.parametrize("ranges", [[(0, 6)], [(5, 6)], [(9, 12)], [(0, 2), (4, 6)]])
    def test_a_range_behind_the_end_is_no_short_answer(
        self, remote: RemoteStore, ranges: list[tuple[int, int]]
    ) -> None:
        remote.put("a", b"12345")
        with pytest.raises(CorruptRemote, match="ends before"):
            remote.get_ranges("a", ranges)

    def test_listing_goes_by_folders(self, remote: RemoteStore) -> None:
        for key in ("mail-0/a", "mail-0/b/c", "mail-01/a", "mail"):
            remote.put(key, key.encode())
        remote.put_if("mail-0/m", b"1", remote.put_if("mail-0/m", b"12", None))
        assert {"mail-0/a": 8, "mail-0/b/c": 10, "mail-0/m": 1} == dict(remote.list_objects("mail-0"))
        assert {"mail-0/a", "mail-0/b/c", "mail-0/m", "mail-01/a", "mail"} == {key for key, _ in remote.list_objects()}
        assert [] == [*remote.list_objects("other")]

    def test_what_is_deleted_is_gone(self, remote: RemoteStore) -> None:
        remote.put("a/b", b"1")
        version = remote.put_if("a/m", b"1", None)
        for key in ("a/b", "a/m"):
            remote.delete(key)
            remote.delete(key)
            with pytest.raises(RemoteMissing):
                remote.get(key, 10)
            with pytest.raises(RemoteMissing):
                remote.head(key)
        assert [] == [*remote.list_objects()]
        with pytest.raises((RemoteConflict, RemoteMissing)):
            remote.put_if("a/m", b"2", version)
        remote.put_if("a/m", b"3", None)
        assert b"3" == remote.get("a/m", 9)[0]

    def test_a_write_names_the_version_that_it_replaces(self, remote: RemoteStore) -> None:
        first = remote.put_if("mail-0/manifest", b"1", None)
        assert (b"1", first) == remote.get("mail-0/manifest", 10)
        second = remote.put_if("mail-0/manifest", b"22", first)
        assert (b"22", second) == remote.get("mail-0/manifest", 10)
        assert RemoteObject("mail-0/manifest", 2) == remote.head("mail-0/manifest")
        for stale in (None, first):
            with pytest.raises(RemoteConflict):
                remote.put_if("mail-0/manifest", b"3", stale)
        assert (b"22", second) == remote.get("mail-0/manifest", 10)

    def test_of_racing_writers_one_wins(self, remote: RemoteStore) -> None:
        version = None
        for number in range(8):
            texts = [f"{number} {writer}".encode() for writer in range(3)]
            won = raced(remote, "m", texts, version)
            data, version = remote.get("m", 10)
            assert [version] == won
            assert data in texts

    @pytest.mark.parametrize("key", BAD_KEYS, ids=lambda key: ascii(key[:20]))
    def test_a_bad_key_is_our_mistake(self, remote: RemoteStore, key: str) -> None:
        for call in (
            lambda: remote.put(key, b"1"),
            lambda: remote.put_if(key, b"1", None),
            lambda: remote.get(key, 1),
            lambda: remote.get_ranges(key, [(0, 1)]),
            lambda: remote.head(key),
            lambda: remote.delete(key),
            lambda: [*remote.list_objects(key)] if key else remote.head(key),
        ):
            with pytest.raises(ValueError, match="cannot be a key"):
                call()

    def test_nothing_is_no_version(self, remote: RemoteStore) -> None:
        with pytest.raises(ValueError, match="deleted"):
            remote.put_if("a", b"", None)


class SharedStoreTests(RemoteStoreTests):
    """Of a storage that other processes see too."""

    def test_it_goes_to_another_process(self, remote: RemoteStore) -> None:
        remote.put("a", b"1")
        again = pickle.loads(pickle.dumps(remote))
        again.put("b", b"2")
        assert {"a", "b"} == {key for key, _ in remote.list_objects()}
