"""What people do with one record among many that wait: a cancel, another time, a retry; and headers that nobody reads.

    python -m bench.short_ways [--records 20000]

So many records of 100 bytes are pending, or in retry. us of CPU of one, durability `os`, so that no sync counts; but
for blocks that ack, durability `always`, a tenth of the records, by the `ack_group_ms` of their reader.
*second_reader*: of polls of 5,000 behind a consumer that was there when the records became due, one by one.
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
        **nacks(folder / "nacks", records),
        "second_reader": second_reader(folder / "second", records),
        "one_of_up_to_100": one_of_many(folder / "one", records // 10),
        **{f"block_acked_in_{ms}_ms": blocks(folder / f"blocks-{ms}", records // 10, ms) for ms in (0, 5)},
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
            "replace_by_unique_key": replaced(store, records // 10),
        }


def replaced(store: afterlog.Store, records: int) -> float:
    def send(key: int) -> None:
        store.send(TOPIC, VALUE, delay=HOUR_S, unique_key=b"%d" % key, on_conflict="replace")

    keys = [*range(records)]
    for key in keys:
        send(key)
    random.Random(1).shuffle(keys)
    return _us(lambda: [send(key) for key in keys], records)


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


def nacks(folder: Path, records: int) -> dict[str, float]:
    """A tenth of them each: the message, what was received, and an exception in the block, which is logged."""
    with new_store(folder, afterlog.OS) as store:
        store.send_many(TOPIC, [VALUE] * records)
        make_due(store)
        with store.subscribe(TOPIC, "nacks", lease_ms=1_000 * HOUR_S) as reader:
            messages, some = [*reader.receive(records // 10)], [reader.receive(1) for _ in range(records // 10)]
            alone = _us(lambda: [reader.nack(message, delay=HOUR_S) for message in messages], len(messages))
            return {
                "nack": alone,
                "nack_received": _us(lambda: [reader.nack(each, delay=HOUR_S) for each in some], len(some)),
            }


def second_reader(folder: Path, records: int) -> float:
    with new_store(folder, afterlog.OS) as store:
        clock = store.clock
        assert isinstance(clock, afterlog.ManualClock)
        now_ms = clock.now_ms()
        store.send_many(TOPIC, [VALUE] * records, deliver_after=range(now_ms + 1, now_ms + 1 + records))
        with store.consumer(TOPIC, group="live") as live:
            for _ in range(records):
                clock.advance(1)
                assert len(live.poll_columns(5_000)) == 1

        def look() -> None:
            with store.consumer(TOPIC, group="second") as second:
                found = 0
                while found < records:
                    found += len(second.poll_columns(5_000))

        return _us(look, records)


def one_of_many(folder: Path, records: int) -> float:
    """Up to 100 are asked for, and one is due."""
    times = Times()
    with new_store(folder, afterlog.OS) as store, store.subscribe(TOPIC, "one") as reader:
        for _ in range(records):
            store.send(TOPIC, VALUE)
            with times.measured():
                assert len(reader.receive(100)) == 1
    return round(1e6 * sum(times.cpu_s) / records, 2)


def blocks(folder: Path, records: int, group_ms: int) -> float:
    """By the wall clock: a group goes by it."""
    config = afterlog.Config(durability=afterlog.ALWAYS)
    with afterlog.open(folder, config=config) as store:
        store.create_topic(TOPIC)
        store.send_many(TOPIC, [VALUE] * records)

        def handle() -> None:
            with store.subscribe(TOPIC, "blocks", ack_group_ms=group_ms) as reader:
                for message in islice(reader, records):
                    with message:
                        pass

        return _us(handle, records)


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
