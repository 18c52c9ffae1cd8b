"""Which process serves a shared folder, and the takeover by this one when that process ends.

    looking ──somebody serves──> watching ──the connection breaks──> looking
       │                                                                │
       └──nobody does──> opening ──the lock is free──> serving ──the last handle is closed──> ended
                            └──it is taken, or the store cannot be opened──> looking, a little later

One thread for each folder, for as long as this process has handles. Watching costs a connection and no look: it breaks
when the process at its other end goes, however that ends, and who looks then and gets the lock serves. A process that
is stopped keeps its lock, and nobody takes it from it.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from afterlog.base.clock import SystemClock
from afterlog.base.environment import after_fork, at_exit
from afterlog.base.errors import AfterlogError, NotAllowed, ServerUnavailable, StorageError, StoreLocked
from afterlog.base.files import SERVES, ReadOnlyFiles, opened
from afterlog.base.locks import Condition, Thread
from afterlog.base.names import LOCK, SERVER_SOCKET
from afterlog.client.address import Address
from afterlog.client.call import HttpRequest
from afterlog.client.http_connection import HttpConnection, fixed_headers
from afterlog.client.retry import random_share
from afterlog.server.running import Serving
from afterlog.store.store import Store

logger = logging.getLogger("afterlog.sharing.shared")

LOOK_S: Final = 0.05, 0.2
"""Between looks where nobody answers, at random: larger is less to do beside a process that is stopped, and later."""
AGAIN_S: Final = 1.0
"""Until a store that could not be opened is tried again."""
ANSWER_S: Final = 5.0
"""Within which somebody who serves says so."""
ALONE_S: Final = 2.0
"""For which a process is waited for that has the store open by itself: a command is done by then."""
NOTICE_S: Final = 5.0
"""Between looks whether this is to end; that a connection breaks is heard at once."""
_LIVE: Final = HttpRequest("GET", "/livez")


class OpenedWith(NamedTuple):
    """What a process opens the store with, where it is the one."""

    config: Any
    clock: Any
    remote: Any


class Standby:
    """Of one folder, in one process. Thread-safe."""

    def __init__(self, path: Path, options: OpenedWith, opening: Callable[[], Store]) -> None:
        self.path = path
        self.options = options
        self.handles = 0
        """Kept by `join` and `leave`."""
        self._opening = opening
        self._address = Address(socket=path / SERVER_SOCKET)
        self._changed = Condition()
        self._is_served = False
        self._ended = False
        self._trouble: BaseException | None = None
        self._watching: HttpConnection | None = None
        self._serving: Serving | None = None
        self._clock = SystemClock()
        self._thread = Thread(target=self._run, name="afterlog-standby", daemon=True)
        self._thread.start()

    @property
    def serves(self) -> bool:
        """Whether this process is the one."""
        return self._serving is not None

    def wait(self, timeout_s: float) -> None:
        """Until somebody serves. Raises what opening the store here did; StoreLocked where nobody serves in time.

        That is sooner where another process has the store by itself.
        """
        begun_s = self._clock.monotonic_s()
        with self._changed:
            while not self._is_served:
                if self._trouble is not None and not isinstance(self._trouble, StoreLocked):
                    raise self._trouble
                holder, serves = _holder(self.path)
                patience_s = timeout_s if serves or self._trouble is None else min(timeout_s, ALONE_S)
                left_s = begun_s + patience_s - self._clock.monotonic_s()
                if left_s <= 0:
                    how = f"and has not answered for {timeout_s:g} s" if serves else "which has it by itself"
                    raise StoreLocked(
                        f"the store is open in process {holder}, {how}: give shared=True there, too", path=self.path
                    )
                self._changed.wait(left_s)

    def explained(self) -> str:
        """Who is to serve, for people."""
        trouble = self._trouble
        if trouble is not None and not isinstance(trouble, StoreLocked):
            return f"this process could not take the store over: {trouble}"
        return f"the store is open in process {_holder(self.path)[0]}"

    def end(self) -> None:
        """Stop serving, or watching; it has ended when this returns."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
            serving, watching = self._serving, self._watching
        if serving is not None:
            serving.stop()
        if watching is not None:
            watching.cut()
        self._thread.join()

    # Its thread.

    def _run(self) -> None:
        while not self._ended:
            if self._watch():
                continue
            try:
                store = self._opening()
            except StoreLocked as error:
                self._fail(error)
                self._pause(LOOK_S[0] + (LOOK_S[1] - LOOK_S[0]) * random_share())
            except Exception as error:
                self._in_trouble(error)
            else:
                self._serve(store)

    def _watch(self) -> bool:
        """As long as somebody serves; whether somebody did."""
        connection = HttpConnection(self._address, fixed_headers(None), None)
        try:
            self._watching = connection
            connection.connect(ANSWER_S)
            if connection.exchange(_LIVE, ANSWER_S).status != 200:
                return False
            self._tell(is_served=True)
            while not self._ended and not connection.is_over(NOTICE_S):
                pass
            return True
        except ServerUnavailable:
            return False
        except AfterlogError as error:
            self._in_trouble(error)
            return self._ended
        finally:
            self._watching = None
            self._tell(is_served=False)
            connection.close()

    def _serve(self, store: Store) -> None:
        try:
            serving = Serving(store)
            serving.start()
        except Exception as error:
            store.close()
            self._in_trouble(error)
            return
        with self._changed:
            self._serving = serving
            ended = self._ended
        self._tell(is_served=True)
        logger.info("this process serves %s", self.path)
        if ended:
            serving.stop()
        serving.join()
        self._serving = None
        self._tell(is_served=False)
        try:
            store.close()
        except Exception as error:
            self._in_trouble(error)

    def _in_trouble(self, error: Exception) -> None:
        error = _told(error, self.path)
        if type(error) is not type(self._trouble):  # else it was said
            logger.error("this process cannot serve %s, and tries again: %s", self.path, error)
        self._fail(error)
        self._pause(AGAIN_S)

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._trouble = error
            self._changed.notify_all()

    def _tell(self, *, is_served: bool) -> None:
        with self._changed:
            self._is_served = is_served
            if is_served:
                self._trouble = None
            self._changed.notify_all()

    def _pause(self, seconds: float) -> None:
        with self._changed:
            if not self._ended:
                self._changed.wait(seconds)


