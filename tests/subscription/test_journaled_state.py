from __future__ import annotations

import errno

import numpy as np
import pytest
from pyroaring import BitMap64

from afterlog.base.clock import ManualClock
from afterlog.base.errors import StorageFull, StoreClosed
from afterlog.base.files import Files
from afterlog.store.store import Store
from afterlog.subscription import journal as journal_module
from afterlog.subscription.events import Leased, Reason, Returned, Sought
from afterlog.subscription.journaled_state import JournaledState
from afterlog.subscription.redeliveries import UNKNOWN
from tests.campaigns.failing_files import FailingFiles
from tests.campaigns.simulated_disk import SimulatedFiles, os_error
from tests.support import NOW_MS, Calls, killed, open_small


def opened(files: Files, now_ms: int = NOW_MS) -> tuple[Store, JournaledState]:
    store = open_small(files, ManualClock(now_ms))
    return store, JournaledState(store.create_topic("mail").partition(0), "sender", 0)


def test_each_opening_begins_a_journal() -> None:
    disk = SimulatedFiles()
    store, ledger = opened(disk)
    assert ledger.replayed is None
    store.send("mail", b"x")
    ledger.record(Leased(1, BitMap64([0])))
    _, ledger = opened(killed(disk))
    assert ledger.replayed
    assert (0, 1) == (ledger.replayed.number, ledger.journal.number)
    assert [0] == list(ledger.state.retrying)
    assert (1, UNKNOWN) == (ledger.state.counts.crashed, int(ledger.state.redeliveries.rows().offset[0]))
    assert [0] == ledger.append_offsets(np.array([0])).tolist()
    ledger.check()


def test_begun_anew_when_overgrown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "LIMIT_BYTES", 500)
    calls = Calls()
    _, ledger = opened(FailingFiles(SimulatedFiles(), calls))
    size = ledger.journal.size
    while ledger.journal.number == 0:
        ledger.record(Leased(0, BitMap64()))
    assert size == ledger.journal.size
    calls.failing = lambda made, path: os_error(errno.ENOSPC, path) if made == "create" else None
    for _ in range(50):
        ledger.record(Leased(0, BitMap64()))
    assert 1 == ledger.journal.number
    calls.failing = lambda made, path: None
    while ledger.journal.number == 1:
        ledger.record(Leased(0, BitMap64()))
    ledger.check()


def test_what_cannot_be_written_is_not_applied() -> None:
    calls = Calls()
    store, ledger = opened(FailingFiles(SimulatedFiles(), calls))
    calls.fail("append", "journal-00000000000000000000", os_error(errno.ENOSPC, store.path))
    with pytest.raises(StorageFull):
        ledger.record(Leased(0, BitMap64()))
    store.close()
    with pytest.raises(StoreClosed):
        ledger.record(Sought(5))
    assert 0 == ledger.state.position


def test_offsets_are_remembered_or_looked_up() -> None:
    store, ledger = opened(SimulatedFiles())
    store.send_many("mail", [b"x"] * 3)
    ledger.record(Leased(3, BitMap64([0, 1, 2])))
    retry_ms = np.array([NOW_MS])
    ledger.record(Returned(Reason.NACKED, np.array([1]), np.array([77]), retry_ms))
    ledger.record(Returned(Reason.NACKED, np.array([2]), np.array([UNKNOWN]), retry_ms))
    assert [0, 77, 2, UNKNOWN] == ledger.append_offsets(np.array([0, 1, 2, 9])).tolist()
