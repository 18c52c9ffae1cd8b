"""The manifest of a partition: which of its segments are in object storage. A segment that it does not list is not.

One document (see `afterlog.base.document`) under ``mail-0/manifest``; its body, with one row:

    {"partition":"mail-0","segments":[
      {"base_offset":0,"end_offset":1000,"attempt":"0123456789abcdef0123456789abcdef","state":"COPY_FINISHED",
       "started_ms":1700000000000,"max_deliver_after":1700000060000,"max_timestamp":1700000000000,
       "files":{".log":[52100,3735928559],".index":[96,1],".timeindex":[144,2],".deliverafterindex":[20480,3]}}]}

and where a store has told about the log that they are of, beside "segments":

      "log":{"end_offset":2000,"removed_records":500,"log_start":{"delivery_offset":510,"deliver_after":1700000000000,
       "offset":499},"frontier_ms":1700000000900,"stamp_ms":1700000000800}

and `topic_id`, of a topic that has one.

A row holds no names: the key of an object is made of the base offset, the attempt and the suffix
(`afterlog.base.names`), so that whoever can write there cannot make us look elsewhere. `files`: size and CRC-32C.
`last_stamp_ms`, of a segment of a FIFO topic, is there where its last entry has a broker timestamp.

Invariants, proved by `check` before anything is written and after anything was read:

- Rows are sorted by base offset, then attempt. No two have the same attempt.
- Rows that are COPY_FINISHED do not overlap: no offset is listed twice.
- No row is DELETE_FINISHED.

The manifest changes only by `change`: read, change, conditional put, all again after a conflict. It is written as a
whole, so that a change costs its size, about 400 bytes a row.

Who is mostly alone with a manifest need not read it before each change: within `remembering` a change starts from what
was read or written last. Its conditional put names the version of that, and is refused where somebody else was first;
then the change begins anew with what is there. That there is nothing to change is not believed before it was read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from afterlog.base import document
from afterlog.base.errors import CorruptFile, CorruptRemote, InvalidTopic, RemoteConflict, RemoteMissing
from afterlog.base.names import is_attempt, manifest_key, parse_partition_folder, remote_segment_key
from afterlog.tier.log_facts import LogFacts
from afterlog.tier.remote_segment import RemoteSegment, SegmentState
from afterlog.tier.remote_store import RemoteStore

FORMAT = "afterlog-manifest"
VERSION = 1
SIZE_MAX = 64 << 20
"""About 150,000 segments. What is larger is not ours."""
_ROUNDS = 100

Segments = tuple[RemoteSegment, ...]


class Content(NamedTuple):
    """What a manifest says."""

    segments: Segments = ()
    log: LogFacts | None = None
    topic_id: str | None = None
    """Of the topic whose partition it is; None where nobody has told."""

    @property
    def listed(self) -> Segments:
        """The segments that may be read, in append order."""
        return tuple(segment for segment in self.segments if segment.state == SegmentState.COPY_FINISHED)


class Manifest:
    """A partition's rows in a storage. Any number of processes may have one; thread-safe but for `remembering`."""

    def __init__(self, remote: RemoteStore, partition: str, topic_id: str | None = None) -> None:
        """topic_id: where it is known, a manifest of another topic of that name is refused: RemoteConflict."""
        if parse_partition_folder(partition) is None:
            raise InvalidTopic(f"{partition[:300]!r} is no partition")
        self.remote = remote
        self.partition = partition
        self.topic_id = topic_id
        self.key = manifest_key(partition)
        self._remembers = False
        self._known: tuple[Content, str | None] | None = None

    def read(self) -> Segments:
        """All rows; none where there is no manifest. CorruptRemote."""
        return self.content().segments

    def content(self) -> Content:
        """All that it says; nothing where there is no manifest. CorruptRemote."""
        return self._read()[0]

    def listed(self) -> Segments:
        """The segments that may be read, in append order."""
        return self.content().listed

    @contextlib.contextmanager
    def remembering(self) -> Iterator[None]:
        """Read once; until the block ends, changes start from what was read or written last. For one thread."""
        self._remembers = True
        try:
            self._read()
            yield
        finally:
            self._remembers, self._known = False, None

    @property
    def known(self) -> Content:
        """Within `remembering`: all that it said when it was read or written last."""
        return (self._known or self._read())[0]

    def update(self, change: Callable[[Segments], Segments]) -> Segments:
        """Replace the rows by what `change` makes of them; those that are then there.

        `change` is called again with newer rows where somebody else was first, or where nobody knows whether our write
        was done: given rows that it has changed already it returns them as they are. RemoteConflict where a hundred
        others were first; RemoteUnavailable: it was done, or not.
        """
        return self.change(lambda content: content._replace(segments=change(content.segments))).segments

    def tell(self, log: LogFacts) -> None:
        """Say this of the log; raises as `update` does."""
        self.change(lambda content: content._replace(log=log))

    def change(self, change: Callable[[Content], Content]) -> Content:
        """`update`, of all that it says."""
        for _ in range(_ROUNDS):
            remembered, self._known = self._known, None
            content, version = remembered or self._read()
            changed = change(content)
            changed = changed._replace(segments=tuple(sorted(changed.segments, key=_order)))
            if changed == content:
                if remembered is None:
                    return content
                continue
            changed = changed._replace(topic_id=self.topic_id or content.topic_id)
            data = encode(self.partition, *changed)
            if len(data) > SIZE_MAX:
                raise CorruptRemote("the manifest would be too large to be read again", path=self.key)
            try:
                version = self.remote.put_if(self.key, data, version)
            except RemoteConflict:
                continue
            self._remember(changed, version)
            return changed
        raise RemoteConflict(f"others were first {_ROUNDS} times", path=self.key)

    def move(self, attempts: AbstractSet[str], before: SegmentState, after: SegmentState) -> Segments:
        """`moved`, in one change; all rows that are then there."""
        return self.update(lambda segments: moved(segments, attempts, before, after))

    def object_key(self, segment: RemoteSegment, suffix: str) -> str:
        return remote_segment_key(self.partition, segment.base_offset, segment.attempt, suffix)

    def _read(self) -> tuple[Content, str | None]:
        try:
            data, version = self.remote.get(self.key, SIZE_MAX)
        except RemoteMissing:
            return self._remember(Content(), None)
        content = decode(self.partition, data)
        if None not in (self.topic_id, content.topic_id) and self.topic_id != content.topic_id:
            raise RemoteConflict("it is of another topic of that name, made earlier or elsewhere", path=self.key)
        return self._remember(content, version)

    def _remember(self, content: Content, version: str | None) -> tuple[Content, str | None]:
        if self._remembers:
            self._known = content, version
        return content, version


