"""The decoders of what a store keeps beside its logs: documents, journals of subscriptions, prepared files."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final

import numpy as np
from crc32c import crc32c

from afterlog.base import document
from afterlog.base.config import Config
from afterlog.base.errors import CorruptFile, CorruptRemote
from afterlog.base.names import (
    ADOPTED,
    ADOPTION,
    HANDOVER,
    LATER_TOPICS,
    TOPICS,
    journal_file,
    position_files,
    prepared_file,
    subscription_folder,
)
from afterlog.fetch.group import GroupPosition
from afterlog.index.producer_file import ProducerFileMark
from afterlog.index.unique_key_file import KeyFileMark
from afterlog.log.checkpoints import (
    ActiveMark,
    CheckpointFile,
    Checkpoints,
    FrontierLease,
    LogStart,
    ProducersMark,
    Recovery,
    RemoteMark,
    SealedMark,
    UniqueKeysMark,
)
from afterlog.log.facts import FileMark
from afterlog.log.store_frontier import SharedLease, frontier_path, read_frontier, write_frontier
from afterlog.log.topic_settings import TopicSettings
from afterlog.log.topics_document import read_topics, write_topics
from afterlog.produce.adoption import AdoptionLedger, handed_over
from afterlog.produce.prepared import Prepared, PreparedFile, Section, preparing, read_sections
from afterlog.records.columns import ragged
from afterlog.records.encode import RecordColumns
from afterlog.subscription.ack_set import AckSet
from afterlog.subscription.events import Kind, encode
from afterlog.subscription.frames import HEADER_BYTES as FRAME_BYTES
from afterlog.subscription.frames import MAGIC, encode_frame
from afterlog.subscription.replay import replay
from afterlog.subscription.state import SubscriptionState
from afterlog.tier import manifest
from afterlog.tier.log_facts import LogFacts
from afterlog.tier.remote_segment import RemoteSegment, SegmentState
from tests.fuzzing.decoder import CORRUPT, FOLDER, Decoder, accepted, agreed, empty_disk, held, refused
from tests.subscription.samples import HELD, IN_TURN, OWNER, SOUGHT, STORY

STORE: Final = FOLDER.parent
ATTEMPT: Final = "0123456789abcdef" * 2
LOG_END: Final = 40


def mend_document(data: bytearray) -> None:
    """The checksum in the first line."""
    line, newline, text = bytes(data).partition(b"\n")
    words = line.split(b" ")
    if newline and len(words) == 3:
        data[:] = b"%s %s %08x\n" % (words[0], words[1], crc32c(text)) + text


def well_typed(value: Any) -> None:
    """Each number of a value is one: whoever goes on with it would fail far from the file that is wrong."""
    if is_dataclass(value):
        for field in fields(value):
            part = getattr(value, field.name)
            if field.type in ("int", int):
                assert type(part) is int, f"{field.name} is {part!r:.100}"
            elif field.type in ("bool", bool):
                assert type(part) is bool, f"{field.name} is {part!r:.100}"
            elif field.type in ("str", str):
                assert type(part) is str, f"{field.name} is {part!r:.100}"
            elif str(field.type).startswith("FileMark"):
                assert isinstance(part, FileMark), f"{field.name} is {part!r:.100}"
                assert all(type(number) is int for number in part)
            else:
                well_typed(part)
    elif isinstance(value, tuple):
        for each in value:
            well_typed(each)


# ---- documents

CHECKPOINTS: Final = FOLDER / "checkpoints"


def _checkpoints() -> Sequence[Checkpoints]:
    mark = FileMark(16, 305419896)
    sealed = SealedMark(
        base_offset=0, end_offset=9, log_bytes=900, max_deliver_after=5_000, max_timestamp=1, index=mark,
        time_index=mark, cancel_index=mark, remote=RemoteMark(attempt=ATTEMPT, run=mark, local=False),
    )  # fmt: skip
    full = Checkpoints(
        recovery=Recovery(segment=9, position=120, offset=20, stamp_ms=4_000),
        active=ActiveMark(base_offset=9, index=mark, time_index=mark, latest=(3, 12), cancel_index=mark),
        frontier=FrontierLease(used_ms=5, lease_ms=1_005),
        log_start=LogStart(delivery_offset=2, deliver_after=3, offset=1),
        removed_records=2,
        sealed=(sealed,),
        removals=(ATTEMPT,),
        unique_keys=UniqueKeysMark(since=1, upto=20, files=(KeyFileMark(1, 9, 2, 7_000, 99),)),
        producers=ProducersMark(since=1, upto=20, file=ProducerFileMark(20, 2, 99)),
    )
    return [Checkpoints.of_new_log(), Checkpoints.of_new_log(7), full]


def _checkpoint_seeds() -> Sequence[bytes]:
    disk = empty_disk(FOLDER)
    seeds = []
    for content in _checkpoints():
        CheckpointFile.create(disk, CHECKPOINTS, content)
        seeds.append(disk.image().contents[str(CHECKPOINTS)])
    return seeds


def read_checkpoints(data: bytes) -> str:
    try:
        content = CheckpointFile.open(held({CHECKPOINTS: data}), CHECKPOINTS).current
    except CorruptFile as error:
        return refused(error)
    well_typed(content)
    disk = empty_disk(FOLDER)
    CheckpointFile.create(disk, CHECKPOINTS, content)
    assert content == CheckpointFile.open(disk, CHECKPOINTS).current
    return accepted(len(content.sealed), len(content.removals), any(mark.local for mark in content.sealed))


def _topic_seeds() -> Sequence[bytes]:
    disk = empty_disk(STORE)
    settings = {
        "mail": TopicSettings(),
        "x": TopicSettings(partitions=3, delayed=False, retention_ms=5, check_instants=False),
    }
    settings["r"] = TopicSettings(remote_storage_enable=True, local_retention_ms=0, max_delay_ms=9)
    seeds = []
    for names in (["mail"], [*settings], []):
        write_topics(disk, STORE, {name: settings[name] for name in names})
        seeds.append(disk.image().contents[str(STORE / TOPICS)])
    return seeds


def read_topic_documents(data: bytes) -> str:
    """As the document of all topics, and as that of one more."""
    both = {STORE / TOPICS: data}, {STORE / LATER_TOPICS / "mail-0": data}
    outcome = []
    for contents in both:
        try:
            topics = read_topics(held(contents), STORE)
        except CorruptFile as error:
            outcome.append(refused(error))
            continue
        for settings in topics.values():
            well_typed(settings)
        disk = empty_disk(STORE)
        write_topics(disk, STORE, topics)
        assert topics == read_topics(disk, STORE)
        outcome.append(accepted(len(topics), *{each.delayed for each in topics.values()}))
    return " ".join(outcome)


def _frontier_seeds() -> Sequence[bytes]:
    rows: dict[str, int] = {"mail-0": 1_700_000_000_000, "x-2": 5}
    seeds = []
    for content in (SharedLease(), SharedLease(lease_ms=1_005), SharedLease(lease_ms=1_700_000_001_000, used_ms=rows)):
        disk = empty_disk(STORE / LATER_TOPICS)
        write_frontier(disk, STORE, content)
        seeds.append(disk.image().contents[str(frontier_path(STORE))])
    return seeds


def read_store_frontier(data: bytes) -> str:
    try:
        content = read_frontier(held({frontier_path(STORE): data}), STORE)
    except CorruptFile as error:
        return refused(error)
    assert all(type(ms) is int for ms in (content.lease_ms, *content.used_ms.values()))
    disk = empty_disk(STORE / LATER_TOPICS)
    write_frontier(disk, STORE, content)
    assert content == read_frontier(disk, STORE)
    return accepted(len(content.used_ms), content.lease_ms > 0)


def _manifest_seeds() -> Sequence[bytes]:
    mark = FileMark(96, 7)
    states = SegmentState.COPY_STARTED, SegmentState.COPY_FINISHED, SegmentState.DELETE_STARTED
    rows = [
        RemoteSegment(
            base_offset=9 * number, end_offset=9 * number + 9, log_bytes=900, max_deliver_after=5, max_timestamp=1,
            index=mark, time_index=mark, attempt=f"{number}{ATTEMPT[1:]}", state=state, started_ms=3, log_crc=77,
            run=mark if number else FileMark(0, 0),
        )
        for number, state in enumerate(states)
    ]  # fmt: skip
    log = LogFacts(end_offset=40, removed_records=3, log_start=LogStart(delivery_offset=3), frontier_ms=9, stamp_ms=8)
    return [manifest.encode("mail-0", tuple(rows[:count]), log if count > 1 else None) for count in range(4)]


def read_manifest(data: bytes) -> str:
    try:
        content = manifest.decode("mail-0", data)
    except CorruptRemote as error:
        return refused(error)
    for row in content.segments:
        well_typed(row)
    assert content == manifest.decode("mail-0", manifest.encode("mail-0", *content))
    return accepted(len(content.segments), len(content.listed), content.log is None)


POSITION: Final = position_files(FOLDER, "g")


def read_position(data: bytes) -> str:
    """As the first of the two files, as the copy, and as both."""
    whole = document.encode("afterlog-position", 1, {"partition": "mail-0", "group": "g", "position": 5})
    outcome = []
    for contents in ({POSITION[0]: data}, {POSITION[0]: whole, POSITION[1]: data}, {POSITION[1]: data}):
        try:
            position = GroupPosition(held(contents), FOLDER, "g").committed
        except CorruptFile as error:
            outcome.append(refused(error))
            continue
        assert position is not None
        assert 0 <= position < 1 << 63, f"no position is {position}"
        assert position == 5 or whole not in contents.values()
        outcome.append(accepted(position))
    return " ".join(outcome)


# ---- prepared files

NAME: Final = prepared_file("job", 3, 5, ATTEMPT)
HANDED: Final = STORE / ADOPTION / prepared_file("job", 3, 5, ATTEMPT, HANDOVER)
_SECTION: Final = struct.Struct("<6q")


def _prepared_seeds() -> Sequence[bytes]:
    disk = empty_disk(STORE)
    with preparing(disk, STORE, NAME, Config()) as writer:
        for partition, count in enumerate((1, 3, 40)):
            values, _ = ragged([b"v" * row for row in range(count)])
            times = np.full(count, 7), 5_000 + np.arange(count) // 2
            writer.add(partition, RecordColumns(values=values, timestamps=times[0], deliver_after=times[1]))
    content = disk.image().contents[str(STORE / ADOPTION / NAME)]
    return [_SECTION.pack(*section) + content for section in writer.sections]


def read_prepared_file(data: bytes) -> str:
    """The row of a section, and the file that it is of."""
    if len(data) < _SECTION.size:
        return "short"
    section = Section(*_SECTION.unpack_from(data))
    path = STORE / ADOPTION / NAME
    file = PreparedFile(name=NAME, sections=(section,))
    try:
        [batches] = read_sections(held({path: data[_SECTION.size :]}), STORE, file)
    except CorruptFile as error:
        return refused(error)
    assert section.batches == len(batches)
    assert section.records == int(batches.records.sum())
    encoded, positions = batches.encoded(0, len(batches))
    assert len(encoded) == positions[-1] <= section.size
    return accepted(len(batches), section.records, int(batches.deliver_after.max()))


def mend_prepared_file(data: bytearray) -> None:
    if len(data) >= _SECTION.size:
        fields = list(_SECTION.unpack_from(data))
        _, position, size = fields[:3]
        if 0 <= position <= len(data) and 0 <= size <= len(data):
            position += _SECTION.size
            fields[5] = crc32c(data[position : position + size])
            data[: _SECTION.size] = _SECTION.pack(*fields)


def _handover_seeds() -> Sequence[bytes]:
    section = Section(1, 0, 224, 2, 2, 305419896)
    prepared = Prepared(job="job", batch=3, topic="mail", files=(PreparedFile(name=NAME, sections=(section, section)),))
    pending = {"prepared": prepared.to_json(), "log_ends": {"0": 5, "1": 9}}
    return [
        document.encode("afterlog-handover", 1, prepared.to_json()),
        document.encode("afterlog-adoptions", 1, {"adopted": {"job": 2, "other": 0}, "pending": pending}),
        document.encode("afterlog-adoptions", 1, {"adopted": {}, "pending": None}),
    ]


def read_adoptions(data: bytes) -> str:
    """A handover, or what was adopted."""
    outcome = []
    readings: tuple[Callable[[], Any], ...] = (
        lambda: [prepared for _, prepared in handed_over(held({HANDED: data}), STORE)],
        lambda: _adopted(data),
    )
    for reading in readings:
        found = agreed(CORRUPT, reading)
        if isinstance(found, CorruptFile):
            outcome.append(refused(found))
            continue
        for prepared in found:
            well_typed(prepared)
            assert prepared == Prepared.of_json(json.loads(json.dumps(prepared.to_json())))
        outcome.append(accepted(len(found)))
    return " ".join(outcome)


def _adopted(data: bytes) -> list[Prepared]:
    ledger = AdoptionLedger.read(held({STORE / ADOPTED: data}), STORE)
    assert all(type(batch) is int for batch in ledger.adopted.values())
    disk = empty_disk(STORE)
    ledger.write(disk, STORE)
    assert ledger == AdoptionLedger.read(disk, STORE)
    return [] if ledger.pending is None else [ledger.pending.prepared]


# ---- journals

JOURNALS: Final = subscription_folder(FOLDER, OWNER.subscription)


def _journal_seeds() -> Sequence[bytes]:
    seeds = []
    for events in (SOUGHT[:0], SOUGHT[:3], STORY, SOUGHT, HELD, IN_TURN):
        frames = [(Kind.SNAPSHOT, SubscriptionState(AckSet()).to_bytes(OWNER)), *map(encode, events)]
        seeds.append(_journal(frames))
    for events, rest in ((STORY, SOUGHT[len(STORY) :]), (HELD, ())):
        state = SubscriptionState(AckSet())
        for event in events:
            state.apply(event)
        seeds.append(_journal([(Kind.SNAPSHOT, state.to_bytes(OWNER)), *map(encode, rest)]))
    return seeds


def _journal(frames: Sequence[tuple[Kind, bytes]]) -> bytes:
    data = b""
    for number, (kind, body) in enumerate(frames):
        data += encode_frame(3, len(data), kind, body, log_end_offset=20 + number, durable=0)
    return data


def read_journal(data: bytes) -> str:
    """A state whose invariants hold and that a snapshot brings back, or CorruptFile."""
    path = JOURNALS / journal_file(3)
    try:
        found = replay(held({path: data}), JOURNALS, OWNER, LOG_END)
    except CorruptFile as error:
        return refused(error)
    assert found is not None
    found.state.check()
    body = found.state.to_bytes(OWNER)
    again = SubscriptionState.of_bytes(memoryview(body), OWNER)
    assert body == again.to_bytes(OWNER)
    counts = found.state.retrying_count, len(found.state.dying), found.state.leased_count, bool(found.state.held)
    return accepted(
        found.cut_bytes > 0, found.given_up_bytes > 0, *(count > 0 for count in counts), found.state.position
    )


def mend_journal(data: bytearray) -> None:
    """Every frame from the first on; one whose length cannot be ends where the next one begins, or the file ends."""
    at = 0
    while len(data) - at >= FRAME_BYTES:
        end = at + FRAME_BYTES + int.from_bytes(data[at + 8 : at + 12], "little")
        if end > len(data) or bytes(data[end : end + 4]) not in (MAGIC, b""):
            following = data.find(MAGIC, at + FRAME_BYTES)
            end = len(data) if following < 0 else following
            data[at + 8 : at + 12] = (end - at - FRAME_BYTES).to_bytes(4, "little")
        data[at : at + 4] = MAGIC
        crc = crc32c(data[at + 8 : end], crc32c(struct.pack("<qq", 3, at)))
        data[at + 4 : at + 8] = crc.to_bytes(4, "little")
        at = end


def _position_seeds() -> Sequence[bytes]:
    body = {"partition": "mail-0", "group": "g"}
    return [document.encode("afterlog-position", 1, body | {"position": position}) for position in (0, 1024, 1 << 62)]


DOCUMENT_DECODERS: Final = (
    Decoder("checkpoints", _checkpoint_seeds, read_checkpoints, mend_document),
    Decoder("topics", _topic_seeds, read_topic_documents, mend_document),
    Decoder("frontier", _frontier_seeds, read_store_frontier, mend_document),
    Decoder("manifest", _manifest_seeds, read_manifest, mend_document),
    Decoder("position", _position_seeds, read_position, mend_document),
    Decoder("prepared-file", _prepared_seeds, read_prepared_file, mend_prepared_file),
    Decoder("adoption", _handover_seeds, read_adoptions, mend_document),
    Decoder("journal", _journal_seeds, read_journal, mend_journal),
)
