"""What it costs that many wait for a record that is due in an hour, and that nobody has sent one: CPU of the process.

    python -m bench.idle [--readers 1000] [--seconds 40]

Threads, each in `receive(timeout=None)` of a reader of its own, and the same as tasks of asyncio. Percent of one core;
it takes the waits' longest time twice, so that each looks again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import afterlog
from afterlog import aio
from afterlog.base.files import temporary_folder
from bench.harness import machine

SETTLE_S = 3.0
HOUR_S = 3_600


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readers", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=40.0)
    asked = parser.parse_args(arguments)
    figures: dict[str, Any] = {"machine": machine(), "readers": asked.readers}
    for name, pending in (("nothing_pending", False), ("in_an_hour", True)):
        with temporary_folder() as folder:
            figures[f"threads_{name}"] = threads(folder / "store", asked.readers, asked.seconds, pending)
        with temporary_folder() as folder:
            figures[f"tasks_{name}"] = asyncio.run(tasks(folder / "store", asked.readers, asked.seconds, pending))
    print(json.dumps(figures, indent=2))
    return figures


def threads(folder: Path, readers: int, seconds: float, pending: bool) -> float:
    with afterlog.open(folder) as store:
        store.create_topic("t")
        if pending:
            store.send("t", b"", delay=HOUR_S)
        subscriptions = [store.subscribe("t", "s") for _ in range(readers)]
        waiting = [threading.Thread(target=each.receive, args=(1, None)) for each in subscriptions]
        for thread in waiting:
            thread.start()
        time.sleep(min(SETTLE_S, seconds))
        cpu_s = time.process_time()
        time.sleep(seconds)
        cpu_s = time.process_time() - cpu_s
        for each in subscriptions:
            each.close()
        for thread in waiting:
            thread.join()
    return round(100 * cpu_s / seconds, 2)


async def tasks(folder: Path, readers: int, seconds: float, pending: bool) -> float:
    async with aio.open(folder) as store:
        await store.create_topic("t")
        if pending:
            await store.send("t", b"", delay=HOUR_S)
        subscriptions = [await store.subscribe("t", "s") for _ in range(readers)]
        waiting = [asyncio.create_task(each.receive(1, None)) for each in subscriptions]
        await asyncio.sleep(min(SETTLE_S, seconds))
        cpu_s = time.process_time()
        await asyncio.sleep(seconds)
        cpu_s = time.process_time() - cpu_s
        for each in subscriptions:
            await each.close()
        await asyncio.gather(*waiting)
    return round(100 * cpu_s / seconds, 2)


if __name__ == "__main__":
    main()
