"""The page cache: parts of remote objects on the local disk, within a budget.

    object    page 0 │ page 1 │ … │ page n     a fixed grid of `page_bytes`; the last page may be shorter
    slab      slot 0 │ slot 1 │ …              one scratch file; a slot holds one page of any object

    ranges ── cut at pages ──┬─ cached ────────────────────── pread from the slot ─────────────┐
                             ├─ being fetched by another thread ── wait for it ────────────────┼──> one array
                             └─ missing ── stretches of pages, a ranged GET each ── into slots ┘

The slab is read and written, never mapped, so that resident memory is what calls in flight ask for. The page that was
used longest ago makes room for the next one. Nothing is asked of what the slab held before: it begins empty.

Read-ahead. A reader that goes on enters a page at its first byte, and the pages before it are cached; one that looks
here and there hardly ever does. Where the page is missing, as many are fetched as are cached before it, and one more:
1, 2, 4, 8 … up to `_AHEAD_BYTES`. There is nothing to remember, so any number of readers may go on in one object.

The local disk only makes reads cheaper. Where it is full, or fails, the cache takes no more room than it has, what
cannot be read back is fetched anew, and the log says so once. Whether the bytes are those that were put, the reader
checks: it has the checksums, and calls `forget` where they do not match.

Invariants, proved by `check`:

1. A slot that is in use is one page's, or free, or being filled, or still read by who found the page before it went.
2. A slot that is being read or filled is given to no other page.
3. The slab never has more slots than the budget allows.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from afterlog.base.errors import CorruptRemote, StorageFull
from afterlog.base.files import Bytes, Files, ScratchFile
from afterlog.base.locks import Switch
from afterlog.index.growing_columns import Int64Array
from afterlog.tier.remote_store import RemoteStore

_FLIGHT_BYTES = 16 << 20
"""What one call fetches at a time. Larger: fewer waits for the storage, more memory."""
_AHEAD_BYTES = 2 << 20
"""What is fetched at once for a reader that goes on. Larger: fewer requests, more for nothing where it stops."""

logger = logging.getLogger("afterlog.tier")


class PageCacheCounts(NamedTuple):
    """What a cache has done so far, and holds."""

    requests: int
    """Ranges that the storage was asked for."""
    fetched_bytes: int
    """What it gave."""
    read_bytes: int
    """What callers were given."""
    errors: int
    """Calls of the storage that failed."""
    hits: int
    """Pages that a call wanted and did not have to fetch."""
    held_bytes: int
    """Pages that are in slots now."""


class _Object(NamedTuple):
    remote: RemoteStore
    key: str
    size: int


class _Fill:
    """A page that is being fetched. Once `done`, it is in `data`, or could not be had."""

    __slots__ = ("data", "done")

    def __init__(self) -> None:
        self.done = Switch()
        self.data: memoryview | None = None


_Page = tuple[str, int]
"""The key of an object, and the number of the page in it."""
_Source = int | memoryview
"""Where a page is: a slot, or memory."""


class PageCache:
    """Thread-safe. A key names one object for good: whoever stores other bytes does so under another key."""

    def __init__(self, files: Files, path: Path, budget_bytes: int, page_bytes: int) -> None:
        """`path`: of the slab, which has the name for an instant only."""
        self.page_bytes = page_bytes
        self._slots_max = budget_bytes // page_bytes
        self._ahead_max = max(min(_AHEAD_BYTES // page_bytes, self._slots_max // 4), 1)
        self._slots: OrderedDict[_Page, int] = OrderedDict()
        self._fills: dict[_Page, _Fill] = {}
        self._readers: Counter[int] = Counter()
        """Of each slot that has some."""
        self._let_go: set[int] = set()
        """Slots whose page went while they were read."""
        self._free: list[int] = []
        self._opened = 0
        """Slots that the slab has; some may have failed, and are used no more."""
        self._calls = 0
        self._closed = False
        self._requests, self._fetched_bytes, self._read_bytes, self._errors, self._hits = 0, 0, 0, 0, 0
        self._complained = False
        self._lock = threading.Lock()
        self._slab: ScratchFile | None = None
        try:
            self._slab = files.scratch(path)
            weakref.finalize(self, self._slab.close).atexit = False
        except StorageFull as error:
            self._disk_failed(error)

    def read(self, remote: RemoteStore, key: str, size: int, starts: Int64Array, stops: Int64Array) -> Bytes:
        """The bytes [start, stop) of each range one after another, in an array of their own.

        int64[n] both, in any order. `size`: of the object; ValueError where a range lies outside. Raises what the
        storage raises; CorruptRemote where it gives fewer bytes than it was asked for.
        """
        if len(starts) and (int(starts.min()) < 0 or int(stops.max()) > size or bool((starts > stops).any())):
            raise ValueError(f"ranges that do not lie in the {size} bytes of {key}")
        answer = np.empty(int((stops - starts).sum()), np.uint8)
        object_, into = _Object(remote, key, size), memoryview(answer)
        with self._lock:
            self._calls += 1
        try:
            for pieces in _cut(starts, stops, self.page_bytes, max(_FLIGHT_BYTES // self.page_bytes, 1)):
                self._read_pieces(object_, pieces, into)
        finally:
            with self._lock:
                self._calls -= 1
                self._close_if_unused()
        with self._lock:
            self._read_bytes += len(answer)
        return answer

    def forget(self, key: str) -> None:
        """Drop the pages of an object: what is read of it from now on is fetched anew."""
        with self._lock:
            for page in [page for page in self._slots if page[0] == key]:
                self._release(self._slots.pop(page))
            for page in [page for page in self._fills if page[0] == key]:
                del self._fills[page]

    def counts(self) -> PageCacheCounts:
        """All of one instant."""
        with self._lock:
            held_bytes = len(self._slots) * self.page_bytes
            return PageCacheCounts(
                self._requests, self._fetched_bytes, self._read_bytes, self._errors, self._hits, held_bytes
            )

    def close(self) -> None:
        """Give the room back. Who goes on reading gets everything from the storage."""
        with self._lock:
            self._closed = True
            self._slots.clear()
            self._free.clear()
            self._close_if_unused()

    def check(self) -> None:
        """Prove the invariants."""
        with self._lock:
            owned = [*self._slots.values(), *self._free, *self._let_go]
            assert len(owned) == len(set(owned)) <= self._opened <= self._slots_max
            assert not set(self._free) & self._readers.keys()
            assert self._let_go <= self._readers.keys() <= {*self._slots.values(), *self._let_go}
            assert all(fill.data is not None or not fill.done.is_set() for fill in self._fills.values())

    def _read_pieces(self, object_: _Object, pieces: Int64Array, into: memoryview) -> None:
        """Read pieces of pages, as `_cut` makes them, to where they belong."""
        found: list[int] = []
        try:
            sources = self._sources(object_, pieces, found)
            wanted: list[tuple[memoryview, int]] = []
            rows: list[tuple[int, int]] = []
            for number, position, size, target in zip(*pieces.tolist(), strict=True):
                source, part = sources[number], into[target : target + size]
                if isinstance(source, int):
                    wanted.append((part, source * self.page_bytes + position))
                    rows.append((number, position))
                else:
                    part[:] = source[position : position + size]
            done = 0
            while (done := done + self._read_slots(wanted[done:])) < len(wanted):
                part, place = wanted[done]
                self._read_anew(object_, *rows[done], place // self.page_bytes, part)
                done += 1
        finally:
            with self._lock:
                for slot in found:
                    self._let_read(slot)

    def _read_slots(self, wanted: Sequence[tuple[memoryview, int]]) -> int:
        """How many of the first were read; the local disk does not give back what it was given of the next one."""
        if not wanted:
            return 0
        assert self._slab is not None
        try:
            return self._slab.pread(wanted)
        except OSError as error:
            self._disk_failed(error)
            return 0

    def _read_anew(self, object_: _Object, number: int, position: int, slot: int, into: memoryview) -> None:
        """From a page that cannot be read in its slot."""
        with self._lock:
            if self._slots.get((object_.key, number)) == slot:
                self._release(self._slots.pop((object_.key, number)))
        [source] = self._fetch(object_, [number])
        into[:] = source[position : position + len(into)]

    def _sources(self, object_: _Object, pieces: Int64Array, found: list[int]) -> dict[int, _Source]:
        """Where each page of the pieces is; those in slots stay there until `found`, which gets these, is let go."""
        entered = set(pieces[0, pieces[1] == 0].tolist())
        sources: dict[int, _Source] = {}
        left = [*dict.fromkeys(pieces[0].tolist())]
        while left:
            cached, waiting, claimed = self._claim(object_, left, entered)
            sources.update(cached)
            found += cached.values()
            self._fill(object_, claimed)
            for number, fill in (waiting | claimed).items():
                fill.done.wait()
                if fill.data is not None:
                    sources[number] = fill.data
            left = [number for number in waiting if number not in sources]  # its thread failed: try ourselves
        return sources

    def _claim(
        self, object_: _Object, pages: list[int], entered: set[int]
    ) -> tuple[dict[int, int], dict[int, _Fill], dict[int, _Fill]]:
        """The slots of what is cached; what others are fetching; and what is ours to fetch, in page order."""
        cached, waiting, claimed = dict[int, int](), dict[int, _Fill](), dict[int, _Fill]()
        with self._lock:
            for number in pages:
                page = object_.key, number
                if (slot := self._slots.get(page)) is not None:
                    self._slots.move_to_end(page)
                    self._readers[slot] += 1
                    cached[number] = slot
                elif (fill := self._fills.get(page)) is None:
                    for each in self._ahead(object_, number) if number in entered else [number]:
                        claimed[each] = self._fills[object_.key, each] = _Fill()
                elif number not in claimed:
                    waiting[number] = fill
            self._hits += len(cached) + len(waiting)
        return cached, waiting, claimed

    def _ahead(self, object_: _Object, first: int) -> Iterator[int]:
        """The missing pages to fetch from one on: one more than are cached before it."""
        before = first
        while first - before < self._ahead_max - 1 and (object_.key, before - 1) in self._slots:
            before -= 1
        end = min(2 * first - before + 1, -(-object_.size // self.page_bytes))
        return takewhile(lambda number: self._is_missing((object_.key, number)), range(first, end))

    def _is_missing(self, page: _Page) -> bool:
        return page not in self._slots and page not in self._fills

    def _fill(self, object_: _Object, claimed: dict[int, _Fill]) -> None:
        """Fetch pages, for us and for who waits for them, and put them into slots."""
        if not claimed:
            return
        try:
            for fill, data in zip(claimed.values(), self._fetch(object_, [*claimed]), strict=True):
                fill.data = data
                fill.done.set()
            for number, fill in claimed.items():
                self._keep((object_.key, number), fill)
        finally:
            with self._lock:
                for number, fill in claimed.items():
                    if self._fills.get((object_.key, number)) is fill:
                        del self._fills[object_.key, number]
                    fill.done.set()

    def _fetch(self, object_: _Object, pages: list[int]) -> Iterator[memoryview]:
        """The bytes of each of some ascending pages; those that follow each other come as one range."""
        numbers = np.array(pages, np.int64)
        stretches = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
        ranges = [
            (int(stretch[0]) * self.page_bytes, min((int(stretch[-1]) + 1) * self.page_bytes, object_.size))
            for stretch in stretches
        ]
        try:
            parts = object_.remote.get_ranges(object_.key, ranges, gap=0)
        except BaseException:
            with self._lock:
                self._errors += 1
            raise
        with self._lock:
            self._requests += len(ranges)
            self._fetched_bytes += sum(len(part) for part in parts)
        for part, (start, stop) in zip(parts, ranges, strict=True):
            if len(part) != stop - start:
                raise CorruptRemote(
                    f"{len(part)} bytes, where {stop - start} were asked for", path=object_.key, position=start
                )
        for part in parts:
            for position in range(0, len(part), self.page_bytes):
                yield memoryview(part)[position : position + self.page_bytes]

    def _keep(self, page: _Page, fill: _Fill) -> None:
        """Put a page into a slot, if there is one to be had."""
        assert fill.data is not None
        with self._lock:
            slot = self._free_slot()
        if slot is None or self._slab is None:
            return
        try:
            self._slab.pwrite(fill.data, slot * self.page_bytes)
        except OSError as error:
            self._disk_failed(error)
            return
        with self._lock:
            if self._fills.get(page) is fill and not self._closed:
                del self._fills[page]
                self._slots[page] = slot
            else:  # forgotten meanwhile
                self._free.append(slot)

    # Slots: the caller holds the lock.

    def _free_slot(self) -> int | None:
        """A slot to fill, which is nobody's until it is; None where all are being read."""
        if self._closed:
            return None
        if self._free:
            return self._free.pop()
        if self._opened < self._slots_max:
            self._opened += 1
            return self._opened - 1
        for page, slot in self._slots.items():
            if slot not in self._readers:
                del self._slots[page]
                return slot
        return None

    def _release(self, slot: int) -> None:
        """Its page is no longer cached."""
        if slot in self._readers:
            self._let_go.add(slot)
        else:
            self._free.append(slot)

    def _let_read(self, slot: int) -> None:
        """One of its readers is done."""
        self._readers[slot] -= 1
        if not self._readers[slot]:
            del self._readers[slot]
            if slot in self._let_go:
                self._let_go.remove(slot)
                self._free.append(slot)

    def _close_if_unused(self) -> None:
        if self._closed and not self._calls and self._slab is not None:
            self._slab.close()
            self._slab = None

    def _disk_failed(self, error: OSError) -> None:
        """Take no more room on the local disk."""
        with self._lock:
            self._slots_max = self._opened
            complained, self._complained = self._complained, True
        if not complained:
            logger.warning("the cache of object storage is limited to the room that it has: %s", error)


