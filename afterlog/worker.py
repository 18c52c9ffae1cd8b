"""A worker: functions that handle what subscriptions deliver, in threads or in an event loop, until it is told to stop.

    worker = afterlog.Worker(store)

    @worker.handle("mail", concurrency=4, dead_letter="mail.dead")
    def deliver(message): ...

    worker.run()                     # or `afterlog work module:worker`

    run ──> one reader for each handler ──> `concurrency` threads iterate it ──> with message: handle(message)
    SIGTERM, SIGINT, stop() ──> nothing more is taken, what waits goes back ──> the handlers end ──> the readers close

A thin layer: what becomes of a message, its lease, retries and dead letters is the subscription's. What a coroutine
function gives is awaited in one event loop, which a thread of the worker runs; another thread holds its message.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import json
import logging
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, Unpack, cast

from afterlog.api.record_json import message_of, message_row
from afterlog.base.arguments import flag, seconds, spelled_out, whole
from afterlog.base.call_process import CallFailed, CallProcess
from afterlog.base.errors import InvalidArgument, InvalidRecord, WrongType
from afterlog.base.locks import Switch, Thread
from afterlog.base.payload import decoder_of
from afterlog.subscription.draining import Drainable, Draining
from afterlog.subscription.reader_settings import ReaderOptions, ReaderSettings
from afterlog.surface import StoreSurface, SubscriptionSurface

if TYPE_CHECKING:
    from afterlog.fetch.message import Message
    from afterlog.subscription.leased_message import LeasedMessage

logger = logging.getLogger("afterlog.worker")

NAME = "worker"
"""Of the subscription, unless another is given: that of a function would change with the code, and begin anew."""
CANCELLING_S = 1.0
"""What coroutines have, and then their messages, once they are cancelled; what blocks its event loop is left behind."""

_OWN = threading.local()
"""Of the thread of a handler: until when it has time."""
LOOK_S = 0.5
"""Python runs a signal's handler in the main thread alone, which sleeps on where the signal came just before it fell
asleep, or to another thread: so it sleeps no longer than this."""

Handle = TypeVar("Handle", bound="Callable[..., object]")
Around: TypeAlias = "Callable[[LeasedMessage], AbstractContextManager[object]]"
"""What every handler runs in, as `afterlog.tracing.handling`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicHandler:
    """A function, and whose messages it handles."""

    topic: str
    name: str
    call: Callable[..., object]
    concurrency: int
    options: ReaderOptions
    timeout_s: float | None
    processes: bool
    codec: Any = None

    def arguments(self, message: Message) -> tuple[Any, ...]:
        """What the function is called with. Raises Undecodable."""
        return _arguments(self.call, self.codec, message)


class DrainableReader(SubscriptionSurface, Drainable, Protocol):
    """What `subscribe` gives, whoever has the store."""

    def drain(self, timeout: float | None = None) -> bool: ...


