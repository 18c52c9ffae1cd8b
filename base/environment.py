"""The seam to the process's surroundings: variables, programs, pipes, randomness, the package's own place."""

from __future__ import annotations

import contextlib
import os
import platform
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn, TextIO

from afterlog.base.errors import InvalidArgument, WrongType

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from numpy.random import Generator


def variable(name: str) -> str:
    """The environment variable; empty where it is not set."""
    return os.environ.get(name, "")


def set_variable(name: str, value: str) -> None:
    """For this process and those that it starts from now on."""
    os.environ[name] = value


def random_generator() -> Generator:
    """A random generator, seeded by the operating system."""
    from numpy.random import default_rng

    return default_rng(int.from_bytes(os.urandom(16), "little"))


def program(name: str, folder: Path | None = None) -> Path | None:
    """An executable of this name, on the path or in one folder; None where there is none."""
    from shutil import which  # three packers of archives come with it, which an open store does not need

    found = which(name, path=None if folder is None else str(folder))
    return None if found is None else Path(found)


def entry_point(group: str, name: str) -> EntryPoint | None:
    """What an installed package has registered; None where none has."""
    from importlib.metadata import entry_points

    return next(iter(entry_points(group=group, name=name)), None)


def import_folder() -> Path:
    """The folder from which this package is imported: what another interpreter needs on its path."""
    return Path(__file__).absolute().parent.parent.parent


class Pipe:
    """A pipe that is written to, of which it can be told what its reader has taken.

    It holds one page from now on: so there is room in it again only when it is empty, and that can be waited for.
    """

    def __init__(self, descriptor: int) -> None:
        import select

        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._empty = [(descriptor, select.POLLOUT)]

    @staticmethod
    def of(output: IO[bytes]) -> Pipe | None:
        """None where `output` is no pipe, or of a system that cannot do that."""
        import fcntl
        import mmap

        try:
            descriptor = output.fileno()
            if not stat.S_ISFIFO(os.fstat(descriptor).st_mode) or not hasattr(fcntl, "F_SETPIPE_SZ"):
                return None
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, mmap.PAGESIZE)
        except (OSError, ValueError):  # no descriptor; more is in it than a page holds
            return None
        return Pipe(descriptor)

    def is_taken(self) -> bool:
        """Wait until the reader has taken all that was written; False: it has gone, and left some of it."""
        if self._poll.poll() == self._empty:
            return True
        import fcntl
        import termios

        return not any(fcntl.ioctl(self._descriptor, termios.FIONREAD, bytes(4)))


CTRL_D = b"\x04"


class Keyboard:
    """What is typed at a terminal, each key at once and unseen, as long as the block is open."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._before: list[Any] = []

    @staticmethod
    def of(source: TextIO | None) -> Keyboard | None:
        """None where `source` is no terminal."""
        return Keyboard(source.fileno()) if source is not None and source.isatty() else None

    def __enter__(self) -> Keyboard:
        import termios
        import tty

        self._before = termios.tcgetattr(self._descriptor)
        tty.setcbreak(self._descriptor)
        return self

    def __exit__(self, *error: object) -> None:
        import termios

        with contextlib.suppress(termios.error):  # it hung up
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def typed(self, timeout_s: float) -> bytes:
        """What has been typed since; waits so long for it. Nothing typed: empty. The terminal's end is a Ctrl-D."""
        import select

        if not select.select([self._descriptor], [], [], timeout_s)[0]:
            return b""
        try:
            return os.read(self._descriptor, 1_024) or CTRL_D
        except OSError:  # it hung up
            return CTRL_D


def process_id() -> int:
    """Of this process: another one in a forked child."""
    return os.getpid()


def run_anew() -> NoReturn:
    """Put the program that this process runs in its own place: the same arguments and process id, nothing else is left.

    What is open is closed, locks are let go, signals that are ignored stay so. Nothing runs that an ordinary end runs.
    """
    for output in (sys.stdout, sys.stderr):
        if output is not None:
            output.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def after_fork(call: Callable[[], object]) -> None:
    """To be called in each child that this process forks, at once."""
    os.register_at_fork(after_in_child=call)


def at_exit(call: Callable[[], object]) -> None:
    """To be called when the process ends in the ordinary way, while there are still threads that work.

    Before `atexit`, where executors take no more calls. A forked child inherits it.
    """
    import concurrent.futures.thread  # noqa: F401  (its own end is registered first, and comes last)

    register: Callable[[Callable[[], object]], object] | None = getattr(threading, "_register_atexit", None)
    if register is None:  # of a Python that is not CPython
        import atexit

        register = atexit.register
    register(call)


def random_bits(count: int) -> int:
    """A number of so many random bits, from the operating system."""
    return int.from_bytes(os.urandom((count + 7) // 8), "little") >> (-count % 8)


def random_token() -> str:
    """256 random bits, from the operating system, as text: 43 of a-z A-Z 0-9 - _"""
    import base64

    return base64.urlsafe_b64encode(os.urandom(32)).rstrip(b"=").decode()


def machine_name() -> str:
    """Of this host."""
    return platform.node() or "localhost"


def user_id() -> int:
    """Of who runs this process; -1 where the system has none."""
    return os.geteuid() if hasattr(os, "geteuid") else -1


_DESCRIPTORS_MAX = 10_240
"""What macOS gives a process where it says that there is no limit: OPEN_MAX."""


def folder_of(path: Any) -> Path:
    """The folder that a caller names, absolute; `~` is the user's own."""
    try:
        folder = Path(path)
    except TypeError as error:
        raise WrongType(f"path must name a folder, as text or pathlib.Path: {error}") from None
    if not str(path).strip():
        raise InvalidArgument('path is empty: name the folder of a store; "." is the one of this process')
    try:
        return folder.expanduser().absolute()
    except RuntimeError as error:  # of a user that there is not
        raise InvalidArgument(f"{path!r:.200} names no folder: {error}") from None


def is_folder(path: Path) -> bool:
    """Whether it is there, and may be looked into."""
    return path.is_dir()


def descriptors() -> int | None:
    """How many files and connections this process may have open; None: not known, or as many as it likes."""
    try:
        import resource
    except ImportError:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def allow_descriptors() -> int | None:
    """Let this process have as many files and connections open as its system allows; how many, None: not known."""
    try:
        import resource
    except ImportError:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for most in (hard, min(hard, _DESCRIPTORS_MAX)):
        if most > soft:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
                return most
    return soft
