from __future__ import annotations

from typing import Any

import pytest

from afterlog.base.errors import InvalidArgument
from afterlog.relay.instruction import (
    KNOWN_NAMES,
    Cancellation,
    HeaderNames,
    Instruction,
    InstructionReader,
    KafkaRecord,
    Refusal,
    ScheduledDelivery,
)

AT_MS = 1_770_000_000_000


def read(*headers: tuple[str, bytes | None], reader: InstructionReader | None = None, **record: Any) -> Instruction:
    given: dict[str, Any] = {"offset": 7, "timestamp_ms": AT_MS, "key": b"k", "value": b"v", **record}
    return (reader or InstructionReader(default_target="out")).read(KafkaRecord(**given, headers=headers))


def due_ms(*headers: tuple[str, bytes | None], **record: Any) -> int:
    found = read(*headers, **record)
    assert isinstance(found, ScheduledDelivery), found
    return found.due_ms


def reason(*headers: tuple[str, bytes | None], **record: Any) -> str:
    found = read(*headers, **record)
    assert isinstance(found, Refusal), found
    return found.reason


class TestWhen:
    @pytest.mark.parametrize(
        ("text", "ms"),
        [
            ("1770000000123", 1_770_000_000_123),
            ("1770000000", AT_MS),
            ("2026-02-02T02:40:00Z", AT_MS),
            ("2026-02-02T03:40:00.0015+01:00", AT_MS + 2),
            ("0", 0),
            ("99999999999", 99_999_999_999_000),
            ("100000000000", 100_000_000_000),
        ],
    )
    def test_an_instant(self, text: str, ms: int) -> None:
        assert ms == due_ms(("deliver-after", text.encode()))

    @pytest.mark.parametrize(("text", "ms"), [("30", 30_000), ("250ms", 250), ("1h30m", 5_400_000), ("0", 0)])
    def test_a_delay_counts_from_the_timestamp(self, text: str, ms: int) -> None:
        assert AT_MS + ms == due_ms(("delay", text.encode()))

    @pytest.mark.parametrize(
        ("headers", "said"),
        [
            ((), "no header"),
            ((("deliver-after", b"1770000000"), ("delay", b"1s")), "both"),
            ((("delay", b"1s"), ("delay", b"1s")), "two headers"),
            ((("deliver-after", b"soon"),), "deliver-after"),
            ((("deliver-after", b"2026-02-02T02:40:00"),), "zone"),
            ((("deliver-after", b"\xff"),), "no text"),
            ((("deliver-after", None),), "deliver-after"),
            ((("delay", b"-5"),), "no duration"),
            ((("delay", b"9999999999999999999"),), "later than int64"),
        ],
    )
    def test_what_cannot_be_read(self, headers: tuple[tuple[str, bytes]], said: str) -> None:
        assert said in reason(*headers)

    def test_a_delay_needs_a_timestamp(self) -> None:
        assert "timestamp" in reason(("delay", b"1s"), timestamp_ms=-1)

    def test_how_far_ahead(self) -> None:
        reader = InstructionReader(default_target="out", max_delay_ms=1_000)
        assert isinstance(read(("delay", b"1s"), reader=reader), ScheduledDelivery)
        assert "more than 1000 ms" in reason(("delay", b"1001ms"), reader=reader)


class TestWhereTo:
    def test_key_value_and_other_headers_go_along(self) -> None:
        found = read(("a", b"1"), ("delay", b"1s"), ("deliver-to", b"mail"), ("b", None), ("a", b"2"))
        assert (
            ScheduledDelivery(7, AT_MS + 1_000, "mail", b"k", b"v", (("a", b"1"), ("b", None), ("a", b"2")), AT_MS)
            == found
        )

    def test_another_key_none_and_a_null_value(self) -> None:
        found = read(("delay", b"0"), ("deliver-key", b"K"), value=None)
        assert isinstance(found, ScheduledDelivery)
        assert (b"K", None) == (found.key, found.value)
        none = read(("delay", b"0"), ("deliver-key", None))
        assert isinstance(none, ScheduledDelivery)
        assert none.key is None

    def test_a_topic_that_may_not_be_delivered_to(self) -> None:
        reader = InstructionReader(allowed_targets=["mail.*", "sms"], forbidden_targets=["mail.later"])
        for target in (b"mail.x", b"sms"):
            assert isinstance(read(("delay", b"0"), ("deliver-to", target), reader=reader), ScheduledDelivery)
        for target in (b"mail.later", b"other", b"smsx"):
            assert "no topic that may" in reason(("delay", b"0"), ("deliver-to", target), reader=reader)
        assert "no default target" in reason(("delay", b"0"), reader=reader)


class TestIds:
    def test_a_cancel(self) -> None:
        assert Cancellation(7, b"order") == read(("cancel", b"order"), value=None)
        assert Cancellation(7, b"k") == read(("cancel", b""), value=None)

    def test_an_id_has_a_length(self) -> None:
        assert "bytes" in reason(("cancel", b""), key=None)
        assert "bytes" in reason(("cancel", b"x" * 1_025))
        assert "bytes" in reason(("delay", b"0"), ("schedule-id", b""))

    def test_known_by_the_key(self) -> None:
        reader = InstructionReader(KNOWN_NAMES["etf1"])
        said = (("scheduler-epoch", b"1770000000"), ("scheduler-target-topic", b"mail"))
        found = read(*said, ("scheduler-target-key", b"K"), reader=reader)
        assert isinstance(found, ScheduledDelivery)
        assert (b"K", b"k", AT_MS) == (found.key, found.id, found.due_ms)
        assert Cancellation(7, b"k") == read(reader=reader, value=None)
        nobody = read(*said, reader=reader, key=None)
        assert isinstance(nobody, ScheduledDelivery)
        assert nobody.id == b""

    def test_other_names(self) -> None:
        said = (("X-Timebridge-When", b"2026-02-02T02:40:00Z"), ("X-Timebridge-Where", b"mail"))
        found = read(*said, reader=InstructionReader(KNOWN_NAMES["timebridge"]))
        assert isinstance(found, ScheduledDelivery)
        assert ("mail", AT_MS, b"") == (found.target, found.due_ms, found.id)


class TestHeaderNames:
    def test_each_has_one_of_its_own(self) -> None:
        with pytest.raises(InvalidArgument, match="of its own"):
            HeaderNames(delay="cancel")
        with pytest.raises(InvalidArgument, match="when a record is due"):
            HeaderNames(delay="", deliver_after="")
        with pytest.raises(InvalidArgument, match="identity"):
            HeaderNames(identity="value")  # type: ignore[arg-type]