def find(segments: Segments, attempt: str) -> RemoteSegment | None:
    """The row of an attempt."""
    return next((segment for segment in segments if segment.attempt == attempt), None)


def moved(segments: Segments, attempts: AbstractSet[str], before: SegmentState, after: SegmentState) -> Segments:
    """The rows, those of the attempts moved from one state to another, where that is the state that they are in.

    A row that becomes DELETE_FINISHED is left out.
    """
    rows = [row.moved_to(after) if row.attempt in attempts and row.state == before else row for row in segments]
    return tuple(row for row in rows if row.state != SegmentState.DELETE_FINISHED)


def encode(partition: str, segments: Segments, log: LogFacts | None = None, topic_id: str | None = None) -> bytes:
    """The bytes of a manifest. ValueError where the invariants do not hold."""
    check(segments)
    body: dict[str, Any] = {"partition": partition, "segments": [segment.to_json() for segment in segments]}
    if log is not None:
        body["log"] = log.to_json()
    if topic_id is not None:
        body["topic_id"] = topic_id
    return document.encode(FORMAT, VERSION, body)


def decode(partition: str, data: bytes) -> Content:
    """What a manifest says, checked. CorruptRemote whatever else the bytes are."""
    path = Path(manifest_key(partition))
    try:
        body = document.decode(FORMAT, VERSION, data, path)
        if body.get("partition") != partition:
            raise CorruptRemote(f"this is the manifest of {str(body.get('partition'))[:300]!r}", path=path)
        segments = tuple(RemoteSegment.of_json(row) for row in body["segments"])
        check(segments)
        log = LogFacts.of_json(body["log"]) if "log" in body else None
        topic_id = body.get("topic_id")
        if topic_id is not None and not (isinstance(topic_id, str) and is_attempt(topic_id)):
            raise ValueError(f"{str(topic_id)[:40]!r} is no topic's id")
    except CorruptFile as error:
        raise CorruptRemote(error.message, path=path, position=error.position) from error
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CorruptRemote(f"the manifest holds what cannot be: {str(error)[:300]}", path=path) from error
    return Content(segments, log, topic_id)


def check(segments: Sequence[RemoteSegment]) -> None:
    """Prove the invariants at the head, or raise ValueError."""
    if any(_order(one) >= _order(next_one) for one, next_one in pairwise(segments)):
        raise ValueError("rows are out of order")
    if len({segment.attempt for segment in segments}) != len(segments):
        raise ValueError("two rows have the same attempt")
    if any(segment.state == SegmentState.DELETE_FINISHED for segment in segments):
        raise ValueError("a row is DELETE_FINISHED")
    listed = [segment for segment in segments if segment.state == SegmentState.COPY_FINISHED]
    for one, next_one in pairwise(listed):
        if one.overlaps(next_one):
            raise ValueError(f"offset {next_one.base_offset} is listed twice")


def _order(segment: RemoteSegment) -> tuple[int, str]:
    return segment.base_offset, segment.attempt
