"""The store as a whole: what keeps it, and what a closed one says."""

from __future__ import annotations

import pytest

from afterlog.base.errors import RemoteRefused, StoreClosed
from afterlog.fetch.record_id import RecordId
from tests.conformance.ways import Setting


class TestKeeping:
    def test_retention(self, setting: Setting) -> None:
        setting.store.create_topic("mail", retention_ms=1_000)
        for _ in range(20):
            setting.store.send("mail", b"x" * 1_000)
        setting.clock.advance(3_600_000)
        assert setting.store.enforce_retention() > 0
        assert 0 == setting.store.enforce_retention()

    def test_what_holds_the_bytes(self, setting: Setting) -> None:
        setting.store.create_topic("mail")
        setting.store.send("mail", b"x")
        held = setting.store.held_bytes("mail")
        assert 0 < held.active == held.total

    def test_what_there_is_to_call(self, setting: Setting) -> None:
        setting.store.sync()
        setting.store.confirm_clock()
        assert 0 == setting.store.run_schedules()
        with pytest.raises(RemoteRefused):
            setting.store.offload(roll=True)


class TestClosing:
    def test_a_closed_one_says_so(self, setting: Setting) -> None:
        setting.store.create_topic("mail")
        subscription = setting.store.subscribe("mail", "s")
        consumer = setting.store.consumer("mail", group="g")
        setting.store.close()
        setting.store.close()
        for call in (
            lambda: setting.store.send("mail", b"x"),
            lambda: setting.store.send_many("mail", [b"x"]),
            lambda: setting.store.topic("mail"),
            setting.store.topics,
            setting.store.sync,
            lambda: setting.store.pending("mail"),
            lambda: setting.store.cancel(RecordId("mail", 0, 0)),
            lambda: setting.store.subscribe("mail", "s"),
            lambda: setting.store.consumer("mail", group="g"),
            lambda: setting.store.producer("mail"),
            subscription.receive,
            consumer.poll,
        ):
            with pytest.raises(StoreClosed):
                call()
