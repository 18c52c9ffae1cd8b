from __future__ import annotations

import pytest

from afterlog.relay.rectangle import BEGINNING, ENDLESS, DueKey, Rectangle


@pytest.mark.parametrize(
    "rectangle",
    [Rectangle.beginning(17), Rectangle(100, DueKey(1_770_000_000_123, 41), 40), Rectangle(5, DueKey(7, ENDLESS), 5)],
)
def test_it_is_what_was_committed(rectangle: Rectangle) -> None:
    metadata = rectangle.metadata("1fQz0u8kQ8qV2bF5m0k9gA")
    assert ("1fQz0u8kQ8qV2bF5m0k9gA", rectangle) == Rectangle.parse(rectangle.next_offset, metadata)
    assert len(metadata) < 100


@pytest.mark.parametrize(
    "metadata",
    [None, "", "consumed by something else", "2 id 1 2 3", "1 id 1 2", "1 id x 2 3", "1 id 5 - 11", "1 id 5 - -1"],
)
def test_what_others_have_committed_is_none(metadata: str | None) -> None:
    assert Rectangle.parse(10, metadata) is None


def test_nothing_is_delivered_at_the_beginning() -> None:
    assert DueKey(0, 0) > BEGINNING
    assert DueKey(5, 3) < DueKey(5, ENDLESS) < DueKey(6, 0)
