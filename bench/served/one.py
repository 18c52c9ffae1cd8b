"""One client, one request after the other, through the socket: what one costs.

    python -m bench.served.one [--calls 2000] [--every-ms 3]

us of CPU of one call, of the client and of the server, durable: *nothing* is a receive where nothing is due; *waits* is
a `receive(1)` that waits for a record, one of which becomes due every so many ms.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import afterlog
from afterlog.base.files import temporary_folder
from bench.harness import machine
from bench.rivals.ours import TOPIC
from bench.rivals.usage import used_s
from bench.served.contestants import AfterlogServed
from bench.served.work import SIZE, now_ms

_LEAD_MS = 500
_SETTLE_S = 0.05
_WARM = 50


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2_000)
    parser.add_argument("--every-ms", type=float, default=3.0)
    asked = parser.parse_args(arguments)
    with temporary_folder() as folder:
        figures = {"machine": machine(), **vars(asked), **one(folder / "data", asked.calls, asked.every_ms)}
    print(json.dumps(figures, indent=2))
    return figures


def one(folder: Path, calls: int, every_ms: float) -> dict[str, dict[str, float]]:
    contestant, value = AfterlogServed(folder, True, SIZE), b"x" * SIZE
    contestant.open()
    with afterlog.connect(folder) as store, store.subscribe(TOPIC, "one") as reader:
        received = list[Any]()

        def waiting(_: int) -> None:
            while not reader.receive(1, timeout=5.0):
                pass

        def cost(call: Callable[[int], object], count: int) -> dict[str, float]:
            client_s, server_s = time.process_time(), used_s(contestant.processes())
            for number in range(count):
                call(number)
            client_s = time.process_time() - client_s
            time.sleep(_SETTLE_S)
            server_s = used_s(contestant.processes()) - server_s
            return {"client_us": round(1e6 * client_s / count, 1), "server_us": round(1e6 * server_s / count, 1)}

        for _ in range(_WARM):
            store.send(TOPIC, value)
        found = {
            "send": cost(lambda _: store.send(TOPIC, value), calls),
            "receive": cost(lambda _: received.append(reader.receive(1)), calls),
            "ack": cost(lambda number: reader.ack_many(received[number]), calls),
        }
        while leftover := reader.receive(_WARM):
            reader.ack_many(leftover)
        found["nothing"] = cost(lambda _: reader.receive(), calls)
        waits = max(calls // 4, 1)
        due = (np.arange(waits) * every_ms + now_ms() + _LEAD_MS).astype(np.int64)
        values = np.arange(waits + 1, dtype=np.int64) * SIZE, np.zeros(waits * SIZE, np.uint8)
        store.send_many(TOPIC, values, deliver_after=due)
        found["waits"] = cost(waiting, waits)
    contestant.close()
    return found


if __name__ == "__main__":
    main()
