"""What is committed of an input partition: a rectangle, of which everything inside was delivered.

              due ^
                  |   pending      |
      F.due ------+----------------+        delivered, or cancelled:  offset < R  and  (due, offset) <= F
                  |   delivered    |        pending:             L <= offset < R  and  (due, offset) >  F
                  +--------+-------+---> offset                       ... and no cancel of it before R
                           L       R

R, the next input offset, is the offset that a consumer group commits. F, the frontier, and L, the lowest offset that is
pending, are some forty bytes of the metadata beside it. All are committed by the very transaction that holds what was
delivered, so that whoever reads [L, R) again and keeps what lies behind F has what is pending: no clock, no rank, no
marker of a record goes into it. It holds by three rules, which `relay_partition` keeps:

    1. `due` follows from the record alone, so that a second read says the same.
    2. A record that is read with a key at or below F goes out in the transaction that moves R past it.
    3. F moves to the key of the last record delivered, or to (t, ENDLESS) where nothing up to t is left; and while some
       of what is due is left, nothing is taken in.

As metadata, ASCII: version, topic id, F.due, F.offset, L. The topic id (KIP-516) tells a topic from an earlier one of
its name. `-` stands for ENDLESS.

    1 1fQz0u8kQ8qV2bF5m0k9gA 1770000000123 41877 40119
"""

from __future__ import annotations

from typing import Final, NamedTuple

from afterlog.base.clock import INT64_MAX

ENDLESS: Final = INT64_MAX
"""As an offset: behind all that are due at that instant."""
VERSION: Final = "1"


class DueKey(NamedTuple):
    """The order in which records of a partition are delivered."""

    due_ms: int
    offset: int


BEGINNING: Final = DueKey(-1, ENDLESS)
"""Nothing was delivered: no record is due before 0."""


class Rectangle(NamedTuple):
    """See the head. next_offset: R; frontier: F; lowest: L, which is R where nothing is pending."""

    next_offset: int
    frontier: DueKey
    lowest: int

    @staticmethod
    def beginning(offset: int) -> Rectangle:
        """Nothing was read before `offset`, and nothing delivered."""
        return Rectangle(offset, BEGINNING, offset)

    def metadata(self, topic_id: str) -> str:
        due_ms, offset = self.frontier
        return f"{VERSION} {topic_id} {due_ms} {'-' if offset == ENDLESS else offset} {self.lowest}"

    @staticmethod
    def parse(next_offset: int, metadata: str | None) -> tuple[str, Rectangle] | None:
        """The topic id, and the rectangle that was committed; None where another program, or a tool, has committed."""
        words = (metadata or "").split(" ")
        if len(words) != 5 or words[0] != VERSION:
            return None
        try:
            frontier = DueKey(int(words[2]), ENDLESS if words[3] == "-" else int(words[3]))
            found = Rectangle(next_offset, frontier, int(words[4]))
        except ValueError:
            return None
        return (words[1], found) if 0 <= found.lowest <= found.next_offset else None
