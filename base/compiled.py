"""Which of the compiled modules are present; where one is missing, its plain twin is used, slower."""

from __future__ import annotations

import importlib

MODULES = ("base._mapping", "fetch._objects", "index._packing", "records._kernels")
"""What setup.py builds, by their names in this package."""


def missing() -> tuple[str, ...]:
    """Those that cannot be imported: there was no compiler, or they were built for another Python."""
    return tuple(name for name in MODULES if not _is_there(name))


def kernels() -> str:
    """How this package works, for people: `compiled kernels`, or which are missing."""
    absent = missing()
    return f"plain kernels, without {', '.join(absent)}" if absent else "compiled kernels"


def _is_there(name: str) -> bool:
    try:
        importlib.import_module(f"afterlog.{name}")
    except ImportError:
        return False
    return True
