"""Where an adapter's store is: its URLs, and the one handle of a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import afterlog
from afterlog.base.errors import InvalidArgument, StoreClosed, WrongType
from afterlog.integrations import places
from afterlog.integrations.places import StoreHandle, StorePlace

GOOD: dict[str, tuple[Path | None, str]] = {
    "/srv/data": (Path("/srv/data"), ""),
    "afterlog:///srv/my%20data": (Path("/srv/my data"), ""),
    "afterlog+unix:///srv/server.sock": (None, "unix:/srv/server.sock"),
    "afterlog+http://host:7654": (None, "http://host:7654"),
    "afterlog+https://host/behind/a/proxy": (None, "https://host/behind/a/proxy"),
}


@pytest.mark.parametrize("url", GOOD)
def test_a_url(url: str) -> None:
    place = StorePlace.of(url, "secret")
    assert GOOD[url] == (place.folder, place.server)
    assert place.token == (None if place.folder else "secret")
    assert "secret" not in repr(place)


@pytest.mark.parametrize(
    "url",
    ["redis://host", "afterlog:data", "afterlog://data", "afterlog+unix://x", "afterlog+http:///x", "http://host"],
)
def test_what_is_no_url(url: str) -> None:
    """A relative path would be another folder in another process."""
    with pytest.raises(InvalidArgument, match="write afterlog:///FOLDER"):
        StorePlace.of(url)


@pytest.mark.parametrize("store", [None, 7, b"afterlog:///data"])
def test_what_is_no_store(store: Any) -> None:
    with pytest.raises(WrongType):
        StoreHandle(store)


def test_those_of_a_process_share_one(tmp_path: Path) -> None:
    first, second = (StoreHandle(f"afterlog://{tmp_path}") for _ in range(2))
    assert not [*tmp_path.iterdir()], "nothing is opened before it is used"
    store = first.get()
    assert store is first.get() is second.get()
    first.close()
    store.create_topic("t")
    second.close()
    with pytest.raises(StoreClosed):
        store.topics()
    again = first.get()
    assert ["t"] == [topic.name for topic in again.topics()]
    first.close()


def test_a_store_that_is_open_is_its_callers(tmp_path: Path) -> None:
    with afterlog.open(tmp_path) as store:
        handle = StoreHandle(store)
        assert store is handle.get()
        handle.close()
        assert [] == store.topics()


FORKED = """
import os, sys
from afterlog.integrations.places import StoreHandle

handle = StoreHandle(f"afterlog://{sys.argv[1]}")
mine = handle.get()
mine.create_topic("t")
child = os.fork()
if not child:
    theirs = handle.get()
    theirs.send("t", b"from the child")
    assert theirs is not mine
    handle.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
with mine.subscribe("t", "worker") as reader:
    print([message.value for message in reader.receive(timeout=10)])
handle.close()
"""


def test_a_forked_child_opens_for_itself(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", FORKED, tmp_path], capture_output=True, text=True, check=False)
    assert (0, "[b'from the child']\n") == (ran.returncode, ran.stdout), ran.stderr


def test_how_many_priorities_a_topic_has_is_asked_now_and_then(tmp_path: Path) -> None:
    """And not for each send; of two stores by themselves."""
    known = places.Priorities()
    with afterlog.open(tmp_path / "a") as one, afterlog.open(tmp_path / "b") as other:
        one.create_topic("t")
        other.create_topic("t", priorities=3)
        assert [1, 3] == [known.of(store, "t") for store in (one, other)]
        one.alter_topic("t", priorities=2)
        with patch.object(one, "topic", side_effect=AssertionError):
            assert [1] * 100 == [known.of(one, "t") for _ in range(100)]
        with patch.object(places, "KNOWN_S", 0.0):
            assert 2 == known.of(one, "t")
