"""The retry rule for calls that failed: one for the blocking client and the asyncio client.

    nobody answered, the server is stopping, or busy    nothing was done: again
    the answer was lost                                 again where that does no harm (`Call.again`), else AnswerLost
    the server said no                                  that is the answer

Until the client's `timeout` is over, with a pause that grows, shortened at random so that clients do not come in step.
What could not be done then says how often it was tried; if one of the answers was lost, it may have been done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from afterlog.base.clock import Clock
from afterlog.base.environment import random_bits
from afterlog.base.errors import AfterlogError, AnswerLost, ServerBusy, ServerUnavailable
from afterlog.client.call import Call
from afterlog.client.lanes import is_forgotten

FIRST_PAUSE_S = 0.02
PAUSE_S_MAX = 1.0
"""Larger: less asked of a server that is down, found later when it is there again."""
_TRY_S_MIN = 0.05
"""The last try has so long at least."""


def random_share() -> float:
    """Of [0, 1)."""
    return random_bits(53) / (1 << 53)


class Attempts:
    """Of one call."""

    def __init__(self, asked: Call[Any], clock: Clock, timeout_s: float, share: Callable[[], float] = random_share):
        """share: of [0, 1), by which pauses are shortened by up to a half."""
        self._asked = asked
        self._clock = clock
        self._timeout_s = timeout_s if asked.patience_s is None else min(asked.patience_s, timeout_s)
        self._share = share
        self._began_s = self._tried_s = clock.monotonic_s()
        self._waited_s = 0.0
        """On purpose, in tries that are over: it counts for nothing."""
        self._tries = 0
        self.lost = False
        """Whether an answer was: it may have been done."""

    def patience_s(self) -> float:
        """How long the next try may take."""
        self._tries += 1
        self._tried_s = self._clock.monotonic_s()
        return max(self._left_s(), _TRY_S_MIN) + self._asked.wait_s

    def is_refused(self, error: AfterlogError) -> bool:
        """Whether the server said no, and it is known that nothing was done. Behind a lost answer it is not."""
        return not isinstance(error, ServerUnavailable | ServerBusy) and not self.lost

    def pause_s(self, error: AfterlogError) -> float:
        """How long to wait before the next try. Raises where there is none."""
        self._waited_s += min(self._clock.monotonic_s() - self._tried_s, self._asked.wait_s)
        if isinstance(error, AnswerLost):
            self.lost = True
            if not self._asked.again:
                raise AnswerLost(f"{error}; {self._asked} may have been done") from error
        elif not isinstance(error, ServerUnavailable | ServerBusy):
            if self.lost and is_forgotten(error):
                raise AnswerLost(f"{self._asked} may have been done: its answer was lost, and then: {error}") from error
            raise error
        pause_s: float = min(FIRST_PAUSE_S * 2 ** min(self._tries - 1, 16), PAUSE_S_MAX) * (1 - self._share() / 2)
        if self._left_s() <= pause_s:
            tried = f"{self._asked} was tried {self._tries} times in {self._clock.monotonic_s() - self._began_s:.1f} s"
            if self.lost:
                raise AnswerLost(f"{tried}, and may have been done; at last: {error}") from error
            raise type(error)(f"{tried}; at last: {error}") from error
        return pause_s

    def _left_s(self) -> float:
        return self._began_s + self._timeout_s + self._waited_s - self._clock.monotonic_s()
