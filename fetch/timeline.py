"""The timeline: delivery order around the high watermark, merged once and shared by all readers of a partition.

    … merged blocks, cached …│ next_block ──> due, not yet merged │ pending
                             └ a merge iterator stands here       └ high watermark: counted, not merged

A block is an immutable stretch of delivery order. Readers that follow each other find the same blocks; a reader that
lags has an iterator of its own. Only blocks are held in memory, whatever is pending or behind. What is held says where
entries lie as of the last cleaning: a reading of a later one begins anew, and one of an earlier one holds nothing.

Invariants:

1. The high watermark counts the records with key <= (reading, visible end); it only grows.
2. Everything below the high watermark has its final delivery offset: appends are stamped at or above the reading.
3. Before the high watermark grows by a reading, the durable frontier covers that reading (`PartitionLog.lease`).
4. A reader gets nothing at or beyond the high watermark of its own reading.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from sortedcontainers import SortedDict

from afterlog.base.clock import INT64_MAX
from afterlog.base.errors import OffsetOutOfRange, StorageError
from afterlog.index.acked_ranges import AckedRanges
from afterlog.index.delayed_index import DelayedIndex, DueCounter
from afterlog.index.entries import IndexEntry, Key
from afterlog.index.growing_columns import Int64Array
from afterlog.index.hidden_keys import HiddenKeys
from afterlog.index.merge import Block, MergeIterator
from afterlog.log.broker_time import offset_at_broker_time
from afterlog.log.checkpoints import LogStart
from afterlog.log.partition_log import PartitionLog
from afterlog.log.version import Version, Visible

CACHED_ENTRIES_MAX = 262_144
"""Entries in cached blocks, at 40 bytes each, and what the blocks take themselves: 10 MB of a partition."""
ITERATORS_MAX = 16
"""Readers far apart that keep a merge iterator; one more begins with a search."""
BLOCK_ENTRIES = 8_192
"""Entries that a merge is asked for, where the reader wants no more."""
BLOCK_ENTRIES_MAX = 65_536
"""Entries that it is asked for at most. Larger: cheaper entries for who reads many at once, more memory per reader."""
FEW = 4
"""Records that are read one by one where they became due last. Larger: more of them, and no less than columns cost."""
SOON_MS = 50
"""Of the lease of the frontier there is that much left for who must not wait for another."""
ONES_MAX = 64
"""Entries found last that are known by their delivery offsets, about: readers that follow each other closely."""
BLOCK_ITSELF_ENTRIES = 20
"""What a block takes beside its entries, in entries: 800 bytes. Of what becomes due one by one each is a block."""
JOINED_MIN = 4
"""Cached blocks that follow each other are made one where there are so many, and a reader wants more than they hold."""
PENDING_ENTRIES = 256
"""Pending entries that are merged at first for who looks ahead; then twice as many each time."""
SEARCH_WAYS = 64
"""Instants that a search for a delivery offset counts at a time: one look at every run for six steps of a bisection."""


logger = logging.getLogger("afterlog.fetch")


class Reading(NamedTuple):
    """One fetch's view of a partition: the version that it reads, one clock reading, and how many records are due."""

    clock_ms: int
    version: Version
    upto: Key
    high_watermark: int
    log_start: int
    """The first delivery offset that can be read."""

    @property
    def visible(self) -> Visible:
        """What may be read."""
        return self.version.readable()

    @property
    def end_offset(self) -> int:
        """After the last visible record."""
        return self.version.visible.offset

    @property
    def hidden(self) -> HiddenKeys:
        """What is cancelled, as of what is visible: it keeps its delivery offsets and is stepped over."""
        return self.version.hidden


class LastFound(NamedTuple):
    """Entries of one record that were found last, by its delivery offset."""

    cleanings: int
    """They lie where they lay as of this one."""
    ones: dict[int, IndexEntry]


class FoundRecord(NamedTuple):
    """Where a record lies: an entry, and which of its records it is."""

    entry: IndexEntry
    row: int


class LastFew(NamedTuple):
    """A few records that were found last, by their delivery offsets."""

    cleanings: int
    """They lie where they lay as of this one."""
    few: dict[int, FoundRecord]


