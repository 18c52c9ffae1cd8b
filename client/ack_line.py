"""Acks of single messages that are asked for at the same time, of one reader: they share requests, and so syncs.

    ack ──> nobody asks: a request with this one receipt, at once
    ack, ack, ack ──> while that is under way: one request with all of theirs, as soon as it is answered
                      each returns once its own ack is safe, with what came of its own

So one handler alone waits for no other, and a hundred that end together ask twice. Who came first asks for the others
behind it. Where it goes away meanwhile (a task that was cancelled, Ctrl-C) another one asks the same again, and hears
`already` of what was done; where the request fails each of the others asks for itself, and is told itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from afterlog.api.receipt import Receipt
from afterlog.client.call import Call, Pause, Steps
from afterlog.client.polls import Waking
from afterlog.log.notifier import NEVER_MS
from afterlog.subscription.answers import AckResult

RECEIPTS_MAX = 256
"""In a request: of so many a server says of each what came of it."""
LOOK_S = 20.0
"""Who waits for another's request looks at least so often whether it has been left alone."""

AskAcks = Callable[[Sequence[Receipt]], Call[list[AckResult]]]


class _AcksTogether:
    """Receipts that go together."""

    __slots__ = ("answers", "failed", "first", "here", "others", "receipts")

    def __init__(self) -> None:
        self.receipts: list[Receipt] = []
        self.here = 0
        """Callers who have not gone away."""
        self.answers: list[AckResult] | None = None
        self.failed = False
        self.first: Waking | None = None
        """What wakes who came first, and those behind; None as long as nobody waits."""
        self.others: Waking | None = None

    def wakings(self) -> list[Waking | None]:
        return [self.first, self.others]


class AckLine:
    """Of one reader. Thread-safe.

    Invariant: while nobody asks, of each batch that is not answered somebody is awake, or there is nobody.
    """

    def __init__(self, asked: AskAcks) -> None:
        """asked: what asks for some acks, and is answered with what came of each."""
        self._asked = asked
        self._under_way: _AcksTogether | None = None
        self._next = _AcksTogether()
        self._left: list[_AcksTogether] = []
        """Those that somebody has left who would have asked, or did."""
        self._lock = threading.Lock()

    def ack(self, receipt: Receipt) -> Steps[AckResult]:
        """Raises what the server says."""
        with self._lock:
            batch, place = self._next, len(self._next.receipts)
            batch.receipts.append(receipt)
            batch.here += 1
        try:
            while batch.answers is None and not batch.failed:
                pause = self._turn(batch, place)
                if pause is not None:
                    yield pause
                    continue
                try:
                    batch.answers = yield from self._all_asked(batch.receipts)
                except Exception:
                    batch.failed = True
                    raise
                finally:
                    self._ended(batch)
        except BaseException:
            self._leave(batch)
            raise
        answers = batch.answers
        if answers is None:
            answers, place = (yield from self._all_asked([receipt])), 0
        return answers[place]

    def _all_asked(self, receipts: Sequence[Receipt]) -> Steps[list[AckResult]]:
        answers: list[AckResult] = []
        for start in range(0, len(receipts), RECEIPTS_MAX):
            answers += yield self._asked(receipts[start : start + RECEIPTS_MAX])
        return answers

    def _turn(self, batch: _AcksTogether, place: int) -> Pause | None:
        """None: whoever is told so asks for the batch, now."""
        with self._lock:
            if self._under_way is None and batch.answers is None and not batch.failed:
                self._under_way = batch
                if self._next is batch:
                    self._next = _AcksTogether()
                return None
            if place == 0:
                waking = batch.first = batch.first or Waking()
            else:
                waking = batch.others = batch.others or Waking()
            is_over = batch.answers is not None or batch.failed
            return Pause(waking, waking.version, NEVER_MS, 0.0 if is_over else LOOK_S)

    def _ended(self, batch: _AcksTogether) -> None:
        """It was asked for, whatever came of it."""
        with self._lock:
            self._under_way = None
            self._left = [each for each in self._left if each is not batch]
            left = [waking for each in self._left for waking in each.wakings()]
            wakings = [*batch.wakings(), self._next.first, *left]
        _wake(wakings)

    def _leave(self, batch: _AcksTogether) -> None:
        """Somebody goes away: of those who stay another one has to ask."""
        with self._lock:
            batch.here -= 1
            self._left = [each for each in self._left if each is not batch and each.here]
            if batch.answers is None and not batch.failed and batch.here:
                self._left.append(batch)
            wakings = batch.wakings()
        _wake(wakings)


def _wake(wakings: Iterable[Waking | None]) -> None:
    for waking in wakings:
        if waking is not None:
            waking.wake()
