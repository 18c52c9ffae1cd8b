"""The topic of a queue, whatever it is called."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.base.names import check_name
from afterlog.integrations.queue_names import NAME_MAX, topic_of

LONG = "a" * 300


@pytest.mark.parametrize(
    ("queue", "topic"),
    [
        ("mail.urgent-1_2", "q.mail.urgent-1_2"),
        ("celery@host", "q.celery_x40_host"),
        ("a_xb", "q.a_x5F_xb"),
        ("a_hb", "q.a_x5F_hb"),
        ("ü", "q._xC3__xBC_"),
        ("", "q."),
    ],
)
def test_a_name(queue: str, topic: str) -> None:
    assert topic == topic_of("q.", queue)


def test_a_long_name_is_known_by_its_hash() -> None:
    first, second = (topic_of("q.", LONG + each) for each in "ab")
    assert NAME_MAX == len(first) == len(second)
    assert first != second
    check_name(first)


ODD = st.text(st.sampled_from("ax_hF40@5ü.") | st.characters(), max_size=12)


@given(ODD, ODD)
def test_two_names_are_two_topics(one: str, other: str) -> None:
    topics = topic_of("q.", one), topic_of("q.", other)
    for topic in topics:
        check_name(topic)
    assert (one == other) == (topics[0] == topics[1])
