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


def serve(data: bytes, *names: str) -> None:
    """Do as the bytes say; where they name a path, write there which process it is, each time."""
    assert not names or names == ("one", "other")
    match data.decode().split(" ", 1):
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


class Handlers:
    """Of which one is a name within a name."""

    @staticmethod
    def handle(message: Message) -> None:
        """As the value says."""
        assert type(message) is Message
        assert message.headers == (("name", b"\xff"),)
        serve(message.value or b"")


def handle_json(order: dict[str, str]) -> None:
    """What JSON says."""
    serve(order["do"].encode())


async def awaited(message: Message) -> None:
    """The same, in a loop of its own."""
    await asyncio.sleep(0)
    Handlers.handle(message)
