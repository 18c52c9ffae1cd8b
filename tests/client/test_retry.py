"""What is tried again, and what an error says of it."""

from __future__ import annotations

import pytest

from afterlog.api import operations
from afterlog.base.errors import AnswerLost, InvalidTopic, ServerBusy, ServerUnavailable
from afterlog.client.call import asking, nothing
from afterlog.client.retry import PAUSE_S_MAX, Attempts
from tests.client.support import PassingClock

GONE = ServerUnavailable("nobody answers")
LOST = AnswerLost("no answer")


def attempts(clock: PassingClock, *, again: bool = True, wait_s: float = 0.0, timeout_s: float = 30.0) -> Attempts:
    made = Attempts(
        asking(operations.SYNC, nothing, wait_s=wait_s)._replace(again=again), clock, timeout_s, lambda: 0.0
    )
    made.patience_s()
    return made


class TestPauses:
    def test_they_grow_to_a_bound(self) -> None:
        clock = PassingClock()
        made = attempts(clock)
        pauses = []
        for _ in range(9):
            pauses.append(made.pause_s(GONE))
            made.patience_s()
        assert [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0, 1.0] == pauses

    def test_they_are_shortened_by_up_to_a_half(self) -> None:
        clock = PassingClock()
        for share in (0.0, 0.5, 0.999):
            made = Attempts(asking(operations.SHOW_STORE, nothing), clock, 30.0, lambda share=share: share)  # type: ignore[misc]
            for _ in range(20):
                made.patience_s()
            assert PAUSE_S_MAX * (1 - share / 2) == made.pause_s(GONE)


class TestWhatIsTried:
    def test_what_was_not_done(self) -> None:
        for error in (GONE, ServerBusy("too much")):
            assert attempts(PassingClock(), again=False).pause_s(error) > 0

    def test_what_may_have_been_done_only_if_that_does_no_harm(self) -> None:
        assert attempts(PassingClock()).pause_s(LOST) > 0
        with pytest.raises(AnswerLost, match="POST /v1/sync may have been done"):
            attempts(PassingClock(), again=False).pause_s(LOST)

    def test_what_was_refused_is_not(self) -> None:
        error = InvalidTopic("no")
        with pytest.raises(InvalidTopic) as raised:
            attempts(PassingClock()).pause_s(error)
        assert error is raised.value


class TestTheEnd:
    def test_it_says_what_was_tried(self) -> None:
        clock = PassingClock()
        made = attempts(clock, timeout_s=5.0)
        made.patience_s()
        clock.passed_s = 5.0
        with pytest.raises(
            ServerUnavailable, match=r"POST /v1/sync was tried 2 times in 5\.0 s; .* nobody answers"
        ) as raised:
            made.pause_s(GONE)
        assert ServerUnavailable is type(raised.value)

    def test_it_may_have_been_done_if_an_answer_was_lost(self) -> None:
        clock = PassingClock()
        made = attempts(clock, timeout_s=5.0)
        made.pause_s(LOST)
        clock.passed_s = 5.0
        with pytest.raises(AnswerLost, match="may have been done"):
            made.pause_s(GONE)

    def test_waiting_on_purpose_counts_for_nothing(self) -> None:
        clock = PassingClock()
        made = attempts(clock, wait_s=20.0, timeout_s=1.0)
        clock.passed_s = 20.0
        assert made.pause_s(GONE) > 0
        assert pytest.approx(21.0) == made.patience_s()
        clock.passed_s += 1.0  # of a server that is not there: that is no wait on purpose
        made.pause_s(GONE)
        made.patience_s()
        clock.passed_s += 22.0
        with pytest.raises(ServerUnavailable):
            made.pause_s(GONE)