class Latest(NamedTuple):
    """A few records that became due last: the first delivery offset, a key behind which they are, and how many."""

    position: int
    after: Key
    records: int


def _latest(latest: Latest | None, before: int, high_watermark: int, key: Key) -> Latest | None:
    """With those that became due now: the high watermark was another before, and all was due up to a key."""
    rise = high_watermark - before
    if latest is not None and latest.position + latest.records == before and latest.records + rise <= FEW:
        return latest._replace(records=latest.records + rise)
    return Latest(before, key, rise) if rise <= FEW else None


class Timeline:
    """Delivery order of one delayed partition. Thread-safe."""

    opened_at: int
    """The high watermark when it was opened; the log end where it could not be counted."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._counter = DueCounter()
        self._blocks: SortedDict = SortedDict()
        self._block_starts: deque[int] = deque()
        self._cached_entries = 0
        self._iterators: OrderedDict[int, MergeIterator] = OrderedDict()
        self._turns: WeakValueDictionary[int, Turn] = WeakValueDictionary()
        self._torn = False
        """Whether the caches are being changed, or were when an exception struck: then they are given up."""
        version = log.version
        try:
            self._high_watermark = self._counter.advance(version.delayed_index, log.opened_upto)
            self.opened_at = self._high_watermark
        except StorageError as error:  # what is pending may be in object storage only, after a restore
            if not any(run.remote for run in version.delayed_index.runs):
                raise
            logger.warning("%s: opened, but nothing can be delivered yet: %s", log.context.folder, error)
            self._high_watermark, self.opened_at = version.log_start.delivery_offset, version.visible.offset
        self._lock = threading.Lock()
        self._cleanings = version.delayed_index.cleanings
        """What is cached is as of this one."""
        self._found = LastFound(self._cleanings, {})
        self._few = LastFew(self._cleanings, {})
        self._latest: Latest | None = None
        """What became due last, where that was one record."""
        self._next_entry: IndexEntry | None = None
        self._next_counter = DueCounter()
        self._ahead_lock = threading.Lock()
        """Held over the two above, and over no other lock."""

    def log_start(self, version: Version) -> int:
        """The first delivery offset that can be read."""
        return version.log_start.delivery_offset

    def advance(self) -> Reading:
        """Take a reading of the clock and move the high watermark. Raises ClockBehind, StoreClosed, StorageFull."""
        self._log.commit.owned()
        with self._lock:
            clock_ms, version = self._log.due_reading()
            upto, before = Key(clock_ms, version.visible.offset - 1), self._counter.key
            high_watermark = self._counter.advance(version.delayed_index, upto)
            if high_watermark > self._high_watermark:
                self._log.lease(clock_ms)
                self._latest = _latest(self._latest, self._high_watermark, high_watermark, before)
                self._high_watermark = high_watermark
            return Reading(clock_ms, version, upto, self._high_watermark, version.log_start.delivery_offset)

    def standing(self) -> Reading:
        """The reading that was taken last, for looks while the clock cannot be trusted: nothing becomes due by it."""
        with self._lock:
            version, frontier_ms = self._log.pin(), self._log.frontier_ms
            upto = Key(frontier_ms, version.visible.offset - 1)
            return Reading(frontier_ms, version, upto, self._high_watermark, version.log_start.delivery_offset)

    def settled(self) -> int:
        """The delivery offset below which nothing can change any more: the high watermark, or more.

        Right after a crash it is more, by the durable lease of the frontier. What is only read never changes.
        """
        if self._log.read_only:
            return self._log.log_end_offset
        upto, version = self._log.versions.settled()
        with self._lock:
            return max(version.delayed_index.rank(upto), self._high_watermark)

    def next_due(self, reading: Reading) -> int | None:
        """When the next pending record is due, ms; None where nothing is pending."""
        with self._lock:
            due = self._counter.next_due(reading.version.delayed_index)
        if due is None or not len(reading.hidden.between(reading.upto, Key(due, INT64_MAX))):
            return due
        with self._ahead_lock:
            return self._next_shown(reading)

    def pending(self, reading: Reading, behind: Key | None = None) -> Iterator[Block]:
        """What is visible and not due yet, after a key where that is given, in delivery order, without what is
        cancelled as a whole.

        Delivery offsets are not those that the records will have.
        """
        for block in self._ahead(reading, behind):
            yield block.where(block.offset < reading.end_offset)

    def read(self, position: int, reading: Reading, want_entries: int = 0) -> Block:
        """Entries from the one that holds `position` on, below the reading's high watermark; none if it is not due.

        What is hidden as a whole is left out: the block ends where the reader goes on, also where it is empty.
        `want_entries` tells how many the reader could use; they may be fewer or more.
        """
        while position < reading.high_watermark:
            with self._lock:
                block = self._cached(position, reading)
                if block is not None and 2 * len(block) < min(want_entries, BLOCK_ENTRIES):
                    block = self._joined(position, block)
            if block is None:
                block = self._merged(position, reading, want_entries)
            part = _stretch(block, position, reading.high_watermark)
            if len(part):
                return part
            if block.end_delivery_offset <= position:
                break
            position = part.end_delivery_offset
        return empty_block(position)

    def is_free(self) -> bool:
        """Whether `advance` finds its lock free and writes nothing, as far as is known: for who must not block."""
        return not self._lock.locked() and self._log.leases(self._log.context.now_ms() + SOON_MS)

    def one(self, position: int, reading: Reading) -> FoundRecord | None:
        """Where the record at `position` lies, where it is one of a few that became due last, and nobody has hidden it;
        None: `read` is to be asked.
        """
        index = reading.version.delayed_index
        cleanings = index.cleanings
        if not 0 < reading.high_watermark - position <= FEW or position < reading.log_start:
            return None  # what is removed is remembered for a while
        if self._found.cleanings != cleanings:
            return None
        as_of, few = self._few
        found = few.get(position) if as_of == cleanings else None
        if found is None:
            entry = self._found.ones.get(position)
            found = self._few_from(index).get(position) if entry is None else FoundRecord(entry, 0)
            if found is None:
                return None
        entry, row = found
        if reading.hidden.count and reading.hidden.holds_one(entry.deliver_after, entry.offset + row):
            return None
        return found

    def _few_from(self, index: DelayedIndex) -> dict[int, FoundRecord]:
        """Those that became due last, by their delivery offsets; none where they are not found."""
        with self._lock:
            latest, self._latest = self._latest, None
            entries = [] if latest is None else self._counter.few(index, latest.after, FEW)
        if latest is None or sum(entry.records for entry in entries) != latest.records:
            return {}
        few, position = dict[int, FoundRecord](), latest.position
        for entry in entries:
            if entry.records == 1:
                self._remember(position, entry, index.cleanings)
            for row in range(entry.records):
                few[position] = FoundRecord(entry, row)
                position += 1
        self._few = LastFew(index.cleanings, few)
        return few

    def _remember(self, position: int, entry: IndexEntry, cleanings: int) -> None:
        """Of what is due, which entry holds the record at `position`, as of a cleaning."""
        as_of, ones = self._found
        if as_of < cleanings or (as_of == cleanings and len(ones) > 2 * ONES_MAX):
            self._found = LastFound(cleanings, {position: entry})
        elif as_of == cleanings:
            ones[position] = entry
            ones.pop(position - ONES_MAX, None)

    def key_before(self, position: int, reading: Reading) -> Key:
        """The key of the record before `position`, hidden or not; of the last that is due where that lies before."""
        [before] = self.entries_before([position], reading)
        return before.key

    def batch_around(self, position: int, reading: Reading) -> range:
        """The batch that goes on behind `position`, hidden or not; empty, and there, where none does."""
        [before] = self.entries_before([position], reading)
        return before.batch_around

    def entries_before(self, positions: Sequence[int], reading: Reading) -> list[EntryBefore]:
        """For each of these, ascending, the entry that holds the record before it, hidden or not.

        One merge for all that follow each other within BLOCK_ENTRIES_MAX.
        """
        index, start, found = reading.version.delayed_index, reading.version.log_start, list[EntryBefore]()
        iterator, block = None, empty_block(0)
        for position in positions:
            if position <= start.delivery_offset:
                found.append(EntryBefore(position, start.key, position))
                continue
            if iterator is None or position - iterator.delivery_offset > BLOCK_ENTRIES_MAX:
                iterator, block = self._iterator_before(position - 1, reading), empty_block(0)
            while iterator.delivery_offset < position and len(
                following := iterator.next_block(index, reading.upto, BLOCK_ENTRIES)
            ):
                block = following
            found.append(_entry_before(position, block, start, index.acked))
        return found

    def position_at(self, ms: int, version: Version) -> int:
        """The delivery offset of the first record due at or after `ms`."""
        return max(version.delayed_index.rank(Key(ms - 1, INT64_MAX)), version.log_start.delivery_offset)

    def position_at_broker_time(self, ms: int, reading: Reading) -> int:
        """The delivery offset of the first record that was appended at or after `ms`, of those that are due and shown.

        Where none is, the high watermark; for an instant to come, that of the first record due at or after it. Nothing
        that was or will be appended from then on lies before it: the stamping rule has it due no sooner. Raises
        CorruptFile. O(records due since `ms` that were appended before), by the indexes alone.
        """
        if ms > reading.clock_ms:
            return self.position_at(ms, reading.version)
        first_offset = offset_at_broker_time(reading.visible, ms)
        index, upto = reading.version.delayed_index, reading.upto
        iterator = self._iterator_before(self.position_at(ms, reading.version), reading)
        while len(block := iterator.next_block(index, upto, BLOCK_ENTRIES)):
            shown = reading.hidden.shown(block)
            rows = np.flatnonzero(shown.offset >= first_offset)
            if len(rows):
                return int(shown.delivery_offset[rows[0]])
        return reading.high_watermark

    def position_after(self, offset: int, version: Version) -> int:
        """The delivery offset after the record of append offset `offset`."""
        found = self._log.find(np.array([offset]), version).entry(0)
        start, end = version.log_start, version.visible.offset
        if not found.records:
            why = "retention removed it" if offset < end else "it was not appended yet"
            raise OffsetOutOfRange(
                f"no record of offset {offset} is in the log: {why}",
                position=offset, log_start=version.log_start_offset, log_end=end,
            )  # fmt: skip
        key = Key(found.deliver_after, found.offset)
        if key < start.key:
            raise OffsetOutOfRange(
                f"retention removed records after that of offset {offset}; seek to {start.delivery_offset} or beyond",
                position=offset, log_start=version.log_start_offset, log_end=end,
            )  # fmt: skip
        behind = version.delayed_index.rank(key)
        return behind - (found.records - 1 - (offset - found.offset))

    def loaded_entries(self) -> int:
        """Index entries in memory: in cached blocks, and in the chunks of runs that are being read."""
        with self._lock:
            merging = sum(iterator.loaded_entries() for iterator in self._iterators.values())
            return sum(map(len, self._blocks.values())) + merging + self._counter.loaded_entries()

    def _cached(self, position: int, reading: Reading) -> Block | None:
        is_of_now = self._cleanings == reading.version.delayed_index.cleanings and not self._torn
        row = self._blocks.bisect_right(position) - 1 if is_of_now else -1
        if row < 0:
            return None
        block: Block = self._blocks.peekitem(row)[1]
        return block if position < block.end_delivery_offset else None

    def _joined(self, position: int, block: Block) -> Block:
        """A cached block that holds `position`, and those that follow it, as one: each may have a single record.

        Who read when these became due found one after the other; who comes later wants many.
        """
        start: int = self._blocks.peekitem(self._blocks.bisect_right(position) - 1)[0]
        blocks, entries = [block], len(block)
        starts = [start]
        while entries < BLOCK_ENTRIES:
            following: Block | None = self._blocks.get(blocks[-1].end_delivery_offset)
            if following is None:
                break
            starts.append(blocks[-1].end_delivery_offset)
            blocks.append(following)
            entries += len(following)
        if len(blocks) < JOINED_MIN:
            return block
        self._torn = True
        joined, gone = Block.joined(blocks), {*starts}
        for each in starts:
            self._cached_entries -= _weight(self._blocks.pop(each))
        self._block_starts = deque(each for each in self._block_starts if each not in gone)
        self._cache(start, joined)
        self._torn = False
        return joined

    def _next_shown(self, reading: Reading) -> int | None:
        """When the next record is due that is not cancelled, where one before it, or due with it, is.

        The entry found last is still the one if it is shown, and no more is in front of it than is hidden there.
        """
        entry, in_front, shown = self._next_entry, Key(INT64_MAX, INT64_MAX), True
        if entry is not None:
            in_front = Key(entry.deliver_after, entry.offset - 1)
            last = Key(entry.deliver_after, entry.offset + entry.records - 1)
            shown = reading.hidden.rank(last) - reading.hidden.rank(in_front) < entry.records
        ahead = self._next_counter.advance(reading.version.delayed_index, in_front) - reading.high_watermark
        hidden = reading.hidden.rank(in_front) - reading.hidden.rank(reading.upto)
        if not shown or in_front < reading.upto or ahead != hidden:
            self._next_counter = DueCounter()
            self._next_entry = entry = next((block.entry(0) for block in self._ahead(reading)), None)
        return None if entry is None else entry.deliver_after

    def _ahead(self, reading: Reading, behind: Key | None = None) -> Iterator[Block]:
        """The entries that are not due yet and not hidden, visible or not; after a key where that is given."""
        merge, want = MergeIterator(max(reading.upto, behind or reading.upto)), PENDING_ENTRIES
        while len(block := merge.next_block(reading.version.delayed_index, Key(INT64_MAX, INT64_MAX), want)):
            shown = reading.hidden.shown(block)
            if len(shown):
                yield shown
            want = min(2 * want, BLOCK_ENTRIES_MAX)

    def _merged(self, position: int, reading: Reading, want_entries: int) -> Block:
        """The block that holds `position`, merged anew; empty where `position` is not due.

        Of those who want the same block one merges and the others wait. Nobody else does: it may have to be fetched
        from far away.
        """
        turn = self._turn(position)
        with turn.lock:
            with self._lock:
                block = self._cached(position, reading)
                cleanings, is_of_now = reading.version.delayed_index.cleanings, False
                if block is None:
                    is_of_now = self._cleanings == cleanings and not self._torn
                iterator = self._iterators.pop(position, None) if is_of_now else None
            if block is not None:
                return block
            found = self._found
            before = found.ones.get(position - 1) if found.cleanings == cleanings else None
            if iterator is None and before is not None:
                iterator = MergeIterator(Key(before.deliver_after, before.offset), position)
            iterator = iterator or self._iterator_before(position, reading)
            while True:
                first, want = iterator.delivery_offset, min(max(want_entries, BLOCK_ENTRIES), BLOCK_ENTRIES_MAX)
                block = iterator.next_block(reading.version.delayed_index, reading.upto, want)
                if len(block) == 0 or block.end_delivery_offset > position:
                    if len(block) and int(block.records[-1]) == 1:
                        self._remember(int(block.delivery_offset[-1]), block.entry(-1), cleanings)
                    return self._kept(first, block, iterator, reading)

    def _kept(self, first: int, block: Block, iterator: MergeIterator, reading: Reading) -> Block:
        """What is to be shown of a block that begins at `first`, cached, with the iterator that goes on behind it."""
        shown = reading.hidden.shown(block) if len(block) else block
        cleanings = reading.version.delayed_index.cleanings
        with self._lock:
            if cleanings < self._cleanings:
                return shown
            if self._torn or cleanings > self._cleanings:
                self._forget(cleanings)
            self._torn = True
            self._iterators[block.end_delivery_offset] = iterator
            while len(self._iterators) > ITERATORS_MAX:
                self._iterators.popitem(last=False)
            if len(block):
                self._cache(first, shown)
            self._torn = False
        return shown

    def _forget(self, cleanings: int) -> None:
        """Begin with empty caches, as of a cleaning."""
        self._torn = True
        self._cleanings = cleanings
        self._blocks, self._block_starts, self._cached_entries = SortedDict(), deque(), 0
        self._iterators = OrderedDict()
        self._torn = False

    def _turn(self, position: int) -> Turn:
        """For one thread at a time for each position. It goes with the last that holds it."""
        with self._lock:
            return self._turns.setdefault(position, Turn())

    def _cache(self, start: int, block: Block) -> None:
        if start in self._blocks:
            self._cached_entries -= _weight(self._blocks[start])
            self._block_starts.remove(start)
        self._blocks[start] = block
        self._block_starts.append(start)
        self._cached_entries += _weight(block)
        while self._cached_entries > CACHED_ENTRIES_MAX and len(self._block_starts) > 1:
            self._cached_entries -= _weight(self._blocks.pop(self._block_starts.popleft()))

    def _iterator_before(self, position: int, reading: Reading) -> MergeIterator:
        """An iterator at or shortly before `position`, found by counting what is due before some instants.

        At first by what is known of the runs without reading far away, then by the directories of all, in the end by
        what is in a few of their chunks: each as long as it narrows the search by half.
        """
        index, start = reading.version.delayed_index, reading.version.log_start
        low, high = start.deliver_after, reading.upto.deliver_after + 1
        counts: list[Callable[[Int64Array], tuple[Int64Array, Int64Array]]] = [
            lambda edges: index.due_bounds(edges, far=False),
            lambda edges: index.due_bounds(edges, far=True),
            lambda edges: (index.due_counts(edges),) * 2,
        ]
        while high - low > 1:
            step = -((low - high) // SEARCH_WAYS)
            edges = np.arange(low + step, high, step, dtype=np.int64)
            removed = index.removed_before(edges)
            least, most = (each + removed for each in counts[0](edges))
            before = int(most.searchsorted(position, side="right"))
            behind = int(least.searchsorted(position, side="right"))
            near = before and position - int(least[before - 1]) <= BLOCK_ENTRIES
            if near and (len(counts) < 3 or int(edges[before - 1]) > index.last_far_ms):
                low = int(edges[before - 1])
                break
            narrowed = int(edges[before - 1]) if before else low, int(edges[behind]) if behind < len(edges) else high
            if 2 * (narrowed[1] - narrowed[0]) > high - low and len(counts) > 1:
                del counts[0]
            low, high = narrowed
        key = max(start.key, Key(low - 1, INT64_MAX))
        return MergeIterator(key, index.rank(key))


class EntryBefore(NamedTuple):
    """What lies before a delivery offset."""

    position: int
    key: Key
    """Of the record before it."""
    end: int
    """The delivery offset after the batch of that, which is beyond the position where it goes on there."""
    start: int = 0
    """Where that batch begins."""

    @property
    def batch_around(self) -> range:
        """The batch that goes on behind the position; empty, and there, where none does."""
        return range(self.start, self.end) if self.end > self.position else range(self.position, self.position)


class Turn:
    """Whose turn it is to merge from a position."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


