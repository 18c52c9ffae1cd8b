"""One client that handles records as they become due, through the socket: what one costs, and how late it comes.

    python -m bench.served.handling [--rate 1000] [--seconds 5] [--threads 1] [--group-ms 0]

So many records a second are due at random; threads of one reader handle each in a `with` block that does nothing, and
so acks it. us of CPU of client and server for a record; ms from when it was due until its handler has it; how many
requests of each kind that took.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import afterlog
from afterlog.base.files import temporary_folder
from bench.harness import machine
from bench.rivals.load import SEED
from bench.rivals.ours import TOPIC
from bench.rivals.usage import used_s
from bench.served.contestants import AfterlogServed, metric
from bench.served.work import SIZE, now_ms

_LEAD_MS = 1_000
_ROWS = {"receives": "receive", "acks": "ack"}


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--group-ms", type=int, default=0)
    asked = parser.parse_args(arguments)
    with temporary_folder() as folder:
        found = handling(folder / "data", asked.rate, asked.seconds, asked.threads, asked.group_ms)
    figures = {"machine": machine(), **vars(asked), **found}
    print(json.dumps(figures, indent=2))
    return figures


def handling(folder: Path, rate: int, seconds: float, threads: int, group_ms: int) -> dict[str, float]:
    contestant, total = AfterlogServed(folder, True, SIZE), int(rate * seconds)
    contestant.open()
    late, left = list[float](), threading.Semaphore(0)
    with afterlog.connect(folder) as store, store.subscribe(TOPIC, "handling", ack_group_ms=group_ms) as reader:
        due = now_ms() + _LEAD_MS + np.sort(np.random.default_rng(SEED).integers(0, int(seconds * 1_000), total))
        values = np.arange(total + 1, dtype=np.int64) * SIZE, np.zeros(total * SIZE, np.uint8)
        store.send_many(TOPIC, values, deliver_after=due)

        def handle() -> None:
            for message in reader:
                with message:
                    late.append(time.time_ns() / 1e6 - message.deliver_after)
                left.release()

        client_s, server_s = time.process_time(), used_s(contestant.processes())
        working = [threading.Thread(target=handle) for _ in range(threads)]
        for thread in working:
            thread.start()
        for _ in range(total):
            left.acquire()
        client_s, server_s = time.process_time() - client_s, used_s(contestant.processes()) - server_s
        reader.close()
        for thread in working:
            thread.join()
    path = "/v1/topics/{topic}/subscriptions/{subscription}/"
    asked = {
        name: metric(folder, f'afterlog_server_requests_total{{method="POST",path="{path}{word}",status="200"}}')
        for name, word in _ROWS.items()
    }
    contestant.close()
    p50, p99 = np.percentile(late, (50, 99))
    return {
        "client_us": round(1e6 * client_s / total, 1), "server_us": round(1e6 * server_s / total, 1),
        "p50_ms": round(float(p50), 1), "p99_ms": round(float(p99), 1), "max_ms": round(max(late), 1),
        "early": sum(each < 0 for each in late), **asked,
    }  # fmt: skip


if __name__ == "__main__":
    main()
