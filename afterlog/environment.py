"""The seam to the process's surroundings: variables, programs on the path, randomness, the package's own place."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numpy.random import Generator


def variable(name: str) -> str:
    """The environment variable; empty where it is not set."""
    return os.environ.get(name, "")


def set_variable(name: str, value: str) -> None:
    """For this process and those that it starts from now on."""
    os.environ[name] = value


def random_generator() -> Generator:
    """A random generator, seeded by the operating system."""
    from numpy.random import default_rng

    return default_rng(int.from_bytes(os.urandom(16), "little"))


def program(name: str, folder: Path | None = None) -> Path | None:
    """An executable of this name, on the path or in one folder; None where there is none."""
    found = shutil.which(name, path=None if folder is None else str(folder))
    return None if found is None else Path(found)


def import_folder() -> Path:
    """The folder from which this package is imported: what another interpreter needs on its path."""
    return Path(__file__).absolute().parent.parent
