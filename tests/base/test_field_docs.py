from __future__ import annotations

import dataclasses
import pydoc

import pytest

from afterlog.base import config
from afterlog.base.config import Config, shows_field_docs


@shows_field_docs
class Settings:
    """What there is to set."""

    large: int = 1
    """How large it is.

    Larger: more.
    """
    silent: int = 2
    last: str = "b"
    """The last."""

    def check(self) -> None:
        """No field."""


def test_fields_and_what_is_below_them() -> None:
    assert (
        "What there is to set.\n\n"
        "large: int = 1\n    How large it is.\n\n    Larger: more.\n\n"
        "last: str = 'b'\n    The last."
    ) == Settings.__doc__


def test_where_there_is_no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(owner: object) -> str:
        raise OSError("no source")

    monkeypatch.setattr(config.inspect, "getsource", absent)
    assert "What there is to set." == Settings.__doc__


def test_help_shows_every_setting() -> None:
    shown = pydoc.render_doc(Config, renderer=pydoc.plaintext)
    for field in dataclasses.fields(Config):
        assert f"|  {field.name}: " in shown
    assert "Roll at this size, below 2 GiB. Larger: fewer files and runs" in shown
