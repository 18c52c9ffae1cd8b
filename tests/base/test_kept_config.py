"""Settings that are kept with a store."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import afterlog
from afterlog.base import document
from afterlog.base.config import OS, Config
from afterlog.base.errors import CorruptFile, InvalidArgument, WrongType
from afterlog.base.files import OsFiles
from afterlog.base.kept_config import FORMAT, KEPT, VERSION, change_kept, keep_config, kept_config, kept_settings
from afterlog.base.names import CONFIG
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import PATH, content, flipped, with_file


def store() -> SimulatedFiles:
    disk = SimulatedFiles()
    disk.make_folder(PATH)
    return disk


def test_what_differs_from_the_defaults_is_kept() -> None:
    disk = store()
    assert (None, Config()) == (kept_settings(disk, PATH), kept_config(disk, PATH))
    keep_config(disk, PATH, Config(segment_bytes=4 << 20, compression="zstd", checkpoint_ms=None, durability=OS))
    assert {"segment_bytes": 4 << 20, "compression": "zstd", "checkpoint_ms": None} == kept_settings(disk, PATH)
    assert Config(segment_bytes=4 << 20, compression="zstd", checkpoint_ms=None) == kept_config(disk, PATH)


def test_the_bytes_of_version_1() -> None:
    disk = store()
    keep_config(disk, PATH, Config(segment_bytes=4 << 20, compression="zstd"))
    assert b'afterlog-config 1 20b6b471\n{"segment_bytes":4194304,"compression":"zstd"}\n' == content(
        disk, PATH / CONFIG
    )


def test_the_first_are_kept() -> None:
    disk = store()
    keep_config(disk, PATH, Config())
    keep_config(disk, PATH, Config(segment_bytes=4 << 20))
    assert {} == kept_settings(disk, PATH)


def test_they_are_changed() -> None:
    disk = store()
    keep_config(disk, PATH, Config(segment_bytes=4 << 20, linger_ms=1))
    change_kept(disk, PATH, {"segment_bytes": 8 << 20, "max_bytes": 1 << 40})
    assert {"segment_bytes": 8 << 20, "linger_ms": 1, "max_bytes": 1 << 40} == kept_settings(disk, PATH)
    change_kept(disk, PATH, {"max_bytes": None})
    assert {"segment_bytes": 8 << 20, "linger_ms": 1} == kept_settings(disk, PATH)
    change_kept(disk, PATH, {"linger_ms": 2}, anew=True)
    assert {"linger_ms": 2} == kept_settings(disk, PATH)


@pytest.mark.parametrize(
    ("changes", "error"),
    [({"durability": "os"}, InvalidArgument), ({"segment_bites": 1}, InvalidArgument),
     ({"segment_bytes": 1}, InvalidArgument), ({"segment_bytes": "1"}, WrongType)],
)  # fmt: skip
def test_what_cannot_be_kept(changes: dict[str, object], error: type[Exception]) -> None:
    disk = store()
    keep_config(disk, PATH, Config(linger_ms=1))
    with pytest.raises(error):
        change_kept(disk, PATH, changes)
    assert {"linger_ms": 1} == kept_settings(disk, PATH)


def test_what_cannot_be_read_is_told_and_can_be_reset() -> None:
    disk = store()
    keep_config(disk, PATH, Config(linger_ms=1))
    data = content(disk, PATH / CONFIG)
    rotten = with_file(disk, PATH / CONFIG, flipped(data, len(data) - 2))
    with pytest.raises(CorruptFile, match="afterlog config --reset") as raised:
        kept_config(rotten, PATH)
    assert PATH / CONFIG == raised.value.path
    with pytest.raises(CorruptFile):
        change_kept(rotten, PATH, {"linger_ms": 2})
    change_kept(rotten, PATH, {"linger_ms": 2}, anew=True)
    assert {"linger_ms": 2} == kept_settings(rotten, PATH)
    document.write(disk, PATH / CONFIG, FORMAT, VERSION, {"segment_bytes": 17})
    with pytest.raises(CorruptFile, match="cannot be"):
        kept_config(disk, PATH)


def test_what_a_later_version_keeps_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    disk = store()
    document.write(disk, PATH / CONFIG, FORMAT, VERSION, {"segment_bytes": 4 << 20, "spin_ms": 3})
    with caplog.at_level(logging.WARNING):
        assert Config(segment_bytes=4 << 20) == kept_config(disk, PATH)
    assert "spin_ms" in caplog.text


def test_what_each_process_says_of_itself_is_not_kept() -> None:
    assert {"durability", "broker_entry_metadata_interceptors"} & KEPT.keys() == set()


def test_who_opens_a_store_without_settings_goes_by_those_that_are_kept(tmp_path: Path) -> None:
    given = Config(segment_bytes=4 << 20, min_free_bytes=0, durability=OS)
    with afterlog.open(tmp_path / "data", config=given) as made:
        made.create_topic("t")
    with afterlog.open(tmp_path / "data") as again:
        assert Config(segment_bytes=4 << 20, min_free_bytes=0) == again.config
    with afterlog.open(tmp_path / "data", config=Config(segment_bytes=8 << 20)) as other:
        assert Config(segment_bytes=8 << 20) == other.config
    assert {"segment_bytes": 4 << 20, "min_free_bytes": 0} == kept_settings(OsFiles(), tmp_path / "data")
