"""Start four workers and a sender, and start again whoever ends: `python -m examples.reminders [--port 8000]`."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

WORKERS = 4
LOOK_S = 0.1


def main() -> None:
    asked = _asked()
    data = asked.data.absolute()
    os.environ["REMINDERS_DATA"] = str(data)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", asked.port))
        listener.listen(128)
        listening = str(listener.fileno())
        web = ["-m", "uvicorn", "examples.reminders.app:app", "--fd", listening, "--log-level", "warning"]
        commands = {f"worker {number}": web for number in range(1, WORKERS + 1)}
        commands["sender"] = ["-m", "examples.reminders.sender", str(data), str(asked.outbox.absolute())]
        print(f"http://127.0.0.1:{listener.getsockname()[1]}/docs", flush=True)
        _supervise(commands, listener.fileno())


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.reminders")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--data", type=Path, default=Path("reminders-data"))
    parser.add_argument("--outbox", type=Path, default=Path("reminders-outbox.jsonl"))
    return parser.parse_args()


def _supervise(commands: dict[str, list[str]], descriptor: int) -> None:
    """Until SIGTERM or Ctrl-C, which it passes on."""
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
                running[name] = subprocess.Popen([sys.executable, *command], pass_fds=[descriptor])
                print(f"{name} is process {running[name].pid}", flush=True)
        time.sleep(LOOK_S)
    for process in running.values():
        process.terminate()
    for process in running.values():
        process.wait()


if __name__ == "__main__":
    main()