def _cut(starts: Int64Array, stops: Int64Array, page_bytes: int, pages_max: int) -> Iterator[Int64Array]:
    """The ranges as pieces of pages, in page order, those of so many pages at a time.

    A column a piece: number of the page, position in it, size, and where it goes in the answer.
    """
    goes_on = starts[1:] == stops[:-1]
    if goes_on.any():
        starts, stops = starts[np.append(True, ~goes_on)], stops[np.append(~goes_on, True)]
    sizes = stops - starts
    targets = sizes.cumsum() - sizes
    first = starts // page_bytes
    counts = ((stops - 1) // page_bytes - first + 1) * (sizes > 0)
    row = np.arange(len(starts)).repeat(counts)
    page = np.arange(len(row)) - (counts.cumsum() - counts - first).repeat(counts)
    start = np.maximum(starts[row], page * page_bytes)
    stop = np.minimum(stops[row], (page + 1) * page_bytes)
    pieces = np.array([page, start - page * page_bytes, stop - start, targets[row] + start - starts[row]])
    pieces = pieces[:, page.argsort(kind="stable")]
    changes = np.flatnonzero(pieces[0, 1:] != pieces[0, :-1]) + 1
    for begin, end in pairwise([0, *changes[pages_max - 1 :: pages_max].tolist(), len(row)]):
        yield pieces[:, begin:end]
