"""What it costs to hand out of each key one record at a time, beside a subscription that has no order.

    python -m bench.in_turn

A row is so many records of 100 bytes, of so many keys, received and acked so many at a time under the durability `os`,
in one process: CPU a record, and the longest call. The ratio is what the order costs.
"""

from __future__ import annotations

import random
import tempfile
import time
from typing import Any, NamedTuple

import afterlog

ROWS = ((100_000, 100_000, 100), (100_000, 1_000, 100), (20_000, 10, 100), (20_000, 10_000, 1), (3_000, 1, 1))
"""(records, keys, at a time)"""


class Cost(NamedTuple):
    """us of CPU a record; ms of the longest receive and ack."""

    cpu_us: float
    longest_ms: float


def measured(records: int, keys: int, at_a_time: int, **options: Any) -> Cost:
    """Of a store of its own."""
    with (
        tempfile.TemporaryDirectory() as folder,
        afterlog.open(folder, config=afterlog.Config(durability=afterlog.OS)) as store,
    ):
        chance = random.Random(1)
        store.create_topic("t")
        chosen = [b"key %d" % chance.randrange(keys) for _ in range(records)]
        store.send_many("t", [b"x" * 100] * records, keys=chosen)
        with store.subscribe("t", "s", **options) as subscription:
            left, longest_s, begun_s = records, 0.0, time.process_time()
            while left:
                at_s = time.perf_counter()
                received = subscription.receive(at_a_time)
                if at_a_time == 1:
                    subscription.ack(received[0])
                else:
                    subscription.ack_many(received)
                left -= len(received)
                longest_s = max(longest_s, time.perf_counter() - at_s)
            return Cost((time.process_time() - begun_s) / records * 1e6, longest_s * 1e3)


def main() -> None:
    print(f"{'records':>8} {'keys':>8} {'at a time':>9} | {'plain us':>8} {'in turn us':>10} {'ratio':>6} | longest ms")
    for records, keys, at_a_time in ROWS:
        plain, in_turn = (measured(records, keys, at_a_time, **each) for each in ({}, {"ordered_by": "key"}))
        print(
            f"{records:8,} {keys:8,} {at_a_time:9} | {plain.cpu_us:8.1f} {in_turn.cpu_us:10.1f} "
            f"{in_turn.cpu_us / plain.cpu_us:6.1f} | {plain.longest_ms:.0f} and {in_turn.longest_ms:.0f}"
        )


if __name__ == "__main__":
    main()
