from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from afterlog.subscription import bits
from afterlog.subscription.ack_set import AckSet


def test_as_drawn() -> None:
    acks = AckSet()
    assert 1 == acks.read(12, BitMap64([0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11]))
    assert (0, 11) == (acks.mark_delete, acks.count)
    assert 8 == acks.ack(BitMap64([0, 1, 2, 3, 4, 5, 6, 11, 8, 99]))
    assert (7, 3, 12) == (acks.mark_delete, acks.count, acks.position)
    assert [8, 11] == [offset for offset in range(7, 14) if offset in acks]
    assert 3 == acks.ack(BitMap64([7, 9, 10]))
    assert 12 == acks.mark_delete
    acks.check()


def test_what_is_not_read_cannot_be_unacked() -> None:
    with pytest.raises(ValueError, match="offset 5 is not below the position 5"):
        AckSet(5, BitMap64([5]))


@given(st.lists(st.tuples(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 99))), max_size=12))
def test_like_a_set(steps: list[tuple[set[int], set[int]]]) -> None:
    acks, position, unacked = AckSet(), 0, set[int]()
    for offset, acked in steps:
        delivered = {position + each for each in offset}
        end = max(delivered, default=position) + 1
        assert end - position - len(delivered) == acks.read(end, BitMap64(delivered))
        position, unacked = end, unacked | delivered
        assert len(unacked & acked) == acks.ack(BitMap64(acked))
        unacked -= acked
        acks.check()
        assert unacked == set(acks.unacked)
        assert min(unacked, default=position) == acks.mark_delete


def test_runs_torn_to_pieces_become_small_again() -> None:
    acks = AckSet()
    acks.read(65_536, bits.of_range(0, 65_536))
    for offset in range(0, 65_536, 4):
        acks.ack(BitMap64([offset]))
        acks.ack_one(offset + 2)
    assert len(acks.unacked.serialize()) < 10_000
    assert (32_768, 1) == (acks.count, acks.mark_delete)
