"""Which segments a cleaning writes anew: numbers in, a plan out (docs/decisions/0070).

    held > 2 alive + slack ──> those with the least share alive, until it is not ──┐
    more than SMALL_MAX small ones ──> the cheapest neighbours among these ────────┴──> neighbours in one output

What is *alive* of a segment lies after the log start in delivery order. If no segment that is written anew has more
than a half alive, cleaning writes at most as much again as was appended; what is held stays within twice what is alive.
Which one comes first, and the joins, were tried on eleven workloads: greedy by the share, and the rule by which runs
are merged (docs/decisions/0012).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import NamedTuple

import numpy as np

from afterlog.index.growing_columns import Int64Array

OUTPUT_BYTES_MAX = 64 << 20
"""A segment that a cleaning writes is no larger, but for its last entry: with the next one it can be written again."""
SLACK_BYTES_MIN = 64 << 10
"""May be held beyond twice what is alive, also where a sixteenth of what is held is less. Larger: fewer cleanings."""
SMALL_MAX = 16
"""Segments of less than a quarter of what they may have, before some become one. Larger: fewer bytes written."""
SPAN_MAX = 2**31 - 1
"""Offsets of a segment: its indexes have 31 bits for them."""
STEP = 0.9
"""Of the shares at which `DueBytes` knows when they are due. Nearer to 1: fewer bytes held, more memory."""


class DueBytes(NamedTuple):
    """How many bytes of a segment are due after an instant, within a tenth: int64 columns of one length, some 100."""

    due_ms: Int64Array
    """Ascending; the first is before all."""
    after: Int64Array
    """From then on until the next of these instants, no fewer bytes are due later; the last is 0."""
    upto: Int64Array
    """Nor more."""

    @staticmethod
    def of(due_ms: Int64Array, size: Int64Array) -> DueBytes:
        """Of entries in any order, of which there is one at least: when they are due, and their bytes."""
        order = np.argsort(due_ms, kind="stable")
        due, total = due_ms[order], int(size.sum())
        left = total - size[order].cumsum()
        last = np.append(np.flatnonzero(due[1:] != due[:-1]), len(due) - 1)
        due, left = np.append(-1, due[last]), np.append(total, left[last])
        if not total:
            return DueBytes(due[:1], left[:1], left[:1])
        # By Python: numpy, where it has no memory for the powers, ends the process.
        steps = np.array([total * STEP**step for step in range(int(log(total) / -log(STEP)) + 1)])
        rows = np.unique(np.append((-left).searchsorted(-steps), len(left) - 1))  # the first with no more left
        return DueBytes(due[rows], np.append(left[rows[1:] - 1], 0), left[rows])

    def least_after(self, ms: int) -> int:
        """No fewer bytes are due later, and hardly a tenth more."""
        return int(self.after[self._row(ms)])

    def most_after(self, ms: int) -> int:
        """No more bytes are due later, and hardly a tenth less."""
        return int(self.upto[self._row(ms)])

    def _row(self, ms: int) -> int:
        return int(self.due_ms.searchsorted(max(ms, -1), side="right")) - 1


class Weight(NamedTuple):
    """A sealed segment, as a plan sees it."""

    base_offset: int
    end_offset: int
    held: int
    """Bytes of its log."""
    alive: int
    """Bytes of entries after the log start, or somewhat fewer."""
    left: int
    """The same, or somewhat more: what a cleaning leaves of it."""
    fixed: bool = False
    """It stays as it is: it counts as alive as a whole, and parts its neighbours."""


def plan(segments: Sequence[Weight], *, segment_bytes: int, slack_bytes: int, thorough: bool = False) -> list[slice]:
    """The segments to be written anew, some neighbours at a time, of all in offset order; none: nothing is to do.

    segment_bytes: what a segment may have. slack_bytes: what may be held beyond the budget, at most. thorough: whatever
    the budget, all of which a fifth is not alive, and small neighbours.
    """
    output_bytes = min(segment_bytes, OUTPUT_BYTES_MAX)
    victims = {*(_worn(segments) if thorough else _wasteful(segments, slack_bytes))}
    behind = [each._replace(held=each.left) if row in victims else each for row, each in enumerate(segments)]
    together = _crowded(behind, output_bytes, small_max=1 if thorough else SMALL_MAX)
    return _grouped(segments, sorted(victims.union(together)), output_bytes)


def _wasteful(segments: Sequence[Weight], slack_bytes: int) -> list[int]:
    """The least alive of them, until what is held is within the budget."""
    held = sum(each.held for each in segments)
    alive = sum(each.held if each.fixed else each.alive for each in segments)
    excess = held - 2 * alive - min(max(held // 16, SLACK_BYTES_MIN), slack_bytes)
    by_share = sorted(
        (row for row, each in enumerate(segments) if not each.fixed),
        key=lambda row: segments[row].left / max(segments[row].held, 1),
    )
    victims = []
    for row in by_share:
        if excess <= 0:
            break
        victims.append(row)
        excess -= segments[row].held - segments[row].left
    return victims


def _worn(segments: Sequence[Weight]) -> list[int]:
    """Those of which less is alive than a weight can be wrong by, twice."""
    return [row for row, each in enumerate(segments) if not each.fixed and each.alive < (2 * STEP - 1) * each.held]


def _grouped(segments: Sequence[Weight], victims: Sequence[int], output_bytes: int) -> list[slice]:
    """Neighbours together, as far as they fit into one output."""
    groups: list[slice] = []
    for row in victims:
        last = groups[-1] if groups else slice(-1, -1)
        left = sum(each.left for each in segments[last.start : row + 1])
        span = segments[row].end_offset - segments[last.start].base_offset
        if last.stop == row and left <= output_bytes and span <= SPAN_MAX:
            groups[-1] = slice(last.start, row + 1)
        else:
            groups.append(slice(row, row + 1))
    return groups


def _crowded(segments: Sequence[Weight], output_bytes: int, small_max: int) -> range:
    """The neighbours among too many small ones that cost the least for the square of how many go."""
    is_small = np.array([not each.fixed and each.held < output_bytes // 4 for each in segments], np.bool_)
    if int(is_small.sum()) <= small_max:
        return range(0)
    large_before = np.append(0, np.cumsum(~is_small))
    size_before = np.append(0, np.cumsum([each.left for each in segments]))
    base_offset = np.array([each.base_offset for each in segments], np.int64)
    end_offset = np.array([each.end_offset for each in segments], np.int64)
    least, chosen = np.inf, range(0)
    for width in range(2, len(segments) + 1):
        size = size_before[width:] - size_before[:-width]
        span = end_offset[width - 1 :] - base_offset[: 1 - width]
        is_apart = large_before[width:] > large_before[:-width]
        cost = np.where(is_apart | (size > output_bytes) | (span > SPAN_MAX), np.inf, size / (width - 1) ** 2)
        row = int(cost.argmin())
        if cost[row] == np.inf:
            break  # none that is wider can do
        if cost[row] < least:
            least, chosen = cost[row], range(row, row + width)
    return chosen
