from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from afterlog.base.errors import RemoteRefused
from afterlog.tier.directory_store import DirectoryStore
from afterlog.tier.object_store import ObjectStore
from afterlog.tier.remote_url import open_remote
from tests.campaigns.simulated_disk import Image, SimulatedFiles


def test_a_directory_by_path_and_by_url(tmp_path: Path) -> None:
    for url in (str(tmp_path), f"file://{tmp_path}"):
        remote = open_remote(url)
        assert isinstance(remote, DirectoryStore)
        remote.put("a/b", b"1")
        assert b"1" == (tmp_path / "a" / "b").read_bytes()


def test_a_directory_on_other_files() -> None:
    files = SimulatedFiles(Image(["/remote"]))
    open_remote("/remote", files=files).put("a", b"1")
    assert ["a"] == files.names(Path("/remote"))


@pytest.mark.parametrize("url", ["s3://bucket", "gs://bucket/a/prefix", "az://container"])
def test_object_storage(url: str) -> None:
    options: dict[str, Any] = {"account_name": "name"} if url.startswith("az") else {}
    assert isinstance(open_remote(url, skip_signature=True, **options), ObjectStore)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("http://host/a", {}),
        ("ftp://host", {}),
        ("://", {}),
        ("s3://", {}),
        ("memory://a", {}),
        ("s3://bucket", {"nonsense": "1"}),
        ("/tmp", {"region": "x"}),
    ],
)
def test_what_is_refused(url: str, options: dict[str, Any]) -> None:
    with pytest.raises(RemoteRefused):
        open_remote(url, **options)
