"""What an optional dependency is for, and how it is installed: said where it is missing, and not found out."""

from __future__ import annotations


def missing(error: ImportError, what: str, extra: str) -> ImportError:
    """To be raised from `error`. what: is not to be had without it."""
    name = (error.name or "").partition(".")[0]
    return ImportError(f"{what} needs {name or 'more'}: pip install 'afterlog[{extra}]'", name=name)
