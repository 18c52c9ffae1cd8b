"""Keys of stores that sort bytes: due time and number, 8 bytes each, big-endian."""

from __future__ import annotations

import numpy as np

from bench.rivals.load import Batch

KEY_BYTES = 16
FIRST = bytes(KEY_BYTES)


def sorted_items(batch: Batch) -> list[tuple[bytes, bytes]]:
    """Keys with bodies, in the order of the keys: stores that sort bytes like to be filled like that."""
    if len(batch.due) == 1:  # who has one record needs no columns
        key = int(batch.due[0]).to_bytes(8, "big") + int(batch.numbers[0]).to_bytes(8, "big")
        return [(key, batch.bodies[0])]
    order = np.argsort(batch.due, kind="stable")
    text = np.stack([batch.due[order], batch.numbers[order]], 1).astype(">i8").tobytes()
    bodies = batch.bodies
    starts = range(0, len(text), KEY_BYTES)
    return [(text[start : start + KEY_BYTES], bodies[row]) for start, row in zip(starts, order.tolist(), strict=True)]


def upto(now_ms: int) -> bytes:
    """The first key that is not due."""
    return (now_ms + 1).to_bytes(8, "big") + bytes(8)
