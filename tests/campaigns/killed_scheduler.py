"""The process that `tests/store/test_schedules.py` kills: a store with a schedule of every few milliseconds, and its
thread.

It says which occurrences are in the log; see `tests/campaigns/killed_worker.py` for how it is run.
"""

from __future__ import annotations

import dataclasses
import time
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import afterlog
from afterlog.base import recurrence
from afterlog.store.schedules import Schedules, appended_occurrences
from tests.campaigns.killed_worker import nothing_planted, say, serve

EVERY_MS = 5


def live(folder: Path, seed: str) -> None:
    """`all`: whatever was missed comes, so that each step is one interval."""
    every = timedelta(milliseconds=EVERY_MS)
    with patch.object(recurrence, "EVERY_MS_MIN", 1), afterlog.open(folder) as store:
        store.create_topic("t")
        store.schedule("t", name="s", every=every, missed="all")
        partition, position = store.topic("t").partition(0), 0
        while True:
            end = partition.log_end_offset
            for each in appended_occurrences(partition, position, end):
                say("came", each.due_ms)
            position = end
            time.sleep(0.001)


def nobody_looks() -> None:
    """What is not known to be there is appended."""

    def looked_up(schedules: Schedules, documents: Any) -> Any:
        return documents

    patch.object(Schedules, "_looked_up", looked_up).start()


def the_intent_is_believed() -> None:
    """What was about to be appended is taken for appended."""

    def looked_up(schedules: Schedules, documents: Any) -> Any:
        return [
            dataclasses.replace(each, occurrence=dataclasses.replace(each.occurrence, offset=0)) for each in documents
        ]

    patch.object(Schedules, "_looked_up", looked_up).start()


BUGS = {bug.__name__: bug for bug in (nothing_planted, nobody_looks, the_intent_is_believed)}

if __name__ == "__main__":
    serve(live, BUGS)
