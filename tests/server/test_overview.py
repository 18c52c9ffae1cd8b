from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from afterlog.api.operations import SORTS
from afterlog.base.errors import CorruptFile, InvalidArgument, StoreClosed, UnknownTopic
from afterlog.base.measures import LATENESS_EDGES_MS
from afterlog.produce.topic import Topic
from afterlog.server import overview as module
from afterlog.server.overview import Overview, topic_rows, total_of
from afterlog.store.store import Store
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, SteppedClock, open_small


class Setting:
    def __init__(self) -> None:
        self.clock = SteppedClock(NOW_MS)
        self.store: Store = open_small(SimulatedFiles(), self.clock)
        self.overview = Overview(self.store)
        self.store.create_topic("mail", partitions=2)
        self.store.create_topic("Mail.dead")
        self.store.create_topic("audit", delayed=False)

    def send(self, topic: str, *after_ms: int) -> None:
        for row, ms in enumerate(after_ms):
            partition = row % self.store.topic(topic).partition_count
            self.store.send(topic, b"v", partition=partition, deliver_after=NOW_MS + ms)

    def pass_ms(self, ms: int) -> None:
        self.clock.advance(ms)
        self.clock.patience_s += ms / 1_000

    def page(self, **asked: Any) -> dict[str, Any]:
        self.pass_ms(1_000)  # nothing is answered again
        return self.overview.page(**{"may_look": lambda _: True, **asked})

    def names(self, **asked: Any) -> list[str]:
        return [row["topic"] for row in self.page(**asked)["topics"]]


@pytest.fixture
def setting() -> Iterator[Setting]:
    setting = Setting()
    yield setting
    setting.store.close()


def picked(row: dict[str, Any], *names: str) -> list[Any]:
    return [row[name] for name in names]


def test_the_counts_of_a_topic(setting: Setting) -> None:
    setting.send("mail", 10, 20, 5_000, 6_000, 7_000)
    setting.clock.advance(15)
    with setting.store.subscribe("mail", "sender", dead_letter="Mail.dead") as reader:
        [message] = reader.receive(10)
        [row] = setting.page(topic="mail")["topics"]
        assert [3, 2, 5, 2, 1] == picked(row, "pending", "due", "sent", "became_due", "handed_out")
        assert [NOW_MS + 5_000, 2, 2] == picked(row, "next_due", "segments", "partitions")
        assert [2, 1, 0, 0] == picked(row, "lag", "leased", "retrying", "dead")
        assert [0, 0, 1, 1] == row["lateness_up_to"][:4]
        assert 1 == row["lateness_up_to"][-1]
        assert row["bytes"] > 0
        reader.nack(message, delay=60)
        assert [2, 0, 1] == picked(setting.page(topic="mail")["topics"][0], "lag", "leased", "retrying")
        [message] = reader.receive(10)
        reader.reject(message, "it is broken")
        rows = setting.page()["topics"]
        assert [["Mail.dead", 1], ["audit", 0], ["mail", 2]] == [picked(row, "topic", "due") for row in rows]
        assert [None, None, 1] == [row["lag"] for row in rows]
        assert 1 == rows[2]["dead"]
    [row] = setting.page(topic="mail")["topics"]
    assert [1, 0, 1, 1] == picked(row, "lag", "leased", "retrying", "dead"), "also where nobody has it open"


def test_the_totals_are_of_all_topics_that_one_may_see(setting: Setting) -> None:
    setting.send("mail", 5_000, 9_000)
    setting.send("Mail.dead", 3_000)
    setting.store.send("audit", b"x")
    answer = setting.page(limit=1, filter_text="audit")
    assert [3, 1, 1] == [answer["all"], answer["matching"], len(answer["topics"])]
    assert [3, 4, NOW_MS + 3_000, 4] == picked(answer["totals"], "pending", "sent", "next_due", "segments")
    answer = setting.page(may_look=lambda name: name == "mail")
    assert [1, 2, NOW_MS + 5_000] == [answer["all"], *picked(answer["totals"], "pending", "next_due")]
    assert ["mail"] == [row["topic"] for row in answer["topics"]]
    with pytest.raises(UnknownTopic):
        setting.page(topic="audit", may_look=lambda name: name == "mail")


def test_of_nothing(setting: Setting) -> None:
    answer = setting.page(may_look=lambda _: False)
    assert [0, [], None] == [answer["all"], answer["topics"], answer["totals"]["next_due"]]
    assert [0] * (len(LATENESS_EDGES_MS) + 1) == answer["totals"]["lateness_up_to"] == total_of([])["lateness_up_to"]


def test_filtered_ordered_and_in_pages(setting: Setting) -> None:
    setting.send("mail", 9_000)
    setting.send("Mail.dead", 8_000, 8_500)
    assert ["Mail.dead", "mail"] == setting.names(filter_text="MAIL")
    assert ["Mail.dead", "audit", "mail"] == setting.names()
    assert ["mail", "audit", "Mail.dead"] == setting.names(descending=True)
    assert ["Mail.dead", "mail", "audit"] == setting.names(sort="pending", descending=True)
    assert ["Mail.dead", "mail", "audit"] == setting.names(sort="next_due")
    assert ["mail", "Mail.dead", "audit"] == setting.names(sort="next_due", descending=True)
    assert ["audit"] == setting.names(offset=1, limit=1)
    assert [] == setting.names(offset=3)
    for name in SORTS:
        assert 3 == len(setting.names(sort=name))
    with pytest.raises(InvalidArgument, match="sort by one of"):
        setting.page(sort="__class__")


def test_it_is_answered_again_for_a_second(setting: Setting) -> None:
    with patch.object(module, "topic_rows", wraps=topic_rows) as counted:
        first = setting.page()
        setting.store.send("audit", b"x")
        setting.pass_ms(999)
        again = setting.overview.page(may_look=lambda _: True)
        assert (first, 1) == (again, counted.call_count)
        assert setting.page()["now_ms"] > first["now_ms"]
        assert 2 == counted.call_count


def test_of_those_who_ask_at_once_one_counts(setting: Setting) -> None:
    counting, go_on, calls = threading.Event(), threading.Event(), 0

    def slowly(store: Store, closed: Any) -> list[dict[str, Any]]:
        nonlocal calls
        calls += 1
        counting.set()
        assert go_on.wait(10)
        return topic_rows(store, closed)

    with patch.object(module, "topic_rows", slowly):
        threads = [threading.Thread(target=setting.overview.page, kwargs={"may_look": bool}) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert counting.wait(10)
        go_on.set()
        for thread in threads:
            thread.join(10)
    assert 1 == calls


def test_a_partition_that_cannot_be_opened_is_told(setting: Setting) -> None:
    setting.send("mail", 5_000, 5_000)
    broken = CorruptFile("it rotted", path="mail-1/x.log")
    opened = Topic.partition

    def partition(topic: Topic, number: int) -> Any:
        if (topic.name, number) == ("mail", 1):
            raise broken
        return opened(topic, number)

    with patch.object(Topic, "partition", partition):
        [row] = setting.page(topic="mail")["topics"]
    assert 1 == row["pending"]
    assert row["unreadable"].startswith("mail-1: ")
    assert "it rotted" in row["unreadable"]


def test_a_closed_store_says_so(setting: Setting) -> None:
    setting.store.close()
    with pytest.raises(StoreClosed):
        setting.page()
