"""What a change of the house must leave as it is, against what was recorded: where it is meant to change, `python -m
tests.fence` records it anew, and `git diff tests/fenced` is what a reader of the change looks at."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fence import durable_steps, openapi, recorded, surface, walked


def of_each(found: dict[str, Any], before: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What differs: as it was, as it is."""
    names = sorted({*found, *before})
    return {name: (before.get(name), found.get(name)) for name in names if before.get(name) != found.get(name)}


def test_signatures() -> None:
    assert {} == of_each(surface(), recorded("surface"))


@pytest.mark.parametrize("part", ["paths", "components"])
def test_http(part: str) -> None:
    assert {} == of_each(openapi()[part], recorded("openapi")[part])


def test_durable_steps() -> None:
    assert {} == of_each(durable_steps(), recorded("durable_steps"))


def test_no_walk_is_longer() -> None:
    """A call that enters fewer functions than before is no fault; record it, that it stays so."""
    before, now = recorded("walks"), walked()
    assert [*before] == [*now]
    assert {} == {name: (before[name], calls) for name, calls in now.items() if calls > before[name]}


def test_the_fence_sees() -> None:
    assert {"a": (1, 2), "b": (1, None), "c": (None, 1)} == of_each({"a": 2, "c": 1, "d": 1}, {"a": 1, "b": 1, "d": 1})
