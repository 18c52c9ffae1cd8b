"""Draining on a signal: take nothing more, give back what waits, let the handlers end.

    SIGTERM ──> the handler, in the main thread: a flag, and a word to the thread ──> the previous handler is back
                                                       └──> what was leased ahead goes back, who waits is woken
    the end of the block ──> the previous handler is back; after a signal: wait for the handlers

A signal strikes the main thread between any two instructions, with any lock in its hands: so its handler takes none. A
thread, `afterlog-drain`, does the rest; it is there before the signal is.

The first signal drains. From then on the signal is the previous handler's: a second SIGTERM ends a process that is
stuck. Where the previous handler is another block's it is called, too: one signal drains all subscriptions.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType, TracebackType
from typing import Any, Protocol

from afterlog.base.arguments import seconds, whole
from afterlog.base.errors import InvalidArgument, NotInMainThread
from afterlog.base.locks import Thread

logger = logging.getLogger("afterlog.subscription")


class Drainable(Protocol):
    """What takes, and can be told to stop."""

    def halt(self) -> None:
        """Take nothing more. Takes no lock: called by a signal's handler."""

    def stop_taking(self) -> None:
        """The same; give back what waits, and wake who waits."""

    def drain(self, timeout: float | None) -> bool:
        """The same; wait for the handlers. False where that takes longer."""


class Draining:
    """Made by `subscription.draining_on`. A block, in the main thread; nothing happens before it is entered."""

    def __init__(self, reader: Drainable, number: int, timeout: float | None) -> None:
        """number: of the signal. Raises InvalidArgument, WrongType."""
        self._reader = reader
        self._number = whole("signal", number, least=1)
        if self._number not in signal.valid_signals():
            raise InvalidArgument(f"there is no signal {number!r:.100}; take signal.SIGTERM")
        self._timeout = seconds("timeout", timeout)
        self._handler = self._signalled  # one object: a bound method is another one whenever it is asked for
        self._previous: Any = None
        self._words: SimpleQueue[bool] = SimpleQueue()
        """To the thread: True for a signal, False for the end. Its `put` may be interrupted by itself."""
        self._thread: Thread | None = None
        self.signalled = False
        """Whether the signal came."""
        self.drained = True
        """Whether all handlers had ended at the end of the block."""

    def __enter__(self) -> Draining:
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        if self.signalled and kind is None:
            self.drained = self._reader.drain(self._timeout)

    def begin(self) -> None:
        """Heed the signal. Raises NotInMainThread, and InvalidArgument of a signal that cannot be heeded."""
        if threading.current_thread() is not threading.main_thread():
            raise NotInMainThread("only the main thread may heed signals: enter it there, or call drain() from here")
        try:
            self._previous = signal.getsignal(self._number)
            work = self._words, self._reader
            self._thread = Thread(target=_drain, args=work, name="afterlog-drain", daemon=True)
            self._thread.start()
            signal.signal(self._number, self._handler)
        except (OSError, ValueError) as error:
            self.end()
            raise InvalidArgument(f"signal {self._number} cannot be heeded here: {error}") from error
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Put the previous handler back, and let the thread end. Where it was interrupted, another call ends it."""
        if signal.getsignal(self._number) == self._handler:
            signal.signal(self._number, _restorable(self._previous))
        self._words.put(False)
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join()

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        """The handler, in the main thread."""
        self.signalled = True
        self._reader.halt()
        self._words.put(True)
        signal.signal(number, _restorable(self._previous))
        if isinstance(getattr(self._previous, "__self__", None), Draining):  # drain all, then be the previous one
            self._previous(number, frame)


def _drain(words: SimpleQueue[bool], reader: Drainable) -> None:
    """The thread: until the block ends."""
    while words.get():
        try:
            reader.stop_taking()
        except Exception:
            logger.exception("what was leased ahead could not be given back; it is when the reader closes")


def _restorable(previous: Any) -> Callable[[int, FrameType | None], Any] | int:
    """A handler that was not set by Python is not known to it; the default is put there."""
    return signal.SIG_DFL if previous is None else previous
