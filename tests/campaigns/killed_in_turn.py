"""A worker of a subscription that is ordered by key, in a process that is killed: it says what it begins and what it
has ended, in one file for all of them, whose lines are in the order in which that was so.

    python -m tests.campaigns.killed_in_turn DATA TOLD BUG
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import afterlog
from afterlog.subscription.key_order import KeyOrder

LEASE_MS = 1_500
READER = {"ordered_by": "key", "lease_ms": LEASE_MS, "retry": afterlog.RetryPolicy(first_ms=20, factor=1, jitter=0)}


def _at_once(order: KeyOrder, key: int, offsets: list[int]) -> None:
    order._turns.update(dict.fromkeys(offsets, key))


@contextmanager
def planted(bug: str) -> Iterator[None]:
    """What the process that has the store does wrong."""
    if bug == "no order":
        with patch.object(KeyOrder, "_queue_key", _at_once):
            yield
    else:
        yield


def main(data: str, told: str, bug: str) -> None:
    line = os.open(told, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def say(*words: object) -> None:
        os.write(line, (" ".join(map(str, words)) + "\n").encode())

    with (
        planted(bug),
        afterlog.open(data, shared=True) as store,
        store.subscribe("mail", "s", **READER) as subscription,  # type: ignore[arg-type]
    ):
        say("ready", os.getpid())
        for message in subscription:
            with message:
                key, number = (message.key or b"").decode(), int(message.value or b"")
                say("begins", key, number)
                time.sleep(number % 5 / 1_000)
                if number % 17 == 0 and not message.redelivery_count:
                    raise LookupError("once")
                say("ended", key, number)


if __name__ == "__main__":
    main(*sys.argv[1:])