class Worker:
    """Handlers of an open store's topics. It runs once, and leaves the store open.

    store: of `afterlog.open`, shared or not, or of `afterlog.connect`. around: a function of a message that gives a
    block (a context manager) in which its handler runs, in the same thread. Raises WrongType of anything else.
    """

    def __init__(self, store: StoreSurface, *, around: Around | None = None) -> None:
        if not all(callable(getattr(store, name, None)) for name in ("subscribe", "__enter__")):
            raise WrongType(f"a worker takes an open store, as afterlog.open(path) gives it, not {store!r:.100}")
        if around is not None and not callable(around):
            raise WrongType(f"around is a function of a message that gives a block, not {around!r:.100}")
        self.store = store
        self.handlers: list[TopicHandler] = []
        """In the order in which they were given."""
        self._around = around
        self._readers: list[DrainableReader] = []
        self._has_run = False
        self._stopping = Switch()
        self._processes: list[CallProcess] = []
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        handlers = ", ".join(f"{each.topic} as {each.name}" for each in self.handlers)
        return f"<Worker of {self.store!r}: {handlers or 'nothing'}>"

    @spelled_out(ReaderOptions, ReaderSettings)
    def handle(
        self,
        topic: str,
        name: str = NAME,
        *,
        concurrency: int = 1,
        timeout: float | None = None,
        processes: bool = False,
        codec: Any = None,
        **options: Unpack[ReaderOptions],
    ) -> Callable[[Handle], Handle]:
        """A decorator: the function is called with each message that is due in `topic`, as the subscription `name`.

        It returns: the message is acked. It raises: the message comes again as `retry` says, or goes to `dead_letter`
        where it has failed too often; `message.reject` and `message.retry` do for themselves. A coroutine function is
        awaited, in one event loop for all of them. An exit (`sys.exit()`) is a failure of that message, like any other
        error: the worker goes on. concurrency: how many messages it has at a time, in this worker; those of one
        subscription are spread over all workers that have it. options: as `Store.subscribe` has them.

        timeout: so many seconds a message has, `max_lease_ms` at most; then it failed. A coroutine is cancelled, with
        TimeoutError. A thread cannot be: the lease of its message ends then, so that another has it, and the function
        can ask for its `time_left`. processes: each message is handled in a process, of which there are `concurrency`:
        for what needs the CPU, or is to be killed when its time is up. The function is imported there by its name, and
        gets a `Message` without a lease: it returns, or raises.

        codec: the function is called with an object, made of the value by `afterlog.json`, a class of pydantic or
        msgspec, or a function of bytes; one that takes two arguments gets the message, too. What cannot be decoded goes
        to `dead_letter` at once, where there is one.

        Raises InvalidArgument where the subscription has a handler already, or the worker has begun to run.
        """
        whole("concurrency", concurrency, 1)
        settings, timeout_s = ReaderSettings.of(options), seconds("timeout", timeout)
        if timeout_s is not None and not 0 < timeout_s * 1_000 <= settings.max_lease_ms:
            raise InvalidArgument(
                f"timeout is more than 0, and no more than max_lease_ms, {settings.max_lease_ms / 1_000:g} s: by then "
                f"another has the message; not {timeout_s:g}"
            )
        in_processes = flag("processes", processes)
        if codec is not None:
            decoder_of(codec)

        def registered(call: Handle) -> Handle:
            if not callable(call):
                raise WrongType(f"a handler is a function of a message, not {call!r:.100}")
            if self._has_run:
                raise InvalidArgument(f"the worker runs already: give it the handler of {topic} before")
            if any((topic, name) == (each.topic, each.name) for each in self.handlers):
                raise InvalidArgument(f"{topic} has a handler as {name!r}: give another name, for a subscription more")
            given = options
            if timeout_s is not None and not in_processes and not inspect.iscoroutinefunction(call):
                limit_ms = max(int(timeout_s * 1_000), 1)  # nothing keeps its message beyond that
                given = {**options, "max_lease_ms": limit_ms, "lease_ms": min(settings.lease_ms, limit_ms)}
            self.handlers.append(
                TopicHandler(
                    topic=topic,
                    name=name,
                    call=call,
                    concurrency=concurrency,
                    options=given,
                    timeout_s=timeout_s,
                    processes=in_processes,
                    codec=codec,
                )
            )
            return call

        return registered

    def run(self, timeout: float | None = 25.0) -> bool:
        """Handle messages until SIGTERM, SIGINT or `stop`; whether all handlers had ended by then.

        Signals are heeded in the main thread. The first one drains: nothing more is taken, what waits for a handler
        goes back uncounted, and `timeout` seconds are given to those at work (None: as long as it takes). Beyond that a
        coroutine is cancelled, a process killed, and its message goes back; a function that is still at work in a
        thread keeps it until its lease ends. A second signal is whoever's it was before.

        Where a reader fails (its store is closed, the disk, a server that is gone for longer than the client waits)
        all of them stop, and the error is raised: whatever started the worker starts it again. Raises UnknownTopic,
        InvalidSubscription and whatever else `Store.subscribe` does, InvalidArgument where there is no handler, or one
        that no process can import, or it has run before.
        """
        timeout = seconds("timeout", timeout)
        if not self.handlers:
            raise InvalidArgument("this worker has nothing to do: give it functions with @worker.handle(topic)")
        if self._has_run:
            raise InvalidArgument("this worker has run: make another one")
        in_processes = [each for each in self.handlers if each.processes]
        self._processes = [
            CallProcess(_handle_there, *_names_of(each)) for each in in_processes for _ in range(each.concurrency)
        ]
        self._has_run = True
        with contextlib.ExitStack() as stack:
            stack.callback(self._end_processes)
            for handler in self.handlers:
                reader = self.store.subscribe(handler.topic, handler.name, **handler.options)
                self._readers.append(cast(DrainableReader, stack.enter_context(reader)))
            if threading.current_thread() is threading.main_thread():
                for number in (signal.SIGTERM, signal.SIGINT):
                    heeded = Draining(self, number, 0)
                    stack.callback(heeded.end)  # and not as a block, which would drain once more
                    heeded.begin()
            with _EventLoop() as loop:
                self._start(loop)
                while not self._stopping.wait(LOOK_S):
                    pass
                logger.info("stopping: nothing more is taken, and handlers end")
                is_drained = self.drain(timeout)
            if not is_drained:
                self._end_processes()
                self.drain(CANCELLING_S)  # coroutines were cancelled: what they had goes back before the readers close
        if self._error is not None:
            raise self._error
        return is_drained

    def stop(self) -> None:
        """Take nothing more: `run` returns when the handlers have ended. From any thread, handlers too."""
        self.halt()
        self.stop_taking()

    # What a signal asks for, as `Drainable` has it.

    def halt(self) -> None:
        """Take nothing more. Takes no lock: called by a signal's handler."""
        for reader in self._readers:
            reader.halt()

    def stop_taking(self) -> None:
        """The same, and let `run` go on to its end, which gives back what waits."""
        self._stopping.set()

    def drain(self, timeout: float | None) -> bool:
        """The same; give back what waits, and wait for the handlers. False where that takes longer."""
        self.stop()
        clock = self.store.clock
        deadline_s = None if timeout is None else clock.monotonic_s() + timeout
        for reader in self._readers:  # all are told before one is waited for
            self._is_drained(reader, 0.0)
        is_drained = True
        for reader in self._readers:
            left_s = None if deadline_s is None else max(deadline_s - clock.monotonic_s(), 0.0)
            is_drained &= self._is_drained(reader, left_s)
        return is_drained

    # Inside.

    def _start(self, loop: _EventLoop) -> None:
        processes = iter(self._processes)
        for handler, reader in zip(self.handlers, self._readers, strict=True):
            for number in range(handler.concurrency):
                name = f"afterlog-work-{handler.topic}-{number}"
                work = reader, handler, loop, next(processes) if handler.processes else None
                Thread(target=self._work, args=work, name=name, daemon=True).start()

    def _work(
        self, reader: DrainableReader, handler: TopicHandler, loop: _EventLoop, process: CallProcess | None
    ) -> None:
        """A thread: message by message, until the reader takes no more."""
        around = self._around or contextlib.nullcontext
        try:
            for message in reader:
                with message, _that_fails(), around(message):
                    self._handle(message, reader, handler, loop, process)
        except BaseException as error:
            logger.error("%r stops, and the worker with it", reader, exc_info=error)
            self._failed(error)
        finally:
            self.stop()

    def _handle(
        self,
        message: LeasedMessage,
        reader: DrainableReader,
        handler: TopicHandler,
        loop: _EventLoop,
        process: CallProcess | None,
    ) -> None:
        """In a process, here, or in the loop. Cancelled by the end of the worker, its message goes back."""
        try:
            if process is not None:
                process.run(json.dumps(message_row(message)).encode(), handler.timeout_s)
                return
            clock, limit_s = self.store.clock, handler.timeout_s
            _OWN.end_s = None if limit_s is None else (clock, clock.monotonic_s() + limit_s)
            made = handler.call(*handler.arguments(message))
            if asyncio.iscoroutine(made):
                loop.run(made, limit_s)
        except (Undecodable, CallFailed) as error:
            if type(error).__name__ != Undecodable.__name__ or handler.options.get("dead_letter") is None:
                raise
            message.reject(str(error))
        except CancelledError:
            if not self._stopping.is_set():  # by itself: it failed
                raise
            reader.release(message)

    def _end_processes(self) -> None:
        for each in self._processes:
            each.close()

    def _is_drained(self, reader: DrainableReader, timeout: float | None) -> bool:
        try:
            return reader.drain(timeout)
        except Exception as error:
            self._failed(error)
            return False

    def _failed(self, error: BaseException) -> None:
        """What `run` raises: the first."""
        if self._error is None:
            self._error = error


