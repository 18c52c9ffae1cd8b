"""Start four workers and a sender, and start again whoever ends: `python -m examples.reminders [--port 8000]`."""

from __future__ import annotations

import argparse
import os
import socket
from pathlib import Path

from examples.supervisor import supervise

WORKERS = 4


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
        supervise(commands, [listener.fileno()])


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.reminders")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--data", type=Path, default=Path("reminders-data"))
    parser.add_argument("--outbox", type=Path, default=Path("reminders-outbox.jsonl"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
