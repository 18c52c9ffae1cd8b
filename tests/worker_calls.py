"""Handlers that a worker's processes import by their names."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from afterlog.fetch.message import Message


class Unspeakable(Exception):
    """An error that cannot be made again from what it says."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")


def handle(message: Message) -> None:
    """Do as the value says; where it is a path, write there which process it is, and for how many times."""
    assert type(message) is Message
    match (message.value or b"").decode().split(" ", 1):
        case ["raise"]:
            raise LookupError("no such address")
        case ["unspeakable"]:
            raise Unspeakable(1, 2)
        case ["exit"]:
            raise SystemExit(3)
        case ["die"]:
            os._exit(7)
        case ["spin"]:
            while True:
                pass
        case ["sleep", path]:
            Path(path).touch()
            time.sleep(1_000)
        case ["write", path]:
            with Path(path).open("a") as file:
                file.write(f"{os.getpid()}\n")


async def awaited(message: Message) -> None:
    """The same, in a loop of its own."""
    await asyncio.sleep(0)
    handle(message)
