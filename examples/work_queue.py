"""A durable work queue in a folder: three workers, retries with backoff, dead letters, and sending them back.

    python -m examples.work_queue FOLDER

Some addresses refuse at first, and one always does. All that can be sent is sent, and what cannot ends among the dead
letters, with the reason; then the last address is mended, and its mail is sent back to the queue.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import Counter

import afterlog

RETRY = afterlog.RetryPolicy(first_ms=20, factor=2, max_ms=200, jitter=0.1, attempts=4)


class Deliveries:
    """The world outside: `flaky` refuses twice, `gone` until it is mended."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.mended = False
        self._tries: Counter[bytes] = Counter()

    def deliver(self, address: bytes) -> None:
        self._tries[address] += 1
        if address.startswith(b"flaky") and self._tries[address] <= 2:
            raise ConnectionError("come back later")
        if address == b"gone" and not self.mended:
            raise LookupError("no such address")
        self.sent.append(address)


def work(subscription: afterlog.Subscription, deliveries: Deliveries) -> None:
    """Until the subscription is closed."""
    for message in subscription:
        with message:
            deliveries.deliver(message.value or b"")


def run(folder: str, addresses: list[bytes]) -> Deliveries:
    """Send to all addresses, with three workers."""
    deliveries = Deliveries()
    with afterlog.open(folder) as store:
        store.create_topic("mail")
        readers = [store.subscribe("mail", "sender", retry=RETRY, dead_letter="mail.dead") for _ in range(3)]
        workers = [threading.Thread(target=work, args=(reader, deliveries)) for reader in readers]
        for worker in workers:
            worker.start()
        store.send_many("mail", addresses, delay=0.01)
        _until_done(readers[0], len(addresses))
        for letter in store.dead_letters("mail.dead"):
            assert letter.origin is not None
            print(f"{letter.message.value!r} failed {letter.origin.redelivery_count} times: {letter.origin.reason}")
        deliveries.mended = True
        print("sent back:", store.redrive("mail.dead").redriven)
        _until_done(readers[0], len(addresses) + 1)
        print(readers[0].stats())
    for worker in workers:
        worker.join()
    return deliveries


def _until_done(subscription: afterlog.Subscription, count: int) -> None:
    pause = threading.Event()
    while (stats := subscription.stats()).acked + stats.dead < count:
        pause.wait(0.01)


if __name__ == "__main__":
    logging.getLogger("afterlog").setLevel(logging.CRITICAL)  # each failure is logged with its traceback
    found = run(sys.argv[1], [b"good-%d" % number for number in range(20)] + [b"flaky-1", b"flaky-2", b"gone"])
    print(len(found.sent), "sent")
