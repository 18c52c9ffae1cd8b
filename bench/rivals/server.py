"""A server of somebody else: started in a temporary folder on a socket there, and gone when this process is.

Nothing listens on a network, nothing of an installed service is touched. The kernel kills the server when the process
that started it dies, however it dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.rivals.usage import tree

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
"""Dies with its parent; inherits the children of a server that was killed, to wait for them."""
_PROGRAM_FOLDERS = ("/usr/lib/postgresql/*/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")
_WAIT_S = 60.0


def program(name: str) -> str | None:
    """Where it is: also in the folders where Debian keeps what is not for everybody's path."""
    for pattern in _PROGRAM_FOLDERS[:1]:
        found = sorted(Path("/").glob(f"{pattern[1:]}/{name}"))
        if found:
            return str(found[-1])
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(_PROGRAM_FOLDERS[1:]))


def printed(name: str, *arguments: str) -> str:
    """What a program prints; nothing where it is not there."""
    found = program(name)
    return "" if found is None else subprocess.run([found, *arguments], capture_output=True, text=True).stdout


class Server:
    """One process with its children."""

    def __init__(self, command: Sequence[str], folder: Path, user: str | None = None) -> None:
        """user: who it runs as, where this process may choose (PostgreSQL refuses to be root)."""
        self._log = folder / "server.log"
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, user=user,
                preexec_fn=_begin, start_new_session=True,
            )  # fmt: skip

    def ready(self, connect: Callable[[], object]) -> None:
        """Wait until `connect` works. RuntimeError with the end of its log where it does not."""
        end_s = time.monotonic() + _WAIT_S
        while True:
            try:
                connect()
            except Exception as error:
                if self._process.poll() is not None or time.monotonic() > end_s:
                    raise RuntimeError(self._log.read_text(errors="replace")[-2_000:]) from error
                time.sleep(0.001)
            else:
                return

    def processes(self) -> list[int]:
        return tree(self._process.pid)

    def kill(self) -> None:
        """kill -9, of all its processes at once."""
        processes = self.processes()
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._process.wait()
        for process in reversed(processes):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process, 0)

    def stop(self) -> None:
        """Let it end by itself; else kill it."""
        self._process.send_signal(signal.SIGINT)  # PostgreSQL would wait for its clients at a SIGTERM
        try:
            self._process.wait(_WAIT_S)
        except subprocess.TimeoutExpired:
            self.kill()


def unprivileged() -> str | None:
    """Somebody else to run as, where this process is root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    return None


def _begin() -> None:
    """It dies with its parent, and by SIGINT, which a shell has its background jobs, and so their children, ignore."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
