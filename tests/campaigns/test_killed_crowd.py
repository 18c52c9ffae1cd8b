"""A real process of many threads, killed with SIGKILL again and again (`tests/campaigns/test_kill.py`: of one).

Every life draws its durability, its threads and what they do: producers, readers of one subscription, consumers,
changers that make, alter, purge and delete topics of their own, freers whose topics lose what their readers have acked,
and who delete those, and keepers that roll, merge, apply retention and
offload. After every kill a copy in memory, of the folder and of its object storage, is opened an hour later and held
against what the threads had said (`tests/campaigns/crowd_oracle.py`); the next life goes on with the folder itself.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from afterlog import ManualClock
from afterlog.store.store import open_store
from afterlog.tier.directory_store import DirectoryStore
from afterlog.tier.manifest import Manifest
from tests import campaigns
from tests.campaigns.crowd_oracle import HOUR_MS, CrowdOracle
from tests.campaigns.killed_crowd import CONFIG, REMOTE, STORE, TOPICS
from tests.campaigns.killed_worker import wall_ms
from tests.campaigns.recorder import image_of
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.campaigns.workers import Workers

LIVES = 25 if campaigns.WHOLE or campaigns.DEPTH > 1 else 3
"""Of one folder: then it has grown so much that the checks take longer than the lives."""
LIVES_MAX = 40
HISTORIES_MAX = 5
"""Until a planted bug is seen."""
HISTORIES = 5 if campaigns.WHOLE else campaigns.DEPTH
LINES_MAX = 120


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers("tests.campaigns.killed_crowd") as made:
        yield made


def kill_again_and_again(workers: Workers, folder: Path, lives: int, bug: str, seed: str) -> CrowdOracle:
    """The same seed makes the same lives and lengths; where they end, and what comes when, is chance."""
    chance, oracle = random.Random(seed), CrowdOracle()
    for each in (STORE, REMOTE):
        (folder / each).mkdir()
    for number in range(lives):
        with workers.life(folder, f"{seed}.{number}", chance.randrange(LINES_MAX), bug) as said:
            for line in said:
                oracle.hear(*line)
        killed_ms = wall_ms()
        oracle.killed()
        campaigns.count("kills of a process of many threads")
        copied = SimulatedFiles(image_of(folder))
        remote = DirectoryStore(copied, Path("/") / REMOTE)
        clock = ManualClock(killed_ms + HOUR_MS)
        with open_store(Path("/") / STORE, CONFIG, clock, copied, remote, background=False) as store:
            for name, settings in TOPICS.items():
                store.create_topic(name, **settings)
            oracle.verify(store, Manifest(remote, "far-0"), killed_ms)
    return oracle


@pytest.mark.parametrize("history", range(HISTORIES))
@pytest.mark.usefixtures("quiet")
def test_killed_again_and_again(history: int, workers: Workers, tmp_path: Path) -> None:
    oracle = kill_again_and_again(workers, tmp_path, LIVES, "nothing_planted", f"{campaigns.SEED}.{history}")
    sizes = {name: len(topic.named) for name, topic in oracle.topics.items()}
    gone = {name: (each.freed, each.evicted, each.beyond) for name, each in oracle.freeing.items()}
    print("freed, evicted, from behind what was not acked", gone)
    print(sizes, "acked", len(oracle.acked), "received", oracle.received, "redelivered", oracle.redelivered)
    assert min(sizes.values())


SEEN = "D[0-9]+|earlier one|there are|said to have gone"
"""How the oracle tells of a promise that is broken. Which one is seen first, chance says: a bug breaks several."""


@pytest.mark.parametrize(
    "bug",
    [
        "ack_stays_in_memory",
        "position_stays_in_memory",
        "nack_has_no_delay",
        "poll_skips_one",
        "closed_readers_hold_nothing",
        "acks_of_the_deleted_stay",
        "evicted_at_once",
        "key_is_forgotten",  # by a key that is held twice, by one that is not found, or by `check`
    ],
)
@pytest.mark.share(6)
def test_planted_bug_is_caught(bug: str, workers: Workers, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="^" if bug == "key_is_forgotten" else SEEN):
        seek(bug, workers, tmp_path)


def seek(bug: str, workers: Workers, folder: Path) -> None:
    """In one history after the other: what one has come to may show a bug no more."""
    for number in range(1, HISTORIES_MAX + 1):
        history = folder / str(number)
        history.mkdir()
        kill_again_and_again(workers, history, LIVES_MAX, bug, f"{number}")
