"""The seam to the network, with the sockets of other systems in place of this one's."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from afterlog.base import sockets
from afterlog.base.errors import InvalidArgument
from afterlog.base.listeners import listening_at_path


@pytest.fixture(params=["Linux", "macOS"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "macOS":
        monkeypatch.setattr(sockets, "PATH_BYTES_MAX", 103)
        monkeypatch.setattr(sockets, "_OPEN_FILES", Path("/proc/none"))
    return str(request.param)


def long_folder(parent: Path) -> Path:
    folder = parent / ("long" * 30)
    folder.mkdir()
    return folder


@pytest.mark.usefixtures("system")
def test_a_socket_is_reached_however_long_its_path(tmp_path: Path) -> None:
    path = long_folder(tmp_path) / "server.sock"
    with listening_at_path(path, 1) as listener, sockets.to_path(path, 5.0) as connection:
        other, _ = listener.accept()
        with other:
            connection.sendall(b"x")
            assert b"x" == other.recv(9)
    assert ["server.sock"] == os.listdir(path.parent)


@pytest.mark.usefixtures("system")
def test_nothing_is_left_of_the_way_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = long_folder(tmp_path) / "server.sock"
    with TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        before = len(os.listdir("/dev/fd"))
        with sockets.short_path(path) as address:
            assert len(os.fsencode(address)) <= sockets.PATH_BYTES_MAX
            assert path.parent.samefile(Path(address).parent)
        assert ([], before) == (os.listdir(short), len(os.listdir("/dev/fd")))


def test_a_path_that_fits_is_its_own_address() -> None:
    with sockets.short_path(Path("/data/server.sock")) as address:
        assert "/data/server.sock" == address


def test_a_name_that_is_too_long_has_no_address(tmp_path: Path, system: str) -> None:
    with pytest.raises(InvalidArgument, match="too long"), sockets.short_path(tmp_path / (system * 25)):
        pass
