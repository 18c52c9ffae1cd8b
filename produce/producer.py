"""The buffered producer: many small sends become few appends.

    send ──> buffer of its partition ──linger_ms over, or batch_bytes full, or flush──> one append ──> futures resolved

A future resolves when its record is safe under the store's durability. A send that cannot be taken raises at once; an
append that fails fails the futures of that append and of no other, and the producer goes on.

An idempotent producer numbers what it appends (`numbering.py`): where an append fails the log tells what of it is
there, so a future that fails means that its record is not, as long as the log can be asked.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from afterlog.base.clock import Clock
from afterlog.base.errors import (
    Interrupted,
    InvalidArgument,
    OutOfOrderSequence,
    RecordTooLarge,
    StoreClosed,
    UniqueKeyConflict,
)
from afterlog.base.files import PROCESS
from afterlog.base.locks import Condition, Thread
from afterlog.produce.numbering import Numbering
from afterlog.produce.unique_asked import claim, unasked
from afterlog.records.batch import Headers
from afterlog.records.columns import Int64Array
from afterlog.records.encode import RECORD_OVERHEAD_BYTES, RecordColumns, ragged
from afterlog.records.header import HEADER_BYTES
from afterlog.records.producer_sequence import ProducerSequence
from afterlog.records.single import byte_string, header_section
from afterlog.records.times import Delay, Instant, asked_ms

if TYPE_CHECKING:
    from afterlog.records.unique_key import OnConflict

logger = logging.getLogger("afterlog.produce")

BUFFERED_BYTES_MAX = 32 << 20
"""A send waits while more than this is buffered."""

_RAISE: Final = "raise"
"""As a rule nobody says anything else: then one look at the object tells."""

Id = TypeVar("Id")
IdOf = TypeVar("IdOf", covariant=True)


class Target(Protocol[IdOf]):
    """Where a producer appends: one topic."""

    @property
    def partition_count(self) -> int: ...

    def checks_instants(self, asked: bool | None) -> bool: ...

    def partition_of(self, key: bytes | None, priority: int | None = None) -> int: ...

    def checked_partition(self, number: int, priority: int | None = None) -> int: ...

    def append(self, number: int, columns: RecordColumns) -> Int64Array: ...

    def append_unique(
        self, columns: RecordColumns, keys: list[bytes | None], on_conflict: OnConflict, partition: int | None
    ) -> Int64Array: ...

    def check_unique_keys(self) -> None: ...

    def record_ids(self, number: int, offsets: Int64Array) -> Sequence[IdOf]: ...

    def check_asked(self, deliver_after: int) -> None: ...


class SendFuture(Future[Id]):
    """A future of what is buffered: it will be appended, so it runs from the beginning, and `cancel` answers no.

    Who waits for it may be struck, and the producer can resolve it all the same.
    """

    def __init__(self) -> None:
        super().__init__()
        self._condition: Any = Condition()

    def cancel(self) -> bool:
        return False

    def running(self) -> bool:
        return not self.done()


class _Buffered(NamedTuple, Generic[Id]):
    """A record that waits for company."""

    value: bytes | None
    key: bytes | None
    headers: bytes
    timestamp: int
    deliver_after: int
    claim: tuple[bytes, OnConflict] | None
    """Its unique key, and what becomes of it where another one holds that."""
    future: Future[Id]

    @property
    def way(self) -> OnConflict | None:
        return None if self.claim is None else self.claim[1]


@dataclass(slots=True)
class _Buffer(Generic[Id]):
    """Those of one partition."""

    records: list[_Buffered[Id]] = field(default_factory=list)
    size: int = 0
    first_s: float = 0.0
    claims: bool = False
    """Whether some have unique keys."""


_SIZE = attrgetter("size")
"""Of a buffer."""
_LINGERING: set[Producer[Any]] = set()
"""Those that have something buffered: it is appended though nobody else holds them any more."""


class Producer(Generic[Id]):
    """Buffers sends to one topic. Thread-safe; leaving the `with` block flushes."""

    def __init__(
        self,
        target: Target[Id],
        *,
        clock: Clock,
        now_ms: Callable[[], int],
        linger_ms: int,
        batch_bytes: int,
        batch_bytes_max: int,
        numbering: Numbering | None = None,
    ) -> None:
        """numbering: of an idempotent producer."""
        self._target = target
        self._numbering = numbering
        self._clock = clock
        self._now_ms = now_ms
        self._linger_s = linger_ms / 1000
        self._batch_bytes = batch_bytes
        self._batch_bytes_max = batch_bytes_max
        self._buffers: dict[int, _Buffer[Id]] = {}
        self._changed = Condition()
        self._append_lock = threading.RLock()  # a future's callback may flush
        self._closed = False
        self._owner = PROCESS.id
        run = partial(_linger, weakref.ref(self), self._changed, clock)
        self._thread = Thread(target=run, name="afterlog-producer", daemon=True)
        weakref.finalize(self, _wake, self._changed).atexit = False
        self._thread.start()

    def __enter__(self) -> Producer[Id]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        delay: Delay | None = None,
        deliver_after: Instant | None = None,
        partition: int | None = None,
        check_instants: bool | None = None,
        expires_after: Delay | None = None,
        priority: int | None = None,
        unique_key: bytes | None = None,
        on_conflict: OnConflict = _RAISE,
    ) -> Future[Id]:
        """Buffer a record, given as to `Store.send`; a future of its id. Raises InvalidRecord (a leaf), StoreClosed.

        Who holds a unique key is looked up when the buffer is appended. With "raise" a conflict fails the future of
        this record alone; of those that replace each other in one buffer the last is appended, and all get its id.
        """
        PROCESS.check_is(self._owner)
        now_ms = self._now_ms()
        told = deliver_after is not None or delay is not None or check_instants is not None
        check = told and self._target.checks_instants(check_instants)
        asked = asked_ms(now_ms, delay, deliver_after, check_instants=check)
        self._target.check_asked(asked)
        if expires_after is not None:
            from afterlog.records.expiry import expiring

            headers = expiring(headers, expires_after)
        section, asked_claim = header_section(headers), None
        if (unique_key is not None or on_conflict is not _RAISE) and not unasked(unique_key, on_conflict):
            asked_claim, section = self._claimed(unique_key, on_conflict, section)
        if type(value) is not bytes:
            value = byte_string(value)
        if key is not None and type(key) is not bytes:
            key = byte_string(key, "keys")
        size = (len(value) if value else 0) + (len(key) if key else 0) + len(section) + RECORD_OVERHEAD_BYTES
        if size + HEADER_BYTES > self._batch_bytes_max:
            raise RecordTooLarge(
                f"a record of {size} bytes does not fit into batch_bytes_max ({self._batch_bytes_max})"
            )
        by = key if asked_claim is None else asked_claim[0]
        if partition is None:
            number = self._target.partition_of(by, priority)
        else:
            number = self._target.checked_partition(partition, priority)
        future = SendFuture[Id]()
        with self._changed:
            while not self._closed and sum(map(_SIZE, self._buffers.values())) > BUFFERED_BYTES_MAX:
                self._clock.wait(self._changed, None, self._linger_s)
            if self._closed:
                raise StoreClosed("the producer is closed; make another with store.producer")
            buffer = self._buffers.get(number)
            if buffer is None:
                buffer = self._buffers[number] = _Buffer(first_s=self._clock.monotonic_s())
                _LINGERING.add(self)
                self._changed.notify_all()
            buffer.records.append(_Buffered(value, key, section, now_ms, asked, asked_claim, future))
            if asked_claim is not None:
                buffer.claims = True
            was, buffer.size = buffer.size, buffer.size + size
            if was < self._batch_bytes <= buffer.size:
                self._changed.notify_all()
        return future

    def _claimed(
        self, unique_key: bytes | None, on_conflict: OnConflict, section: bytes
    ) -> tuple[tuple[bytes, OnConflict], bytes]:
        """What is asked for, and the headers with the key."""
        from afterlog.records.unique_key import with_unique_key

        if self._numbering is not None:
            raise InvalidArgument("idempotent or a unique key, not both: a conflict would be a gap in the sequence")
        self._target.check_unique_keys()
        asked = claim(unique_key, on_conflict)
        return asked, with_unique_key(section, asked[0])

    def flush(self) -> None:
        """Append everything buffered, and return when every future so far is resolved."""
        PROCESS.check_is(self._owner)
        for number in range(self._target.partition_count):
            self._append(number)

    def close(self) -> None:
        """Flush and stop. In a forked child it only forgets: what is buffered is the parent's."""
        if PROCESS.id != self._owner:
            self._closed = True
            return
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:  # closed in a future's callback
            self._thread.join()
        try:
            self.flush()
        finally:
            _LINGERING.discard(self)

    @property
    def _is_idle(self) -> bool:
        """Whether nothing is buffered, nor has it been closed."""
        return not (self._buffers or self._closed)

    def _append_ripe(self) -> bool:
        """Append what has lingered long enough, or wait until something of what is buffered has; False: it is closed.

        For its thread.
        """
        with self._changed:
            if self._closed:
                return False
            now_s = self._clock.monotonic_s()
            ready = [number for number, buffer in self._buffers.items() if self._ripe(buffer, now_s)]
            if not ready and self._buffers:
                first_s = min(buffer.first_s for buffer in self._buffers.values())
                self._clock.wait(self._changed, None, max(first_s + self._linger_s - now_s, 0.0))
        for number in ready:
            self._append(number)
        return True

    def _ripe(self, buffer: _Buffer[Id], now_s: float) -> bool:
        return buffer.size >= self._batch_bytes or now_s - buffer.first_s >= self._linger_s

    def _append(self, number: int) -> None:
        with self._append_lock:  # Held over both: buffers of one partition are appended in the order they were filled.
            buffer = self._buffers.get(number)
            if buffer is None:
                return
            sent: ProducerSequence | None = None
            try:
                with self._changed:
                    del self._buffers[number]
                    self._changed.notify_all()
                if buffer.claims:
                    for way, alike in groupby(buffer.records, key=lambda record: record.way):
                        self._append_unique(number, [*alike], way)
                elif self._numbering is None:
                    self._resolve(number, buffer.records, self._target.append(number, _columns(buffer.records)))
                else:
                    columns, sent = _columns(buffer.records), self._numbering.next(number)
                    try:
                        offsets = self._numbering.append(number, columns, sent)
                    except OutOfOrderSequence as error:
                        sent = self._numbering.begin_anew(number, sent, error)
                        offsets = self._numbering.append(number, columns, sent)
                    self._resolve(number, buffer.records, offsets)
            except BaseException as error:
                if self._buffers.get(number) is not buffer:
                    try:
                        if self._numbering is not None and sent is not None:
                            found = self._numbering.found(number, sent, len(buffer.records), error)
                            self._resolve(number, buffer.records, found)
                    finally:
                        _fail(buffer.records, error)
                if not isinstance(error, Exception):
                    raise  # a user's interceptor may raise anything else, and the thread must go on

    def _append_unique(self, number: int, records: list[_Buffered[Id]], way: OnConflict | None) -> None:
        """Records that go one way in one append; where one of them is in conflict each in its own."""
        try:
            if way is None:
                offsets = self._target.append(number, _columns(records))
            else:
                keys = [record.claim and record.claim[0] for record in records]
                offsets = self._target.append_unique(_columns(records), keys, way, number)
            self._resolve(number, records, offsets)
        except UniqueKeyConflict as error:
            if len(records) == 1:
                _fail(records, error)
            for record in records if len(records) > 1 else ():
                self._append_unique(number, [record], way)
        except Exception as error:
            _fail(records, error)

    def _resolve(self, number: int, records: Sequence[_Buffered[Id]], offsets: Int64Array) -> None:
        """Of as many records as there are offsets."""
        for record, found in zip(records, self._target.record_ids(number, offsets), strict=False):
            if not record.future.done():
                record.future.set_result(found)