def time_left() -> float | None:
    """The seconds that the handler of this thread has left, less than 0 once they are over; None without a limit.

    A coroutine is cancelled when they are over, and need not ask.
    """
    end_s = getattr(_OWN, "end_s", None)
    if end_s is None:
        return None
    clock, at_s = end_s
    left: float = at_s - clock.monotonic_s()
    return left


def _name_of(call: Callable[..., object]) -> tuple[str, str]:
    """By which another process finds it. Raises InvalidArgument where it would not."""
    module, name = getattr(call, "__module__", None) or "", getattr(call, "__qualname__", "")
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not call:
        raise InvalidArgument(
            f"{call!r} cannot run in a process of its own, which imports it by its name: make it a function of a module"
        )
    return module, name


def _names_of(handler: TopicHandler) -> tuple[str, ...]:
    """Of the function, and of what decodes for it."""
    return (*_name_of(handler.call), *(() if handler.codec is None else _name_of(handler.codec)))


def _handle_there(data: bytes, module: str, name: str, codec_module: str = "", codec_name: str = "") -> None:
    """In a process: handle a message."""
    call, codec = _named(module, name), _named(codec_module, codec_name) if codec_name else None
    made = call(*_arguments(call, codec, message_of(json.loads(data))))
    if asyncio.iscoroutine(made):
        asyncio.run(made)


