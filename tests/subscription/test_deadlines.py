from __future__ import annotations

from pyroaring import BitMap64

from afterlog.subscription.deadlines import Deadlines


def held(deadlines: Deadlines) -> dict[int, list[int]]:
    return {until_ms: list(offsets) for until_ms, offsets in sorted(deadlines.items()) if offsets}


def test_offsets_by_their_times() -> None:
    deadlines = Deadlines()
    assert not deadlines
    assert deadlines.first() is None
    given = BitMap64([1, 2])
    deadlines.put(20, given)
    deadlines.put(20, BitMap64([3]))
    deadlines.put(10, BitMap64([4]))
    assert [1, 2] == list(given), "it keeps a copy"
    assert {10: [4], 20: [1, 2, 3]} == held(deadlines)
    assert ([1, 2, 3], []) == (list(deadlines.at(20)), list(deadlines.at(21)))
    assert [3, 4] == list(deadlines.among(BitMap64([3, 4, 5])))
    assert [4] == list(deadlines.before(20, BitMap64([3, 4])))
    assert [3, 4] == list(deadlines.before(21, BitMap64([3, 4])))
    deadlines.remove(BitMap64([2, 4, 9]))
    assert {20: [1, 3]} == held(deadlines)


def test_moved_earlier_and_later() -> None:
    deadlines = Deadlines()
    deadlines.put(10, BitMap64([1, 2, 3]))
    deadlines.move(20, BitMap64([1, 2]))
    deadlines.move(5, BitMap64([2, 3]))
    deadlines.move(20, BitMap64([1]))
    deadlines.move(30, BitMap64())
    assert {5: [2, 3], 20: [1]} == held(deadlines)
    assert [5, 10, 20] == sorted(until_ms for until_ms, _ in deadlines.items()), "nothing is put where nothing moves"


def test_the_first_under_which_something_is_leased() -> None:
    deadlines, leased = Deadlines(), BitMap64([3])
    for until_ms, offset in ((10, 1), (20, 2), (30, 3), (40, 4)):
        deadlines.put(until_ms, BitMap64([offset]))
    first = deadlines.first()
    assert first is not None
    assert 10 == first[0]
    first = deadlines.first(leased.intersection)
    assert first is not None
    assert (30, [3]) == (first[0], list(first[1]))
    assert {30: [3], 40: [4]} == held(deadlines)
    deadlines.forget(30)
    assert deadlines.first(leased.intersection) is None
    assert not deadlines


def test_one() -> None:
    deadlines = Deadlines()
    assert [True, False, True] == [deadlines.put_one(20, 1), deadlines.put_one(20, 2), deadlines.put_one(10, 3)]
    assert {10: [3], 20: [1, 2]} == held(deadlines)
