"""A consumer of a served store: where it stands, and what its methods ask (`call.py`).

    committed <= processed <= handed <= high watermark

as of an embedded one (`fetch/consumer.py`), kept here; the server has what is committed, and lets one consumer of a
group read a partition at a time: this one *claims* them, and says so again before that is forgotten, which a thread
does, and every commit.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from afterlog.api import operations
from afterlog.api.operation import ARROW
from afterlog.api.position_text import position_text
from afterlog.api.record_json import message_of
from afterlog.base.arguments import flag, seconds, whole
from afterlog.base.clock import Clock
from afterlog.base.environment import random_bits
from afterlog.base.errors import AfterlogError, AnswerLost, GroupBusy, StoreClosed, StoreForked, UnknownPartition
from afterlog.base.names import check_name
from afterlog.client.answer_rows import numbers_of
from afterlog.client.call import (
    Call,
    HttpReply,
    HttpRequest,
    Steps,
    asking,
    json_bytes,
    json_of,
    nothing,
)
from afterlog.client.polls import Polls
from afterlog.client.server_time import ServerTime
from afterlog.fetch.message import Message
from afterlog.fetch.positions import Position

if TYPE_CHECKING:
    from afterlog.fetch.message_columns import Columns

SLICE_S = 20.0
"""A wait is asked for in parts, as of a subscription."""
READ_AHEAD_RECORDS = 500
"""The iterator, and polls for fewer, ask for so many at a time."""
POLL_BYTES = 16 << 20
RECORDS_MAX = 65_536
"""A server gives no more at a time."""
AUTO_COMMIT_INTERVAL_S = 1.0
CLAIM_MS = 45_000
"""A claim of which nothing is heard holds for so long."""
GIVE_BACK_S = 5.0
TURNS = 3
"""It is renewed so often in that time."""


class ConsumerSteps:
    """Of one consumer. Not thread-safe, but for `close`."""

    def __init__(
        self,
        topic: str,
        group: str,
        committed: dict[int, int | None],
        positions: dict[int, int],
        claim: str,
        *,
        auto_commit: bool,
        clock: Clock,
        server_time: ServerTime,
        drive_now: Callable[[Steps[Any]], Any],
        usable: Callable[[], None],
        on_close: Callable[[], None],
    ) -> None:
        """positions: where it begins in each of its partitions."""
        self.topic = topic
        self.group = group
        self._claim = claim
        self._committed = committed
        self._handed = dict(positions)
        self._processed = dict(positions)
        self._behind: dict[int, int] = {}
        """After all that was read ahead, with what is to be stepped over."""
        self._ahead: deque[Message] = deque()
        self._auto_commit = auto_commit
        self._clock = clock
        self._server_time = server_time
        self._drive_now = drive_now
        self._usable = usable
        self._on_close = on_close
        self._polls = Polls()
        self._handing = False
        """Whether a call is about to hand something out, or was when an exception struck: nobody got that."""
        self._turn = 0
        self._committed_s = clock.monotonic_s()
        self.closed = False
        self._is_reading = True
        self._lock = threading.Lock()
        self.reader: object = None
        """Who took last: a thread, or a task."""

    @staticmethod
    def opening(
        topic: str, group: str, partitions: Sequence[int], start: Position
    ) -> Steps[tuple[str, dict[int, int | None], dict[int, int]]]:
        """Claim the partitions; (the claim, what is committed of each, where it begins)."""
        check_name(group, "group")
        claim = f"{random_bits(128):032x}"
        told: dict[int, Any] = yield _claiming(topic, group, claim, partitions)
        committed = {number: told.get(number) for number in partitions}
        missing = [number for number, position in committed.items() if position is None]
        begins = {number: position for number, position in committed.items() if position is not None}
        try:
            if missing:
                found: dict[int, int] = yield _resolving(topic, start, missing)
                begins |= found
        except BaseException:
            yield _letting_go(topic, group, claim)
            raise
        return claim, committed, {number: begins[number] for number in partitions}

    # Reading.

    def poll(self, max_records: int = 500, timeout: float | None = 0.0) -> Steps[list[Message]]:
        self._check_open()
        max_records, timeout = whole("max_records", max_records, 1), seconds("timeout", timeout)
        self.came_back()
        deadline_s = self._deadline_s(timeout)
        while not self.closed:
            left_s = self._left_s(deadline_s)
            if not self._ahead or self._commit_is_due():
                yield from self.fill(left_s, max(max_records, READ_AHEAD_RECORDS))
            if self._ahead or (deadline_s is not None and left_s <= 0):
                break
        taken: list[Message] = []
        while self._ahead and len(taken) < max_records and not self.closed:
            message = self.pop()
            assert message is not None
            taken.append(message)
        return taken

    def poll_columns(self, max_records: int = 65_536, timeout: float | None = 0.0) -> Steps[Columns]:
        self._check_open()
        max_records, timeout = whole("max_records", max_records, 1), seconds("timeout", timeout)
        self.came_back()
        self._ahead.clear()
        deadline_s = self._deadline_s(timeout)
        while True:
            left_s = self._left_s(deadline_s)
            yield from self._commit_when_due()
            found, behind = yield from self._fetched(max_records, left_s, _columns, ARROW)
            if found is not None and (len(found) or (deadline_s is not None and left_s <= 0)):
                self._handing = True
                self._handed.update(behind)
                self._handing = False
                columns: Columns = found
                return columns
            if found is None:
                from afterlog.fetch.message_columns import Columns

                return Columns.empty(self.topic)

    def pop(self) -> Message | None:
        """The next message that was read ahead; None where it is time to `fill`."""
        if not self._ahead:
            return None
        self._handing = True
        message = self._ahead.popleft()
        self._handed[message.partition] = message.delivery_offset + 1
        if not self._ahead:
            self._handed.update(self._behind)
        self._handing = False
        return message

    def next(self) -> Message | None:
        """The same for an iteration: what was handed out is processed."""
        self.came_back()
        return None if self._commit_is_due() else self.pop()

    def fill(self, wait_s: float = SLICE_S, max_records: int = READ_AHEAD_RECORDS) -> Steps[None]:
        """Read ahead what is due, or comes within the time. Commit, when that is due."""
        yield from self._commit_when_due()
        if self._ahead:
            return
        found, behind = yield from self._fetched(max_records, wait_s, _messages, None)
        if found:
            self._behind = behind
            self._ahead.extend(found)
        elif found is not None:  # nothing but what is stepped over
            self._handed.update(behind)

    def _fetched(
        self,
        max_records: int,
        wait_s: float,
        read: Callable[[HttpReply], tuple[Any, dict[str, Any]]],
        accept: str | None,
    ) -> Steps[tuple[Any, dict[int, int]]]:
        """What is due, and where that leads; None where it was closed."""
        numbers = [*self._handed]
        turn, self._turn = self._turn % len(numbers), self._turn + 1
        positions = {str(number): self._handed[number] for number in numbers[turn:] + numbers[:turn]}
        body = {
            "positions": positions,
            "max_records": min(max_records, RECORDS_MAX),
            "max_bytes": POLL_BYTES,
            "wait_ms": int(min(wait_s, SLICE_S) * 1_000),
        }
        request = HttpRequest(operations.FETCH.method, operations.FETCH.path_of(topic=self.topic), json_bytes(body))
        if accept is not None:
            request = request._replace(accept=accept)
        try:
            found, said = yield Call(
                request=request, read=read, wait_s=min(wait_s, SLICE_S), polls=self._polls if wait_s else None
            )
        except AnswerLost:
            if not self.closed:
                raise
            return None, {}
        self._server_time.saw(said)
        return found, numbers_of(said["positions"])

    # Where it stands.

    def seek(self, position: Position, partition: int | None = None) -> Steps[None]:
        numbers = [*self._handed] if partition is None else [self._mine(partition)]
        moved: dict[int, int] = yield _resolving(self.topic, position, numbers)
        self._ahead.clear()
        self._handed.update(moved)
        self._processed.update(moved)

    def commit(self) -> Steps[None]:
        self._check_open()
        self._settle()
        yield from self._write()

    def positions(self) -> Steps[dict[int, int]]:
        yield from ()
        return dict(self._handed)

    def committed(self) -> Steps[dict[int, int | None]]:
        yield from ()
        return dict(self._committed)

    def lag(self) -> Steps[int]:
        from afterlog.fetch.positions import LATEST

        marks: dict[int, int] = yield _resolving(self.topic, LATEST, [*self._handed])
        return sum(max(marks[number] - handed, 0) for number, handed in self._handed.items())

    def end(self, processed: bool) -> Steps[None]:
        """Commit what is processed, and let the partitions go. processed: whether what was handed out last is."""
        with contextlib.suppress(StoreClosed):
            try:
                self._usable()
            except StoreForked:  # they are the parent's
                self.closed = True
                return
        with self._lock:
            was, self._is_reading = self._is_reading, False
            self.closed = True
        if not was:
            return
        self._polls.end()
        try:
            self._usable()
            if self._auto_commit:
                if processed:
                    self._settle()
                yield from self._write()
        finally:
            self._on_close()
            with contextlib.suppress(AfterlogError):
                self._usable()
                yield _letting_go(self.topic, self.group, self._claim)

    def keep(self) -> int | None:
        """Say again that the partitions are claimed; how long until the next time, ms. For the thread that keeps."""
        if self.closed:
            return None
        with contextlib.suppress(AfterlogError):
            self._drive_now(self._renewing())
        return CLAIM_MS // TURNS

    def _renewing(self) -> Steps[None]:
        yield _claiming(self.topic, self.group, self._claim, [*self._handed])

    # Inside.

    def came_back(self) -> None:
        """The caller came back for more: what it has is processed."""
        self._settle()

    def _settle(self) -> None:
        """What was handed out is processed. What an interrupted call would have handed out, comes again."""
        if self._handing:
            self._handed = dict(self._processed)
            self._ahead.clear()
            self._handing = False
        self._processed.update(self._handed)

    def _commit_is_due(self) -> bool:
        return self._auto_commit and self._clock.monotonic_s() - self._committed_s >= AUTO_COMMIT_INTERVAL_S

    def _commit_when_due(self) -> Steps[None]:
        if self._commit_is_due() and not self.closed:
            yield from self._write()

    def _write(self) -> Steps[None]:
        """Commit what is processed."""
        changed = {
            number: processed for number, processed in self._processed.items() if processed != self._committed[number]
        }
        if changed:
            body = {"claim": self._claim, "positions": {str(number): each for number, each in changed.items()}}
            committing = asking(operations.COMMIT, nothing, body, topic=self.topic, group=self.group)
            try:
                yield committing
            except GroupBusy:  # the claim is forgotten, by a server that was started again; or another's by now
                yield from self._renewing()
                yield committing
            self._committed.update(changed)
        self._committed_s = self._clock.monotonic_s()

    def _mine(self, number: Any) -> int:
        if not isinstance(number, int) or number not in self._handed:
            raise UnknownPartition(f"this consumer does not read partition {number!r} of {self.topic}")
        return number

    def _deadline_s(self, timeout: float | None) -> float | None:
        return None if timeout is None else self._clock.monotonic_s() + timeout

    def _left_s(self, deadline_s: float | None) -> float:
        return SLICE_S if deadline_s is None else min(max(deadline_s - self._clock.monotonic_s(), 0.0), SLICE_S)

    def _check_open(self) -> None:
        self._usable()
        if self.closed:
            raise StoreClosed("the consumer is closed; make another with store.consumer(topic, group=...)")


def checked_auto_commit(value: Any) -> bool:
    return flag("auto_commit", value)


def _claiming(topic: str, group: str, claim: str, partitions: Sequence[int]) -> Call[dict[int, Any]]:
    body = {"claim": claim, "partitions": [*partitions], "ttl_ms": CLAIM_MS}
    return asking(operations.CLAIM, lambda row: numbers_of(row["committed"]), body, topic=topic, group=group)


def _letting_go(topic: str, group: str, claim: str) -> Call[None]:
    query = {"claim": claim}
    return asking(operations.RELEASE_CLAIM, nothing, query=query, patience_s=GIVE_BACK_S, topic=topic, group=group)


def _resolving(topic: str, position: Position, partitions: Sequence[int]) -> Call[dict[int, int]]:
    """Where a position is in each of the partitions."""
    body = {"position": position_text(position), "partitions": [*partitions]}
    return asking(operations.POSITIONS, lambda row: numbers_of(row["positions"]), body, topic=topic)


def _messages(reply: HttpReply) -> tuple[list[Message], dict[str, Any]]:
    row = json_of(reply)
    return [*map(message_of, row["records"])], row


def _columns(reply: HttpReply) -> tuple[Columns, dict[str, Any]]:
    from afterlog.api.arrow_stream import delivered

    found = delivered(reply.body)
    return found.columns, found.said
