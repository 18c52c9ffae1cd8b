"""What people do with one record among many that wait: a cancel, another time, a retry; and headers that nobody reads.

    python -m bench.short_ways [--records 20000]

So many records of 100 bytes are pending, or in retry. us of CPU of one, durability `os`, so that no sync is counted.
*iteration*: of polls of 500 in which only the value is looked at, by the number of headers that each record has.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import afterlog
from afterlog.base.files import temporary_folder
from bench.harness import Times, machine
from bench.workloads import START_MS, TOPIC, make_due, new_store

VALUE = b"v" * 100
HOUR_S = 3_600
TOGETHER = 1_000
HEADERS = [("content-type", b"application/json"), ("trace-id", b"0123456789abcdef")]


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=20_000)
    asked = parser.parse_args(arguments)
    with temporary_folder() as folder:
        figures = {"machine": machine(), **measured(folder, asked.records)}
    print(json.dumps(figures, indent=2))
    return figures


def measured(folder: Path, records: int) -> dict[str, Any]:
    return {
        "records": records,
        **pending(folder / "pending", records),
        "retry_alone": retry(folder / "alone", records, together=False),
        "retry_of_a_thousand": retry(folder / "together", records, together=True),
        **{f"iteration_{count}_headers": iteration(folder / f"headers-{count}", records, count) for count in range(3)},
    }


def pending(folder: Path, records: int) -> dict[str, float]:
    """A tenth of them is cancelled, and a tenth gets another time."""
    with new_store(folder, afterlog.OS) as store:
        ids = [store.send(TOPIC, VALUE, delay=HOUR_S) for _ in range(records)]
        random.Random(1).shuffle(ids)
        chosen = iter(ids)

        def each(do: Callable[[afterlog.RecordId], object]) -> float:
            some = [*islice(chosen, records // 10)]
            return _us(lambda: [do(record) for record in some], len(some))

        return {
            "cancel": each(store.cancel),
            "reschedule": each(lambda record: store.reschedule(record, delay=2 * HOUR_S)),
        }


def retry(folder: Path, records: int, *, together: bool) -> float:
    """All were nacked, and come back within a minute; a twentieth of them is taken and acked, one after the other."""
    with new_store(folder, afterlog.OS) as store:
        clock = store.clock
        assert isinstance(clock, afterlog.ManualClock)
        for _ in range(records // TOGETHER if together else 0):
            store.send_many(TOPIC, [VALUE] * TOGETHER)
        for _ in range(0 if together else records):
            store.send(TOPIC, VALUE)
        clock.set(START_MS + 10)
        chance = random.Random(1)
        with store.subscribe(TOPIC, "retries", lease_ms=1_000 * HOUR_S) as reader:
            while messages := reader.receive(TOGETHER):
                for message in messages:
                    reader.nack(message, delay=1 + chance.random() * 60)
            clock.advance(30_000)

            def take(count: int) -> None:
                for _ in range(count):
                    [message] = reader.receive(1)
                    reader.ack(message)

            return _us(lambda: take(records // 20), records // 20)


def iteration(folder: Path, records: int, headers: int) -> float:
    with new_store(folder, afterlog.OS) as store:
        for _ in range(records // TOGETHER):
            store.send_many(TOPIC, [VALUE] * TOGETHER, headers=HEADERS[:headers])
        make_due(store)

        def look() -> None:
            with store.consumer(TOPIC, group="all", auto_commit=False) as consumer:
                messages: Iterable[afterlog.Message]
                while messages := consumer.poll(500):
                    for message in messages:
                        assert message.value

        return min(_us(look, records) for _ in range(3))


def _us(run: Callable[[], object], count: int) -> float:
    times = Times()
    with times.measured():
        run()
    return round(1e6 * times.cpu_s[0] / count, 2)


if __name__ == "__main__":
    main()
