"""A bare floor: an append file, due times as a numpy column in memory, no checksums, one reader.

It does as little as one can and still lose nothing: one write for a batch, one for an ack. What it has not: headers,
an index on disk (a reopen reads everything), more than one reader, retries, appends while it drains.
"""

from __future__ import annotations

import os

import numpy as np

from bench.rivals.load import Batch, Bytes
from bench.rivals.rival import Handed, Rival

_HEADER = np.dtype("<i8")
"""In front of each batch: how many records, and the size of each. Then the due times, then the bodies."""


class BareFloor(Rival):
    """Batches of bodies of one size."""

    name = "bare floor"
    objects = False
    live = False
    setting = "one append file and a sorted column of due times in memory; no checksums, no index on disk, one reader"

    def open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._log = os.open(self.folder / "log", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._acks = os.open(self.folder / "acks", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._due: list[np.ndarray] = []
        self._places: list[np.ndarray] = []
        self._end = 0
        self._sorted: np.ndarray | None = None
        self._read_back()
        acked = os.pread(self._acks, 8, max(os.fstat(self._acks).st_size - 8, 0))
        self._next = int(np.frombuffer(acked, _HEADER)[0]) if acked else 0

    def _read_back(self) -> None:
        data = np.fromfile(self.folder / "log", np.uint8)
        while self._end < len(data):
            count, size = data[self._end : self._end + 16].view(_HEADER).tolist()
            self._add(data[self._end + 16 : self._end + 16 + 8 * count].view(_HEADER).copy(), size)

    def _add(self, due: np.ndarray, size: int) -> None:
        first = self._end + 16 + 8 * len(due)
        self._due.append(due)
        self._places.append(first + size * np.arange(len(due), dtype=np.int64))
        self._end = first + size * len(due)
        self._size, self._sorted = size, None

    def fill(self, batch: Batch) -> None:
        count, size = batch.data.shape
        header = np.array([count, size], _HEADER)
        os.writev(self._log, [header.data, batch.due.data, batch.data.reshape(-1).data])
        if self.fsync:
            os.fdatasync(self._log)
        self._add(batch.due, size)

    def lease(self, now_ms: int, limit: int) -> Handed:
        if self._sorted is None:
            self._sort()
        end = min(self._next + limit, int(np.searchsorted(self._sorted_due, now_ms, "right")))
        places = self._sorted[self._next : end]  # type: ignore[index]
        bodies = self._windows[places] if len(places) else np.empty(0, np.uint8)
        self._next = end
        return Handed(bodies, end, len(places))

    def _sort(self) -> None:
        due = np.concatenate(self._due) if self._due else np.empty(0, np.int64)
        order = np.argsort(due, kind="stable")
        self._sorted_due = due[order]
        self._sorted = np.concatenate(self._places)[order] if self._places else order
        if self._end:
            mapped: Bytes = np.memmap(self.folder / "log", np.uint8, "r")
            self._windows = np.lib.stride_tricks.sliding_window_view(mapped, self._size)

    def ack(self, handed: Handed) -> None:
        os.write(self._acks, np.array([handed.token], _HEADER).tobytes())
        if self.fsync:
            os.fdatasync(self._acks)

    def close(self) -> None:
        os.close(self._log)
        os.close(self._acks)
