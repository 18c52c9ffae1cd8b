"""CRC-32C, by the processor's own instruction where it has one.

`crc32c(data, start=0)`: of any bytes that lie contiguously; `start`: the sum of what comes before them.

Of the package `crc32c` one extension module alone is loaded, which does the work. The package itself asks
importlib.metadata for its own version and makes a command line: e-mail, sockets, zip files and argparse, 17 ms of the
120 that a first use of a store cost beside numpy. A version in which that module lies elsewhere is imported as a whole,
which is only slower.
"""

from __future__ import annotations

import importlib.util
from importlib.machinery import PathFinder
from types import ModuleType
from typing import TYPE_CHECKING


def _extension() -> ModuleType | None:
    package = PathFinder.find_spec("crc32c")
    places = None if package is None else package.submodule_search_locations
    spec = PathFinder.find_spec("crc32c._crc32c", places)
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from crc32c import crc32c
else:
    crc32c = getattr(_extension(), "crc32c", None)
    if crc32c is None:
        from crc32c import crc32c

__all__ = ["crc32c"]
