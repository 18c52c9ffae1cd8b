"""The process that sends what is due: here a line in an outbox, for a mail or a message."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import afterlog
from examples.reminders.app import TOPIC

LEASE_MS = 5_000
"""A reminder whose sender was killed comes again after that; one whose sender works on stays leased."""


def main() -> None:
    data, outbox = sys.argv[1:]
    lines = os.open(outbox, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    retry = afterlog.RetryPolicy(attempts=8)
    with afterlog.open(data, shared=True) as store:
        for topic in (TOPIC, f"{TOPIC}.dead"):
            store.create_topic(topic, partitions=4 if topic == TOPIC else 1)
        with (
            store.subscribe(TOPIC, "sender", lease_ms=LEASE_MS, retry=retry, dead_letter=f"{TOPIC}.dead") as due,
            due.draining_on(signal.SIGTERM),
        ):
            for message in due:
                with message:  # acked at its end; sent again where this process is killed before
                    sent = {"id": str(message.id), "due_ms": message.due, "sent_ms": time.time_ns() // 1_000_000}
                    os.write(lines, json.dumps(sent | json.loads(message.value or b"{}")).encode() + b"\n")


if __name__ == "__main__":
    main()
