"""Positions as text."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog import EARLIEST, LATEST, AfterOffset, AtBrokerTime, AtTime
from afterlog.api.position_text import position_of, position_text
from afterlog.base.errors import InvalidArgument
from afterlog.fetch.positions import Position

NUMBERS = st.integers(0, 2**63 - 1)
POSITIONS = (
    st.sampled_from([EARLIEST, LATEST])
    | NUMBERS
    | st.builds(AfterOffset, NUMBERS)
    | st.builds(AtTime, NUMBERS | st.just("2030-01-31T08:00:00Z"))
    | st.builds(AtBrokerTime, NUMBERS)
)


class TestPositions:
    @given(POSITIONS)
    def test_they_are_read_again(self, position: Position) -> None:
        assert position == position_of(position_text(position))

    def test_a_number_of_json_is_one(self) -> None:
        assert position_of(1024) == 1024

    def test_a_datetime_is_a_time(self) -> None:
        moment = datetime(2030, 1, 31, 8, tzinfo=UTC)
        assert AtTime("2030-01-31T08:00:00+00:00") == position_of(position_text(moment))
        assert AtTime(moment.isoformat()) == position_of(position_text(AtTime(moment)))

    @pytest.mark.parametrize(
        "text", ["", "-1", "1.5", "first", "time", "time:", "after:", "after:-1", "after:x", f"{2**63}", "٣", None,
                 True, 1.5, -1, 2**63, b"earliest", "earliest:1"]
    )  # fmt: skip
    def test_nothing_else_is(self, text: object) -> None:
        with pytest.raises(InvalidArgument, match="not a position"):
            position_of(text)

    @pytest.mark.parametrize("position", [True, 1.5, None, "earliest"])
    def test_what_is_no_position_has_no_text(self, position: object) -> None:
        with pytest.raises(InvalidArgument, match="not a position"):
            position_text(position)  # type: ignore[arg-type]
