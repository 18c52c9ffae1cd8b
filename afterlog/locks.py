"""Several locks at once, each let go whatever strikes.

`with lock:` is one instruction at either end, between which nothing strikes; an `ExitStack` is Python, and an exception
amid its exit leaves what it had not come to held for good.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, TypeVar

Done = TypeVar("Done")
_NO_LOCK: Final = nullcontext()
_AT_ONCE: Final = 8
"""Locks of one frame: of 10,000 each by itself there would be too many."""


def within(locks: Sequence[AbstractContextManager[Any]], do: Callable[[], Done]) -> Done:
    """What `do` gives, while these are held, which are taken in this order. Raises as it does."""
    if not locks:
        return do()
    frame: list[AbstractContextManager[Any]] = [*locks[:_AT_ONCE], *[_NO_LOCK] * (_AT_ONCE - len(locks))]
    one, two, three, four, five, six, seven, eight = frame
    with one, two, three, four, five, six, seven, eight:
        return within(locks[_AT_ONCE:], do)