def _linger(held: weakref.ref[Producer[Any]], changed: Condition, clock: Clock) -> None:
    """A producer's thread: it holds the producer while something is buffered, and ends when nobody else does."""
    while True:
        producer = held()
        if producer is None:
            return
        try:
            if not producer._append_ripe():
                return
        except Exception:  # no memory, say: the next time there may be some, and `flush` has not ended
            logger.exception("a producer's linger is over, and nothing was appended")
        with changed:
            is_idle = producer._is_idle
            if is_idle:
                _LINGERING.discard(producer)
            del producer  # which may have been the last to hold it
            if is_idle and held() is not None:
                clock.wait(changed, None, None)


def _wake(changed: Condition) -> None:
    """Wherever the interpreter finds time to collect: its lock is one that its holder may take again."""
    with changed:
        changed.notify_all()


def _columns(records: Sequence[_Buffered[Id]]) -> RecordColumns:
    values, keys, headers, timestamps, deliver_after, *_ = zip(*records, strict=True)
    value_column, value_valid = ragged(values)
    key_column, key_valid = ragged(keys, "keys")
    header_column, _ = ragged(headers, "headers")
    return RecordColumns(
        values=value_column,
        value_valid=value_valid,
        keys=key_column,
        key_valid=key_valid,
        headers=header_column,
        timestamps=np.array(timestamps, np.int64),
        deliver_after=np.array(deliver_after, np.int64),
    )


def _fail(records: Sequence[_Buffered[Id]], error: BaseException) -> None:
    """Fail the futures that are not resolved. Of one that struck from outside, nobody knows what became of them."""
    if not isinstance(error, Exception):
        error = Interrupted(f"{error!r} struck while records were appended: they may be there or not")
    for record in records:
        if not record.future.done():
            record.future.set_exception(error)
