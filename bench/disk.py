"""What a record takes on disk, by codec and spread; and what a codec over many entries would make of it, and cost.

    python -m bench.disk [--records 200000] [--folder FOLDER]

Records are due within a day, uniformly, and are sent 10,000 at a time; bodies are JSON of about 88 bytes, or 100 random
ones. *log*: bytes of the log a record. *frames*: the log of a store without codec and spread in zstd frames of so many
KiB: bytes a record, us of CPU a record to make them and to read them in append order, and us for one frame, which is
what a read of one record costs where delivery order leads elsewhere.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import afterlog
from bench.harness import machine
from bench.workloads import START_MS, TOPIC, drain, logs, make_due

DAY_MS = 86_400_000
CALL_RECORDS = 10_000
FRAMES_KIB = (16, 64, 1_024)
WAYS = (("none", 0), ("zstd", 0), ("none", 1_000), ("zstd", 1_000), ("zstd", 60_000))
"""Codec, and `deliver_after_spread_ms`."""


def json_bodies(count: int) -> list[bytes]:
    chance = random.Random(1)
    return [
        json.dumps(
            {
                "user": chance.randrange(10**6),
                "kind": chance.choice(["mail", "push", "sms"]),
                "order": f"{chance.getrandbits(48):012x}",
                "amount": chance.randrange(10**5) / 100,
                "lang": chance.choice(["de", "fr", "en"]),
            }
        ).encode()
        for _ in range(count)
    ]


def random_bodies(count: int) -> list[bytes]:
    draw = np.random.default_rng(1)
    return [draw.bytes(100) for _ in range(count)]


BODIES = {"json": json_bodies, "random": random_bodies}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    print(json.dumps(machine()))
    for kind in BODIES:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            for figures in measured(Path(folder), kind, arguments.records):
                print(json.dumps(figures), flush=True)


def measured(folder: Path, kind: str, records: int) -> list[dict[str, Any]]:
    """A row for each way to write them, and one for each size of a frame."""
    bodies, due = BODIES[kind](records), START_MS + np.random.default_rng(2).integers(1, DAY_MS, records)
    rows, plain = [], b""
    for codec, spread_ms in WAYS:
        path = folder / f"{codec}-{spread_ms}"
        config = afterlog.Config(durability=afterlog.OS, compression=codec, deliver_after_spread_ms=spread_ms)
        with afterlog.open(path, config=config, clock=afterlog.ManualClock(START_MS)) as store:
            store.create_topic(TOPIC)
            for first in range(0, records, CALL_RECORDS):
                some = slice(first, first + CALL_RECORDS)
                store.send_many(TOPIC, bodies[some], deliver_after=due[some])
            written = b"".join(log.read_bytes() for log in logs(path))
            plain = plain or written
            make_due(store)
            begun_s = time.process_time()
            assert records == drain(store, "g")
            took_s = time.process_time() - begun_s
        row = {"bodies": kind, "body": _each(sum(map(len, bodies)), records), "codec": codec, "spread_ms": spread_ms}
        rows.append(row | {"log": _each(len(written), records), "drain_us": _each(1e6 * took_s, records)})
    return rows + [_in_frames(plain, kib, kind, records) for kib in FRAMES_KIB]


def _in_frames(data: bytes, kib: int, kind: str, records: int) -> dict[str, Any]:
    import zstandard

    made_s = time.process_time()
    writing = zstandard.ZstdCompressor(level=3)
    frames = [writing.compress(data[first : first + (kib << 10)]) for first in range(0, len(data), kib << 10)]
    made_s, read_s = time.process_time() - made_s, time.process_time()
    reading = zstandard.ZstdDecompressor()
    for frame in frames:
        reading.decompress(frame)
    read_s = time.process_time() - read_s
    return {
        "bodies": kind,
        "frames_kib": kib,
        "log": _each(sum(map(len, frames)), records),
        "made_us": _each(1e6 * made_s, records),
        "read_us": _each(1e6 * read_s, records),
        "one_frame_us": _each(1e6 * read_s, len(frames)),
    }


def _each(total: float, count: int) -> float:
    return round(total / count, 3)


if __name__ == "__main__":
    main()
