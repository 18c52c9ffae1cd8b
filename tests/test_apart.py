"""A process that dies or hangs is a failure that is told, and the next call has another process."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.apart import apart


def test_what_comes_back() -> None:
    with apart() as calls:
        there = calls(os.getpid)
        assert os.getpid() != there
        with pytest.raises(ZeroDivisionError):
            calls(divmod, 1, 0)
        with pytest.raises(AssertionError, match=r"process of kill\(.*\) died"):
            calls(os.kill, there, signal.SIGKILL)
        assert there != calls(os.getpid)


def test_one_that_hangs() -> None:
    with apart(timeout_s=0.01) as calls, pytest.raises(AssertionError, match=r"process of sleep\(3600,\) hangs"):
        calls(time.sleep, 3600)
