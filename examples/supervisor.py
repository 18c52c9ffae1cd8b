"""Processes that are started, and started again whenever they end: what systemd or a container's runtime does."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

LOOK_S = 0.1


def supervise(commands: dict[str, list[str]], descriptors: Sequence[int] = ()) -> None:
    """Programs of this Python, by name, until SIGTERM or Ctrl-C, which it passes on."""
    running: dict[str, subprocess.Popen[bytes]] = {}
    ending = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal ending
        ending = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    while not ending:
        for name, command in commands.items():
            if name not in running or running[name].poll() is not None:
                running[name] = subprocess.Popen([sys.executable, *command], pass_fds=descriptors)
                print(f"{name} is process {running[name].pid}", flush=True)
        time.sleep(LOOK_S)
    for process in running.values():
        process.terminate()
    for process in running.values():
        process.wait()