def _stretch(block: Block, position: int, end: int) -> Block:
    """The entries of a block that hold delivery offsets from `position` on and begin below `end`, where it ends."""
    if len(block) and int(block.delivery_offset[0]) == position and block.end_delivery_offset <= end:
        return block
    first = max(int(block.delivery_offset.searchsorted(position, side="right")) - 1, 0)
    if first < len(block) and int(block.delivery_offset[first] + block.records[first]) <= position:
        first += 1
    part = block[first : int(block.delivery_offset.searchsorted(end))]
    return replace(part, end_delivery_offset=min(part.end_delivery_offset, end))


def _entry_before(position: int, block: Block, log_start: LogStart, acked: AckedRanges) -> EntryBefore:
    """block: the last one that begins before the position; empty where nothing lies between the log start and it."""
    row, key, first, end = int(block.delivery_offset.searchsorted(position)) - 1, log_start.key, 0, position
    if row >= 0:
        first, records = int(block.delivery_offset[row]), int(block.records[row])
        within = min(position - first, records) - 1
        key, end = Key(int(block.deliver_after[row]), int(block.offset[row]) + within), first + records
    ended = acked.last_before(position)  # of which nothing may be left
    return EntryBefore(position, key if ended is None else max(key, ended.upto), end, first)


def _weight(block: Block) -> int:
    """Entries that the cache counts: small blocks take memory, too, and those of which all is hidden."""
    return len(block) + BLOCK_ITSELF_ENTRIES


def empty_block(position: int) -> Block:
    """A block of no entries at `position`."""
    nothing = np.empty(0, np.int64)
    return Block(nothing, nothing, nothing, nothing, nothing, position)
