"""Processes that work on a folder, say what they do, and are killed, or stopped by SIGTERM: for the tests of kills."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent


class Workers:
    """Makes workers of one process, which has imported everything, and kills them."""

    def __init__(self, module: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        with self._process:
            self._process.stdin.close()

    @contextlib.contextmanager
    def life(
        self, folder: Path, seed: str, lines: int, bug: str, number: signal.Signals = signal.SIGKILL
    ) -> Iterator[Iterator[list[Any]]]:
        """What a worker says until it is killed, which is when so many lines have been read, and in the rest.

        By another signal it is stopped, and ends well. Who leaves the block has seen enough: it is killed there.
        """
        assert self._process.stdin is not None
        print(folder, seed, bug, sep="\t", file=self._process.stdin, flush=True)
        _, pid = self._said()
        try:
            yield self._spoken(pid, lines, number)
        finally:
            if not self._ended:
                os.kill(pid, signal.SIGKILL)
            while not self._ended:
                self._said()

    def _spoken(self, pid: int, lines: int, number: signal.Signals) -> Iterator[list[Any]]:
        for heard in itertools.count():
            if heard == lines:
                os.kill(pid, number)
            said = self._said()
            if self._ended:
                assert (-number if number == signal.SIGKILL else 0) == said[1], "it died by itself"
                return
            yield said

    def _said(self) -> list[Any]:
        assert self._process.stdout is not None
        said: list[Any] = json.loads(self._process.stdout.readline())
        self._ended = said[0] == "ended"
        return said
