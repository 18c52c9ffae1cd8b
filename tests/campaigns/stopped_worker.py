"""The process that `tests/campaigns/test_stopped.py` stops: handlers in threads, a producer beside them, and SIGTERM
drains.

It says what its handlers begin, and what is acked; see `tests/campaigns/killed_worker.py` for how it is run.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import afterlog
from afterlog.store.store import Store
from afterlog.subscription.leased_message import LeasedMessage
from afterlog.subscription.received import Receipts
from afterlog.subscription.receiver import Receiver
from afterlog.subscription.subscription import Subscription
from tests.campaigns.killed_worker import CONFIG, nothing_planted, say, serve

LEASE_MS = 600_000
HANDLERS = 4
PARTITIONS = 2


def live(folder: Path, seed: str) -> None:
    with afterlog.open(folder, config=CONFIG) as store:
        store.create_topic("mail", PARTITIONS)
        with (
            store.subscribe("mail", "sender", lease_ms=LEASE_MS) as subscription,
            subscription.draining_on(signal.SIGTERM) as draining,
        ):
            handlers = [threading.Thread(target=handle, args=(subscription, f"{seed}.{n}")) for n in range(HANDLERS)]
            producer = threading.Thread(target=send, args=(store, subscription, seed))
            for thread in (producer, *handlers):
                thread.daemon = True
                thread.start()
            while not draining.signalled:
                time.sleep(0.001)
            producer.join()


def send(store: Store, subscription: Subscription, seed: str) -> None:
    chance, sent = random.Random(seed), 0
    while not subscription.ended:
        values = [f"{seed}-{sent + row}" for row in range(chance.choice([1, 3, 20]))]
        sent += len(values)
        say("send", values)
        store.send_many("mail", [value.encode() for value in values])
        time.sleep(chance.choice([0, 0.001, 0.005]))


def handle(subscription: Subscription, seed: str) -> None:
    chance = random.Random(seed)
    for message in subscription:
        with message:
            say("begin", (message.value or b"").decode(), message.redelivery_count)
            time.sleep(chance.choice([0, 0, 0, 0.001, 0.05]))
        say("acked", (message.value or b"").decode())


# Bugs, planted in a worker to see that they are caught.


def what_waits_is_acked() -> None:
    """A drain acks what was leased ahead."""

    def give_back(self: Receiver, messages: Sequence[LeasedMessage]) -> None:
        for number, receipts in Receipts.of(messages).by_partition():
            self._parts[number].subscription.ack(receipts.delivery_offset)

    patch.object(Receiver, "_give_back", give_back).start()


def handlers_are_not_waited_for() -> None:
    """A drain returns while they work; blocks that are open do not hold up a close."""
    patch.object(Receiver, "is_idle", lambda self: True).start()


BUGS = {bug.__name__: bug for bug in (nothing_planted, what_waits_is_acked, handlers_are_not_waited_for)}

if __name__ == "__main__":
    serve(live, BUGS)
