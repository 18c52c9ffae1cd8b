"""One part by one contestant, in a process of its own.

    drain of afterlog, served:   python -m bench.served.once '{"part": "drain", "who": "afterlog, served", …}'

It is started with one JSON object, and prints another.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.served.clients import Figures
from bench.served.contestants import CONTESTANTS
from bench.served.lateness import lateness
from bench.served.soak import soak
from bench.served.waiting import idle, waiting
from bench.served.work import SIZE, bulk, drain, sends

ROOT = Path(__file__).parent.parent.parent
PARTS: dict[str, Callable[..., Figures]] = {
    "sends": sends, "bulk": bulk, "drain": drain, "lateness": lateness, "waiting": waiting, "idle": idle, "soak": soak
}  # fmt: skip


def once(part: str, who: str, **sizes: Any) -> Figures:
    """In a new process and an empty folder. RuntimeError with what it printed where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # a server may run as somebody else
        wanted = {"part": part, "who": who, "folder": f"{folder}/data", "sizes": sizes}
        # The threads of numpy's linear algebra spin when they start; and servers are started elsewhere than here.
        surroundings = os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "bench.served.once", json.dumps(wanted)]
        run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=surroundings)
    if run.returncode:
        raise RuntimeError(f"{part} of {who}: {run.stderr or run.returncode}")
    figures: Figures = json.loads(run.stdout.splitlines()[-1])
    return figures


def main(text: str) -> None:
    wanted = json.loads(text)
    contestant = CONTESTANTS[wanted["who"]](Path(wanted["folder"]), True, SIZE)
    try:
        print(json.dumps(PARTS[wanted["part"]](contestant, **wanted["sizes"])), flush=True)
    finally:
        with contextlib.suppress(Exception):
            contestant.kill()


if __name__ == "__main__":
    main(sys.argv[1])