def _named(module: str, name: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


class Undecodable(Exception):
    """A value of which its handler's codec makes nothing."""


def _arguments(call: Callable[..., object], codec: Any, message: Message) -> tuple[Any, ...]:
    if codec is None:
        return (message,)
    try:
        if message.value is None:
            raise InvalidRecord("it is null")
        made = decoder_of(codec)(message.value)
    except Exception as error:
        raise Undecodable(f"the value of {message.id} cannot be decoded: {type(error).__name__}: {error}") from error
    return (made, message) if _takes_two(call) else (made,)


@cache
def _takes_two(call: Callable[..., object]) -> bool:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        taken = [each for each in inspect.signature(call).parameters.values() if each.kind in kinds]
    except ValueError:  # of some that are written in C nobody knows
        return False
    return len([each for each in taken if each.default is each.empty]) > 1


class HandlerExited(Exception):
    """A handler raised what ends a program or a task, and not just its message: SystemExit, GeneratorExit, a
    cancellation that nobody asked for. Nothing but the message fails by it.
    """


@contextlib.contextmanager
def _that_fails() -> Iterator[None]:
    """In the thread of a handler no exit is anybody's: no signal comes there, and no task is cancelled there."""
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        raise HandlerExited(repr(error)) from error


async def _failing(made: Coroutine[Any, Any, object], limit_s: float | None) -> object:
    """The same in the loop, which SystemExit and KeyboardInterrupt would end. What cancels the task goes on."""
    try:
        async with asyncio.timeout(limit_s) as limit:
            return await made
    except TimeoutError:
        if not limit.expired():  # it is the handler's own
            raise
        raise TimeoutError(f"it had {limit_s:g} s") from None
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:
        raise HandlerExited(repr(error)) from error


class _EventLoop:
    """A loop in a thread of its own. At the end of the block what runs in it is cancelled, and nothing more begins."""

    def __enter__(self) -> _EventLoop:
        started = Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]()

        async def until_stopped() -> None:
            stopped = asyncio.Event()
            started.set_result((asyncio.get_running_loop(), stopped))
            await stopped.wait()

        self._beginning = threading.Lock()
        self._has_ended = False
        self._thread = Thread(target=lambda: asyncio.run(until_stopped()), name="afterlog-work-loop", daemon=True)
        self._thread.start()
        self._loop, self._stopped = started.result()
        return self

    def __exit__(self, *error: object) -> None:
        with self._beginning:
            self._has_ended = True
            self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(CANCELLING_S)

    def run(self, made: Coroutine[Any, Any, object], limit_s: float | None = None) -> object:
        """Wait for what a coroutine gives. Raises CancelledError, of another thread than the loop's, TimeoutError."""
        with self._beginning:  # so that it is seen by what cancels all
            if self._has_ended:
                made.close()
                raise CancelledError
            future = asyncio.run_coroutine_threadsafe(_failing(made, limit_s), self._loop)
        return future.result()
