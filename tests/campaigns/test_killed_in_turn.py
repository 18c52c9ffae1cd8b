"""Workers of a subscription that is ordered by key, killed with SIGKILL again and again, those too that have the store.

They share a store by its folder, and say in one file what they begin and have ended. A record is begun only where all
before it of its key have been ended, whoever did that, and in the end all have been.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import afterlog
from tests import campaigns
from tests.campaigns.killed_in_turn import READER
from tests.support import PATIENCE_S, eventually

KILLS = 25 if campaigns.WHOLE else 4
WORKERS = 3
KEYS = 12
RECORDS_A_KILL = 150


def started(data: Path, told: Path, bug: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.campaigns.killed_in_turn", str(data), str(told), bug]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def out_of_turn(told: str) -> list[str]:
    """What was begun before all before it of its key were ended."""
    ended, wrong = defaultdict[str, set[int]](set), list[str]()
    for line in told.splitlines():
        match line.split():
            case ["begins", key, number]:
                before = [each for each in range(int(key), int(number), KEYS) if each not in ended[key]]
                if before:
                    wrong.append(f"{line}, before {before[0]} had ended")
            case ["ended", key, number]:
                ended[key].add(int(number))
    return wrong


def killed(folder: Path, seed: int, kills: int, bug: str = "") -> tuple[list[str], set[int], set[int]]:
    """What was out of turn, what was sent, and what was ended."""
    chance, data, told = random.Random(seed), folder / "data", folder / "told"
    told.touch()
    with afterlog.open(data) as store:
        store.create_topic("mail")
        store.subscribe("mail", "s", **READER).close()  # type: ignore[arg-type]
    workers, count = [started(data, told, bug) for _ in range(WORKERS)], 0
    try:
        eventually(lambda: told.read_text().count("ready") >= WORKERS)
        for _ in range(kills):
            count = sent(data, count)
            eventually(_reached(told, lines_of(told) + chance.randrange(2 * RECORDS_A_KILL), count))
            victim = chance.randrange(WORKERS)
            workers[victim].send_signal(signal.SIGKILL)
            workers[victim].wait(PATIENCE_S)
            workers[victim] = started(data, told, bug)
            campaigns.count("kills of a worker in turn")
        eventually(lambda: count == len(ended_of(told)) or bool(bug and out_of_turn(told.read_text())))
    finally:
        for each in workers:
            each.kill()
            each.wait(PATIENCE_S)
    return out_of_turn(told.read_text()), set(range(count)), ended_of(told)


def sent(data: Path, count: int) -> int:
    """More records, of keys in turn, and due in the order of their numbers; how many there are."""
    with afterlog.open(data, shared=True) as store:
        numbers = range(count, count + RECORDS_A_KILL)
        for start in range(0, RECORDS_A_KILL, KEYS):
            part = numbers[start : start + KEYS]
            keys: Any = [b"%d" % (number % KEYS) for number in part]
            store.send_many("mail", [b"%d" % number for number in part], keys=keys, delay=0.05)
    return numbers.stop


def _reached(told: Path, lines: int, count: int) -> Callable[[], bool]:
    """Whether so many lines were said, or all so many records were ended."""
    return lambda: lines_of(told) >= lines or len(ended_of(told)) == count


def lines_of(told: Path) -> int:
    return told.read_text().count("\n")


def ended_of(told: Path) -> set[int]:
    return {int(line.split()[2]) for line in told.read_text().splitlines() if line.startswith("ended")}


def test_each_key_is_handled_in_turn_whoever_is_killed(tmp_path: Path) -> None:
    wrong, asked, ended = killed(tmp_path, campaigns.SEED, KILLS)
    assert [] == wrong
    assert asked == ended


@pytest.mark.share(3)
def test_planted_bug_is_caught(tmp_path: Path) -> None:
    wrong, _, _ = killed(tmp_path, 1, 2, "no order")
    assert wrong, "nobody saw it"
