"""Who is told, and who is not any more."""

from __future__ import annotations

import gc

from afterlog.log.notifier import Notifier


class Told:
    def __init__(self) -> None:
        self.times: list[int] = []

    def come(self, ms: int) -> None:
        self.times.append(ms)


def test_all_who_listen_are_told_until_they_leave() -> None:
    notifier, one, other = Notifier(), Told(), Told()
    notifier.notify(1)
    notifier.listen(one)
    notifier.listen(other)
    notifier.notify(2)
    notifier.leave(one)
    notifier.leave(one)
    notifier.notify()
    assert ([2], [2, 0]) == (one.times, other.times)


def test_who_listens_twice_is_told_once() -> None:
    notifier, one = Notifier(), Told()
    notifier.listen(one)
    notifier.listen(one)
    notifier.notify(1)
    assert [1] == one.times


def test_who_is_gone_need_not_leave() -> None:
    notifier, one = Notifier(), Told()
    notifier.listen(Told())
    gc.collect()
    notifier.notify(1)
    notifier.listen(one)
    notifier.notify(2)
    assert ([2], 1) == (one.times, len(notifier._listeners))