class _Standbys:
    """Of this process, by folder. A forked child begins with none."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_path: dict[Path, Standby] = {}

    def forget(self) -> None:
        self.__init__()  # type: ignore[misc]

    def end(self) -> None:
        with self.lock:
            standbys = [*self.by_path.values()]
            self.by_path.clear()
        for standby in standbys:
            standby.end()


_STANDBYS = _Standbys()
after_fork(_STANDBYS.forget)
at_exit(_STANDBYS.end)


def join(path: Path, options: OpenedWith, opening: Callable[[], Store]) -> Standby:
    """The one of this process for the folder, to be left again."""
    with _STANDBYS.lock:
        standby = _STANDBYS.by_path.get(path)
        if standby is None:
            standby = _STANDBYS.by_path[path] = Standby(path, options, opening)
        elif standby.options != options:
            logger.warning("%s is open here with other options, which hold: one process has one of each", path)
        standby.handles += 1
        return standby


def leave(standby: Standby) -> None:
    """Ends it with its last handle. In a forked child it does nothing."""
    with _STANDBYS.lock:
        if _STANDBYS.by_path.get(standby.path) is not standby:
            return
        standby.handles -= 1
        if standby.handles:
            return
        del _STANDBYS.by_path[standby.path]
    standby.end()


def _holder(path: Path) -> tuple[str, bool]:
    """The pid in the lock file, and whether that process lets others in."""
    try:
        with opened(ReadOnlyFiles(), path / LOCK) as file:
            pid, _, what = file.pread(28, 0).partition(b"\n")
            return pid.decode("ascii", "replace").strip() or "unknown", what.strip() == SERVES
    except (AfterlogError, OSError):
        return "unknown", False


def _told(error: Exception, path: Path) -> Exception:
    """What is another user's is no failure of the disk."""
    if isinstance(error, StorageError) and error.errno in (errno.EACCES, errno.EPERM):
        return NotAllowed(f"{path} is another user's, and processes of one user share a store: {error}")
    return error
