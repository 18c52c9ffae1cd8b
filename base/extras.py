"""Optional dependencies: where one is missing, the error says what it is for and how it is installed."""

from __future__ import annotations


def missing(error: ImportError, what: str, extra: str) -> ImportError:
    """To be raised from `error`. what: is not to be had without it."""
    name = (error.name or "").partition(".")[0]
    return ImportError(f"{what} needs {name or 'more'}: pip install 'afterlog[{extra}]'", name=name)
