from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from afterlog.base.errors import CorruptFile, WrongType
from afterlog.log.topic_settings import TopicChanges, TopicSettings, asked_settings, settings_to_json, topics_of_json

PATH = Path("/store/topics")
OLD = {"partitions": 1, "delayed": True, "max_delay_ms": None, "retention_ms": None, "retention_bytes": None}


@pytest.mark.parametrize(
    ("settings", "more"),
    [
        (TopicSettings(), {}),
        (TopicSettings(check_instants=False), {"check_instants": False}),
        (TopicSettings(interceptors=("a", "b")), {"interceptors": ["a", "b"]}),
        (TopicSettings(remote_storage_enable=True), {"remote_storage_enable": True}),
        (
            TopicSettings(remote_storage_enable=True, local_retention_ms=0),
            {"remote_storage_enable": True, "local_retention_ms": 0},
        ),
    ],
)
def test_a_document_has_later_settings_where_they_are_set(settings: TopicSettings, more: dict[str, object]) -> None:
    assert OLD | more == settings_to_json(settings)
    assert {"mail": settings} == topics_of_json({"mail": OLD | more}, PATH)


@pytest.mark.parametrize("change", [{"delayed": 1}, {"partitions": 1.0}, {"remote_storage_enable": None}])
def test_a_setting_of_another_type_yet(change: dict[str, object]) -> None:
    with pytest.raises(CorruptFile, match=next(iter(change))):
        topics_of_json({"mail": OLD | change}, PATH)


def test_a_setting_of_another_type() -> None:
    with pytest.raises(CorruptFile):
        topics_of_json({"mail": OLD | {"check_instants": "no"}}, PATH)


def test_what_can_be_asked_for_is_what_there_is() -> None:
    own = {"partitions", "delayed", "foreign", "topic_id", "paused"}
    assert {field.name for field in fields(TopicSettings)} - own == set(TopicChanges.__annotations__)
    assert TopicSettings() == asked_settings(1, True, {})
    with pytest.raises(WrongType, match="foreign"):
        asked_settings(1, True, {"foreign": True})
