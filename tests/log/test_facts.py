from __future__ import annotations

from dataclasses import fields, replace

import crc32c

from afterlog.base.names import CANCEL_INDEX, OFFSET_INDEX, TIME_INDEX
from afterlog.index.entries import Key
from afterlog.index.run import Coverage
from afterlog.log.checkpoints import RemoteMark, SealedMark
from afterlog.log.facts import NO_FILE, FileMark, SegmentFacts

FACTS = SegmentFacts(
    base_offset=10,
    end_offset=40,
    log_bytes=999,
    max_deliver_after=70,
    max_timestamp=60,
    index=FileMark(16, 1),
    time_index=FileMark(24, 2),
)


def test_a_mark_is_size_and_checksum() -> None:
    assert FileMark(3, crc32c.crc32c(b"abc")) == FileMark.of(b"abc") == FileMark.of(memoryview(b"abc"))
    assert NO_FILE == FileMark.of(b"") == (0, 0)


def test_what_follows_from_the_facts() -> None:
    assert Key(70, 39) == FACTS.last_key
    assert Coverage(10, 40, 10, 0, 10, 999) == FACTS.coverage
    assert {OFFSET_INDEX: (16, 1), TIME_INDEX: (24, 2)} == FACTS.indexes
    assert {**FACTS.indexes, CANCEL_INDEX: (8, 3)} == replace(FACTS, cancel_index=FileMark(8, 3)).indexes


def test_who_knows_more_hands_on_all_of_them() -> None:
    sealed = SealedMark(**FACTS.facts(), remote=RemoteMark(attempt="0" * 32))
    assert FACTS == SegmentFacts(**sealed.facts())
    assert {field.name for field in fields(SegmentFacts)} == sealed.facts().keys()
