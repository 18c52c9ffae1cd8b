from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.errors import CorruptFile
from afterlog.base.names import subscription_folder
from afterlog.offline.journals import dump, fault, journals
from afterlog.offline.locked_store import OfflineStore
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.subscription.support import Setting, values
from tests.support import NOW_MS, PATH, content, flipped, with_file


@pytest.fixture
def setting() -> Setting:
    """A subscription to which everything happened once, closed."""
    setting = Setting()
    setting.send(b"a", b"b", b"c")
    with setting.subscribe(dead_letter="dead") as sub:
        sub.ack(sub.receive(1)[0])
        sub.nack(sub.receive(1), delay=60)
        for _ in range(3):
            sub.nack(sub.receive(1), delay=0, reason="bad")
            setting.clock.advance(20)
        sub.seek(1)
    setting.store.close()
    return setting


def journal_of(files: SimulatedFiles) -> Path:
    folder = subscription_folder(PATH / "mail-0", "sender")
    [name] = files.names(folder)
    return folder / name


def told(files: SimulatedFiles) -> list[str]:
    with OfflineStore(PATH, files, ManualClock(NOW_MS + 1_000)) as store:
        return [finding.message for finding in store.verify()]


def test_frames_are_told(setting: Setting) -> None:
    path = journal_of(setting.disk)
    rows = list(dump(setting.disk, path))
    assert ["SNAPSHOT", "LEASED", "ACKED", "LEASED", "RETURNED"] == [row["kind"] for row in rows[:5]]
    assert {"INTENDED", "DEAD", "SOUGHT", "CLOSED"} <= {row["kind"] for row in rows}
    assert ("NACKED", 1, "ok") == (rows[4]["reason"], rows[4]["records"], rows[4]["crc"])
    assert b'"position": 0' in rows[0]["state"]
    for before, after in itertools.pairwise(rows):
        assert before["position"] + before["size"] == after["position"]
    data = content(setting.disk, path)
    torn = list(dump(with_file(setting.disk, path, data[:-1]), path))
    assert rows[:-1] == torn[:-1]
    assert "no whole frame" == torn[-1]["crc"]


def test_a_torn_end_is_told_and_cut(setting: Setting) -> None:
    assert [] == told(setting.disk)
    path = journal_of(setting.disk)
    torn = with_file(setting.disk, path, content(setting.disk, path)[:-1])
    left = len(content(setting.disk, path)) - 1 - [*dump(setting.disk, path)][-1]["position"]
    assert [f"its last {left} bytes are torn, or speak of records that are gone"] == told(torn)
    with OfflineStore(PATH, torn, ManualClock(NOW_MS + 1_000)) as store:
        assert [] == store.plan().steps
    setting.open(torn)
    with setting.subscribe() as sub:
        assert {0: left} == sub.cut_bytes
    with setting.subscribe() as sub:
        assert {} == sub.cut_bytes
    with setting.subscribe("other") as other:
        assert {} == other.cut_bytes
    setting.store.close()
    assert [] == told(setting.disk)


def test_a_journal_that_is_gone_is_said(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    setting.open(with_file(setting.disk, journal_of(setting.disk), None))
    with setting.subscribe("other"):
        assert [] == caplog.records
    with setting.subscribe() as sub:
        assert 3 == len(sub.receive())
    assert [True] == ["sender: there is no journal in it" in each.message for each in caplog.records]
    setting.store.close()


@pytest.mark.parametrize("position", [0, 50, 200])
def test_what_rots_is_found_and_put_aside(setting: Setting, position: int) -> None:
    path = journal_of(setting.disk)
    data = content(setting.disk, path)
    rotten = data[:position] + flipped(data[position:], 5)
    setting.open(with_file(setting.disk, path, rotten))
    with pytest.raises(CorruptFile):
        setting.subscribe()
    setting.store.close()
    assert 1 == len(told(setting.disk))
    with OfflineStore(PATH, setting.disk, ManualClock(NOW_MS + 1_000)) as store:
        plan = store.plan()
        assert ["begins anew" in step for step in plan.steps] == [True]
        store.apply(plan)
    assert [] == told(setting.disk)
    assert rotten == content(setting.disk, path.with_name(path.name + ".corrupt"))
    setting.open(setting.disk)
    with setting.subscribe() as sub:
        assert [b"a", b"b", b"c"] == values(sub.receive())
    setting.store.close()


def test_a_journal_of_a_longer_log_is_a_fault(setting: Setting) -> None:
    setting.open(setting.disk)
    context: Any = setting.store.topic("mail").partitions[0].log.context
    assert fault(context, "sender", 3) is None
    assert "but there are 2" in str(fault(context, "sender", 2))
    assert 1 == len(journals(context, "sender"))
    setting.store.close()


def test_held_leases_are_told_and_known() -> None:
    setting = Setting()
    setting.send(b"a", b"b")
    sub = setting.subscribe(durable_leases=True, lease_ms=60_000)
    first = sub.receive(1)
    setting.clock.advance(20_000)
    until_ms = sub.extend(first).deadline_ms
    setting.store.close()
    path = journal_of(setting.disk)
    rows = list(dump(setting.disk, path))
    assert ["SNAPSHOT", "LEASED_UNTIL", "EXTENDED", "CLOSED"] == [row["kind"] for row in rows]
    assert (1, 1, first[0].deadline_ms) == tuple(rows[1][name] for name in ("upto", "records", "until_ms"))
    assert (1, until_ms) == (rows[2]["records"], rows[2]["until_ms"])
    setting.open(setting.disk)
    setting.subscribe()
    setting.store.close()
    assert b'"held": [[%d, ' % until_ms in next(dump(setting.disk, journal_of(setting.disk)))["state"]
    assert [] == told(setting.disk)
    with OfflineStore(PATH, setting.disk, ManualClock(NOW_MS + 1_000)) as store:
        assert [] == store.plan().steps
    setting.open(setting.disk)
    with setting.subscribe() as sub:
        assert [b"b"] == values(sub.receive())
    setting.store.close()
