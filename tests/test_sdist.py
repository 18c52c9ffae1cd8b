"""The source distribution: all that git has, the links as links, and nothing that was built."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from afterlog._version import __version__
from tests.architecture import LINKED, ROOT

pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only a clone makes one")
MADE = "PKG-INFO", "afterlog.egg-info"
BUILT = "records/_kernels.c", "records/_kernels.cpython-311-x86_64-linux-gnu.so", "log/__pycache__/a.pyc"


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What git has of this folder."""
    clone = tmp_path_factory.mktemp("clone")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if os.path.lexists(ROOT / name):
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, clone / name, follow_symlinks=False)
    return clone


@pytest.fixture(scope="module")
def unpacked(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in the archive that is made of the clone, as installers unpack it: `data` refuses what is unsafe."""
    folder = tmp_path_factory.mktemp("sdist")
    for built in BUILT:
        (clone / built).parent.mkdir(exist_ok=True)
        (clone / built).touch()
    command = [sys.executable, "setup.py", "--quiet", "sdist", "--formats=gztar", "--dist-dir", str(folder)]
    subprocess.run(command, cwd=clone, check=True, capture_output=True)
    for built in BUILT:
        (clone / built).unlink()
    with tarfile.open(folder / f"afterlog-{__version__}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / f"afterlog-{__version__}"


def files(folder: Path) -> set[str]:
    """Those below it, and its links; not what is made for each distribution."""
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if (path.is_symlink() or path.is_file()) and path.relative_to(folder).parts[0] not in MADE
    }


def test_it_has_what_git_has(clone: Path, unpacked: Path) -> None:
    assert len(files(clone)) > 1_000
    assert files(clone) == files(unpacked)


def test_links_are_links(unpacked: Path) -> None:
    assert {name: f"../{name}" for name in LINKED} == {
        name: str((unpacked / "afterlog" / name).readlink()) for name in LINKED
    }


def test_settings_are_as_they_were(clone: Path, unpacked: Path) -> None:
    assert (clone / "setup.cfg").read_bytes() == (unpacked / "setup.cfg").read_bytes()
