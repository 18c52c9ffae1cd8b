from __future__ import annotations

import dataclasses

import pytest

from afterlog.fetch.positions import EARLIEST, LATEST, AfterOffset, AtTime, Edge


def test_the_edges_are_themselves() -> None:
    assert (EARLIEST, LATEST) == (Edge("earliest"), Edge("latest"))
    assert EARLIEST is not LATEST


@pytest.mark.parametrize("position", [AtTime(5), AfterOffset(5)])
def test_positions_are_values(position: AtTime | AfterOffset) -> None:
    assert position == dataclasses.replace(position)
    assert 1 == len({position, dataclasses.replace(position)})
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(position, dataclasses.fields(position)[0].name, 6)


def test_a_time_is_no_offset() -> None:
    assert AtTime(5) != AfterOffset(5)
