"""A power cut or a kill at every step of every public operation, on a store with something of everything.

The store and the oracle are those of `tests/campaigns/test_interrupted.py`: what had returned before the crash is
there, what the crash interrupted is there as a whole, or not at all, and the store goes on.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

from afterlog.base.config import ALWAYS, OS, Durability
from afterlog.log.commit import Commit
from tests.campaigns import WHOLE
from tests.campaigns.crash_states import CrashModel
from tests.campaigns.crashed_life import BEGINS, Crashing
from tests.campaigns.explorer import Explored, explore, first_failure
from tests.campaigns.life import OPERATIONS


def explored(name: str, durability: Durability, **share: Any) -> Explored:
    crashing = Crashing(name, durability)
    settings: dict[str, Any] = {"model": CrashModel(every_byte_max=64, of=16), "image": crashing.image, "begin": BEGINS}
    return explore(crashing, crashing.verify, **settings | share)


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "offload"])
def test_power_cut(name: str) -> None:
    """Not of an offload: `tests/tier/test_crashes.py` has object storage that crashes with the rest.

    A backup makes 280 names, of which none is durable at first: 64,000 states, of which a third takes an hour.
    """
    found = explored(name, ALWAYS, of=300, whole=20 if name == "backup" else 1)
    print(found)
    assert not found.failures, str(found)


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "offload"])
@pytest.mark.share(2)
def test_kill(name: str) -> None:
    found = explored(name, OS, kill=True, of=300)
    print(found)
    assert not found.failures, str(found)


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "offload"])
@pytest.mark.share(2)
def test_kill_then_power_cut(name: str) -> None:
    """And a power cut at every step of the recovery, where every record is durable when its send returns.

    Of one kill in so many: half an hour of the whole run went into a backup's, at one in 61.
    """
    found = explored(name, ALWAYS, kill=True, of=300, again_every=(487 if name == "backup" else 61) if WHOLE else 0)
    print(found)
    assert not found.failures, str(found)


def not_synced(name: str) -> AbstractContextManager[object]:
    """What has this in its path is not synced where it should be."""
    committed = Commit.committed
    return patch.object(
        Commit, "committed", lambda commit, end: None if name in commit.path.name else committed(commit, end)
    )


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("send", "t-0"),
        ("flush", "t-0"),
        ("reschedule", "t-0"),
        ("ack", "journal-"),
        ("dead letter", "dead-0"),
    ],
)
def test_planted_bug_is_caught(name: str, path: str) -> None:
    with not_synced(path):
        found = first_failure(partial(explored, name, ALWAYS))
    assert found.failures, "nobody saw it"
