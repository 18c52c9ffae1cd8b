from __future__ import annotations

import threading

from afterlog.fetch.pause import Pause
from tests.support import NOW_MS, SteppedClock


def test_it_waits_unless_it_is_over() -> None:
    clock, changed = SteppedClock(NOW_MS), threading.Condition()
    Pause(lambda: 2, 1, None).wait(clock, changed, None)
    assert [] == clock.waits
    Pause(lambda: 1, 1, NOW_MS + 5).wait(clock, changed, 2.5)
    assert [(NOW_MS + 5, 2.5)] == clock.waits
